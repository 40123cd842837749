//! The store: manifests by name and blobs by digest, in Ollama's layout, so that both programs share one folder.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use crate::digest::Digest;
use crate::embedded;
use crate::error::StoreError;
use crate::facts::Facts;
use crate::files::{self, read_limited, sync_dir, write_atomic};
use crate::listing::{Memory, Scan, foreign, read_entry};
use crate::manifest::{Layer, Manifest, TEXT_LIMIT, media};
use crate::name::ModelName;
use crate::prune::GRACE;
use crate::silent::Silent;
use crate::stamp::Stamp;
use crate::work::Pins;

/// A folder of models, and further ones that are only read. Reading never writes, not even folders; any number of stores
/// may be open on one folder.
pub struct Store {
    root: PathBuf,
    /// Folders of the same layout whose models and blobs count too, but that are never written.
    others: Vec<PathBuf>,
    pub(crate) pins: Arc<Mutex<Pins>>,
    /// Troubles that were reported.
    told: Mutex<HashSet<String>>,
    /// Blobs' files in the other folders that are damaged, and by what they are known again.
    pub(crate) shunned: Mutex<HashMap<PathBuf, Stamp>>,
    /// What lists remember.
    pub(crate) listed: Memory,
    /// Folders that are only read and do not answer.
    pub(crate) silent: Silent,
    /// What the files of models say, by their blob.
    pub(crate) facts: Mutex<HashMap<Digest, Arc<Facts>>>,
}

/// Troubles that are remembered as reported.
const TOLD: usize = 1000;

/// What was removed with a model.
#[derive(Debug, Clone, PartialEq)]
pub struct Deleted {
    /// Why the blobs were kept, where a file among the manifests cannot be read: it might use them.
    pub kept: Option<StoreError>,
}

/// A model of the store as a list shows it.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// The name, as the store spells it.
    pub name: ModelName,
    /// The digest of the manifest.
    pub digest: Digest,
    /// When the manifest was written.
    pub modified: SystemTime,
    /// The manifest.
    pub manifest: Manifest,
    /// Where it is.
    pub place: Place,
}

/// Where a model is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// In the store's own folder.
    Own,
    /// In a folder that is only read.
    Other(PathBuf),
    /// Part of the program, and in no folder.
    Embedded,
}

impl Entry {
    /// Whether it is part of the program.
    pub fn is_embedded(&self) -> bool {
        self.place == Place::Embedded
    }

    /// Bytes of the model, as its manifest states them.
    pub fn size(&self) -> u64 {
        self.manifest.size()
    }
}

/// The folder of models: what `OLLAMA_MODELS` says (blanks and quotes around it removed), else `.ollama/models` in the
/// home folder.
pub fn default_root(variable: Option<&str>, home: Option<&Path>) -> PathBuf {
    match variable.map(|v| v.trim().trim_matches(['"', '\'']).trim()).filter(|v| !v.is_empty()) {
        Some(path) => PathBuf::from(path),
        None => home.unwrap_or(Path::new(".")).join(".ollama").join("models"),
    }
}

impl Store {
    /// Opens the store in a folder, which need not exist yet.
    ///
    /// # Errors
    /// Something is there that is no folder, or cannot be read.
    pub fn open(root: impl Into<PathBuf>) -> Result<Self, StoreError> {
        let root = root.into();
        for dir in [root.clone(), root.join("manifests")] {
            match fs::read_dir(&dir) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => break,
                Err(e) => return Err(StoreError::io("open the store", &dir, &e)),
                Ok(_) => {}
            }
        }
        let (others, pins, shunned) = (Vec::new(), Arc::default(), Mutex::default());
        let (told, listed, silent) = (Mutex::default(), Memory::default(), Silent::default());
        Ok(Self { root, others, pins, told, shunned, listed, silent, facts: Mutex::default() })
    }

    /// The same store with further folders, whose models and blobs are found too, in this order, where its own folder has
    /// none. They are only read, and need not be there: a share may be mounted later.
    pub fn with_others(mut self, folders: impl IntoIterator<Item = PathBuf>) -> Self {
        self.others = folders.into_iter().filter(|folder| *folder != self.root).collect();
        self
    }

    /// The folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The folders that are only read.
    pub fn others(&self) -> &[PathBuf] {
        &self.others
    }

    pub(crate) fn manifests(&self) -> PathBuf {
        manifests_of(&self.root)
    }

    /// All folders, the store's own first.
    pub(crate) fn places(&self) -> impl Iterator<Item = Place> {
        [Place::Own].into_iter().chain(self.others.iter().cloned().map(Place::Other))
    }

    /// The folder of the manifests of a place.
    pub(crate) fn manifests_at(&self, place: &Place) -> PathBuf {
        manifests_of(if let Place::Other(folder) = place { folder } else { &self.root })
    }

    /// Whether a trouble was not reported before, so that a list that is read every second does not fill the log.
    pub fn is_news(&self, trouble: &str) -> bool {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.len() >= TOLD {
            told.clear();
        }
        told.insert(trouble.to_owned())
    }

    /// The model of a name, whose case does not count.
    ///
    /// # Errors
    /// The manifest is there but is none, or the store cannot be read.
    pub fn find(&self, name: &ModelName) -> Result<Option<Entry>, StoreError> {
        if let Some(entry) = self.find_own(name)? {
            return Ok(Some(entry));
        }
        for folder in self.others() {
            let place = Place::Other(folder.clone());
            let (wanted, manifests) = (name.clone(), self.manifests_at(&place));
            let found = self.ask_other(folder, move || find_at(&wanted, &place, &manifests));
            if let Some(entry) = found.transpose()?.flatten() {
                return Ok(Some(entry));
            }
        }
        Ok(Some(embedded::entry()).filter(|entry| entry.name.same(name)))
    }

    /// The same in the own folder alone.
    pub(crate) fn find_own(&self, name: &ModelName) -> Result<Option<Entry>, StoreError> {
        find_at(name, &Place::Own, &self.manifests())
    }

    /// As [`Store::find`], for callers that need the model.
    ///
    /// # Errors
    /// [`StoreError::NotFound`] too, or [`StoreError::Silent`]: it may be in a folder that does not answer.
    pub fn get(&self, name: &ModelName) -> Result<Entry, StoreError> {
        let silent = || self.others().iter().find(|folder| self.silent.has(folder));
        self.find(name)?.ok_or_else(|| match silent() {
            Some(folder) => StoreError::Silent { folder: folder.clone() },
            None => StoreError::NotFound(name.to_string()),
        })
    }

    /// The spelling under which a model is to be written: that of an existing model of this name, else the case of
    /// existing folders as far as they match.
    ///
    /// # Errors
    /// The store cannot be read.
    pub(crate) fn spelling(&self, name: &ModelName) -> Result<ModelName, StoreError> {
        let models = self.scan(&Place::Own)?.models;
        let shared = |other: &ModelName| {
            let pairs = name.parts().into_iter().zip(other.parts());
            pairs.take_while(|(a, b)| a.eq_ignore_ascii_case(b)).count()
        };
        // Ties go to the name itself where it has a folder, then to the first in order.
        let exact = |other: &ModelName, n: usize| name.parts()[..n] == other.parts()[..n];
        let mut best: Option<(usize, bool, ModelName)> = None;
        for (other, _) in models {
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

    /// The model of a name, whose blobs are pinned and all there.
    ///
    /// # Errors
    /// [`StoreError::NotFound`], also where it is removed meanwhile; [`StoreError::Incomplete`].
    pub(crate) fn hold(&self, name: &ModelName) -> Result<Entry, StoreError> {
        loop {
            let entry = self.get(name)?;
            if entry.is_embedded() {
                embedded::store_blobs(self)?;
            }
            entry.manifest.blobs().for_each(|layer| self.pin(&layer.digest));
            let missing = entry.manifest.blobs().find_map(|layer| self.layer_path(layer).err());
            let Some(missing) = missing else { return Ok(entry) };
            self.release(entry.manifest.blobs().map(|layer| layer.digest));
            if self.get(name)?.digest == entry.digest {
                return Err(missing.of_model(&entry.name));
            }
        }
    }

    /// Writes a manifest, under the store's lock, after a check that all its blobs are there; then removes the blobs
    /// that only the replaced manifest used, unless `keep_unused`.
    pub(crate) fn write_manifest(
        &self,
        name: &ModelName,
        bytes: &[u8],
        keep_unused: bool,
    ) -> Result<(), StoreError> {
        self.replace_manifest(name, bytes, keep_unused, &mut || ()).map(drop)
    }

    /// The same; `removing` is called before blobs are removed. Says what was replaced.
    pub(crate) fn replace_manifest(
        &self,
        name: &ModelName,
        bytes: &[u8],
        keep_unused: bool,
        removing: &mut dyn FnMut(),
    ) -> Result<Option<Entry>, StoreError> {
        let path = name.manifest_path(&self.manifests());
        let manifest = Manifest::parse(bytes, &path)?;
        let _lock = self.lock()?;
        let replaced = read_entry(name, &path, Place::Own).ok();
        for layer in manifest.blobs() {
            self.layer_path(layer)?;
        }
        write_atomic(&self.root, &path, bytes)?;
        self.release(manifest.blobs().map(|layer| layer.digest));
        if let Some(Entry { manifest: old, .. }) = &replaced
            && !keep_unused
        {
            let is_new = |old: &Layer| manifest.blobs().any(|layer| layer.digest == old.digest);
            if !old.blobs().all(is_new) {
                removing();
            }
            // Why something was kept is in the log.
            let _ = self.remove_unused(old)?;
        }
        Ok(replaced)
    }

    /// Makes a model of a file that stays where it is: the blob is a link, named by the file's path, size and time rather
    /// than by its content. For stores that live as long as one command; other programs would take such a blob for broken.
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
        files::create_dir(&self.root.join("blobs"))?;
        match link(&path, &blob) {
            // Under another name it is there already.
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            linked => linked.map_err(|e| StoreError::io("link", &blob, &e))?,
        }
        let manifest = Manifest { config: None, layers: vec![Layer::new(media::MODEL, digest, size)] };
        self.write_manifest(name, &manifest.to_bytes(), true)
    }

    /// Copies a model under another name. A name that exists is replaced; a model onto itself is left alone.
    ///
    /// # Errors
    /// [`StoreError::NotFound`], [`StoreError::Incomplete`], or the store cannot be written.
    pub fn copy(&self, source: &ModelName, target: &ModelName) -> Result<(), StoreError> {
        let _work = self.work();
        let source = self.hold(source)?;
        let copied = self.copy_held(&source, target);
        self.release(source.manifest.blobs().map(|layer| layer.digest));
        copied
    }

    /// The manifest of a model, byte for byte.
    pub(crate) fn bytes_of(&self, entry: &Entry) -> Result<Vec<u8>, StoreError> {
        match &entry.place {
            Place::Embedded => Ok(embedded::manifest_bytes()),
            place => read_limited(&entry.name.manifest_path(&self.manifests_at(place)), TEXT_LIMIT),
        }
    }

    fn copy_held(&self, source: &Entry, target: &ModelName) -> Result<(), StoreError> {
        let target = self.spelling(target)?;
        if source.name.same(&target) && source.place == Place::Own {
            return Ok(());
        }
        let bytes = self.bytes_of(source).map_err(|error| match error.is_absence() {
            true => StoreError::NotFound(source.name.to_string()),
            false => error,
        })?;
        self.write_manifest(&target, &bytes, false)
    }

    /// Removes a model, and the blobs that no other model uses.
    ///
    /// # Errors
    /// [`StoreError::NotFound`], [`StoreError::BuiltIn`], or the store cannot be written.
    pub fn delete(&self, name: &ModelName) -> Result<Deleted, StoreError> {
        match self.find_own(name) {
            // A broken manifest can be removed, too.
            Err(StoreError::Manifest { path, .. }) => {
                let _lock = self.lock()?;
                self.remove_manifest(&path)?;
                return Ok(Deleted { kept: self.used_blobs()?.err() });
            }
            Ok(Some(_)) => {}
            Ok(None) => return Err(self.not_removable(name)),
            Err(error) => return Err(error),
        }
        let _lock = self.lock()?;
        // As it is now that nobody else writes.
        let Some(entry) = self.find_own(name)? else { return Err(self.not_removable(name)) };
        self.remove_manifest(&entry.name.manifest_path(&self.manifests()))?;
        Ok(Deleted { kept: self.remove_unused(&entry.manifest)? })
    }

    /// Why there is nothing of this name in the own folder to remove: it is somebody else's, or nowhere.
    fn not_removable(&self, name: &ModelName) -> StoreError {
        match self.find(name) {
            Ok(Some(Entry { name, place: Place::Other(folder), .. })) => {
                StoreError::OnlyRead { name: name.to_string(), folder }
            }
            Ok(Some(entry)) => StoreError::BuiltIn { name: entry.name.to_string() },
            Ok(None) => StoreError::NotFound(name.to_string()),
            Err(StoreError::Manifest { path, reason }) => {
                let folder = self.others().iter().find(|folder| path.starts_with(folder));
                match folder {
                    Some(folder) => StoreError::OnlyRead { name: name.to_string(), folder: folder.clone() },
                    None => StoreError::Manifest { path, reason },
                }
            }
            Err(error) => error,
        }
    }

    /// Removes a manifest's file and the folders that are empty without it.
    fn remove_manifest(&self, path: &Path) -> Result<(), StoreError> {
        files::remove(path)?;
        let manifests = self.manifests();
        for dir in path.ancestors().skip(1).take_while(|dir| *dir != manifests) {
            sync_dir(dir);
            if fs::remove_dir(dir).is_err() {
                break;
            }
        }
        Ok(())
    }

    /// Removes the blobs of `manifest` that no model uses. Does nothing where a manifest cannot be read, which might use
    /// them, and says which. What another process may count on that is at work stays for whoever clears away.
    pub(crate) fn remove_unused(&self, manifest: &Manifest) -> Result<Option<StoreError>, StoreError> {
        let used = match self.used_blobs()? {
            Ok(used) => used,
            Err(unreadable) => return Ok(Some(unreadable)),
        };
        // By the rule of [`Store::prune`].
        let needed = self.at_work_elsewhere().map(|since| GRACE.saturating_add(since));
        let pins = self.pins();
        let mut done = HashSet::new();
        for layer in manifest.blobs() {
            if used.contains(&layer.digest) || pins.has(&layer.digest) || !done.insert(layer.digest) {
                continue;
            }
            let path = self.own_blob_path(&layer.digest);
            match needed.is_some_and(|needed| unused_for(&path).is_some_and(|age| age <= needed)) {
                true => {
                    tracing::info!(blob = %layer.digest, "stays while another process is at work on a model")
                }
                false => files::remove(&path)?,
            }
        }
        Ok(None)
    }

    /// Removes blobs that no manifest uses and nobody holds. Without any it writes nothing, also not into a store that it may only read.
    ///
    /// # Errors
    /// The store cannot be read or written.
    pub fn remove_blobs(&self, digests: &[Digest]) -> Result<(), StoreError> {
        if digests.is_empty() {
            return Ok(());
        }
        let layers = digests.iter().map(|digest| Layer::new("", *digest, 0)).collect();
        let _lock = self.lock()?;
        // Why something was kept is in the log.
        self.remove_unused(&Manifest { config: None, layers }).map(drop)
    }

    /// The blobs of all manifests; the inner error is the first of them that cannot be read.
    pub(crate) fn used_blobs(&self) -> Result<Result<HashSet<Digest>, StoreError>, StoreError> {
        let scan = self.scan(&Place::Own)?;
        let mut used = HashSet::new();
        let unreadable = |error: StoreError| {
            if self.is_news(&format!("unused {error}")) {
                tracing::warn!(%error, "no unused blob is removed while this is among the manifests");
            }
            Ok(Err(error))
        };
        for (name, path) in &scan.models {
            match read_entry(name, path, Place::Own) {
                Ok(entry) => used.extend(entry.manifest.blobs().map(|layer| layer.digest)),
                Err(error) => return unreadable(error),
            }
        }
        match scan.foreign.into_iter().next() {
            Some(path) => unreadable(foreign(path)),
            None => Ok(Ok(used)),
        }
    }

    /// The lock that writers of one folder share, also across processes. Held until it is dropped.
    pub(crate) fn lock(&self) -> Result<File, StoreError> {
        files::lock_file(&self.root.join(files::TEMP_DIR).join("lock"))
    }
}

/// The model of a name in a folder of manifests, whose case does not count.
fn find_at(name: &ModelName, place: &Place, manifests: &Path) -> Result<Option<Entry>, StoreError> {
    if let Some(entry) = read_if_there(name, &name.manifest_path(manifests), place)? {
        return Ok(Some(entry));
    }
    let same = Scan::files(manifests)?.models.into_iter().find(|(other, _)| other.same(name));
    same.map_or(Ok(None), |(name, path)| read_if_there(&name, &path, place))
}

fn manifests_of(folder: &Path) -> PathBuf {
    folder.join("manifests")
}

/// For how long nobody has touched a file; `None` where there is none.
fn unused_for(path: &Path) -> Option<Duration> {
    let last = files::last_use(&fs::symlink_metadata(path).ok()?).ok()?;
    Some(last.elapsed().unwrap_or_default())
}

/// `None` where there is no such file, or no more.
fn read_if_there(name: &ModelName, path: &Path, place: &Place) -> Result<Option<Entry>, StoreError> {
    match read_entry(name, path, place.clone()) {
        Err(error) if error.is_absence() => Ok(None),
        read => read.map(Some),
    }
}

/// A link that costs nothing; where the system has none, a copy.
fn link(path: &Path, link: &Path) -> io::Result<()> {
    #[cfg(unix)]
    return std::os::unix::fs::symlink(path, link);
    #[cfg(not(unix))]
    return fs::hard_link(path, link).or_else(|_| fs::copy(path, link).map(|_| ()));
}
