//! Operations that a quota limits: opening, continuing and finishing an upload, mounting a blob,
//! and storing a manifest.
//!
//! Each operation checks the quota and changes the storage under the lock of the namespace. So two
//! operations never use the same remaining space.

use std::collections::HashMap;

use puna_store::{Digest, ModelName, NewModel, StoreError};

use super::check_quota;
use super::namespace_index::NamespaceIndex;
use super::namespace_usage::NamespaceUsage;
use super::reservation::UploadReservation;
use crate::error::MirrorError;
use crate::locks::KeyGuard;
use crate::types::manifest::{Manifest, ManifestKind};
use crate::types::manifest_error::ManifestProblem;
use crate::types::repository::{Reference, Repository};
use crate::types::storage_usage::{StorageUsage, UPLOAD_OBJECTS};
use crate::types::upload_id::UploadId;

/// Space that a namespace has left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FreeQuota {
    /// The namespace.
    pub namespace: String,
    /// Bytes and objects that it may still store.
    pub free: StorageUsage,
    /// Blobs that count already, with their sizes in bytes.
    pub stored: HashMap<Digest, u64>,
}

/// Bytes of a new upload's record without the names in it.
const UPLOAD_RECORD_BYTES: u64 = 256;
/// Bytes of a tag: a digest.
const TAG_BYTES: u64 = 71;

impl NamespaceIndex {
    /// Usage of a namespace that has a quota. The caller holds the lock of the namespace. Uploads
    /// of an earlier run and of other mirrors count from now on.
    async fn usage(&self, namespace: &str) -> Result<NamespaceUsage, MirrorError> {
        let content = self.content(namespace).await?;
        let uploads = self.open_uploads(namespace).await?;
        self.reservations.synchronize(namespace, &uploads);
        Ok(NamespaceUsage::new(content, &uploads))
    }

    /// Opens an upload if the quota allows its record.
    pub(crate) async fn begin_upload(
        &self,
        name: &Repository,
        owner: &str,
    ) -> Result<UploadId, MirrorError> {
        let (namespace, uploads) = (name.namespace(), &self.storage().uploads);
        let Some(limit) = self.quota(namespace) else { return uploads.begin(name, owner).await };
        let _guard = self.reservations.lock_namespace(namespace).await;
        let used = self.usage(namespace).await?.of_storage();
        let names = name.as_str().len() + owner.len();
        let bytes = UPLOAD_RECORD_BYTES.saturating_add(names as u64);
        let asked = StorageUsage { bytes, objects: UPLOAD_OBJECTS };
        self.reservations.make_space(namespace, limit, used, asked).await?;
        uploads.begin(name, owner).await
    }

    /// Opens the quota reservation of an upload; `None` if the namespace has no quota. Unreferenced
    /// pushed blobs and other open uploads count as used.
    pub(crate) async fn reserve_upload(
        &self,
        name: &Repository,
        id: &UploadId,
    ) -> Result<Option<UploadReservation>, MirrorError> {
        let namespace = name.namespace();
        let Some(limit) = self.quota(namespace) else { return Ok(None) };
        // This waits for the current request of the same upload before the namespace is locked, so
        // that other uploads need not wait.
        let received = self.storage().uploads.size(name, id).await?;
        let _guard = self.reservations.lock_namespace(namespace).await;
        let used = self.usage(namespace).await?.of_storage();
        Ok(Some(self.reservations.open((name, id), received, limit, used)))
    }

    /// Turns an upload into a blob. If the quota of the namespace is exceeded, the upload is
    /// removed.
    pub(crate) async fn finish(
        &self,
        name: &Repository,
        id: &UploadId,
        digest: Digest,
    ) -> Result<(), MirrorError> {
        let (namespace, uploads) = (name.namespace(), &self.storage().uploads);
        let Some(limit) = self.quota(namespace) else {
            uploads.finish(name, id, digest).await?;
            self.record_change();
            return Ok(());
        };
        let received = uploads.size(name, id).await?;
        // Under this lock, other requests count the bytes as an upload or as a blob, never as both
        // or neither.
        let _guard = self.reservations.lock_namespace(namespace).await;
        let usage = self.usage(namespace).await?;
        // The blob and its push mark replace the objects of the upload, so the number of objects
        // does not grow.
        let reservation = self.reservations.open((name, id), received, limit, usage.of_storage());
        if !usage.stored.contains_key(&digest)
            && let Err(refused) = reservation.reserve(received).await
        {
            self.reservations.cancel(name, id).await?;
            return Err(refused);
        }
        let made = uploads.finish(name, id, digest).await;
        self.record_change();
        if made.is_err()
            && let Ok(received) = uploads.size(name, id).await
        {
            // The client can retry after a failure of the disk or the object store.
            reservation.complete(received);
        } else {
            self.reservations.forget(name, id);
        }
        made
    }

    /// Makes a stored blob available in a repository if the quota allows it. Returns whether the
    /// blob is stored.
    pub(crate) async fn mount(
        &self,
        name: &Repository,
        digest: Digest,
    ) -> Result<bool, MirrorError> {
        let namespace = name.namespace();
        let mut guard = None;
        if let Some(limit) = self.quota(namespace) {
            let Some(blob) = self.storage().blobs.blob(digest).await? else { return Ok(false) };
            guard = Some(self.reservations.lock_namespace(namespace).await);
            let usage = self.usage(namespace).await?;
            let is_new = !usage.stored.contains_key(&digest);
            let mut asked = StorageUsage::default();
            if is_new {
                asked = asked.plus(StorageUsage::one(blob.size()));
            }
            if !usage.has_push_mark(name, &digest) {
                asked = asked.plus(StorageUsage::one(0));
            }
            if asked != StorageUsage::default() {
                let used = usage.of_storage();
                self.reservations.make_space(namespace, limit, used, asked).await?;
            }
        }
        let mounted = self.storage().blobs.mount(name, digest).await?;
        self.record_change();
        drop(guard);
        Ok(mounted)
    }

    /// Fails if a manifest with its blobs would exceed the quota of its namespace. The caller holds
    /// the returned guard until the manifest is stored; other changes of the namespace wait for it.
    pub(crate) async fn check_manifest_quota(
        &self,
        name: &Repository,
        reference: &Reference,
        manifest: &Manifest,
    ) -> Result<Option<KeyGuard>, MirrorError> {
        let namespace = name.namespace();
        let Some(limit) = self.quota(namespace) else { return Ok(None) };
        if let Some(pull_through) = self.pull_through() {
            pull_through.check_not_mirrored(name)?;
        }
        let guard = self.reservations.lock_namespace(namespace).await;
        let usage = self.usage(namespace).await?;
        let new = self.new_blobs(manifest, &usage.referenced).await?;
        let growth = self.manifest_growth(name, reference, manifest).await;
        let asked = StorageUsage::of_blobs(&new).plus(growth);
        check_quota(namespace, limit, usage.of_references(), asked)?;
        // The blobs lie in the storage already, so only the manifest needs space there.
        self.reservations.make_space(namespace, limit, usage.of_storage(), growth).await?;
        Ok(Some(guard))
    }

    /// Fails if a model that another part of the program stores would exceed the quota of its
    /// namespace. The caller holds the returned guard until the model, or a record of its pull, is
    /// stored.
    pub(crate) async fn check_model_quota(
        &self,
        model: &NewModel,
    ) -> Result<Option<KeyGuard>, MirrorError> {
        let Some(name) = Repository::from_model_name(&model.name) else {
            return self.check_uncounted_name(&model.name).map(|()| None);
        };
        let namespace = name.namespace();
        let Some(limit) = self.quota(namespace) else { return Ok(None) };
        let guard = self.reservations.lock_namespace(namespace).await;
        // The scan may be older than a model that the caller has stored or removed.
        self.record_change();
        let usage = self.usage(namespace).await?;
        let manifests = model.manifests.iter().map(|bytes| StorageUsage::one(*bytes));
        let growth = manifests.fold(StorageUsage::default(), StorageUsage::plus);
        let blobs = model.blobs.iter().copied();
        let new: HashMap<Digest, u64> =
            blobs.filter(|(digest, _)| !usage.stored.contains_key(digest)).collect();
        let asked = StorageUsage::of_blobs(&new).plus(growth);
        self.reservations.make_space(namespace, limit, usage.of_storage(), asked).await?;
        Ok(Some(guard))
    }

    /// Fails for a name that is no repository, and so counts to no quota, if it begins with a
    /// namespace that has a quota: a host without a dot or port looks like one.
    fn check_uncounted_name(&self, name: &ModelName) -> Result<(), MirrorError> {
        let limited = [name.host(), name.namespace()].into_iter().find(|n| self.quota(n).is_some());
        match limited {
            None => Ok(()),
            Some(namespace) => Err(StoreError::NotAdmitted(format!(
                "{name} counts to no quota, but {namespace} has one: use a name without a host, or a host with a dot or a port"
            ))
            .into()),
        }
    }

    /// Returns how much more a namespace may store, and its blobs; `None` if it has no quota.
    pub(crate) async fn free_quota(
        &self,
        namespace: &str,
    ) -> Result<Option<FreeQuota>, MirrorError> {
        let Some(limit) = self.quota(namespace) else { return Ok(None) };
        let usage = self.usage(namespace).await?;
        let used = usage.of_storage();
        let free = StorageUsage {
            bytes: limit.bytes.saturating_sub(used.bytes),
            objects: limit.objects.saturating_sub(used.objects),
        };
        Ok(Some(FreeQuota { namespace: namespace.to_owned(), free, stored: usage.stored }))
    }

    /// Blobs of a manifest that are not among `referenced`. Their stated sizes must be the real
    /// ones, because they are counted.
    async fn new_blobs(
        &self,
        manifest: &Manifest,
        referenced: &HashMap<Digest, u64>,
    ) -> Result<HashMap<Digest, u64>, MirrorError> {
        let new = manifest.blobs.iter().filter(|blob| !referenced.contains_key(&blob.digest));
        let new: HashMap<Digest, u64> = new.map(|blob| (blob.digest, blob.size)).collect();
        for (digest, stated) in &new {
            let actual = self.storage().blobs.blob(*digest).await?.map(|blob| blob.size());
            if let Some(actual) = actual.filter(|actual| actual != stated) {
                let (digest, stated) = (*digest, *stated);
                return Err(ManifestProblem::BlobSize { digest, stated, actual }.into());
            }
        }
        Ok(new)
    }

    /// Largest usage that storing a manifest adds, without its blobs. What the manifest replaces is
    /// not subtracted, because it lies in the storage until the new manifest is written.
    async fn manifest_growth(
        &self,
        name: &Repository,
        reference: &Reference,
        manifest: &Manifest,
    ) -> StorageUsage {
        let present = self.present_manifest(name, reference).await;
        if present.is_some_and(|present| present.digest == manifest.digest) {
            return StorageUsage::default();
        }
        let tag = match reference {
            Reference::Tag(_) => StorageUsage::one(TAG_BYTES),
            Reference::Digest(_) => StorageUsage::default(),
        };
        let text = StorageUsage::one(manifest.bytes.len() as u64);
        let by_digest = Reference::Digest(manifest.digest);
        let is_present = self.present_manifest(name, &by_digest).await.is_some();
        // Each tag of a model has its own copy of the manifest in the store.
        let is_copied = matches!(manifest.kind, ManifestKind::Model | ManifestKind::List);
        if is_present && !is_copied {
            return tag;
        }
        let mut growth = tag.plus(text);
        // The entry as a referrer, and a record for each child.
        let links = u64::from(manifest.subject.is_some()) + manifest.children.len() as u64;
        growth.objects = growth.objects.saturating_add(links);
        if manifest.kind == ManifestKind::List {
            growth = growth.plus(self.list_growth(name, manifest).await).plus(text);
        }
        growth
    }

    /// Returns a manifest of the storage. An unreadable one counts as absent, because the new one
    /// may replace it.
    async fn present_manifest(&self, name: &Repository, of: &Reference) -> Option<Manifest> {
        self.storage().manifests.manifest(name, of).await.unwrap_or(None)
    }

    /// Usage of the children of a list, which the store copies when the list becomes a model.
    async fn list_growth(&self, name: &Repository, list: &Manifest) -> StorageUsage {
        let mut growth = StorageUsage::default();
        for child in &list.children {
            let found = self.present_manifest(name, &Reference::Digest(*child)).await;
            let bytes = found.map_or(0, |found| found.bytes.len() as u64);
            growth = growth.plus(StorageUsage::one(bytes));
        }
        growth
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_is_a_digest() {
        assert_eq!(Digest::of(b"x").to_string().len() as u64, TAG_BYTES);
    }
}
