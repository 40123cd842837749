//! Clearing away what nobody uses: when a server starts, and when somebody asks for it.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::digest::Digest;
use crate::error::StoreError;
use crate::files::{self, TEMP_DIR};
use crate::pulls::Pull;
use crate::store::Store;
use crate::transfer::{SUM_SUFFIX, is_held};
use crate::uploads::UPLOAD_SUFFIX;
use crate::verify::ASIDE_SUFFIX;

/// Blobs and temporary files that were touched within this time may belong to somebody's work.
pub(crate) const GRACE: Duration = Duration::from_secs(60 * 60);
/// Interrupted downloads are kept longer, so that they can go on after a restart.
const PARTIAL_GRACE: Duration = Duration::from_secs(14 * 24 * 60 * 60);
/// An Ollama that downloads holds no lock, nor does an upload of which the model is still to be made; they write at least this
/// often, or give up.
const STALL: Duration = Duration::from_secs(60);

/// What is to be cleared away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PruneOptions {
    /// Nothing is removed, only told.
    pub dry_run: bool,
    /// Interrupted downloads too, and what failed work has left, however young, unless somebody is at it.
    pub partial: bool,
}

/// What a file was that nobody needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeftoverKind {
    /// A blob that no model uses.
    Blob,
    /// A part of an interrupted download.
    Download,
    /// Interrupted work of another kind.
    Temporary,
}

/// A file that nobody needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leftover {
    /// Its path below the store's folder.
    pub file: PathBuf,
    /// What it was.
    pub kind: LeftoverKind,
    /// Bytes that it takes of the disk.
    pub bytes: u64,
}

/// What [`Store::prune`] found.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Pruned {
    /// Blobs that were there.
    pub blobs: usize,
    /// What was removed, or would be.
    pub removed: Vec<Leftover>,
    /// Unused files that are too young to be removed.
    pub young: usize,
    /// Unused files that a running process may be at.
    pub held: usize,
    /// The file among the manifests that cannot be read and may use any blob, so that nothing was looked at.
    pub kept: Option<StoreError>,
}

impl Pruned {
    /// Bytes that were freed, or would be.
    pub fn bytes(&self) -> u64 {
        self.removed.iter().map(|leftover| leftover.bytes).sum()
    }
}

impl Store {
    /// Removes blobs that no manifest uses and leftovers of interrupted work, but nothing that was touched in the last
    /// hour, or in the hour before the first of those began who are at work now, no interrupted download of the last two weeks, and
    /// no file that is not the store's; where that is asked for, all that no process is at, after a minute. Does nothing while a
    /// manifest cannot be read.
    ///
    /// # Errors
    /// The store cannot be read or written.
    pub fn prune(&self, options: PruneOptions) -> Result<Pruned, StoreError> {
        let mut broom = Broom { store: self, options, at_work: None, pruned: Pruned::default() };
        if !self.root().is_dir() {
            return Ok(broom.pruned);
        }
        // Who only looks writes nothing, not even a lock.
        let _lock = if options.dry_run { None } else { Some(self.lock()?) };
        broom.at_work = self.at_work();
        let blobs = self.root().join("blobs");
        if !options.dry_run {
            rename_old_blobs(&blobs);
        }
        match self.used_blobs()? {
            Ok(used) => broom.sweep(&blobs, &used)?,
            Err(unreadable) => broom.pruned.kept = Some(unreadable),
        }
        Ok(broom.pruned)
    }
}

/// Goes through the folders.
struct Broom<'a> {
    store: &'a Store,
    options: PruneOptions,
    /// For how long somebody has been making a model, of blobs that no manifest names yet.
    at_work: Option<Duration>,
    pruned: Pruned,
}

impl Broom<'_> {
    fn sweep(&mut self, blobs: &Path, used: &HashSet<Digest>) -> Result<(), StoreError> {
        let pulls = self.store.pulls()?;
        // Of other programs, too: what one of them has fetched need not come again when the rest does.
        let (running, halted): (Vec<_>, Vec<_>) = pulls.iter().partition(|pull| pull.is_running);
        let [running, halted] = [running, halted].map(digests);
        for file in files_of(blobs)? {
            match file.name.parse::<Digest>() {
                Ok(digest) => {
                    self.pruned.blobs += 1;
                    if used.contains(&digest) {
                        continue;
                    }
                    let is_held = running.contains(&digest) || self.store.is_worked_with(&digest);
                    let usual = if halted.contains(&digest) { PARTIAL_GRACE } else { GRACE };
                    let grace = self.grace(usual);
                    // Which blobs somebody in another process needs is not known; that somebody is there, and since when, is: that
                    // one needs nothing that might have been removed before.
                    let needed = self.at_work.map_or(Duration::ZERO, |since| usual.saturating_add(since));
                    match is_held || (grace..=needed).contains(&file.age) {
                        true => self.pruned.held += 1,
                        false => self.older(&file, grace, LeftoverKind::Blob),
                    }
                }
                Err(_) => self.download(&file),
            }
        }
        for pull in pulls {
            // A note about nothing: its blobs were removed, or another program has finished them.
            if !pull.is_running && (pull.completed == 0 || pull.completed == pull.total) {
                let note = File::of(pull.note, SystemTime::now());
                let grace = self.grace(GRACE);
                note.iter().for_each(|note| self.older(note, grace, LeftoverKind::Temporary));
            }
        }
        let temp = self.store.root().join(TEMP_DIR);
        for file in files_of(&temp)? {
            let upload = file.name.strip_suffix(UPLOAD_SUFFIX);
            let beside = self.store.beside(&file.name);
            let is_used = beside == Some(true) || upload.is_some_and(|key| self.is_at(key));
            if file.name == "lock" || is_held(&file.path) || is_used {
                continue;
            }
            // Without its sum an interrupted download goes on too, but reads again what was verified. So does an interrupted upload,
            // but from the beginning. What a repair has set aside is all that there is of a blob.
            let is_partial = upload.is_some()
                || beside.is_some()
                || [SUM_SUFFIX, ASIDE_SUFFIX].iter().any(|suffix| file.name.ends_with(suffix));
            let grace = self.grace(if is_partial { PARTIAL_GRACE } else { GRACE });
            self.older(&file, grace, LeftoverKind::Temporary);
        }
        if !self.options.dry_run {
            remove_merges(&temp);
        }
        Ok(())
    }

    /// A part of a download, or a file of somebody else.
    fn download(&mut self, file: &File) {
        let Some((digest, _)) = file.name.split_once("-partial") else { return };
        let Ok(digest) = digest.parse::<Digest>() else { return };
        match self.store.is_being_downloaded(&digest) {
            true => self.pruned.held += 1,
            false => self.older(file, self.grace(PARTIAL_GRACE), LeftoverKind::Download),
        }
    }

    /// Whether somebody is at an upload, by the name of the note about it.
    fn is_at(&self, key: &str) -> bool {
        let key = format!("sha256-{key}").parse::<Digest>();
        key.is_ok_and(|key| self.store.is_being_downloaded(&key))
    }

    /// How long a file that nobody is seen at stays; no longer than that where somebody wants it gone.
    fn grace(&self, usual: Duration) -> Duration {
        if self.options.partial { STALL } else { usual }
    }

    /// Removes a file that nobody uses, if it is old enough.
    fn older(&mut self, file: &File, grace: Duration, kind: LeftoverKind) {
        // Somebody may have taken a blob over since the folder was read.
        let age =
            File::of(file.path.clone(), SystemTime::now()).map_or(file.age, |now| now.age.min(file.age));
        if age <= grace {
            self.pruned.young += usize::from(kind != LeftoverKind::Temporary);
            return;
        }
        let removed = if self.options.dry_run { Ok(()) } else { fs::remove_file(&file.path) };
        match removed {
            Ok(()) => {
                let path = file.path.strip_prefix(self.store.root()).unwrap_or(&file.path).to_owned();
                self.pruned.removed.push(Leftover { file: path, kind, bytes: file.bytes });
            }
            Err(error) => tracing::warn!(path = %file.path.display(), %error, "cannot be removed"),
        }
    }
}

/// All that pulls are of.
fn digests(pulls: Vec<&Pull>) -> HashSet<Digest> {
    pulls.iter().flat_map(|pull| pull.manifest.blobs().map(|layer| layer.digest)).collect()
}

/// Links to blobs from merges that were interrupted.
fn remove_merges(temp: &Path) {
    for entry in fs::read_dir(temp).into_iter().flatten().flatten() {
        let is_merge = entry.file_name().to_string_lossy().ends_with("-parts");
        let age =
            entry.metadata().ok().filter(|m| m.is_dir()).and_then(|m| m.modified().ok()?.elapsed().ok());
        if is_merge && age.is_some_and(|age| age > GRACE) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Early versions of Ollama had a colon in the names of blobs.
fn rename_old_blobs(blobs: &Path) {
    for file in files_of(blobs).unwrap_or_default() {
        if let Some(hex) = file.name.strip_prefix("sha256:")
            && let Err(error) = fs::rename(&file.path, blobs.join(format!("sha256-{hex}")))
        {
            tracing::warn!(path = %file.path.display(), %error, "cannot be renamed");
        }
    }
}

/// A regular file.
struct File {
    path: PathBuf,
    name: String,
    age: Duration,
    bytes: u64,
}

impl File {
    /// `None` for what is no regular file, or no more. A link, which stands for a file elsewhere, is as young as itself.
    fn of(path: PathBuf, now: SystemTime) -> Option<Self> {
        let meta = fs::symlink_metadata(&path).ok().filter(|meta| meta.is_file() || meta.is_symlink())?;
        let age = now.duration_since(files::last_use(&meta).ok()?).unwrap_or_default();
        let name = path.file_name()?.to_string_lossy().into_owned();
        Some(Self { bytes: on_disk(&meta), path, name, age })
    }
}

/// Bytes that a file takes: an unfinished download is mostly holes.
fn on_disk(meta: &fs::Metadata) -> u64 {
    #[cfg(unix)]
    return std::os::unix::fs::MetadataExt::blocks(meta).saturating_mul(512).min(meta.len());
    #[cfg(not(unix))]
    meta.len()
}

/// The files of a folder; none where there is no folder.
fn files_of(dir: &Path) -> Result<Vec<File>, StoreError> {
    let now = SystemTime::now();
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(StoreError::io("read the folder", dir, &e)),
    };
    Ok(entries.filter_map(|entry| File::of(entry.ok()?.path(), now)).collect())
}
