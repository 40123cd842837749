//! Access to blobs by their digest. Callers with limited namespaces may name their own uploads and
//! the blobs of models that they may use.
//!
//! The content of a blob can be guessed, such as a system prompt. So the server answers for a blob
//! of another namespace as for an absent blob. The upload of the same content proves that the
//! caller has it, and makes the blob visible.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use puna_mirror::{FreeQuota, SharedTable, StorageUsage, TableLimit};
use puna_registry::BlobReuse;
use puna_store::{Digest, Store, StoreError};

use crate::auth::caller::{Action, Caller};
use crate::models::quota::UploadQuota;
use crate::util::lock::lock;

/// Maximum number of uploads without a model for each list of namespaces.
const MAX_UPLOADED_BLOBS: usize = 10_000;

/// Description of [`UploadedBlobs`].
pub(crate) static UPLOADED_BLOBS: SharedTable = SharedTable {
    name: "uploads for `create` of keys with namespaces",
    holders: &["puna_server::models::blob_access::UploadedBlobs"],
    limits: &[TableLimit::Rule("keys that exist")],
    shares: &[TableLimit::Entries(MAX_UPLOADED_BLOBS)],
    when_full: "413 until models use the uploads or the clean-up removes them",
    test: "a_caller_with_too_many_uploads_gets_no_more_and_others_do",
};

/// Uploads by the namespaces of their callers. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct UploadedBlobs(Arc<Mutex<UploadMap>>);

type UploadMap = HashMap<Arc<[String]>, CallerUploads>;

/// Uploads of the callers with the same namespaces.
#[derive(Debug, Default)]
struct CallerUploads {
    complete: Vec<CompleteUpload>,
    /// Bytes and number of all uploads that are being received.
    receiving: StorageUsage,
    /// Bytes and number of all uploads that were ever completed.
    completed: StorageUsage,
}

/// A complete upload. It counts to the caller's quota until a model has it or the store does not.
#[derive(Debug, Clone, Copy)]
struct CompleteUpload {
    digest: Digest,
    bytes: u64,
    at: Instant,
}

impl CompleteUpload {
    /// Whether the caller may still name the blob. From then on the clean-up removes a blob that no
    /// model has, so a longer right would tell that a model of another namespace has it.
    fn is_visible(&self) -> bool {
        self.at.elapsed() < puna_store::UNUSED_BLOB_GRACE
    }
}

impl CallerUploads {
    /// Complete uploads with their sizes in bytes.
    fn complete_sizes(&self) -> Vec<(Digest, u64)> {
        self.complete.iter().map(|upload| (upload.digest, upload.bytes)).collect()
    }

    /// Number of uploads, complete or not.
    fn count(&self) -> usize {
        let receiving = usize::try_from(self.receiving.objects).unwrap_or(usize::MAX);
        self.complete.len().saturating_add(receiving)
    }
}

/// An upload that is being received. Its bytes count to the caller until it is dropped, and
/// [`UploadReservation::complete`] counts the complete upload.
#[derive(Debug)]
pub(crate) struct UploadReservation {
    uploads: UploadedBlobs,
    namespaces: Arc<[String]>,
    quota: UploadQuota,
    /// Completed uploads when the quota was read.
    completed_before: StorageUsage,
    bytes: u64,
}

impl UploadReservation {
    /// Reserves space for further bytes.
    ///
    /// # Errors
    /// [`StoreError::NotAdmitted`].
    pub(crate) fn grow(&mut self, bytes: u64) -> Result<(), StoreError> {
        let mut all = lock(&self.uploads.0);
        let own = all.entry(self.namespaces.clone()).or_default();
        own.receiving.bytes = own.receiving.bytes.saturating_add(bytes);
        self.bytes = self.bytes.saturating_add(bytes);
        // Other uploads may have been completed since the quota was read.
        let (now, before) = (own.completed, self.completed_before);
        self.quota.check(StorageUsage {
            bytes: own.receiving.bytes.saturating_add(now.bytes.saturating_sub(before.bytes)),
            objects: own.receiving.objects + now.objects.saturating_sub(before.objects),
        })
    }

    /// Records the complete upload.
    pub(crate) fn complete(self, digest: &Digest) {
        let mut all = lock(&self.uploads.0);
        let own = all.entry(self.namespaces.clone()).or_default();
        own.completed.bytes = own.completed.bytes.saturating_add(self.bytes);
        own.completed.objects += 1;
        own.complete.retain(|upload| upload.digest != *digest);
        own.complete.push(CompleteUpload {
            digest: *digest,
            bytes: self.bytes,
            at: Instant::now(),
        });
    }
}

impl Drop for UploadReservation {
    fn drop(&mut self) {
        if let Some(own) = lock(&self.uploads.0).get_mut(&self.namespaces) {
            own.receiving.bytes = own.receiving.bytes.saturating_sub(self.bytes);
            own.receiving.objects = own.receiving.objects.saturating_sub(1);
        }
    }
}

impl UploadedBlobs {
    /// Starts an upload of a caller with namespaces, within a quota that was just read. Earlier
    /// uploads count unless a model of the namespace has them.
    ///
    /// # Errors
    /// [`StoreError::NotAdmitted`].
    pub(crate) fn reserve(
        &self,
        store: &Store,
        caller: &Caller,
        free: &[FreeQuota],
    ) -> Result<UploadReservation, StoreError> {
        self.forget_removed(store, caller);
        let namespaces = caller.namespaces();
        if self.upload_count(caller) >= MAX_UPLOADED_BLOBS {
            let used = blobs_of_models(store, caller)?;
            self.retain(caller, |digest| !used.contains(digest));
        }
        let mut reserved = {
            let mut all = lock(&self.0);
            let own = all.entry(namespaces.clone()).or_default();
            if own.count() >= MAX_UPLOADED_BLOBS {
                return Err(StoreError::NotAdmitted(format!(
                    "these namespaces have {MAX_UPLOADED_BLOBS} uploads that no model uses: create their models, or wait until the clean-up removes them"
                )));
            }
            own.receiving.objects += 1;
            let quota = UploadQuota::new(free, &own.complete_sizes());
            let (uploads, completed_before) = (self.clone(), own.completed);
            UploadReservation { uploads, namespaces, quota, completed_before, bytes: 0 }
        };
        reserved.grow(0)?;
        Ok(reserved)
    }

    /// Forgets complete uploads that the store no longer has.
    fn forget_removed(&self, store: &Store, caller: &Caller) {
        let namespaces = caller.namespaces();
        let known: Vec<Digest> = {
            let all = lock(&self.0);
            let own = all.get(&namespaces).into_iter().flat_map(|own| &own.complete);
            own.map(|upload| upload.digest).collect()
        };
        let removed: HashSet<Digest> =
            known.into_iter().filter(|digest| !store.has_blob(digest)).collect();
        self.retain(caller, |digest| !removed.contains(digest));
    }

    /// Forgets the complete uploads of a caller that do not match.
    fn retain(&self, caller: &Caller, matches: impl Fn(&Digest) -> bool) {
        if let Some(own) = lock(&self.0).get_mut(&caller.namespaces()) {
            own.complete.retain(|upload| matches(&upload.digest));
        }
    }

    /// Complete uploads of a caller that the store has, with their sizes in bytes.
    pub(crate) fn complete(&self, store: &Store, caller: &Caller) -> Vec<(Digest, u64)> {
        self.forget_removed(store, caller);
        let all = lock(&self.0);
        all.get(&caller.namespaces()).map(CallerUploads::complete_sizes).unwrap_or_default()
    }

    /// Forgets the uploads that a new model of the caller has. From now on its models make them
    /// visible: after their removal, an upload would tell whether other namespaces have the blob.
    pub(crate) fn forget_used(&self, caller: &Caller, used: &HashSet<Digest>) {
        self.retain(caller, |digest| !used.contains(digest));
    }

    fn upload_count(&self, caller: &Caller) -> usize {
        lock(&self.0).get(&caller.namespaces()).map_or(0, CallerUploads::count)
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
        Ok(blobs_of_models(store, caller)?.contains(digest))
    }

    fn has_uploaded(&self, caller: &Caller, digest: &Digest) -> bool {
        let all = lock(&self.0);
        let own = all.get(&caller.namespaces());
        own.is_some_and(|own| {
            own.complete.iter().any(|upload| upload.digest == *digest && upload.is_visible())
        })
    }
}

/// Blobs of the models that a caller may use.
fn blobs_of_models(store: &Store, caller: &Caller) -> Result<HashSet<Digest>, StoreError> {
    let listing = store.listing()?;
    let usable = listing.entries.iter().filter(|entry| caller.may(Action::Use, &entry.name));
    Ok(usable.flat_map(|entry| entry.blobs()).map(|layer| layer.digest).collect())
}

/// Stored blobs that the pulls of a caller with namespaces may use. Other blobs are received again,
/// so that a manifest with a guessed digest neither gives a blob nor tells that it exists.
pub(crate) struct VisibleBlobs {
    uploads: UploadedBlobs,
    store: Arc<Store>,
    caller: Caller,
}

impl VisibleBlobs {
    /// The blobs of a caller; `None` if it may use all.
    pub(crate) fn of(
        uploads: &UploadedBlobs,
        store: &Arc<Store>,
        caller: &Caller,
    ) -> Option<Arc<dyn BlobReuse>> {
        let (uploads, store, caller) = (uploads.clone(), store.clone(), caller.clone());
        caller.is_confined().then(|| Arc::new(Self { uploads, store, caller }) as _)
    }
}

impl fmt::Debug for VisibleBlobs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VisibleBlobs").field("caller", &self.caller).finish_non_exhaustive()
    }
}

impl BlobReuse for VisibleBlobs {
    fn reusable(&self, digests: &[Digest]) -> Result<HashSet<Digest>, StoreError> {
        let of_models = blobs_of_models(&self.store, &self.caller)?;
        let is_visible = |digest: &&Digest| {
            of_models.contains(digest) || self.uploads.has_uploaded(&self.caller, digest)
        };
        Ok(digests.iter().filter(is_visible).copied().collect())
    }

    fn caller_number(&self) -> u64 {
        let digest = Digest::of(self.caller.namespaces().join("\n").as_bytes());
        u64::from_str_radix(&digest.hex()[..16], 16).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_with_too_many_uploads_gets_no_more_and_others_do() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let uploads = UploadedBlobs::default();
        let [bob, eve] = ["bob", "eve"].map(|name| Caller::new(&[name.to_owned()]));
        let blob = store.add_blob(b"bob's").unwrap().digest;
        uploads.reserve(&store, &bob, &[]).unwrap().complete(&blob);
        let started: Vec<_> =
            (1..MAX_UPLOADED_BLOBS).map(|_| uploads.reserve(&store, &bob, &[]).unwrap()).collect();
        let error = uploads.reserve(&store, &bob, &[]).unwrap_err();
        assert!(matches!(error, StoreError::NotAdmitted(_)), "{error}");
        assert!(uploads.reserve(&store, &eve, &[]).is_ok());
        assert!(uploads.has_uploaded(&bob, &blob) && !uploads.has_uploaded(&eve, &blob));
        drop(started);
        assert!(uploads.reserve(&store, &bob, &[]).is_ok());
    }

    #[test]
    fn an_upload_is_visible_until_a_model_has_it_or_the_grace_time_ends() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let (uploads, caller) = (UploadedBlobs::default(), Caller::new(&["bob".to_owned()]));
        let [used, old] = [&b"used"[..], b"old"].map(|blob| store.add_blob(blob).unwrap().digest);
        for blob in [used, old] {
            uploads.reserve(&store, &caller, &[]).unwrap().complete(&blob);
        }
        let visible = || [used, old].map(|blob| uploads.has_uploaded(&caller, &blob));
        assert_eq!(visible(), [true, true]);
        uploads.forget_used(&caller, &HashSet::from([used]));
        assert_eq!(visible(), [false, true]);
        let long_ago = Instant::now().checked_sub(puna_store::UNUSED_BLOB_GRACE).unwrap();
        lock(&uploads.0).get_mut(&caller.namespaces()).unwrap().complete[0].at = long_ago;
        assert_eq!(visible(), [false, false]);
        assert_eq!(uploads.complete(&store, &caller), [(old, 0)], "it counts to the quota");
    }

    #[test]
    fn uploads_of_a_caller_share_its_quota() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let (uploads, caller) = (UploadedBlobs::default(), Caller::new(&["a".into(), "b".into()]));
        let free = |namespace: &str, bytes, objects, stored: &[(Digest, u64)]| FreeQuota {
            namespace: namespace.into(),
            free: StorageUsage { bytes, objects },
            stored: stored.iter().copied().collect(),
        };
        let quota = [free("a", 100, 9, &[]), free("b", 50, 9, &[])];
        let start = |quota: &[FreeQuota]| uploads.reserve(&store, &caller, quota);
        let (mut first, mut second) = (start(&quota).unwrap(), start(&quota).unwrap());
        first.grow(60).unwrap();
        second.grow(40).unwrap();
        assert!(matches!(second.grow(1), Err(StoreError::NotAdmitted(_))));
        drop(second);
        // The store has the completed blob, which counts until a model has it.
        let blob = store.add_blob(&[7; 60]).unwrap().digest;
        let mut third = start(&quota).unwrap();
        first.complete(&blob);
        assert!(third.grow(41).is_err(), "completed since the quota was read");
        drop(third);
        let fits = |quota: &[FreeQuota], bytes| {
            start(quota).is_ok_and(|mut upload| upload.grow(bytes).is_ok())
        };
        assert!(fits(&quota, 40) && !fits(&quota, 41));
        let used = [free("a", 40, 9, &[(blob, 60)])];
        assert!(fits(&used, 40) && !fits(&used, 41), "the model counts instead");
        let few = [free("a", 100, 1, &[])];
        assert!(!fits(&few, 0), "the completed upload is one object");
        std::fs::remove_file(store.blob_path(&blob)).unwrap();
        assert!(fits(&few, 100), "it was removed");
        assert!(fits(&[], u64::MAX), "without a quota");
    }
}
