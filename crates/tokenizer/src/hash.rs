//! Hash tables of vocabularies: texts to ids, and pairs of ids to merges.
//!
//! A vocabulary has up to half a million merges and must load within tens of milliseconds. So the
//! tables are flat, have a fixed size, and are filled once. Each process uses a new random seed, so
//! that a file cannot cause collisions.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::LazyLock;

static SEED: LazyLock<u64> = LazyLock::new(|| RandomState::new().build_hasher().finish());

/// Hash seed of this process.
pub(crate) fn seed() -> u64 {
    *SEED
}

#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

/// Hash of bytes, similar to wyhash.
#[inline]
pub(crate) fn hash(seed: u64, bytes: &[u8]) -> u64 {
    // Constants of wyhash.
    const K0: u64 = 0xA076_1D64_78BD_642F;
    const K1: u64 = 0xE703_7ED1_A0B4_28DB;
    let mut state = seed ^ K0;
    let mut rest = bytes;
    while rest.len() > 16 {
        state = fold(read_u64(rest) ^ K1, read_u64(&rest[8..]) ^ state);
        rest = &rest[16..];
    }
    let n = rest.len();
    let (a, b) = match n {
        8.. => (read_u64(rest), read_u64(&rest[n - 8..])),
        4..8 => (read_u32(rest), read_u32(&rest[n - 4..])),
        1..4 => {
            (u64::from(rest[0]) << 16 | u64::from(rest[n / 2]) << 8 | u64::from(rest[n - 1]), 0)
        }
        0 => (0, 0),
    };
    fold(K1 ^ bytes.len() as u64, fold(a ^ K1, b ^ state))
}

#[inline]
fn read_u64(bytes: &[u8]) -> u64 {
    bytes.first_chunk().map_or(0, |b| u64::from_le_bytes(*b))
}

#[inline]
fn read_u32(bytes: &[u8]) -> u64 {
    bytes.first_chunk().map_or(0, |b| u64::from(u32::from_le_bytes(*b)))
}

/// List of texts in one buffer.
#[derive(Debug, Default, Clone)]
pub(crate) struct TextTable {
    bytes: Vec<u8>,
    ends: Vec<u32>,
}

impl TextTable {
    pub(crate) fn with_capacity(texts: usize, bytes: usize) -> Self {
        TextTable { bytes: Vec::with_capacity(bytes), ends: Vec::with_capacity(texts) }
    }

    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    /// Total number of bytes. Offsets are 32-bit.
    pub(crate) fn total(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn push(&mut self, text: &[u8]) {
        self.bytes.extend_from_slice(text);
        self.ends.push(self.bytes.len() as u32);
    }

    /// Appends a text that `write` produces.
    pub(crate) fn push_with(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        write(&mut self.bytes);
        self.ends.push(self.bytes.len() as u32);
    }

    /// Text at `index`; empty beyond the last one.
    #[inline]
    pub(crate) fn get(&self, index: usize) -> &[u8] {
        let start =
            if index == 0 { 0 } else { self.ends.get(index - 1).map_or(0, |&end| end as usize) };
        self.ends.get(index).map_or(&[], |&end| &self.bytes[start..end as usize])
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.len()).map(|i| self.get(i))
    }
}

/// Map from texts to ids. The caller passes the [`TextTable`] that contains the texts.
#[derive(Debug)]
pub(crate) struct TextMap {
    seed: u64,
    /// Upper half: part of the hash. Lower half: id + 1. A free slot is 0.
    slots: Vec<u64>,
}

impl TextMap {
    /// Makes a table with capacity for `texts` texts.
    pub(crate) fn with_capacity(texts: usize) -> Self {
        TextMap { seed: seed(), slots: vec![0; (texts * 2).next_power_of_two().max(8)] }
    }

    #[inline]
    pub(crate) fn get(&self, texts: &TextTable, text: &[u8]) -> Option<u32> {
        self.find(texts, text).ok()
    }

    /// Adds `id`, which has the text `texts[id]`. Returns the other id if an equal text exists.
    pub(crate) fn insert(&mut self, texts: &TextTable, id: u32) -> Result<(), u32> {
        match self.find(texts, texts.get(id as usize)) {
            Ok(other) => Err(other),
            Err((slot, tag)) => {
                self.slots[slot] = tag | (u64::from(id) + 1);
                Ok(())
            }
        }
    }

    /// Looks up many texts. Faster than single look-ups, since the memory latencies of a batch
    /// overlap.
    pub(crate) fn get_many<'a>(
        &self,
        texts: &TextTable,
        wanted: impl IntoIterator<Item = &'a [u8]>,
        ids: &mut Vec<Option<u32>>,
    ) {
        let mut wanted = wanted.into_iter().map(|text| (text, hash(self.seed, text)));
        let mut batch = Vec::with_capacity(64);
        loop {
            batch.clear();
            batch.extend(wanted.by_ref().take(64));
            if batch.is_empty() {
                return;
            }
            let slot = |hash: u64| self.slots[hash as usize & (self.slots.len() - 1)];
            let touched: usize =
                batch.iter().map(|&(_, hash)| texts.get((slot(hash) as u32) as usize).len()).sum();
            std::hint::black_box(touched);
            ids.extend(batch.iter().map(|&(text, hash)| self.find_hashed(texts, text, hash).ok()));
        }
    }

    #[inline]
    fn find(&self, texts: &TextTable, text: &[u8]) -> Result<u32, (usize, u64)> {
        self.find_hashed(texts, text, hash(self.seed, text))
    }

    #[inline]
    fn find_hashed(&self, texts: &TextTable, text: &[u8], hash: u64) -> Result<u32, (usize, u64)> {
        let tag = hash & 0xFFFF_FFFF_0000_0000;
        let mask = self.slots.len() - 1;
        let mut slot = hash as usize & mask;
        loop {
            let entry = self.slots[slot];
            if entry == 0 {
                return Err((slot, tag));
            }
            if entry & 0xFFFF_FFFF_0000_0000 == tag {
                let id = entry as u32 - 1;
                if texts.get(id as usize) == text {
                    return Ok(id);
                }
            }
            slot = (slot + 1) & mask;
        }
    }
}

/// A merge of two symbols.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Merge {
    /// Merges with lower ranks apply first.
    pub(crate) rank: u32,
    /// Symbol of the merged pair.
    pub(crate) merged: u32,
}

/// Map from pairs of symbols to merges.
#[derive(Debug)]
pub(crate) struct MergeTable {
    seed: u64,
    slots: Vec<(u32, u32, Merge)>,
}

/// Symbols of a free slot; no token has this id.
const FREE: u32 = u32::MAX;

impl MergeTable {
    /// Makes a table with capacity for `pairs` pairs.
    pub(crate) fn with_capacity(pairs: usize) -> Self {
        let free = (FREE, FREE, Merge { rank: 0, merged: 0 });
        MergeTable {
            seed: seed() | 1,
            slots: vec![free; (pairs + pairs / 2).next_power_of_two().max(8)],
        }
    }

    #[inline]
    fn slot(&self, left: u32, right: u32) -> usize {
        let key = u64::from(left) << 32 | u64::from(right);
        fold(key ^ self.seed, 0x9E37_79B9_7F4A_7C15 ^ self.seed.rotate_left(32)) as usize
            & (self.slots.len() - 1)
    }

    /// Adds a merge. Of several merges of one pair, the first one counts.
    pub(crate) fn insert(&mut self, left: u32, right: u32, merge: Merge) {
        let mut slot = self.slot(left, right);
        while self.slots[slot].0 != FREE {
            if self.slots[slot].0 == left && self.slots[slot].1 == right {
                return;
            }
            slot = (slot + 1) & (self.slots.len() - 1);
        }
        self.slots[slot] = (left, right, merge);
    }

    #[inline]
    pub(crate) fn get(&self, left: u32, right: u32) -> Option<Merge> {
        let mut slot = self.slot(left, right);
        loop {
            let (l, r, merge) = self.slots[slot];
            if l == left && r == right {
                return (l != FREE).then_some(merge);
            }
            if l == FREE {
                return None;
            }
            slot = (slot + 1) & (self.slots.len() - 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_found_by_content_and_duplicates_are_reported() {
        let mut texts = TextTable::default();
        let mut map = TextMap::with_capacity(1000);
        for i in 0..1000u32 {
            texts.push("x".repeat(i as usize % 40).as_bytes());
            texts.push_with(|bytes| bytes.extend(i.to_string().bytes()));
        }
        for id in (1..2000).step_by(2) {
            assert_eq!(map.insert(&texts, id), Ok(()));
        }
        for i in 0..1000u32 {
            assert_eq!(map.get(&texts, i.to_string().as_bytes()), Some(2 * i + 1));
        }
        assert_eq!(map.get(&texts, b"1000"), None);
        assert_eq!(map.insert(&texts, 0), Ok(()));
        assert_eq!(map.insert(&texts, 80), Err(0));
        assert_eq!(map.get(&texts, b""), Some(0));
    }

    #[test]
    fn the_first_merge_of_a_pair_counts() {
        let mut map = MergeTable::with_capacity(3);
        for (rank, (left, right)) in [(1, 2), (2, 1), (1, 2)].into_iter().enumerate() {
            map.insert(left, right, Merge { rank: rank as u32, merged: 9 });
        }
        assert_eq!(map.get(1, 2).map(|m| m.rank), Some(0));
        assert_eq!(map.get(2, 1).map(|m| m.rank), Some(1));
        assert!(map.get(1, 1).is_none() && map.get(FREE, FREE).is_none());
    }
}
