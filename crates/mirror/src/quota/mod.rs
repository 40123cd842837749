//! Storage quotas of namespaces.

pub(crate) mod namespace_index;
pub(crate) mod reservation;

use crate::error::MirrorError;

/// Largest number of bytes of a namespace. A pattern applies to each matching namespace separately.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quota {
    /// Pattern of namespaces: `name`, `name*`, or `*`.
    pub namespaces: String,
    /// Largest sum of the sizes of all blobs that the manifests of a namespace reference.
    pub bytes: u64,
}

/// Fails if `asked` more bytes would exceed the quota.
pub(crate) fn check_quota(
    namespace: &str,
    quota: u64,
    used: u64,
    asked: u64,
) -> Result<(), MirrorError> {
    match used.saturating_add(asked) <= quota {
        true => Ok(()),
        false => Err(MirrorError::Quota { namespace: namespace.to_owned(), quota, used, asked }),
    }
}
