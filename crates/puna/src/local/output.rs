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
        let path = match std::fs::metadata(path) {
            Ok(meta) if !meta.is_file() => bail!("cannot write {}: it is not a regular file", path.display()),
            Ok(_) => path.canonicalize().with_context(|| format!("cannot write {}", path.display()))?,
            Err(_) => path.to_owned(),
        };
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(UNFINISHED);
        let temporary = path.with_file_name(name);
        let file = begin(&temporary).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => {
                anyhow::anyhow!("cannot write {}: another puna is at it", path.display())
            }
            _ => anyhow::Error::new(error).context(format!("cannot write {}", temporary.display())),
        })?;
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
        readable(&self.file);
        std::fs::rename(&self.temporary, &self.path).with_context(failed)?;
        self.is_finished = true;
        Ok(())
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if !self.is_finished {
            let _ = std::fs::remove_file(&self.temporary);
        }
    }
}

/// The file at a path, empty and locked; one that was left there is taken.
fn begin(path: &Path) -> io::Result<File> {
    loop {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true);
        private(&mut options);
        let file = options.open(path)?;
        file.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => io::ErrorKind::WouldBlock.into(),
            TryLockError::Error(error) => error,
        })?;
        // Whoever had it may have finished it between the two.
        if puna_store::is_at(&file, path)? {
            file.set_len(0)?;
            return Ok(file);
        }
    }
}

/// For its owner alone, and not where a link leads that somebody has put there.
fn private(options: &mut OpenOptions) {
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        options.mode(0o600).custom_flags(rustix::fs::OFlags::NOFOLLOW.bits().cast_signed());
    }
    #[cfg(not(unix))]
    let _ = options;
}

/// Temporary files are for their owner alone, finished ones are for everybody who may read the folder.
fn readable(file: &File) {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let _ = file.set_permissions(std::fs::Permissions::from_mode(0o644));
    }
    #[cfg(not(unix))]
    let _ = file;
}

/// Whether two paths lead to the same file.
pub fn same_file(a: &Path, b: &Path) -> bool {
    matches!((a.canonicalize(), b.canonicalize()), (Ok(a), Ok(b)) if a == b)
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
        assert!(Output::create(folder.path()).unwrap_err().to_string().contains("not a regular file"));
    }
}
