//! Which sequences a step is for, and with how many rows: of those that generate all that have a result in it, one row
//! each, and what is left of it for prompts.

use std::collections::HashSet;
use std::time::Duration;

use super::{Driver, FIRST_CHUNK, STEP_TARGET};
use crate::sequence::{JobId, Sequence};

/// How long a step may be when nobody waits for a token: commands are obeyed between steps.
const COMMAND_TARGET: Duration = Duration::from_millis(700);
/// Rows that a prompt gets in any step, so that it advances.
const MIN_CHUNK: usize = 16;
/// Logits of a step at most that only score prompts, where that is more than what every step has room for.
const SCORED_LOGITS: usize = 1 << 20;
/// The part of a step's results that those who generate leave to prompts that come to their end: newcomers soon get turns
/// of their own.
const FOR_PROMPTS: usize = 2;

impl Driver {
    /// Which sequences take part in the step, with how many rows each.
    pub(super) fn choose(&mut self) -> Vec<(JobId, usize)> {
        let mut chosen = self.next_tokens();
        self.choose_prompts(&mut chosen);
        self.steps += 1;
        let taking: HashSet<JobId> = chosen.iter().map(|(id, _)| *id).collect();
        let part = self.running.iter_mut().filter(|s| taking.contains(&s.id));
        part.for_each(|s| s.last_step = self.steps);
        chosen
    }

    /// Sequences that take their next token: all that can, unless a step has fewer results; then those that have waited
    /// longest.
    fn next_tokens(&self) -> Vec<(JobId, usize)> {
        let (mut decoding, prompts): (Vec<&Sequence>, Vec<&Sequence>) =
            self.running.iter().filter(|s| s.ready()).partition(|s| s.is_decoding());
        let results = self.stepper.results().min(self.num_batch);
        let most = (results - prompts.len().min(results / FOR_PROMPTS)).max(1);
        if decoding.len() > most {
            decoding.sort_by_key(|s| (s.last_step, s.admitted));
            decoding.truncate(most);
        }
        decoding.into_iter().map(|s| (s.id, 1)).collect()
    }

    /// Adds rows of prompts, those first whose clients had least.
    fn choose_prompts(&mut self, chosen: &mut Vec<(JobId, usize)>) {
        let mut budget = self.prompt_budget(chosen.len());
        let has_states = self.pages.has_states();
        let exact = if has_states { 1 } else { self.stepper.backend.max_bit_exact_rows().max(1) };
        let mut scores = self.stepper.scored_rows(SCORED_LOGITS).saturating_sub(chosen.len()).max(1);
        let mut results = self.stepper.results().saturating_sub(chosen.len()).max(1);
        let (served, running) = (&mut self.served, &mut self.running);
        let mut prompts: Vec<&mut Sequence> =
            running.iter_mut().filter(|s| !s.is_decoding() && s.unread() == 0 && s.ready()).collect();
        let share = |client: u64| served.get(&client).copied().unwrap_or(0);
        prompts.sort_by_key(|s| (share(s.job.client), s.served, s.admitted));
        for s in prompts {
            let left = s.tokens.len() - s.computed;
            // The last token has a step of its own, as it has where the others come from the cache: a prompt that is repeated
            // gets the same answer.
            let most = if left > exact { left - 1 } else { left };
            let mut rows = most.min(budget);
            if has_states {
                // Copies of states are made between steps.
                rows = rows.min(s.held.next_copy(s.computed, s.tokens.len()).saturating_sub(s.computed));
            }
            if s.is_scored() {
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
                *served.entry(s.job.client).or_default() += rows as u64;
                chosen.push((s.id, rows));
            }
        }
    }

    /// The sequences whose prompts an encoder reads next, those first whose clients had least: as many as a step has time for, and at
    /// least one.
    pub(super) fn next_unread(&self) -> Vec<JobId> {
        let budget = self.prompt_budget(0);
        let mut unread: Vec<&Sequence> =
            self.running.iter().filter(|s| s.unread() > 0 && s.ready()).collect();
        let share = |client: u64| self.served.get(&client).copied().unwrap_or(0);
        unread.sort_by_key(|s| (share(s.job.client), s.served, s.admitted));
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

    /// Rows that prompts may take in a step in which so many sequences take a token.
    fn prompt_budget(&self, taking: usize) -> usize {
        let left = self.num_batch.saturating_sub(taking);
        let (target, least) = match self.running.iter().any(Sequence::is_decoding) {
            true => (STEP_TARGET, MIN_CHUNK),
            false => (COMMAND_TARGET, FIRST_CHUNK),
        };
        let quick = (self.prefill_rate * target.as_secs_f64()) as usize;
        // One row even where the batch is no larger than the number of running sequences.
        left.min(quick.max(least)).max(1)
    }
}
