//! Slots of concurrent fetches, shared fairly by clients.
//!
//! A client has at most half of the slots, rounded up. A client that got none is served before
//! others with as many fetches, if it retries within [`REFUSAL_LIFETIME`].

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::auth::ClientId;
use crate::locks::lock;
use crate::types::shared_table::{SharedTable, TableLimit};

/// How long a slot is left to a client that got none. Clients are told to retry earlier.
const REFUSAL_LIFETIME: Duration = Duration::from_secs(60);
/// Largest number of remembered refusals. Other clients get a slot when one is free.
const MAX_REFUSALS: usize = 1000;

/// Description of [`FetchLimiter`].
pub(crate) static UPSTREAM_FETCHES: SharedTable = SharedTable {
    name: "mirror: fetches from upstreams",
    holders: &["puna_mirror::pull_through::fetch_slots::FetchLimiter"],
    limits: &[TableLimit::Rule("`mirror.fetch_parallel`")],
    shares: &[TableLimit::Rule("half")],
    when_full: "429 with `Retry-After`; a client that got none is next",
    test: "a_client_cannot_take_the_fetch_slots_of_others",
};

/// All slots. Cheap to clone.
#[derive(Clone)]
pub(super) struct FetchLimiter {
    total: usize,
    state: Arc<Mutex<SlotTable>>,
}

#[derive(Default)]
struct SlotTable {
    /// Number of running fetches of each client.
    running: HashMap<ClientId, usize>,
    /// Clients that got no slot.
    refusals: HashMap<ClientId, SlotRefusal>,
}

/// When a client first and last got no slot.
#[derive(Clone, Copy)]
struct SlotRefusal {
    first: Instant,
    last: Instant,
}

/// Held during a fetch.
pub(super) struct FetchSlot {
    slots: FetchLimiter,
    client: ClientId,
}

impl SlotTable {
    fn running(&self, client: &ClientId) -> usize {
        self.running.get(client).copied().unwrap_or(0)
    }

    /// Number of other clients that get a slot before this one.
    fn clients_before(&self, client: &ClientId, now: Instant) -> usize {
        let own = self
            .refusals
            .get(client)
            .filter(|refusal| refusal.is_valid(now))
            .map(|refusal| refusal.first);
        let running = self.running(client);
        let is_before = |(other, refusal): &(&ClientId, &SlotRefusal)| {
            *other != client
                && refusal.is_valid(now)
                && self.running(other) <= running
                && own.is_none_or(|own| refusal.first < own)
        };
        self.refusals.iter().filter(is_before).count()
    }
}

impl SlotRefusal {
    fn is_valid(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.last) < REFUSAL_LIFETIME
    }
}

impl FetchLimiter {
    pub(super) fn new(total: usize) -> Self {
        Self { total, state: Arc::default() }
    }

    /// Largest number of slots of one client. This mirror itself may use all.
    fn share(&self, client: &ClientId) -> usize {
        if *client == ClientId::mirror() { self.total } else { self.total.div_ceil(2) }
    }

    fn can_take(&self, table: &SlotTable, client: &ClientId, now: Instant) -> bool {
        let free = self.total.saturating_sub(table.running.values().sum());
        table.running(client) < self.share(client) && free > table.clients_before(client, now)
    }

    /// Takes a slot for a client; `None` if it gets none now.
    pub(super) fn try_take(&self, client: &ClientId, now: Instant) -> Option<FetchSlot> {
        let mut table = lock(&self.state);
        if !self.can_take(&table, client, now) {
            return None;
        }
        table.refusals.remove(client);
        *table.running.entry(client.clone()).or_default() += 1;
        Some(FetchSlot { slots: self.clone(), client: client.clone() })
    }

    /// Whether a client gets no slot now.
    pub(super) fn is_full(&self, client: &ClientId, now: Instant) -> bool {
        !self.can_take(&lock(&self.state), client, now)
    }

    /// Records that a client got no slot, so that it gets the next one.
    pub(super) fn record_refusal(&self, client: &ClientId, now: Instant) {
        let mut table = lock(&self.state);
        if table.running(client) >= self.share(client) {
            return;
        }
        table.refusals.retain(|_, refusal| refusal.is_valid(now));
        if table.refusals.len() < MAX_REFUSALS || table.refusals.contains_key(client) {
            let refusal = table
                .refusals
                .entry(client.clone())
                .or_insert(SlotRefusal { first: now, last: now });
            refusal.last = now;
        }
    }
}

impl Drop for FetchSlot {
    fn drop(&mut self) {
        let mut table = lock(&self.slots.state);
        if let Some(running) = table.running.get_mut(&self.client) {
            *running = running.saturating_sub(1);
            if *running == 0 {
                table.running.remove(&self.client);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clients() -> [ClientId; 3] {
        ["a", "b", "c"].map(ClientId::of_key)
    }

    #[test]
    fn one_client_cannot_take_all_slots() {
        let (slots, [a, b, _]) = (FetchLimiter::new(4), clients());
        let now = Instant::now();
        let taken: Vec<_> = (0..10).filter_map(|_| slots.try_take(&a, now)).collect();
        assert_eq!(taken.len(), 2);
        assert!(slots.is_full(&a, now) && !slots.is_full(&b, now));
        assert!(slots.try_take(&b, now).is_some());
        drop(taken);
        assert!(slots.try_take(&a, now).is_some() && lock(&slots.state).running.is_empty());
    }

    #[test]
    fn a_client_that_got_none_is_next() {
        let (slots, [a, b, c]) = (FetchLimiter::new(1), clients());
        let now = Instant::now();
        let held = slots.try_take(&a, now).unwrap();
        for client in [&b, &c] {
            assert!(slots.try_take(client, now).is_none());
            slots.record_refusal(client, now + Duration::from_secs(u64::from(client == &c)));
        }
        drop(held);
        let later = now + Duration::from_secs(30);
        assert!(slots.try_take(&a, later).is_none(), "others wait");
        assert!(slots.try_take(&c, later).is_none(), "b waits longer");
        let held = slots.try_take(&b, later).unwrap();
        drop(held);
        let held = slots.try_take(&c, later).unwrap();
        drop(held);
        assert!(slots.try_take(&a, later).is_some());
    }

    #[test]
    fn a_refusal_expires() {
        let (slots, [a, b, _]) = (FetchLimiter::new(1), clients());
        let now = Instant::now();
        slots.record_refusal(&b, now);
        assert!(slots.try_take(&a, now).is_none());
        assert!(slots.try_take(&a, now + REFUSAL_LIFETIME).is_some());
    }

    #[test]
    fn the_number_of_refusals_is_limited() {
        let slots = FetchLimiter::new(1);
        for n in 0..2 * MAX_REFUSALS {
            slots.record_refusal(&ClientId::of_key(&n.to_string()), Instant::now());
        }
        assert_eq!(lock(&slots.state).refusals.len(), MAX_REFUSALS);
    }
}
