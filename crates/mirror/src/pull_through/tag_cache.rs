//! Cache of upstream tags, and the models that are being fetched.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use puna_store::ModelName;

use super::in_flight::InFlightModel;
use super::tag_state::TagState;
use crate::locks::lock;
use crate::types::shared_table::{SharedTable, TableLimit};

/// Capacity of the cache.
pub(super) const MAX_TAGS: usize = 100_000;
/// One in [`EVICTED_FRACTION`] entries is evicted at once, so that not every new tag scans the
/// cache.
const EVICTED_FRACTION: usize = 8;

/// Description of [`TagCache`].
pub(crate) static UPSTREAM_TAGS: SharedTable = SharedTable {
    name: "mirror: tags of upstreams",
    holders: &[
        "puna_mirror::pull_through::tag_cache::TagCache",
        "puna_mirror::pull_through::tag_cache::TagCacheEntry",
    ],
    limits: &[TableLimit::Entries(MAX_TAGS)],
    shares: &[TableLimit::Rule("none: what is missing is looked up again")],
    when_full: "tags without content go first, then the oldest",
    test: "tags_in_use_are_not_evicted",
};

/// Cached tags, and models in flight. The latter are never evicted.
pub(super) struct TagCache {
    capacity: usize,
    entries: Mutex<HashMap<ModelName, Arc<TagCacheEntry>>>,
    in_flight: Mutex<HashMap<ModelName, InFlightModel>>,
}

/// A cached tag. A request or fetch that uses it holds a reference.
#[derive(Default)]
pub(super) struct TagCacheEntry {
    /// Held during a lookup; other requests for the tag wait for its result.
    pub(super) lookup_lock: tokio::sync::Mutex<()>,
    state: Mutex<TagState>,
}

impl TagCacheEntry {
    pub(super) fn state(&self) -> TagState {
        lock(&self.state).clone()
    }

    pub(super) fn set(&self, state: TagState) {
        *lock(&self.state) = state;
    }

    /// Order of eviction: tags without content go first, then the oldest.
    fn eviction_rank(&self) -> (bool, Option<Instant>) {
        match *lock(&self.state) {
            TagState::Unknown => (false, None),
            TagState::NegativeCached(since, _) => (false, Some(since)),
            TagState::Confirmed(said) => (true, Some(said.at)),
        }
    }
}

impl TagCache {
    /// Creates a cache.
    pub(super) fn new(capacity: usize) -> Self {
        Self { capacity, entries: Mutex::default(), in_flight: Mutex::default() }
    }

    /// Returns the entry of a tag, and creates it if needed.
    pub(super) fn entry(&self, model: &ModelName) -> Arc<TagCacheEntry> {
        let mut entries = lock(&self.entries);
        if let Some(tag) = entries.get(model) {
            return tag.clone();
        }
        if entries.len() >= self.capacity {
            evict(&mut entries, self.capacity.div_ceil(EVICTED_FRACTION));
        }
        entries.entry(model.clone()).or_default().clone()
    }

    /// Records that a fetch has started.
    pub(super) fn begin_fetch(&self, in_flight: InFlightModel) {
        lock(&self.in_flight).insert(in_flight.target().model.clone(), in_flight);
    }

    /// Records that a fetch has ended.
    pub(super) fn end_fetch(&self, model: &ModelName) {
        lock(&self.in_flight).remove(model);
    }

    /// Returns the fetch of a model, if one is running.
    pub(super) fn in_flight(&self, model: &ModelName) -> Option<InFlightModel> {
        lock(&self.in_flight).get(model).cloned()
    }

    /// Returns all running fetches.
    pub(super) fn all_in_flight(&self) -> Vec<InFlightModel> {
        lock(&self.in_flight).values().cloned().collect()
    }
}

/// Evicts up to `count` tags, oldest first. Tags in use stay, so that later requests share their
/// lock.
fn evict(entries: &mut HashMap<ModelName, Arc<TagCacheEntry>>, count: usize) {
    let is_idle = |tag: &Arc<TagCacheEntry>| Arc::strong_count(tag) == 1;
    let idle = entries.iter().filter(|(_, tag)| is_idle(tag));
    let mut idle: Vec<_> = idle.map(|(model, tag)| (tag.eviction_rank(), model.clone())).collect();
    idle.sort_by_key(|(eviction_rank, _)| *eviction_rank);
    for (_, model) in idle.into_iter().take(count) {
        entries.remove(&model);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pull_through::tag_state::{Confirmation, MissReason};

    fn model(name: &str) -> ModelName {
        ModelName::parse(name).unwrap()
    }

    #[test]
    fn tags_in_use_are_not_evicted() {
        let tags = TagCache::new(16);
        let (asked, fetched) = (tags.entry(&model("asked")), tags.entry(&model("fetched")));
        let here = tags.entry(&model("here"));
        here.set(TagState::Confirmed(Confirmation { at: Instant::now(), damaged_blobs: 0 }));
        drop(here);
        for n in 0..1000 {
            tags.entry(&model(&format!("none-{n}")))
                .set(TagState::NegativeCached(Instant::now(), MissReason::Absent));
        }
        let entries = |name: &str| lock(&tags.entries).get(&model(name)).cloned();
        assert!(lock(&tags.entries).len() <= 16);
        assert!(entries("asked").is_some_and(|tag| Arc::ptr_eq(&tag, &asked)));
        assert!(entries("fetched").is_some_and(|tag| Arc::ptr_eq(&tag, &fetched)));
        assert!(
            entries("none-999").is_some() && entries("none-0").is_none(),
            "the oldest go first"
        );
        let is_said = |tag: Arc<TagCacheEntry>| matches!(tag.state(), TagState::Confirmed(_));
        assert!(entries("here").is_some_and(is_said), "names of nothing go first");
        drop(asked);
        for n in 0..1000 {
            tags.entry(&model(&format!("there-{n}")))
                .set(TagState::Confirmed(Confirmation { at: Instant::now(), damaged_blobs: 0 }));
        }
        assert!(
            entries("asked").is_none() && entries("here").is_none() && entries("fetched").is_some()
        );
    }
}
