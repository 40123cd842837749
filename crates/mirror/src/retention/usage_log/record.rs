//! Records of the usage log, and how records of several mirrors are merged.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;

use puna_store::Digest;
use serde::{Deserialize, Serialize};

/// Largest number of records.
const MAX_RECORDS: usize = 100_000;
/// Number of records that are processed before the lock is released for others.
pub(super) const RECORDS_PER_LOCK: usize = 500;

/// How an item arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ChangeSource {
    /// A mirror fetched it from an upstream.
    Fetch,
    /// A client pushed it.
    Push,
    /// A mirror wrote it in place of a model of the machine's user, who remains its owner.
    User,
}

/// Record of a tag or manifest. Times are seconds since 1970.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    /// Digest that the tag pointed to on arrival.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) digest: Option<Digest>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) arrived: Option<u64>,
    /// How the item arrived; `None` if no mirror saw the arrival.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) by: Option<ChangeSource>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) pulled: Option<u64>,
}

impl Record {
    /// Merges the record of another mirror. A record of an arrival outranks a record of an item
    /// that was found in the storage.
    pub(super) fn merge(&mut self, other: Self) {
        self.pulled = self.pulled.max(other.pulled);
        let is_newer = match (self.digest == other.digest, self.by, other.by) {
            (true, Some(_), None) => false,
            (true, None, Some(_)) => true,
            (true, ..) => (other.arrived, other.by) > (self.arrived, self.by),
            (false, ..) => other.arrived > self.arrived,
        };
        if is_newer {
            (self.digest, self.arrived, self.by) = (other.digest, other.arrived, other.by);
        }
    }

    /// Whether a mirror fetched or received the item, and it does not belong to the user.
    pub(super) fn is_from_mirror(&self) -> bool {
        matches!(self.by, Some(ChangeSource::Fetch | ChangeSource::Push))
    }
}

/// Records of this process.
#[derive(Default)]
pub(super) struct RecordTable {
    pub(super) records: BTreeMap<String, Record>,
    /// Whether there are unwritten changes.
    pub(super) is_dirty: bool,
    /// Names and versions of the notes of others that were read.
    pub(super) read_versions: HashMap<String, String>,
    /// Number of notes at the last write.
    pub(super) note_count: usize,
}

impl RecordTable {
    /// Changes a record if the table has space. Returns whether the record changed.
    pub(super) fn change(&mut self, key: String, change: impl FnOnce(&mut Record)) -> bool {
        if self.records.len() >= MAX_RECORDS && !self.records.contains_key(&key) {
            return false;
        }
        let record = self.records.entry(key).or_default();
        let before = record.clone();
        change(record);
        let is_dirty = *record != before;
        self.is_dirty |= is_dirty;
        is_dirty
    }

    /// Returns the next [`RECORDS_PER_LOCK`] records after a key.
    pub(super) fn chunk_after(
        &self,
        behind: Option<&str>,
    ) -> impl Iterator<Item = (&String, &Record)> {
        let from = behind.map_or(Bound::Unbounded, Bound::Excluded);
        self.records.range::<str, _>((from, Bound::Unbounded)).take(RECORDS_PER_LOCK)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(of: &[u8], arrived: u64, by: Option<ChangeSource>, pulled: Option<u64>) -> Record {
        Record { digest: Some(Digest::of(of)), arrived: Some(arrived), by, pulled }
    }

    fn merged(of: &[&Record]) -> Record {
        let mut merged = Record::default();
        of.iter().for_each(|record| merged.merge((*record).clone()));
        merged
    }

    #[test]
    fn records_merge_to_the_same_result_in_any_order() {
        let all = [
            record(b"a", 5, Some(ChangeSource::Fetch), Some(7)),
            record(b"a", 6, None, None),
            record(b"b", 9, Some(ChangeSource::Push), Some(3)),
            Record { pulled: Some(8), ..Record::default() },
        ];
        let expected = record(b"b", 9, Some(ChangeSource::Push), Some(8));
        for order in [[0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2], [2, 0, 3, 1]] {
            assert_eq!(merged(&order.map(|n| &all[n])), expected, "{order:?}");
        }
    }

    #[test]
    fn recorded_arrivals_override_sightings_and_the_latest_arrival_wins() {
        let seen = record(b"a", 9, None, None);
        let fetched = record(b"a", 5, Some(ChangeSource::Fetch), Some(7));
        let taken = record(b"a", 6, Some(ChangeSource::User), None);
        for (expected, of) in [
            (record(b"a", 5, Some(ChangeSource::Fetch), Some(7)), vec![&seen, &fetched]),
            (record(b"a", 6, Some(ChangeSource::User), Some(7)), vec![&seen, &fetched, &taken]),
            (record(b"a", 9, None, None), vec![&seen, &seen]),
        ] {
            let backwards: Vec<&Record> = of.iter().rev().copied().collect();
            assert_eq!((merged(&of), merged(&backwards)), (expected.clone(), expected));
        }
    }
}
