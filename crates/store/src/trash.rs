//! The trash: what was removed stays for a day, so that a mistake can be undone.
//!
//! ```text
//! trash/<nanoseconds since 1970>-<random>/blobs/sha256-…         what one command removed, at its path in the store
//! trash/<nanoseconds since 1970>-<random>/manifests/<host>/…
//! ```
//!
//! Nothing goes there while the disk is nearly full: then it is removed at once, after what has been there longest.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::error::StoreError;
use crate::files::{self, TempFile, symlink};
use crate::name::ModelName;
use crate::names::{NameFile, name_of};
use crate::store::Store;

/// The folder.
pub(crate) const TRASH: &str = "trash";
/// How long things stay.
pub(crate) const TRASH_TIME: Duration = Duration::from_secs(24 * 60 * 60);
/// The trash is used while a tenth of the disk is free.
const FREE_PART: u64 = 10;
/// The largest file that is copied to the trash where it cannot be moved, since it is on another file system.
const COPIED: u64 = 64 << 20;

/// What one command removes.
pub(crate) struct TrashBatch<'a> {
    store: &'a Store,
    /// The folder of the batch; `None` until something is put there.
    folder: Option<PathBuf>,
    /// Whether the trash may take files; `None` until one is removed.
    has_room: Option<bool>,
    /// Why files were removed for good though there was room.
    failed: Option<String>,
}

/// What was brought back from the trash.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Restored {
    /// Paths in the store.
    pub files: Vec<PathBuf>,
    /// Bytes of them.
    pub bytes: u64,
    /// Names that were not brought back, since they have been made anew.
    pub taken: Vec<PathBuf>,
}

impl<'a> TrashBatch<'a> {
    pub(crate) fn new(store: &'a Store) -> Self {
        Self { store, folder: None, has_room: None, failed: None }
    }

    /// One that keeps nothing.
    pub(crate) fn for_good(store: &'a Store) -> Self {
        Self { store, folder: None, has_room: Some(false), failed: None }
    }

    /// Removes a file of the store: it goes to the trash, or where there is no room for that, for good.
    ///
    /// # Errors
    /// It cannot be removed.
    pub(crate) fn remove(&mut self, path: &Path) -> Result<(), StoreError> {
        match self.keep(path) {
            Ok(true) => Ok(()),
            Err(error)
                if error.kind() == io::ErrorKind::NotFound && path.symlink_metadata().is_err() =>
            {
                Ok(())
            }
            Ok(false) => files::remove(path),
            Err(error) => {
                if self.failed.is_none() {
                    let (trash, path) = (self.store.trash(), path.display());
                    tracing::warn!(%path, %error, "removed for good: it cannot be moved to the trash");
                    self.failed =
                        Some(format!("cannot move {path} to {}: {error}", trash.display()));
                }
                files::remove(path)
            }
        }
    }

    /// Why files were removed for good though the disk has room for them.
    pub(crate) fn failed(self) -> Option<String> {
        self.failed
    }

    /// Moves a file to the trash. `false`: it cannot go there.
    fn keep(&mut self, path: &Path) -> io::Result<bool> {
        let root = self.store.root();
        let Ok(below) = path.strip_prefix(root) else { return Ok(false) };
        fs::symlink_metadata(path)?;
        if !*self.has_room.get_or_insert_with(|| self.store.has_trash_room()) {
            return Ok(false);
        }
        let folder = self.folder.get_or_insert_with(|| {
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            root.join(TRASH).join(format!("{}-{}", now.as_nanos(), TempFile::new_name()))
        });
        let target = folder.join(below);
        files::step()?;
        fs::create_dir_all(target.parent().unwrap_or(root))?;
        move_to(path, &target)?;
        path.parent().iter().for_each(|dir| files::sync_dir(dir));
        Ok(true)
    }
}

impl Store {
    fn trash(&self) -> PathBuf {
        self.root().join(TRASH)
    }

    /// Whether things may stay in the trash: a part of the disk must be free, and as much as the trash holds.
    fn has_trash_room(&self) -> bool {
        let Some((free, total)) = self.disk_space() else { return true };
        let needed = |trash: u64| (total / FREE_PART).max(trash);
        let mut batches = self.trash_batches();
        let mut trash: u64 = batches.iter().map(|batch| bytes_in(&batch.path)).sum();
        // What has been there longest makes room.
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

    /// Removes for good what has been in the trash for `age` or longer. Says how many bytes that were.
    pub fn empty_trash(&self, age: Duration) -> u64 {
        let mut freed = 0;
        // An undo at the same time must not lose a race.
        let _lock = if self.trash().is_dir() { self.lock().ok() } else { None };
        for batch in self.trash_batches().into_iter().filter(|batch| batch.age >= age) {
            freed += bytes_in(&batch.path);
            remove_batch(&batch.path);
        }
        // Refused unless it is empty.
        let _ = fs::remove_dir(self.trash());
        freed
    }

    /// Empties the trash until `bytes` are free, the oldest part first.
    pub fn make_room(&self, bytes: u64) {
        for batch in self.trash_batches().into_iter().rev() {
            if self.free_bytes().is_none_or(|free| free >= bytes) {
                return;
            }
            tracing::info!(batch = %batch.path.display(), "the trash is emptied: the disk has no room for it");
            remove_batch(&batch.path);
        }
    }

    /// Bytes in the trash.
    pub fn trash_bytes(&self) -> u64 {
        self.trash_batches().iter().map(|batch| bytes_in(&batch.path)).sum()
    }

    /// Brings back what is in the trash: blobs that are not there, and names that have not been made anew.
    ///
    /// # Errors
    /// The store cannot be written.
    pub fn restore_trash(&self, dry_run: bool) -> Result<Restored, StoreError> {
        let mut restored = Restored::default();
        let batches = self.trash_batches();
        if batches.is_empty() {
            return Ok(restored);
        }
        let _lock = if dry_run { None } else { Some(self.lock()?) };
        let mut planned = HashSet::new();
        for batch in &batches {
            let mut found = Vec::new();
            files_below(&batch.path, &mut found);
            // Blobs come before the names that need them.
            found.sort();
            let below = |path: &PathBuf| path.strip_prefix(&batch.path).unwrap_or(path).to_owned();
            found.retain(|path| is_of_store(&below(path)));
            let names = found
                .iter()
                .map(below)
                .filter(|path| self.is_taken_name(path, &planned))
                .collect::<HashSet<_>>();
            for path in found {
                let below = below(&path);
                match names.contains(&below) {
                    true => restored.taken.push(below),
                    false => self.restore(&path, &below, dry_run, &mut restored)?,
                }
            }
            planned.extend(restored.files.iter().filter_map(|path| name_at(path)));
            if !dry_run {
                // What is not brought back stays until its day is over.
                remove_empty(&batch.path);
            }
        }
        Ok(restored)
    }

    /// Whether a path in the store is the file of a name that exists, in whichever folder, or that is `planned` to.
    fn is_taken_name(&self, below: &Path, planned: &HashSet<ModelName>) -> bool {
        let exists = |name: &ModelName| {
            NameFile::all_of(self.root(), name).is_ok_and(|found| !found.is_empty())
        };
        !below.starts_with("blobs")
            && name_at(below).is_none_or(|name| planned.contains(&name) || exists(&name))
    }

    fn restore(
        &self,
        from: &Path,
        below: &Path,
        dry_run: bool,
        restored: &mut Restored,
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
            // Unused blobs are left alone for an hour.
            files::touch(&target);
        }
        Ok(())
    }

    /// What is in the trash, the newest first.
    fn trash_batches(&self) -> Vec<Batch> {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let batch = |entry: io::Result<fs::DirEntry>| {
            let path = entry.ok()?.path();
            let nanos: u64 = path.file_name()?.to_str()?.split_once('-')?.0.parse().ok()?;
            Some(Batch { age: now.saturating_sub(Duration::from_nanos(nanos)), path })
        };
        let mut batches: Vec<_> =
            fs::read_dir(self.trash()).into_iter().flatten().filter_map(batch).collect();
        batches.sort_by(|a, b| (a.age, &a.path).cmp(&(b.age, &b.path)));
        batches
    }
}

/// What one command has removed.
struct Batch {
    path: PathBuf,
    age: Duration,
}

/// Moves a file, also from another file system if it is small; a link as such.
fn move_to(from: &Path, to: &Path) -> io::Result<()> {
    match fs::rename(from, to) {
        Err(e)
            if e.kind() == io::ErrorKind::CrossesDevices
                && fs::symlink_metadata(from)?.len() <= COPIED => {}
        done => return done,
    }
    match fs::read_link(from) {
        Ok(target) => symlink(&target, to)?,
        Err(_) => fs::copy(from, to).map(drop)?,
    }
    fs::remove_file(from)
}

/// The name that a path below the store's folder spells.
fn name_at(below: &Path) -> Option<ModelName> {
    let parts: Vec<String> =
        below.iter().skip(1).map(|part| part.to_string_lossy().into_owned()).collect();
    let (file, folders) = parts.split_last()?;
    name_of(folders, file)
}

/// Whether a path in the trash is one of a blob or of a name.
fn is_of_store(below: &Path) -> bool {
    ["blobs", "manifests", "manifests-v2"].iter().any(|folder| below.starts_with(folder))
}

/// Removes empty folders.
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
        tracing::warn!(path = %path.display(), %error, "this part of the trash cannot be removed");
    }
}

/// All files below a folder, and links as such.
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
