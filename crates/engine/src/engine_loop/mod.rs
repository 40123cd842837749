//! The engine loop: handles commands, admits sequences, assembles steps, runs them, and processes their output.
//!
//! A decoding sequence takes one row of a step. Prompts take the other rows in chunks, which keep the step short while other
//! sequences wait for their next token (chunked prefill).

mod batch;
mod encode;
mod results;
mod temporary_pages;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use puna_graph::StepInput;
use puna_models::StepKind;
use puna_tokenizer::Tokenizer;

use crate::diffusion::{DiffusionSequence, DiffusionSequences};
use crate::embed::EmbedRequest;
use crate::error::EngineError;
use crate::executor::ModelExecutor;
use crate::pages::{NodeId, PAGE_TOKENS, Pages, Windows};
use crate::request::Finish;
use crate::sequence::{RequestId, Sequence};
use crate::sequence_pages::SequencePages;
use crate::speculate::Draft;
use crate::speculate::speculator::{DraftLimits, Speculator, StepTiming};
use crate::stats::Stats;

pub use temporary_pages::TemporaryPages;

/// Target time of a step with prompt rows while sequences decode.
const STEP_TARGET: Duration = Duration::from_millis(100);
/// Rows of the first chunk, before the prefill rate is measured. Smaller chunks measure it badly.
const FIRST_CHUNK: usize = 64;
/// Time after which the loop asks sinks again that were not ready, unless [`Command::Wake`] arrives before.
const READY_POLL_INTERVAL: Duration =
    Duration::from_millis(if cfg!(test) { 3_600_000 } else { 100 });
/// Time that the loop waits for token masks while no other sequence can take a step.
const MASK_POLL: Duration = Duration::from_millis(2);
/// Time that a step waits for token masks. Sampling of a sequence whose mask takes longer is deferred to later steps.
const MASK_WAIT: Duration = Duration::from_millis(20);

/// Command of the engine handle to the loop.
pub enum Command {
    Submit(Box<Sequence>),
    Unmask(Box<DiffusionSequence>),
    Cancel(RequestId),
    Embed(EmbedRequest),
    /// A sink that was not ready is ready.
    Wake,
    Stop,
}

/// State of the loop.
pub struct EngineLoop {
    pub executor: ModelExecutor,
    pub tokenizer: Arc<Tokenizer>,
    pub stats: Arc<Mutex<Stats>>,
    pages: Pages,
    num_batch: usize,
    max_sequences: Option<usize>,
    waiting: VecDeque<Sequence>,
    running: Vec<Sequence>,
    pub diffusion: DiffusionSequences,
    pub embeds: VecDeque<EmbedRequest>,
    /// Whether an embedding waits for pages, so that no sequence is admitted.
    pub embedding_blocked_on_pages: bool,
    /// Prompt rows computed for each client since the loop was last idle, for fairness.
    served: HashMap<u64, u64>,
    /// Number of assembled steps.
    steps: u64,
    admissions: u64,
    preempted: u64,
    /// Moving average of prompt tokens per second.
    prefill_rate: f64,
    speculator: Speculator,
}

/// Rows of one sequence in a step.
struct SequenceRows {
    running: usize,
    first_row: usize,
    rows: usize,
    /// Whether the rows are prompt rows.
    prompt: bool,
    /// Result rows that score the prompt.
    scores: Range<usize>,
    /// Result rows with logits to sample from.
    outputs: Range<usize>,
    /// Draft tokens, which have the rows behind.
    draft: Option<Draft>,
}

impl EngineLoop {
    pub fn new(
        executor: ModelExecutor,
        tokenizer: Arc<Tokenizer>,
        stats: Arc<Mutex<Stats>>,
        pages: Pages,
        num_batch: usize,
        max_sequences: Option<usize>,
        speculator: Speculator,
    ) -> Self {
        Self {
            executor,
            tokenizer,
            stats,
            pages,
            num_batch: num_batch.max(1),
            max_sequences: max_sequences.map(|most| most.max(1)),
            waiting: VecDeque::new(),
            running: Vec::new(),
            diffusion: DiffusionSequences::default(),
            embeds: VecDeque::new(),
            embedding_blocked_on_pages: false,
            served: HashMap::new(),
            steps: 0,
            admissions: 0,
            preempted: 0,
            prefill_rate: 0.0,
            speculator,
        }
    }

    /// Runs until the stop command, or until all command senders are gone.
    pub fn run(mut self, commands: &Receiver<Command>) {
        loop {
            if self.is_idle() {
                self.served.clear();
                self.publish_stats();
                if !commands.recv().is_ok_and(|command| self.handle_command(command)) {
                    break;
                }
            }
            loop {
                let continues = match commands.try_recv() {
                    Ok(command) => self.handle_command(command),
                    Err(TryRecvError::Disconnected) => false,
                    Err(TryRecvError::Empty) => break,
                };
                if !continues {
                    return self.stop();
                }
            }
            self.admit();
            self.begin_round();
            let stepped = self.step().unwrap_or_else(|error| {
                self.fail_running(&error.to_string());
                true
            });
            self.embed_step();
            let denoised = self.denoising_step();
            self.publish_stats();
            let is_blocked = !stepped && !denoised && self.embeds.is_empty();
            if is_blocked && !self.is_idle() && !self.wait_for_command(commands) {
                break;
            }
        }
        self.stop();
    }

    /// Waits until a sink may be ready or another command arrives. Returns `false` to end the loop.
    fn wait_for_command(&mut self, commands: &Receiver<Command>) -> bool {
        match commands.recv_timeout(READY_POLL_INTERVAL) {
            Ok(command) => self.handle_command(command),
            Err(RecvTimeoutError::Timeout) => true,
            Err(RecvTimeoutError::Disconnected) => false,
        }
    }

    fn is_idle(&self) -> bool {
        let sequences = self.waiting.is_empty() && self.running.is_empty();
        sequences && self.diffusion.is_empty() && self.embeds.is_empty()
    }

    /// Handles a command. Returns `false` to end the loop.
    fn handle_command(&mut self, command: Command) -> bool {
        match command {
            Command::Submit(sequence) => self.waiting.push_back(*sequence),
            Command::Unmask(sequence) => self.diffusion.push(*sequence),
            Command::Embed(request) => self.embeds.push_back(request),
            Command::Cancel(id) => {
                self.waiting.retain(|s| s.id != id);
                self.diffusion.cancel(id);
                if let Some(at) = self.embeds.iter().position(|request| request.id == id)
                    && let Some(mut request) = self.embeds.remove(at)
                {
                    self.drop_embed(&mut request);
                }
                if let Some(at) = self.running.iter().position(|s| s.id == id) {
                    let mut sequence = self.running.swap_remove(at);
                    self.release(&mut sequence);
                }
            }
            Command::Wake => {}
            Command::Stop => return false,
        }
        true
    }

    fn stop(mut self) {
        self.fail_running("the engine is shutting down");
        self.diffusion.fail("the engine is shutting down");
        for mut sequence in std::mem::take(&mut self.waiting) {
            sequence.fail("the engine is shutting down");
        }
        for request in std::mem::take(&mut self.embeds) {
            (request.done)(Err(EngineError::Stopped));
        }
    }

    fn fail_running(&mut self, reason: &str) {
        for mut sequence in std::mem::take(&mut self.running) {
            sequence.fail(reason);
            self.release(&mut sequence);
        }
    }

    /// Admits waiting sequences while pages and state slots suffice.
    fn admit(&mut self) {
        while self.max_sequences.is_none_or(|most| self.running.len() < most) {
            let Some(at) = self.next_to_admit() else { return };
            let s = &self.waiting[at];
            let (tokens, known) = (&s.tokens, s.known());
            let needed = (tokens.len() + 1).div_ceil(PAGE_TOKENS);
            let known = self.pages.find(&s.tree_key, &tokens[..known]).path;
            let lacking = needed.saturating_sub(known.len());
            // A sequence alone always fits.
            let alone = self.running.is_empty() && !self.embeds_hold_pages();
            let lacks_pages = self.pages.available(&known) < lacking + self.reserved_pages();
            if !alone
                && (self.embedding_blocked_on_pages
                    || lacks_pages
                    || self.lacks_window_pages(&known, tokens.len()))
            {
                return;
            }
            if !self.has_a_state_left() {
                return;
            }
            let Some(mut sequence) = self.waiting.remove(at) else { return };
            // A preempted sequence keeps its age, so that the oldest always makes progress.
            if sequence.admitted == 0 {
                self.admissions += 1;
                sequence.admitted = self.admissions;
            }
            self.begin(&mut sequence);
            self.init_fair_share(&mut sequence);
            self.running.push(sequence);
        }
    }

    /// Whether a state slot is free; drops unpublished checkpoints of running sequences if needed.
    fn has_a_state_left(&mut self) -> bool {
        if self.pages.has_states() && self.pages.states_available() == 0 {
            self.running.iter_mut().for_each(|s| s.pages.drop_checkpoints(&mut self.pages));
        }
        !self.pages.has_states() || self.pages.states_available() > 0
    }

    /// Pages that running sequences still need for their known tokens and one more.
    fn reserved_pages(&self) -> usize {
        let lacks = |s: &Sequence| {
            (s.tokens.len() + 1).saturating_sub(s.pages.room()).div_ceil(PAGE_TOKENS)
        };
        self.running.iter().map(lacks).sum()
    }

    /// Whether window pages are too few to admit a sequence of `tokens` tokens with a cached `path`. Each sequence needs the window of its
    /// next token; prompts need more for the chunk of a step.
    fn lacks_window_pages(&self, path: &[NodeId], tokens: usize) -> bool {
        if !self.pages.has_window_pages() {
            return false;
        }
        let most = self.pages.windows().pages(1);
        let needs = |tokens: usize| (tokens + 1).div_ceil(PAGE_TOKENS);
        let seen = self.pages.seen_of(path, path.len() * PAGE_TOKENS);
        let mut lacking = needs(tokens).min(most).saturating_sub(seen.len());
        let beyond = |tokens: usize, computed: usize| {
            needs(tokens).saturating_sub(most).min((tokens - computed).div_ceil(PAGE_TOKENS))
        };
        let mut chunk = beyond(tokens, path.len() * PAGE_TOKENS);
        for s in &self.running {
            let needed = needs(s.tokens.len()).min(most);
            lacking += needed.saturating_sub(s.pages.recent_pages());
            chunk += if s.is_decoding() { 0 } else { beyond(s.tokens.len(), s.computed) };
        }
        lacking += chunk.min(self.num_batch.div_ceil(PAGE_TOKENS));
        self.pages.window_pages_available(seen) < lacking
    }

    /// Starts the fair share of a new client at the smallest share of the other clients, and that of a sequence likewise within its
    /// client. So a new client does not block the others until it has caught up. Forgets clients that have left.
    fn init_fair_share(&mut self, sequence: &mut Sequence) {
        let client = sequence.request.client;
        let (running, waiting) = (&self.running, &self.waiting);
        self.served.retain(|c, _| running.iter().chain(waiting).any(|s| s.request.client == *c));
        let least =
            running.iter().filter_map(|s| self.served.get(&s.request.client)).min().copied();
        self.served.entry(client).or_insert(least.unwrap_or(0));
        let others = running.iter().filter(|s| s.request.client == client && !s.is_decoding());
        sequence.served = others.map(|s| s.served).min().unwrap_or(0);
    }

    /// The first waiting sequence of the client with the fewest running sequences. Skips sequences whose prefix is in flight.
    fn next_to_admit(&self) -> Option<usize> {
        let mut running = HashMap::<u64, usize>::new();
        self.running.iter().for_each(|s| *running.entry(s.request.client).or_default() += 1);
        let mut all: Vec<usize> = (0..self.waiting.len()).collect();
        all.sort_by_key(|&i| (running.get(&self.waiting[i].request.client), i));
        all.into_iter().find(|&i| !self.is_prefix_in_flight(&self.waiting[i]))
    }

    /// Whether a running sequence of the same client is computing a prefix of `sequence` of at least one page. So several requests with
    /// one prompt compute it once.
    fn is_prefix_in_flight(&self, sequence: &Sequence) -> bool {
        let known = &sequence.tokens[..sequence.known()];
        let more = |than: usize| {
            let alike = |s: &Sequence| {
                s.request.client == sequence.request.client && s.tree_key == sequence.tree_key
            };
            let reads = |s: &&Sequence| alike(s) && !s.is_decoding() && s.ready();
            self.running.iter().filter(reads).any(|s| {
                let common = s.tokens.iter().zip(known).take_while(|(a, b)| a == b).count();
                common >= PAGE_TOKENS && common > than.max(s.computed)
            })
        };
        // A cheap test first: most sequences have no common prefix.
        more(0) && more(self.pages.find(&sequence.tree_key, known).tokens())
    }

    /// Finds the cached prefix of a sequence. The last token is always computed, since its logits are needed.
    fn begin(&mut self, sequence: &mut Sequence) {
        let known = &sequence.tokens[..sequence.known()];
        let others = self.running.iter().map(|s| (&s.pages, &s.tokens[..s.computed]));
        let key = &sequence.tree_key;
        let (pages, computed) =
            SequencePages::find(&mut self.pages, &mut *self.executor.backend, key, known, others);
        sequence.pages = pages;
        sequence.start(computed);
    }

    /// Moves the pages of a sequence to the tree.
    fn release(&mut self, sequence: &mut Sequence) {
        self.speculator.remove(sequence);
        let pages = std::mem::take(&mut sequence.pages);
        pages.release(&mut self.pages, &sequence.tokens[..sequence.computed]);
        sequence.computed = 0;
    }

    /// Makes sure that a running sequence has pages for `tokens` tokens; preempts the newest sequences if needed. Returns the new index of
    /// the sequence, or `None` if it was preempted itself.
    fn preempt_until_fits(&mut self, mut at: usize, tokens: usize) -> Option<usize> {
        while !self.running[at].pages.grow(&mut self.pages, tokens) {
            let newest = (0..self.running.len()).max_by_key(|&i| self.running[i].admitted)?;
            let mut sequence = self.running.remove(newest);
            self.release(&mut sequence);
            self.waiting.push_front(sequence);
            self.preempted += 1;
            if newest == at {
                return None;
            }
            at -= usize::from(newest < at);
        }
        Some(at)
    }

    /// Finishes sequences with a full context, or shifts their context.
    fn check_context(&mut self) {
        let n_ctx = self.executor.info.n_ctx;
        let mut at = 0;
        while at < self.running.len() {
            if self.running[at].tokens.len() <= self.running[at].context(n_ctx) {
                at += 1;
                continue;
            }
            let mut sequence = self.running.swap_remove(at);
            self.release(&mut sequence);
            if sequence.can_shift() {
                sequence.shift();
                self.begin(&mut sequence);
                self.running.push(sequence);
            } else {
                sequence.finish(Finish::Length);
            }
        }
    }

    /// Runs a step of the running sequences. Returns `false` if none can take part, since their sinks are not ready.
    fn step(&mut self) -> Result<bool, EngineError> {
        let resumed = self.resume_deferred_sampling(Instant::now()) > 0;
        self.check_context();
        if self.running.is_empty() {
            return Ok(resumed);
        }
        self.encode()?;
        let chosen = self.select_batch();
        if chosen.is_empty() {
            let waits_for_mask = self.running.iter().any(|s| s.is_sample_deferred() && s.ready());
            self.resume_deferred_sampling(Instant::now() + MASK_POLL);
            return Ok(resumed || waits_for_mask);
        }
        for &(id, rows) in &chosen {
            if let Some(at) = self.running.iter().position(|s| s.id == id) {
                self.preempt_until_fits(at, self.running[at].computed + rows);
            }
        }
        let drafts = self.draft(&chosen)?;
        let drafts = self.fit_drafts_to_pages(drafts);
        let (input, parts) = self.assemble(&chosen, drafts);
        if parts.is_empty() {
            return Ok(true);
        }
        // Compiled before the timing starts.
        self.executor.prepare(StepKind::Logits, &input)?;
        let start = Instant::now();
        let Some(cols) = self.executor.run(StepKind::Logits, &input)? else {
            return Err(EngineError::CannotGenerate);
        };
        let seconds = start.elapsed().as_secs_f64();
        let prompt_rows: usize = parts.iter().filter(|p| p.prompt).map(|p| p.rows).sum();
        self.record_prefill_rate(prompt_rows, seconds);
        let accepted = self.process_step_output(&parts, cols, prompt_rows)?;
        if prompt_rows == 0 {
            let (sequences, rows) = (parts.len(), input.tokens.len());
            self.speculator.record_timing(StepTiming { sequences, rows, seconds, accepted });
        }
        Ok(true)
    }

    /// Updates the prefill rate from a step.
    fn record_prefill_rate(&mut self, prompt_rows: usize, seconds: f64) {
        if prompt_rows >= FIRST_CHUNK {
            let rate = prompt_rows as f64 / seconds;
            self.prefill_rate =
                if self.prefill_rate == 0.0 { rate } else { 0.7 * self.prefill_rate + 0.3 * rate };
        }
    }

    /// Makes draft tokens for a step without prompt rows.
    fn draft(
        &mut self,
        chosen: &[(RequestId, usize)],
    ) -> Result<Vec<(RequestId, Draft)>, EngineError> {
        let decoding = |s: &Sequence| s.is_decoding() && chosen.iter().any(|(id, _)| *id == s.id);
        let mut sequences: Vec<_> = self.running.iter_mut().filter(|s| decoding(s)).collect();
        if sequences.len() < chosen.len() {
            return Ok(Vec::new());
        }
        let limits = DraftLimits {
            n_ctx: self.executor.info.n_ctx,
            rows: self.num_batch,
            target: STEP_TARGET,
        };
        let model = (&mut self.executor, &mut self.pages);
        self.speculator.draft(&mut sequences, &self.tokenizer, limits, model)
    }

    /// Shortens drafts to the free pages: no sequence is preempted for a draft.
    fn fit_drafts_to_pages(
        &mut self,
        mut drafts: Vec<(RequestId, Draft)>,
    ) -> HashMap<RequestId, Draft> {
        for (id, draft) in &mut drafts {
            let Some(s) = self.running.iter_mut().find(|s| s.id == *id) else { continue };
            let wanted = s.computed + 1 + draft.tokens.len();
            s.pages.grow(&mut self.pages, wanted);
            draft.tokens.truncate(s.pages.room().saturating_sub(s.computed + 1));
        }
        drafts.into_iter().filter(|(_, draft)| !draft.tokens.is_empty()).collect()
    }

    fn assemble(
        &self,
        chosen: &[(RequestId, usize)],
        mut drafts: HashMap<RequestId, Draft>,
    ) -> (StepInput, Vec<SequenceRows>) {
        let mut input = StepInput::default();
        let mut parts = Vec::new();
        for &(id, rows) in chosen {
            // Preempted by an earlier sequence of this step.
            let Some(running) = self.running.iter().position(|s| s.id == id) else { continue };
            let s = &self.running[running];
            if s.pages.room() < s.computed + rows {
                continue;
            }
            let (first_row, past) = (input.tokens.len(), s.computed);
            input.tokens.extend_from_slice(&s.tokens[past..past + rows]);
            let draft = drafts.remove(&id);
            input.tokens.extend(draft.iter().flat_map(|draft| &draft.tokens));
            let all = input.tokens.len() - first_row;
            input.positions.extend((past..past + all).map(|p| p as u32));
            let first_score = input.outputs.len();
            input.outputs.extend(s.scoring(rows).map(|token| (first_row + token - past) as u32));
            let first_output = input.outputs.len();
            if past + rows == s.tokens.len() {
                input.outputs.extend((first_row + rows - 1..first_row + all).map(|row| row as u32));
            }
            let (scores, outputs) = (first_score..first_output, first_output..input.outputs.len());
            input.segments.push(s.pages.segment(&self.pages, first_row, all, past));
            input.adapter_scales.push(s.request.adapter_scales.clone());
            parts.push(SequenceRows {
                running,
                first_row,
                rows,
                prompt: !s.is_decoding(),
                scores,
                outputs,
                draft,
            });
        }
        (input, parts)
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
        [self.running.len() + begun, self.waiting.len() + new + self.embeds.len()]
    }

    fn publish_stats(&self) {
        let mut stats = self.stats.lock().expect("nobody panics with the statistics");
        [stats.running, stats.waiting] = self.counts();
        stats.pages = self.pages.total();
        stats.pages_in_use = self.pages.in_use();
        stats.pages_held = self.pages.pinned();
        [stats.recent_pages, stats.recent_pages_in_use, stats.recent_pages_held] =
            self.pages.window_page_counts();
        stats.preempted = self.preempted;
        stats.scratch_bytes = self.executor.backend.scratch_bytes() as u64;
    }

    /// The windows of layers.
    pub fn windows(&self) -> &Windows {
        self.pages.windows()
    }

    /// Whether running sequences may release pages.
    pub fn is_running(&self) -> bool {
        !self.running.is_empty()
    }

    /// Largest number of running sequences.
    pub fn max_sequences(&self) -> Option<usize> {
        self.max_sequences
    }

    /// Largest number of tokens per step.
    pub fn num_batch(&self) -> usize {
        self.num_batch
    }
}
