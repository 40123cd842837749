//! Output files that take long to write. They are renamed at the end, so that a partial file never
//! looks complete.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// Suffix of an unfinished file. It tells users which program wrote it; the next run replaces the
/// file.
const PARTIAL_SUFFIX: &str = ".puna-partial";

/// A file written under a temporary name in the folder of its final path. Dropping it removes the
/// temporary file.
#[derive(Debug)]
pub struct OutputFile {
    /// Locked until the file has its final name.
    file: File,
    temporary: PathBuf,
    path: PathBuf,
    is_finished: bool,
}

impl OutputFile {
    /// Creates the temporary file for `path`. If `path` is a link, the file replaces the link's
    /// target.
    ///
    /// # Errors
    /// The folder is not writable, `path` is not a regular file, or another process writes it.
    pub fn create(path: &Path) -> Result<Self> {
        let (path, replaced) = match std::fs::metadata(path) {
            Ok(meta) if !meta.is_file() => {
                bail!("cannot write {}: it is not a regular file", path.display())
            }
            Ok(meta) => {
                let path = path
                    .canonicalize()
                    .with_context(|| format!("cannot write {}", path.display()))?;
                (path, Some(meta))
            }
            Err(_) => (path.to_owned(), None),
        };
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(PARTIAL_SUFFIX);
        let temporary = path.with_file_name(name);
        #[cfg(unix)]
        signal_cleanup::start();
        let file = create_locked(&temporary).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => {
                anyhow::anyhow!(
                    "cannot write {}: another puna process is writing it",
                    path.display()
                )
            }
            _ => anyhow::Error::new(error).context(format!("cannot write {}", temporary.display())),
        })?;
        if let Some(replaced) = replaced {
            // The new file must not be readable for users who could not read the old one, not even
            // while it is partial.
            file.set_permissions(replaced.permissions())
                .with_context(|| format!("cannot write {}", temporary.display()))?;
        }
        #[cfg(unix)]
        signal_cleanup::register(&temporary);
        Ok(Self { file, temporary, path, is_finished: false })
    }

    /// The file to write to.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Renames the file to its final name and replaces an older file there.
    pub fn finish(mut self) -> Result<()> {
        let failed = || format!("cannot write {}", self.path.display());
        self.file.sync_all().with_context(failed)?;
        #[cfg(unix)]
        let _guard = signal_cleanup::unregister(&self.temporary);
        std::fs::rename(&self.temporary, &self.path).with_context(failed)?;
        self.is_finished = true;
        // The folder is synchronised so that the name survives a power failure. A bare file name
        // has no parent folder.
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        puna_store::sync_dir(folder.unwrap_or(Path::new(".")));
        Ok(())
    }
}

impl Drop for OutputFile {
    fn drop(&mut self) {
        if !self.is_finished {
            #[cfg(unix)]
            let _guard = signal_cleanup::unregister(&self.temporary);
            let _ = std::fs::remove_file(&self.temporary);
        }
    }
}

/// Removes unfinished files when SIGINT or SIGTERM ends the process.
#[cfg(unix)]
mod signal_cleanup {
    use std::path::{Path, PathBuf};
    use std::sync::mpsc::{Sender, channel};
    use std::sync::{Mutex, MutexGuard, Once, PoisonError};

    use tokio::signal::unix::{SignalKind, signal};

    static UNFINISHED: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

    fn unfinished() -> MutexGuard<'static, Vec<PathBuf>> {
        UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a file to be removed when a signal ends the process.
    pub fn register(path: &Path) {
        unfinished().push(path.to_owned());
    }

    /// Starts the signal thread, once.
    pub fn start() {
        static STARTED: Once = Once::new();
        STARTED.call_once(|| {
            let (ready, is_ready) = channel();
            let thread =
                std::thread::Builder::new().name("signals".into()).spawn(move || wait(&ready));
            // From here on the thread receives the signals.
            let _ = thread.map(|_| is_ready.recv());
        });
    }

    /// Unregisters a file. While the returned guard exists, no signal ends the process.
    pub fn unregister(path: &Path) -> MutexGuard<'static, Vec<PathBuf>> {
        let mut unfinished = unfinished();
        unfinished.retain(|other| other != path);
        unfinished
    }

    /// Waits for a signal, removes the unfinished files and exits. If the handlers cannot be
    /// installed, signals keep their default action.
    fn wait(ready: &Sender<()>) {
        let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else {
            return;
        };
        runtime.block_on(async {
            let kinds = [SignalKind::interrupt(), SignalKind::terminate()];
            let [Ok(mut interrupt), Ok(mut terminate)] = kinds.map(signal) else { return };
            let _ = ready.send(());
            let kind = tokio::select! {
                _ = interrupt.recv() => kinds[0],
                _ = terminate.recv() => kinds[1],
            };
            // The lock is held until the exit: a file that is being finished is either renamed
            // before, or removed.
            let unfinished = unfinished();
            unfinished.iter().for_each(|path| _ = std::fs::remove_file(path));
            std::process::exit(128 + kind.as_raw_value());
        });
    }
}

/// Creates and locks a new file with default permissions, and removes a stale file of that name.
fn create_locked(path: &Path) -> io::Result<File> {
    loop {
        match open_options().create_new(true).open(path) {
            Ok(file) => {
                check_lock(file.try_lock())?;
                return Ok(file);
            }
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            Err(_) => {}
        }
        let left = match open_options().open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            left => left?,
        };
        check_lock(left.try_lock())?;
        // The earlier owner may have finished the file between the opening and the lock.
        if puna_store::is_file_at(&left, path)? {
            std::fs::remove_file(path)?;
        }
    }
}

/// Treats a file system without locks as if the lock were free. Of two concurrent writers there,
/// one loses its output.
fn check_lock(tried: Result<(), TryLockError>) -> io::Result<()> {
    match tried {
        Err(TryLockError::WouldBlock) => Err(io::ErrorKind::WouldBlock.into()),
        Err(TryLockError::Error(error)) if !puna_store::is_lock_unsupported(&error) => Err(error),
        _ => Ok(()),
    }
}

/// Options to read and write a file. `O_NOFOLLOW` refuses symbolic links, which an attacker could
/// place there.
fn open_options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        options.custom_flags(rustix::fs::OFlags::NOFOLLOW.bits().cast_signed());
    }
    options
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_file_gets_its_name_when_it_is_complete() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, "old").unwrap();
        let half = OutputFile::create(&path).unwrap();
        half.file().write_all(b"ha").unwrap();
        drop(half);
        assert_eq!(std::fs::read(&path).unwrap(), b"old");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
        let whole = OutputFile::create(&path).unwrap();
        whole.file().write_all(b"new").unwrap();
        whole.finish().unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
        // A file left by a killed run is replaced; a file that another writer has locked is not.
        let left = folder.path().join("file.puna-partial");
        std::fs::write(&left, "longer than new").unwrap();
        let again = OutputFile::create(&path).unwrap();
        let busy = OutputFile::create(&path).unwrap_err().to_string();
        assert!(busy.ends_with("file: another puna process is writing it"), "{busy}");
        again.file().write_all(b"newer").unwrap();
        again.finish().unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"newer");
        assert!(!left.exists());
        assert!(
            OutputFile::create(folder.path())
                .unwrap_err()
                .to_string()
                .contains("not a regular file")
        );
    }

    #[cfg(unix)]
    #[test]
    fn a_file_is_written_on_file_systems_without_locks() {
        use rustix::io::Errno;
        let tried = |errno: Errno| {
            let error = io::Error::from_raw_os_error(errno.raw_os_error());
            check_lock(Err(TryLockError::Error(error))).map_err(|error| error.kind())
        };
        assert!(
            [Errno::NOSYS, Errno::OPNOTSUPP, Errno::NOLCK]
                .into_iter()
                .all(|errno| tried(errno) == Ok(()))
        );
        assert_eq!(tried(Errno::ACCESS), Err(io::ErrorKind::PermissionDenied));
        assert_eq!(
            check_lock(Err(TryLockError::WouldBlock)).unwrap_err().kind(),
            io::ErrorKind::WouldBlock
        );
    }

    #[cfg(unix)]
    #[test]
    fn a_file_has_default_permissions_or_those_of_the_replaced_file() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let (new, path) = (folder.path().join("new"), folder.path().join("file"));
        std::fs::write(&new, "").unwrap();
        // A file left by an older run has its own permissions.
        std::fs::write(folder.path().join("file.puna-partial"), "left").unwrap();
        let left = std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(folder.path().join("file.puna-partial"), left).unwrap();
        OutputFile::create(&path).unwrap().finish().unwrap();
        assert_eq!(mode(&path), mode(&new));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        let output = OutputFile::create(&path).unwrap();
        assert_eq!(mode(&folder.path().join("file.puna-partial")), 0o640);
        output.finish().unwrap();
        assert_eq!(mode(&path), 0o640);
    }
}
