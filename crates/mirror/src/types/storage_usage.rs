//! Bytes and objects that a namespace uses in the storage.

use std::collections::HashMap;

use crate::types::repository::Repository;
use crate::types::upload_id::UploadId;

/// Bytes and number of objects. An object is a file, or an object of a bucket. A blob counts as one
/// object.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct StorageUsage {
    /// Number of bytes.
    pub bytes: u64,
    /// Number of objects.
    pub objects: u64,
}

impl StorageUsage {
    /// One object of `bytes` bytes.
    pub(crate) fn one(bytes: u64) -> Self {
        Self { bytes, objects: 1 }
    }

    /// Sum of both.
    #[must_use]
    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_add(other.bytes),
            objects: self.objects.saturating_add(other.objects),
        }
    }

    /// Usage of blobs.
    pub(crate) fn of_blobs<K>(blobs: &HashMap<K, u64>) -> Self {
        blobs.values().fold(Self::default(), |sum, size| sum.plus(Self::one(*size)))
    }
}

/// Usage by namespace in lower case.
pub type NamespaceUsages = HashMap<String, StorageUsage>;

/// Adds to the usage of a repository's namespace.
pub(crate) fn add_usage(usages: &mut NamespaceUsages, name: &Repository, usage: StorageUsage) {
    let of = usages.entry(name.namespace().to_ascii_lowercase()).or_default();
    *of = of.plus(usage);
}

/// An open upload as it lies in the storage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredUpload {
    /// Repository of the upload.
    pub name: Repository,
    /// Id of the upload.
    pub id: UploadId,
    /// Received bytes that the storage has.
    pub bytes: u64,
    /// Size of the upload's record in bytes.
    pub record_bytes: u64,
    /// Time since the last activity.
    pub idle: std::time::Duration,
}

impl StoredUpload {
    /// Usage of the record, and of the object with the received bytes without these bytes.
    pub(crate) fn overhead(&self) -> StorageUsage {
        StorageUsage { bytes: self.record_bytes, objects: UPLOAD_OBJECTS }
    }
}

/// Objects of an open upload: its record and its bytes.
pub(crate) const UPLOAD_OBJECTS: u64 = 2;
