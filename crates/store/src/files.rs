//! File operations that survive a crash: the target holds either the old content or the new one.
//! Each write goes to a temporary file, then `fsync`, then rename.

use std::fs::{self, File, TryLockError};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use crate::error::StoreError;
use crate::fingerprint::file_id;
use crate::lock_holder::LockHolder;

/// Folder of unfinished files. It is not `blobs/`, because Ollama on the same store would remove
/// them there.
pub(crate) const TEMP_DIR: &str = "puna-tmp";

/// Folders of Puna in a store. Only the owner may enter them: whoever can open a lock file can hold
/// its lock.
const PRIVATE_DIRS: [&str; 2] = [TEMP_DIR, "puna-registry"];

/// Suffix of lock files in [`TEMP_DIR`]. A locked file shows that a process has been creating a
/// model since the file's modification time.
pub(crate) const WORK_SUFFIX: &str = ".work";

/// Longest wait for the lock of a store. No process holds it while it copies model data.
const LOCK_TIMEOUT: Duration = Duration::from_secs(30);
/// Time between two attempts to lock a file.
const LOCK_POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Largest number of names tried for a temporary file.
const MAX_NAME_ATTEMPTS: u32 = 16;

/// A temporary file. Dropping it removes the file unless [`TempFile::persist`] has renamed it.
pub(crate) struct TempFile {
    path: PathBuf,
    file: Option<File>,
}

impl TempFile {
    /// Creates a file in [`TEMP_DIR`] of the store at `root`.
    pub(crate) fn new(root: &Path) -> Result<Self, StoreError> {
        let dir = root.join(TEMP_DIR);
        create_dir(&dir)?;
        Self::create(&dir, Self::new_name)
    }

    /// Creates a file with the first free name of `names`. An existing file belongs to another
    /// process.
    fn create(dir: &Path, mut names: impl FnMut() -> String) -> Result<Self, StoreError> {
        let mut left = MAX_NAME_ATTEMPTS;
        loop {
            let path = dir.join(names());
            let open = || fs::OpenOptions::new().write(true).create_new(true).open(&path);
            match fault_point().and_then(|()| open()) {
                Ok(file) => {
                    // The lock shows garbage collection that the file is in use. Some network file
                    // systems have no locks.
                    let _ = file.try_lock();
                    return Ok(Self { path, file: Some(file) });
                }
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists && left > 1 => left -= 1,
                Err(e) => return Err(StoreError::io("create", &path, &e)),
            }
        }
    }

    /// A unique file name. The process id alone is not unique if two containers share the folder.
    pub(crate) fn new_name() -> String {
        static COUNTER: AtomicU64 = AtomicU64::new(0);
        let random = RandomState::new().hash_one(SystemTime::now());
        format!("{}-{}-{random:016x}", std::process::id(), COUNTER.fetch_add(1, Ordering::Relaxed))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn file(&self) -> &File {
        self.file.as_ref().expect("open until it is persisted")
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        let file = self.file.as_mut().expect("open until it is persisted");
        fault_point()
            .and_then(|()| file.write_all(bytes))
            .map_err(|e| StoreError::io("write", &self.path, &e))
    }

    /// Flushes the file to the disk and renames it to `target`, which it replaces.
    pub(crate) fn persist(mut self, target: &Path) -> Result<(), StoreError> {
        let file = self.file.take().expect("open until it is persisted");
        fault_point()
            .and_then(|()| file.sync_all())
            .map_err(|e| StoreError::io("write", &self.path, &e))?;
        drop(file);
        let dir = target.parent().unwrap_or(Path::new("."));
        create_dir(dir)?;
        fault_point()
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
        // After `persist` the file has another name, and this call finds nothing.
        let _ = fs::remove_file(&self.path);
    }
}

/// Writes a file atomically, through a temporary file of the store at `root`.
///
/// # Errors
/// The store cannot be written.
pub fn write_atomic(root: &Path, target: &Path, bytes: &[u8]) -> Result<(), StoreError> {
    let mut temp = TempFile::new(root)?;
    temp.write(bytes)?;
    temp.persist(target)
}

/// Renames a file. If the target is on another file system, the file is copied there first.
fn rename_or_copy(from: &Path, to: &Path) -> io::Result<()> {
    match fs::rename(from, to) {
        Err(e) if e.kind() == io::ErrorKind::CrossesDevices => {}
        done => return done,
    }
    // Programs that list blobs and names skip hidden files.
    let near = to.with_file_name(format!(".{}", TempFile::new_name()));
    let copied = fs::copy(from, &near)
        .and_then(|_| File::options().write(true).open(&near)?.sync_all())
        .and_then(|()| fs::rename(&near, to));
    if copied.is_err() {
        let _ = fs::remove_file(&near);
    }
    copied.and_then(|()| fs::remove_file(from))
}

/// Opens or creates a lock file and waits for its lock. Dropping the returned file releases the
/// lock.
///
/// # Errors
/// The file cannot be created or locked, or another process holds the lock for too long. A file
/// system without locks is no error.
pub fn lock_file(path: &Path) -> Result<File, StoreError> {
    lock_file_within(path, LOCK_TIMEOUT)
}

fn lock_file_within(path: &Path, wait: Duration) -> Result<File, StoreError> {
    create_dir(path.parent().unwrap_or(Path::new(".")))?;
    puna_gguf::check_regular(path).map_err(|e| StoreError::io("lock", path, &e))?;
    let file = open_lock_file(path).map_err(|e| StoreError::io("lock", path, &e))?;
    let begun = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => {
                LockHolder::current().write_to(&file);
                return Ok(file);
            }
            Err(TryLockError::Error(e)) if is_lock_unsupported(&e) => return Ok(file),
            Err(TryLockError::Error(e)) => return Err(StoreError::io("lock", path, &e)),
            Err(TryLockError::WouldBlock) if begun.elapsed() > wait => {
                let holder = LockHolder::of_locked(&file, path)
                    .map_or("another process".into(), |holder| holder.to_string());
                return Err(StoreError::Locked { path: path.to_owned(), holder });
            }
            Err(TryLockError::WouldBlock) => std::thread::sleep(LOCK_POLL_INTERVAL),
        }
    }
}

/// Makes a symbolic link to a file.
pub(crate) fn symlink(target: &Path, link: &Path) -> io::Result<()> {
    #[cfg(unix)]
    return std::os::unix::fs::symlink(target, link);
    #[cfg(windows)]
    return std::os::windows::fs::symlink_file(target, link);
}

/// Opens or creates a lock file for its owner alone (mode 0600). A file of an earlier version
/// loses its other permissions, and so does a private folder. If the folder is writable for its
/// group, the group shares the store, and its members may lock too (0660).
pub(crate) fn open_lock_file(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.write(true).create(true).truncate(false);
    #[cfg(unix)]
    {
        use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
        let dir = path.parent().unwrap_or(Path::new("."));
        let is_shared = fs::metadata(dir).is_ok_and(|meta| meta.permissions().mode() & 0o020 != 0);
        let mode = if is_shared { 0o660 } else { 0o600 };
        if !is_shared && is_private_dir(dir) {
            remove_permissions(dir, 0o700);
        }
        let file = options.mode(mode).open(path)?;
        if file.metadata()?.permissions().mode() & 0o777 & !mode != 0 {
            // Fails if another user owns the file, who may then hold the lock anyway.
            let _ = file.set_permissions(fs::Permissions::from_mode(mode));
        }
        Ok(file)
    }
    #[cfg(not(unix))]
    options.open(path)
}

/// Removes permissions beyond `mode` from a folder of this user.
#[cfg(unix)]
fn remove_permissions(dir: &Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    let Ok(meta) = fs::symlink_metadata(dir) else { return };
    if meta.is_dir() && meta.permissions().mode() & 0o777 & !mode != 0 {
        let _ = fs::set_permissions(dir, fs::Permissions::from_mode(mode));
    }
}

fn is_private_dir(dir: &Path) -> bool {
    dir.file_name().is_some_and(|name| PRIVATE_DIRS.iter().any(|private| name == *private))
}

/// Creates a folder and its parents. Folders in [`PRIVATE_DIRS`] and below get the mode 0700, all
/// others that of the umask.
pub(crate) fn create_dir(dir: &Path) -> Result<(), StoreError> {
    if dir.is_dir() {
        return Ok(());
    }
    fault_point()
        .and_then(|()| create_dir_all(dir))
        .map_err(|e| StoreError::io("create the folder", dir, &e))
}

/// As [`create_dir`], with the error of the system.
pub(crate) fn create_dir_all(dir: &Path) -> io::Result<()> {
    match dir.ancestors().find(|ancestor| is_private_dir(ancestor)) {
        Some(private) => {
            fs::create_dir_all(private.parent().unwrap_or(Path::new(".")))?;
            create_private_dir(dir)
        }
        None => fs::create_dir_all(dir),
    }
}

/// Creates a folder and its missing parents for their owner alone (mode 0700).
///
/// # Errors
/// A folder cannot be created.
pub fn create_private_dir(dir: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.recursive(true).create(dir)
}

/// Removes a file. An absent file is no error.
pub(crate) fn remove(path: &Path) -> Result<(), StoreError> {
    match fault_point().and_then(|()| fs::remove_file(path)) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result.map_err(|e| StoreError::io("remove", path, &e)),
    }
}

/// Flushes renames and removals in `dir` to the disk, on a best-effort basis: not every file system
/// supports it.
pub fn sync_dir(dir: &Path) {
    if cfg!(unix)
        && let Ok(dir) = File::open(dir)
    {
        let _ = dir.sync_all();
    }
}

/// Whether an open file is the file at a path. On systems without file identity, the answer is yes
/// if any file is there: an open file cannot be replaced on these systems.
///
/// # Errors
/// The metadata of the path or the file cannot be read.
pub fn is_file_at(file: &File, path: &Path) -> io::Result<bool> {
    let there = match fs::metadata(path) {
        Ok(there) => there,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    Ok(file_id(&there) == file_id(&file.metadata()?))
}

/// Whether a lock failed because the file system has no locks, such as some network and FUSE file
/// systems. There, as with Ollama, two processes must not use the store at the same time.
pub fn is_lock_unsupported(error: &io::Error) -> bool {
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

/// Marks a file as used now. For a file with several hard links, only the change time (ctime)
/// moves, because the modification time belongs to the owner of the other link. [`last_use`]
/// considers both. For a symbolic link, the link's own time moves. A file of another user stays
/// unchanged.
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

/// When a file was last written or marked by [`touch`].
///
/// # Errors
/// The system reports no modification time.
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

/// Removes permissions from a copy that its source does not have.
pub(crate) fn restrict_permissions(copy: &File, source: &Path) {
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
    /// Number of files that this thread has read with [`read_limited`].
    pub(crate) static READS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Reads a file of at most `limit` bytes.
pub(crate) fn read_limited(path: &Path, limit: u64) -> Result<Vec<u8>, StoreError> {
    #[cfg(test)]
    READS.set(READS.get() + 1);
    puna_gguf::read_limited(path, limit).map_err(|e| StoreError::io("read", path, &e))
}

#[cfg(not(test))]
pub(crate) fn fault_point() -> io::Result<()> {
    Ok(())
}

#[cfg(not(test))]
pub(crate) fn crashed() -> bool {
    false
}

#[cfg(test)]
pub(crate) use faults::{crash_after, crashed, fault_point, writes_left};

/// Simulated crashes. After a number of disk writes, all further writes of this thread fail and no
/// clean-up runs, as if the process had been killed.
#[cfg(test)]
mod faults {
    use std::cell::Cell;
    use std::io;

    thread_local! {
        static LEFT: Cell<Option<usize>> = const { Cell::new(None) };
    }

    /// Permits `steps` more disk writes; `None` ends the simulation.
    pub(crate) fn crash_after(steps: Option<usize>) {
        LEFT.set(steps);
    }

    pub(crate) fn crashed() -> bool {
        LEFT.get() == Some(0)
    }

    /// Number of disk writes left; `None` outside a simulation.
    pub(crate) fn writes_left() -> Option<usize> {
        LEFT.get()
    }

    pub(crate) fn fault_point() -> io::Result<()> {
        match LEFT.get() {
            Some(0) => Err(io::Error::other("simulated crash")),
            left => {
                LEFT.set(left.map(|n| n - 1));
                Ok(())
            }
        }
    }
}

/// Whether a process holds the lock of a file.
pub(crate) fn is_locked(path: &Path) -> bool {
    let held = |file: File| matches!(file.try_lock(), Err(TryLockError::WouldBlock));
    // Opening a pipe would block until its other end is opened.
    path.is_file() && File::open(path).is_ok_and(held)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[test]
    fn unsupported_locks_are_distinguished_from_failed_ones() {
        use rustix::io::Errno;
        let said =
            |errno: Errno| is_lock_unsupported(&io::Error::from_raw_os_error(errno.raw_os_error()));
        assert!([Errno::NOSYS, Errno::OPNOTSUPP, Errno::NOLCK].into_iter().all(said));
        assert!(![Errno::WOULDBLOCK, Errno::IO, Errno::BADF].into_iter().any(said));
        assert!(is_lock_unsupported(&io::ErrorKind::Unsupported.into()));
    }

    #[test]
    fn a_lock_that_is_held_for_too_long_is_an_error_that_names_the_holder() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let held = lock_file(&path).unwrap();
        let error = lock_file_within(&path, Duration::from_millis(30)).unwrap_err().to_string();
        let process = format!("lock has been locked by process {}", std::process::id());
        assert!(error.contains(&process), "{error}");
        drop(held);
        lock_file_within(&path, Duration::from_millis(30)).unwrap();
    }

    #[cfg(unix)]
    #[test]
    fn lock_files_and_their_folders_are_for_their_owner_alone() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let set = |path: &Path, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        };
        for name in PRIVATE_DIRS {
            let folder = dir.path().join("new").join(name);
            let lock = folder.join("lock");
            drop(lock_file(&lock).unwrap());
            assert_eq!((mode(&folder), mode(&lock)), (0o700, 0o600), "{name}");
            // An earlier version created both by the umask.
            set(&folder, 0o755);
            set(&lock, 0o644);
            drop(lock_file(&lock).unwrap());
            assert_eq!((mode(&folder), mode(&lock)), (0o700, 0o600), "{name}");
            // A group that shares the store keeps its rights.
            set(&folder, 0o770);
            set(&lock, 0o666);
            drop(lock_file(&lock).unwrap());
            assert_eq!((mode(&folder), mode(&lock)), (0o770, 0o660), "{name}");
        }
        // Other folders keep their mode.
        let folder = dir.path().join("keys");
        fs::create_dir(&folder).unwrap();
        set(&folder, 0o755);
        drop(lock_file(&folder.join("keys.lock")).unwrap());
        assert_eq!((mode(&folder), mode(&folder.join("keys.lock"))), (0o755, 0o600));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_lock_of_another_program_is_reported_with_its_process_id() {
        use std::io::BufRead;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        // The file names this process as its last holder.
        drop(lock_file(&path).unwrap());
        let mut child = std::process::Command::new("flock")
            .args(["-x", "-F", path.to_str().unwrap(), "sh", "-c", "echo locked; exec sleep 60"])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        io::BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let error = lock_file_within(&path, Duration::from_millis(30)).unwrap_err().to_string();
        child.kill().and_then(|()| child.wait()).unwrap();
        let named = format!("lock has been locked by process {} ", child.id());
        assert!(error.contains(&named), "{error}");
    }

    #[cfg(unix)]
    #[test]
    fn pipes_are_neither_read_nor_locked() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        assert!(read_limited(&path, 10).unwrap_err().to_string().contains("not a regular file"));
        assert!(lock_file(&path).unwrap_err().to_string().contains("not a regular file"));
        assert!(!is_locked(&path));
    }

    #[test]
    fn an_existing_temporary_file_is_not_overwritten() {
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
