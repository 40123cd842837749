//! Writing files so that a crash leaves the old state or the new one, never a half: temporary file, `fsync`, rename.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::StoreError;

/// Where unfinished files live. Not in `blobs/`: an Ollama on the same store would clear them away there.
pub(crate) const TEMP_DIR: &str = "puna-tmp";

/// A file that is removed again unless [`TempFile::persist`] gives it its name.
pub(crate) struct TempFile {
    path: PathBuf,
    file: Option<File>,
}

impl TempFile {
    /// A new file in the folder of temporary files of the store at `root`.
    pub(crate) fn new(root: &Path) -> Result<Self, StoreError> {
        let dir = root.join(TEMP_DIR);
        create_dir(&dir)?;
        let path = dir.join(Self::new_name());
        let open = || fs::OpenOptions::new().write(true).create(true).truncate(true).open(&path);
        let file = step().and_then(|()| open()).map_err(|e| StoreError::io("create", &path, &e))?;
        Ok(Self { path, file: Some(file) })
    }

    /// A name that nobody else has.
    pub(crate) fn new_name() -> String {
        static COUNTER: AtomicU64 = AtomicU64::new(0);
        format!("{}-{}", std::process::id(), COUNTER.fetch_add(1, Ordering::Relaxed))
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        let file = self.file.as_mut().expect("open until it is persisted");
        step().and_then(|()| file.write_all(bytes)).map_err(|e| StoreError::io("write", &self.path, &e))
    }

    /// Flushes the file to the disk and moves it to `target`, replacing what is there.
    pub(crate) fn persist(mut self, target: &Path) -> Result<(), StoreError> {
        let file = self.file.take().expect("open until it is persisted");
        step().and_then(|()| file.sync_all()).map_err(|e| StoreError::io("write", &self.path, &e))?;
        drop(file);
        let dir = target.parent().unwrap_or(Path::new("."));
        create_dir(dir)?;
        step()
            .and_then(|()| fs::rename(&self.path, target))
            .map_err(|e| StoreError::io("write", target, &e))?;
        sync_dir(dir);
        Ok(())
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        if crashed() {
            return;
        }
        // After `persist` the file has another name and this finds nothing.
        let _ = fs::remove_file(&self.path);
    }
}

/// Writes a whole file, atomically.
pub(crate) fn write_atomic(root: &Path, target: &Path, bytes: &[u8]) -> Result<(), StoreError> {
    let mut temp = TempFile::new(root)?;
    temp.write(bytes)?;
    temp.persist(target)
}

/// Creates a folder and those above it.
pub(crate) fn create_dir(dir: &Path) -> Result<(), StoreError> {
    if dir.is_dir() {
        return Ok(());
    }
    step().and_then(|()| fs::create_dir_all(dir)).map_err(|e| StoreError::io("create the folder", dir, &e))
}

/// Removes a file; one that is not there is no error.
pub(crate) fn remove(path: &Path) -> Result<(), StoreError> {
    match step().and_then(|()| fs::remove_file(path)) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result.map_err(|e| StoreError::io("remove", path, &e)),
    }
}

/// Makes a rename or removal in `dir` last. Not every file system can do that, and none must.
pub(crate) fn sync_dir(dir: &Path) {
    if cfg!(unix)
        && let Ok(dir) = File::open(dir)
    {
        let _ = dir.sync_all();
    }
}

/// Reads a file of at most `limit` bytes.
pub(crate) fn read_limited(path: &Path, limit: u64) -> Result<Vec<u8>, StoreError> {
    let read = || {
        let file = File::open(path)?;
        let len = file.metadata()?.len();
        if len > limit {
            return Err(io::Error::new(
                io::ErrorKind::FileTooLarge,
                format!("{len} bytes, at most {limit} are expected"),
            ));
        }
        let mut bytes = Vec::with_capacity(len as usize);
        io::Read::read_to_end(&mut io::Read::take(file, limit), &mut bytes)?;
        Ok(bytes)
    };
    read().map_err(|e| StoreError::io("read", path, &e))
}

#[cfg(not(test))]
fn step() -> io::Result<()> {
    Ok(())
}

#[cfg(not(test))]
fn crashed() -> bool {
    false
}

#[cfg(test)]
pub(crate) use faults::{crash_after, crashed, step};

/// Simulated crashes: after a number of steps that change the disk, every further one of this thread fails and
/// nothing is cleaned up, as if the process had been killed.
#[cfg(test)]
mod faults {
    use std::cell::Cell;
    use std::io;

    thread_local! {
        static LEFT: Cell<Option<usize>> = const { Cell::new(None) };
    }

    /// Lets `steps` more changes of the disk happen; `None` ends the simulation.
    pub(crate) fn crash_after(steps: Option<usize>) {
        LEFT.set(steps);
    }

    pub(crate) fn crashed() -> bool {
        LEFT.get() == Some(0)
    }

    pub(crate) fn step() -> io::Result<()> {
        match LEFT.get() {
            Some(0) => Err(io::Error::other("simulated crash")),
            left => {
                LEFT.set(left.map(|n| n - 1));
                Ok(())
            }
        }
    }
}
