//! Access to blobs by their digest. Callers with limited namespaces may name their own uploads and
//! the blobs of models that they may use.
//!
//! The content of a blob can be guessed, such as a system prompt. So the server answers for a blob
//! of another namespace as for an absent blob. The upload of the same content proves that the
//! caller has it, and makes the blob visible.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};

use puna_mirror::{SharedTable, TableLimit};
use puna_store::{Digest, Store, StoreError};

use crate::auth::caller::{Action, Caller};
use crate::util::lock::lock;

/// Number of uploads that are known for each list of namespaces. Older ones have to be sent again.
const MAX_UPLOADED_BLOBS: usize = 10_000;

/// Description of [`UploadedBlobs`].
pub(crate) static UPLOADED_BLOBS: SharedTable = SharedTable {
    name: "uploads for `create` of keys with namespaces",
    holders: &["puna_server::models::blob_access::UploadedBlobs"],
    limits: &[TableLimit::Rule("keys that exist")],
    shares: &[TableLimit::Entries(MAX_UPLOADED_BLOBS)],
    when_full: "the oldest of these namespaces is forgotten, and has to be uploaded again",
    test: "a_caller_with_many_uploads_forgets_only_its_own",
};

/// Digests of uploads by the namespaces of their callers.
#[derive(Debug, Default)]
pub(crate) struct UploadedBlobs(Mutex<HashMap<Arc<[String]>, VecDeque<Digest>>>);

impl UploadedBlobs {
    /// Records that a caller has uploaded a blob. Callers without limits need no record.
    pub(crate) fn record(&self, caller: &Caller, digest: &Digest) {
        if !caller.is_confined() {
            return;
        }
        let mut all = lock(&self.0);
        let own = all.entry(caller.namespaces()).or_default();
        own.retain(|known| known != digest);
        own.push_back(*digest);
        if own.len() > MAX_UPLOADED_BLOBS {
            own.pop_front();
        }
    }

    /// Whether a caller may know that the store has a blob.
    ///
    /// # Errors
    /// The store cannot be listed.
    pub(crate) fn is_visible(
        &self,
        store: &Store,
        caller: &Caller,
        digest: &Digest,
    ) -> Result<bool, StoreError> {
        if !caller.is_confined() || self.has_uploaded(caller, digest) {
            return Ok(true);
        }
        let listing = store.listing()?;
        let mut usable =
            listing.entries.iter().filter(|entry| caller.may(Action::Use, &entry.name));
        Ok(usable.any(|entry| entry.blobs().any(|layer| layer.digest == *digest)))
    }

    fn has_uploaded(&self, caller: &Caller, digest: &Digest) -> bool {
        lock(&self.0).get(&caller.namespaces()).is_some_and(|own| own.contains(digest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_with_many_uploads_forgets_only_its_own() {
        let uploads = UploadedBlobs::default();
        let [bob, eve] = ["bob", "eve"].map(|name| Caller::new(&[name.to_owned()]));
        let digest = |n: usize| Digest::of(n.to_string().as_bytes());
        uploads.record(&eve, &digest(0));
        for n in 0..=MAX_UPLOADED_BLOBS {
            uploads.record(&bob, &digest(n));
        }
        assert!(uploads.has_uploaded(&bob, &digest(MAX_UPLOADED_BLOBS)));
        assert!(!uploads.has_uploaded(&bob, &digest(0)), "the oldest one is forgotten");
        assert!(uploads.has_uploaded(&eve, &digest(0)));
        assert!(!uploads.has_uploaded(&eve, &digest(1)));
    }
}
