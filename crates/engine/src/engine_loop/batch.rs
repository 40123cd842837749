//! Selection of the sequences and rows of a step: one row for each decoding sequence, and the remaining rows for prompts, least-served
//! client first.

use std::collections::HashSet;
use std::time::Duration;

use super::{EngineLoop, FIRST_CHUNK, STEP_TARGET};
use crate::sequence::{RequestId, Sequence};

/// Target time of a step without decoding sequences. Commands are handled between steps.
const PREFILL_STEP_TARGET: Duration = Duration::from_millis(700);
/// Smallest chunk of prompt rows, so that prompts advance in every step.
const MIN_CHUNK: usize = 16;
/// Largest number of logits of a step that only score prompts.
const SCORED_LOGITS: usize = 1 << 20;
/// Decoding sequences leave one in this many result rows to prompts that end in the step, so that new sequences start soon.
const PROMPT_RESULT_SHARE: usize = 2;

impl EngineLoop {
    /// Selects the sequences of a step and their numbers of rows.
    pub(super) fn select_batch(&mut self) -> Vec<(RequestId, usize)> {
        let mut chosen = self.next_tokens();
        self.add_prompt_rows(&mut chosen);
        self.steps += 1;
        let taking: HashSet<RequestId> = chosen.iter().map(|(id, _)| *id).collect();
        let part = self.running.iter_mut().filter(|s| taking.contains(&s.id));
        part.for_each(|s| s.last_step = self.steps);
        chosen
    }

    /// Decoding sequences of the step: all, or the longest waiting ones if the step has fewer result rows.
    fn next_tokens(&self) -> Vec<(RequestId, usize)> {
        let (mut decoding, prompts): (Vec<&Sequence>, Vec<&Sequence>) =
            self.running.iter().filter(|s| s.ready()).partition(|s| s.is_decoding());
        let results = self.executor.output_rows().min(self.num_batch);
        let most = (results - prompts.len().min(results / PROMPT_RESULT_SHARE)).max(1);
        if decoding.len() > most {
            decoding.sort_by_key(|s| (s.last_step, s.admitted));
            decoding.truncate(most);
        }
        decoding.into_iter().map(|s| (s.id, 1)).collect()
    }

    /// Adds prompt rows, least-served client first.
    fn add_prompt_rows(&mut self, chosen: &mut Vec<(RequestId, usize)>) {
        let mut budget = self.prompt_row_budget(chosen.len());
        let has_states = self.pages.has_states();
        let exact = if has_states { 1 } else { self.executor.backend.max_bit_exact_rows().max(1) };
        let mut scores =
            self.executor.scored_rows(SCORED_LOGITS).saturating_sub(chosen.len()).max(1);
        let mut results = self.executor.output_rows().saturating_sub(chosen.len()).max(1);
        let (served, running) = (&mut self.served, &mut self.running);
        let mut prompts: Vec<&mut Sequence> = running
            .iter_mut()
            .filter(|s| !s.is_decoding() && s.unread() == 0 && s.ready())
            .collect();
        let share = |client: u64| served.get(&client).copied().unwrap_or(0);
        prompts.sort_by_key(|s| (share(s.request.client), s.served, s.admitted));
        for s in prompts {
            let left = s.tokens.len() - s.computed;
            // The last token is computed in its own step, as it is after a cache hit, so that a repeated prompt gets the same bits.
            let most = if left > exact { left - 1 } else { left };
            let mut rows = most.min(budget);
            if has_states {
                // State checkpoints are made between steps.
                rows = rows.min(
                    s.pages.next_checkpoint(s.computed, s.tokens.len()).saturating_sub(s.computed),
                );
            }
            if s.has_prompt_logprobs_left() {
                rows = rows.min(scores);
                scores -= rows;
            }
            if rows == left {
                rows -= usize::from(results == 0);
                results = results.saturating_sub(1);
            }
            if rows > 0 {
                budget -= rows;
                s.served += rows as u64;
                *served.entry(s.request.client).or_default() += rows as u64;
                chosen.push((s.id, rows));
            }
        }
    }

    /// Sequences whose prompts the encoder reads next, least-served client first: as many as fit the step time, at least one.
    pub(super) fn next_to_encode(&self) -> Vec<RequestId> {
        let budget = self.prompt_row_budget(0);
        let mut unread: Vec<&Sequence> =
            self.running.iter().filter(|s| s.unread() > 0 && s.ready()).collect();
        let share = |client: u64| self.served.get(&client).copied().unwrap_or(0);
        unread.sort_by_key(|s| (share(s.request.client), s.served, s.admitted));
        let (mut rows, mut chosen) = (0, Vec::new());
        for s in unread {
            if rows > 0 && rows + s.unread() > budget {
                break;
            }
            rows += s.unread();
            chosen.push(s.id);
        }
        chosen
    }

    /// Rows for prompts in a step with `taking` decoding sequences.
    fn prompt_row_budget(&self, taking: usize) -> usize {
        let left = self.num_batch.saturating_sub(taking);
        let (target, least) = match self.running.iter().any(Sequence::is_decoding) {
            true => (STEP_TARGET, MIN_CHUNK),
            false => (PREFILL_STEP_TARGET, FIRST_CHUNK),
        };
        let quick = (self.prefill_rate * target.as_secs_f64()) as usize;
        // At least one row, even if decoding sequences fill the batch.
        left.min(quick.max(least)).max(1)
    }
}
