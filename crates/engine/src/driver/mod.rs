//! The loop: admits sequences, builds each step from running ones, hands out results.
//!
//! Sequences that generate take one row a step; the rest of the step goes to prompts, in chunks that keep the
//! step short while others wait for their next token.

mod borrowed;
mod encode;
mod results;
mod turns;

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use puna_graph::StepInput;
use puna_models::Want;
use puna_tokenizer::Tokenizer;

use crate::diffusion::{Canvas, Canvases};
use crate::embed::EmbedJob;
use crate::error::EngineError;
use crate::held::Held;
use crate::job::Finish;
use crate::pages::{NodeId, PAGE_TOKENS, Pages, Windows};
use crate::sequence::{JobId, Sequence};
use crate::speculate::Guess;
use crate::speculate::speculator::{Limits, Ran, Speculator};
use crate::stats::Stats;
use crate::stepper::Stepper;

pub use borrowed::Borrowed;

/// How long a running sequence waits for somebody else's prompt.
const STEP_TARGET: Duration = Duration::from_millis(100);
/// Rows of the first chunk, before anything is known about the machine; smaller ones tell little about its rate.
const FIRST_CHUNK: usize = 64;
/// How long to wait when every listener is slow.
const SLOW_LISTENER_PAUSE: Duration = Duration::from_millis(2);
/// How long a step waits for what fits the forms of its answers; what takes longer is waited for beside the next steps.
const FORM_WAIT: Duration = Duration::from_millis(20);

/// What the handle asks of the loop.
pub enum Command {
    Submit(Box<Sequence>),
    Unmask(Box<Canvas>),
    Cancel(JobId),
    Embed(EmbedJob),
    Stop,
}

/// The loop's state.
pub struct Driver {
    pub stepper: Stepper,
    pub tokenizer: Arc<Tokenizer>,
    pub stats: Arc<Mutex<Stats>>,
    pages: Pages,
    num_batch: usize,
    max_sequences: Option<usize>,
    waiting: VecDeque<Sequence>,
    running: Vec<Sequence>,
    pub canvases: Canvases,
    pub embeds: VecDeque<EmbedJob>,
    /// An embedding waits for pages: no new sequence is to take them.
    pub embed_waits: bool,
    /// Rows that each client's prompts have had, while there is work.
    served: HashMap<u64, u64>,
    /// Steps that were chosen for.
    steps: u64,
    admissions: u64,
    preempted: u64,
    /// Prompt tokens a second, as last seen.
    prefill_rate: f64,
    speculator: Speculator,
}

/// A sequence's part of a step.
struct Part {
    running: usize,
    first_row: usize,
    rows: usize,
    /// Whether the rows are a prompt's.
    prompt: bool,
    /// Rows of the result that score the prompt, before the others.
    scores: Range<usize>,
    /// Rows of the result with its logits.
    outputs: Range<usize>,
    /// Its rows behind those, if they are a guess.
    guess: Option<Guess>,
}

impl Driver {
    pub fn new(
        stepper: Stepper,
        tokenizer: Arc<Tokenizer>,
        stats: Arc<Mutex<Stats>>,
        pages: Pages,
        num_batch: usize,
        max_sequences: Option<usize>,
        speculator: Speculator,
    ) -> Self {
        Self {
            stepper,
            tokenizer,
            stats,
            pages,
            num_batch: num_batch.max(1),
            max_sequences: max_sequences.map(|most| most.max(1)),
            waiting: VecDeque::new(),
            running: Vec::new(),
            canvases: Canvases::default(),
            embeds: VecDeque::new(),
            embed_waits: false,
            served: HashMap::new(),
            steps: 0,
            admissions: 0,
            preempted: 0,
            prefill_rate: 0.0,
            speculator,
        }
    }

    /// Works until told to stop or nobody can give commands any more.
    pub fn work(mut self, commands: &Receiver<Command>) {
        loop {
            if self.is_idle() {
                self.served.clear();
                self.note_stats();
                if !commands.recv().is_ok_and(|command| self.obey(command)) {
                    break;
                }
            }
            loop {
                let goes_on = match commands.try_recv() {
                    Ok(command) => self.obey(command),
                    Err(TryRecvError::Disconnected) => false,
                    Err(TryRecvError::Empty) => break,
                };
                if !goes_on {
                    return self.stop();
                }
            }
            self.admit();
            self.begin_round();
            if let Err(error) = self.step() {
                self.fail_running(&error.to_string());
            }
            self.embed_step();
            if !self.unmask_step() && !self.canvases.is_empty() && self.embeds.is_empty() {
                std::thread::sleep(SLOW_LISTENER_PAUSE);
            }
            self.note_stats();
        }
        self.stop();
    }

    fn is_idle(&self) -> bool {
        let sequences = self.waiting.is_empty() && self.running.is_empty();
        sequences && self.canvases.is_empty() && self.embeds.is_empty()
    }

    /// Takes a command; `false` ends the loop.
    fn obey(&mut self, command: Command) -> bool {
        match command {
            Command::Submit(sequence) => self.waiting.push_back(*sequence),
            Command::Unmask(canvas) => self.canvases.push(*canvas),
            Command::Embed(job) => self.embeds.push_back(job),
            Command::Cancel(id) => {
                self.waiting.retain(|s| s.id != id);
                self.canvases.cancel(id);
                if let Some(at) = self.embeds.iter().position(|job| job.id == id)
                    && let Some(mut job) = self.embeds.remove(at)
                {
                    self.drop_embed(&mut job);
                }
                if let Some(at) = self.running.iter().position(|s| s.id == id) {
                    let mut sequence = self.running.swap_remove(at);
                    self.release(&mut sequence);
                }
            }
            Command::Stop => return false,
        }
        true
    }

    fn stop(mut self) {
        self.fail_running("the engine is shutting down");
        self.canvases.fail("the engine is shutting down");
        for mut sequence in std::mem::take(&mut self.waiting) {
            sequence.fail("the engine is shutting down");
        }
        for job in std::mem::take(&mut self.embeds) {
            (job.done)(Err(EngineError::Stopped));
        }
    }

    fn fail_running(&mut self, reason: &str) {
        for mut sequence in std::mem::take(&mut self.running) {
            sequence.fail(reason);
            self.release(&mut sequence);
        }
    }

    /// Moves waiting sequences to the running ones while there is room for them.
    fn admit(&mut self) {
        while self.max_sequences.is_none_or(|most| self.running.len() < most) {
            let Some(at) = self.next_waiting() else { return };
            let s = &self.waiting[at];
            let (tokens, known) = (&s.tokens, s.known());
            let needed = (tokens.len() + 1).div_ceil(PAGE_TOKENS);
            let known = self.pages.find(&s.origin, &tokens[..known]).path;
            let lacking = needed.saturating_sub(known.len());
            // Whoever is alone always fits.
            let alone = self.running.is_empty() && !self.embeds_hold_pages();
            let lacks_pages = self.pages.available(&known) < lacking + self.promised();
            if !alone && (self.embed_waits || lacks_pages || self.lacks_recent(&known, tokens.len())) {
                return;
            }
            if !self.has_a_state_left() {
                return;
            }
            let Some(mut sequence) = self.waiting.remove(at) else { return };
            // Who comes back keeps its age, so that the oldest always gets on.
            if sequence.admitted == 0 {
                self.admissions += 1;
                sequence.admitted = self.admissions;
            }
            self.begin(&mut sequence);
            self.enter(&mut sequence);
            self.running.push(sequence);
        }
    }

    /// Whether one more sequence can have a slot for its state, if need be that of a copy that was made of another's.
    fn has_a_state_left(&mut self) -> bool {
        if self.pages.has_states() && self.pages.states_available() == 0 {
            self.running.iter_mut().for_each(|s| s.held.drop_copies(&mut self.pages));
        }
        !self.pages.has_states() || self.pages.states_available() > 0
    }

    /// Pages that running sequences have yet to take for what is known of them and a token more.
    fn promised(&self) -> usize {
        let lacks = |s: &Sequence| (s.tokens.len() + 1).saturating_sub(s.held.room()).div_ceil(PAGE_TOKENS);
        self.running.iter().map(lacks).sum()
    }

    /// Whether there are not enough recent pages for one more sequence of so many tokens, whose path is in the tree: for each what
    /// its next token sees, and for the chunk of a prompt in a step what there is of prompts beyond that.
    fn lacks_recent(&self, path: &[NodeId], tokens: usize) -> bool {
        if !self.pages.has_recent() {
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
            lacking += needed.saturating_sub(s.held.recent_pages());
            chunk += if s.is_decoding() { 0 } else { beyond(s.tokens.len(), s.computed) };
        }
        lacking += chunk.min(self.num_batch.div_ceil(PAGE_TOKENS));
        self.pages.recent_available(seen) < lacking
    }

    /// Counts a client's share from that of the one who had least, and a sequence's likewise among those of its client:
    /// newcomers do not hold up everybody else until they have caught up. Who has left is forgotten.
    fn enter(&mut self, sequence: &mut Sequence) {
        let client = sequence.job.client;
        let (running, waiting) = (&self.running, &self.waiting);
        self.served.retain(|c, _| running.iter().chain(waiting).any(|s| s.job.client == *c));
        let least = running.iter().filter_map(|s| self.served.get(&s.job.client)).min().copied();
        self.served.entry(client).or_insert(least.unwrap_or(0));
        let others = running.iter().filter(|s| s.job.client == client && !s.is_decoding());
        sequence.served = others.map(|s| s.served).min().unwrap_or(0);
    }

    /// The first waiting sequence of the client with the fewest running ones, but for those that are better off waiting.
    fn next_waiting(&self) -> Option<usize> {
        let mut running = HashMap::<u64, usize>::new();
        self.running.iter().for_each(|s| *running.entry(s.job.client).or_default() += 1);
        let mut all: Vec<usize> = (0..self.waiting.len()).collect();
        all.sort_by_key(|&i| (running.get(&self.waiting[i].job.client), i));
        all.into_iter().find(|&i| !self.is_being_computed(&self.waiting[i]))
    }

    /// Whether a running sequence of the same client is about to compute what another begins with, where that is a page or
    /// more: who asks for several answers at once has the prompt computed once.
    fn is_being_computed(&self, sequence: &Sequence) -> bool {
        let known = &sequence.tokens[..sequence.known()];
        let more = |than: usize| {
            let alike = |s: &Sequence| s.job.client == sequence.job.client && s.origin == sequence.origin;
            let reads = |s: &&Sequence| alike(s) && !s.is_decoding() && s.ready();
            self.running.iter().filter(reads).any(|s| {
                let common = s.tokens.iter().zip(known).take_while(|(a, b)| a == b).count();
                common >= PAGE_TOKENS && common > than.max(s.computed)
            })
        };
        // Most have nothing in common, and need not be looked for in the tree.
        more(0) && more(self.pages.find(&sequence.origin, known).tokens())
    }

    /// Finds what there is of a sequence's tokens. The last token is always computed: its logits are wanted.
    fn begin(&mut self, sequence: &mut Sequence) {
        let known = &sequence.tokens[..sequence.known()];
        let others = self.running.iter().map(|s| (&s.held, &s.tokens[..s.computed]));
        let origin = &sequence.origin;
        let (held, computed) = Held::find(&mut self.pages, &mut *self.stepper.backend, origin, known, others);
        sequence.held = held;
        sequence.start(computed);
    }

    /// Gives a sequence's pages to the tree.
    fn release(&mut self, sequence: &mut Sequence) {
        self.speculator.leave(sequence);
        let held = std::mem::take(&mut sequence.held);
        held.release(&mut self.pages, &sequence.tokens[..sequence.computed]);
        sequence.computed = 0;
    }

    /// Makes room for `tokens` tokens of a running sequence, if need be by sending the newest one back to the queue.
    /// Returns the sequence's new index, or `None` if it was sent back itself.
    fn make_room(&mut self, mut at: usize, tokens: usize) -> Option<usize> {
        while !self.running[at].held.grow(&mut self.pages, tokens) {
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

    /// Ends or shifts sequences whose context is full.
    fn check_context(&mut self) {
        let n_ctx = self.stepper.info.n_ctx;
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

    fn step(&mut self) -> Result<(), EngineError> {
        self.catch_up(Instant::now());
        self.check_context();
        if self.running.is_empty() {
            return Ok(());
        }
        self.encode()?;
        let chosen = self.choose();
        if chosen.is_empty() {
            let end = Instant::now() + SLOW_LISTENER_PAUSE;
            if self.catch_up(end) == 0 {
                // Nothing is left of it where a form was waited for.
                std::thread::sleep(end.saturating_duration_since(Instant::now()));
            }
            return Ok(());
        }
        for &(id, rows) in &chosen {
            if let Some(at) = self.running.iter().position(|s| s.id == id) {
                self.make_room(at, self.running[at].computed + rows);
            }
        }
        let guesses = self.guess(&chosen)?;
        let guesses = self.make_room_for(guesses);
        let (input, parts) = self.assemble(&chosen, guesses);
        if parts.is_empty() {
            return Ok(());
        }
        // Making a program would spoil the measurement.
        self.stepper.prepare(Want::Logits, &input)?;
        let start = Instant::now();
        let Some(cols) = self.stepper.run(Want::Logits, &input)? else {
            return Err(EngineError::CannotGenerate);
        };
        let seconds = start.elapsed().as_secs_f64();
        let prompt_rows: usize = parts.iter().filter(|p| p.prompt).map(|p| p.rows).sum();
        self.note_rate(prompt_rows, seconds);
        let came_true = self.process_step_output(&parts, cols, prompt_rows)?;
        if prompt_rows == 0 {
            let (sequences, rows) = (parts.len(), input.tokens.len());
            self.speculator.ran(Ran { sequences, rows, seconds, came_true });
        }
        Ok(())
    }

    /// Notes how long a step took in which so many rows were prompts.
    fn note_rate(&mut self, prompt_rows: usize, seconds: f64) {
        if prompt_rows >= FIRST_CHUNK {
            let rate = prompt_rows as f64 / seconds;
            self.prefill_rate =
                if self.prefill_rate == 0.0 { rate } else { 0.7 * self.prefill_rate + 0.3 * rate };
        }
    }

    /// Guesses for a step in which nobody reads a prompt.
    fn guess(&mut self, chosen: &[(JobId, usize)]) -> Result<Vec<(JobId, Guess)>, EngineError> {
        let decoding = |s: &Sequence| s.is_decoding() && chosen.iter().any(|(id, _)| *id == s.id);
        let mut company: Vec<_> = self.running.iter_mut().filter(|s| decoding(s)).collect();
        if company.len() < chosen.len() {
            return Ok(Vec::new());
        }
        let limits = Limits { n_ctx: self.stepper.info.n_ctx, rows: self.num_batch, target: STEP_TARGET };
        let model = (&mut self.stepper, &mut self.pages);
        self.speculator.guess(&mut company, &self.tokenizer, limits, model)
    }

    /// Shortens guesses to what there are pages for: nobody is sent away for a guess.
    fn make_room_for(&mut self, mut guesses: Vec<(JobId, Guess)>) -> HashMap<JobId, Guess> {
        for (id, guess) in &mut guesses {
            let Some(s) = self.running.iter_mut().find(|s| s.id == *id) else { continue };
            let wanted = s.computed + 1 + guess.tokens.len();
            s.held.grow(&mut self.pages, wanted);
            guess.tokens.truncate(s.held.room().saturating_sub(s.computed + 1));
        }
        guesses.into_iter().filter(|(_, guess)| !guess.tokens.is_empty()).collect()
    }

    fn assemble(
        &self,
        chosen: &[(JobId, usize)],
        mut guesses: HashMap<JobId, Guess>,
    ) -> (StepInput, Vec<Part>) {
        let mut input = StepInput::default();
        let mut parts = Vec::new();
        for &(id, rows) in chosen {
            // Sent back to the queue to make room for another.
            let Some(running) = self.running.iter().position(|s| s.id == id) else { continue };
            let s = &self.running[running];
            if s.held.room() < s.computed + rows {
                continue;
            }
            let (first_row, past) = (input.tokens.len(), s.computed);
            input.tokens.extend_from_slice(&s.tokens[past..past + rows]);
            let guess = guesses.remove(&id);
            input.tokens.extend(guess.iter().flat_map(|guess| &guess.tokens));
            let all = input.tokens.len() - first_row;
            input.positions.extend((past..past + all).map(|p| p as u32));
            let first_score = input.outputs.len();
            input.outputs.extend(s.scoring(rows).map(|token| (first_row + token - past) as u32));
            let first_output = input.outputs.len();
            if past + rows == s.tokens.len() {
                input.outputs.extend((first_row + rows - 1..first_row + all).map(|row| row as u32));
            }
            let (scores, outputs) = (first_score..first_output, first_output..input.outputs.len());
            input.segments.push(s.held.segment(&self.pages, first_row, all, past));
            input.adapter_scales.push(s.job.adapter_scales.clone());
            parts.push(Part { running, first_row, rows, prompt: !s.is_decoding(), scores, outputs, guess });
        }
        (input, parts)
    }

    /// Says before the work what there is to do: should a step hang, that is what is seen of it.
    fn begin_round(&self) {
        let mut stats = self.stats.lock().expect("nobody panics with the statistics");
        stats.rounds += 1;
        [stats.running, stats.waiting] = self.counts();
    }

    /// Jobs that take part in steps, and those that wait.
    fn counts(&self) -> [usize; 2] {
        let (begun, new) = self.canvases.counts();
        [self.running.len() + begun, self.waiting.len() + new + self.embeds.len()]
    }

    fn note_stats(&self) {
        let mut stats = self.stats.lock().expect("nobody panics with the statistics");
        [stats.running, stats.waiting] = self.counts();
        stats.pages = self.pages.total();
        stats.pages_in_use = self.pages.in_use();
        stats.pages_held = self.pages.held();
        [stats.recent_pages, stats.recent_pages_in_use, stats.recent_pages_held] = self.pages.recent_counts();
        stats.preempted = self.preempted;
        stats.scratch_bytes = self.stepper.backend.scratch_bytes() as u64;
    }

    /// How far layers see that do not see everything.
    pub fn windows(&self) -> &Windows {
        self.pages.windows()
    }

    /// Whether pages may come back without anybody's doing.
    pub fn is_running(&self) -> bool {
        !self.running.is_empty()
    }

    /// Jobs that run at once at most.
    pub fn max_sequences(&self) -> Option<usize> {
        self.max_sequences
    }

    /// Tokens of a step at most.
    pub fn num_batch(&self) -> usize {
        self.num_batch
    }
}
