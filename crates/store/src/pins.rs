//! Pinned blobs: blobs that garbage collection must keep while a process creates a model from them.
//! Other processes see unfinished work by lock files.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use crate::digest::Digest;
use crate::files;
use crate::store::Store;
use crate::transfer::is_locked;

/// Blobs that this process must not remove.
#[derive(Default)]
pub(crate) struct Pins {
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
    pins: Arc<Mutex<Pins>>,
    lock: Option<WorkLock>,
}

/// Lock file of running work.
struct WorkLock {
    path: PathBuf,
    file: File,
}

impl Drop for WorkLock {
    fn drop(&mut self) {
        // If the process is killed instead, the file stays without a lock.
        let _ = fs::remove_file(&self.path);
    }
}

impl Drop for WorkGuard {
    fn drop(&mut self) {
        let mut pins = lock_pins(&self.pins);
        pins.running -= 1;
        self.lock.iter().for_each(|lock| _ = pins.lock_paths.remove(&lock.path));
        if pins.running == 0 {
            for digest in std::mem::take(&mut pins.to_unpin) {
                pins.pinned.remove(&digest);
            }
        }
    }
}

/// Locks the pins. A panic cannot leave them inconsistent between two statements, so poisoning is
/// ignored.
fn lock_pins(pins: &Mutex<Pins>) -> MutexGuard<'_, Pins> {
    pins.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pins {
    /// Whether this process has pinned a blob.
    pub(crate) fn contains(&self, digest: &Digest) -> bool {
        self.pinned.contains(digest)
    }
}

impl Store {
    pub(crate) fn pins(&self) -> MutexGuard<'_, Pins> {
        lock_pins(&self.pins)
    }

    /// Begins work on a model. Several works may pin the same blob: blobs that one of them unpins
    /// stay until all have ended.
    pub fn begin_work(&self) -> WorkGuard {
        // Where the lock file cannot be written, no process can remove blobs either.
        let lock = self.lock_work().ok();
        let mut pins = self.pins();
        pins.running += 1;
        pins.lock_paths.extend(lock.iter().map(|lock| lock.path.clone()));
        drop(pins);
        WorkGuard { pins: self.pins.clone(), lock }
    }

    fn lock_work(&self) -> io::Result<WorkLock> {
        let dir = self.root().join(files::TEMP_DIR);
        fs::create_dir_all(&dir)?;
        let path = dir.join(files::TempFile::new_name() + files::WORK_SUFFIX);
        let lock =
            WorkLock { file: File::options().write(true).create_new(true).open(&path)?, path };
        lock.file.lock()?;
        // Uses this machine's clock, like the times of used blobs.
        lock.file.set_modified(SystemTime::now())?;
        Ok(lock)
    }

    /// Age of the oldest running work of all processes; `None` if none is running.
    pub(crate) fn oldest_work_age(&self) -> Option<Duration> {
        let own = (self.pins().running > 0).then_some(Duration::ZERO);
        self.oldest_work_age_except(&HashSet::new()).or(own)
    }

    /// Like [`Store::oldest_work_age`] without this process, whose pinned blobs are known.
    pub(crate) fn oldest_other_work_age(&self) -> Option<Duration> {
        let own = self.pins().lock_paths.clone();
        self.oldest_work_age_except(&own)
    }

    fn oldest_work_age_except(&self, own: &HashSet<PathBuf>) -> Option<Duration> {
        let age = |entry: io::Result<fs::DirEntry>| {
            let entry = entry
                .ok()
                .filter(|e| e.file_name().to_string_lossy().ends_with(files::WORK_SUFFIX))?;
            let path = Some(entry.path()).filter(|path| !own.contains(path))?;
            let begun = entry.metadata().and_then(|meta| meta.modified()).ok()?;
            is_locked(&path).then(|| begun.elapsed().unwrap_or_default())
        };
        fs::read_dir(self.root().join(files::TEMP_DIR)).into_iter().flatten().filter_map(age).max()
    }

    /// Keeps this process from removing a blob until a manifest with it is written.
    pub(crate) fn pin(&self, digest: &Digest) {
        let mut pins = self.pins();
        pins.pinned.insert(*digest);
        pins.to_unpin.retain(|released| released != digest);
    }

    #[cfg(test)]
    pub(crate) fn is_pinned(&self, digest: &Digest) -> bool {
        self.pins().pinned.contains(digest)
    }

    /// Whether running work may have pinned a blob. A blob that was uploaded and never used in a
    /// model stays pinned until the process ends.
    pub(crate) fn is_pinned_by_work(&self, digest: &Digest) -> bool {
        let pins = self.pins();
        pins.running > 0 && pins.pinned.contains(digest)
    }

    /// Unpins blobs.
    pub(crate) fn unpin(&self, digests: impl IntoIterator<Item = Digest>) {
        let mut pins = self.pins();
        for digest in digests {
            match pins.running {
                0 => _ = pins.pinned.remove(&digest),
                _ => pins.to_unpin.push(digest),
            }
        }
    }
}
