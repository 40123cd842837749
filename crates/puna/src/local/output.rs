//! Files that take long to write: a half-written one must not look like a whole one, so it gets its name at the end.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// What the name of an unfinished file ends with. Whoever finds one knows whose it is, and the next run takes it.
const UNFINISHED: &str = ".puna-partial";

/// A file that is being written under another name, beside the one that it will have. Dropped, it leaves nothing.
#[derive(Debug)]
pub struct Output {
    /// Held locked until it has its name.
    file: File,
    temporary: PathBuf,
    path: PathBuf,
    is_finished: bool,
}

impl Output {
    /// Begins a file that will be at `path`, behind a link if there is one.
    ///
    /// # Errors
    /// The folder cannot be written, something is there that is no file, or somebody else is writing it.
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
        name.push(UNFINISHED);
        let temporary = path.with_file_name(name);
        #[cfg(unix)]
        interrupted::start();
        let file = begin(&temporary).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => {
                anyhow::anyhow!("cannot write {}: another puna is at it", path.display())
            }
            _ => anyhow::Error::new(error).context(format!("cannot write {}", temporary.display())),
        })?;
        if let Some(replaced) = replaced {
            // Who could not read the old one is not to read the new one, nor what there is of it so far.
            file.set_permissions(replaced.permissions())
                .with_context(|| format!("cannot write {}", temporary.display()))?;
        }
        #[cfg(unix)]
        interrupted::watch_over(&temporary);
        Ok(Self { file, temporary, path, is_finished: false })
    }

    /// What is written so far.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Gives it its name, in place of what had it.
    pub fn finish(mut self) -> Result<()> {
        let failed = || format!("cannot write {}", self.path.display());
        self.file.sync_all().with_context(failed)?;
        #[cfg(unix)]
        let _watched = interrupted::let_go(&self.temporary);
        std::fs::rename(&self.temporary, &self.path).with_context(failed)?;
        self.is_finished = true;
        // The name is to outlive the machine's power, too; the path of a file here alone has no folder.
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        puna_store::sync_dir(folder.unwrap_or(Path::new(".")));
        Ok(())
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if !self.is_finished {
            #[cfg(unix)]
            let _watched = interrupted::let_go(&self.temporary);
            let _ = std::fs::remove_file(&self.temporary);
        }
    }
}

/// What is unfinished goes when the process is asked to end, by Ctrl-C or as a service manager does it.
#[cfg(unix)]
mod interrupted {
    use std::path::{Path, PathBuf};
    use std::sync::mpsc::{Sender, channel};
    use std::sync::{Mutex, MutexGuard, Once, PoisonError};

    use tokio::signal::unix::{SignalKind, signal};

    static UNFINISHED: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

    fn unfinished() -> MutexGuard<'static, Vec<PathBuf>> {
        UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has a file removed with the process.
    pub fn watch_over(path: &Path) {
        unfinished().push(path.to_owned());
    }

    /// Begins to mind signals.
    pub fn start() {
        static STARTED: Once = Once::new();
        STARTED.call_once(|| {
            let (ready, is_ready) = channel();
            let thread =
                std::thread::Builder::new().name("signals".into()).spawn(move || wait(&ready));
            // From here on a signal finds somebody who minds it.
            let _ = thread.map(|_| is_ready.recv());
        });
    }

    /// Leaves a file to who made it. No signal ends the process before what is returned is dropped.
    pub fn let_go(path: &Path) -> MutexGuard<'static, Vec<PathBuf>> {
        let mut unfinished = unfinished();
        unfinished.retain(|other| other != path);
        unfinished
    }

    /// Waits for a signal to end, and ends the process. Where the system has no way to wait, the signal does what it did.
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
            // Held to the end: what is being finished has its name before, or goes.
            let unfinished = unfinished();
            unfinished.iter().for_each(|path| _ = std::fs::remove_file(path));
            std::process::exit(128 + kind.as_raw_value());
        });
    }
}

/// A new file at a path, locked, with the permissions that new files have; one that was left there goes.
fn begin(path: &Path) -> io::Result<File> {
    loop {
        match options().create_new(true).open(path) {
            Ok(file) => {
                locked(file.try_lock())?;
                return Ok(file);
            }
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            Err(_) => {}
        }
        let left = match options().open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            left => left?,
        };
        locked(left.try_lock())?;
        // Whoever had it may have finished it between the two.
        if puna_store::is_file_at(&left, path)? {
            std::fs::remove_file(path)?;
        }
    }
}

/// Where the file system has no locks, nobody is at a file: who writes it beside this one goes without what he wrote.
fn locked(tried: Result<(), TryLockError>) -> io::Result<()> {
    match tried {
        Err(TryLockError::WouldBlock) => Err(io::ErrorKind::WouldBlock.into()),
        Err(TryLockError::Error(error)) if !puna_store::is_lock_unsupported(&error) => Err(error),
        _ => Ok(()),
    }
}

/// For reading and writing, but not where a link leads that somebody has put there.
fn options() -> OpenOptions {
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
    fn a_file_has_its_name_only_when_it_is_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, "old").unwrap();
        let half = Output::create(&path).unwrap();
        half.file().write_all(b"ha").unwrap();
        drop(half);
        assert_eq!(std::fs::read(&path).unwrap(), b"old");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
        let whole = Output::create(&path).unwrap();
        whole.file().write_all(b"new").unwrap();
        whole.finish().unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
        // What a killed run has left is taken, what somebody is writing is not.
        let left = folder.path().join("file.puna-partial");
        std::fs::write(&left, "longer than new").unwrap();
        let again = Output::create(&path).unwrap();
        let busy = Output::create(&path).unwrap_err().to_string();
        assert!(busy.ends_with("file: another puna is at it"), "{busy}");
        again.file().write_all(b"newer").unwrap();
        again.finish().unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"newer");
        assert!(!left.exists());
        assert!(
            Output::create(folder.path()).unwrap_err().to_string().contains("not a regular file")
        );
    }

    #[cfg(unix)]
    #[test]
    fn a_file_is_written_where_there_are_no_locks() {
        use rustix::io::Errno;
        let tried = |errno: Errno| {
            let error = io::Error::from_raw_os_error(errno.raw_os_error());
            locked(Err(TryLockError::Error(error))).map_err(|error| error.kind())
        };
        assert!(
            [Errno::NOSYS, Errno::OPNOTSUPP, Errno::NOLCK]
                .into_iter()
                .all(|errno| tried(errno) == Ok(()))
        );
        assert_eq!(tried(Errno::ACCESS), Err(io::ErrorKind::PermissionDenied));
        assert_eq!(
            locked(Err(TryLockError::WouldBlock)).unwrap_err().kind(),
            io::ErrorKind::WouldBlock
        );
    }

    #[cfg(unix)]
    #[test]
    fn a_file_has_the_permissions_of_new_files_or_of_the_one_that_it_replaces() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let (new, path) = (folder.path().join("new"), folder.path().join("file"));
        std::fs::write(&new, "").unwrap();
        // What an older run has left has its own.
        std::fs::write(folder.path().join("file.puna-partial"), "left").unwrap();
        let left = std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(folder.path().join("file.puna-partial"), left).unwrap();
        Output::create(&path).unwrap().finish().unwrap();
        assert_eq!(mode(&path), mode(&new));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        let output = Output::create(&path).unwrap();
        assert_eq!(mode(&folder.path().join("file.puna-partial")), 0o640);
        output.finish().unwrap();
        assert_eq!(mode(&path), 0o640);
    }
}
