//! Selection of the rows of a step: one row for each decoding sequence, within the fair shares of
//! their clients, and the remaining rows for prompts, least-served client first.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use super::{PlannedRows, Scheduler, SequenceState, StepPlan};

/// Target time of a step with prompt rows while sequences decode.
pub const STEP_TARGET: Duration = Duration::from_millis(100);
/// Least time of the prompts in a step while other clients only decode. [`MIN_PREFILL_CHUNK`] rows
/// are enough even if they take less.
const MIN_PROMPT_TIME: Duration = Duration::from_millis(25);
/// Least share of prompts beside clients that only decode, relative to the time of one of these
/// clients. Clients that decode many sequences cannot stop prompts.
const MIN_PROMPT_SHARE: f64 = 0.25;
/// Largest time that prompts save for a chunk, in steps of a client that only decodes. Prompts of
/// small models do not wait for many steps.
const MAX_SAVED_STEPS: f64 = 4.0;
/// Smallest chunk of prompt rows in a step without decoding sequences. Shorter steps do not update
/// the prefill rate.
pub const MIN_PREFILL_CHUNK: usize = 64;
/// Target time of a step without decoding sequences. Commands are handled between steps.
const PREFILL_STEP_TARGET: Duration = Duration::from_millis(700);
/// Smallest chunk of prompt rows, so that prompts advance in every step.
const MIN_CHUNK: usize = 16;
/// At most one in this many result rows goes to prompts that end in the step, so that new sequences
/// start soon.
const PROMPT_RESULT_DIVISOR: usize = 2;

impl Scheduler {
    /// Selects the rows of the step, and takes pages for them. A sequence without pages for its
    /// rows takes no part.
    pub(super) fn select_rows(&mut self, plan: &mut StepPlan) {
        let encoder_rows = if self.encoded_last { Vec::new() } else { self.next_to_encode() };
        let mut rows = if encoder_rows.is_empty() { self.next_rows() } else { Vec::new() };
        if rows.is_empty() {
            rows = if encoder_rows.is_empty() { self.next_to_encode() } else { encoder_rows };
            plan.encodes = !rows.is_empty();
        }
        self.encoded_last = plan.encodes;
        self.count_served(&rows);
        self.count_prompt_time(&rows);
        for row in &rows {
            let Some(s) = self.find_running(row.id) else { continue };
            self.preempt_until_fits(row.id, s.computed + row.rows, plan);
        }
        // Drops rows of sequences that were preempted for an earlier row, or got no pages.
        let has_pages = |row: &PlannedRows| {
            self.find_running(row.id)
                .is_some_and(|s| s.pages.capacity_tokens() >= s.computed + row.rows)
        };
        plan.rows = rows.into_iter().filter(has_pages).collect();
    }

    /// Rows of a decoder step.
    fn next_rows(&self) -> Vec<PlannedRows> {
        let mut rows = self.next_tokens();
        self.add_prompt_rows(&mut rows);
        rows
    }

    /// Counts the prompt rows of a step for the fair shares, and records the order of scheduling.
    fn count_served(&mut self, rows: &[PlannedRows]) {
        for row in rows {
            let Some(s) = self.running.iter_mut().find(|s| s.id == row.id) else { continue };
            self.scheduled_rows += 1;
            s.last_scheduled = self.scheduled_rows;
            if !s.is_decoding() {
                s.prefilled_rows += row.rows as u64;
                self.client_shares.count(s.client, row.rows);
            }
        }
    }

    /// Decoding sequences of the step: all, or as many as the fair shares of their clients and the
    /// result rows of the step allow. Clients take turns, and the longest waiting sequences of each
    /// take part.
    fn next_tokens(&self) -> Vec<PlannedRows> {
        let (mut decoding, prompts): (Vec<&SequenceState>, Vec<&SequenceState>) =
            self.running.iter().filter(|s| s.is_ready).partition(|s| s.is_decoding());
        let results = self.limits.output_rows.min(self.limits.num_batch);
        let max = (results - prompts.len().min(results / PROMPT_RESULT_DIVISOR)).max(1);
        let max = max.min(self.fair_decode_rows(&decoding));
        if decoding.len() > max {
            decoding.sort_by_key(|s| (s.last_scheduled, s.admitted));
            let mut rounds = HashMap::<u64, usize>::new();
            let mut next_round = |s: &SequenceState| {
                let round = rounds.entry(s.client).or_default();
                *round += 1;
                *round
            };
            let mut by_round: Vec<_> = decoding.into_iter().map(|s| (next_round(s), s)).collect();
            // The sort is stable: within a round, the longest waiting sequence is first.
            by_round.sort_by_key(|(round, _)| *round);
            decoding = by_round.into_iter().take(max).map(|(_, s)| s).collect();
        }
        decoding.into_iter().map(|s| PlannedRows { id: s.id, rows: 1 }).collect()
    }

    /// Largest number of decode rows for which each of `n` clients is at most `n` times as slow as
    /// it would be alone. Without this limit, the client with the most sequences would take most of
    /// the processor time.
    fn fair_decode_rows(&self, decoding: &[&SequenceState]) -> usize {
        let mut counts = HashMap::<u64, usize>::new();
        decoding.iter().for_each(|s| *counts.entry(s.client).or_default() += 1);
        let clients = counts.len();
        if clients < 2 {
            return usize::MAX;
        }
        let fewest = counts.values().min().copied().unwrap_or(1);
        let min = clients * fewest;
        if self.decode_cost.is_probe_due() {
            return min;
        }
        let max_relative_time = clients as f64 * self.decode_cost.relative_time(fewest);
        self.decode_cost.rows_within(max_relative_time).max(min)
    }

    /// Adds prompt rows, least-served client first.
    fn add_prompt_rows(&self, chosen: &mut Vec<PlannedRows>) {
        let has_prompt = |s: &SequenceState| !s.is_decoding() && s.computed < s.tokens.len();
        let prompts = self.least_served(|s| has_prompt(s) && s.encoder_tokens_left() == 0);
        if prompts.is_empty() {
            return;
        }
        let mut budget = self.prompt_row_budget(chosen.len());
        let has_states = self.pages.has_states();
        let max_exact_rows = if has_states { 1 } else { self.limits.max_bit_exact_rows.max(1) };
        let mut logits_left = self.limits.prompt_logits_rows.saturating_sub(chosen.len()).max(1);
        let mut results = self.limits.output_rows.saturating_sub(chosen.len()).max(1);
        for s in prompts {
            let left = s.tokens.len() - s.computed;
            // The last token is computed in its own step, as it is after a cache hit, so that a
            // repeated prompt gets the same bits. A short rest that is bit-exact with it is not
            // split.
            let max = if left > max_exact_rows { left - 1 } else { left };
            let mut rows = s.media.step_tokens(s.computed, max.min(budget));
            if has_states {
                // State checkpoints are made between steps.
                let checkpoint = s.pages.next_checkpoint(s.computed, s.tokens.len());
                rows = rows.min(checkpoint.saturating_sub(s.computed));
            }
            if s.has_prompt_logprobs_left() {
                rows = rows.min(logits_left);
                logits_left -= rows;
            }
            if rows == left {
                rows -= usize::from(results == 0);
                results = results.saturating_sub(1);
            }
            if rows > 0 {
                budget = budget.saturating_sub(rows);
                chosen.push(PlannedRows { id: s.id, rows });
            }
        }
    }

    /// Prompts that the encoder reads next, each as a whole: as many as fit the step time, at least
    /// one.
    fn next_to_encode(&self) -> Vec<PlannedRows> {
        let budget = self.prompt_row_budget(0);
        let (mut rows, mut chosen) = (0, Vec::new());
        for s in self.least_served(|s| s.encoder_tokens_left() > 0) {
            if rows > 0 && rows + s.encoder_tokens_left() > budget {
                break;
            }
            rows += s.encoder_tokens_left();
            chosen.push(PlannedRows { id: s.id, rows: s.encoder_tokens_left() });
        }
        chosen
    }

    /// The ready sequences that pass `filter`, least-served client first.
    pub(super) fn least_served(
        &self,
        filter: impl Fn(&SequenceState) -> bool,
    ) -> Vec<&SequenceState> {
        let mut sequences: Vec<_> =
            self.running.iter().filter(|s| s.is_ready && filter(s)).collect();
        sequences
            .sort_by_key(|s| (self.client_shares.served(s.client), s.prefilled_rows, s.admitted));
        sequences
    }

    /// Rows for prompts in a step with `decoding` decoding sequences. None if the prompts have to
    /// save time for a chunk of an efficient length.
    fn prompt_row_budget(&self, decoding: usize) -> usize {
        let left = self.limits.num_batch.saturating_sub(decoding);
        let (target, min) = match self.running.iter().any(SequenceState::is_decoding) {
            true => match self.prompt_share(decoding).filter(|_| decoding > 0) {
                Some(share) => {
                    let max = STEP_TARGET.as_secs_f64();
                    // New prompts of other clients may use the time of a step in advance.
                    let advance = if share.has_new_clients { max } else { 0.0 };
                    let saved = self.prompt_credit + share.seconds + advance;
                    if saved < self.min_prompt_seconds().min(share.max_saved) {
                        return 0;
                    }
                    (saved.min(max), MIN_CHUNK)
                }
                None => (STEP_TARGET.as_secs_f64(), MIN_CHUNK),
            },
            false => (PREFILL_STEP_TARGET.as_secs_f64(), MIN_PREFILL_CHUNK),
        };
        let quick = (self.prefill_rate * target) as usize;
        // At least one row, even if decoding sequences fill the batch.
        left.min(quick.max(min)).max(1)
    }

    /// Largest number of rows of a step that embeds several texts, or a part of a long one. While
    /// sequences run, the step is short.
    pub fn embed_rows(&self) -> usize {
        let max = self.limits.num_batch;
        let quick = (self.prefill_rate * STEP_TARGET.as_secs_f64()) as usize;
        match self.running.is_empty() || quick == 0 {
            true => max,
            false => quick.clamp(MIN_PREFILL_CHUNK.min(max), max),
        }
    }

    /// Shortest time of a chunk of prompts beside decoding sequences, in seconds.
    fn min_prompt_seconds(&self) -> f64 {
        let efficient = MIN_PREFILL_CHUNK as f64 / self.prefill_rate;
        efficient.min(MIN_PROMPT_TIME.as_secs_f64())
    }

    /// Adds the share of a step to the time that prompts have saved, and subtracts the time of
    /// their rows in it.
    fn count_prompt_time(&mut self, rows: &[PlannedRows]) {
        let is_decoding =
            |row: &&PlannedRows| self.find_running(row.id).is_some_and(SequenceState::is_decoding);
        let decoding = rows.iter().filter(is_decoding).count();
        let all: usize = rows.iter().map(|row| row.rows).sum();
        let Some(share) = self.prompt_share(decoding).filter(|_| decoding > 0) else { return };
        let spent = (all - decoding) as f64 / self.prefill_rate;
        let max = STEP_TARGET.as_secs_f64();
        self.prompt_credit = (self.prompt_credit + share.seconds - spent).clamp(-max, max);
    }

    /// Share of prompts in each step with `rows` decoding sequences, on average. A client that
    /// only decodes is at most as many times slower as there are clients. `None` if no client only
    /// decodes, or if the times of steps and prompts are not known yet.
    fn prompt_share(&self, rows: usize) -> Option<PromptShare> {
        let mut decoding = HashMap::<u64, usize>::new();
        let mut prompting = HashSet::new();
        for s in self.running.iter().filter(|s| s.is_ready) {
            match s.is_decoding() {
                true => *decoding.entry(s.client).or_default() += 1,
                false => _ = prompting.insert(s.client),
            }
        }
        let only_decodes = decoding.iter().filter(|(client, _)| !prompting.contains(client));
        let fewest = only_decodes.map(|(_, sequences)| *sequences).min()?;
        let only_prompts = prompting.iter().filter(|client| !decoding.contains_key(client)).count();
        let clients = (decoding.len() + only_prompts) as f64;
        let alone = self.decode_cost.seconds(fewest).filter(|_| self.prefill_rate > 0.0)?;
        let rest = clients * alone - self.decode_cost.seconds(rows)?;
        Some(PromptShare {
            seconds: rest.max(only_prompts as f64 * alone).max(MIN_PROMPT_SHARE * alone),
            max_saved: MAX_SAVED_STEPS * alone,
            has_new_clients: only_prompts > 0,
        })
    }
}

/// Time of prompts beside clients that only decode.
struct PromptShare {
    /// Seconds for each step, on average.
    seconds: f64,
    /// Largest number of seconds that prompts save for a chunk.
    max_saved: f64,
    /// Whether a client has prompts and no decoding sequence.
    has_new_clients: bool,
}
