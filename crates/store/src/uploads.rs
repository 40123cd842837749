//! Records of unfinished uploads to registries, in `puna-tmp/<64 hex>.push`.
//!
//! An upload address may grant access to anyone who knows it, so only the owner may read these
//! files.

use std::fs;
use std::io::Write;
use std::path::PathBuf;

use crate::digest::Digest;
use crate::error::StoreError;
use crate::files::{self, TEMP_DIR, TempFile, read_limited};
use crate::store::Store;
use crate::transfer::BlobLock;

/// Suffix of upload records.
pub(crate) const UPLOAD_SUFFIX: &str = ".push";
/// Largest size of a record in bytes.
const MAX_NOTE_BYTES: u64 = 16 << 10;

/// The record of an upload, with its lock. The record outlives the process.
#[derive(Debug)]
pub struct UploadRecordFile {
    path: PathBuf,
    temp: PathBuf,
    _lock: BlobLock,
}

impl Store {
    /// Locks the record of the upload with this key. `None` if another process holds the lock.
    ///
    /// # Errors
    /// The store cannot be written.
    pub fn upload_record_file(&self, key: &Digest) -> Result<Option<UploadRecordFile>, StoreError> {
        let temp = self.root().join(TEMP_DIR);
        let path = temp.join(format!("{}{UPLOAD_SUFFIX}", key.hex()));
        let lock = self.lock_download(key)?;
        Ok(lock.map(|lock| UploadRecordFile { path, temp, _lock: lock }))
    }
}

impl UploadRecordFile {
    /// The content of the record, if it exists.
    pub fn read(&self) -> Option<Vec<u8>> {
        read_limited(&self.path, MAX_NOTE_BYTES).ok()
    }

    /// Replaces the content atomically.
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

    /// Removes the record.
    ///
    /// # Errors
    /// The file cannot be removed.
    pub fn remove(&self) -> Result<(), StoreError> {
        files::remove(&self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_upload_note_has_one_holder_and_outlives_it() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        let key = Digest::of(b"host, repository, blob");
        let record = store.upload_record_file(&key).unwrap().unwrap();
        assert_eq!(record.read(), None);
        record.write(b"first").unwrap();
        record.write(b"second").unwrap();
        assert!(store.upload_record_file(&key).unwrap().is_none(), "one at a time");
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            assert_eq!(fs::metadata(&record.path).unwrap().permissions().mode() & 0o077, 0);
        }
        drop(record);
        let record = store.upload_record_file(&key).unwrap().unwrap();
        assert_eq!(record.read().unwrap(), b"second");
        record.remove().unwrap();
        assert_eq!(record.read(), None);
        drop(record);
        assert_eq!(fs::read_dir(dir.path().join(TEMP_DIR)).unwrap().count(), 0);
    }
}
