//! What a list shows: the models of all folders, quickly.
//!
//! Two thousand models are some ten thousand small files. A list looks at each manifest's entry in its folder, and reads the
//! file only if that has changed since the last list; what a model is told to be is kept by the digest of its manifest, which
//! changes with it.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use crate::digest::Digest;
use crate::embedded;
use crate::error::StoreError;
use crate::files::read_limited;
use crate::manifest::{Manifest, TEXT_LIMIT};
use crate::model::Details;
use crate::name::{ModelName, part_from_file_name};
use crate::store::{Entry, Place, Store};

/// A file that was written so shortly before it was read may be written again without its time changing.
const SETTLED: Duration = Duration::from_secs(2);

/// What a list says of a model, beside what its manifest says.
#[derive(Debug, Clone, PartialEq)]
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
        Ok(summary)
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
