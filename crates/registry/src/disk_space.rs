//! Checks for free disk space, and stores input with these checks.

use std::io::{self, Read};
use std::path::Path;

use puna_store::{BlobWriter, Store};

use crate::error::RegistryError;

/// Bytes that are copied at once.
const CHUNK_BYTES: u64 = 1 << 20;
/// Bytes between two checks for free space.
const CHECK_INTERVAL_BYTES: u64 = 64 << 20;

/// Checks that the store has space for `needed` bytes.
///
/// # Errors
/// It has not. The message names `what` needs the space.
pub(crate) fn check_free_space(
    store: &Store,
    what: &str,
    needed: u64,
) -> Result<(), RegistryError> {
    store.empty_trash_until_free(needed);
    match store.free_bytes() {
        Some(free) if free < needed => {
            Err(RegistryError::NoSpace { what: what.to_owned(), needed, free })
        }
        _ => Ok(()),
    }
}

/// Starts a blob with the next `size` bytes of an input. The stated size may be wrong, so the space
/// is checked step by step. `progress` gets the bytes of each step.
///
/// # Errors
/// There is no space for `what`, the store cannot be written, or the input fails or ends early
/// (mapped by `read_error`).
pub(crate) fn store_bytes<'a>(
    store: &'a Store,
    input: &mut impl Read,
    size: u64,
    what: &str,
    read_error: fn(io::Error) -> RegistryError,
    progress: &mut dyn FnMut(u64),
) -> Result<BlobWriter<'a>, RegistryError> {
    let mut blob = store.blob_writer()?;
    let mut buffer = vec![0; size.min(CHUNK_BYTES) as usize];
    let (mut left, mut since_check) = (size, CHECK_INTERVAL_BYTES);
    while left > 0 {
        if since_check >= CHECK_INTERVAL_BYTES {
            since_check = 0;
            check_free_space(store, what, left.min(CHECK_INTERVAL_BYTES))?;
        }
        let n = match input.read(&mut buffer[..left.min(CHUNK_BYTES) as usize]) {
            Ok(0) => {
                return Err(read_error(io::Error::new(
                    io::ErrorKind::UnexpectedEof,
                    "it is truncated",
                )));
            }
            Ok(n) => n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(read_error(error)),
        };
        blob.write(&buffer[..n])?;
        left -= n as u64;
        since_check += n as u64;
        progress(n as u64);
    }
    Ok(blob)
}

/// Disk space that a sparse file uses, in bytes.
pub(crate) fn allocated_bytes(path: &Path) -> u64 {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::BundleProblem;

    #[test]
    fn an_input_that_ends_early_is_reported_as_cut_off() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        let store_input = |mut input: &[u8], size: u64| {
            let mut progress_bytes = 0;
            let read_error = |error: io::Error| {
                RegistryError::from(BundleProblem::Input { reason: error.to_string() })
            };
            let blob = store_bytes(&store, &mut input, size, "it", read_error, &mut |bytes| {
                progress_bytes += bytes
            });
            blob.map(|blob| (blob.finish(None).unwrap().size, progress_bytes, input.len()))
        };
        assert_eq!(store_input(b"bytes and more", 5).unwrap(), (5, 5, 9));
        assert_eq!(store_input(b"", 0).unwrap(), (0, 0, 0));
        let error = store_input(b"bytes", 6).unwrap_err();
        assert_eq!(error, BundleProblem::Input { reason: "it is truncated".into() }.into());
        assert!(matches!(store_input(b"", u64::MAX).unwrap_err(), RegistryError::Bundle(_)));
    }
}
