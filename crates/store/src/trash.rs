//! The trash keeps removed files for a day, so that a user can undo a mistake.
//!
//! ```text
//! trash/<nanoseconds since 1970>-<random>/blobs/sha256-…         files of one command
//! trash/<nanoseconds since 1970>-<random>/manifests/<host>/…
//! ```
//!
//! While the disk is nearly full, removed files bypass the trash, and the oldest batches in it are
//! deleted.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::error::StoreError;
use crate::files::{self, TempFile, symlink};
use crate::name::ModelName;
use crate::name_files::{NameFile, name_of};
use crate::store::Store;

/// Name of the trash folder.
pub(crate) const TRASH_DIR: &str = "trash";
/// How long files stay in the trash.
pub(crate) const TRASH_RETENTION: Duration = Duration::from_secs(24 * 60 * 60);
/// The trash is used while at least 1/10 of the disk is free.
const MIN_FREE_FRACTION: u64 = 10;
/// Largest file that is copied to the trash if it is on another file system.
const MAX_COPY_BYTES: u64 = 64 << 20;

/// The files that one command removes.
pub(crate) struct TrashBatch<'a> {
    store: &'a Store,
    /// The folder of the batch; `None` until it holds a file.
    folder: Option<PathBuf>,
    /// Whether files may go to the trash; `None` until the first removal.
    is_usable: Option<bool>,
    /// The first error that kept a file out of the trash.
    first_error: Option<String>,
}

/// Result of [`Store::restore_trash`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RestoreOutcome {
    /// Paths of restored files, relative to the store's folder.
    pub files: Vec<PathBuf>,
    /// Total size of the restored files in bytes.
    pub bytes: u64,
    /// Names that were not restored, because they exist again.
    pub skipped_names: Vec<PathBuf>,
}

impl<'a> TrashBatch<'a> {
    pub(crate) fn new(store: &'a Store) -> Self {
        Self { store, folder: None, is_usable: None, first_error: None }
    }

    /// A batch that deletes files without the trash.
    pub(crate) fn without_trash(store: &'a Store) -> Self {
        Self { store, folder: None, is_usable: Some(false), first_error: None }
    }

    /// Removes a file of the store: moves it to the trash, or deletes it if the trash has no room.
    ///
    /// # Errors
    /// It cannot be removed.
    pub(crate) fn remove(&mut self, path: &Path) -> Result<(), StoreError> {
        match self.move_to_trash(path) {
            Ok(true) => Ok(()),
            Err(error)
                if error.kind() == io::ErrorKind::NotFound && path.symlink_metadata().is_err() =>
            {
                Ok(())
            }
            Ok(false) => files::remove(path),
            Err(error) => {
                if self.first_error.is_none() {
                    let (trash, path) = (self.store.trash(), path.display());
                    tracing::warn!(%path, %error, "cannot move a file to the trash; removing it permanently");
                    self.first_error =
                        Some(format!("cannot move {path} to {}: {error}", trash.display()));
                }
                files::remove(path)
            }
        }
    }

    /// The first error that kept a file out of the trash.
    pub(crate) fn first_error(self) -> Option<String> {
        self.first_error
    }

    /// Moves a file to the trash. Returns `false` if the trash cannot take it.
    fn move_to_trash(&mut self, path: &Path) -> io::Result<bool> {
        let root = self.store.root();
        let Ok(below) = path.strip_prefix(root) else { return Ok(false) };
        fs::symlink_metadata(path)?;
        if !*self.is_usable.get_or_insert_with(|| self.store.has_trash_room()) {
            return Ok(false);
        }
        let folder = self.folder.get_or_insert_with(|| {
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            root.join(TRASH_DIR).join(format!("{}-{}", now.as_nanos(), TempFile::new_name()))
        });
        let target = folder.join(below);
        files::fault_point()?;
        fs::create_dir_all(target.parent().unwrap_or(root))?;
        move_to(path, &target)?;
        path.parent().iter().for_each(|dir| files::sync_dir(dir));
        Ok(true)
    }
}

impl Store {
    fn trash(&self) -> PathBuf {
        self.root().join(TRASH_DIR)
    }

    /// Whether the trash may take files: a tenth of the disk must be free, and at least the size of
    /// the trash. Deletes old batches to get there.
    fn has_trash_room(&self) -> bool {
        let Some((free, total)) = self.disk_space() else { return true };
        let needed = |trash: u64| (total / MIN_FREE_FRACTION).max(trash);
        let mut batches = self.trash_batches();
        let mut trash: u64 = batches.iter().map(|batch| bytes_in(&batch.path)).sum();
        // Delete the oldest batches first.
        while free < needed(trash) {
            let Some(oldest) = batches.pop() else { return false };
            let bytes = bytes_in(&oldest.path);
            remove_batch(&oldest.path);
            trash = trash.saturating_sub(bytes);
            if self.disk_space().is_some_and(|(free, _)| free >= needed(trash)) {
                return true;
            }
        }
        true
    }

    /// Deletes files that have been in the trash for `age` or longer. Returns the freed bytes.
    pub fn empty_trash(&self, age: Duration) -> u64 {
        let mut freed = 0;
        // The lock keeps out a concurrent [`Store::restore_trash`].
        let _lock = if self.trash().is_dir() { self.lock().ok() } else { None };
        for batch in self.trash_batches().into_iter().filter(|batch| batch.age >= age) {
            freed += bytes_in(&batch.path);
            remove_batch(&batch.path);
        }
        // This fails unless the folder is empty.
        let _ = fs::remove_dir(self.trash());
        freed
    }

    /// Deletes the oldest batches of the trash until `bytes` are free.
    pub fn empty_trash_until_free(&self, bytes: u64) {
        for batch in self.trash_batches().into_iter().rev() {
            if self.free_bytes().is_none_or(|free| free >= bytes) {
                return;
            }
            tracing::info!(batch = %batch.path.display(), "emptying the trash to free disk space");
            remove_batch(&batch.path);
        }
    }

    /// Size of the trash in bytes.
    pub fn trash_bytes(&self) -> u64 {
        self.trash_batches().iter().map(|batch| bytes_in(&batch.path)).sum()
    }

    /// Restores blobs that are absent from the store, and names that were not created again.
    ///
    /// # Errors
    /// The store cannot be written.
    pub fn restore_trash(&self, dry_run: bool) -> Result<RestoreOutcome, StoreError> {
        let mut restored = RestoreOutcome::default();
        let batches = self.trash_batches();
        if batches.is_empty() {
            return Ok(restored);
        }
        let _lock = if dry_run { None } else { Some(self.lock()?) };
        let mut planned = HashSet::new();
        for batch in &batches {
            let mut found = Vec::new();
            files_below(&batch.path, &mut found);
            // In sorted order, blobs precede the names that need them.
            found.sort();
            let below = |path: &PathBuf| path.strip_prefix(&batch.path).unwrap_or(path).to_owned();
            found.retain(|path| is_store_path(&below(path)));
            let names = found
                .iter()
                .map(below)
                .filter(|path| self.is_taken_name(path, &planned))
                .collect::<HashSet<_>>();
            for path in found {
                let below = below(&path);
                match names.contains(&below) {
                    true => restored.skipped_names.push(below),
                    false => self.restore_file(&path, &below, dry_run, &mut restored)?,
                }
            }
            planned.extend(restored.files.iter().filter_map(|path| name_at(path)));
            if !dry_run {
                // Files that were not restored stay until they expire.
                remove_empty(&batch.path);
            }
        }
        Ok(restored)
    }

    /// Whether a path is the file of a name that exists in any folder of names, or that an earlier
    /// batch restores (`planned`).
    fn is_taken_name(&self, below: &Path, planned: &HashSet<ModelName>) -> bool {
        let exists = |name: &ModelName| {
            NameFile::all_of(self.root(), name).is_ok_and(|found| !found.is_empty())
        };
        !below.starts_with("blobs")
            && name_at(below).is_none_or(|name| planned.contains(&name) || exists(&name))
    }

    fn restore_file(
        &self,
        from: &Path,
        below: &Path,
        dry_run: bool,
        restored: &mut RestoreOutcome,
    ) -> Result<(), StoreError> {
        let target = self.root().join(below);
        if restored.files.iter().any(|file| file == below) || target.symlink_metadata().is_ok() {
            return Ok(());
        }
        restored.bytes += fs::symlink_metadata(from).map_or(0, |meta| meta.len());
        restored.files.push(below.to_owned());
        if dry_run {
            return Ok(());
        }
        files::create_dir(target.parent().unwrap_or(self.root()))?;
        move_to(from, &target).map_err(|e| StoreError::io("move", from, &e))?;
        target.parent().iter().for_each(|dir| files::sync_dir(dir));
        if below.starts_with("blobs") {
            // Garbage collection leaves recently used blobs alone for an hour.
            files::touch(&target);
        }
        Ok(())
    }

    /// The batches in the trash, newest first.
    fn trash_batches(&self) -> Vec<TrashedBatch> {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let batch = |entry: io::Result<fs::DirEntry>| {
            let path = entry.ok()?.path();
            let nanos: u64 = path.file_name()?.to_str()?.split_once('-')?.0.parse().ok()?;
            Some(TrashedBatch { age: now.saturating_sub(Duration::from_nanos(nanos)), path })
        };
        let mut batches: Vec<_> =
            fs::read_dir(self.trash()).into_iter().flatten().filter_map(batch).collect();
        batches.sort_by(|a, b| (a.age, &a.path).cmp(&(b.age, &b.path)));
        batches
    }
}

/// The folder of one command's removed files.
struct TrashedBatch {
    path: PathBuf,
    age: Duration,
}

/// Moves a file or a link. A small file may come from another file system.
fn move_to(from: &Path, to: &Path) -> io::Result<()> {
    match fs::rename(from, to) {
        Err(e)
            if e.kind() == io::ErrorKind::CrossesDevices
                && fs::symlink_metadata(from)?.len() <= MAX_COPY_BYTES => {}
        done => return done,
    }
    match fs::read_link(from) {
        Ok(target) => symlink(&target, to)?,
        Err(_) => fs::copy(from, to).map(drop)?,
    }
    fs::remove_file(from)
}

/// The model name that a path relative to the store's folder spells.
fn name_at(below: &Path) -> Option<ModelName> {
    let parts: Vec<String> =
        below.iter().skip(1).map(|part| part.to_string_lossy().into_owned()).collect();
    let (file, folders) = parts.split_last()?;
    name_of(folders, file)
}

/// Whether a path in the trash is that of a blob or of a name.
fn is_store_path(below: &Path) -> bool {
    ["blobs", "manifests", "manifests-v2"].iter().any(|folder| below.starts_with(folder))
}

/// Removes a folder and its subfolders if they are empty.
fn remove_empty(dir: &Path) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_empty(&entry.path());
        }
    }
    let _ = fs::remove_dir(dir);
}

fn remove_batch(path: &Path) {
    if let Err(error) = fs::remove_dir_all(path) {
        tracing::warn!(path = %path.display(), %error, "cannot remove a part of the trash");
    }
}

/// Collects all files and links below a folder.
fn files_below(dir: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => files_below(&entry.path(), into),
            Ok(_) => into.push(entry.path()),
            Err(_) => {}
        }
    }
}

fn bytes_in(dir: &Path) -> u64 {
    let mut files = Vec::new();
    files_below(dir, &mut files);
    files.iter().filter_map(|path| fs::symlink_metadata(path).ok()).map(|meta| meta.len()).sum()
}
