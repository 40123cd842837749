//! Whose turn it is: that of the client that has had fewest.

use std::collections::{HashMap, HashSet};

/// Clients that are remembered while nobody has to be forgotten.
const REMEMBERED: usize = 4096;

/// Turns that clients have had. Newcomers begin with as many as the one who had fewest.
#[derive(Debug, Default)]
pub(crate) struct Turns(HashMap<u64, u64>);

impl Turns {
    /// Turns of a client.
    pub(crate) fn of(&self, client: u64) -> u64 {
        self.0.get(&client).copied().unwrap_or(0)
    }

    /// A client comes to wait, beside those that do already.
    pub(crate) fn comes(&mut self, client: u64, waiting: impl Iterator<Item = u64> + Clone) {
        let Some(fewest) = waiting.clone().map(|other| self.of(other)).min() else {
            // Nobody else waits: whatever was is settled.
            return self.0.clear();
        };
        let has = self.0.entry(client).or_insert(fewest);
        *has = fewest.max(*has);
        if self.0.len() > REMEMBERED {
            // One that comes back is a newcomer, as it would be if nobody had waited meanwhile.
            let waiting: HashSet<u64> = waiting.chain([client]).collect();
            self.0.retain(|client, _| waiting.contains(client));
        }
    }

    /// Counts a turn of a client.
    pub(crate) fn had(&mut self, client: u64) {
        *self.0.entry(client).or_default() += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_that_are_gone_are_not_remembered_for_ever() {
        let mut turns = Turns::default();
        for client in 1..20_000 {
            // Somebody waits all the time.
            turns.comes(client, [0].into_iter());
            turns.had(client);
        }
        assert!(turns.0.len() <= REMEMBERED, "{}", turns.0.len());
        turns.had(0);
        turns.comes(7, [0].into_iter());
        assert_eq!((turns.of(0), turns.of(7)), (1, 1), "a newcomer");
    }
}
