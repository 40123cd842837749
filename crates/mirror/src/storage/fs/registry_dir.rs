//! The registry directory: everything of a registry that is no model of the store.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::SystemTime;

use puna_store::{Digest, Store, StoreError, lock_file, write_atomic};

use crate::error::MirrorError;
use crate::locks::lock;
use crate::storage::collection_rules::GcRefusalLog;
use crate::types::manifest::MAX_MANIFEST_BYTES;
use crate::types::repository::Repository;

/// Name of the directory within the store.
const REGISTRY_DIR_NAME: &str = "puna-registry";

/// The registry directory and its store.
#[derive(Clone)]
pub(crate) struct RegistryDir {
    pub(crate) store: Arc<Store>,
    root: PathBuf,
    pub(crate) refusal_log: Arc<GcRefusalLog>,
    lock_writes: Arc<Mutex<()>>,
    /// Whether the disk of a path has space for a trash.
    pub(crate) has_room: fn(&Path) -> bool,
}

/// Right to change manifests while it is held.
pub(crate) struct WriteLock<'a> {
    _everywhere: File,
    /// Excludes threads of this process: some file systems have no locks, and waiting for a mutex
    /// is cheaper.
    _here: MutexGuard<'a, ()>,
}

impl RegistryDir {
    pub(crate) fn new(store: Arc<Store>) -> Self {
        let (refusal_log, lock_writes) = (Arc::default(), Arc::default());
        Self {
            root: store.root().join(REGISTRY_DIR_NAME),
            store,
            refusal_log,
            lock_writes,
            has_room: super::trash::has_room,
        }
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Directory of removed blobs and manifests.
    pub(crate) fn trash(&self) -> PathBuf {
        self.root.join("trash")
    }

    /// Whether the directory exists.
    pub(crate) fn exists(&self) -> bool {
        self.root.is_dir()
    }

    /// Takes the lock for changing manifests and the blobs they reference, against other threads
    /// and processes. The lock of the store may be taken while it is held, never the other way
    /// round.
    pub(crate) fn lock_writes(&self) -> Result<WriteLock<'_>, MirrorError> {
        let here = lock(&self.lock_writes);
        Ok(WriteLock { _everywhere: lock_file(&self.root.join("lock"))?, _here: here })
    }

    pub(crate) fn uploads(&self) -> PathBuf {
        self.root.join("uploads")
    }

    pub(crate) fn blobs(&self) -> PathBuf {
        self.root.join("blobs")
    }

    /// Directory of damaged blobs.
    pub(crate) fn damaged(&self) -> PathBuf {
        self.root.join("damaged")
    }

    /// Paths where a blob may be: in the store and in the registry directory.
    pub(crate) fn blob_paths(&self, digest: &Digest) -> [PathBuf; 2] {
        [self.store.blob_path(digest), self.blob(digest)]
    }

    /// Directory of push marks: empty files that record which blobs were pushed to which
    /// repository.
    pub(crate) fn pushed_marks(&self) -> PathBuf {
        self.root.join("brought")
    }

    /// Path of a pushed blob.
    pub(crate) fn blob(&self, digest: &Digest) -> PathBuf {
        self.blobs().join(digest.file_name())
    }

    /// Directory of the usage logs of mirrors.
    pub(crate) fn usage_log(&self) -> PathBuf {
        self.root.join("history")
    }

    /// Directory of size notes, with one directory for each repository.
    pub(crate) fn sizes(&self) -> PathBuf {
        self.root.join("sizes")
    }

    pub(crate) fn repositories(&self) -> PathBuf {
        self.root.join("repositories")
    }

    pub(crate) fn repository(&self, name: &Repository) -> PathBuf {
        self.repositories().join(name.dir_name())
    }

    pub(crate) fn manifests(&self, name: &Repository) -> PathBuf {
        self.repository(name).join("manifests")
    }

    pub(crate) fn tags(&self, name: &Repository) -> PathBuf {
        self.repository(name).join("tags")
    }

    pub(crate) fn referrers(&self, name: &Repository, subject: &Digest) -> PathBuf {
        self.repository(name).join("referrers").join(subject.hex())
    }

    /// Directory that records which lists have a manifest as their child.
    pub(crate) fn lists(&self, name: &Repository, child: &Digest) -> PathBuf {
        self.repository(name).join("lists").join(child.hex())
    }

    /// Writes a small file atomically.
    pub(crate) fn write(&self, path: &Path, bytes: &[u8]) -> Result<(), MirrorError> {
        Ok(write_atomic(self.store.root(), path, bytes)?)
    }
}

/// Reads a small file; `None` if it does not exist.
pub(crate) fn read_small_file(path: &Path) -> Result<Option<Vec<u8>>, MirrorError> {
    let read_small_file = || {
        let mut bytes = Vec::new();
        File::open(path)?.take(MAX_MANIFEST_BYTES as u64 + 1).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    none_if_absent(read_small_file(), "read", path)
}

/// Returns the names in a directory; none if it does not exist.
pub(crate) fn file_names(dir: &Path) -> Result<Vec<String>, MirrorError> {
    let entries = none_if_absent(fs::read_dir(dir), "read the folder", dir)?;
    let name = |entry: io::Result<fs::DirEntry>| entry.ok()?.file_name().into_string().ok();
    Ok(entries.into_iter().flatten().filter_map(name).collect())
}

/// Modification time of a file; `None` if it does not exist or the system provides none.
pub(crate) fn modified_time(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).and_then(|meta| meta.modified()).ok()
}

/// Removes a file. Returns whether it existed.
pub(crate) fn remove_file(path: &Path) -> Result<bool, MirrorError> {
    Ok(none_if_absent(fs::remove_file(path), "remove", path)?.is_some())
}

/// Maps "not found" to `None`.
pub(crate) fn none_if_absent<T>(
    result: io::Result<T>,
    action: &'static str,
    path: &Path,
) -> Result<Option<T>, MirrorError> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            Ok(None)
        }
        Err(e) => Err(StoreError::io(action, path, &e).into()),
    }
}

/// Converts a file system error.
pub(crate) fn io_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> MirrorError {
    move |e| StoreError::io(action, path, &e).into()
}
