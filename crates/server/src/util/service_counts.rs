//! Service of each client, for fair queueing: the client with the least service so far is next.

use std::collections::{HashMap, HashSet};

/// Maximum clients with a stored count; above it, only waiting clients keep theirs.
const MAX_CLIENTS: usize = 4096;

/// Service of each client so far, as a number of requests or an amount of work. A new client starts
/// with the lowest count of the waiting clients.
#[derive(Debug, Default)]
pub(crate) struct ServiceCounts(HashMap<u64, u64>);

impl ServiceCounts {
    /// Service of a client so far.
    pub(crate) fn count(&self, client: u64) -> u64 {
        self.0.get(&client).copied().unwrap_or(0)
    }

    /// Records that a client begins to wait. The clients in `waiting` do so already.
    pub(crate) fn add_waiting_client(
        &mut self,
        client: u64,
        waiting: impl Iterator<Item = u64> + Clone,
    ) {
        let Some(lowest) = waiting.clone().map(|other| self.count(other)).min() else {
            // No other client waits, so earlier service no longer matters.
            return self.0.clear();
        };
        let count = self.0.entry(client).or_insert(lowest);
        *count = lowest.max(*count);
        if self.0.len() > MAX_CLIENTS {
            // A removed client that returns starts like a new one.
            let waiting: HashSet<u64> = waiting.chain([client]).collect();
            self.0.retain(|client, _| waiting.contains(client));
        }
    }

    /// Counts service of a client.
    pub(crate) fn record(&mut self, client: u64, amount: u64) {
        let count = self.0.entry(client).or_default();
        *count = count.saturating_add(amount);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_absent_clients_are_removed() {
        let mut counts = ServiceCounts::default();
        for client in 1..20_000 {
            // Client 0 waits all the time.
            counts.add_waiting_client(client, [0].into_iter());
            counts.record(client, 1);
        }
        assert!(counts.0.len() <= MAX_CLIENTS, "{}", counts.0.len());
        counts.record(0, 1);
        counts.add_waiting_client(7, [0].into_iter());
        assert_eq!((counts.count(0), counts.count(7)), (1, 1), "a new client");
    }
}
