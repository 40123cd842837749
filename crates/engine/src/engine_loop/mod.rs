//! The engine loop. Each round has three phases: the scheduler plans a step, the executor runs it,
//! and its results are sampled and sent to the clients.

mod embed_pacing;
mod emit;
mod execute;
mod media;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use puna_tokenizer::Tokenizer;

use self::embed_pacing::EmbedPacing;
pub use self::media::MediaEncoder;
use crate::diffusion::{DiffusionSequence, DiffusionSequences};
use crate::embed_queue::{EmbedQueue, EmbedRequest};
use crate::executor::ModelExecutor;
use crate::generation::Generation;
use crate::request::{FinishReason, RequestId};
use crate::scheduler::{Scheduler, SequenceState, StepPlan};
use crate::speculate::speculator::Speculator;
use crate::stats::Stats;

/// Time after which the loop asks sinks again that were not ready, unless [`Command::Wake`] arrives
/// before.
const READY_POLL_INTERVAL: Duration =
    Duration::from_millis(if cfg!(test) { 3_600_000 } else { 100 });

/// Reason that clients get when the engine stops.
const SHUTTING_DOWN: &str = "the engine is shutting down";

/// Command of the engine handle to the loop.
pub enum Command {
    Submit(Box<(SequenceState, Generation)>),
    SubmitDiffusion(Box<DiffusionSequence>),
    Cancel(RequestId),
    Embed(EmbedRequest),
    /// A sink that was not ready is ready.
    Wake,
    Stop,
}

/// State of the loop.
pub struct EngineLoop {
    executor: ModelExecutor,
    tokenizer: Arc<Tokenizer>,
    stats: Arc<Mutex<Stats>>,
    scheduler: Scheduler,
    /// Sampler, options and output stream of each sequence in `scheduler`.
    generations: HashMap<RequestId, Generation>,
    diffusion: DiffusionSequences,
    embeds: EmbedQueue,
    embed_pacing: EmbedPacing,
    speculator: Speculator,
    media: MediaEncoder,
}

impl EngineLoop {
    pub fn new(
        executor: ModelExecutor,
        tokenizer: Arc<Tokenizer>,
        stats: Arc<Mutex<Stats>>,
        scheduler: Scheduler,
        speculator: Speculator,
        media: MediaEncoder,
    ) -> Self {
        Self {
            executor,
            tokenizer,
            stats,
            scheduler,
            generations: HashMap::new(),
            diffusion: DiffusionSequences::default(),
            embeds: EmbedQueue::default(),
            embed_pacing: EmbedPacing::default(),
            speculator,
            media,
        }
    }

    /// Runs until the stop command, or until all command senders are gone.
    pub fn run(mut self, commands: &Receiver<Command>) {
        while self.handle_commands(commands) {
            let start = Instant::now();
            let generated = self.generate();
            self.embed_pacing.record_generation(start.elapsed());
            let embedded = (!generated || self.embed_pacing.is_due()) && self.embed();
            let denoised = self.denoise();
            let encoded = self.encode_media();
            self.publish_stats();
            let progressed = generated || embedded || denoised || encoded;
            if !progressed && !self.is_idle() && !self.wait_for_command(commands) {
                break;
            }
        }
        self.stop();
    }

    /// One step of the sequences: plan, execute, emit. Returns `false` if nothing ran: there is
    /// no sequence, or no running sequence has a ready sink.
    fn generate(&mut self) -> bool {
        let resumed = self.resume_deferred_sampling(Instant::now()) > 0;
        let plan = self.plan();
        self.begin_round();
        if plan.rows.is_empty() {
            return resumed || self.poll_masks();
        }
        let start = Instant::now();
        match self.execute(&plan).and_then(|output| self.emit(output)) {
            Ok(()) => self.record_decode(&plan, start.elapsed()),
            Err(error) => self.fail_running(&error.to_string()),
        }
        true
    }

    /// Reports the time of a step that only decoded.
    fn record_decode(&mut self, plan: &StepPlan, time: Duration) {
        let only_decodes = plan.rows.iter().all(|row| row.rows == 1) && !plan.encodes;
        if only_decodes {
            self.scheduler.record_decode(plan.rows.len(), time.as_secs_f64());
        }
    }

    /// Plans the next step, and applies what the scheduler has changed before it.
    fn plan(&mut self) -> StepPlan {
        for s in self.scheduler.sequences_mut() {
            s.is_ready = self.generations.get(&s.id).is_some_and(Generation::is_ready);
        }
        let mut plan = self.scheduler.schedule();
        self.executor.copy(self.scheduler.pages.take_copies());
        for start in &plan.admitted {
            if let Some(generation) = self.generations.get_mut(&start.id) {
                generation.start(start.cached);
            }
        }
        for shift in &plan.shifted {
            self.speculator.remove(shift.id, &shift.tokens);
            if let Some(generation) = self.generations.get_mut(&shift.id) {
                generation.shift(shift.dropped);
            }
        }
        for state in plan.full.drain(..) {
            self.speculator.remove(state.id, &state.tokens);
            if let Some(mut generation) = self.generations.remove(&state.id) {
                generation.finish(&state, FinishReason::Length);
            }
        }
        for id in &plan.preempted {
            if let Some(state) = self.scheduler.waiting(*id) {
                self.speculator.remove(*id, &state.tokens);
            }
        }
        plan
    }

    /// Runs a step of embeddings. Returns whether there was work.
    fn embed(&mut self) -> bool {
        let embedding: HashSet<u64> = self.embeds.clients().collect();
        let start = Instant::now();
        let embedded = self.embeds.step(&mut self.scheduler, &mut self.executor);
        if embedded {
            let generating = self.scheduler.running().iter().map(|s| s.client).collect();
            self.embed_pacing.record_embedding(start.elapsed(), &generating, &embedding);
        }
        embedded
    }

    /// Runs a denoising step. Returns whether there was work.
    fn denoise(&mut self) -> bool {
        let max = self.scheduler.limits().max_sequences.unwrap_or(usize::MAX);
        let work = self.diffusion.step(&mut self.executor, &self.tokenizer, max);
        let mut stats = self.stats.lock().expect("nobody panics with the statistics");
        stats.steps += work.steps;
        stats.prompt_tokens += work.prompt_tokens;
        stats.generated_tokens += work.generated_tokens;
        work.progressed
    }

    /// Handles all commands that have arrived; waits for one if there is no work. Returns `false`
    /// to end the loop.
    fn handle_commands(&mut self, commands: &Receiver<Command>) -> bool {
        if self.is_idle() {
            self.scheduler.reset_shares();
            self.publish_stats();
            if !commands.recv().is_ok_and(|command| self.handle_command(command)) {
                return false;
            }
        }
        loop {
            let continues = match commands.try_recv() {
                Ok(command) => self.handle_command(command),
                Err(TryRecvError::Disconnected) => false,
                Err(TryRecvError::Empty) => return true,
            };
            if !continues {
                return false;
            }
        }
    }

    /// Waits until a sink may be ready or another command arrives. Returns `false` to end the loop.
    fn wait_for_command(&mut self, commands: &Receiver<Command>) -> bool {
        match commands.recv_timeout(READY_POLL_INTERVAL) {
            Ok(command) => self.handle_command(command),
            Err(RecvTimeoutError::Timeout) => true,
            Err(RecvTimeoutError::Disconnected) => false,
        }
    }

    /// Handles a command. Returns `false` to end the loop.
    fn handle_command(&mut self, command: Command) -> bool {
        match command {
            Command::Submit(sequence) => {
                let (mut state, mut generation) = *sequence;
                let media = std::mem::take(&mut generation.request.media);
                state.place_media(&media, &mut self.media.numbers);
                self.generations.insert(state.id, generation);
                self.scheduler.add(state);
            }
            Command::SubmitDiffusion(sequence) => self.diffusion.push(*sequence),
            Command::Embed(request) => self.embeds.push(request),
            Command::Cancel(id) => {
                self.diffusion.cancel(id);
                self.embeds.cancel(id, &mut self.scheduler);
                self.remove_ended(&[id]);
            }
            Command::Wake => {}
            Command::Stop => return false,
        }
        true
    }

    fn is_idle(&self) -> bool {
        self.scheduler.counts() == [0, 0] && self.diffusion.is_empty() && self.embeds.is_empty()
    }

    fn stop(mut self) {
        self.fail_running(SHUTTING_DOWN);
        self.diffusion.fail(SHUTTING_DOWN);
        for state in self.scheduler.remove_waiting() {
            self.fail(&state, SHUTTING_DOWN);
        }
        self.embeds.stop();
    }

    /// Ends all running sequences with an error.
    fn fail_running(&mut self, reason: &str) {
        for state in self.scheduler.remove_running() {
            self.fail(&state, reason);
        }
    }

    /// Sends an error to a removed sequence.
    fn fail(&mut self, state: &SequenceState, reason: &str) {
        self.speculator.remove(state.id, &state.tokens);
        if let Some(mut generation) = self.generations.remove(&state.id) {
            generation.fail(reason);
        }
    }

    /// Removes sequences that have ended.
    fn remove_ended(&mut self, ended: &[RequestId]) {
        for id in ended {
            if let Some(state) = self.scheduler.remove(*id) {
                self.speculator.remove(*id, &state.tokens);
            }
            self.generations.remove(id);
        }
    }

    /// Publishes the work before it starts, so that it is visible if a step hangs.
    fn begin_round(&self) {
        let mut stats = self.stats.lock().expect("nobody panics with the statistics");
        stats.rounds += 1;
        [stats.running, stats.waiting] = self.counts();
    }

    /// Numbers of running and of waiting requests.
    fn counts(&self) -> [usize; 2] {
        let (begun, new) = self.diffusion.counts();
        let [running, waiting] = self.scheduler.counts();
        [running + begun, waiting + new + self.embeds.len()]
    }

    fn publish_stats(&self) {
        let mut stats = self.stats.lock().expect("nobody panics with the statistics");
        [stats.running, stats.waiting] = self.counts();
        let pages = &self.scheduler.pages;
        stats.pages = pages.total();
        stats.pages_in_use = pages.in_use();
        stats.pages_pinned = pages.pinned();
        [stats.window_pages, stats.window_pages_in_use, stats.window_pages_pinned] =
            pages.window_page_counts();
        stats.preempted = self.scheduler.preemptions();
        stats.scratch_bytes = self.executor.backend.scratch_bytes() as u64;
    }
}
