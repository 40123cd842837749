//! Children of upstream manifest lists: which are being fetched, have failed or are stored.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;
use std::time::Instant;

use puna_store::{Digest, ModelName};

use crate::error::MirrorError;
use crate::locks::{KeyedLocks, lock};
use crate::types::manifest::Manifest;
use crate::types::shared_table::{SharedTable, TableLimit};

/// Limit of each cache: failed children, and stored children.
const MAX_REMEMBERED_CHILDREN: usize = 10_000;

/// A child of a list in the repository of a model.
pub(super) type ChildKey = (ModelName, Digest);

/// Description of [`ListChildren`].
pub(crate) static UPSTREAM_CHILDREN: SharedTable = SharedTable {
    name: "mirror: children of lists of upstreams",
    holders: &["puna_mirror::pull_through::list_children::ListChildren"],
    limits: &[TableLimit::Entries(MAX_REMEMBERED_CHILDREN)],
    shares: &[TableLimit::Rule("none: what is missing is looked up again")],
    when_full: "cleared, without the children that are being fetched",
    test: "a_client_that_fills_the_children_hides_no_fetch_of_another",
};

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

#[cfg(test)]
mod tests {
    use super::*;

    fn child(model: &str, n: usize) -> ChildKey {
        (ModelName::parse(model).unwrap(), Digest::of(&n.to_le_bytes()))
    }

    #[test]
    fn a_client_that_fills_the_children_hides_no_fetch_of_another() {
        let (children, other) = (ListChildren::default(), child("other", 0));
        let list = r#"{"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": []}"#;
        let manifest = Manifest::parse(list.into(), None).unwrap();
        children.begin_fetch(other.clone(), manifest);
        for n in 0..2 * MAX_REMEMBERED_CHILDREN {
            children.record_failure(child("greedy", n), None);
            children.mark_stored(child("greedy", n));
        }
        let counts = (lock(&children.failed).len(), lock(&children.stored).len());
        assert_eq!(counts, (MAX_REMEMBERED_CHILDREN, MAX_REMEMBERED_CHILDREN));
        assert!(children.manifest(&other).is_some());
        children.mark_stored(other.clone());
        children.record_failure(other.clone(), None);
        assert!(children.is_stored(&other) && children.failure(&other).is_some());
    }
}
