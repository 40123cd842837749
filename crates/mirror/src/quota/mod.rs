//! Storage quotas of namespaces: largest number of bytes and of objects.
//!
//! A quota counts everything that a namespace has in the storage: blobs, manifests, tags,
//! referrers, records of manifest lists, push marks, size notes, and open uploads with their
//! records.

pub(crate) mod enforcement;
pub(crate) mod namespace_index;
pub(crate) mod namespace_usage;
pub(crate) mod reservation;

use crate::error::MirrorError;
use crate::types::quota_unit::QuotaUnit;
use crate::types::storage_usage::StorageUsage;

/// Largest number of objects of a namespace with a quota that states none.
pub const DEFAULT_QUOTA_OBJECTS: u64 = 100_000;

/// Largest number of bytes and objects of a namespace. A pattern applies to each matching namespace
/// separately.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quota {
    /// Pattern of namespaces: `name`, `name*`, or `*`.
    pub namespaces: String,
    /// Largest number of bytes of everything that a namespace has in the storage.
    pub bytes: u64,
    /// Largest number of objects: blobs, manifests, tags and other files.
    pub objects: u64,
}

impl Quota {
    /// The limits without the namespaces.
    pub(crate) fn limit(&self) -> StorageUsage {
        StorageUsage { bytes: self.bytes, objects: self.objects }
    }
}

/// Fails if `asked` more bytes or objects would exceed the quota.
pub(crate) fn check_quota(
    namespace: &str,
    limit: StorageUsage,
    used: StorageUsage,
    asked: StorageUsage,
) -> Result<(), MirrorError> {
    for (unit, quota, used, asked) in [
        (QuotaUnit::Bytes, limit.bytes, used.bytes, asked.bytes),
        (QuotaUnit::Objects, limit.objects, used.objects, asked.objects),
    ] {
        if used.saturating_add(asked) > quota {
            let namespace = namespace.to_owned();
            return Err(MirrorError::Quota { namespace, unit, quota, used, asked });
        }
    }
    Ok(())
}
