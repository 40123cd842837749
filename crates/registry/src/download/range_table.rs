//! Byte ranges of a download: the connection that fetches each range, the bytes that have arrived,
//! and their records on disk.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::fs;

use puna_store::{Digest, PartialBlob, Store, StoreError};
use serde::{Deserialize, Serialize};

/// Largest number of ranges in a new download's plan.
const MAX_RANGES: u64 = 128;
/// A range is split only if both halves of its missing part have at least this many bytes.
const MIN_HALF_BYTES: u64 = 2 << 20;
/// Largest record, in bytes.
const MAX_RECORD_BYTES: u64 = 4 << 10;
/// Largest number of records of one download.
const MAX_RECORDS: usize = 1 << 16;
/// Largest number of bytes that readers have requested and that are not fetched yet.
const MAX_REQUESTED: usize = 64;
/// Ranges are split for readers only up to this number of ranges.
const MAX_RANGES_FOR_READERS: usize = 1024;
/// A requested byte closer than this to a connection's position is not fetched separately.
const NEAR_BYTES: u64 = MIB;
const MIB: u64 = 1 << 20;

/// Record of a range on disk, in Ollama's format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct RangeRecord {
    pub(crate) n: u64,
    pub(crate) offset: u64,
    pub(crate) size: u64,
    pub(crate) completed: u64,
}

impl RangeRecord {
    pub(crate) fn to_bytes(self) -> Vec<u8> {
        let mut bytes = serde_json::to_vec(&self).expect("numbers only");
        bytes.push(b'\n');
        bytes
    }
}

#[derive(Debug, Clone, Copy)]
struct DownloadRange {
    n: u64,
    size: u64,
    completed: u64,
    /// Whether a connection fetches it.
    busy: bool,
    saved_record: Option<RangeRecord>,
}

/// Byte ranges of a blob. They follow each other without gaps, and each is filled from its start.
#[derive(Debug)]
pub(crate) struct RangeTable {
    total: u64,
    /// Ranges by offset.
    ranges: BTreeMap<u64, DownloadRange>,
    /// Whether bytes of an earlier run count.
    resumed: bool,
    /// How often the download was restarted.
    generation: u64,
    /// Offsets that readers wait for.
    requested: VecDeque<u64>,
}

impl RangeTable {
    /// Ranges for a blob of `total` bytes that has not started.
    pub(crate) fn plan(total: u64, min_range_bytes: u64) -> Self {
        let size = total.div_ceil(MAX_RANGES).next_multiple_of(MIB).max(min_range_bytes).max(1);
        let mut table = Self::empty(total);
        let mut offset = 0;
        while offset < total {
            let size = size.min(total - offset);
            table.insert(offset, size, 0);
            offset += size;
        }
        table
    }

    fn empty(total: u64) -> Self {
        Self {
            total,
            ranges: BTreeMap::new(),
            resumed: false,
            generation: 0,
            requested: VecDeque::new(),
        }
    }

    /// A single range.
    pub(crate) fn single(total: u64) -> Self {
        Self::plan(total, total)
    }

    /// This table as the next generation of `old`, which invalidates the bytes of `old`.
    pub(crate) fn restarted_from(self, old: &Self) -> Self {
        Self { generation: old.generation + 1, ..self }
    }

    /// How often the download was restarted.
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// Reads the records of an interrupted download of this program or Ollama. Conflicting records
    /// lose: bytes in two ranges belong to the later range, and bytes in no range are fetched.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub(crate) fn load(partial: &PartialBlob, total: u64) -> Result<Option<Self>, StoreError> {
        if !fs::metadata(partial.data()).is_ok_and(|meta| meta.is_file() && meta.len() == total) {
            return Ok(None);
        }
        let numbers = partial.parts()?;
        if numbers.is_empty() || numbers.len() > MAX_RECORDS {
            return Ok(None);
        }
        let mut records: Vec<RangeRecord> =
            numbers.into_iter().filter_map(|n| read_record(partial, n, total)).collect();
        records.sort_by_key(|record| (record.offset, record.completed));
        records.dedup_by_key(|record| record.offset);
        Ok(Some(Self::from_records(&records, total)))
    }

    /// Like [`RangeTable::load`], for a blob of a store.
    pub(crate) fn load_for_blob(store: &Store, digest: &Digest, total: u64) -> Option<Self> {
        Self::load(&store.partial(digest).ok()?, total).ok()?
    }

    fn from_records(records: &[RangeRecord], total: u64) -> Self {
        let mut table = Self::empty(total);
        // Numbers in use are reused, so that no stale record remains.
        let mut next_free = records.iter().map(|record| record.n + 1).max().unwrap_or(0);
        let mut end = 0;
        for (i, record) in records.iter().enumerate() {
            if record.offset > end {
                table.ranges.insert(end, DownloadRange::new(next_free, record.offset - end, 0));
                next_free += 1;
            }
            let until = records.get(i + 1).map_or(total, |next| next.offset);
            let size = record.size.min(until - record.offset);
            let saved_record = (size == record.size).then_some(*record);
            let range = DownloadRange {
                saved_record,
                ..DownloadRange::new(record.n, size, record.completed.min(size))
            };
            table.ranges.insert(record.offset, range);
            end = record.offset + size;
        }
        if end < total {
            table.ranges.insert(end, DownloadRange::new(next_free, total - end, 0));
        }
        table.resumed = table.completed() > 0;
        table
    }

    fn insert(&mut self, offset: u64, size: u64, completed: u64) {
        let n = self.ranges.values().map(|range| range.n + 1).max().unwrap_or(0);
        self.ranges.insert(offset, DownloadRange::new(n, size, completed));
    }

    /// Whether bytes of an earlier run count.
    pub(crate) fn is_resumed(&self) -> bool {
        self.resumed
    }

    /// The numbers of the ranges' records.
    pub(crate) fn record_numbers(&self) -> HashSet<u64> {
        self.ranges.values().map(|range| range.n).collect()
    }

    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// Completed bytes.
    pub(crate) fn completed(&self) -> u64 {
        self.ranges.values().map(|range| range.completed).sum()
    }

    /// Completed bytes from the start without a gap.
    pub(crate) fn contiguous_bytes(&self) -> u64 {
        let gap = self.ranges.iter().find(|(_, range)| range.completed < range.size);
        gap.map_or(self.total, |(offset, range)| offset + range.completed)
    }

    /// End of the completed bytes that start at `from` without a gap.
    pub(crate) fn contiguous_end(&self, from: u64) -> u64 {
        let first = self.ranges.range(..=from).next_back().map_or(0, |(offset, _)| *offset);
        let mut at = from;
        for (offset, range) in self.ranges.range(first..) {
            at = at.max(offset + range.completed);
            if range.completed < range.size {
                break;
            }
        }
        at
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.contiguous_bytes() == self.total
    }

    /// Registers a reader's request for a byte. Returns true if the byte would not arrive soon
    /// anyway.
    pub(crate) fn request_byte(&mut self, at: u64) -> bool {
        let Some((offset, range)) = self.ranges.range(..=at).next_back() else { return false };
        let (next_byte, end) = (offset + range.completed, offset + range.size);
        let arrives_soon = at < next_byte || at >= end || range.busy && at - next_byte < NEAR_BYTES;
        if arrives_soon || self.requested.len() >= MAX_REQUESTED {
            return false;
        }
        if !self.requested.contains(&at) {
            self.requested.push_back(at);
        }
        true
    }

    /// Claims a range that starts at a requested byte, unless the byte has arrived or will soon.
    fn claim_requested(&mut self, at: u64) -> Option<u64> {
        let too_many_ranges = self.ranges.len() >= MAX_RANGES_FOR_READERS;
        let (offset, range) = self.ranges.range_mut(..=at).next_back()?;
        let (offset, next_byte, end) = (*offset, *offset + range.completed, *offset + range.size);
        if at < next_byte || at >= end {
            return None;
        }
        if at - next_byte < NEAR_BYTES || too_many_ranges {
            let idle = !range.busy;
            range.busy = true;
            return idle.then_some(offset);
        }
        range.size = at - offset;
        self.insert(at, end - at, 0);
        self.ranges.get_mut(&at).expect("just inserted").busy = true;
        Some(at)
    }

    /// Claims a range to fetch and returns its offset. A range that a reader requested comes first,
    /// then a range without a connection. Otherwise the range with the most missing bytes is split
    /// in half.
    pub(crate) fn claim(&mut self) -> Option<u64> {
        while let Some(at) = self.requested.pop_front() {
            if let Some(offset) = self.claim_requested(at) {
                return Some(offset);
            }
        }
        let idle =
            self.ranges.iter_mut().find(|(_, range)| !range.busy && range.completed < range.size);
        if let Some((offset, range)) = idle {
            range.busy = true;
            return Some(*offset);
        }
        let (offset, range) =
            self.ranges.iter_mut().max_by_key(|(_, range)| range.missing_bytes())?;
        if range.missing_bytes() < 2 * MIN_HALF_BYTES {
            return None;
        }
        let keep = range.size - range.missing_bytes() / 2;
        let (at, size) = (offset + keep, range.size - keep);
        range.size = keep;
        self.insert(at, size, 0);
        self.ranges.get_mut(&at).expect("just inserted").busy = true;
        Some(at)
    }

    /// Releases a claimed range.
    pub(crate) fn release(&mut self, offset: u64) {
        if let Some(range) = self.ranges.get_mut(&offset) {
            range.busy = false;
        }
    }

    /// The missing bytes of a range: start, and end (exclusive). Another connection may claim its
    /// end at any time.
    pub(crate) fn missing_range(&self, offset: u64) -> (u64, u64) {
        let range = self.ranges.get(&offset);
        range.map_or((offset, offset), |range| (offset + range.completed, offset + range.size))
    }

    /// Counts written bytes of a range. Bytes beyond a reduced end do not count.
    pub(crate) fn advance(&mut self, offset: u64, bytes: u64) {
        if let Some(range) = self.ranges.get_mut(&offset) {
            range.completed = (range.completed + bytes).min(range.size);
        }
    }

    /// Records that differ from those on disk, in the order in which to write them. A split range's
    /// new record comes before the old one shrinks, so that every byte is in a record at any time.
    pub(crate) fn unsaved_records(&self) -> Vec<RangeRecord> {
        let current =
            self.ranges.iter().map(|(offset, range)| (range.record(*offset), range.saved_record));
        let mut records: Vec<_> =
            current.filter(|(now, saved_record)| Some(*now) != *saved_record).collect();
        records.sort_by_key(|(_, saved_record)| saved_record.is_some());
        records.into_iter().map(|(now, _)| now).collect()
    }

    /// The records of all ranges.
    pub(crate) fn records(&self) -> impl Iterator<Item = RangeRecord> + '_ {
        self.ranges.iter().map(|(offset, range)| range.record(*offset))
    }

    /// Marks a record as written to disk.
    pub(crate) fn mark_saved(&mut self, record: RangeRecord) {
        if let Some(range) = self.ranges.get_mut(&record.offset) {
            range.saved_record = Some(record);
        }
    }
}

impl DownloadRange {
    fn new(n: u64, size: u64, completed: u64) -> Self {
        Self { n, size, completed, busy: false, saved_record: None }
    }

    fn missing_bytes(&self) -> u64 {
        self.size - self.completed
    }

    fn record(&self, offset: u64) -> RangeRecord {
        RangeRecord { n: self.n, offset, size: self.size, completed: self.completed }
    }
}

/// Reads a valid record.
fn read_record(partial: &PartialBlob, n: u64, total: u64) -> Option<RangeRecord> {
    let path = partial.part(n);
    if fs::metadata(&path).ok()?.len() > MAX_RECORD_BYTES {
        return None;
    }
    let record: RangeRecord = serde_json::from_slice(&fs::read(&path).ok()?).ok()?;
    let end = record.offset.checked_add(record.size)?;
    (record.n == n
        && n < u64::MAX - MAX_RECORDS as u64
        && record.size > 0
        && end <= total
        && record.completed <= record.size)
        .then_some(record)
}

#[cfg(test)]
mod tests {
    use puna_store::{Digest, Store};

    use super::*;

    fn record(n: u64, offset: u64, size: u64, completed: u64) -> RangeRecord {
        RangeRecord { n, offset, size, completed }
    }

    fn shape(table: &RangeTable) -> Vec<(u64, u64, u64)> {
        table.ranges.iter().map(|(offset, range)| (*offset, range.size, range.completed)).collect()
    }

    #[test]
    fn a_plan_covers_every_byte_once_with_a_bounded_number_of_parts() {
        for (total, min_range_bytes) in
            [(0, 1), (1, 1), (5, 2), (10 * MIB, MIB), (4 << 30, 16 * MIB), (1 << 50, MIB)]
        {
            let table = RangeTable::plan(total, min_range_bytes);
            let mut end = 0;
            for (offset, size, _) in shape(&table) {
                assert!(offset == end && size > 0);
                end += size;
            }
            assert_eq!(end, total);
            assert!(
                table.ranges.len() as u64
                    <= MAX_RANGES.max(total.div_ceil(min_range_bytes.max(1))).min(129)
            );
        }
        assert_eq!(RangeTable::plan(4 << 30, 16 * MIB).ranges.len(), 128);
        assert_eq!(RangeTable::single(4 << 30).ranges.len(), 1);
    }

    #[test]
    fn contiguous_bytes_end_at_the_next_gap() {
        let table = RangeTable::from_records(
            &[record(0, 0, 50, 50), record(1, 50, 30, 10), record(2, 80, 20, 20)],
            100,
        );
        for (from, until) in
            [(0, 60), (49, 60), (50, 60), (59, 60), (60, 60), (70, 70), (80, 100), (99, 100)]
        {
            assert_eq!(table.contiguous_end(from), until, "{from}");
        }
        assert_eq!(RangeTable::plan(0, 1).contiguous_end(0), 0);
    }

    #[test]
    fn a_record_has_ollamas_format() {
        let text = "{\"N\":0,\"Offset\":0,\"Size\":100000000,\"Completed\":12345}\n";
        assert_eq!(String::from_utf8(record(0, 0, 100_000_000, 12345).to_bytes()).unwrap(), text);
    }

    #[test]
    fn ollamas_records_are_resumed() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        let partial = store.partial(&Digest::of(b"x")).unwrap();
        let load = |total| RangeTable::load(&partial, total).unwrap();
        assert!(load(250).is_none());
        fs::File::create(partial.data()).unwrap().set_len(250).unwrap();
        assert!(load(250).is_none());
        for range in [record(0, 0, 100, 100), record(1, 100, 100, 30), record(2, 200, 50, 0)] {
            fs::write(partial.part(range.n), range.to_bytes()).unwrap();
        }
        let table = load(250).unwrap();
        assert_eq!(shape(&table), [(0, 100, 100), (100, 100, 30), (200, 50, 0)]);
        assert_eq!(
            (table.completed(), table.contiguous_bytes(), table.is_resumed()),
            (130, 130, true)
        );
        assert_eq!(table.unsaved_records(), []);
        assert!(load(251).is_none(), "another size is another blob");
        fs::write(partial.part(1), "{\"N\":1,\"Off").unwrap();
        assert_eq!(shape(&load(250).unwrap()), [(0, 100, 100), (100, 100, 0), (200, 50, 0)]);
        fs::write(
            partial.part(1),
            "{\"N\":1,\"Offset\":-5,\"Size\":18446744073709551615,\"Completed\":9}",
        )
        .unwrap();
        assert_eq!(load(250).unwrap().completed(), 100);
    }

    #[test]
    fn overlapping_records_are_trimmed_and_gaps_filled() {
        let shape_of = |records: &[RangeRecord]| shape(&RangeTable::from_records(records, 100));
        // A crash after the new range of a split was recorded, and before the old one shrank.
        assert_eq!(
            shape_of(&[record(0, 0, 100, 20), record(1, 60, 40, 5)]),
            [(0, 60, 20), (60, 40, 5)]
        );
        assert_eq!(
            shape_of(&[record(0, 0, 100, 90), record(1, 60, 40, 5)]),
            [(0, 60, 60), (60, 40, 5)]
        );
        assert_eq!(shape_of(&[record(3, 50, 10, 10)]), [(0, 50, 0), (50, 10, 10), (60, 40, 0)]);
        assert_eq!(shape_of(&[]), [(0, 100, 0)]);
        let table = RangeTable::from_records(&[record(0, 0, 100, 20), record(1, 60, 40, 5)], 100);
        assert_eq!(table.unsaved_records(), [record(0, 0, 60, 20)]);
    }

    #[test]
    fn requested_bytes_are_fetched_first() {
        let mut table = RangeTable::plan(64 * MIB, 16 * MIB);
        assert_eq!((table.claim(), table.claim()), (Some(0), Some(16 * MIB)));
        // Far inside a range that is being fetched, and inside an idle one.
        assert!(table.request_byte(10 * MIB) && table.request_byte(40 * MIB));
        assert_eq!((table.claim(), table.claim()), (Some(10 * MIB), Some(40 * MIB)));
        assert_eq!(table.missing_range(0), (0, 10 * MIB));
        assert_eq!(table.missing_range(10 * MIB), (10 * MIB, 16 * MIB));
        assert_eq!(table.missing_range(32 * MIB), (32 * MIB, 40 * MIB));
        // Bytes that arrive soon anyway, and bytes that have arrived.
        table.advance(0, 5 * MIB);
        assert!(
            !table.request_byte(5 * MIB + 1000)
                && !table.request_byte(MIB)
                && !table.request_byte(64 * MIB)
        );
        assert_eq!(table.claim(), Some(32 * MIB), "the next one that nobody fetches");
        let ends: Vec<_> = shape(&table).iter().map(|(offset, size, _)| offset + size).collect();
        assert_eq!(ends, [10, 16, 32, 40, 48, 64].map(|mib| mib * MIB));
    }

    #[test]
    fn idle_connections_split_the_largest_missing_range() {
        let mut table = RangeTable::plan(32 * MIB, 16 * MIB);
        assert_eq!((table.claim(), table.claim()), (Some(0), Some(16 * MIB)));
        table.advance(0, 8 * MIB);
        assert_eq!(table.claim(), Some(24 * MIB));
        assert_eq!(table.missing_range(16 * MIB), (16 * MIB, 24 * MIB));
        table.advance(16 * MIB, MIB);
        table.advance(24 * MIB, MIB);
        let first = table.unsaved_records();
        assert_eq!(first.len(), 3);
        first.into_iter().for_each(|record| table.mark_saved(record));
        assert_eq!(table.claim(), Some(12 * MIB));
        let records = table.unsaved_records();
        assert_eq!(records[0].offset, 12 * MIB, "the new part is noted first");
        assert_eq!(records[1], record(0, 0, 12 * MIB, 8 * MIB));
        // Bytes beyond the new end do not count.
        table.advance(0, 16 * MIB);
        assert_eq!(table.missing_range(0), (12 * MIB, 12 * MIB));
        let mut small = RangeTable::single(3 * MIB);
        assert_eq!((small.claim(), small.claim()), (Some(0), None));
        small.release(0);
        assert_eq!(small.claim(), Some(0));
    }
}
