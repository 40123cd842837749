//! Execution of a planned step: draft tokens, input, and the run of the model.

use std::collections::HashMap;
use std::time::Instant;

use puna_models::StepKind;

use super::EngineLoop;
use crate::error::EngineError;
use crate::generation::Generation;
use crate::request::RequestId;
use crate::scheduler::{STEP_TARGET, SequenceRows, StepPlan};
use crate::speculate::Draft;
use crate::speculate::cost_model::DraftLimits;
use crate::speculate::speculator::{DraftingSequence, StepTiming};

/// Result of a step; its values lie in the backend.
pub struct StepOutput {
    pub kind: StepKind,
    pub sequences: Vec<SequenceRows>,
    /// Columns of the result.
    pub cols: usize,
    /// Number of prompt rows.
    pub prompt_rows: usize,
    /// Time of the step, with no accepted draft tokens yet.
    pub timing: StepTiming,
}

impl EngineLoop {
    /// Runs a planned step.
    pub(super) fn execute(&mut self, plan: &StepPlan) -> Result<StepOutput, EngineError> {
        let drafts = self.draft(plan)?;
        let (input, sequences) = self.scheduler.step_input(plan, drafts);
        let kind = plan.kind();
        let computed = if input.inputs.is_empty() { kind } else { StepKind::MediaLogits };
        // Compiled before the timing starts.
        self.executor.prepare(computed, &input)?;
        let start = Instant::now();
        let cols = self.executor.run(computed, &input)?.ok_or(EngineError::CannotGenerate)?;
        let seconds = start.elapsed().as_secs_f64();
        let prompt_rows = sequences.iter().filter(|s| s.prompt).map(|s| s.rows).sum();
        self.scheduler.record_prefill(prompt_rows, seconds);
        let (count, rows) = (sequences.len(), input.tokens.len());
        let timing = StepTiming { sequences: count, rows, seconds, accepted: 0 };
        Ok(StepOutput { kind, sequences, cols, prompt_rows, timing })
    }

    /// Makes draft tokens for a step without prompt rows, as many as the free pages allow.
    fn draft(&mut self, plan: &StepPlan) -> Result<HashMap<RequestId, Draft>, EngineError> {
        let is_decoding = |id| self.scheduler.find_running(id).is_some_and(|s| s.is_decoding());
        if !plan.rows.iter().all(|row| is_decoding(row.id)) {
            return Ok(HashMap::new());
        }
        let num_batch = self.scheduler.limits().num_batch;
        let (running, pages) = self.scheduler.running_mut();
        let mut generations: HashMap<RequestId, &mut Generation> =
            self.generations.iter_mut().map(|(id, generation)| (*id, generation)).collect();
        let planned = |id| plan.rows.iter().any(|row| row.id == id);
        let mut sequences: Vec<DraftingSequence<'_>> = running
            .iter_mut()
            .filter(|s| planned(s.id))
            .filter_map(|state| {
                let generation = generations.remove(&state.id)?;
                Some(DraftingSequence { state, generation })
            })
            .collect();
        let limits = DraftLimits { rows: num_batch, target: STEP_TARGET };
        let executor_and_pages = (&mut self.executor, pages);
        let drafts =
            self.speculator.draft(&mut sequences, &self.tokenizer, limits, executor_and_pages)?;
        let fit = drafts.into_iter().map(|(id, mut draft)| {
            let tokens = self.scheduler.reserve_draft(id, draft.tokens.len());
            draft.tokens.truncate(tokens);
            (id, draft)
        });
        Ok(fit.filter(|(_, draft)| !draft.tokens.is_empty()).collect())
    }
}
