//! Records of the usage log, and how records of several mirrors are merged.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;

use crate::types::shared_table::{SharedTable, TableLimit};
use puna_store::Digest;
use serde::{Deserialize, Serialize};

/// Largest number of records.
const MAX_RECORDS: usize = if cfg!(test) { 20_000 } else { 100_000 };
/// Number of records that are processed before the lock is released for others.
pub(super) const RECORDS_PER_LOCK: usize = 500;

/// Description of the usage records.
pub(crate) static USAGE_RECORDS: SharedTable = SharedTable {
    name: "mirror: usage records",
    holders: &["puna_mirror::retention::usage_log::Inner"],
    limits: &[TableLimit::Entries(MAX_RECORDS)],
    shares: &[TableLimit::Rule("equal shares")],
    when_full: "records of the namespace with the most are dropped first",
    test: "a_namespace_that_fills_the_table_does_not_keep_others_out",
};

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
    records: BTreeMap<String, Record>,
    /// Number of records of each namespace.
    counts: HashMap<String, usize>,
    /// Whether there are unwritten changes.
    pub(super) is_dirty: bool,
    /// Names and versions of the notes of others that were read.
    pub(super) read_versions: HashMap<String, String>,
    /// Number of notes at the last write.
    pub(super) note_count: usize,
}

/// Namespace of the item that a key of the table stands for.
fn namespace_of(key: &str) -> &str {
    let name = key.split_once('@').or(key.rsplit_once(':')).map_or(key, |(name, _)| name);
    name.rsplit_once('/').map_or(name, |(namespace, _)| namespace)
}

impl RecordTable {
    /// Changes a record. Returns whether it changed. In a full table, a new record takes the place
    /// of one of the namespace with most records; that namespace itself gets no new one.
    pub(super) fn change(&mut self, key: String, change: impl FnOnce(&mut Record)) -> bool {
        if !self.records.contains_key(&key) {
            if self.records.len() >= MAX_RECORDS && !self.evict_for(namespace_of(&key)) {
                return false;
            }
            *self.counts.entry(namespace_of(&key).to_owned()).or_default() += 1;
        }
        let record = self.records.entry(key).or_default();
        let before = record.clone();
        change(record);
        let is_dirty = *record != before;
        self.is_dirty |= is_dirty;
        is_dirty
    }

    /// Evicts a record of the namespace with most records. Returns whether it had more than this
    /// namespace.
    fn evict_for(&mut self, namespace: &str) -> bool {
        let own = self.counts.get(namespace).copied().unwrap_or(0);
        let max = self.counts.iter().max_by_key(|(_, count)| **count);
        let Some((max, _)) = max.filter(|(_, count)| **count > own + 1) else { return false };
        let first = format!("{max}/");
        let mut keys = self.records.range(first..).map(|(key, _)| key);
        let Some(key) = keys.find(|key| namespace_of(key) == max).cloned() else { return false };
        self.remove(&key);
        true
    }

    /// Returns the record of an item.
    pub(super) fn get(&self, key: &str) -> Option<&Record> {
        self.records.get(key)
    }

    /// Removes a record.
    pub(super) fn remove(&mut self, key: &str) {
        if self.records.remove(key).is_some()
            && let Some(count) = self.counts.get_mut(namespace_of(key))
        {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(namespace_of(key));
            }
        }
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
    fn a_namespace_that_fills_the_table_does_not_keep_others_out() {
        let mut table = RecordTable::default();
        let arrive = |table: &mut RecordTable, key: &str| {
            table.change(key.to_owned(), |record| record.arrived = Some(1))
        };
        for n in 0..MAX_RECORDS {
            assert!(arrive(&mut table, &format!("a/x:t{n}")));
        }
        assert!(!arrive(&mut table, "a/y:new"), "its own records stay");
        for n in 0..100 {
            assert!(arrive(&mut table, &format!("b/x:t{n}")));
            let by_digest = format!("hub.x:5000/c/x@{}", Digest::of(&[n]));
            assert!(arrive(&mut table, &by_digest));
        }
        assert_eq!(table.records.len(), MAX_RECORDS);
        let counts = ["a", "b", "hub.x:5000/c"].map(|of| table.counts[of]);
        assert_eq!(counts, [MAX_RECORDS - 200, 100, 100]);
        table.remove("b/x:t0");
        assert_eq!((table.get("b/x:t0"), table.counts["b"]), (None, 99));
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
