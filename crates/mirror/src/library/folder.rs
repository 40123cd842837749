//! The folder of what a registry keeps beside models.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::SystemTime;

use puna_store::{Digest, Store, StoreError, lock_file, write_atomic};

use super::inventory::RefusalLog;
use crate::error::MirrorError;
use crate::lock::lock;
use crate::manifest::MAX_MANIFEST;
use crate::name::Repository;

/// Its name within the store.
const FOLDER: &str = "puna-registry";

/// The folder and the store that it is in.
#[derive(Clone)]
pub(crate) struct Folder {
    pub(crate) store: Arc<Store>,
    root: PathBuf,
    pub(super) refusals: Arc<RefusalLog>,
    changes: Arc<Mutex<()>>,
    /// Whether the disk of a path has room for a trash.
    pub(super) has_room: fn(&Path) -> bool,
}

/// The right to change manifests, as long as it is held.
pub(crate) struct Changes<'a> {
    _everywhere: File,
    /// Not every file system has locks; and threads of one process need not wait for the system.
    _here: MutexGuard<'a, ()>,
}

impl Folder {
    pub(crate) fn new(store: Arc<Store>) -> Self {
        let (refusals, changes) = (Arc::default(), Arc::default());
        Self {
            root: store.root().join(FOLDER),
            store,
            refusals,
            changes,
            has_room: super::trash::has_room,
        }
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// Where removed blobs and manifests stay for a day.
    pub(super) fn trash(&self) -> PathBuf {
        self.root.join("trash")
    }

    /// Whether there is such a folder.
    pub(crate) fn is_there(&self) -> bool {
        self.root.is_dir()
    }

    /// Held while manifests and the blobs that they need are looked at together, which other processes do, too. Whoever has it may
    /// take the store's lock, and nobody the other way round.
    pub(crate) fn changes(&self) -> Result<Changes<'_>, MirrorError> {
        let here = lock(&self.changes);
        Ok(Changes { _everywhere: lock_file(&self.root.join("lock"))?, _here: here })
    }

    pub(crate) fn uploads(&self) -> PathBuf {
        self.root.join("uploads")
    }

    pub(crate) fn blobs(&self) -> PathBuf {
        self.root.join("blobs")
    }

    /// Where damaged blobs are put.
    pub(crate) fn damaged(&self) -> PathBuf {
        self.root.join("damaged")
    }

    /// Where a blob is, if it is there.
    pub(crate) fn places(&self, digest: &Digest) -> [PathBuf; 2] {
        [self.store.blob_path(digest), self.blob(digest)]
    }

    /// Who has brought which blobs: a file each, as long as they may wait for a manifest.
    pub(crate) fn brought(&self) -> PathBuf {
        self.root.join("brought")
    }

    /// Where a pushed blob is or would be.
    pub(crate) fn blob(&self, digest: &Digest) -> PathBuf {
        self.blobs().join(digest.file_name())
    }

    /// What those who serve the folder know of when things came and were pulled.
    pub(crate) fn history(&self) -> PathBuf {
        self.root.join("history")
    }

    /// How large blobs of upstreams are, as manifests say that were handed out: a folder a repository.
    pub(crate) fn sizes(&self) -> PathBuf {
        self.root.join("sizes")
    }

    pub(crate) fn repositories(&self) -> PathBuf {
        self.root.join("repositories")
    }

    pub(crate) fn repository(&self, name: &Repository) -> PathBuf {
        self.repositories().join(name.folder())
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

    /// Where it is noted which lists have a manifest as their child.
    pub(crate) fn lists(&self, name: &Repository, child: &Digest) -> PathBuf {
        self.repository(name).join("lists").join(child.hex())
    }

    /// Writes a small file, the old one or the new at any moment.
    pub(crate) fn write(&self, path: &Path, bytes: &[u8]) -> Result<(), MirrorError> {
        Ok(write_atomic(self.store.root(), path, bytes)?)
    }
}

/// The content of a small file; `None` if it is not there.
pub(crate) fn read(path: &Path) -> Result<Option<Vec<u8>>, MirrorError> {
    let read = || {
        let mut bytes = Vec::new();
        File::open(path)?.take(MAX_MANIFEST as u64 + 1).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    absent(read(), "read", path)
}

/// The names in a folder; none where there is no folder.
pub(crate) fn names(dir: &Path) -> Result<Vec<String>, MirrorError> {
    let entries = absent(fs::read_dir(dir), "read the folder", dir)?;
    let name = |entry: io::Result<fs::DirEntry>| entry.ok()?.file_name().into_string().ok();
    Ok(entries.into_iter().flatten().filter_map(name).collect())
}

/// When a file was written; `None` where there is none, or the system does not say.
pub(crate) fn written(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).and_then(|meta| meta.modified()).ok()
}

/// Removes a file. Says whether there was one.
pub(crate) fn remove(path: &Path) -> Result<bool, MirrorError> {
    Ok(absent(fs::remove_file(path), "remove", path)?.is_some())
}

/// `None` for what is not there.
pub(crate) fn absent<T>(
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

/// A failure of the system.
pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> MirrorError {
    move |e| StoreError::io(action, path, &e).into()
}
