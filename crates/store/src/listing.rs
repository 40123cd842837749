//! What a list shows: the models of all folders, quickly.
//!
//! Two thousand models are some ten thousand small files. A list looks at each manifest's entry in its folder, and reads the
//! file only if that has changed since the last list; what a model is told to be is kept by the digest of its manifest, which
//! changes with it. That is also written down (`puna-tmp/lists/`), since reading the vocabularies of so many models takes seconds.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::embedded;
use crate::error::StoreError;
use crate::files::{TEMP_DIR, create_dir, read_limited, write_atomic};
use crate::manifest::{Manifest, TEXT_LIMIT};
use crate::model::Details;
use crate::name::{ModelName, part_from_file_name};
use crate::store::{Entry, Place, Store};

/// A file that was written so shortly before it was read may be written again without its time changing.
const SETTLED: Duration = Duration::from_secs(2);
/// The folder within that of temporary files, and the file in it, in which summaries are written down.
const KEPT: [&str; 2] = ["lists", "summaries.json"];
/// So many new ones are worth writing them.
const WORTH: usize = 32;
/// Bytes of that file at most.
const KEPT_LIMIT: u64 = 64 << 20;
/// Who made them: another version may see other things in a model. To be counted up when this one does.
const FORM: &str = concat!("1 of ", env!("CARGO_PKG_VERSION"));

/// What a list says of a model, beside what its manifest says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Family, size and so on.
    pub details: Details,
    /// Tokens that it was trained for.
    pub context_length: u64,
    /// Width of its vectors.
    pub embedding_length: u64,
    /// What it can do, as [`Model::capabilities`](crate::Model::capabilities).
    pub capabilities: Vec<String>,
    /// The model on other servers that it stands for; empty for one that is here.
    pub remote_model: String,
    /// Those servers.
    pub remote_host: String,
}

/// What lists remember.
#[derive(Default)]
pub(crate) struct Memory {
    entries: Mutex<HashMap<PathBuf, (Stamp, Entry)>>,
    summaries: Mutex<HashMap<Digest, Arc<Summary>>>,
    kept: Mutex<Kept>,
}

/// What is known of the file of summaries.
#[derive(Default)]
struct Kept {
    is_read: bool,
    /// Summaries that are not in it.
    new: usize,
}

/// The file of summaries.
#[derive(Serialize, Deserialize)]
struct KeptFile {
    form: String,
    models: HashMap<Digest, Summary>,
}

/// By what a file is known again: length, time of its last change, and on Unix which file it is.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Stamp {
    length: u64,
    modified: SystemTime,
    file: (u64, i64, i64),
}

impl Stamp {
    fn of(meta: &fs::Metadata) -> io::Result<Self> {
        #[cfg(unix)]
        let file = {
            use std::os::unix::fs::MetadataExt;
            (meta.ino(), meta.ctime(), meta.ctime_nsec())
        };
        #[cfg(not(unix))]
        let file = (0, 0, 0);
        Ok(Self { length: meta.len(), modified: meta.modified()?, file })
    }

    /// Whether nobody can have written the file since then without it showing.
    fn is_settled(&self) -> bool {
        SystemTime::now().duration_since(self.modified).is_ok_and(|age| age > SETTLED)
    }
}

impl Memory {
    fn entries(&self) -> MutexGuard<'_, HashMap<PathBuf, (Stamp, Entry)>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn summaries(&self) -> MutexGuard<'_, HashMap<Digest, Arc<Summary>>> {
        self.summaries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store {
    /// All models, newest first; those built into the program last, unless the store has one of their name.
    /// Files that are no manifests are skipped with a warning. Of models of one name the one that [`Store::find`] finds.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn list(&self) -> Result<Vec<Entry>, StoreError> {
        self.list_all().map(|(entries, _)| entries)
    }

    /// As [`Store::list`], with what is wrong with the files that were skipped.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn list_all(&self) -> Result<(Vec<Entry>, Vec<StoreError>), StoreError> {
        let (mut entries, mut broken) = (Vec::new(), Vec::new());
        let scan = self.scan(&Place::Own)?;
        for (name, path) in scan.models {
            match self.remembered(&name, &path, &Place::Own) {
                Ok(entry) => entries.push(entry),
                Err(error) => broken.push(error),
            }
        }
        broken.extend(scan.foreign.into_iter().map(foreign));
        for error in &broken {
            if self.is_news(&error.to_string()) {
                tracing::warn!(%error, "not a model: skipped in lists, and while it is there no unused blob is removed");
            }
        }
        self.list_others(&mut entries);
        let seconds =
            |e: &Entry| e.modified.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        entries.sort_by_key(|entry| std::cmp::Reverse(seconds(entry)));
        let cria = embedded::entry();
        if !entries.iter().any(|entry| entry.name.same(&cria.name)) {
            entries.push(cria);
        }
        self.forget_all_but(&entries);
        Ok((entries, broken))
    }

    /// Adds the models of the folders that are only read, unless there is one of their name. What cannot be read there is
    /// logged: it costs nothing here.
    fn list_others(&self, entries: &mut Vec<Entry>) {
        for place in self.places().filter(|place| *place != Place::Own) {
            let names: HashSet<String> = entries.iter().map(|entry| entry.name.folded()).collect();
            let models = self.scan(&place).map(|scan| scan.models);
            let read = |(name, path): (ModelName, PathBuf)| {
                (!names.contains(&name.folded())).then(|| self.remembered(&name, &path, &place))
            };
            let found = match models {
                Ok(models) => models.into_iter().filter_map(read).collect(),
                Err(error) => vec![Err(error)],
            };
            for entry in found {
                match entry {
                    Ok(entry) => entries.push(entry),
                    Err(error) if self.is_news(&error.to_string()) => {
                        tracing::warn!(%error, "not a model: skipped in lists");
                    }
                    Err(_) => {}
                }
            }
        }
    }

    /// What a list says of a model.
    ///
    /// # Errors
    /// As [`Store::resolve`], the first time that the model is listed.
    pub fn summary(&self, entry: &Entry) -> Result<Arc<Summary>, StoreError> {
        self.read_kept();
        if let Some(summary) = self.listed.summaries().get(&entry.digest) {
            return Ok(summary.clone());
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
        self.listed.summaries().insert(entry.digest, summary.clone());
        self.listed.kept().new += 1;
        Ok(summary)
    }

    /// Reads the summaries that were written down, once. A file that is not there, or not ours, has none.
    fn read_kept(&self) {
        let mut kept = self.listed.kept();
        if std::mem::replace(&mut kept.is_read, true) {
            return;
        }
        let bytes = read_limited(&self.kept_path(), KEPT_LIMIT).unwrap_or_default();
        let read = serde_json::from_slice::<KeptFile>(&bytes).ok().filter(|file| file.form == FORM);
        let models = read.map(|file| file.models).unwrap_or_default().into_iter();
        self.listed.summaries().extend(models.map(|(digest, summary)| (digest, Arc::new(summary))));
    }

    /// Writes down what was learned of the models of a list, if that is much. A store that cannot be written is none the worse.
    pub fn keep_summaries(&self, entries: &[Entry]) {
        let mut kept = self.listed.kept();
        if kept.new < WORTH {
            return;
        }
        kept.new = 0;
        let models = {
            let known = self.listed.summaries();
            let of = |entry: &Entry| Some((entry.digest, Summary::clone(known.get(&entry.digest)?)));
            entries.iter().filter_map(of).collect()
        };
        let path = self.kept_path();
        let write = || {
            path.parent().map_or(Ok(()), create_dir)?;
            let text = serde_json::to_vec(&KeptFile { form: FORM.to_owned(), models }).unwrap_or_default();
            write_atomic(self.root(), &path, &text)
        };
        if let Err(error) = write() {
            tracing::debug!(%error, "what lists have read is not written down");
        }
    }

    fn kept_path(&self) -> PathBuf {
        self.root().join(TEMP_DIR).join(KEPT[0]).join(KEPT[1])
    }

    /// The entry of a manifest, read unless that file was read before.
    fn remembered(&self, name: &ModelName, path: &Path, place: &Place) -> Result<Entry, StoreError> {
        let stamp = fs::metadata(path).and_then(|meta| Stamp::of(&meta));
        let stamp = stamp.map_err(|e| StoreError::io("read", path, &e))?;
        if let Some((known, entry)) = self.listed.entries().get(path)
            && *known == stamp
        {
            return Ok(entry.clone());
        }
        let entry = read_entry(name, path, place.clone())?;
        if stamp.is_settled() {
            self.listed.entries().insert(path.to_owned(), (stamp, entry.clone()));
        }
        Ok(entry)
    }

    /// Lets go of what is remembered of models that are gone.
    fn forget_all_but(&self, entries: &[Entry]) {
        let mut remembered = self.listed.entries();
        if remembered.len() <= entries.iter().filter(|entry| !entry.is_embedded()).count() {
            return;
        }
        let digests: HashSet<Digest> = entries.iter().map(|entry| entry.digest).collect();
        remembered.retain(|path, (_, entry)| digests.contains(&entry.digest) && path.exists());
        self.listed.summaries().retain(|digest, _| digests.contains(digest));
    }

    /// All manifest files of a folder, in order of their names.
    pub(crate) fn scan(&self, place: &Place) -> Result<Scan, StoreError> {
        let mut scan = Scan::default();
        scan.folder(&self.manifests_at(place), &mut Vec::new())?;
        scan.models.sort();
        Ok(scan)
    }
}

/// Reads a manifest as the entry of a model.
pub(crate) fn read_entry(name: &ModelName, path: &Path, place: Place) -> Result<Entry, StoreError> {
    let bytes = read_limited(path, TEXT_LIMIT)?;
    let modified =
        fs::metadata(path).and_then(|m| m.modified()).map_err(|e| StoreError::io("read", path, &e))?;
    let manifest = Manifest::parse(&bytes, path)?;
    Ok(Entry { name: name.clone(), digest: Digest::of(&bytes), modified, manifest, place })
}

/// A file whose name is that of no model.
pub(crate) fn foreign(path: PathBuf) -> StoreError {
    StoreError::Manifest { path, reason: "its name is no name of a model".into() }
}

/// What is below `manifests/`.
#[derive(Default)]
pub(crate) struct Scan {
    pub(crate) models: Vec<(ModelName, PathBuf)>,
    /// Files at the depth of manifests whose names are no model names.
    pub(crate) foreign: Vec<PathBuf>,
}

impl Scan {
    fn folder(&mut self, dir: &Path, parts: &mut Vec<String>) -> Result<(), StoreError> {
        let entries = match fs::read_dir(dir) {
            Ok(entries) => entries,
            // Never there, or removed while we look.
            Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                return Ok(());
            }
            Err(e) => return Err(StoreError::io("read the folder", dir, &e)),
        };
        for entry in entries {
            let path = entry.map_err(|e| StoreError::io("read the folder", dir, &e))?.path();
            let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
            parts.push(part_from_file_name(&name));
            if parts.len() < 4 {
                self.folder(&path, parts)?;
            } else if path.is_file() {
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
    use super::*;
    use crate::{Layer, media};

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
            store.keep_summaries(&entries);
            all
        };
        let first: Vec<_> = list(&store).into_iter().map(Result::unwrap).collect();
        // Without the weights nothing could be said of a model that nothing was known of.
        fs::remove_file(store.blob_path(&weights.digest)).unwrap();
        let again: Vec<_> = list(&Store::open(dir.path()).unwrap()).into_iter().map(Result::unwrap).collect();
        assert_eq!(again, first);
        let path = store.kept_path();
        let text = fs::read_to_string(&path).unwrap();
        for other in [text.replace(FORM, "another"), text.replace('{', "["), String::new()] {
            fs::write(&path, other).unwrap();
            assert!(list(&Store::open(dir.path()).unwrap()).iter().all(Result::is_err));
        }
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
            let old = SystemTime::now() - Duration::from_secs(3600);
            let path = name.manifest_path(&store.manifests());
            fs::File::options().append(true).open(path).unwrap().set_modified(old).unwrap();
        };
        let digests = || {
            let entries = store.list().unwrap().into_iter().filter(|entry| !entry.is_embedded());
            entries.map(|entry| entry.manifest.layers[0].digest).collect::<Vec<_>>()
        };
        put("a", blobs[0].digest);
        put("b", blobs[0].digest);
        assert_eq!(digests(), [blobs[0].digest; 2]);
        assert_eq!(store.listed.entries().len(), 2);
        // Of the same length and age.
        put("a", blobs[1].digest);
        assert!(digests().contains(&blobs[1].digest));
        store.delete(&ModelName::parse("a").unwrap()).unwrap();
        assert_eq!(digests(), [blobs[0].digest]);
        assert_eq!(store.listed.entries().len(), 1);
    }
}
