//! Usage of one namespace: its blobs, and all other objects.

use std::collections::HashMap;
use std::sync::Arc;

use puna_store::Digest;

use crate::types::repository::Repository;
use crate::types::storage_usage::{NamespaceUsages, StorageUsage, StoredUpload};
use crate::types::stored_object::StoredObject;

/// Result of a scan of a namespace.
pub(crate) struct NamespaceContent {
    objects: Vec<StoredObject>,
    metadata: StorageUsage,
    /// Blobs of unfinished pulls, with their sizes.
    pulled: Vec<(Digest, u64)>,
}

impl NamespaceContent {
    pub(crate) fn new(
        objects: Vec<StoredObject>,
        metadata: &NamespaceUsages,
        pulled: Vec<(Digest, u64)>,
    ) -> Self {
        let metadata = metadata.values().fold(StorageUsage::default(), |sum, of| sum.plus(*of));
        Self { objects, metadata, pulled }
    }

    /// Sizes of the blobs of objects that are counted.
    fn blobs(&self, is_counted: impl Fn(&StoredObject) -> bool) -> HashMap<Digest, u64> {
        let objects = self.objects.iter().filter(|object| is_counted(object));
        objects.flat_map(|object| object.blobs.iter().copied()).collect()
    }
}

/// Usage of a namespace, without the bytes of its open uploads.
pub(crate) struct NamespaceUsage {
    content: Arc<NamespaceContent>,
    /// Blobs of manifests, with their sizes.
    pub(crate) referenced: HashMap<Digest, u64>,
    /// Blobs of manifests, recently pushed ones, and blobs of unfinished pulls.
    pub(crate) stored: HashMap<Digest, u64>,
    /// Everything else, with the records of open uploads.
    metadata: StorageUsage,
}

impl NamespaceUsage {
    pub(crate) fn new(content: Arc<NamespaceContent>, uploads: &[StoredUpload]) -> Self {
        let records = uploads.iter().map(StoredUpload::overhead);
        let mut stored = content.blobs(|_| true);
        content.pulled.iter().for_each(|(digest, size)| _ = stored.entry(*digest).or_insert(*size));
        Self {
            referenced: content.blobs(|object| object.manifest.is_some()),
            stored,
            metadata: records.fold(content.metadata, StorageUsage::plus),
            content,
        }
    }

    /// Usage of everything that lies in the storage.
    pub(crate) fn of_storage(&self) -> StorageUsage {
        StorageUsage::of_blobs(&self.stored).plus(self.metadata)
    }

    /// Space of everything but pushed blobs that no manifest references, and unfinished pulls.
    pub(crate) fn of_references(&self) -> StorageUsage {
        StorageUsage::of_blobs(&self.referenced).plus(self.metadata)
    }

    /// Whether a blob was recently pushed to a repository or mounted there.
    pub(crate) fn has_push_mark(&self, name: &Repository, digest: &Digest) -> bool {
        let mut marks = self.content.objects.iter().filter(|object| object.manifest.is_none());
        marks.any(|mark| mark.name == *name && mark.has_blob(digest))
    }
}
