//! [`Store`]: manifests by model name and blobs by digest, in Ollama's layout, so that both
//! programs can share one folder.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use crate::admission::NewModel;
use crate::anchor::without_anchors;
use crate::digest::Digest;
use crate::embedded;
use crate::entry::{Entry, StoreLocation, child_text, read_entry, read_manifest_blob};
use crate::error::StoreError;
use crate::files;
use crate::fingerprint::FileFingerprint;
use crate::gguf_info::GgufInfoCache;
use crate::list_cache::ListCache;
use crate::manifest::{Layer, Manifest, media};
use crate::name::ModelName;
use crate::name_files::{NameFile, NameFolder, NameScan, is_shadow};
use crate::pins::{Pins, WorkGuard};
use crate::store_mode::StoreMode;
use crate::unresponsive_dirs::UnresponsiveDirs;

/// A folder of models, and optional read-only folders. Read operations write nothing and create no
/// folders. Any number of stores may be open on one folder.
pub struct Store {
    root: PathBuf,
    /// Folders of the same layout. The store finds their models and blobs and never writes to them.
    read_only_dirs: Vec<PathBuf>,
    /// The runner whose manifest is preferred in a manifest list.
    runner: Option<String>,
    /// Permission bits of model files; `None` leaves them to the umask.
    pub(crate) mode: Option<StoreMode>,
    pub(crate) pins: Pins,
    /// Messages that were logged already.
    reported: Mutex<HashSet<String>>,
    /// Damaged blob files in read-only folders, which the store treats as absent. A file counts
    /// again once its fingerprint changes.
    pub(crate) ignored_blobs: Mutex<HashMap<PathBuf, FileFingerprint>>,
    /// The last listing and the index of manifests.
    pub(crate) list_cache: ListCache,
    /// Read-only folders that did not answer the last query.
    pub(crate) unresponsive: UnresponsiveDirs,
    pub(crate) gguf_info_cache: GgufInfoCache,
}

/// Largest number of messages in [`Store::is_first_report`]'s memory.
const MAX_REPORTED: usize = 1000;

/// Result of [`Store::delete`].
#[derive(Debug, Clone, PartialEq)]
pub struct DeleteOutcome {
    /// The entry of the store that Puna does not know. It may need any blob, so no blob was
    /// removed.
    pub blocked_by: Option<StoreError>,
    /// Why files bypassed the trash although the disk has room for them.
    pub trash_error: Option<String>,
}

/// The models folder: the value of `OLLAMA_MODELS` without surrounding blanks and quotes, or
/// `.ollama/models` in the home folder.
pub fn default_root(variable: Option<&str>, home: Option<&Path>) -> PathBuf {
    match variable.map(|v| v.trim().trim_matches(['"', '\'']).trim()).filter(|v| !v.is_empty()) {
        Some(path) => PathBuf::from(path),
        None => home.unwrap_or(Path::new(".")).join(".ollama").join("models"),
    }
}

impl Store {
    /// Opens the store in a folder, which need not exist.
    ///
    /// # Errors
    /// The path is not a folder, or the folder cannot be read.
    pub fn open(root: impl Into<PathBuf>) -> Result<Self, StoreError> {
        let root = root.into();
        for dir in
            [root.clone(), NameFolder::Manifests.at(&root), NameFolder::ManifestsV2.at(&root)]
        {
            match fs::read_dir(&dir) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                Err(e) => return Err(StoreError::io("open the store", &dir, &e)),
                Ok(_) => {}
            }
        }
        let (read_only_dirs, ignored_blobs) = (Vec::new(), Mutex::default());
        let (reported, list_cache, unresponsive) =
            (Mutex::default(), ListCache::default(), UnresponsiveDirs::default());
        Ok(Self {
            pins: Pins::new(root.join(files::TEMP_DIR)),
            root,
            read_only_dirs,
            runner: None,
            mode: None,
            reported,
            ignored_blobs,
            list_cache,
            unresponsive,
            gguf_info_cache: GgufInfoCache::default(),
        })
    }

    /// Adds read-only folders, which are searched in this order after the store's own folder. They
    /// need not exist yet: a network share may be mounted later.
    pub fn with_read_only_dirs(mut self, folders: impl IntoIterator<Item = PathBuf>) -> Self {
        self.read_only_dirs = folders.into_iter().filter(|folder| *folder != self.root).collect();
        self
    }

    /// The store's own folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The read-only folders.
    pub fn read_only_dirs(&self) -> &[PathBuf] {
        &self.read_only_dirs
    }

    /// Sets the runner, such as `ggml`, whose manifest is preferred in a manifest list.
    pub fn with_runner(mut self, runner: Option<String>) -> Self {
        self.runner = runner;
        self
    }

    /// The runner whose manifest is preferred.
    pub(crate) fn runner(&self) -> Option<&str> {
        self.runner.as_deref()
    }

    /// All folders, the store's own folder first.
    pub(crate) fn locations(&self) -> impl Iterator<Item = StoreLocation> {
        [StoreLocation::Own]
            .into_iter()
            .chain(self.read_only_dirs.iter().cloned().map(StoreLocation::ReadOnly))
    }

    /// The folder of a location.
    pub(crate) fn root_of<'a>(&'a self, location: &'a StoreLocation) -> &'a Path {
        if let StoreLocation::ReadOnly(folder) = location { folder } else { &self.root }
    }

    /// Whether a message is reported for the first time. A list that is read every second must not
    /// fill the log.
    pub fn is_first_report(&self, error: &str) -> bool {
        let mut reported = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
        if reported.len() >= MAX_REPORTED {
            reported.clear();
        }
        reported.insert(error.to_owned())
    }

    /// Finds a model by name, ignoring case.
    ///
    /// # Errors
    /// The file of the name is no valid manifest, or the store cannot be read.
    pub fn find(&self, name: &ModelName) -> Result<Option<Entry>, StoreError> {
        if let Some(entry) = self.find_own(name)? {
            return Ok(Some(entry));
        }
        for folder in self.read_only_dirs() {
            let (wanted, root, runner) = (name.clone(), folder.clone(), self.runner.clone());
            let location = StoreLocation::ReadOnly(folder.clone());
            let found = self
                .unresponsive
                .query(folder, move || find_at(&root, &wanted, &location, runner.as_deref()));
            if let Some(entry) = found.transpose()?.flatten() {
                return Ok(Some(entry));
            }
        }
        Ok(Some(embedded::entry()).filter(|entry| entry.name.same(name)))
    }

    /// Like [`Store::find`], in the store's own folder only.
    pub(crate) fn find_own(&self, name: &ModelName) -> Result<Option<Entry>, StoreError> {
        find_at(&self.root, name, &StoreLocation::Own, self.runner())
    }

    /// Like [`Store::find`], but an absent model is an error.
    ///
    /// # Errors
    /// [`StoreError::NotFound`], or [`StoreError::Unresponsive`] if the model may be in a folder
    /// that does not answer.
    pub fn get(&self, name: &ModelName) -> Result<Entry, StoreError> {
        let unresponsive =
            || self.read_only_dirs().iter().find(|folder| self.unresponsive.contains(folder));
        self.find(name)?.ok_or_else(|| match unresponsive() {
            Some(folder) => StoreError::Unresponsive { folder: folder.clone() },
            None => StoreError::NotFound(name.to_string()),
        })
    }

    /// Like [`Store::get`], with the manifest for `runner` if it is given.
    ///
    /// # Errors
    /// Those of [`Store::get`] and [`Entry::for_runner`].
    pub fn get_for(&self, name: &ModelName, runner: Option<&str>) -> Result<Entry, StoreError> {
        let entry = self.get(name)?;
        match runner {
            Some(runner) => entry.for_runner(runner),
            None => Ok(entry),
        }
    }

    /// The spelling under which a model is written. It follows an existing model of the same name,
    /// or else existing folders as far as they match.
    ///
    /// # Errors
    /// The store cannot be read.
    pub(crate) fn spelling(&self, name: &ModelName) -> Result<ModelName, StoreError> {
        let files = NameScan::of(&self.root)?.files;
        let models = files.into_iter().map(|file| file.name).filter(|name| !is_shadow(name));
        let shared = |other: &ModelName| {
            let pairs = name.parts().into_iter().zip(other.parts());
            pairs.take_while(|(a, b)| a.eq_ignore_ascii_case(b)).count()
        };
        // Among equal matches, the name's own spelling wins, then the first in order.
        let exact = |other: &ModelName, n: usize| name.parts()[..n] == other.parts()[..n];
        let mut best: Option<(usize, bool, ModelName)> = None;
        for other in models {
            let n = shared(&other);
            let rank = (n, exact(&other, n));
            if n > 0 && best.as_ref().is_none_or(|(n, same, _)| rank > (*n, *same)) {
                best = Some((rank.0, rank.1, other));
            }
        }
        let Some((n, _, model)) = best else { return Ok(name.clone()) };
        let mut parts = name.parts();
        parts[..n].copy_from_slice(&model.parts()[..n]);
        Ok(ModelName::from_parts(parts[0], parts[1], parts[2], parts[3])?)
    }

    /// Finds a model, optionally with the manifest for a runner, and pins its blobs. All of them
    /// are present.
    ///
    /// # Errors
    /// [`StoreError::NotFound`], also if the model is removed at the same time;
    /// [`StoreError::Incomplete`]; those of [`Entry::for_runner`].
    pub(crate) fn pin_model(
        &self,
        name: &ModelName,
        runner: Option<&str>,
    ) -> Result<Entry, StoreError> {
        loop {
            let entry = self.get_for(name, runner)?;
            if entry.is_embedded() {
                for bytes in embedded::blobs() {
                    self.add_blob(&bytes)?;
                }
            }
            entry.manifest.blobs().for_each(|layer| self.pins.pin(&layer.digest));
            let missing = entry.manifest.blobs().find_map(|layer| self.layer_path(layer).err());
            let Some(missing) = missing else { return Ok(entry) };
            self.pins.unpin(entry.manifest.blobs().map(|layer| layer.digest));
            if self.get(name)?.digest == entry.digest {
                return Err(missing.for_model(&entry.name));
            }
        }
    }

    /// Registers a file as a model without copying it. The blob is a link, and its name is a digest
    /// of the file's path, size and time, not of its content. Use it only for a temporary store:
    /// other programs consider this blob damaged.
    ///
    /// # Errors
    /// The file cannot be found, or the store cannot be written.
    pub fn link_file(&self, name: &ModelName, path: &Path) -> Result<(), StoreError> {
        let found = || -> io::Result<_> {
            let path = path.canonicalize()?;
            let meta = fs::metadata(&path)?;
            Ok((path, meta.len(), meta.modified().ok()))
        };
        let (path, size, time) = found().map_err(|e| StoreError::io("read", path, &e))?;
        let digest = Digest::of(format!("{}\n{size}\n{time:?}", path.display()).as_bytes());
        let blob = self.own_blob_path(&digest);
        self.create_model_dir(&self.root.join("blobs"))?;
        match symlink_or_copy(&path, &blob) {
            // The same file was linked under another model name.
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            linked => linked.map_err(|e| StoreError::io("link", &blob, &e))?,
        }
        let manifest =
            Manifest { config: None, layers: vec![Layer::new(media::MODEL, digest, size)] };
        self.write_manifest(name, &manifest.to_bytes(), true)
    }

    /// Copies a model to another name, which it replaces. Copying a model to itself does nothing.
    ///
    /// # Errors
    /// [`StoreError::NotFound`], [`StoreError::Incomplete`], or the store cannot be written.
    pub fn copy(&self, source: &ModelName, target: &ModelName) -> Result<(), StoreError> {
        self.copy_for(source, None, target)
    }

    /// Like [`Store::copy`]. With `runner`, only that runner's manifest is copied instead of the
    /// manifest list.
    ///
    /// # Errors
    /// Those of [`Store::copy`] and [`Entry::for_runner`].
    pub fn copy_for(
        &self,
        source: &ModelName,
        runner: Option<&str>,
        target: &ModelName,
    ) -> Result<(), StoreError> {
        let _work = self.begin_work();
        let source = self.pin_model(source, runner)?;
        let copied = match (&source.list, runner) {
            (Some(list), Some(_)) => self
                .child_manifest(&source, list.chosen)
                .and_then(|text| self.write_manifest(&self.spelling(target)?, &text, false)),
            _ => self.copy_pinned(&source, target),
        };
        self.pins.unpin(source.manifest.blobs().map(|layer| layer.digest));
        copied
    }

    /// The model that [`Store::copy_for`] would store.
    ///
    /// # Errors
    /// [`StoreError::NotFound`], or the store cannot be read.
    pub fn plan_copy(
        &self,
        source: &ModelName,
        runner: Option<&str>,
        target: &ModelName,
    ) -> Result<NewModel, StoreError> {
        Ok(NewModel::copy_of(target, &self.get_for(source, runner)?))
    }

    /// The bytes of a model's manifest or manifest list.
    pub(crate) fn stored_manifest(&self, entry: &Entry) -> Result<Vec<u8>, StoreError> {
        match &entry.location {
            StoreLocation::Embedded => Ok(embedded::manifest_bytes()),
            location => manifest_text(self.root_of(location), entry),
        }
    }

    /// The bytes of the manifest of a list's child.
    ///
    /// # Errors
    /// [`StoreError::ChildMissing`], or the child's manifest is damaged.
    ///
    /// # Panics
    /// If the entry has no manifest list, or the list has no child with index `at`.
    pub fn child_manifest(&self, entry: &Entry, at: usize) -> Result<Vec<u8>, StoreError> {
        let list = entry.list.as_ref().expect("a list of manifests");
        child_text(self.root_of(&entry.location), &entry.name, &list.children[at])
    }

    fn copy_pinned(&self, source: &Entry, target: &ModelName) -> Result<(), StoreError> {
        let target = self.spelling(target)?;
        if source.name.same(&target) && source.location == StoreLocation::Own {
            return Ok(());
        }
        let bytes = self.stored_manifest(source).map_err(|error| match error.is_not_found() {
            true => StoreError::NotFound(source.name.to_string()),
            false => error,
        })?;
        // The manifests of a list's children must be in the own folder, even if their layers are in
        // another folder.
        for stored in source.list.iter().flat_map(|list| &list.children) {
            if stored.manifest.is_none() || stored.child.inline.is_some() {
                continue;
            }
            let root = self.root_of(&source.location);
            if let Ok(Some(text)) = read_manifest_blob(root, &stored.child.digest) {
                self.add_manifest(&text)?;
            }
        }
        self.write_manifest(&target, &bytes, false)
    }

    /// Begins work on a model. Several works may pin the same blob: blobs that one of them unpins
    /// stay until all have ended.
    pub fn begin_work(&self) -> WorkGuard {
        self.pins.begin_work()
    }

    /// Locks the folder against other writers, also in other processes. Dropping the file releases
    /// the lock.
    pub(crate) fn lock(&self) -> Result<File, StoreError> {
        files::lock_file(&self.root.join(files::TEMP_DIR).join("lock"))
    }
}

/// Finds a model in the store at `root`, ignoring case. A dangling link counts as absent.
fn find_at(
    root: &Path,
    name: &ModelName,
    location: &StoreLocation,
    runner: Option<&str>,
) -> Result<Option<Entry>, StoreError> {
    let is_hidden = |file: &NameFile| file.folder == NameFolder::Manifests && is_shadow(&file.name);
    for file in NameFile::all_of(root, name)?.into_iter().filter(|file| !is_hidden(file)) {
        match read_entry(root, &file, location.clone(), runner) {
            Err(error) if error.is_not_found() => {}
            read => return read.map(Some),
        }
    }
    Ok(None)
}

/// The bytes of a model's manifest or manifest list. For an anchor, the bytes of the manifest
/// without the anchor's layers.
fn manifest_text(root: &Path, entry: &Entry) -> Result<Vec<u8>, StoreError> {
    let mut error = StoreError::NotFound(entry.name.to_string());
    for file in NameFile::all_of(root, &entry.name)? {
        match file.read(root) {
            Ok(text) if text.digest == entry.digest => return Ok(without_anchors(text.bytes)),
            // The file is an anchor of a manifest list.
            Ok(_) => {
                if let Ok(Some(bytes)) = read_manifest_blob(root, &entry.digest) {
                    return Ok(bytes);
                }
            }
            Err(failed) => error = failed,
        }
    }
    Err(error)
}

/// Makes a symbolic link, or a copy where the system has no links.
fn symlink_or_copy(path: &Path, link: &Path) -> io::Result<()> {
    #[cfg(unix)]
    return std::os::unix::fs::symlink(path, link);
    #[cfg(not(unix))]
    return fs::hard_link(path, link).or_else(|_| fs::copy(path, link).map(|_| ()));
}
