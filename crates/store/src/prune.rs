//! Garbage collection: what no name needs, when a user asks for it, and what Puna itself has left unfinished, at
//! server start and every hour. Neither removes anything while something in the store is not understood.

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
use crate::trash::{TRASH_TIME, TrashBatch};
use crate::uploads::UPLOAD_SUFFIX;
use crate::verify::ASIDE_SUFFIX;

/// Blobs and temporary files that were touched within this time may belong to work that goes on.
pub(crate) const GRACE: Duration = Duration::from_secs(60 * 60);
/// What Puna has begun and not finished is kept for so long when a server starts.
const UNFINISHED_GRACE: Duration = Duration::from_secs(24 * 60 * 60);
/// Interrupted downloads are kept longer, so that they can continue after a restart.
const PARTIAL_GRACE: Duration = Duration::from_secs(14 * 24 * 60 * 60);
/// An Ollama that downloads holds no lock, nor does an upload of which the model is still to be made; they write at least this
/// often, or give up.
const STALL: Duration = Duration::from_secs(60);

/// What a user wants removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PruneOptions {
    /// Nothing is removed, only listed.
    pub dry_run: bool,
    /// Interrupted downloads too, and what failed work has left, however young, unless a process works on it.
    pub partial: bool,
}

/// What a file was that nothing needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeftoverKind {
    /// A blob that no name needs.
    Blob,
    /// A part of an interrupted download.
    Download,
    /// Interrupted work of another kind.
    Temporary,
}

/// A file that nothing needs.
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
    /// The entry of the store that Puna does not understand. It may need any blob, so nothing was removed.
    pub blocked_by: Option<StoreError>,
}

impl Pruned {
    /// Bytes that were freed, or would be.
    pub fn bytes(&self) -> u64 {
        self.removed.iter().map(|leftover| leftover.bytes).sum()
    }
}

impl Store {
    /// Removes blobs that no name needs and leftovers of interrupted work: blobs and downloads go to the trash. Nothing goes
    /// that was touched in the last hour, or in the hour before the oldest work of a running process began, no interrupted
    /// download of the last two weeks, and no file that is not the store's. With [`PruneOptions::partial`] all goes that no
    /// process works on, after a minute. Nothing is removed while something in the store is not understood.
    ///
    /// # Errors
    /// The store cannot be read or written.
    pub fn prune(&self, options: PruneOptions) -> Result<Pruned, StoreError> {
        self.collect(options, Scope::Everything)
    }

    /// Removes what Puna itself has left unfinished: temporary files and stored blobs of models that were never made, when
    /// they are older than a day, what is left of removals that were interrupted, and interrupted downloads of two weeks ago.
    /// What other programs have left stays, and so does everything while something in the store is not understood. What has
    /// been in the trash for a day goes for good.
    ///
    /// # Errors
    /// The store cannot be read or written.
    pub fn clean_up(&self) -> Result<Pruned, StoreError> {
        if !self.root().is_dir() {
            return Ok(Pruned::default());
        }
        self.empty_trash(TRASH_TIME);
        let options = PruneOptions::default();
        self.collect(options, Scope::OwnLeftovers(OwnLeftovers::of(self)?))
    }

    fn collect(&self, options: PruneOptions, scope: Scope) -> Result<Pruned, StoreError> {
        let mut pruned = Pruned::default();
        if !self.root().is_dir() {
            return Ok(pruned);
        }
        // A dry run writes nothing, not even a lock.
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
        let (at_work, trash) = (self.at_work(), TrashBatch::new(self));
        let mut collection = Collection { store: self, options, scope, at_work, trash, pruned };
        collection.run(&blobs, &referenced)?;
        if !options.dry_run {
            self.forget_done_notes(&referenced);
        }
        Ok(collection.pruned)
    }

    /// Forgets notes about blobs that are gone or needed.
    fn forget_done_notes(&self, referenced: &HashSet<Digest>) {
        let is_settled =
            |digest: &Digest| referenced.contains(digest) || !self.own_blob_path(digest).exists();
        for note in self.blob_notes().into_iter().filter(|note| note.digests.iter().all(is_settled))
        {
            // A blob may be noted before it is there.
            if note.is_removal || note.age > GRACE {
                self.forget_note(&note.path);
            }
        }
    }
}

/// What a collection may remove.
enum Scope {
    /// All that nothing needs.
    Everything,
    /// What Puna has left unfinished.
    OwnLeftovers(OwnLeftovers),
}

/// What Puna has noted that it has begun.
struct OwnLeftovers {
    /// Blobs for models that were to be made.
    begun: HashSet<Digest>,
    /// Blobs of names that were removed or replaced.
    removed: HashSet<Digest>,
    /// Blobs that were to be downloaded.
    downloads: HashSet<Digest>,
}

impl OwnLeftovers {
    fn of(store: &Store) -> Result<Self, StoreError> {
        let pulls = store.pulls()?;
        let (mut begun, mut removed) = (HashSet::new(), HashSet::new());
        for note in store.blob_notes() {
            let of = if note.is_removal { &mut removed } else { &mut begun };
            of.extend(note.digests);
        }
        Ok(Self { begun, removed, downloads: digests(pulls.iter().collect()) })
    }
}

impl Scope {
    /// How long a blob that nothing needs stays where that is `usual`; `None` where it may not be removed.
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

    /// How long a temporary file of Puna's stays.
    fn grace_of_temporary(&self) -> Duration {
        match self {
            Self::Everything => GRACE,
            Self::OwnLeftovers(_) => UNFINISHED_GRACE,
        }
    }
}

/// Goes through the folders.
struct Collection<'a> {
    store: &'a Store,
    options: PruneOptions,
    scope: Scope,
    /// For how long a process has been making a model, of blobs that no manifest names yet.
    at_work: Option<Duration>,
    trash: TrashBatch<'a>,
    pruned: Pruned,
}

impl Collection<'_> {
    fn run(&mut self, blobs: &Path, used: &HashSet<Digest>) -> Result<(), StoreError> {
        let pulls = self.store.pulls()?;
        // What a pull has fetched need not come again when the rest does.
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
                    let Some(usual) = self.scope.grace_of_blob(&digest, usual) else { continue };
                    let grace = self.grace(usual);
                    // Which blobs another process needs is not known. It needs none that might have been removed before it began.
                    let needed =
                        self.at_work.map_or(Duration::ZERO, |since| usual.saturating_add(since));
                    match is_held || (grace..=needed).contains(&file.age) {
                        true => self.pruned.held += 1,
                        false => self.remove_if_older(&file, grace, LeftoverKind::Blob),
                    }
                }
                Err(_) => self.download(&file),
            }
        }
        for pull in pulls {
            // A note about nothing: its blobs were removed, or another program has finished them.
            if !pull.is_running && (pull.completed == 0 || pull.completed == pull.total) {
                let note = File::of(pull.note, SystemTime::now());
                let grace = self.grace(self.scope.grace_of_temporary());
                note.iter()
                    .for_each(|note| self.remove_if_older(note, grace, LeftoverKind::Temporary));
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
            let grace = self.grace(if is_partial {
                PARTIAL_GRACE
            } else {
                self.scope.grace_of_temporary()
            });
            self.remove_if_older(&file, grace, LeftoverKind::Temporary);
        }
        if !self.options.dry_run {
            remove_merges(&temp, self.grace(self.scope.grace_of_temporary()));
        }
        Ok(())
    }

    /// A part of a download, or a file of another program.
    fn download(&mut self, file: &File) {
        let Some((digest, _)) = file.name.split_once("-partial") else { return };
        let Ok(digest) = digest.parse::<Digest>() else { return };
        if !self.scope.has_download(&digest) {
            return;
        }
        match self.store.is_being_downloaded(&digest) {
            true => self.pruned.held += 1,
            false => self.remove_if_older(file, self.grace(PARTIAL_GRACE), LeftoverKind::Download),
        }
    }

    /// Whether a process works on an upload, by the name of the note about it.
    fn is_at(&self, key: &str) -> bool {
        let key = format!("sha256-{key}").parse::<Digest>();
        key.is_ok_and(|key| self.store.is_being_downloaded(&key))
    }

    /// How long a file stays that no process works on; not longer than a minute where the user wants it gone.
    fn grace(&self, usual: Duration) -> Duration {
        if self.options.partial { STALL } else { usual }
    }

    /// Removes a file that nothing needs, if it is old enough.
    fn remove_if_older(&mut self, file: &File, grace: Duration, kind: LeftoverKind) {
        // A process may have begun to use a blob since the folder was read.
        let age = File::of(file.path.clone(), SystemTime::now())
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
            Err(error) => tracing::warn!(path = %file.path.display(), %error, "cannot be removed"),
        }
    }
}

/// All that pulls are of.
fn digests(pulls: Vec<&Pull>) -> HashSet<Digest> {
    pulls.iter().flat_map(|pull| pull.manifest.blobs().map(|layer| layer.digest)).collect()
}

/// Links to blobs from merges that were interrupted.
fn remove_merges(temp: &Path, grace: Duration) {
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
        let meta =
            fs::symlink_metadata(&path).ok().filter(|meta| meta.is_file() || meta.is_symlink())?;
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
