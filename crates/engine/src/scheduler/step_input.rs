//! The input of a planned step.

use std::collections::HashMap;
use std::ops::Range;

use puna_graph::StepInput;

use super::{Scheduler, StepPlan};
use crate::request::RequestId;
use crate::speculate::Draft;

/// Rows of one sequence in the input of a step.
pub struct SequenceRows {
    pub id: RequestId,
    pub first_row: usize,
    pub rows: usize,
    /// Whether the rows are prompt rows.
    pub prompt: bool,
    /// Result rows that score the prompt.
    pub prompt_logits: Range<usize>,
    /// Result rows with logits to sample from.
    pub outputs: Range<usize>,
    /// Draft tokens, which have the rows behind.
    pub draft: Option<Draft>,
}

impl Scheduler {
    /// Makes the input of a planned step with these drafts, and the rows of each sequence in it.
    pub fn step_input(
        &self,
        plan: &StepPlan,
        mut drafts: HashMap<RequestId, Draft>,
    ) -> (StepInput, Vec<SequenceRows>) {
        let mut input = StepInput::default();
        let mut parts = Vec::new();
        for row in &plan.rows {
            let Some(s) = self.find_running(row.id) else { continue };
            let (first_row, cached_tokens, rows) = (input.tokens.len(), s.computed, row.rows);
            input.tokens.extend_from_slice(&s.tokens[cached_tokens..cached_tokens + rows]);
            let draft = drafts.remove(&s.id);
            input.tokens.extend(draft.iter().flat_map(|draft| &draft.tokens));
            let all = input.tokens.len() - first_row;
            input.positions.extend((cached_tokens..cached_tokens + all).map(|p| p as u32));
            let first_score = input.outputs.len();
            input
                .outputs
                .extend(s.scoring(rows).map(|token| (first_row + token - cached_tokens) as u32));
            let first_output = input.outputs.len();
            if !plan.encodes && cached_tokens + rows == s.tokens.len() {
                input.outputs.extend((first_row + rows - 1..first_row + all).map(|row| row as u32));
            }
            let (prompt_logits, outputs) =
                (first_score..first_output, first_output..input.outputs.len());
            input.segments.push(s.pages.segment(&self.pages, first_row, all, cached_tokens));
            input.adapter_scales.push(s.cache_scope.key.adapter_scales.clone());
            let prompt = !s.is_decoding();
            parts.push(SequenceRows {
                id: s.id,
                first_row,
                rows,
                prompt,
                prompt_logits,
                outputs,
                draft,
            });
        }
        (input, parts)
    }
}
