//! Garbage collection. [`Store::prune`] runs when a user asks for it and removes all unreferenced
//! files. [`Store::clean_up`] runs at server start and every hour, and removes only Puna's own
//! unfinished files. Neither removes anything while the store contains an entry that Puna does not
//! know.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::digest::Digest;
use crate::error::StoreError;
use crate::files::{self, TEMP_DIR, is_locked};
use crate::pulls::UnfinishedPull;
use crate::store::Store;
use crate::transfer::HASH_STATE_SUFFIX;
use crate::trash::{TRASH_RETENTION, TrashBatch};
use crate::uploads::UPLOAD_SUFFIX;
use crate::verify::DISPLACED_SUFFIX;

/// Blobs and temporary files that were used within this time may belong to running work.
pub const UNUSED_BLOB_GRACE: Duration = Duration::from_secs(60 * 60);
/// How long [`Store::clean_up`] keeps Puna's own unfinished files.
const UNFINISHED_GRACE: Duration = Duration::from_secs(24 * 60 * 60);
/// How long interrupted downloads are kept, so that they can resume after a restart.
const PARTIAL_GRACE: Duration = Duration::from_secs(14 * 24 * 60 * 60);
/// Downloads of Ollama, and uploads whose model is not created yet, hold no lock. They write at
/// least this often, or have failed.
const STALL_TIMEOUT: Duration = Duration::from_secs(60);

/// Options of [`Store::prune`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PruneOptions {
    /// Remove nothing, and only list the files.
    pub dry_run: bool,
    /// Also remove interrupted downloads and leftovers of failed work, regardless of their age,
    /// unless a process works on them.
    pub partial: bool,
}

/// Kind of a removed file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeftoverKind {
    /// An unreferenced blob.
    Blob,
    /// A file of an interrupted download.
    Download,
    /// Another file of interrupted work.
    Temporary,
}

/// A removed file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leftover {
    /// Its path relative to the store's folder.
    pub file: PathBuf,
    /// Its kind.
    pub kind: LeftoverKind,
    /// Disk space of the file in bytes.
    pub bytes: u64,
}

/// Result of [`Store::prune`].
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PruneOutcome {
    /// Number of blobs in the store before.
    pub blobs: usize,
    /// Files that were removed, or would be in a dry run.
    pub removed: Vec<Leftover>,
    /// Number of unused files that are too young to be removed.
    pub young: usize,
    /// Number of unused files that a running process may use.
    pub in_use: usize,
    /// The entry of the store that Puna does not know. It may need any blob, so nothing was
    /// removed.
    pub blocked_by: Option<StoreError>,
}

impl PruneOutcome {
    /// Total size of the removed files in bytes.
    pub fn bytes(&self) -> u64 {
        self.removed.iter().map(|leftover| leftover.bytes).sum()
    }
}

impl Store {
    /// Removes unreferenced blobs and leftovers of interrupted work. Blobs and downloads go to the
    /// trash. These files stay:
    ///
    /// - files used in the last hour, or in the hour before the oldest running work began,
    /// - interrupted downloads of the last two weeks,
    /// - files that do not belong to the store.
    ///
    /// With [`PruneOptions::partial`], only files that a process works on or that were used in the
    /// last minute stay. Nothing is removed while the store contains an entry that Puna does not
    /// know.
    ///
    /// # Errors
    /// The store cannot be read or written.
    pub fn prune(&self, options: PruneOptions) -> Result<PruneOutcome, StoreError> {
        self.prune_scope(options, PruneScope::Everything)
    }

    /// Removes Puna's own unfinished files: temporary files and blobs of uncreated models older
    /// than a day, blobs of interrupted removals, and downloads interrupted two weeks ago. Files of
    /// other programs stay. All files stay while the store contains an entry that Puna does not
    /// know. Files that have been in the trash for a day are deleted.
    ///
    /// # Errors
    /// The store cannot be read or written.
    pub fn clean_up(&self) -> Result<PruneOutcome, StoreError> {
        if !self.root().is_dir() {
            return Ok(PruneOutcome::default());
        }
        self.empty_trash(TRASH_RETENTION);
        let options = PruneOptions::default();
        self.prune_scope(options, PruneScope::OwnLeftovers(OwnLeftovers::of(self)?))
    }

    fn prune_scope(
        &self,
        options: PruneOptions,
        scope: PruneScope,
    ) -> Result<PruneOutcome, StoreError> {
        let mut pruned = PruneOutcome::default();
        if !self.root().is_dir() {
            return Ok(pruned);
        }
        // A dry run writes nothing, not even a lock file.
        let _lock = if options.dry_run { None } else { Some(self.lock()?) };
        let blobs = self.root().join("blobs");
        let referenced = match self.referenced_blobs()? {
            Ok(referenced) => referenced,
            Err(error) => {
                pruned.blocked_by = Some(error);
                return Ok(pruned);
            }
        };
        if !options.dry_run {
            rename_old_blobs(&blobs);
        }
        let (oldest_work_age, trash) = (self.pins.oldest_work_age(), TrashBatch::new(self));
        let mut pruner = Pruner { store: self, options, scope, oldest_work_age, trash, pruned };
        pruner.run(&blobs, &referenced)?;
        if !options.dry_run {
            self.remove_settled_records(&referenced);
        }
        Ok(pruner.pruned)
    }

    /// Removes records whose blobs are all gone or referenced.
    fn remove_settled_records(&self, referenced: &HashSet<Digest>) {
        let is_settled =
            |digest: &Digest| referenced.contains(digest) || !self.own_blob_path(digest).exists();
        for record in
            self.pending_blobs().into_iter().filter(|record| record.digests.iter().all(is_settled))
        {
            // A record may exist before its blob.
            if record.is_removal || record.age > UNUSED_BLOB_GRACE {
                self.remove_blob_record(&record.path);
            }
        }
    }
}

/// The files that a collection may remove.
enum PruneScope {
    /// All unreferenced files.
    Everything,
    /// Only files that Puna has left unfinished.
    OwnLeftovers(OwnLeftovers),
}

/// Blobs in Puna's own records.
struct OwnLeftovers {
    /// Blobs stored for models that were not created yet.
    begun: HashSet<Digest>,
    /// Blobs of removed or replaced names.
    removed: HashSet<Digest>,
    /// Blobs of unfinished pulls.
    downloads: HashSet<Digest>,
}

impl OwnLeftovers {
    fn of(store: &Store) -> Result<Self, StoreError> {
        let pulls = store.pulls()?;
        let (mut begun, mut removed) = (HashSet::new(), HashSet::new());
        for record in store.pending_blobs() {
            let of = if record.is_removal { &mut removed } else { &mut begun };
            of.extend(record.digests);
        }
        Ok(Self { begun, removed, downloads: digests(pulls.iter().collect()) })
    }
}

impl PruneScope {
    /// How long an unreferenced blob stays, at least `usual`; `None` if it may not be removed.
    fn grace_of_blob(&self, digest: &Digest, usual: Duration) -> Option<Duration> {
        match self {
            Self::Everything => Some(usual),
            Self::OwnLeftovers(own) if own.removed.contains(digest) => Some(usual),
            Self::OwnLeftovers(own)
                if own.begun.contains(digest) || own.downloads.contains(digest) =>
            {
                Some(usual.max(UNFINISHED_GRACE))
            }
            Self::OwnLeftovers(_) => None,
        }
    }

    fn has_download(&self, digest: &Digest) -> bool {
        match self {
            Self::Everything => true,
            Self::OwnLeftovers(own) => own.downloads.contains(digest),
        }
    }

    /// How long a temporary file of Puna stays.
    fn grace_of_temporary(&self) -> Duration {
        match self {
            Self::Everything => UNUSED_BLOB_GRACE,
            Self::OwnLeftovers(_) => UNFINISHED_GRACE,
        }
    }
}

/// State of a collection.
struct Pruner<'a> {
    store: &'a Store,
    options: PruneOptions,
    scope: PruneScope,
    /// Age of the oldest running work. That process may use blobs that no manifest references yet.
    oldest_work_age: Option<Duration>,
    trash: TrashBatch<'a>,
    pruned: PruneOutcome,
}

impl Pruner<'_> {
    fn run(&mut self, blobs: &Path, used: &HashSet<Digest>) -> Result<(), StoreError> {
        let pulls = self.store.pulls()?;
        // Fetched blobs of an interrupted pull stay as long as its partial downloads.
        let (running, halted): (Vec<_>, Vec<_>) = pulls.iter().partition(|pull| pull.is_running);
        let [running, halted] = [running, halted].map(digests);
        for file in files_of(blobs)? {
            match file.name.parse::<Digest>() {
                Ok(digest) => {
                    self.pruned.blobs += 1;
                    if used.contains(&digest) {
                        continue;
                    }
                    let in_use =
                        running.contains(&digest) || self.store.pins.is_pinned_by_work(&digest);
                    let usual =
                        if halted.contains(&digest) { PARTIAL_GRACE } else { UNUSED_BLOB_GRACE };
                    let Some(usual) = self.scope.grace_of_blob(&digest, usual) else { continue };
                    let grace = self.grace(usual);
                    // The blobs that another process needs are unknown. It needs none that could
                    // have been removed before it began.
                    let needed = self
                        .oldest_work_age
                        .map_or(Duration::ZERO, |since| usual.saturating_add(since));
                    match in_use || (grace..=needed).contains(&file.age) {
                        true => self.pruned.in_use += 1,
                        false => self.remove_if_older(&file, grace, LeftoverKind::Blob),
                    }
                }
                Err(_) => self.download(&file),
            }
        }
        for pull in pulls {
            // The pull's blobs were removed, or another program has finished them.
            if !pull.is_running && (pull.completed == 0 || pull.completed == pull.total) {
                let record = StoreFile::of(pull.record, SystemTime::now());
                let grace = self.grace(self.scope.grace_of_temporary());
                record.iter().for_each(|record| {
                    self.remove_if_older(record, grace, LeftoverKind::Temporary)
                });
            }
        }
        let temp = self.store.root().join(TEMP_DIR);
        for file in files_of(&temp)? {
            let upload = file.name.strip_suffix(UPLOAD_SUFFIX);
            let separate_download = self.store.is_separate_download_running(&file.name);
            let is_used = separate_download == Some(true)
                || upload.is_some_and(|key| self.is_upload_locked(key));
            if file.name == "lock" || is_locked(&file.path) || is_used {
                continue;
            }
            // Without its hash state, an interrupted download resumes but reads the verified bytes
            // again. Without its record, an interrupted upload starts over. A displaced blob may be
            // the only copy.
            let is_partial = upload.is_some()
                || separate_download.is_some()
                || [HASH_STATE_SUFFIX, DISPLACED_SUFFIX]
                    .iter()
                    .any(|suffix| file.name.ends_with(suffix));
            let grace = self.grace(if is_partial {
                PARTIAL_GRACE
            } else {
                self.scope.grace_of_temporary()
            });
            self.remove_if_older(&file, grace, LeftoverKind::Temporary);
        }
        if !self.options.dry_run {
            remove_merge_links(&temp, self.grace(self.scope.grace_of_temporary()));
        }
        Ok(())
    }

    /// Removes a file of an interrupted download. Skips files of other programs.
    fn download(&mut self, file: &StoreFile) {
        let Some((digest, _)) = file.name.split_once("-partial") else { return };
        let Ok(digest) = digest.parse::<Digest>() else { return };
        if !self.scope.has_download(&digest) {
            return;
        }
        match self.store.is_being_downloaded(&digest) {
            true => self.pruned.in_use += 1,
            false => self.remove_if_older(file, self.grace(PARTIAL_GRACE), LeftoverKind::Download),
        }
    }

    /// Whether a process holds the lock of an upload, given the name of its record.
    fn is_upload_locked(&self, key: &str) -> bool {
        let key = format!("sha256-{key}").parse::<Digest>();
        key.is_ok_and(|key| self.store.is_being_downloaded(&key))
    }

    /// How long a file that no process works on stays: `usual`, or a minute with
    /// [`PruneOptions::partial`].
    fn grace(&self, usual: Duration) -> Duration {
        if self.options.partial { STALL_TIMEOUT } else { usual }
    }

    /// Removes an unused file if it is older than `grace`.
    fn remove_if_older(&mut self, file: &StoreFile, grace: Duration, kind: LeftoverKind) {
        // A process may have begun to use the file after the folder was read.
        let age = StoreFile::of(file.path.clone(), SystemTime::now())
            .map_or(file.age, |now| now.age.min(file.age));
        if age <= grace {
            self.pruned.young += usize::from(kind != LeftoverKind::Temporary);
            return;
        }
        let removed = match kind {
            _ if self.options.dry_run => Ok(()),
            LeftoverKind::Temporary => files::remove(&file.path),
            LeftoverKind::Blob | LeftoverKind::Download => self.trash.remove(&file.path),
        };
        match removed {
            Ok(()) => {
                let path =
                    file.path.strip_prefix(self.store.root()).unwrap_or(&file.path).to_owned();
                self.pruned.removed.push(Leftover { file: path, kind, bytes: file.bytes });
            }
            Err(error) => tracing::warn!(path = %file.path.display(), %error, "cannot remove file"),
        }
    }
}

/// All blobs of some pulls.
fn digests(pulls: Vec<&UnfinishedPull>) -> HashSet<Digest> {
    pulls.iter().flat_map(|pull| pull.manifest.blobs().map(|layer| layer.digest)).collect()
}

/// Removes folders of links from interrupted merges of split files.
fn remove_merge_links(temp: &Path, grace: Duration) {
    for entry in fs::read_dir(temp).into_iter().flatten().flatten() {
        let is_merge = entry.file_name().to_string_lossy().ends_with("-parts");
        let age = entry
            .metadata()
            .ok()
            .filter(|m| m.is_dir())
            .and_then(|m| m.modified().ok()?.elapsed().ok());
        if is_merge && age.is_some_and(|age| age > grace) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Renames blobs of early versions of Ollama, whose names had a colon.
fn rename_old_blobs(blobs: &Path) {
    for file in files_of(blobs).unwrap_or_default() {
        if let Some(hex) = file.name.strip_prefix("sha256:")
            && let Err(error) = fs::rename(&file.path, blobs.join(format!("sha256-{hex}")))
        {
            tracing::warn!(path = %file.path.display(), %error, "cannot rename blob");
        }
    }
}

/// A file or link in a folder of the store.
struct StoreFile {
    path: PathBuf,
    name: String,
    age: Duration,
    bytes: u64,
}

impl StoreFile {
    /// Reads a file's metadata; `None` unless it is a regular file or a link. The age of a link is
    /// its own, not that of its target.
    fn of(path: PathBuf, now: SystemTime) -> Option<Self> {
        let meta =
            fs::symlink_metadata(&path).ok().filter(|meta| meta.is_file() || meta.is_symlink())?;
        let age = now.duration_since(files::last_use(&meta).ok()?).unwrap_or_default();
        let name = path.file_name()?.to_string_lossy().into_owned();
        Some(Self { bytes: disk_bytes(&meta), path, name, age })
    }
}

/// Disk space of a file: an unfinished download is mostly holes.
fn disk_bytes(meta: &fs::Metadata) -> u64 {
    #[cfg(unix)]
    return std::os::unix::fs::MetadataExt::blocks(meta).saturating_mul(512).min(meta.len());
    #[cfg(not(unix))]
    meta.len()
}

/// The files of a folder; none if the folder does not exist.
fn files_of(dir: &Path) -> Result<Vec<StoreFile>, StoreError> {
    let now = SystemTime::now();
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(StoreError::io("read the folder", dir, &e)),
    };
    Ok(entries.filter_map(|entry| StoreFile::of(entry.ok()?.path(), now)).collect())
}
