//! Rows of media by their content, so that a medium is encoded once.

use std::collections::HashMap;
use std::sync::Arc;

use crate::request::CacheNamespace;

/// A medium: its owner, and a hash of its content and of the options that change its rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MediumKey {
    /// Namespace of the client. A client finds only its own media.
    pub namespace: CacheNamespace,
    /// Hash of content and options.
    pub content: u128,
}

/// Rows of the media that were used last, up to a number of bytes.
#[derive(Debug, Default)]
pub struct MediaCache {
    entries: HashMap<MediumKey, CachedMedium>,
    bytes: usize,
    max_bytes: usize,
    uses: u64,
}

#[derive(Debug)]
struct CachedMedium {
    rows: Arc<Vec<f32>>,
    /// Number of the last use.
    used: u64,
}

impl MediaCache {
    /// An empty cache.
    pub fn new(max_bytes: usize) -> Self {
        Self { max_bytes, ..Self::default() }
    }

    /// Rows of a medium.
    pub fn get(&mut self, key: &MediumKey) -> Option<Arc<Vec<f32>>> {
        self.uses += 1;
        let entry = self.entries.get_mut(key)?;
        entry.used = self.uses;
        Some(Arc::clone(&entry.rows))
    }

    /// Adds the rows of a medium, and evicts the media that were not used for the longest time.
    pub fn insert(&mut self, key: MediumKey, rows: Arc<Vec<f32>>) {
        let bytes = size_of_val(rows.as_slice());
        if bytes > self.max_bytes {
            return;
        }
        self.uses += 1;
        let entry = CachedMedium { rows, used: self.uses };
        if let Some(before) = self.entries.insert(key, entry) {
            self.bytes -= size_of_val(before.rows.as_slice());
        }
        self.bytes += bytes;
        while self.bytes > self.max_bytes {
            let oldest = self.entries.iter().min_by_key(|(_, entry)| entry.used);
            let Some(key) = oldest.map(|(key, _)| *key) else { return };
            let evicted = self.entries.remove(&key);
            self.bytes -= evicted.map_or(0, |entry| size_of_val(entry.rows.as_slice()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_medium_that_was_not_used_for_the_longest_time_is_evicted() {
        let key = |content| MediumKey { namespace: CacheNamespace(1), content };
        let rows = |count: usize| Arc::new(vec![0.0; count]);
        let mut cache = MediaCache::new(40);
        cache.insert(key(1), rows(4));
        cache.insert(key(2), rows(4));
        assert!(cache.get(&key(1)).is_some());
        cache.insert(key(3), rows(2));
        assert_eq!([1, 2, 3].map(|n| cache.get(&key(n)).is_some()), [true, true, true]);
        cache.insert(key(3), rows(6));
        assert_eq!([1, 2, 3].map(|n| cache.get(&key(n)).is_some()), [false, true, true]);
        cache.insert(key(4), rows(11));
        assert_eq!((cache.bytes, cache.get(&key(4)).is_some()), (40, false));
        let other = MediumKey { namespace: CacheNamespace(2), ..key(3) };
        assert!(cache.get(&other).is_none(), "another client");
    }
}
