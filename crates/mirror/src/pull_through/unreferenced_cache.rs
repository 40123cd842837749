//! Lookups and fetches of unreferenced blobs that are remembered.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::Instant;

use puna_registry::RegistryBlob;
use puna_store::{Digest, ModelName};

use super::tag_state::MissReason;
use super::upstreams::FetchPermit;
use crate::locks::lock;
use crate::types::shared_table::{SharedTable, TableLimit};

/// Largest number of remembered blobs.
const MAX_REMEMBERED_BLOBS: usize = 10_000;

/// Description of [`UnreferencedBlobs`].
pub(crate) static UPSTREAM_BLOBS: SharedTable = SharedTable {
    name: "mirror: single blobs of upstreams",
    holders: &[
        "puna_mirror::pull_through::unreferenced_cache::UnreferencedBlobs",
        "puna_mirror::pull_through::unreferenced_cache::UnreferencedBlob",
    ],
    limits: &[TableLimit::Entries(MAX_REMEMBERED_BLOBS)],
    shares: &[TableLimit::Rule("none: what is missing is looked up again")],
    when_full: "cleared, without the blobs that requests use",
    test: "a_client_that_fills_the_blobs_evicts_none_in_use_by_another",
};

/// Lookups and fetches of single blobs.
#[derive(Default)]
pub(super) struct UnreferencedBlobs {
    blobs: Mutex<HashMap<(ModelName, Digest), Arc<UnreferencedBlob>>>,
    /// Permits by repository. All blobs of a repository count as one model.
    permits: Mutex<HashMap<ModelName, Weak<FetchPermit>>>,
}

/// A single blob of a repository.
#[derive(Default)]
pub(super) struct UnreferencedBlob {
    /// Held during a lookup; other requests for the blob wait for its result.
    pub(super) lookup_lock: tokio::sync::Mutex<()>,
    state: Mutex<LookupState>,
}

/// State of a blob's lookup and fetch.
#[derive(Clone, Default)]
pub(super) enum LookupState {
    /// Nothing is known.
    #[default]
    Unknown,
    /// An upstream has the blob, as of that time.
    Found(Instant, Arc<RegistryBlob>),
    /// The blob is being fetched, or was recently, and was last used at that time.
    Fetching(Instant, Arc<RegistryBlob>),
    /// A lookup has failed or found nothing at that time.
    NegativeCached(Instant, MissReason),
}

impl UnreferencedBlobs {
    pub(super) fn get(&self, model: &ModelName, digest: Digest) -> Arc<UnreferencedBlob> {
        let mut blobs = lock(&self.blobs);
        if blobs.len() >= MAX_REMEMBERED_BLOBS {
            blobs.retain(|_, blob| Arc::strong_count(blob) > 1);
        }
        blobs.entry((model.clone(), digest)).or_default().clone()
    }

    /// Returns the permit under which blobs of a repository are being fetched.
    pub(super) fn permit(&self, model: &ModelName) -> Option<Arc<FetchPermit>> {
        lock(&self.permits).get(model).and_then(Weak::upgrade)
    }

    pub(super) fn share_permit(&self, model: &ModelName, permit: FetchPermit) -> Arc<FetchPermit> {
        let mut permits = lock(&self.permits);
        permits.retain(|_, permit| permit.strong_count() > 0);
        let permit = Arc::new(permit);
        permits.insert(model.clone(), Arc::downgrade(&permit));
        permit
    }
}

impl UnreferencedBlob {
    pub(super) fn state(&self) -> LookupState {
        lock(&self.state).clone()
    }

    pub(super) fn set(&self, state: LookupState) {
        *lock(&self.state) = state;
    }

    /// Records a use of the blob.
    pub(super) fn touch(&self) {
        if let LookupState::Fetching(last_used, _) = &mut *lock(&self.state) {
            *last_used = Instant::now();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_that_fills_the_blobs_evicts_none_in_use_by_another() {
        let blobs = UnreferencedBlobs::default();
        let model = |name| ModelName::parse(name).unwrap();
        let digest = |n: usize| Digest::of(&n.to_le_bytes());
        let used = blobs.get(&model("other"), digest(0));
        for n in 0..2 * MAX_REMEMBERED_BLOBS {
            blobs.get(&model("greedy"), digest(n));
        }
        assert!(lock(&blobs.blobs).len() <= MAX_REMEMBERED_BLOBS);
        assert!(Arc::ptr_eq(&blobs.get(&model("other"), digest(0)), &used));
    }
}
