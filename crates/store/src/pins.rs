//! Pinned blobs: blobs that garbage collection must keep while a process creates a model from them.
//! Other processes see unfinished work by lock files.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use crate::digest::Digest;
use crate::files::{TempFile, WORK_SUFFIX, create_dir_all, is_locked, open_lock_file};

/// Pinned blobs and running work of a store. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Pins {
    /// Folder of the lock files.
    dir: Arc<Path>,
    state: Arc<Mutex<PinState>>,
}

/// Blobs that this process must not remove.
#[derive(Default)]
pub(crate) struct PinState {
    /// Blobs that this process has stored or reused for models without a manifest yet.
    pinned: HashSet<Digest>,
    /// Blobs to unpin when no work is running. Other running work may have pinned them too.
    to_unpin: Vec<Digest>,
    running: usize,
    /// Lock files of the running work in this process.
    lock_paths: HashSet<PathBuf>,
}

/// Marks work on a model. Pins stay while any work is running. A locked file shows other processes
/// the work, and its modification time when the work began.
pub struct WorkGuard {
    pins: Pins,
    lock: Option<WorkLock>,
}

/// Lock file of running work.
struct WorkLock {
    path: PathBuf,
    file: File,
}

impl WorkLock {
    /// Creates and locks a file in the folder of lock files.
    fn new(dir: &Path) -> io::Result<Self> {
        create_dir_all(dir)?;
        let path = dir.join(TempFile::new_name() + WORK_SUFFIX);
        // The name is new, and other users cannot open the file: the lock is free.
        let lock = Self { file: open_lock_file(&path)?, path };
        lock.file.lock()?;
        // Uses this machine's clock, like the times of used blobs.
        lock.file.set_modified(SystemTime::now())?;
        Ok(lock)
    }
}

impl Drop for WorkLock {
    fn drop(&mut self) {
        // If the process is killed instead, the file stays without a lock.
        let _ = fs::remove_file(&self.path);
    }
}

impl Drop for WorkGuard {
    fn drop(&mut self) {
        let mut pins = self.pins.lock();
        pins.running -= 1;
        self.lock.iter().for_each(|lock| _ = pins.lock_paths.remove(&lock.path));
        if pins.running == 0 {
            for digest in std::mem::take(&mut pins.to_unpin) {
                pins.pinned.remove(&digest);
            }
        }
    }
}

impl PinState {
    /// Whether this process has pinned a blob.
    pub(crate) fn contains(&self, digest: &Digest) -> bool {
        self.pinned.contains(digest)
    }
}

impl Pins {
    /// Creates the pins of a store with lock files in `dir`.
    pub(crate) fn new(dir: PathBuf) -> Self {
        Self { dir: dir.into(), state: Arc::default() }
    }

    /// Locks the pins. A panic cannot leave them inconsistent between two statements, so poisoning
    /// is ignored.
    pub(crate) fn lock(&self) -> MutexGuard<'_, PinState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins work on a model.
    pub(crate) fn begin_work(&self) -> WorkGuard {
        // Where the lock file cannot be written, no process can remove blobs either.
        let lock = WorkLock::new(&self.dir).ok();
        let mut pins = self.lock();
        pins.running += 1;
        pins.lock_paths.extend(lock.iter().map(|lock| lock.path.clone()));
        drop(pins);
        WorkGuard { pins: self.clone(), lock }
    }

    /// Age of the oldest running work of all processes; `None` if none is running.
    pub(crate) fn oldest_work_age(&self) -> Option<Duration> {
        let own = (self.lock().running > 0).then_some(Duration::ZERO);
        self.oldest_work_age_except(&HashSet::new()).or(own)
    }

    /// Like [`Pins::oldest_work_age`] without this process, whose pinned blobs are known.
    pub(crate) fn oldest_other_work_age(&self) -> Option<Duration> {
        let own = self.lock().lock_paths.clone();
        self.oldest_work_age_except(&own)
    }

    fn oldest_work_age_except(&self, own: &HashSet<PathBuf>) -> Option<Duration> {
        let age = |entry: io::Result<fs::DirEntry>| {
            let entry =
                entry.ok().filter(|e| e.file_name().to_string_lossy().ends_with(WORK_SUFFIX))?;
            let path = Some(entry.path()).filter(|path| !own.contains(path))?;
            let begun = entry.metadata().and_then(|meta| meta.modified()).ok()?;
            is_locked(&path).then(|| begun.elapsed().unwrap_or_default())
        };
        fs::read_dir(&self.dir).into_iter().flatten().filter_map(age).max()
    }

    /// Keeps this process from removing a blob until a manifest with it is written.
    pub(crate) fn pin(&self, digest: &Digest) {
        let mut pins = self.lock();
        pins.pinned.insert(*digest);
        pins.to_unpin.retain(|released| released != digest);
    }

    /// Whether running work may have pinned a blob. A blob that was uploaded and never used in a
    /// model stays pinned until the process ends.
    pub(crate) fn is_pinned_by_work(&self, digest: &Digest) -> bool {
        let pins = self.lock();
        pins.running > 0 && pins.contains(digest)
    }

    /// Unpins blobs.
    pub(crate) fn unpin(&self, digests: impl IntoIterator<Item = Digest>) {
        let mut pins = self.lock();
        for digest in digests {
            match pins.running {
                0 => _ = pins.pinned.remove(&digest),
                _ => pins.to_unpin.push(digest),
            }
        }
    }
}
