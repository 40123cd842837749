//! Children of upstream manifest lists: which are being fetched, have failed or are stored.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;
use std::time::Instant;

use puna_store::{Digest, ModelName};

use crate::error::MirrorError;
use crate::locks::{KeyedLocks, lock};
use crate::types::manifest::Manifest;

/// Limit of each cache: failed children, and stored children.
const MAX_REMEMBERED_CHILDREN: usize = 10_000;

/// A child of a list in the repository of a model.
pub(super) type ChildKey = (ModelName, Digest);

/// Children that are being fetched, have recently failed, or are stored.
#[derive(Default)]
pub(super) struct ListChildren {
    /// Held while a request looks up a child; other requests for it wait.
    pub(super) locks: KeyedLocks<ChildKey>,
    running: Mutex<HashMap<ChildKey, Manifest>>,
    failed: Mutex<HashMap<ChildKey, (Instant, Option<MirrorError>)>>,
    /// Children that are stored on their own.
    stored: Mutex<HashSet<ChildKey>>,
}

impl ListChildren {
    /// Number of children that are being fetched.
    pub(super) fn running(&self) -> u64 {
        lock(&self.running).len() as u64
    }

    /// Returns the manifest of a child that is being fetched.
    pub(super) fn manifest(&self, key: &ChildKey) -> Option<Manifest> {
        lock(&self.running).get(key).cloned()
    }

    /// Records that a fetch has started.
    pub(super) fn begin_fetch(&self, key: ChildKey, child: Manifest) {
        lock(&self.running).insert(key, child);
    }

    /// Records that a fetch has ended.
    pub(super) fn end_fetch(&self, key: &ChildKey) {
        lock(&self.running).remove(key);
    }

    pub(super) fn is_stored(&self, key: &ChildKey) -> bool {
        lock(&self.stored).contains(key)
    }

    pub(super) fn mark_stored(&self, key: ChildKey) {
        let mut stored = lock(&self.stored);
        if stored.len() >= MAX_REMEMBERED_CHILDREN {
            stored.clear();
        }
        stored.insert(key);
    }

    /// Returns the time of the last failure and its error; the error is `None` if the upstream did
    /// not have the child.
    pub(super) fn failure(&self, key: &ChildKey) -> Option<(Instant, Option<MirrorError>)> {
        lock(&self.failed).get(key).cloned()
    }

    /// Caches a failure; `None` means that the upstream does not have the child.
    pub(super) fn record_failure(&self, key: ChildKey, error: Option<MirrorError>) {
        let mut failed = lock(&self.failed);
        if failed.len() >= MAX_REMEMBERED_CHILDREN {
            failed.clear();
        }
        failed.insert(key, (Instant::now(), error));
    }
}
