//! Whether there is room on the disk, and bytes that are stored as long as there is.

use std::io::{self, Read};
use std::path::Path;

use puna_store::{BlobWriter, Store};

use crate::error::RegistryError;

/// Bytes that are stored at once.
const PIECE: u64 = 1 << 20;
/// Bytes after which it is looked whether there is room for more.
const LOOK: u64 = 64 << 20;

/// Whether a store has room for bytes.
///
/// # Errors
/// It has not; `what` they are for.
pub(crate) fn room(store: &Store, what: &str, needed: u64) -> Result<(), RegistryError> {
    store.make_room(needed);
    match store.free_bytes() {
        Some(free) if free < needed => {
            Err(RegistryError::Space { what: what.to_owned(), needed, free })
        }
        _ => Ok(()),
    }
}

/// Begins a blob with the next bytes of an input, which need not have as many as it says: that is known when they are there. `progress`
/// gets what each piece brings.
///
/// # Errors
/// There is no room for them, `what` they are for; the store cannot be written; or, as `unread` says it, they cannot be read.
pub(crate) fn store_bytes<'a>(
    store: &'a Store,
    input: &mut impl Read,
    size: u64,
    what: &str,
    unread: fn(io::Error) -> RegistryError,
    progress: &mut dyn FnMut(u64),
) -> Result<BlobWriter<'a>, RegistryError> {
    let mut blob = store.blob_writer()?;
    let mut buffer = vec![0; size.min(PIECE) as usize];
    let (mut left, mut looked) = (size, LOOK);
    while left > 0 {
        if looked >= LOOK {
            looked = 0;
            room(store, what, left.min(LOOK))?;
        }
        let n = match input.read(&mut buffer[..left.min(PIECE) as usize]) {
            Ok(0) => {
                return Err(unread(io::Error::new(io::ErrorKind::UnexpectedEof, "it is cut off")));
            }
            Ok(n) => n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(unread(error)),
        };
        blob.write(&buffer[..n])?;
        left -= n as u64;
        looked += n as u64;
        progress(n as u64);
    }
    Ok(blob)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_input_that_ends_early_is_cut_off() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        let begin = |mut input: &[u8], size: u64| {
            let mut came = 0;
            let unread = |error: io::Error| RegistryError::Bundle(error.to_string());
            let blob =
                store_bytes(&store, &mut input, size, "it", unread, &mut |bytes| came += bytes);
            blob.map(|blob| (blob.finish(None).unwrap().size, came, input.len()))
        };
        assert_eq!(begin(b"bytes and more", 5).unwrap(), (5, 5, 9));
        assert_eq!(begin(b"", 0).unwrap(), (0, 0, 0));
        let error = begin(b"bytes", 6).unwrap_err();
        assert_eq!(error, RegistryError::Bundle("it is cut off".into()));
        assert!(matches!(begin(b"", u64::MAX).unwrap_err(), RegistryError::Bundle(_)));
    }
}
