//! Speculative decoding of the engine loop: how many draft tokens each sequence gets in a step.

use puna_tokenizer::Tokenizer;

use super::acceptance_rate::AcceptanceRates;
use super::cost_model::{CostModel, DraftLimits, DraftProposal, take_all};
use super::draft_source::{DraftSource, StepRows};
use super::model::DraftRequest;
use super::{Draft, DraftKind, DraftStats};
use crate::error::EngineError;
use crate::executor::ModelExecutor;
use crate::generation::Generation;
use crate::kv::PagePool;
use crate::request::RequestId;
use crate::scheduler::SequenceState;

/// Advantage in acceptance rate that the draft model needs over prompt lookup, which costs nothing.
const MIN_MODEL_ADVANTAGE: f64 = 0.15;

/// Timing of a step without prefill.
#[derive(Debug, Clone, Copy)]
pub struct StepTiming {
    pub sequences: usize,
    pub rows: usize,
    pub seconds: f64,
    pub accepted: usize,
}

/// A sequence that may get a draft.
pub struct DraftingSequence<'a> {
    pub state: &'a mut SequenceState,
    pub generation: &'a mut Generation,
}

/// Drafts for all sequences of an engine.
pub struct Speculator {
    cost_model: CostModel,
    rates: AcceptanceRates,
    source: Option<DraftSource>,
    /// Largest batch for which each row's result is bit-identical to running that row alone.
    max_bit_exact_rows: usize,
    /// Seconds that the draft model took for the drafts of the current step.
    draft_seconds: f64,
    pub counts: DraftStats,
}

/// Draft of a sequence for the next step.
enum DraftPlan {
    None,
    /// Found by prompt lookup, or drafted by the draft model.
    Ready(Draft),
    /// The draft model drafts if the cost model allows it.
    DraftModel,
}

impl Speculator {
    pub fn new(max_bit_exact_rows: usize, source: Option<DraftSource>) -> Self {
        let (cost_model, rates, counts) =
            (CostModel::default(), AcceptanceRates::of_engine(), DraftStats::default());
        Self { cost_model, rates, source, max_bit_exact_rows, draft_seconds: 0.0, counts }
    }

    /// Drafts for a step of `sequences`. Each has one token that is not computed, and a page for
    /// it. `model` is the executor of the target model and its pages.
    ///
    /// # Errors
    ///
    /// The draft model cannot be computed.
    pub fn draft(
        &mut self,
        sequences: &mut [DraftingSequence<'_>],
        tokenizer: &Tokenizer,
        limits: DraftLimits,
        model: (&mut ModelExecutor, &mut PagePool),
    ) -> Result<Vec<(RequestId, Draft)>, EngineError> {
        self.draft_seconds = 0.0;
        let n = sequences.len();
        let rows = limits.rows.min(self.max_bit_exact_rows);
        if n >= rows {
            return Ok(Vec::new());
        }
        let mut proposals = Vec::with_capacity(n);
        let mut plans = Vec::with_capacity(n);
        for s in sequences.iter_mut() {
            let max_tokens = s.generation.max_draft_tokens(s.state).min(rows - n);
            let (plan, proposal) = self.plan(s, max_tokens, tokenizer);
            plans.push(plan);
            proposals.push(proposal);
        }
        self.cost_model.set_batch(
            sequences
                .iter()
                .fold(n as u64, |all, s| all.wrapping_mul(31).wrapping_add(s.state.id.0)),
        );
        let limits = DraftLimits { rows, ..limits };
        let token_counts = match sequences.iter().all(|s| s.generation.speculation.settings.always)
        {
            true => take_all(&proposals, rows),
            false => self.cost_model.decide(&proposals, limits),
        };
        self.run_draft_model(sequences, &mut plans, &token_counts, tokenizer, model)?;
        let mut drafts = Vec::new();
        for ((s, plan), count) in sequences.iter_mut().zip(plans).zip(token_counts) {
            match plan {
                DraftPlan::Ready(mut draft) if count > 0 => {
                    draft.tokens.truncate(count);
                    drafts.push((s.state.id, draft));
                }
                DraftPlan::Ready(draft) => {
                    s.generation.speculation.keep_unverified(draft, &s.state.tokens)
                }
                DraftPlan::None | DraftPlan::DraftModel => {}
            }
        }
        Ok(drafts)
    }

    /// Chooses the source of a sequence's draft, and estimates its acceptance and cost.
    fn plan(
        &mut self,
        s: &mut DraftingSequence<'_>,
        max_tokens: usize,
        tokenizer: &Tokenizer,
    ) -> (DraftPlan, DraftProposal) {
        let (id, tokens) = (s.state.id, &s.state.tokens);
        let speculation = &mut s.generation.speculation;
        speculation.compare_unverified(tokens, &mut self.rates);
        let found = speculation.look_up(tokens, max_tokens, |token| tokenizer.is_eog(token));
        let rate = |kind| speculation.rates.rate(kind, &self.rates);
        let lookup_rate = found.as_ref().map_or(0.0, |draft| rate(draft.kind));
        let uses_model = speculation.settings.draft && max_tokens > 0;
        match (found, self.source.as_ref().filter(|_| uses_model)) {
            (found, Some(source))
                if found.is_none()
                    || rate(DraftKind::Model) > lookup_rate + MIN_MODEL_ADVANTAGE =>
            {
                let proposal =
                    DraftProposal::new(max_tokens.min(source.max_tokens()), rate(DraftKind::Model));
                let token_seconds = source.token_seconds();
                let setup_seconds = source.setup_seconds(id, tokens);
                (DraftPlan::DraftModel, DraftProposal { token_seconds, setup_seconds, ..proposal })
            }
            (Some(draft), _) => {
                let proposal = DraftProposal::new(draft.tokens.len(), lookup_rate);
                (DraftPlan::Ready(draft), proposal)
            }
            (None, _) => (DraftPlan::None, DraftProposal::default()),
        }
    }

    /// Runs the draft model for the sequences that it drafts for, if they get draft tokens.
    fn run_draft_model(
        &mut self,
        sequences: &mut [DraftingSequence<'_>],
        plans: &mut [DraftPlan],
        token_counts: &[usize],
        tokenizer: &Tokenizer,
        (executor, pages): (&mut ModelExecutor, &mut PagePool),
    ) -> Result<(), EngineError> {
        let Some(source) = &mut self.source else { return Ok(()) };
        let uses_model =
            |i: &usize| matches!(plans[*i], DraftPlan::DraftModel) && token_counts[*i] > 0;
        let indices: Vec<usize> = (0..plans.len()).filter(uses_model).collect();
        if indices.is_empty() {
            return Ok(());
        }
        for &i in &indices {
            let s = &mut *sequences[i].state;
            // Without free pages the draft is shorter.
            let wanted = (s.computed + source.lookahead()).min(s.context);
            s.pages.grow(pages, wanted);
        }
        let request = |&i: &usize| {
            let s = &*sequences[i].state;
            DraftRequest {
                id: s.id,
                tokens: &s.tokens,
                max_tokens: token_counts[i],
                always: sequences[i].generation.speculation.settings.always,
                pages: &s.pages,
            }
        };
        let requests: Vec<_> = indices.iter().map(request).collect();
        let is_in_vocabulary = |token: u32| (token as usize) < tokenizer.vocab_size();
        let is_end = |token| tokenizer.is_eog(token) || !is_in_vocabulary(token);
        let result = source.draft(&requests, (executor, &*pages), is_end)?;
        self.draft_seconds = result.seconds;
        for (i, tokens) in indices.into_iter().zip(result.drafts) {
            // Pages that only the draft needed are free again.
            let s = &mut *sequences[i].state;
            s.pages.shrink(pages, s.computed + 1);
            if !tokens.is_empty() {
                plans[i] = DraftPlan::Ready(Draft { tokens, kind: DraftKind::Model });
            }
        }
        Ok(())
    }

    /// Records how many tokens of a sequence's draft a step accepted.
    pub fn record_verified(
        &mut self,
        generation: &mut Generation,
        kind: DraftKind,
        drafted: usize,
        accepted: usize,
    ) {
        self.counts.add_draft(kind, drafted);
        self.counts.add_accepted(kind, accepted);
        generation.speculation.record_verified(kind, drafted, accepted, &mut self.rates);
    }

    /// See [`DraftSource::record_step`].
    pub fn record_step(&mut self, s: &SequenceState, extra_output: &[f32], step: StepRows) {
        if let Some(source) = &mut self.source {
            source.record_step(s, extra_output, step);
        }
    }

    /// See [`DraftSource::update_cache`].
    pub fn update_cache(
        &mut self,
        sequences: &[SequenceState],
        model: (&mut ModelExecutor, &PagePool),
    ) -> Result<(), EngineError> {
        self.source.as_mut().map_or(Ok(()), |source| source.update_cache(sequences, model))
    }

    /// Records the time of a step.
    pub fn record_timing(&mut self, step: StepTiming) {
        if step.rows > step.sequences {
            self.cost_model.record_verification(
                step.sequences,
                step.rows,
                step.seconds,
                self.draft_seconds,
                step.accepted,
            );
        } else {
            self.cost_model.record_plain_step(step.seconds);
            self.cost_model.record_unused_draft(self.draft_seconds);
        }
    }

    /// Removes a sequence that has ended or is preempted.
    pub fn remove(&mut self, id: RequestId, tokens: &[u32]) {
        if let Some(source) = &mut self.source {
            source.remove(id, tokens);
        }
    }
}
