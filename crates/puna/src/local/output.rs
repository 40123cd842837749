//! Files that take long to write: a half-written one must not look like a whole one, so it gets its name at the end.

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use tempfile::NamedTempFile;

/// A file that is being written under another name, beside the one that it will have. Dropped, it leaves nothing.
#[derive(Debug)]
pub struct Output {
    temporary: NamedTempFile,
    path: PathBuf,
}

impl Output {
    /// Begins a file that will be at `path`, behind a link if there is one.
    ///
    /// # Errors
    /// The folder cannot be written, or something is there that is no file.
    pub fn create(path: &Path) -> Result<Self> {
        let path = match std::fs::metadata(path) {
            Ok(meta) if !meta.is_file() => bail!("cannot write {}: it is not a regular file", path.display()),
            Ok(_) => path.canonicalize().with_context(|| format!("cannot write {}", path.display()))?,
            Err(_) => path.to_owned(),
        };
        let folder = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let temporary = NamedTempFile::new_in(folder);
        let temporary = temporary.with_context(|| format!("cannot write in {}", folder.display()))?;
        Ok(Self { temporary, path })
    }

    /// What is written so far.
    pub fn file(&self) -> &File {
        self.temporary.as_file()
    }

    /// Gives it its name, in place of what had it.
    pub fn finish(self) -> Result<()> {
        let failed = || format!("cannot write {}", self.path.display());
        self.temporary.as_file().sync_all().with_context(failed)?;
        readable(self.temporary.as_file());
        self.temporary.persist(&self.path).with_context(failed)?;
        Ok(())
    }
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
        assert!(Output::create(folder.path()).unwrap_err().to_string().contains("not a regular file"));
    }
}
