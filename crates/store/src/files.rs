//! Writing files so that a crash leaves the old state or the new one, never a half: temporary file, `fsync`, rename.

use std::fs::{self, File, TryLockError};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use crate::error::StoreError;
use crate::holder::Holder;
use crate::stamp::identity;

/// Where unfinished files live. Not in `blobs/`: an Ollama on the same store would clear them away there.
pub(crate) const TEMP_DIR: &str = "puna-tmp";

/// What the files there are called whose locks say that somebody is at work on a model, since they were written.
pub(crate) const WORK_SUFFIX: &str = ".work";

/// How long the lock of a store is waited for. Nothing holds it while bytes of models move.
const LOCK_WAIT: Duration = Duration::from_secs(120);
/// The time between two attempts to lock a file.
const LOCK_PAUSE: Duration = Duration::from_millis(10);
/// Names that are tried for a temporary file.
const NAMES: u32 = 16;

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
        Self::create(&dir, Self::new_name)
    }

    /// A new file of one of the `names`: what is there already is somebody else's.
    fn create(dir: &Path, mut names: impl FnMut() -> String) -> Result<Self, StoreError> {
        let mut left = NAMES;
        loop {
            let path = dir.join(names());
            let open = || fs::OpenOptions::new().write(true).create_new(true).open(&path);
            match step().and_then(|()| open()) {
                Ok(file) => {
                    // Who clears away sees that somebody is at it; some network file systems have no locks.
                    let _ = file.try_lock();
                    return Ok(Self { path, file: Some(file) });
                }
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists && left > 1 => left -= 1,
                Err(e) => return Err(StoreError::io("create", &path, &e)),
            }
        }
    }

    /// A name that hardly anybody else has. The number of the process alone does not tell two programs apart that share
    /// the folder from two containers.
    pub(crate) fn new_name() -> String {
        static COUNTER: AtomicU64 = AtomicU64::new(0);
        let random = RandomState::new().hash_one(SystemTime::now());
        format!("{}-{}-{random:016x}", std::process::id(), COUNTER.fetch_add(1, Ordering::Relaxed))
    }

    pub(crate) fn file(&self) -> &File {
        self.file.as_ref().expect("open until it is persisted")
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        let file = self.file.as_mut().expect("open until it is persisted");
        step()
            .and_then(|()| file.write_all(bytes))
            .map_err(|e| StoreError::io("write", &self.path, &e))
    }

    /// Flushes the file to the disk and moves it to `target`, replacing what is there.
    pub(crate) fn persist(mut self, target: &Path) -> Result<(), StoreError> {
        let file = self.file.take().expect("open until it is persisted");
        step()
            .and_then(|()| file.sync_all())
            .map_err(|e| StoreError::io("write", &self.path, &e))?;
        drop(file);
        let dir = target.parent().unwrap_or(Path::new("."));
        create_dir(dir)?;
        step()
            .and_then(|()| rename_or_copy(&self.path, target))
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

/// Writes a whole file in the store at `root`, atomically.
///
/// # Errors
/// The store cannot be written.
pub fn write_atomic(root: &Path, target: &Path, bytes: &[u8]) -> Result<(), StoreError> {
    let mut temp = TempFile::new(root)?;
    temp.write(bytes)?;
    temp.persist(target)
}

/// Gives a file its name, also in a folder that is on another file system, where it is copied first.
fn rename_or_copy(from: &Path, to: &Path) -> io::Result<()> {
    match fs::rename(from, to) {
        Err(e) if e.kind() == io::ErrorKind::CrossesDevices => {}
        done => return done,
    }
    // Hidden files are left alone by everything that lists blobs and names.
    let near = to.with_file_name(format!(".{}", TempFile::new_name()));
    let copied = fs::copy(from, &near)
        .and_then(|_| File::options().write(true).open(&near)?.sync_all())
        .and_then(|()| fs::rename(&near, to));
    if copied.is_err() {
        let _ = fs::remove_file(&near);
    }
    copied.and_then(|()| fs::remove_file(from))
}

/// Waits for the lock of a file, which is made if it is not there. It is held until the file is dropped.
///
/// # Errors
/// The file cannot be made or locked, or another process holds the lock for too long. A file system without locks is no error.
pub fn lock_file(path: &Path) -> Result<File, StoreError> {
    lock_file_within(path, LOCK_WAIT)
}

fn lock_file_within(path: &Path, wait: Duration) -> Result<File, StoreError> {
    create_dir(path.parent().unwrap_or(Path::new(".")))?;
    check_regular(path).map_err(|e| StoreError::io("lock", path, &e))?;
    let open = File::options().write(true).create(true).truncate(false).open(path);
    let file = open.map_err(|e| StoreError::io("lock", path, &e))?;
    let begun = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => {
                Holder::here().note(&file);
                return Ok(file);
            }
            Err(TryLockError::Error(e)) if has_no_locks(&e) => return Ok(file),
            Err(TryLockError::Error(e)) => return Err(StoreError::io("lock", path, &e)),
            Err(TryLockError::WouldBlock) if begun.elapsed() > wait => {
                let holder = Holder::read(path)
                    .map_or("another process".into(), |holder| holder.to_string());
                return Err(StoreError::Locked { path: path.to_owned(), holder });
            }
            Err(TryLockError::WouldBlock) => std::thread::sleep(LOCK_PAUSE),
        }
    }
}

/// Refuses what is no regular file: opening a pipe waits for its other end.
fn check_regular(path: &Path) -> io::Result<()> {
    match fs::metadata(path) {
        Ok(meta) if !meta.is_file() => {
            Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"))
        }
        _ => Ok(()),
    }
}

/// Makes a symbolic link to a file.
pub(crate) fn symlink(target: &Path, link: &Path) -> io::Result<()> {
    #[cfg(unix)]
    return std::os::unix::fs::symlink(target, link);
    #[cfg(windows)]
    return std::os::windows::fs::symlink_file(target, link);
}

/// Creates a folder and those above it.
pub(crate) fn create_dir(dir: &Path) -> Result<(), StoreError> {
    if dir.is_dir() {
        return Ok(());
    }
    step()
        .and_then(|()| fs::create_dir_all(dir))
        .map_err(|e| StoreError::io("create the folder", dir, &e))
}

/// Removes a file; one that is not there is no error.
pub(crate) fn remove(path: &Path) -> Result<(), StoreError> {
    match step().and_then(|()| fs::remove_file(path)) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result.map_err(|e| StoreError::io("remove", path, &e)),
    }
}

/// Makes a rename or removal in `dir` last. Not every file system can do that, and none must.
pub fn sync_dir(dir: &Path) {
    if cfg!(unix)
        && let Ok(dir) = File::open(dir)
    {
        let _ = dir.sync_all();
    }
}

/// Whether an open file is the one at a path. Where the system does not tell, whatever is there is: an open file keeps its name
/// there.
///
/// # Errors
/// The system says of neither what it is.
pub fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let there = match fs::metadata(path) {
        Ok(there) => there,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    Ok(identity(&there) == identity(&file.metadata()?))
}

/// Whether a lock failed as there are none here: some network file systems, and what programs mount, have none. There, as with Ollama,
/// two must not meet.
pub fn has_no_locks(error: &io::Error) -> bool {
    #[cfg(unix)]
    {
        use rustix::io::Errno;
        let none = [Errno::NOSYS, Errno::OPNOTSUPP, Errno::NOLCK].map(Errno::raw_os_error);
        if error.raw_os_error().is_some_and(|code| none.contains(&code)) {
            return true;
        }
    }
    error.kind() == io::ErrorKind::Unsupported
}

/// Marks a file as used now. What the owner of another name of it sees stays as it is: where a file has several names, only
/// the time of its last change of state moves, which [`last_use`] knows of; of a symbolic link only the link's own time. A file
/// of another user cannot be touched, and need not be.
pub fn touch(path: &Path) {
    #[cfg(unix)]
    {
        use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, UTIME_NOW, utimensat};
        use std::os::unix::fs::MetadataExt;
        let Ok(meta) = fs::symlink_metadata(path) else { return };
        if meta.is_symlink() {
            let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
            let times = Timestamps { last_access: now, last_modification: now };
            let _ = utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW);
            return;
        }
        if meta.nlink() > 1 {
            let _ = fs::set_permissions(path, meta.permissions());
            return;
        }
    }
    if let Ok(file) = File::options().append(true).open(path) {
        let _ = file.set_modified(SystemTime::now());
    }
}

/// When a file was written or marked by [`touch`].
///
/// # Errors
/// The system does not say.
pub fn last_use(meta: &fs::Metadata) -> io::Result<SystemTime> {
    let modified = meta.modified()?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        if meta.nlink() > 1 {
            let seconds = std::time::Duration::from_secs(meta.ctime().try_into().unwrap_or(0));
            return Ok(modified.max(SystemTime::UNIX_EPOCH + seconds));
        }
    }
    Ok(modified)
}

/// Lets nobody read a copy who could not read its source.
pub(crate) fn keep_private(copy: &File, source: &Path) {
    #[cfg(unix)]
    if let (Ok(of), Ok(from)) = (copy.metadata(), fs::metadata(source)) {
        use std::os::unix::fs::PermissionsExt;
        let mode = of.permissions().mode() & (from.permissions().mode() | 0o700);
        let _ = copy.set_permissions(fs::Permissions::from_mode(mode));
    }
    #[cfg(not(unix))]
    let _ = (copy, source);
}

#[cfg(test)]
thread_local! {
    /// Files that this thread has read with [`read_limited`].
    pub(crate) static READS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Reads a file of at most `limit` bytes.
pub(crate) fn read_limited(path: &Path, limit: u64) -> Result<Vec<u8>, StoreError> {
    #[cfg(test)]
    READS.set(READS.get() + 1);
    let read = || {
        check_regular(path)?;
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
pub(crate) fn step() -> io::Result<()> {
    Ok(())
}

#[cfg(not(test))]
pub(crate) fn crashed() -> bool {
    false
}

#[cfg(test)]
pub(crate) use faults::{crash_after, crashed, step, steps_left};

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

    /// How many changes of the disk are left; `None` outside of the simulation.
    pub(crate) fn steps_left() -> Option<usize> {
        LEFT.get()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[test]
    fn a_system_without_locks_is_told_from_a_lock_that_fails() {
        use rustix::io::Errno;
        let said = |errno: Errno| has_no_locks(&io::Error::from_raw_os_error(errno.raw_os_error()));
        assert!([Errno::NOSYS, Errno::OPNOTSUPP, Errno::NOLCK].into_iter().all(said));
        assert!(![Errno::WOULDBLOCK, Errno::IO, Errno::BADF].into_iter().any(said));
        assert!(has_no_locks(&io::ErrorKind::Unsupported.into()));
    }

    #[test]
    fn a_lock_that_is_held_for_too_long_is_an_error_that_names_the_holder() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let held = lock_file(&path).unwrap();
        let error = lock_file_within(&path, Duration::from_millis(30)).unwrap_err().to_string();
        let process = format!("lock is locked by process {}", std::process::id());
        assert!(error.contains(&process), "{error}");
        drop(held);
        lock_file_within(&path, Duration::from_millis(30)).unwrap();
    }

    #[cfg(unix)]
    #[test]
    fn pipes_are_neither_read_nor_locked() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        assert!(read_limited(&path, 10).unwrap_err().to_string().contains("not a regular file"));
        assert!(lock_file(&path).unwrap_err().to_string().contains("not a regular file"));
        assert!(!crate::transfer::is_held(&path));
    }

    #[test]
    fn a_temporary_file_of_somebody_else_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("taken"), "theirs").unwrap();
        let mut names = ["taken", "taken", "free"].iter();
        let mut temp =
            TempFile::create(dir.path(), || (*names.next().unwrap()).to_owned()).unwrap();
        temp.write(b"ours").unwrap();
        temp.persist(&dir.path().join("done")).unwrap();
        assert_eq!(fs::read_to_string(dir.path().join("taken")).unwrap(), "theirs");
        assert_eq!(fs::read_to_string(dir.path().join("done")).unwrap(), "ours");
        assert!(TempFile::create(dir.path(), || "taken".into()).is_err());
        assert_eq!(fs::read_to_string(dir.path().join("taken")).unwrap(), "theirs");
    }
}
