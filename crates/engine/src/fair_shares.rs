//! Fair shares of clients: who has been served least is next.

use std::collections::HashMap;

/// Amount of work done for each client, in the unit of the caller.
#[derive(Debug, Default)]
pub struct FairShares(HashMap<u64, u64>);

impl FairShares {
    /// Adds a client, unless it is known. It starts with the smallest share of `others`, so that it
    /// does not block them until it has caught up.
    pub fn add(&mut self, client: u64, others: impl Iterator<Item = u64>) {
        let min = others.filter_map(|other| self.0.get(&other)).min().copied();
        self.0.entry(client).or_insert(min.unwrap_or(0));
    }

    /// Forgets the clients that have left.
    pub fn retain(&mut self, is_present: impl Fn(u64) -> bool) {
        self.0.retain(|client, _| is_present(*client));
    }

    /// Forgets all clients.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Counts work for a client.
    pub fn count(&mut self, client: u64, amount: usize) {
        *self.0.entry(client).or_default() += amount as u64;
    }

    /// Work done for a client.
    pub fn served(&self, client: u64) -> u64 {
        self.0.get(&client).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_client_starts_with_the_smallest_share_of_the_others() {
        let mut shares = FairShares::default();
        shares.count(1, 5);
        shares.count(2, 9);
        shares.add(3, [1, 2].into_iter());
        shares.add(2, [1].into_iter());
        assert_eq!([1, 2, 3, 4].map(|client| shares.served(client)), [5, 9, 5, 0]);
        shares.retain(|client| client != 1);
        assert_eq!(shares.served(1), 0);
    }
}
