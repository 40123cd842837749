//! Who is at work on a model, and the blobs that nobody clears away meanwhile.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use crate::digest::Digest;
use crate::files;
use crate::store::Store;
use crate::transfer::is_held;

/// Blobs that must not be cleared away.
#[derive(Default)]
pub(crate) struct Pins {
    /// What this process has stored or taken over for models whose manifest is still to come.
    pinned: HashSet<Digest>,
    /// What somebody needs no more while somebody else is at work, who may have pinned it too.
    released: Vec<Digest>,
    works: usize,
    /// The files by which others see those works.
    locks: HashSet<PathBuf>,
}

/// Somebody at work on a model: what was pinned stays so until it is dropped. Other processes see by a file that is locked that
/// somebody is, and by its time since when.
pub struct Work {
    pins: Arc<Mutex<Pins>>,
    lock: Option<WorkLock>,
}

/// The file of one who is at work.
struct WorkLock {
    path: PathBuf,
    file: File,
}

impl Drop for WorkLock {
    fn drop(&mut self) {
        // Of one that ends otherwise it stays, and nobody holds it any more.
        let _ = fs::remove_file(&self.path);
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        let mut pins = of(&self.pins);
        pins.works -= 1;
        self.lock.iter().for_each(|lock| _ = pins.locks.remove(&lock.path));
        if pins.works == 0 {
            for digest in std::mem::take(&mut pins.released) {
                pins.pinned.remove(&digest);
            }
        }
    }
}

/// A panic of their holder does not close them: they are whole between two statements.
fn of(pins: &Mutex<Pins>) -> MutexGuard<'_, Pins> {
    pins.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pins {
    /// Whether this process needs a blob.
    pub(crate) fn has(&self, digest: &Digest) -> bool {
        self.pinned.contains(digest)
    }
}

impl Store {
    pub(crate) fn pins(&self) -> MutexGuard<'_, Pins> {
        of(&self.pins)
    }

    /// Begins work on a model. Several may need the same blob: what one of them releases goes when all are done.
    pub fn work(&self) -> Work {
        // Where that cannot be written, nothing can be cleared away either.
        let lock = self.lock_work().ok();
        let mut pins = self.pins();
        pins.works += 1;
        pins.locks.extend(lock.iter().map(|lock| lock.path.clone()));
        drop(pins);
        Work { pins: self.pins.clone(), lock }
    }

    fn lock_work(&self) -> io::Result<WorkLock> {
        let dir = self.root().join(files::TEMP_DIR);
        fs::create_dir_all(&dir)?;
        let path = dir.join(files::TempFile::new_name() + files::WORK_SUFFIX);
        let lock =
            WorkLock { file: File::options().write(true).create_new(true).open(&path)?, path };
        lock.file.lock()?;
        // By the clock of this machine, by which blobs are marked that are used.
        lock.file.set_modified(SystemTime::now())?;
        Ok(lock)
    }

    /// For how long the first of those processes has been at work that are now, this one among them; `None` where none is.
    pub(crate) fn at_work(&self) -> Option<Duration> {
        let own = (self.pins().works > 0).then_some(Duration::ZERO);
        self.at_work_but(&HashSet::new()).or(own)
    }

    /// The same without this process, of whose work the blobs are known.
    pub(crate) fn at_work_elsewhere(&self) -> Option<Duration> {
        let own = self.pins().locks.clone();
        self.at_work_but(&own)
    }

    fn at_work_but(&self, own: &HashSet<PathBuf>) -> Option<Duration> {
        let age = |entry: io::Result<fs::DirEntry>| {
            let entry = entry
                .ok()
                .filter(|e| e.file_name().to_string_lossy().ends_with(files::WORK_SUFFIX))?;
            let path = Some(entry.path()).filter(|path| !own.contains(path))?;
            let begun = entry.metadata().and_then(|meta| meta.modified()).ok()?;
            is_held(&path).then(|| begun.elapsed().unwrap_or_default())
        };
        fs::read_dir(self.root().join(files::TEMP_DIR)).into_iter().flatten().filter_map(age).max()
    }

    /// Keeps a blob from being removed by this process until a manifest with it is written.
    pub(crate) fn pin(&self, digest: &Digest) {
        let mut pins = self.pins();
        pins.pinned.insert(*digest);
        pins.released.retain(|released| released != digest);
    }

    #[cfg(test)]
    pub(crate) fn is_pinned(&self, digest: &Digest) -> bool {
        self.pins().pinned.contains(digest)
    }

    /// Whether somebody is at work who may have pinned a blob. An upload that nobody makes a model of stays pinned for ever.
    pub(crate) fn is_worked_with(&self, digest: &Digest) -> bool {
        let pins = self.pins();
        pins.works > 0 && pins.pinned.contains(digest)
    }

    /// Lets go of blobs that were pinned.
    pub(crate) fn release(&self, digests: impl IntoIterator<Item = Digest>) {
        let mut pins = self.pins();
        for digest in digests {
            match pins.works {
                0 => _ = pins.pinned.remove(&digest),
                _ => pins.released.push(digest),
            }
        }
    }
}
