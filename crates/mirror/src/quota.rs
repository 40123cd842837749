//! What namespaces may have.

use crate::error::MirrorError;

/// How many bytes namespaces may have, each for itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quota {
    /// Which: `name`, `name*`, or `*`.
    pub namespaces: String,
    /// Bytes of the blobs that its manifests need.
    pub bytes: u64,
}

/// Refuses more bytes than there is room for.
pub(crate) fn fits(namespace: &str, quota: u64, used: u64, asked: u64) -> Result<(), MirrorError> {
    match used.saturating_add(asked) <= quota {
        true => Ok(()),
        false => Err(MirrorError::Quota { namespace: namespace.to_owned(), quota, used, asked }),
    }
}
