//! Clearing away what nobody uses, as is done when a server starts.

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

use crate::digest::Digest;
use crate::error::StoreError;
use crate::files::TEMP_DIR;
use crate::store::Store;

/// Blobs and temporary files that were touched within this time may belong to somebody's work.
const GRACE: Duration = Duration::from_secs(60 * 60);
/// Interrupted downloads are kept longer, so that they can go on after a restart.
const PARTIAL_GRACE: Duration = Duration::from_secs(14 * 24 * 60 * 60);

/// What [`Store::prune`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Pruned {
    /// Blobs that were there.
    pub blobs: usize,
    /// Blobs and leftovers that were removed.
    pub removed: usize,
    /// Their bytes.
    pub bytes: u64,
}

impl Store {
    /// Removes blobs that no manifest uses and leftovers of interrupted work, but nothing that was touched in the last
    /// hour, no interrupted download of the last two weeks, and no file that is not the store's. Does nothing while a
    /// manifest cannot be read.
    ///
    /// # Errors
    /// The store cannot be read or written.
    pub fn prune(&self) -> Result<Pruned, StoreError> {
        let mut pruned = Pruned::default();
        if !self.root().is_dir() {
            return Ok(pruned);
        }
        let _lock = self.lock()?;
        let blobs = self.root().join("blobs");
        rename_old_blobs(&blobs);
        let Ok(used) = self.used_blobs()? else { return Ok(pruned) };
        for (path, name, age) in files_of(&blobs)? {
            let unused = match name.parse::<Digest>() {
                Ok(digest) => {
                    pruned.blobs += 1;
                    age > GRACE && !used.contains(&digest) && !self.is_pinned(&digest)
                }
                Err(_) => name.contains("-partial") && name.starts_with("sha256-") && age > PARTIAL_GRACE,
            };
            if unused {
                pruned.remove(&path);
            }
        }
        let temp = self.root().join(TEMP_DIR);
        for (path, name, age) in files_of(&temp)? {
            if name != "lock" && age > GRACE && !is_held(&path, &name) {
                pruned.remove(&path);
            }
        }
        for entry in fs::read_dir(&temp).into_iter().flatten().flatten() {
            let age =
                entry.metadata().ok().filter(|m| m.is_dir()).and_then(|m| m.modified().ok()?.elapsed().ok());
            if age.is_some_and(|age| age > GRACE) {
                // Links to blobs from a merge that was interrupted.
                let _ = fs::remove_dir_all(entry.path());
            }
        }
        Ok(pruned)
    }
}

/// Whether a file is the lock of a download that goes on.
fn is_held(path: &Path, name: &str) -> bool {
    let held = |file: fs::File| matches!(file.try_lock(), Err(fs::TryLockError::WouldBlock));
    name.ends_with(".lock") && fs::File::open(path).is_ok_and(held)
}

impl Pruned {
    fn remove(&mut self, path: &Path) {
        let size = fs::metadata(path).map_or(0, |m| m.len());
        match fs::remove_file(path) {
            Ok(()) => {
                self.removed += 1;
                self.bytes += size;
            }
            Err(error) => tracing::warn!(path = %path.display(), %error, "cannot be removed"),
        }
    }
}

/// Early versions of Ollama had a colon in the names of blobs.
fn rename_old_blobs(blobs: &Path) {
    for (path, name, _) in files_of(blobs).unwrap_or_default() {
        if let Some(hex) = name.strip_prefix("sha256:")
            && let Err(error) = fs::rename(&path, blobs.join(format!("sha256-{hex}")))
        {
            tracing::warn!(path = %path.display(), %error, "cannot be renamed");
        }
    }
}

/// The regular files of a folder with their names and ages; none where there is no folder.
fn files_of(dir: &Path) -> Result<Vec<(std::path::PathBuf, String, Duration)>, StoreError> {
    let now = SystemTime::now();
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(StoreError::io("read the folder", dir, &e)),
    };
    let file = |entry: fs::DirEntry| {
        let meta = entry.metadata().ok().filter(|m| m.is_file())?;
        let age = now.duration_since(meta.modified().ok()?).unwrap_or_default();
        Some((entry.path(), entry.file_name().to_string_lossy().into_owned(), age))
    };
    Ok(entries.filter_map(Result::ok).filter_map(file).collect())
}
