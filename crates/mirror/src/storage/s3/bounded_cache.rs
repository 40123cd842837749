//! Cache of immutable values, limited in number and in bytes.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Mutex;

use puna_store::Digest;

use super::blob_location::BlobLocation;
use crate::locks::lock;
use crate::types::manifest::Manifest;
use crate::types::shared_table::{SharedTable, TableLimit};

/// Largest number of values in a cache.
const MAX_CACHED: usize = 20_000;
/// Largest sum of the texts of cached values, in bytes.
const MAX_CACHED_BYTES: usize = 64 << 20;
/// Values with a larger text are not cached, so that they do not displace values of other clients.
const MAX_VALUE_BYTES: usize = 4 << 20;

/// Description of [`BoundedCache`].
pub(crate) static BUCKET_CACHES: SharedTable = SharedTable {
    name: "mirror: each cache of a bucket",
    holders: &["puna_mirror::storage::s3::bounded_cache::BoundedCache"],
    limits: &[TableLimit::Entries(MAX_CACHED), TableLimit::Bytes(MAX_CACHED_BYTES)],
    shares: &[TableLimit::Rule("none: what is missing is read from the bucket")],
    when_full: "the cache is cleared; large values are not cached",
    test: "a_client_that_fills_the_cache_hides_no_value_of_another",
};

/// Value of a cache.
pub(super) trait CachedValue: Clone {
    /// Bytes of the value's text; 0 for a value of fixed size.
    fn text_bytes(&self) -> usize;
}

impl CachedValue for Manifest {
    fn text_bytes(&self) -> usize {
        self.bytes.len()
    }
}

impl CachedValue for Digest {
    fn text_bytes(&self) -> usize {
        0
    }
}

impl CachedValue for BlobLocation {
    fn text_bytes(&self) -> usize {
        0
    }
}

/// The cache. It is cleared when full.
pub(super) struct BoundedCache<K, V>(Mutex<CachedValues<K, V>>);

struct CachedValues<K, V> {
    values: HashMap<K, V>,
    text_bytes: usize,
}

impl<K, V> Default for BoundedCache<K, V> {
    fn default() -> Self {
        Self(Mutex::new(CachedValues { values: HashMap::new(), text_bytes: 0 }))
    }
}

impl<K: Eq + Hash, V: CachedValue> BoundedCache<K, V> {
    pub(super) fn get(&self, key: &K) -> Option<V> {
        lock(&self.0).values.get(key).cloned()
    }

    pub(super) fn put(&self, key: K, value: V) {
        let bytes = value.text_bytes();
        if bytes > MAX_VALUE_BYTES {
            return;
        }
        let mut cached = lock(&self.0);
        if cached.values.len() >= MAX_CACHED || cached.text_bytes + bytes > MAX_CACHED_BYTES {
            cached.values.clear();
            cached.text_bytes = 0;
        }
        let replaced = cached.values.insert(key, value).map_or(0, |value| value.text_bytes());
        cached.text_bytes = cached.text_bytes + bytes - replaced;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone)]
    struct Text(usize);

    impl CachedValue for Text {
        fn text_bytes(&self) -> usize {
            self.0
        }
    }

    #[test]
    fn a_client_that_fills_the_cache_hides_no_value_of_another() {
        let cache = BoundedCache::default();
        cache.put(0, Text(1));
        (1..=2 * MAX_CACHED).for_each(|n| cache.put(n, Text(0)));
        // The value is read from the bucket again, and has a place at once.
        assert!(cache.get(&0).is_none());
        cache.put(0, Text(1));
        assert!(cache.get(&0).is_some());
    }

    #[test]
    fn the_cache_is_limited_in_number_and_in_bytes() {
        let cache = BoundedCache::default();
        let size = || {
            let cached = lock(&cache.0);
            (cached.values.len(), cached.text_bytes)
        };
        cache.put(0, Text(MAX_VALUE_BYTES + 1));
        assert_eq!(size(), (0, 0));
        for n in 0..1000 {
            cache.put(n, Text(MAX_VALUE_BYTES));
            assert!(size().1 <= MAX_CACHED_BYTES);
        }
        assert!(cache.get(&999).is_some());
        cache.put(999, Text(1));
        cache.put(999, Text(2));
        let (_, before) = size();
        cache.put(999, Text(0));
        assert_eq!(size().1, before - 2);
        for n in 0..2 * MAX_CACHED {
            cache.put(n, Text(0));
        }
        assert!(size().0 <= MAX_CACHED);
    }
}
