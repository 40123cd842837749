//! Uploads to registries that are not finished: where each goes on, in `puna-tmp/<64 hex>.push`.
//!
//! The address of an upload may open it to whoever knows it: what is noted is for the owner's eyes only.

use std::fs;
use std::io::Write;
use std::path::PathBuf;

use crate::digest::Digest;
use crate::error::StoreError;
use crate::files::{self, TEMP_DIR, TempFile, read_limited};
use crate::store::Store;
use crate::transfer::BlobLock;

/// What files are called that say where an upload goes on.
pub(crate) const UPLOAD_SUFFIX: &str = ".push";
/// Bytes of such a file at most.
const UPLOAD_LIMIT: u64 = 16 << 10;

/// An upload that nobody else of this store goes on with as long as this is held. What is noted of it outlives the process.
#[derive(Debug)]
pub struct UploadNote {
    path: PathBuf,
    temp: PathBuf,
    _lock: BlobLock,
}

impl Store {
    /// The note about an upload that `key` stands for; `None`: another process is at it.
    ///
    /// # Errors
    /// The store cannot be written.
    pub fn upload_note(&self, key: &Digest) -> Result<Option<UploadNote>, StoreError> {
        let temp = self.root().join(TEMP_DIR);
        let path = temp.join(format!("{}{UPLOAD_SUFFIX}", key.hex()));
        let lock = self.lock_download(key)?;
        Ok(lock.map(|lock| UploadNote { path, temp, _lock: lock }))
    }
}

impl UploadNote {
    /// What was written down, if anything was.
    pub fn read(&self) -> Option<Vec<u8>> {
        read_limited(&self.path, UPLOAD_LIMIT).ok()
    }

    /// Writes down something else: the old text or the new one is there at any moment.
    ///
    /// # Errors
    /// The store cannot be written.
    pub fn write(&self, text: &[u8]) -> Result<(), StoreError> {
        let temp = self.temp.join(TempFile::new_name());
        let write = || {
            let mut options = fs::File::options();
            options.write(true).create_new(true);
            #[cfg(unix)]
            std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
            options.open(&temp)?.write_all(text)?;
            fs::rename(&temp, &self.path)
        };
        write().map_err(|e| {
            let _ = fs::remove_file(&temp);
            StoreError::io("write", &self.path, &e)
        })
    }

    /// Forgets it.
    ///
    /// # Errors
    /// It cannot be removed.
    pub fn forget(&self) -> Result<(), StoreError> {
        files::remove(&self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_upload_is_one_holders_and_what_is_noted_outlives_him() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        let key = Digest::of(b"host, repository, blob");
        let note = store.upload_note(&key).unwrap().unwrap();
        assert_eq!(note.read(), None);
        note.write(b"first").unwrap();
        note.write(b"second").unwrap();
        assert!(store.upload_note(&key).unwrap().is_none(), "one at a time");
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            assert_eq!(fs::metadata(&note.path).unwrap().permissions().mode() & 0o077, 0);
        }
        drop(note);
        let note = store.upload_note(&key).unwrap().unwrap();
        assert_eq!(note.read().unwrap(), b"second");
        note.forget().unwrap();
        assert_eq!(note.read(), None);
        drop(note);
        assert_eq!(fs::read_dir(dir.path().join(TEMP_DIR)).unwrap().count(), 0);
    }
}
