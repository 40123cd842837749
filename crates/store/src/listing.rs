//! What a list shows: the models of all folders, quickly.
//!
//! Two thousand models are some ten thousand small files. A list looks at each folder and manifest, and reads only what has
//! changed since the last one ([`Index`]); what a model is told to be is kept by the digest of its manifest, which
//! changes with it. All of that is also written down (`puna-tmp/lists/`), since reading the vocabularies of so many models takes
//! seconds, and a command without a server begins with nothing.
//!
//! Folders that are only read are looked at beside the own one, and [waited for](crate::silent) no longer than somebody waits for a list.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime};

use crate::digest::Digest;
use crate::embedded;
use crate::entry::{Entry, Place, entry_of};
use crate::error::StoreError;
use crate::files::{TEMP_DIR, create_dir, read_limited, write_atomic};
use crate::index::{Folder, Looked};
use crate::listfile;
use crate::names::{NameFolder, is_shadow};
use crate::silent::{Look, PATIENCE};
use crate::stamp::Stamp;
use crate::store::Store;
use crate::summary::Summary;

/// The folder within that of temporary files, and the file in it, in which lists are written down.
const KEPT: [&str; 2] = ["lists", "index"];
/// So much that was read is worth writing it.
const WORTH: usize = 32;
/// Bytes of that file at most.
const KEPT_LIMIT: u64 = 256 << 20;
/// Who made it: another version may see other things in a model. To be counted up when this one does.
const FORM: &str = concat!("lists 5 of ", env!("CARGO_PKG_VERSION"));

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
    last: Option<LastList>,
}

/// A list, and what it depends on beside the folders of names.
#[derive(Clone)]
struct LastList {
    listed: Arc<Listed>,
    /// The blobs of the manifests that lists of manifests name, as they were.
    children: Vec<(PathBuf, Option<Stamp>)>,
}

impl LastList {
    fn is_as_it_was(&self) -> bool {
        self.children.iter().all(|(path, stamp)| Stamp::at(path) == *stamp)
    }
}

/// All models, and what is wrong.
#[derive(Debug, Default)]
pub struct Listed {
    /// Newest first.
    pub entries: Vec<Entry>,
    /// What is wrong with files that were skipped, and the folders that do not answer.
    pub broken: Vec<StoreError>,
}

/// What both folders of names of a store have.
type Names = Result<[Looked; 2], StoreError>;
/// A look at the names of a folder that is only read.
type Answer = Look<Names>;

/// Looks at both folders of names of the store at `root`, of which something may be remembered.
fn look_at(root: &Path, before: [Folder; 2]) -> Names {
    let [linked, plain] = before;
    Ok([
        Looked::at(root, NameFolder::ManifestsV2, linked)?,
        Looked::at(root, NameFolder::Manifests, plain)?,
    ])
}

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

    /// What is remembered of the folders of names of the store at `root`.
    fn take(&mut self, root: &Path) -> [Folder; 2] {
        NameFolder::ALL.map(|folder| self.places.remove(&folder.at(root)).unwrap_or_default())
    }

    /// Remembers what a look at the store at `root` has found: the models in order of their names, and what is wrong with
    /// files that are none.
    fn learn(
        &mut self,
        place: &Place,
        root: &Path,
        looked: [Looked; 2],
        runner: Option<&str>,
    ) -> (Vec<Entry>, Vec<StoreError>) {
        let (mut entries, mut broken, mut linked) = (Vec::new(), Vec::new(), HashSet::new());
        for (folder, looked) in NameFolder::ALL.into_iter().zip(looked) {
            let mut plain = HashSet::new();
            self.new += looked.read;
            self.places.insert(folder.at(root), looked.now);
            let mut models = looked.models;
            // Of two spellings of a host the usual one counts, as in `NameFile::all_of`.
            models.sort_by_cached_key(|(file, _)| file.path != file.folder.path(root, &file.name));
            for (file, named) in models {
                match folder {
                    NameFolder::ManifestsV2 if !linked.insert(file.name.clone()) => continue,
                    NameFolder::ManifestsV2 => {}
                    // An anchor of a name that stands in the other folder, or of no model.
                    NameFolder::Manifests
                        if linked.contains(&file.name) || is_shadow(&file.name) =>
                    {
                        continue;
                    }
                    NameFolder::Manifests if !plain.insert(file.name.clone()) => continue,
                    NameFolder::Manifests => {}
                }
                match named.and_then(|named| entry_of(root, &file, named, place.clone(), runner)) {
                    Ok(entry) => entries.push(entry),
                    Err(error) => broken.push(error),
                }
            }
            broken.extend(looked.foreign);
        }
        entries.sort_by(|a, b| a.name.cmp(&b.name));
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
        let last =
            memory.last.take().filter(|last| self.others().is_empty() && last.is_as_it_was());
        let looked = match self.look_at_own(&mut memory, last)? {
            Ok(same) => return Ok(same),
            Err(looked) => looked,
        };
        let (mut entries, mut broken) =
            memory.learn(&Place::Own, self.root(), looked, self.runner());
        for error in &broken {
            if self.is_news(&error.to_string()) {
                tracing::warn!(%error, "not a model: skipped in lists, and while it is there no unused blob is removed");
            }
        }
        let silent = self.list_others(asked, &mut memory, &mut entries);
        let seconds = |e: &Entry| {
            e.modified.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
        };
        entries.sort_by_key(|entry| std::cmp::Reverse(seconds(entry)));
        let cria = embedded::entry();
        if !entries.iter().any(|entry| entry.name.same(&cria.name)) {
            entries.push(cria);
        }
        let folders = |place| NameFolder::ALL.map(|folder| folder.at(self.root_of(&place)));
        let places: Vec<PathBuf> = self.places().flat_map(folders).collect();
        memory.places.retain(|path, _| places.contains(path));
        if silent.is_empty() && memory.summaries.len() > entries.len() {
            let rows = entries.iter().flat_map(Entry::rows);
            let digests: HashSet<Digest> = rows.map(|row| row.shown_digest()).collect();
            memory.summaries.retain(|digest, _| digests.contains(digest));
        }
        broken.extend(silent);
        let listed = Arc::new(Listed { entries, broken });
        memory.last =
            Some(LastList { children: self.child_blobs(&listed.entries), listed: listed.clone() });
        Ok(listed)
    }

    /// Looks at the own folders of names. The outer result's value is the `last` list where nothing has changed since.
    #[allow(clippy::type_complexity)] // one of two outcomes, used once
    fn look_at_own(
        &self,
        memory: &mut Remembered,
        last: Option<LastList>,
    ) -> Result<Result<Arc<Listed>, [Looked; 2]>, StoreError> {
        let [linked, plain] = memory.take(self.root());
        let look =
            |folder, before, is_known| Looked::unless_same(self.root(), folder, before, is_known);
        let is_known = last.is_some();
        let looked = [
            look(NameFolder::ManifestsV2, linked, is_known)?,
            look(NameFolder::Manifests, plain, is_known)?,
        ];
        let Some(last) = last else { return Ok(Err(looked)) };
        if looked.iter().all(|looked| looked.is_same) {
            for (folder, looked) in NameFolder::ALL.into_iter().zip(looked) {
                memory.places.insert(folder.at(self.root()), looked.now);
            }
            memory.last = Some(last.clone());
            return Ok(Ok(last.listed));
        }
        // Of a folder that is as it was nothing was said.
        let [linked, plain] = looked;
        let whole = |folder, looked: Looked| match looked.is_same {
            true => Looked::at(self.root(), folder, looked.now),
            false => Ok(looked),
        };
        Ok(Err([whole(NameFolder::ManifestsV2, linked)?, whole(NameFolder::Manifests, plain)?]))
    }

    /// The blobs of the manifests that lists of manifests in the own folder name, and how they are now.
    fn child_blobs(&self, entries: &[Entry]) -> Vec<(PathBuf, Option<Stamp>)> {
        let own = entries.iter().filter(|entry| entry.place == Place::Own);
        let children = own.filter_map(|entry| entry.list.as_ref()).flat_map(|list| &list.children);
        let stored = children.filter(|stored| stored.child.inline.is_none());
        let paths = stored.map(|stored| self.own_blob_path(&stored.child.digest));
        paths.map(|path| (path.clone(), Stamp::at(&path))).collect()
    }

    /// Begins to look at the folders that are only read, but for those that have not answered the last time.
    fn ask_others(&self, memory: &mut Remembered) -> Vec<(PathBuf, Option<Answer>)> {
        let ask = |folder: &PathBuf| {
            if self.silent.has(folder) {
                return (folder.clone(), None);
            }
            let (root, before) = (folder.clone(), memory.take(folder));
            (folder.clone(), Some(Look::at(folder, move || look_at(&root, before))))
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
            let left = until.saturating_duration_since(Instant::now());
            let looked = match answer.as_ref().map(|answer| answer.wait(left)) {
                Some(Ok(looked)) => looked,
                Some(Err(RecvTimeoutError::Disconnected)) => look_at(&folder, Default::default()),
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
                Ok(looked) => memory.learn(&place, &folder, looked, self.runner()),
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
            if let Some(summary) = memory.summaries.get(&entry.shown_digest()) {
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
        memory.summaries.insert(entry.shown_digest(), summary.clone());
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
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Duration;

    use super::*;
    use crate::entry::read_entry;
    use crate::names::NameFile;
    use crate::silent::tests::hung;
    use crate::{Layer, Manifest, ModelName, media};

    #[test]
    fn a_folder_that_does_not_answer_is_left_out_and_named_until_it_does() {
        let [own, share, gone] = [(); 3].map(|()| tempfile::tempdir().unwrap());
        let put = |folder: &Path, name: &str| {
            let store = Store::open(folder).unwrap();
            let blob = store.add_blob(name.as_bytes()).unwrap();
            let layers = vec![Layer::new(media::TEMPLATE, blob.digest, blob.size)];
            let bytes = Manifest { config: None, layers }.to_bytes();
            store
                .store_manifest(&ModelName::parse(name).unwrap(), &bytes, true, &mut || ())
                .unwrap();
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
            let mut names: Vec<String> =
                entries.iter().map(|entry| entry.name.model().to_owned()).collect();
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
            let entries: Vec<_> =
                store.list().unwrap().into_iter().filter(|e| !e.is_embedded()).collect();
            let all: Vec<_> = entries.iter().map(|entry| store.summary(entry)).collect();
            store.keep_lists();
            all
        };
        let first: Vec<_> = list(&store).into_iter().map(Result::unwrap).collect();
        // Without the weights nothing could be said of a model that nothing was known of.
        fs::remove_file(store.blob_path(&weights.digest)).unwrap();
        let again: Vec<_> =
            list(&Store::open(dir.path()).unwrap()).into_iter().map(Result::unwrap).collect();
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
        let path = |n: usize| NameFolder::Manifests.path(store.root(), &name(n));
        fs::write(path(0), manifest(blobs[1].digest)).unwrap();
        fs::remove_file(path(1)).unwrap();
        fs::create_dir_all(path(99).parent().unwrap()).unwrap();
        fs::write(path(99), manifest(blobs[1].digest)).unwrap();
        let now = Store::open(dir.path()).unwrap();
        let listed: HashMap<String, Entry> = now
            .list()
            .unwrap()
            .into_iter()
            .map(|entry| (entry.name.model().to_owned(), entry))
            .collect();
        assert_eq!(listed["m0"].manifest.layers[0].digest, blobs[1].digest);
        assert_eq!(listed["m0"].digest, Digest::of(&manifest(blobs[1].digest)));
        assert!(!listed.contains_key("m1") && listed.contains_key("m99"));
        let one = &listed["m2"];
        let file =
            NameFile { name: one.name.clone(), folder: NameFolder::Manifests, path: path(2) };
        let read = read_entry(store.root(), &file, Place::Own, None).unwrap();
        assert_eq!(*one, read, "as if it had been read");
        assert!(now.listed.lock().new < 10, "it was not");
    }

    #[test]
    fn a_list_is_that_of_the_last_time_until_something_changes() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        let blobs = [b"one", b"two"].map(|bytes| store.add_blob(bytes).unwrap().digest);
        let manifest = |digest| {
            Manifest { config: None, layers: vec![Layer::new(media::TEMPLATE, digest, 3)] }
                .to_bytes()
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
        let path = |model: &str| NameFolder::Manifests.path(store.root(), &name(model));
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
        assert!(
            store.list().unwrap().iter().any(|entry| entry.manifest.layers[0].digest == blobs[1])
        );
    }

    #[test]
    fn a_list_reads_again_what_changed_and_forgets_what_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        let blobs = [b"one", b"two"].map(|bytes| store.add_blob(bytes).unwrap());
        let put = |name: &str, digest: Digest| {
            let manifest =
                Manifest { config: None, layers: vec![Layer::new(media::TEMPLATE, digest, 3)] };
            let name = ModelName::parse(name).unwrap();
            store.store_manifest(&name, &manifest.to_bytes(), true, &mut || ()).unwrap();
            let old = SystemTime::now() - std::time::Duration::from_secs(3600);
            let path = NameFolder::Manifests.path(store.root(), &name);
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
