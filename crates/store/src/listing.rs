//! What a list shows: the models of all folders, quickly.
//!
//! Two thousand models are some ten thousand small files. A list looks at each folder and manifest, and reads only what has
//! changed since the last one ([`Index`]); what a model is told to be is kept by the digest of its manifest, which
//! changes with it. All of that is also written down (`puna-tmp/lists/`), since reading the vocabularies of so many models takes
//! seconds, and a command without a server begins with nothing.
//!
//! Folders that are only read are looked at beside the own one, and [waited for](crate::silent) no longer than somebody waits for a list.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime};

use crate::digest::Digest;
use crate::embedded;
use crate::error::StoreError;
use crate::files::{TEMP_DIR, create_dir, read_limited, write_atomic};
use crate::index::{DEPTH, Folder, Looked, names_in};
use crate::listfile;
use crate::manifest::{Manifest, TEXT_LIMIT};
use crate::name::{ModelName, part_from_file_name};
use crate::silent::{Look, PATIENCE};
use crate::store::{Entry, Place, Store};
use crate::summary::Summary;

/// The folder within that of temporary files, and the file in it, in which lists are written down.
const KEPT: [&str; 2] = ["lists", "index"];
/// So much that was read is worth writing it.
const WORTH: usize = 32;
/// Bytes of that file at most.
const KEPT_LIMIT: u64 = 256 << 20;
/// Who made it: another version may see other things in a model. To be counted up when this one does.
const FORM: &str = concat!("lists 3 of ", env!("CARGO_PKG_VERSION"));

/// What lists remember.
#[derive(Default)]
pub(crate) struct Memory(Mutex<Remembered>);

#[derive(Default)]
struct Remembered {
    /// By their paths, the folders of manifests.
    places: HashMap<PathBuf, Folder>,
    summaries: HashMap<Digest, Arc<Summary>>,
    /// Whether what was written down has been read.
    is_read: bool,
    /// How much of this is not written down.
    new: usize,
    /// The last list, where the own folder is the only one.
    last: Option<Arc<Listed>>,
}

/// All models, and what is wrong.
#[derive(Debug, Default)]
pub struct Listed {
    /// Newest first.
    pub entries: Vec<Entry>,
    /// What is wrong with files that were skipped, and the folders that do not answer.
    pub broken: Vec<StoreError>,
}

/// A look at the manifests of a folder that is only read.
type Answer = Look<Result<Looked, StoreError>>;

impl Memory {
    fn lock(&self) -> MutexGuard<'_, Remembered> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Remembered {
    /// Reads what was written down, once. A file that is not there, or not ours, says nothing.
    fn recall(&mut self, path: &Path) {
        if std::mem::replace(&mut self.is_read, true) {
            return;
        }
        let bytes = read_limited(path, KEPT_LIMIT).unwrap_or_default();
        let Some((places, summaries)) = listfile::read(FORM, &bytes) else { return };
        self.places = places.into_iter().collect();
        let summaries = summaries.into_iter();
        self.summaries = summaries.map(|(digest, summary)| (digest, Arc::new(summary))).collect();
    }

    /// Remembers what a look has found: the models in order of their names, and what is wrong with files that are none.
    fn learn(&mut self, place: &Place, manifests: PathBuf, looked: Looked) -> (Vec<Entry>, Vec<StoreError>) {
        self.new += looked.read;
        self.places.insert(manifests, looked.now);
        let (mut entries, mut broken) = (Vec::with_capacity(looked.models.len()), Vec::new());
        for (name, found) in looked.models {
            match found {
                Ok(found) => entries.push(Entry {
                    name,
                    digest: found.digest,
                    modified: found.modified,
                    manifest: found.manifest,
                    place: place.clone(),
                }),
                Err(error) => broken.push(error),
            }
        }
        broken.extend(looked.foreign.into_iter().map(foreign));
        (entries, broken)
    }

    #[cfg(test)]
    fn manifests(&self) -> usize {
        self.places.values().map(Folder::manifests).sum()
    }
}

impl Store {
    /// All models, newest first; those built into the program last, unless the store has one of their name.
    /// Files that are no manifests are skipped with a warning. Of models of one name the one that [`Store::find`] finds.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn list(&self) -> Result<Vec<Entry>, StoreError> {
        Ok(self.listed()?.entries.clone())
    }

    /// As [`Store::list`], with what is wrong with the files that were skipped, and the folders that do not answer. It is the very list of
    /// the last time where nothing has changed since.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn listed(&self) -> Result<Arc<Listed>, StoreError> {
        // Held to the end: lists at the same moment would have to read all of it, each for itself.
        let mut memory = self.listed.lock();
        memory.recall(&self.kept_path());
        let asked = self.ask_others(&mut memory);
        let manifests = self.manifests();
        let before = memory.places.remove(&manifests).unwrap_or_default();
        let last = memory.last.take().filter(|_| self.others().is_empty());
        let looked = Looked::unless_same(&manifests, before, last.is_some())?;
        if let Some(last) = last.filter(|_| looked.is_same) {
            memory.places.insert(manifests, looked.now);
            memory.last = Some(last.clone());
            return Ok(last);
        }
        let (mut entries, mut broken) = memory.learn(&Place::Own, manifests, looked);
        for error in &broken {
            if self.is_news(&error.to_string()) {
                tracing::warn!(%error, "not a model: skipped in lists, and while it is there no unused blob is removed");
            }
        }
        let silent = self.list_others(asked, &mut memory, &mut entries);
        let seconds =
            |e: &Entry| e.modified.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        entries.sort_by_key(|entry| std::cmp::Reverse(seconds(entry)));
        let cria = embedded::entry();
        if !entries.iter().any(|entry| entry.name.same(&cria.name)) {
            entries.push(cria);
        }
        let places: Vec<PathBuf> = self.places().map(|place| self.manifests_at(&place)).collect();
        memory.places.retain(|path, _| places.contains(path));
        if silent.is_empty() && memory.summaries.len() > entries.len() {
            let digests: HashSet<Digest> = entries.iter().map(|entry| entry.digest).collect();
            memory.summaries.retain(|digest, _| digests.contains(digest));
        }
        broken.extend(silent);
        let listed = Arc::new(Listed { entries, broken });
        memory.last = Some(listed.clone());
        Ok(listed)
    }

    /// Begins to look at the folders that are only read, but for those that have not answered the last time.
    fn ask_others(&self, memory: &mut Remembered) -> Vec<(PathBuf, Option<Answer>)> {
        let ask = |folder: &PathBuf| {
            if self.silent.has(folder) {
                return (folder.clone(), None);
            }
            let manifests = self.manifests_at(&Place::Other(folder.clone()));
            let before = memory.places.remove(&manifests).unwrap_or_default();
            (folder.clone(), Some(Look::at(folder, move || Looked::at(&manifests, before))))
        };
        self.others().iter().map(ask).collect()
    }

    /// Adds the models of the folders that are only read, unless there is one of their name. What cannot be read there is
    /// logged: it costs nothing here. Gives those that do not answer.
    fn list_others(
        &self,
        asked: Vec<(PathBuf, Option<Answer>)>,
        memory: &mut Remembered,
        entries: &mut Vec<Entry>,
    ) -> Vec<StoreError> {
        let (until, mut silent) = (Instant::now() + PATIENCE, Vec::new());
        for (folder, answer) in asked {
            let place = Place::Other(folder.clone());
            let manifests = self.manifests_at(&place);
            let left = until.saturating_duration_since(Instant::now());
            let looked = match answer.as_ref().map(|answer| answer.wait(left)) {
                Some(Ok(looked)) => looked,
                Some(Err(RecvTimeoutError::Disconnected)) => Looked::at(&manifests, Folder::default()),
                waits @ (None | Some(Err(RecvTimeoutError::Timeout))) => {
                    let error = StoreError::Silent { folder: folder.clone() };
                    if waits.is_some() {
                        tracing::warn!(%error, "left out of lists until it answers");
                    }
                    answer.into_iter().for_each(|answer| self.silent.add(&folder, answer));
                    silent.push(error);
                    continue;
                }
            };
            let (found, broken) = match looked {
                Ok(looked) => memory.learn(&place, manifests, looked),
                Err(error) => (Vec::new(), vec![error]),
            };
            let names: HashSet<String> = entries.iter().map(|entry| entry.name.folded()).collect();
            entries.extend(found.into_iter().filter(|entry| !names.contains(&entry.name.folded())));
            for error in broken.into_iter().filter(|error| self.is_news(&error.to_string())) {
                tracing::warn!(%error, "not a model: skipped in lists");
            }
        }
        silent
    }

    /// What a list says of a model.
    ///
    /// # Errors
    /// As [`Store::resolve`], the first time that the model is listed.
    pub fn summary(&self, entry: &Entry) -> Result<Arc<Summary>, StoreError> {
        {
            let mut memory = self.listed.lock();
            memory.recall(&self.kept_path());
            if let Some(summary) = memory.summaries.get(&entry.digest) {
                return Ok(summary.clone());
            }
        }
        let model = self.resolve_entry(entry)?;
        let summary = Arc::new(Summary {
            details: model.details(),
            context_length: model.facts.context_length,
            embedding_length: model.facts.embedding_length,
            capabilities: model.capabilities(),
            remote_model: model.config.remote_model,
            remote_host: model.config.remote_host,
        });
        let mut memory = self.listed.lock();
        memory.summaries.insert(entry.digest, summary.clone());
        memory.new += 1;
        Ok(summary)
    }

    /// Writes down what lists have read, if that is much. A store that cannot be written is none the worse.
    pub fn keep_lists(&self) {
        let mut memory = self.listed.lock();
        if memory.new < WORTH {
            return;
        }
        memory.new = 0;
        let places = memory.places.iter().map(|(path, folder)| (path.as_path(), folder));
        let summaries = memory.summaries.iter().map(|(digest, summary)| (digest, summary.as_ref()));
        let bytes = listfile::write(FORM, places, summaries);
        drop(memory);
        let path = self.kept_path();
        let written = path.parent().map_or(Ok(()), create_dir);
        if let Err(error) = written.and_then(|()| write_atomic(self.root(), &path, &bytes)) {
            tracing::debug!(%error, "what lists have read is not written down");
        }
    }

    fn kept_path(&self) -> PathBuf {
        self.root().join(TEMP_DIR).join(KEPT[0]).join(KEPT[1])
    }

    /// All manifest files of a folder, in order of their names.
    pub(crate) fn scan(&self, place: &Place) -> Result<Scan, StoreError> {
        Scan::files(&self.manifests_at(place))
    }
}

/// Reads a manifest as the entry of a model.
pub(crate) fn read_entry(name: &ModelName, path: &Path, place: Place) -> Result<Entry, StoreError> {
    check_file(path)?;
    let bytes = read_limited(path, TEXT_LIMIT)?;
    let modified =
        fs::metadata(path).and_then(|m| m.modified()).map_err(|e| StoreError::io("read", path, &e))?;
    let manifest = Manifest::parse(&bytes, path)?;
    Ok(Entry { name: name.clone(), digest: Digest::of(&bytes), modified, manifest, place })
}

/// Refuses what no manifest can be: nobody waits for the writer of a pipe, and what is refused can be removed.
fn check_file(path: &Path) -> Result<(), StoreError> {
    let reason = match fs::metadata(path) {
        Ok(meta) if !meta.is_file() => "it is not a regular file".to_owned(),
        Ok(meta) if meta.len() > TEXT_LIMIT => {
            format!("it has {} bytes, at most {TEXT_LIMIT} are expected", meta.len())
        }
        // Links in a circle.
        Err(e)
            if !matches!(
                e.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory | io::ErrorKind::PermissionDenied
            ) && fs::symlink_metadata(path).is_ok_and(|meta| meta.is_symlink()) =>
        {
            e.to_string()
        }
        _ => return Ok(()),
    };
    Err(StoreError::Manifest { path: path.to_owned(), reason })
}

/// A file whose name is that of no model.
pub(crate) fn foreign(path: PathBuf) -> StoreError {
    StoreError::Manifest { path, reason: "its name is no name of a model".into() }
}

/// What is below `manifests/`, whether or not it is a file.
#[derive(Default)]
pub(crate) struct Scan {
    /// In order of their names.
    pub(crate) models: Vec<(ModelName, PathBuf)>,
    /// What is at the depth of manifests under names that are no model's.
    pub(crate) foreign: Vec<PathBuf>,
}

impl Scan {
    /// Those that are files.
    pub(crate) fn files(manifests: &Path) -> Result<Self, StoreError> {
        let mut scan = Self::of(manifests)?;
        scan.models.retain(|(_, path)| path.is_file());
        scan.foreign.retain(|path| path.is_file());
        Ok(scan)
    }

    /// All of it.
    pub(crate) fn of(manifests: &Path) -> Result<Self, StoreError> {
        let mut scan = Self::default();
        scan.folder(manifests, &mut Vec::new())?;
        scan.models.sort();
        Ok(scan)
    }

    fn folder(&mut self, dir: &Path, parts: &mut Vec<String>) -> Result<(), StoreError> {
        let of_files = parts.len() == DEPTH;
        for name in names_in(dir, of_files)? {
            let path = dir.join(&name);
            parts.push(part_from_file_name(&name.to_string_lossy()));
            if !of_files {
                self.folder(&path, parts)?;
            } else {
                match ModelName::from_parts(&parts[0], &parts[1], &parts[2], &parts[3]) {
                    Ok(name) => self.models.push((name, path)),
                    Err(_) => self.foreign.push(path),
                }
            }
            parts.pop();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::silent::tests::hung;
    use crate::{Layer, media};

    #[test]
    fn a_folder_that_does_not_answer_is_left_out_and_named_until_it_does() {
        let [own, share, gone] = [(); 3].map(|()| tempfile::tempdir().unwrap());
        let put = |folder: &Path, name: &str| {
            let store = Store::open(folder).unwrap();
            let blob = store.add_blob(name.as_bytes()).unwrap();
            let layers = vec![Layer::new(media::TEMPLATE, blob.digest, blob.size)];
            let bytes = Manifest { config: None, layers }.to_bytes();
            store.store_manifest(&ModelName::parse(name).unwrap(), &bytes, true, &mut || ()).unwrap();
        };
        put(own.path(), "mine");
        put(share.path(), "theirs");
        put(gone.path(), "far");
        let others = [gone.path().to_owned(), share.path().to_owned()];
        let store = Store::open(own.path()).unwrap().with_others(others);
        let list = || {
            let listed = store.listed().unwrap();
            let (mut entries, broken) = (listed.entries.clone(), listed.broken.clone());
            entries.retain(|entry| !entry.is_embedded());
            let mut names: Vec<String> = entries.iter().map(|entry| entry.name.model().to_owned()).collect();
            names.sort();
            (names, broken)
        };
        let hanging = gone.path();
        hung().push(hanging.to_owned());
        let said = vec![StoreError::Silent { folder: gone.path().to_owned() }];
        assert_eq!(list(), (vec!["mine".into(), "theirs".into()], said.clone()));
        // It is not waited for again, nor asked for blobs.
        let begun = Instant::now();
        assert_eq!(list().1, said);
        assert!(!store.has_blob(&Digest::of(b"far")) && store.has_blob(&Digest::of(b"theirs")));
        assert!(begun.elapsed() < PATIENCE, "{:?}", begun.elapsed());
        hung().retain(|path| path != hanging);
        while store.silent.has(gone.path()) {
            std::thread::sleep(Duration::from_millis(2));
        }
        assert!(store.has_blob(&Digest::of(b"far")));
        assert_eq!(list(), (vec!["far".into(), "mine".into(), "theirs".into()], vec![]));
    }

    #[test]
    fn what_lists_have_read_outlives_the_process_and_is_read_from_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let zoo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/zoo/llama-f16.gguf");
        let store = Store::open(dir.path()).unwrap();
        let weights = store.add_blob(&fs::read(zoo).unwrap()).unwrap();
        for n in 0..WORTH {
            let config = store.add_blob(format!("{{\"model_type\":\"{n}M\"}}").as_bytes()).unwrap();
            let config = Some(Layer::new(media::CONFIG, config.digest, config.size));
            let layers = vec![Layer::new(media::MODEL, weights.digest, weights.size)];
            let name = ModelName::parse(&format!("m{n}")).unwrap();
            let bytes = Manifest { config, layers }.to_bytes();
            store.store_manifest(&name, &bytes, true, &mut || ()).unwrap();
        }
        let list = |store: &Store| {
            let entries: Vec<_> = store.list().unwrap().into_iter().filter(|e| !e.is_embedded()).collect();
            let all: Vec<_> = entries.iter().map(|entry| store.summary(entry)).collect();
            store.keep_lists();
            all
        };
        let first: Vec<_> = list(&store).into_iter().map(Result::unwrap).collect();
        // Without the weights nothing could be said of a model that nothing was known of.
        fs::remove_file(store.blob_path(&weights.digest)).unwrap();
        let again: Vec<_> = list(&Store::open(dir.path()).unwrap()).into_iter().map(Result::unwrap).collect();
        assert_eq!(again, first);
        let path = store.kept_path();
        let bytes = fs::read(&path).unwrap();
        for other in [&[b"another ", &bytes[..]].concat()[..], &bytes[..bytes.len() - 1], b""] {
            fs::write(&path, other).unwrap();
            assert!(list(&Store::open(dir.path()).unwrap()).iter().all(Result::is_err));
        }
    }

    #[test]
    fn a_list_from_what_was_written_down_shows_what_is_there_now() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        let blobs = [b"one", b"two"].map(|bytes| store.add_blob(bytes).unwrap());
        let manifest = |digest: Digest| {
            let layers = vec![Layer::new(media::TEMPLATE, digest, 3)];
            Manifest { config: None, layers }.to_bytes()
        };
        let name = |n: usize| ModelName::parse(&format!("m{n}")).unwrap();
        for n in 0..WORTH {
            store.store_manifest(&name(n), &manifest(blobs[0].digest), true, &mut || ()).unwrap();
        }
        std::thread::sleep(std::time::Duration::from_millis(200));
        store.list().unwrap();
        store.keep_lists();
        assert!(store.kept_path().is_file());

        // Meanwhile another program writes in place, removes and adds.
        let path = |n: usize| name(n).manifest_path(&store.manifests());
        fs::write(path(0), manifest(blobs[1].digest)).unwrap();
        fs::remove_file(path(1)).unwrap();
        fs::create_dir_all(path(99).parent().unwrap()).unwrap();
        fs::write(path(99), manifest(blobs[1].digest)).unwrap();
        let now = Store::open(dir.path()).unwrap();
        let listed: HashMap<String, Entry> =
            now.list().unwrap().into_iter().map(|entry| (entry.name.model().to_owned(), entry)).collect();
        assert_eq!(listed["m0"].manifest.layers[0].digest, blobs[1].digest);
        assert_eq!(listed["m0"].digest, Digest::of(&manifest(blobs[1].digest)));
        assert!(!listed.contains_key("m1") && listed.contains_key("m99"));
        let one = &listed["m2"];
        assert_eq!(*one, read_entry(&one.name, &path(2), Place::Own).unwrap(), "as if it had been read");
        assert!(now.listed.lock().new < 10, "it was not");
    }

    #[test]
    fn a_list_is_that_of_the_last_time_until_something_changes() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        let blobs = [b"one", b"two"].map(|bytes| store.add_blob(bytes).unwrap().digest);
        let manifest = |digest| {
            Manifest { config: None, layers: vec![Layer::new(media::TEMPLATE, digest, 3)] }.to_bytes()
        };
        let name = |name: &str| ModelName::parse(name).unwrap();
        let put = |model: &str| {
            store.store_manifest(&name(model), &manifest(blobs[0]), true, &mut || ()).unwrap();
        };
        for model in ["a", "b", "me/c", "me/c:1b"] {
            put(model);
        }
        let settled = || {
            std::thread::sleep(std::time::Duration::from_millis(200));
            store.listed().unwrap();
            store.listed().unwrap()
        };
        let is_same = |before: &Arc<Listed>| Arc::ptr_eq(before, &store.listed().unwrap());
        let first = settled();
        assert!(is_same(&first) && is_same(&first));
        // As others do it: in place, of the same length; a file more; one less; a model more.
        let path = |model: &str| name(model).manifest_path(&store.manifests());
        let changes: [&dyn Fn(); 4] = [
            &|| fs::write(path("a"), manifest(blobs[1])).unwrap(),
            &|| assert!(fs::copy(path("me/c"), path("me/c:2b")).is_ok()),
            &|| fs::remove_file(path("me/c:1b")).unwrap(),
            &|| put("d"),
        ];
        for change in changes {
            let before = settled();
            assert!(is_same(&before));
            change();
            assert!(!is_same(&before));
        }
        assert_eq!(store.list().unwrap().iter().filter(|entry| !entry.is_embedded()).count(), 5);
        assert!(store.list().unwrap().iter().any(|entry| entry.manifest.layers[0].digest == blobs[1]));
    }

    #[test]
    fn a_list_reads_again_what_changed_and_forgets_what_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        let blobs = [b"one", b"two"].map(|bytes| store.add_blob(bytes).unwrap());
        let put = |name: &str, digest: Digest| {
            let manifest = Manifest { config: None, layers: vec![Layer::new(media::TEMPLATE, digest, 3)] };
            let name = ModelName::parse(name).unwrap();
            store.store_manifest(&name, &manifest.to_bytes(), true, &mut || ()).unwrap();
            let old = SystemTime::now() - std::time::Duration::from_secs(3600);
            let path = name.manifest_path(&store.manifests());
            fs::File::options().append(true).open(path).unwrap().set_modified(old).unwrap();
            std::thread::sleep(std::time::Duration::from_millis(200));
        };
        let digests = || {
            let entries = store.list().unwrap().into_iter().filter(|entry| !entry.is_embedded());
            entries.map(|entry| entry.manifest.layers[0].digest).collect::<Vec<_>>()
        };
        put("a", blobs[0].digest);
        put("b", blobs[0].digest);
        assert_eq!(digests(), [blobs[0].digest; 2]);
        assert_eq!(store.listed.lock().manifests(), 2);
        // Of the same length and age.
        put("a", blobs[1].digest);
        assert!(digests().contains(&blobs[1].digest));
        store.delete(&ModelName::parse("a").unwrap()).unwrap();
        assert_eq!(digests(), [blobs[0].digest]);
        assert_eq!(store.listed.lock().manifests(), 1);
    }
}
