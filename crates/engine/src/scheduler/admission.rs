//! Admission of waiting sequences: order by client, while pages and state slots suffice.

use std::collections::HashMap;

use super::{Scheduler, SequenceState, StepPlan, pages_for};
use crate::kv::{NodeId, PAGE_TOKENS};

impl Scheduler {
    /// Admits waiting sequences while places, pages and state slots suffice, or while
    /// preempting a sequence of a client that has more can free them.
    pub(super) fn admit(&mut self, plan: &mut StepPlan) {
        while let Some(at) = self.next_to_admit() {
            let id = self.waiting[at].id;
            let at_sequence_limit = self.is_at_sequence_limit();
            let lacks_pages = !at_sequence_limit && !self.fits(&self.waiting[at]);
            if at_sequence_limit || lacks_pages || !self.has_free_state() {
                if self.blocks_admission || !self.preempt_for(id, lacks_pages, plan) {
                    return;
                }
                continue;
            }
            let Some(mut sequence) = self.waiting.remove(at) else { return };
            // A preempted sequence keeps its age, so that the oldest always makes progress.
            if sequence.admitted == 0 {
                self.admissions += 1;
                sequence.admitted = self.admissions;
            }
            plan.admitted.push(self.start(&mut sequence));
            self.init_fair_share(&mut sequence);
            self.running.push(sequence);
        }
    }

    /// Whether a waiting sequence can start: its pages, and the pages that running sequences still
    /// need, are free. A sequence alone always fits.
    fn fits(&self, sequence: &SequenceState) -> bool {
        if self.running.is_empty() && self.temporary_sequences == 0 {
            return true;
        }
        let tokens = sequence.tokens.len();
        let cacheable = &sequence.tokens[..sequence.cacheable()];
        let path = self.pages.find(&sequence.cache_scope, cacheable).path;
        let lacking = pages_for(tokens).saturating_sub(path.len());
        !self.blocks_admission
            && self.pages.available(&path) >= lacking + self.reserved_pages()
            && !self.lacks_window_pages(&path, tokens)
    }

    /// Whether window pages are too few to admit a sequence of `tokens` tokens with a cached
    /// `path`. Each sequence needs the window of its next token; prompts need more for the chunk of
    /// a step.
    fn lacks_window_pages(&self, path: &[NodeId], tokens: usize) -> bool {
        if !self.pages.has_window_pages() {
            return false;
        }
        let max = self.pages.windows().pages(1);
        let in_window = self.pages.pages_in_window(path, path.len() * PAGE_TOKENS);
        let mut lacking = pages_for(tokens).min(max).saturating_sub(in_window.len());
        let chunk_pages_outside_window = |tokens: usize, computed: usize| {
            pages_for(tokens).saturating_sub(max).min((tokens - computed).div_ceil(PAGE_TOKENS))
        };
        let mut chunk = chunk_pages_outside_window(tokens, path.len() * PAGE_TOKENS);
        for s in &self.running {
            let needed = pages_for(s.tokens.len()).min(max);
            lacking += needed.saturating_sub(s.pages.window_pages());
            chunk += if s.is_decoding() {
                0
            } else {
                chunk_pages_outside_window(s.tokens.len(), s.computed)
            };
        }
        lacking += chunk.min(self.limits.num_batch.div_ceil(PAGE_TOKENS));
        self.pages.window_pages_available(in_window) < lacking
    }

    /// Starts the fair share of a new client at the smallest share of the other clients, and the
    /// share of a sequence likewise within its client. So a new client does not block the others
    /// until it has caught up. Forgets clients that have left.
    fn init_fair_share(&mut self, sequence: &mut SequenceState) {
        let client = sequence.client;
        let (running, waiting) = (&self.running, &self.waiting);
        self.client_shares.retain(|c| running.iter().chain(waiting).any(|s| s.client == c));
        self.client_shares.add(client, running.iter().map(|s| s.client));
        let others = running.iter().filter(|s| s.client == client && !s.is_decoding());
        sequence.prefilled_rows = others.map(|s| s.prefilled_rows).min().unwrap_or(0);
    }

    /// The first waiting sequence of the client with the fewest running sequences. Skips sequences
    /// that wait for a prefix in flight.
    fn next_to_admit(&self) -> Option<usize> {
        let mut running = HashMap::<u64, usize>::new();
        self.running.iter().for_each(|s| *running.entry(s.client).or_default() += 1);
        let mut all: Vec<usize> = (0..self.waiting.len()).collect();
        all.sort_by_key(|&i| (running.get(&self.waiting[i].client), i));
        all.into_iter().find(|&i| !self.is_prefix_in_flight(&self.waiting[i]))
    }

    /// Whether a running sequence of the same client is computing a prefix of `sequence` of at
    /// least one page. So several requests with one prompt compute it once.
    fn is_prefix_in_flight(&self, sequence: &SequenceState) -> bool {
        let cacheable = &sequence.tokens[..sequence.cacheable()];
        let has_longer_prefix_in_flight = |than: usize| {
            let shares_cache = |s: &SequenceState| {
                s.client == sequence.client && s.cache_scope == sequence.cache_scope
            };
            let is_prefilling =
                |s: &&SequenceState| shares_cache(s) && !s.is_decoding() && s.is_ready;
            self.running.iter().filter(is_prefilling).any(|s| {
                let common = s.tokens.iter().zip(cacheable).take_while(|(a, b)| a == b).count();
                common >= PAGE_TOKENS && common > than.max(s.computed)
            })
        };
        // A cheap test first: most sequences have no common prefix.
        has_longer_prefix_in_flight(0)
            && has_longer_prefix_in_flight(
                self.pages.find(&sequence.cache_scope, cacheable).tokens(),
            )
    }
}
