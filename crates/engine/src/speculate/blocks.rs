//! Drafts of a companion draft model that drafts a block of tokens in one step (DFlash).
//!
//! The rows of a draft step are the newest token and mask tokens for the following positions. They
//! attend to keys and values that the target's steps have written for the companion. Heads that
//! depend on the token before ([`TransitionHead`]) run token by token after it.

use std::time::Instant;

use puna_graph::StepInput;
use puna_models::{DraftBlock, StepKind, TransitionHead};

use super::model::{DraftRequest, DraftTokens, TIMING_WINDOW, most_probable};
use super::rolling_median::RollingMedian;
use crate::error::EngineError;
use crate::executor::ModelExecutor;
use crate::kv::PagePool;

/// A loaded companion.
pub struct BlockDrafter {
    block: DraftBlock,
    /// Seconds of block steps.
    block_times: RollingMedian,
    /// Seconds of head steps.
    head_times: RollingMedian,
}

/// A draft while its tokens are sampled.
struct DraftInProgress {
    /// Index of the request.
    index: usize,
    /// Token before the next one.
    previous: u32,
    /// Largest number of draft tokens.
    max_tokens: usize,
    /// First row of the block among the output rows of the step.
    first: usize,
    draft: Vec<u32>,
}

impl DraftInProgress {
    /// Output row of the next token.
    fn row(&self) -> usize {
        self.first + self.draft.len()
    }
}

/// Output of a block step, row by row.
struct BlockOutput {
    logits: Vec<f32>,
    cols: usize,
    states: Vec<f32>,
}

impl BlockDrafter {
    /// Makes the drafter of a companion with this block.
    pub fn new(block: DraftBlock) -> Self {
        Self { block, block_times: RollingMedian::default(), head_times: RollingMedian::default() }
    }

    /// Number of draft tokens of a block.
    pub fn max_tokens(&self) -> usize {
        self.block.rows - self.block.first_output_row
    }

    /// Rows of a block.
    pub fn rows(&self) -> usize {
        self.block.rows
    }

    /// Median seconds of a block step; 0 before the first one.
    pub fn block_seconds(&self) -> f64 {
        self.block_times.median().unwrap_or(0.0)
    }

    /// Median seconds of a head step, for each token of a block.
    pub fn token_seconds(&self) -> f64 {
        self.head_times.median().unwrap_or(0.0)
    }

    /// Drafts for several sequences in one block step.
    pub fn draft(
        &mut self,
        requests: &[DraftRequest<'_>],
        (executor, pages): (&mut ModelExecutor, &PagePool),
        is_end: impl Fn(u32) -> bool,
    ) -> Result<DraftTokens, EngineError> {
        let mut result = DraftTokens { drafts: vec![Vec::new(); requests.len()], seconds: 0.0 };
        let (input, mut in_progress) = self.input(requests, pages);
        if in_progress.is_empty() {
            return Ok(result);
        }
        executor.prepare(StepKind::Draft, &input)?;
        let start = Instant::now();
        let Some(cols) = executor.run(StepKind::Draft, &input)? else { return Ok(result) };
        let logits = executor.backend.result().to_vec();
        let output =
            BlockOutput { logits, cols, states: executor.backend.extra_output(0).to_vec() };
        result.seconds = start.elapsed().as_secs_f64();
        self.block_times.push(result.seconds, TIMING_WINDOW);
        while !in_progress.is_empty() {
            let choices = match self.block.transition {
                Some(link) => self.run_head(link, &output, &in_progress, executor, &mut result)?,
                None => in_progress
                    .iter()
                    .map(|one| most_probable(row_of(&output.logits, cols, one.row())))
                    .collect(),
            };
            let mut continuing = Vec::with_capacity(in_progress.len());
            for (mut one, (entry, probability)) in in_progress.into_iter().zip(choices) {
                let token = executor.model.draft_token_id(entry as usize);
                let token =
                    requests[one.index].accepts(token, probability, &is_end).then_some(token);
                one.previous = token.unwrap_or(one.previous);
                if result.continue_draft(one.index, &mut one.draft, token, one.max_tokens) {
                    continuing.push(one);
                }
            }
            in_progress = continuing;
        }
        Ok(result)
    }

    /// Input of a block step for the requests that have pages for at least a part of a block.
    fn input(
        &self,
        requests: &[DraftRequest<'_>],
        pages: &PagePool,
    ) -> (StepInput, Vec<DraftInProgress>) {
        let (mut input, mut in_progress) = (StepInput::default(), Vec::new());
        for (index, request) in requests.iter().enumerate() {
            let Some((&previous, computed)) = request.tokens.split_last() else { continue };
            let position = computed.len();
            let rows =
                self.block.rows.min(request.pages.capacity_tokens().saturating_sub(position));
            let max_tokens =
                rows.saturating_sub(self.block.first_output_row).min(request.max_tokens);
            if max_tokens == 0 {
                continue;
            }
            let (first_row, first) = (input.tokens.len(), input.outputs.len());
            input.tokens.push(previous);
            input.tokens.extend((1..rows).map(|_| self.block.mask));
            input.positions.extend((position..position + rows).map(|p| p as u32));
            input.segments.push(request.pages.segment(pages, first_row, rows, position));
            let outputs = first_row + self.block.first_output_row
                ..first_row + self.block.first_output_row + max_tokens;
            input.outputs.extend(outputs.map(|row| row as u32));
            in_progress.push(DraftInProgress {
                index,
                previous,
                max_tokens,
                first,
                draft: Vec::new(),
            });
        }
        (input, in_progress)
    }

    /// Next token of each block and its probability, by the head that depends on the token before.
    fn run_head(
        &mut self,
        link: TransitionHead,
        output: &BlockOutput,
        in_progress: &[DraftInProgress],
        executor: &mut ModelExecutor,
        result: &mut DraftTokens,
    ) -> Result<Vec<(u32, f32)>, EngineError> {
        let (mut input, mut states) = (StepInput::default(), Vec::new());
        for (row, one) in in_progress.iter().enumerate() {
            input.tokens.push(one.previous);
            input.positions.push(row as u32);
            states.extend_from_slice(row_of(&output.states, link.state_dim, one.row()));
        }
        input.inputs.push(states);
        input.segments =
            vec![puna_graph::Segment { rows: in_progress.len(), ..Default::default() }];
        executor.prepare(StepKind::TransitionLogits, &input)?;
        let start = Instant::now();
        let cols = executor.run(StepKind::TransitionLogits, &input)?.unwrap_or(0);
        let seconds = start.elapsed().as_secs_f64();
        self.head_times.push(seconds, TIMING_WINDOW);
        result.seconds += seconds;
        let (added, confidence) = (executor.backend.result(), executor.backend.extra_output(0));
        let decide = |(row, one): (usize, &DraftInProgress)| {
            let mut logits = row_of(&output.logits, output.cols, one.row()).to_vec();
            if let Some(choices) = link.top_k {
                keep_largest(&mut logits, choices);
            }
            let added = row_of(added, cols, row);
            for (entry, logit) in logits.iter_mut().enumerate() {
                // The head may cover the target's whole vocabulary while the companion's is
                // smaller.
                let at = if cols == output.cols {
                    entry
                } else {
                    executor.model.draft_token_id(entry) as usize
                };
                *logit += added.get(at).copied().unwrap_or(0.0);
            }
            let (entry, probability) = most_probable(&logits);
            let probability = if link.has_confidence {
                1.0 / (1.0 + (-confidence[row]).exp())
            } else {
                probability
            };
            (entry, probability)
        };
        Ok(in_progress.iter().enumerate().map(decide).collect())
    }
}

fn row_of(all: &[f32], cols: usize, row: usize) -> &[f32] {
    &all[row * cols..][..cols]
}

/// Sets all but the largest `n` logits to negative infinity.
fn keep_largest(logits: &mut [f32], n: usize) {
    if n >= logits.len() {
        return;
    }
    let mut sorted = logits.to_vec();
    let (.., min, _) = sorted.select_nth_unstable_by(n.max(1) - 1, |a, b| b.total_cmp(a));
    let min = *min;
    logits.iter_mut().filter(|logit| **logit < min).for_each(|logit| *logit = f32::NEG_INFINITY);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_but_the_largest_logits_become_impossible() {
        let mut logits = [1.0, 5.0, -2.0, 4.0, 5.0];
        keep_largest(&mut logits, 3);
        assert_eq!(logits, [f32::NEG_INFINITY, 5.0, f32::NEG_INFINITY, 4.0, 5.0]);
        keep_largest(&mut logits, 9);
        assert_eq!(logits[3], 4.0);
    }
}
