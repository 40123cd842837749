//! Preemption: a running sequence waits again, so that another one gets its pages or its place.

use std::collections::HashMap;

use super::{Scheduler, SequenceState, StepPlan, pages_for};
use crate::kv::PAGE_TOKENS;
use crate::request::RequestId;

/// Running sequences and KV pages of a client.
#[derive(Debug, Clone, Copy, Default)]
struct ClientUsage {
    /// Number of its running sequences.
    sequences: usize,
    /// Pages of its running sequences; a page that several share counts for each.
    pages: usize,
}

impl Scheduler {
    /// Makes sure that a running sequence has pages for `tokens` tokens. Preempts the newest
    /// sequences of the clients with the most pages if needed; they may be the sequence itself.
    pub(super) fn preempt_until_fits(&mut self, id: RequestId, tokens: usize, plan: &mut StepPlan) {
        while let Some(at) = self.running.iter().position(|s| s.id == id) {
            if self.running[at].pages.grow(&mut self.pages, tokens) {
                return;
            }
            let usage = self.usage_by_client();
            let pages = |s: &SequenceState| usage.get(&s.client).map_or(0, |used| used.pages);
            let newest = (0..self.running.len())
                .max_by_key(|&i| (pages(&self.running[i]), self.running[i].admitted));
            let Some(newest) = newest else { return };
            self.preempt(newest, plan);
        }
    }

    /// Preempts a running sequence, so that a waiting one gets its pages, its place or its state
    /// slot. The preempted one belongs to a client that has more than the client of the waiting
    /// one would have. Returns whether there was such a client.
    ///
    /// A client keeps at least one sequence. The difference between the two clients shrinks with
    /// each preemption, so the other client cannot preempt the waiting sequence in turn.
    pub(super) fn preempt_for(
        &mut self,
        waiting: RequestId,
        lacks_pages: bool,
        plan: &mut StepPlan,
    ) -> bool {
        let Some(sequence) = self.waiting(waiting) else { return false };
        let client = sequence.client;
        let mut usage = self.usage_by_client();
        let own = usage.remove(&client).unwrap_or_default();
        let sequences = own.sequences + 1;
        let pages = own.pages + pages_for(sequence.tokens.len());
        // A client above its fair share of pages waits, because preempting others might not free
        // enough.
        if lacks_pages && pages * (usage.len() + 1) > self.pages.total() {
            return false;
        }
        usage.retain(|_, used| used.sequences > sequences && (!lacks_pages || used.pages > pages));
        let max = usage.iter().max_by_key(|(_, used)| (used.pages, used.sequences));
        let Some((&client, _)) = max else { return false };
        let of_client = (0..self.running.len()).filter(|&i| self.running[i].client == client);
        let newest = of_client.max_by_key(|&i| self.running[i].admitted);
        newest.is_some_and(|at| {
            self.preempt(at, plan);
            true
        })
    }

    /// Whether no further sequence can run, however many pages are free.
    pub(super) fn is_at_sequence_limit(&self) -> bool {
        self.limits.max_sequences.is_some_and(|max| self.running.len() >= max)
    }

    /// Moves a running sequence to the front of the queue. Its pages go to the prefix tree.
    fn preempt(&mut self, at: usize, plan: &mut StepPlan) {
        let mut sequence = self.running.remove(at);
        self.release(&mut sequence);
        // Preempted in the step that admitted it: it has never started.
        let is_new = plan.admitted.iter().position(|start| start.id == sequence.id);
        match is_new {
            Some(at) => drop(plan.admitted.remove(at)),
            None => plan.preempted.push(sequence.id),
        }
        self.waiting.push_front(sequence);
        self.preemptions += 1;
    }

    /// Running sequences and pages of each client.
    fn usage_by_client(&self) -> HashMap<u64, ClientUsage> {
        let mut usage = HashMap::<u64, ClientUsage>::new();
        for s in &self.running {
            let used = usage.entry(s.client).or_default();
            used.sequences += 1;
            used.pages += s.pages.capacity_tokens() / PAGE_TOKENS;
        }
        usage
    }
}
