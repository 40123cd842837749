//! The parts of a download: who fetches which bytes, what has arrived, and what is noted of it on disk.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::fs;

use puna_store::{Digest, Partial, Store, StoreError};
use serde::{Deserialize, Serialize};

/// Parts that a download is planned with at most.
const MAX_PARTS: u64 = 128;
/// What is left of a part that somebody fetches is shared with a second one from twice this size up.
const MIN_HALF: u64 = 2 << 20;
/// Bytes of a note at most.
const MAX_NOTE: u64 = 4 << 10;
/// Notes of one download at most.
const MAX_NOTES: usize = 1 << 16;
/// Readers of bytes that are not there yet, whose wishes are remembered.
const MAX_WANTED: usize = 64;
/// Parts up to which they are cut for such readers.
const MAX_CUT: usize = 1024;
/// Bytes before one that is wanted which come first where they are being fetched.
const NEAR: u64 = MIB;
const MIB: u64 = 1 << 20;

/// What is noted of a part, in Ollama's format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct Note {
    pub(crate) n: u64,
    pub(crate) offset: u64,
    pub(crate) size: u64,
    pub(crate) completed: u64,
}

impl Note {
    pub(crate) fn to_bytes(self) -> Vec<u8> {
        let mut bytes = serde_json::to_vec(&self).expect("numbers only");
        bytes.push(b'\n');
        bytes
    }
}

#[derive(Debug, Clone, Copy)]
struct Part {
    n: u64,
    size: u64,
    completed: u64,
    /// Whether somebody fetches it.
    busy: bool,
    noted: Option<Note>,
}

/// The parts of a blob. They follow each other without gaps; each is filled from its beginning.
#[derive(Debug)]
pub(crate) struct Table {
    total: u64,
    /// By offset.
    parts: BTreeMap<u64, Part>,
    /// Whether bytes of an earlier run count.
    resumed: bool,
    /// How often it was begun anew.
    life: u64,
    /// Bytes that readers wait for.
    wanted: VecDeque<u64>,
}

impl Table {
    /// Parts for a blob of `total` bytes of which nothing is there.
    pub(crate) fn plan(total: u64, min_part: u64) -> Self {
        let size = total.div_ceil(MAX_PARTS).next_multiple_of(MIB).max(min_part).max(1);
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
        Self { total, parts: BTreeMap::new(), resumed: false, life: 0, wanted: VecDeque::new() }
    }

    /// One part for all.
    pub(crate) fn whole(total: u64) -> Self {
        Self::plan(total, total)
    }

    /// The same as a new beginning of `old`, whose bytes count no more.
    pub(crate) fn after(self, old: &Self) -> Self {
        Self { life: old.life + 1, ..self }
    }

    /// How often it was begun anew.
    pub(crate) fn life(&self) -> u64 {
        self.life
    }

    /// What an interrupted download left, whoever made it. Notes that contradict each other lose: bytes that are claimed
    /// twice are the later part's, and what nobody claims is fetched.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub(crate) fn load(partial: &Partial, total: u64) -> Result<Option<Self>, StoreError> {
        if !fs::metadata(partial.data()).is_ok_and(|meta| meta.is_file() && meta.len() == total) {
            return Ok(None);
        }
        let numbers = partial.parts()?;
        if numbers.is_empty() || numbers.len() > MAX_NOTES {
            return Ok(None);
        }
        let mut notes: Vec<Note> =
            numbers.into_iter().filter_map(|n| read_note(partial, n, total)).collect();
        notes.sort_by_key(|note| (note.offset, note.completed));
        notes.dedup_by_key(|note| note.offset);
        Ok(Some(Self::from_notes(&notes, total)))
    }

    /// The same of a blob of a store.
    pub(crate) fn of_store(store: &Store, digest: &Digest, total: u64) -> Option<Self> {
        Self::load(&store.partial(digest).ok()?, total).ok()?
    }

    fn from_notes(notes: &[Note], total: u64) -> Self {
        let mut table = Self::empty(total);
        // Numbers that were in use come back, so that no stale note stays behind.
        let mut next_free = notes.iter().map(|note| note.n + 1).max().unwrap_or(0);
        let mut end = 0;
        for (i, note) in notes.iter().enumerate() {
            if note.offset > end {
                table.parts.insert(end, Part::new(next_free, note.offset - end, 0));
                next_free += 1;
            }
            let until = notes.get(i + 1).map_or(total, |next| next.offset);
            let size = note.size.min(until - note.offset);
            let noted = (size == note.size).then_some(*note);
            let part = Part { noted, ..Part::new(note.n, size, note.completed.min(size)) };
            table.parts.insert(note.offset, part);
            end = note.offset + size;
        }
        if end < total {
            table.parts.insert(end, Part::new(next_free, total - end, 0));
        }
        table.resumed = table.completed() > 0;
        table
    }

    fn insert(&mut self, offset: u64, size: u64, completed: u64) {
        let n = self.parts.values().map(|part| part.n + 1).max().unwrap_or(0);
        self.parts.insert(offset, Part::new(n, size, completed));
    }

    /// Whether bytes of an earlier run count.
    pub(crate) fn is_resumed(&self) -> bool {
        self.resumed
    }

    /// The numbers of the parts.
    pub(crate) fn numbers(&self) -> HashSet<u64> {
        self.parts.values().map(|part| part.n).collect()
    }

    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// Bytes that are there.
    pub(crate) fn completed(&self) -> u64 {
        self.parts.values().map(|part| part.completed).sum()
    }

    /// Bytes that are there without a gap from the first.
    pub(crate) fn frontier(&self) -> u64 {
        let gap = self.parts.iter().find(|(_, part)| part.completed < part.size);
        gap.map_or(self.total, |(offset, part)| offset + part.completed)
    }

    /// Up to where bytes are there without a gap from `from` on.
    pub(crate) fn reach(&self, from: u64) -> u64 {
        let first = self.parts.range(..=from).next_back().map_or(0, |(offset, _)| *offset);
        let mut at = from;
        for (offset, part) in self.parts.range(first..) {
            at = at.max(offset + part.completed);
            if part.completed < part.size {
                break;
            }
        }
        at
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.frontier() == self.total
    }

    /// Says that somebody waits for a byte. Whether it would not come soon by itself.
    pub(crate) fn want(&mut self, at: u64) -> bool {
        let Some((offset, part)) = self.parts.range(..=at).next_back() else { return false };
        let (front, end) = (offset + part.completed, offset + part.size);
        let comes = at < front || at >= end || part.busy && at - front < NEAR;
        if comes || self.wanted.len() >= MAX_WANTED {
            return false;
        }
        if !self.wanted.contains(&at) {
            self.wanted.push_back(at);
        }
        true
    }

    /// Takes the part from a byte on, unless that has arrived or will so soon.
    fn claim_wanted(&mut self, at: u64) -> Option<u64> {
        let many = self.parts.len() >= MAX_CUT;
        let (offset, part) = self.parts.range_mut(..=at).next_back()?;
        let (offset, front, end) = (*offset, *offset + part.completed, *offset + part.size);
        if at < front || at >= end {
            return None;
        }
        if at - front < NEAR || many {
            let idle = !part.busy;
            part.busy = true;
            return idle.then_some(offset);
        }
        part.size = at - offset;
        self.insert(at, end - at, 0);
        self.parts.get_mut(&at).expect("just inserted").busy = true;
        Some(at)
    }

    /// Takes a part that somebody waits for, or else one that nobody fetches; where there is none, the second half of what is left of the one with most left.
    /// Its name is its offset.
    pub(crate) fn claim(&mut self) -> Option<u64> {
        while let Some(at) = self.wanted.pop_front() {
            if let Some(offset) = self.claim_wanted(at) {
                return Some(offset);
            }
        }
        let idle = self.parts.iter_mut().find(|(_, part)| !part.busy && part.completed < part.size);
        if let Some((offset, part)) = idle {
            part.busy = true;
            return Some(*offset);
        }
        let (offset, part) = self.parts.iter_mut().max_by_key(|(_, part)| part.left())?;
        if part.left() < 2 * MIN_HALF {
            return None;
        }
        let keep = part.size - part.left() / 2;
        let (at, size) = (offset + keep, part.size - keep);
        part.size = keep;
        self.insert(at, size, 0);
        self.parts.get_mut(&at).expect("just inserted").busy = true;
        Some(at)
    }

    /// Gives a part back.
    pub(crate) fn release(&mut self, offset: u64) {
        if let Some(part) = self.parts.get_mut(&offset) {
            part.busy = false;
        }
    }

    /// The bytes that a part still lacks: from, and the first after them. Others may take from its end at any time.
    pub(crate) fn missing(&self, offset: u64) -> (u64, u64) {
        let part = self.parts.get(&offset);
        part.map_or((offset, offset), |part| (offset + part.completed, offset + part.size))
    }

    /// Notes that bytes of a part were written. Of what others took meanwhile nothing counts.
    pub(crate) fn advance(&mut self, offset: u64, bytes: u64) {
        if let Some(part) = self.parts.get_mut(&offset) {
            part.completed = (part.completed + bytes).min(part.size);
        }
    }

    /// The notes that are not on disk as they should be, in the order in which to write them: a part that was taken from
    /// another one comes before the other one shrinks, so that no byte is ever without a note.
    pub(crate) fn unwritten(&self) -> Vec<Note> {
        let current = self.parts.iter().map(|(offset, part)| (part.note(*offset), part.noted));
        let mut notes: Vec<_> = current.filter(|(now, noted)| Some(*now) != *noted).collect();
        notes.sort_by_key(|(_, noted)| noted.is_some());
        notes.into_iter().map(|(now, _)| now).collect()
    }

    /// A note of each part.
    pub(crate) fn notes(&self) -> impl Iterator<Item = Note> + '_ {
        self.parts.iter().map(|(offset, part)| part.note(*offset))
    }

    /// Says that a note is on disk now.
    pub(crate) fn written(&mut self, note: Note) {
        if let Some(part) = self.parts.get_mut(&note.offset) {
            part.noted = Some(note);
        }
    }
}

impl Part {
    fn new(n: u64, size: u64, completed: u64) -> Self {
        Self { n, size, completed, busy: false, noted: None }
    }

    fn left(&self) -> u64 {
        self.size - self.completed
    }

    fn note(&self, offset: u64) -> Note {
        Note { n: self.n, offset, size: self.size, completed: self.completed }
    }
}

/// A note that makes sense.
fn read_note(partial: &Partial, n: u64, total: u64) -> Option<Note> {
    let path = partial.part(n);
    if fs::metadata(&path).ok()?.len() > MAX_NOTE {
        return None;
    }
    let note: Note = serde_json::from_slice(&fs::read(&path).ok()?).ok()?;
    let end = note.offset.checked_add(note.size)?;
    (note.n == n
        && n < u64::MAX - MAX_NOTES as u64
        && note.size > 0
        && end <= total
        && note.completed <= note.size)
        .then_some(note)
}

#[cfg(test)]
mod tests {
    use puna_store::{Digest, Store};

    use super::*;

    fn note(n: u64, offset: u64, size: u64, completed: u64) -> Note {
        Note { n, offset, size, completed }
    }

    fn shape(table: &Table) -> Vec<(u64, u64, u64)> {
        table.parts.iter().map(|(offset, part)| (*offset, part.size, part.completed)).collect()
    }

    #[test]
    fn a_plan_covers_every_byte_once_with_a_bounded_number_of_parts() {
        for (total, min_part) in
            [(0, 1), (1, 1), (5, 2), (10 * MIB, MIB), (4 << 30, 16 * MIB), (1 << 50, MIB)]
        {
            let table = Table::plan(total, min_part);
            let mut end = 0;
            for (offset, size, _) in shape(&table) {
                assert!(offset == end && size > 0);
                end += size;
            }
            assert_eq!(end, total);
            assert!(
                table.parts.len() as u64 <= MAX_PARTS.max(total.div_ceil(min_part.max(1))).min(129)
            );
        }
        assert_eq!(Table::plan(4 << 30, 16 * MIB).parts.len(), 128);
        assert_eq!(Table::whole(4 << 30).parts.len(), 1);
    }

    #[test]
    fn what_has_arrived_reaches_up_to_the_next_gap() {
        let table =
            Table::from_notes(&[note(0, 0, 50, 50), note(1, 50, 30, 10), note(2, 80, 20, 20)], 100);
        for (from, until) in
            [(0, 60), (49, 60), (50, 60), (59, 60), (60, 60), (70, 70), (80, 100), (99, 100)]
        {
            assert_eq!(table.reach(from), until, "{from}");
        }
        assert_eq!(Table::plan(0, 1).reach(0), 0);
    }

    #[test]
    fn a_note_is_what_ollama_writes() {
        let text = "{\"N\":0,\"Offset\":0,\"Size\":100000000,\"Completed\":12345}\n";
        assert_eq!(String::from_utf8(note(0, 0, 100_000_000, 12345).to_bytes()).unwrap(), text);
    }

    #[test]
    fn ollamas_notes_are_gone_on_from() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        let partial = store.partial(&Digest::of(b"x")).unwrap();
        let load = |total| Table::load(&partial, total).unwrap();
        assert!(load(250).is_none());
        fs::File::create(partial.data()).unwrap().set_len(250).unwrap();
        assert!(load(250).is_none());
        for part in [note(0, 0, 100, 100), note(1, 100, 100, 30), note(2, 200, 50, 0)] {
            fs::write(partial.part(part.n), part.to_bytes()).unwrap();
        }
        let table = load(250).unwrap();
        assert_eq!(shape(&table), [(0, 100, 100), (100, 100, 30), (200, 50, 0)]);
        assert_eq!((table.completed(), table.frontier(), table.is_resumed()), (130, 130, true));
        assert_eq!(table.unwritten(), []);
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
    fn notes_that_contradict_each_other_lose() {
        let shaped = |notes: &[Note]| shape(&Table::from_notes(notes, 100));
        // A crash after the new note of a part that was taken, before the old one shrank.
        assert_eq!(shaped(&[note(0, 0, 100, 20), note(1, 60, 40, 5)]), [(0, 60, 20), (60, 40, 5)]);
        assert_eq!(shaped(&[note(0, 0, 100, 90), note(1, 60, 40, 5)]), [(0, 60, 60), (60, 40, 5)]);
        assert_eq!(shaped(&[note(3, 50, 10, 10)]), [(0, 50, 0), (50, 10, 10), (60, 40, 0)]);
        assert_eq!(shaped(&[]), [(0, 100, 0)]);
        let table = Table::from_notes(&[note(0, 0, 100, 20), note(1, 60, 40, 5)], 100);
        assert_eq!(table.unwritten(), [note(0, 0, 60, 20)]);
    }

    #[test]
    fn what_a_reader_waits_for_comes_first() {
        let mut table = Table::plan(64 * MIB, 16 * MIB);
        assert_eq!((table.claim(), table.claim()), (Some(0), Some(16 * MIB)));
        // Far within a part that somebody fetches, and within one that nobody does.
        assert!(table.want(10 * MIB) && table.want(40 * MIB));
        assert_eq!((table.claim(), table.claim()), (Some(10 * MIB), Some(40 * MIB)));
        assert_eq!(table.missing(0), (0, 10 * MIB));
        assert_eq!(table.missing(10 * MIB), (10 * MIB, 16 * MIB));
        assert_eq!(table.missing(32 * MIB), (32 * MIB, 40 * MIB));
        // What comes anyway, and what is there.
        table.advance(0, 5 * MIB);
        assert!(!table.want(5 * MIB + 1000) && !table.want(MIB) && !table.want(64 * MIB));
        assert_eq!(table.claim(), Some(32 * MIB), "the next one that nobody fetches");
        let ends: Vec<_> = shape(&table).iter().map(|(offset, size, _)| offset + size).collect();
        assert_eq!(ends, [10, 16, 32, 40, 48, 64].map(|mib| mib * MIB));
    }

    #[test]
    fn idle_hands_take_half_of_the_largest_rest() {
        let mut table = Table::plan(32 * MIB, 16 * MIB);
        assert_eq!((table.claim(), table.claim()), (Some(0), Some(16 * MIB)));
        table.advance(0, 8 * MIB);
        assert_eq!(table.claim(), Some(24 * MIB));
        assert_eq!(table.missing(16 * MIB), (16 * MIB, 24 * MIB));
        table.advance(16 * MIB, MIB);
        table.advance(24 * MIB, MIB);
        let first = table.unwritten();
        assert_eq!(first.len(), 3);
        first.into_iter().for_each(|note| table.written(note));
        assert_eq!(table.claim(), Some(12 * MIB));
        let notes = table.unwritten();
        assert_eq!(notes[0].offset, 12 * MIB, "the new part is noted first");
        assert_eq!(notes[1], note(0, 0, 12 * MIB, 8 * MIB));
        // Bytes beyond the new end do not count.
        table.advance(0, 16 * MIB);
        assert_eq!(table.missing(0), (12 * MIB, 12 * MIB));
        let mut small = Table::whole(3 * MIB);
        assert_eq!((small.claim(), small.claim()), (Some(0), None));
        small.release(0);
        assert_eq!(small.claim(), Some(0));
    }
}
