//! The store: manifests by name and blobs by digest, in Ollama's layout, so that both programs share one folder.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use crate::anchor::without_anchors;
use crate::digest::Digest;
use crate::embedded;
use crate::entry::{Entry, Place, child_text, read_entry, read_manifest_blob};
use crate::error::StoreError;
use crate::facts::Facts;
use crate::files;
use crate::listing::Memory;
use crate::manifest::{Layer, Manifest, media};
use crate::name::ModelName;
use crate::names::{NameFile, NameFolder, NameScan, is_shadow};
use crate::silent::Silent;
use crate::stamp::Stamp;
use crate::work::Pins;

/// A folder of models, and further ones that are only read. Reading never writes, not even folders; any number of stores
/// may be open on one folder.
pub struct Store {
    root: PathBuf,
    /// Folders of the same layout whose models and blobs count too, but that are never written.
    others: Vec<PathBuf>,
    /// The runner whose manifest is preferred among those of a list.
    runner: Option<String>,
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
    /// The entry of the store that Puna does not understand. It may need any blob, so no blob was removed.
    pub blocked_by: Option<StoreError>,
    /// Why the name or blobs are not in the trash, though the disk has room for them.
    pub removed_for_good: Option<String>,
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
        for dir in
            [root.clone(), NameFolder::Manifests.at(&root), NameFolder::ManifestsV2.at(&root)]
        {
            match fs::read_dir(&dir) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                Err(e) => return Err(StoreError::io("open the store", &dir, &e)),
                Ok(_) => {}
            }
        }
        let (others, pins, shunned) = (Vec::new(), Arc::default(), Mutex::default());
        let (told, listed, silent) = (Mutex::default(), Memory::default(), Silent::default());
        Ok(Self {
            root,
            others,
            runner: None,
            pins,
            told,
            shunned,
            listed,
            silent,
            facts: Mutex::default(),
        })
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

    /// The same store that prefers the manifest for a runner, such as `ggml`, where a name stands for several.
    pub fn with_runner(mut self, runner: Option<String>) -> Self {
        self.runner = runner;
        self
    }

    /// The runner whose manifest is preferred.
    pub(crate) fn runner(&self) -> Option<&str> {
        self.runner.as_deref()
    }

    /// All folders, the store's own first.
    pub(crate) fn places(&self) -> impl Iterator<Item = Place> {
        [Place::Own].into_iter().chain(self.others.iter().cloned().map(Place::Other))
    }

    /// The folder of a place.
    pub(crate) fn root_of<'a>(&'a self, place: &'a Place) -> &'a Path {
        if let Place::Other(folder) = place { folder } else { &self.root }
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
            let (wanted, root, runner) = (name.clone(), folder.clone(), self.runner.clone());
            let place = Place::Other(folder.clone());
            let found =
                self.ask_other(folder, move || find_at(&root, &wanted, &place, runner.as_deref()));
            if let Some(entry) = found.transpose()?.flatten() {
                return Ok(Some(entry));
            }
        }
        Ok(Some(embedded::entry()).filter(|entry| entry.name.same(name)))
    }

    /// The same in the own folder alone.
    pub(crate) fn find_own(&self, name: &ModelName) -> Result<Option<Entry>, StoreError> {
        find_at(&self.root, name, &Place::Own, self.runner())
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

    /// The same with the manifest for a runner, where one is named.
    ///
    /// # Errors
    /// Also those of [`Entry::for_runner`].
    pub fn get_for(&self, name: &ModelName, runner: Option<&str>) -> Result<Entry, StoreError> {
        let entry = self.get(name)?;
        match runner {
            Some(runner) => entry.for_runner(runner),
            None => Ok(entry),
        }
    }

    /// The spelling under which a model is to be written: that of an existing model of this name, else the case of
    /// existing folders as far as they match.
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
        // Ties go to the name itself where it has a folder, then to the first in order.
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

    /// The model of a name, with the manifest for a runner where one is named. Its blobs are pinned and all there.
    ///
    /// # Errors
    /// [`StoreError::NotFound`], also where it is removed at the same time; [`StoreError::Incomplete`]; those of
    /// [`Entry::for_runner`].
    pub(crate) fn hold(&self, name: &ModelName, runner: Option<&str>) -> Result<Entry, StoreError> {
        loop {
            let entry = self.get_for(name, runner)?;
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
        let manifest =
            Manifest { config: None, layers: vec![Layer::new(media::MODEL, digest, size)] };
        self.write_manifest(name, &manifest.to_bytes(), true)
    }

    /// Copies a model under another name. A name that exists is replaced; a model onto itself is left alone.
    ///
    /// # Errors
    /// [`StoreError::NotFound`], [`StoreError::Incomplete`], or the store cannot be written.
    pub fn copy(&self, source: &ModelName, target: &ModelName) -> Result<(), StoreError> {
        self.copy_for(source, None, target)
    }

    /// The same; where a runner is named, its manifest alone is copied instead of the list of all.
    ///
    /// # Errors
    /// Also those of [`Entry::for_runner`].
    pub fn copy_for(
        &self,
        source: &ModelName,
        runner: Option<&str>,
        target: &ModelName,
    ) -> Result<(), StoreError> {
        let _work = self.work();
        let source = self.hold(source, runner)?;
        let copied = match (&source.list, runner) {
            (Some(list), Some(_)) => self
                .child_manifest(&source, list.chosen)
                .and_then(|text| self.write_manifest(&self.spelling(target)?, &text, false)),
            _ => self.copy_held(&source, target),
        };
        self.release(source.manifest.blobs().map(|layer| layer.digest));
        copied
    }

    /// The manifest of a model, byte for byte.
    pub(crate) fn bytes_of(&self, entry: &Entry) -> Result<Vec<u8>, StoreError> {
        match &entry.place {
            Place::Embedded => Ok(embedded::manifest_bytes()),
            place => name_text(self.root_of(place), entry),
        }
    }

    /// The manifest of a child of a list, byte for byte.
    ///
    /// # Errors
    /// [`StoreError::ChildMissing`], or the child's manifest is damaged.
    ///
    /// # Panics
    /// The entry is no list, or has no child `at` that index.
    pub fn child_manifest(&self, entry: &Entry, at: usize) -> Result<Vec<u8>, StoreError> {
        let list = entry.list.as_ref().expect("a list of manifests");
        child_text(self.root_of(&entry.place), &entry.name, &list.children[at])
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
        // A list's manifests are the folder's own, also where its layers lie elsewhere.
        for stored in source.list.iter().flat_map(|list| &list.children) {
            if stored.manifest.is_none() || stored.child.inline.is_some() {
                continue;
            }
            let root = self.root_of(&source.place);
            if let Ok(Some(text)) = read_manifest_blob(root, &stored.child.digest) {
                self.add_manifest(&text)?;
            }
        }
        self.write_manifest(&target, &bytes, false)
    }

    /// The lock that writers of one folder share, also across processes. Held until it is dropped.
    pub(crate) fn lock(&self) -> Result<File, StoreError> {
        files::lock_file(&self.root.join(files::TEMP_DIR).join("lock"))
    }
}

/// The model of a name in the store at `root`, whatever its case. A link that leads to nothing counts for none.
fn find_at(
    root: &Path,
    name: &ModelName,
    place: &Place,
    runner: Option<&str>,
) -> Result<Option<Entry>, StoreError> {
    let is_hidden = |file: &NameFile| file.folder == NameFolder::Manifests && is_shadow(&file.name);
    for file in NameFile::all_of(root, name)?.into_iter().filter(|file| !is_hidden(file)) {
        match read_entry(root, &file, place.clone(), runner) {
            Err(error) if error.is_absence() => {}
            read => return read.map(Some),
        }
    }
    Ok(None)
}

/// The text of a model's manifest or list of manifests, byte for byte; of an anchor the manifest that it is made of.
fn name_text(root: &Path, entry: &Entry) -> Result<Vec<u8>, StoreError> {
    let mut error = StoreError::NotFound(entry.name.to_string());
    for file in NameFile::all_of(root, &entry.name)? {
        match file.read(root) {
            Ok(text) if text.digest == entry.digest => return Ok(without_anchors(text.bytes)),
            // An anchor of the list.
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

/// A link that costs nothing; where the system has none, a copy.
fn link(path: &Path, link: &Path) -> io::Result<()> {
    #[cfg(unix)]
    return std::os::unix::fs::symlink(path, link);
    #[cfg(not(unix))]
    return fs::hard_link(path, link).or_else(|_| fs::copy(path, link).map(|_| ()));
}
