//! The token scheduler: decides which sequences take part in the next step, and with which rows.
//!
//! It owns the queue, the running sequences and the pages of the KV cache, and nothing else: no
//! model, no backend, no clock. [`Scheduler::schedule`] returns the work of one step as a
//! [`StepPlan`]; the engine loop executes it and reports what was computed.
//!
//! A decoding sequence takes one row of a step. Prompts take the other rows in chunks, which keep
//! the step short while other sequences wait for their next token (chunked prefill). Clients share
//! rows and pages fairly, however many requests each sends. If the pages run out, the newest
//! sequence of the client with the most pages is preempted and computed again later.

mod admission;
mod batch;
mod decode_cost;
mod preemption;
mod sequence_state;
mod step_input;
mod temporary_pages;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::Arc;

use puna_models::{StepKind, TowerPicture};

use crate::fair_shares::FairShares;
use crate::kv::{PAGE_TOKENS, PagePool, SequencePages};
use crate::media_cache::MediumKey;
use crate::request::{CacheNamespace, RequestId};

use decode_cost::DecodeCost;

pub use batch::STEP_TARGET;
pub use sequence_state::SequenceState;
pub use step_input::SequenceRows;
pub use temporary_pages::TemporaryPages;

/// Limits of steps.
#[derive(Debug, Clone, Copy)]
pub struct SchedulerLimits {
    /// Largest number of tokens of a step.
    pub num_batch: usize,
    /// Largest number of running sequences; `None` is limited by the pages only.
    pub max_sequences: Option<usize>,
    /// Number of output rows that every step has room for.
    pub output_rows: usize,
    /// Largest number of output rows of a step that scores prompts.
    pub prompt_logits_rows: usize,
    /// Largest batch for which each row's result is bit-identical to running that row alone.
    pub max_bit_exact_rows: usize,
    /// Columns of the rows of media.
    pub media_width: usize,
}

/// Work of one step, and what changed before it.
#[derive(Debug, Default)]
pub struct StepPlan {
    /// Sequences that were admitted.
    pub admitted: Vec<Start>,
    /// Context shifts.
    pub shifted: Vec<Shift>,
    /// Sequences that ended, since their context is full.
    pub full: Vec<SequenceState>,
    /// Sequences that wait again, since the pages ran out.
    pub preempted: Vec<RequestId>,
    /// Whether the encoder reads the prompts of the step.
    pub encodes: bool,
    /// Rows of each sequence; may be empty.
    pub rows: Vec<PlannedRows>,
}

impl StepPlan {
    /// Kind of the step.
    pub fn kind(&self) -> StepKind {
        if self.encodes { StepKind::Encode } else { StepKind::Logits }
    }
}

/// Start of a sequence, or its continuation after preemption.
#[derive(Debug, PartialEq, Eq)]
pub struct Start {
    pub id: RequestId,
    /// Number of tokens in the KV cache.
    pub cached: usize,
}

/// A context shift.
#[derive(Debug)]
pub struct Shift {
    pub id: RequestId,
    /// Tokens before the shift.
    pub tokens: Vec<u32>,
    /// Number of dropped tokens.
    pub dropped: usize,
}

/// Pictures of a sequence without rows.
#[derive(Debug)]
pub struct MissingMedia {
    pub id: RequestId,
    pub namespace: CacheNamespace,
    /// Hashes of the contents, and the pictures.
    pub pictures: Vec<(u128, Arc<TowerPicture>)>,
}

/// Rows of one sequence in a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlannedRows {
    pub id: RequestId,
    pub rows: usize,
}

/// Number of KV pages of a sequence of this many tokens, with space for the next token.
fn pages_for(tokens: usize) -> usize {
    (tokens + 1).div_ceil(PAGE_TOKENS)
}

/// Queue, running sequences and pages.
pub struct Scheduler {
    pub pages: PagePool,
    limits: SchedulerLimits,
    waiting: VecDeque<SequenceState>,
    running: Vec<SequenceState>,
    /// Prompt rows computed for each client since the scheduler was last idle, for fairness.
    client_shares: FairShares,
    /// Number of [`PlannedRows`] so far: one for each sequence in each planned step.
    scheduled_rows: u64,
    admissions: u64,
    preemptions: u64,
    /// Moving average of prompt tokens per second.
    prefill_rate: f64,
    /// Estimated time of steps without prompts.
    decode_cost: DecodeCost,
    /// Seconds that prompts have saved beside clients that only decode. Negative after a chunk that
    /// took more than their share.
    prompt_credit: f64,
    /// Whether the last step was one of the encoder.
    encoded_last: bool,
    /// Number of sequences outside of the prefix tree that hold pages.
    temporary_sequences: usize,
    /// Whether a sequence outside of the prefix tree waits for pages, so that none is admitted.
    blocks_admission: bool,
}

impl Scheduler {
    /// Makes a scheduler without sequences.
    pub fn new(pages: PagePool, limits: SchedulerLimits) -> Self {
        let limits = SchedulerLimits {
            num_batch: limits.num_batch.max(1),
            max_sequences: limits.max_sequences.map(|max| max.max(1)),
            ..limits
        };
        Self {
            pages,
            limits,
            waiting: VecDeque::new(),
            running: Vec::new(),
            client_shares: FairShares::default(),
            scheduled_rows: 0,
            admissions: 0,
            preemptions: 0,
            prefill_rate: 0.0,
            decode_cost: DecodeCost::default(),
            prompt_credit: 0.0,
            encoded_last: false,
            temporary_sequences: 0,
            blocks_admission: false,
        }
    }

    /// Plans the next step: admits sequences, shifts full contexts, and selects rows. Steps of the
    /// encoder alternate with steps of the decoder.
    pub fn schedule(&mut self) -> StepPlan {
        let mut plan = StepPlan::default();
        self.admit(&mut plan);
        self.limit_contexts(&mut plan);
        self.select_rows(&mut plan);
        plan
    }

    /// Adds a sequence to the queue.
    pub fn add(&mut self, sequence: SequenceState) {
        self.waiting.push_back(sequence);
    }

    /// Removes a sequence that has ended; its pages stay in the prefix tree. Returns `None` if it
    /// is unknown.
    pub fn remove(&mut self, id: RequestId) -> Option<SequenceState> {
        if let Some(at) = self.running.iter().position(|s| s.id == id) {
            let mut sequence = self.running.swap_remove(at);
            self.release(&mut sequence);
            return Some(sequence);
        }
        let at = self.waiting.iter().position(|s| s.id == id)?;
        self.waiting.remove(at)
    }

    /// Removes all running sequences.
    pub fn remove_running(&mut self) -> Vec<SequenceState> {
        let mut all = std::mem::take(&mut self.running);
        all.iter_mut().for_each(|sequence| self.release(sequence));
        all
    }

    /// Removes all waiting sequences.
    pub fn remove_waiting(&mut self) -> VecDeque<SequenceState> {
        std::mem::take(&mut self.waiting)
    }

    /// Forgets the shares of clients, once there are no sequences.
    pub fn reset_shares(&mut self) {
        self.client_shares.clear();
    }

    /// Updates the prefill rate from a step.
    pub fn record_prefill(&mut self, prompt_rows: usize, seconds: f64) {
        if prompt_rows >= batch::MIN_PREFILL_CHUNK {
            let rate = prompt_rows as f64 / seconds;
            self.prefill_rate =
                if self.prefill_rate == 0.0 { rate } else { 0.7 * self.prefill_rate + 0.3 * rate };
        }
    }

    /// Updates the estimated time of decode steps from a step of `rows` rows, its sampling and
    /// output included.
    pub fn record_decode(&mut self, rows: usize, seconds: f64) {
        self.decode_cost.record(rows, seconds);
    }

    /// Moves the full pages of running sequences to the prefix tree, where other sequences find
    /// them.
    pub fn publish_pages(&mut self) {
        for s in &mut self.running {
            s.pages.publish(&mut self.pages, &s.tokens[..s.computed]);
        }
    }

    /// Takes pages for a draft of `tokens` tokens after the next token of a sequence. Returns the
    /// number of draft tokens that fit: no sequence is preempted for a draft.
    pub fn reserve_draft(&mut self, id: RequestId, tokens: usize) -> usize {
        let Some(s) = self.running.iter_mut().find(|s| s.id == id) else { return 0 };
        s.pages.grow(&mut self.pages, s.computed + 1 + tokens);
        tokens.min(s.pages.capacity_tokens().saturating_sub(s.computed + 1))
    }

    /// The running sequences.
    pub fn running(&self) -> &[SequenceState] {
        &self.running
    }

    /// The running sequence with this number.
    pub fn find_running(&self, id: RequestId) -> Option<&SequenceState> {
        self.running.iter().find(|s| s.id == id)
    }

    /// Pictures of one size that the prompt of a running sequence needs next, with at most
    /// `max_pixels` together. The client with the least prompt rows so far is first.
    pub fn missing_media(&self, max_pixels: usize) -> Option<MissingMedia> {
        let sequences = self.least_served(|s| s.media.first_missing(s.computed).is_some());
        let s = *sequences.first()?;
        let pictures = s.media.missing(s.computed, max_pixels);
        Some(MissingMedia { id: s.id, namespace: s.cache_scope.namespace, pictures })
    }

    /// Sets the rows of a medium in all running sequences of its owner.
    pub fn set_media_rows(&mut self, key: &MediumKey, rows: &Arc<Vec<f32>>) {
        let of_owner = |s: &&mut SequenceState| s.cache_scope.namespace == key.namespace;
        let sequences = self.running.iter_mut().filter(of_owner);
        sequences.for_each(|s| s.media.set_rows(key.content, rows));
    }

    /// The running sequences and all pages.
    pub fn running_mut(&mut self) -> (&mut [SequenceState], &mut PagePool) {
        (&mut self.running, &mut self.pages)
    }

    /// All sequences.
    pub fn sequences_mut(&mut self) -> impl Iterator<Item = &mut SequenceState> {
        self.running.iter_mut().chain(&mut self.waiting)
    }

    /// The waiting sequence with this number.
    pub fn waiting(&self, id: RequestId) -> Option<&SequenceState> {
        self.waiting.iter().find(|s| s.id == id)
    }

    /// Numbers of running and of waiting sequences.
    pub fn counts(&self) -> [usize; 2] {
        [self.running.len(), self.waiting.len()]
    }

    /// Number of preemptions so far.
    pub fn preemptions(&self) -> u64 {
        self.preemptions
    }

    /// Limits of steps.
    pub fn limits(&self) -> &SchedulerLimits {
        &self.limits
    }

    /// Finds the cached prefix of a sequence, and sets its pages. The last token is always
    /// computed, since its logits are needed.
    fn start(&mut self, sequence: &mut SequenceState) -> Start {
        let mut cacheable = sequence.cacheable();
        loop {
            let others = self.running.iter().map(|s| (&s.pages, &s.tokens[..s.computed]));
            let (pages, cached) = SequencePages::start_from_cache(
                &mut self.pages,
                &sequence.cache_scope,
                &sequence.tokens[..cacheable],
                others,
            );
            // A prefix that ends within a medium is found again up to the medium.
            let Some(cut) = sequence.media.cut_medium(cached) else {
                (sequence.pages, sequence.computed) = (pages, cached);
                return Start { id: sequence.id, cached };
            };
            pages.release(&mut self.pages, &sequence.tokens[..cached]);
            cacheable = cut;
        }
    }

    /// Moves the pages of a sequence to the prefix tree.
    fn release(&mut self, sequence: &mut SequenceState) {
        let pages = std::mem::take(&mut sequence.pages);
        pages.release(&mut self.pages, &sequence.tokens[..sequence.computed]);
        sequence.computed = 0;
    }

    /// Ends sequences with a full context, or shifts their context.
    fn limit_contexts(&mut self, plan: &mut StepPlan) {
        let mut at = 0;
        while at < self.running.len() {
            if self.running[at].tokens.len() <= self.running[at].context {
                at += 1;
                continue;
            }
            let mut sequence = self.running.swap_remove(at);
            self.release(&mut sequence);
            if !sequence.can_shift() {
                plan.full.push(sequence);
                continue;
            }
            let tokens = sequence.tokens.clone();
            let dropped = sequence.shift();
            self.start(&mut sequence);
            plan.shifted.push(Shift { id: sequence.id, tokens, dropped });
            self.running.push(sequence);
        }
    }

    /// Pages that running sequences still need for their known tokens and one more.
    fn reserved_pages(&self) -> usize {
        let lacks = |s: &SequenceState| {
            (s.tokens.len() + 1).saturating_sub(s.pages.capacity_tokens()).div_ceil(PAGE_TOKENS)
        };
        self.running.iter().map(lacks).sum()
    }

    /// Whether a state slot is free; drops unpublished checkpoints of running sequences if needed.
    fn has_free_state(&mut self) -> bool {
        if self.pages.has_states() && self.pages.states_available() == 0 {
            self.running.iter_mut().for_each(|s| s.pages.drop_checkpoints(&mut self.pages));
        }
        !self.pages.has_states() || self.pages.states_available() > 0
    }
}
