//! Whether there is room on the disk.

use std::path::Path;

use puna_store::Store;

use crate::error::RegistryError;

/// Whether a store has room for bytes.
///
/// # Errors
/// It has not; `what` they are for.
pub(crate) fn room(store: &Store, what: &str, needed: u64) -> Result<(), RegistryError> {
    match store.free_bytes() {
        Some(free) if free < needed => Err(RegistryError::Space { what: what.to_owned(), needed, free }),
        _ => Ok(()),
    }
}

/// Bytes of the disk that a file with holes takes up.
pub(crate) fn on_disk(path: &Path) -> u64 {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        std::fs::metadata(path).map_or(0, |meta| meta.blocks().saturating_mul(512))
    }
    #[cfg(not(unix))]
    {
        let _ = path;
        0
    }
}
