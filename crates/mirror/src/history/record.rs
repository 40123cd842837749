//! What is known of tags and manifests, and what of it counts where two know different things.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;

use puna_store::Digest;
use serde::{Deserialize, Serialize};

/// Tags and manifests that are remembered.
const MAX_RECORDS: usize = 100_000;
/// How many are looked at before others get a turn.
pub(super) const TURN: usize = 500;

/// How something came to the library.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum By {
    /// It was fetched for somebody.
    Fetch,
    /// Somebody pushed it.
    Push,
    /// A mirror has written it in the place of a model of the machine's user, whose it stays.
    User,
}

/// What is known of a tag, or of a manifest. Times are seconds since 1970.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    /// What the tag stood for when it came.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) digest: Option<Digest>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) arrived: Option<u64>,
    /// How, unless nobody saw it come: it was there when it was seen first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) by: Option<By>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) pulled: Option<u64>,
}

impl Record {
    /// Learns what somebody else knows. Who has seen something come knows more than who has seen it there.
    pub(super) fn merge(&mut self, other: Self) {
        self.pulled = self.pulled.max(other.pulled);
        let is_better = match (self.digest == other.digest, self.by, other.by) {
            (true, Some(_), None) => false,
            (true, None, Some(_)) => true,
            (true, ..) => (other.arrived, other.by) > (self.arrived, self.by),
            (false, ..) => other.arrived > self.arrived,
        };
        if is_better {
            (self.digest, self.arrived, self.by) = (other.digest, other.arrived, other.by);
        }
    }

    /// Whether a mirror brought it, and it was nobody's before.
    pub(super) fn is_brought(&self) -> bool {
        matches!(self.by, Some(By::Fetch | By::Push))
    }
}

/// What a process knows.
#[derive(Default)]
pub(super) struct Known {
    pub(super) records: BTreeMap<String, Record>,
    /// Whether something is not written.
    pub(super) is_new: bool,
    /// The notes of others that were read, and their versions.
    pub(super) read: HashMap<String, String>,
    /// How many notes were written the last time.
    pub(super) notes: usize,
}

impl Known {
    /// Changes what is known of something, if there is room for it. Says whether that is something new.
    pub(super) fn change(&mut self, key: String, change: impl FnOnce(&mut Record)) -> bool {
        if self.records.len() >= MAX_RECORDS && !self.records.contains_key(&key) {
            return false;
        }
        let record = self.records.entry(key).or_default();
        let before = record.clone();
        change(record);
        let is_new = *record != before;
        self.is_new |= is_new;
        is_new
    }

    /// The next records behind a key, as many as may be looked at in one turn.
    pub(super) fn turn(&self, behind: Option<&str>) -> impl Iterator<Item = (&String, &Record)> {
        let from = behind.map_or(Bound::Unbounded, Bound::Excluded);
        self.records.range::<str, _>((from, Bound::Unbounded)).take(TURN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(of: &[u8], arrived: u64, by: Option<By>, pulled: Option<u64>) -> Record {
        Record { digest: Some(Digest::of(of)), arrived: Some(arrived), by, pulled }
    }

    fn merged(of: &[&Record]) -> Record {
        let mut merged = Record::default();
        of.iter().for_each(|record| merged.merge((*record).clone()));
        merged
    }

    #[test]
    fn merging_is_the_same_in_any_order() {
        let all = [
            record(b"a", 5, Some(By::Fetch), Some(7)),
            record(b"a", 6, None, None),
            record(b"b", 9, Some(By::Push), Some(3)),
            Record { pulled: Some(8), ..Record::default() },
        ];
        let expected = record(b"b", 9, Some(By::Push), Some(8));
        for order in [[0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2], [2, 0, 3, 1]] {
            assert_eq!(merged(&order.map(|n| &all[n])), expected, "{order:?}");
        }
    }

    #[test]
    fn who_saw_it_come_knows_better_than_who_saw_it_there_and_the_last_one_best() {
        let seen = record(b"a", 9, None, None);
        let fetched = record(b"a", 5, Some(By::Fetch), Some(7));
        let taken = record(b"a", 6, Some(By::User), None);
        for (expected, of) in [
            (record(b"a", 5, Some(By::Fetch), Some(7)), vec![&seen, &fetched]),
            (record(b"a", 6, Some(By::User), Some(7)), vec![&seen, &fetched, &taken]),
            (record(b"a", 9, None, None), vec![&seen, &seen]),
        ] {
            let backwards: Vec<&Record> = of.iter().rev().copied().collect();
            assert_eq!((merged(&of), merged(&backwards)), (expected.clone(), expected));
        }
    }
}
