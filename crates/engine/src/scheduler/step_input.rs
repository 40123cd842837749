//! The input of a planned step.

use std::collections::HashMap;
use std::ops::Range;

use puna_graph::StepInput;

use super::{Scheduler, StepPlan};
use crate::media::step_token;
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

/// What a step needs of the media of its sequences.
struct StepMedia {
    /// Whether a sequence has media, so that positions differ from indices.
    has_positions: bool,
    /// Columns of the rows of media, if the step has any.
    width: Option<usize>,
}

impl Scheduler {
    fn step_media(&self, plan: &StepPlan) -> StepMedia {
        let sequences =
            || plan.rows.iter().filter_map(|row| Some((self.find_running(row.id)?, row)));
        let has_rows =
            sequences().any(|(s, row)| s.media.is_in(&(s.computed..s.computed + row.rows)));
        StepMedia {
            has_positions: sequences().any(|(s, _)| !s.media.is_empty()),
            width: has_rows.then_some(self.limits.media_width),
        }
    }

    /// Makes the input of a planned step with these drafts, and the rows of each sequence in it.
    pub fn step_input(
        &self,
        plan: &StepPlan,
        mut drafts: HashMap<RequestId, Draft>,
    ) -> (StepInput, Vec<SequenceRows>) {
        let mut input = StepInput::default();
        let mut parts = Vec::new();
        let media = self.step_media(plan);
        for row in &plan.rows {
            let Some(s) = self.find_running(row.id) else { continue };
            let (first_row, cached_tokens, rows) = (input.tokens.len(), s.computed, row.rows);
            let tokens = s.tokens[cached_tokens..cached_tokens + rows].iter();
            input.tokens.extend(tokens.copied().map(step_token));
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
            let mut segment = s.pages.segment(&self.pages, first_row, all, cached_tokens);
            let indices = cached_tokens..cached_tokens + all;
            s.media.add_spans(&indices, &mut segment);
            input.segments.push(segment);
            if media.has_positions {
                s.media.add_axis_positions(indices.clone(), &mut input);
            }
            if let Some(width) = media.width {
                input.inputs.resize_with(1, Vec::new);
                s.media.add_rows(indices, width, &mut input.inputs[0]);
            }
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
