//! Removing names, and the blobs that nothing needs without them.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::digest::Digest;
use crate::entry::{Entry, Place};
use crate::error::StoreError;
use crate::files;
use crate::name::ModelName;
use crate::names::{NameFile, NameFolder};
use crate::prune::GRACE;
use crate::store::Store;
use crate::trash::TrashBatch;

/// An Ollama that makes a model touches the blobs of it at least this often.
const OLLAMA_KEEPS_ALIVE: Duration = Duration::from_secs(20 * 60);
/// A blob that was touched so shortly after its name was written was touched by whoever wrote the name.
const WRITTEN_WITH: Duration = Duration::from_secs(60);

/// A model as somebody has seen it.
#[derive(Debug, Clone, PartialEq)]
pub struct Seen {
    /// Its name.
    pub name: ModelName,
    /// The digest of its manifest.
    pub digest: Digest,
    /// When its name was written.
    pub modified: SystemTime,
}

impl Seen {
    fn is(&self, entry: &Entry) -> bool {
        entry.place == Place::Own && (entry.digest, entry.modified) == (self.digest, self.modified)
    }
}

impl Store {
    /// Removes the models that still are what was seen, and then the blobs that no other model needs: what else needs them is
    /// looked for once, however many go. Says of each, in their order, whether it was removed: what was written again since
    /// stays, also where the new manifest is the old one.
    ///
    /// # Errors
    /// The store cannot be locked.
    pub fn delete_seen(&self, seen: &[Seen]) -> Result<Vec<Result<bool, StoreError>>, StoreError> {
        if seen.is_empty() {
            return Ok(Vec::new());
        }
        let _lock = self.lock()?;
        let (mut needed, mut notes, mut trash) =
            (HashSet::new(), Vec::new(), TrashBatch::new(self));
        let mut written = None;
        let mut delete = |seen: &Seen| {
            if self.find_own(&seen.name)?.filter(|entry| seen.is(entry)).is_none() {
                return Ok(false);
            }
            let found = NameFile::all_of(self.root(), &seen.name)?;
            let references = self.references_of_files(&found);
            notes.extend(self.note_removal(&references)?);
            written = written.max(Some(seen.modified));
            self.remove_name_files(&found, &mut trash)?;
            needed.extend(references);
            Ok(true)
        };
        let removed = seen.iter().map(&mut delete).collect();
        // The names are gone whatever becomes of their blobs: the notes say what is left to do.
        match self.remove_unreferenced(&needed, &notes, written, &mut trash) {
            Ok(_) => {}
            Err(error) => {
                tracing::warn!(%error, "blobs of removed models stay until the store is cleaned up")
            }
        }
        Ok(removed)
    }

    /// Removes those of the `candidates` that no name needs, and the `notes` about them when that is done. The removed names
    /// were `written` then. While something in the store is not understood nothing is removed: it is returned. Blobs that
    /// another process may need stay until the store is cleaned up.
    pub(crate) fn remove_unreferenced(
        &self,
        candidates: &HashSet<Digest>,
        notes: &[PathBuf],
        written: Option<SystemTime>,
        trash: &mut TrashBatch<'_>,
    ) -> Result<Option<StoreError>, StoreError> {
        let referenced = match self.referenced_blobs()? {
            Ok(referenced) => referenced,
            Err(error) => return Ok(Some(error)),
        };
        // By the rule of [`Store::prune`].
        let needed = self.at_work_elsewhere().map(|since| GRACE.saturating_add(since));
        let (pins, mut is_done) = (self.pins(), true);
        for digest in candidates {
            if referenced.contains(digest) {
                continue;
            }
            let path = self.own_blob_path(digest);
            let Some(age) = unused_for(&path) else { continue };
            let may_be_needed = needed.is_some_and(|needed| age <= needed);
            if pins.has(digest) || may_be_needed || self.may_be_used_by_ollama(&path, written) {
                tracing::info!(blob = %digest, "the blob stays while another process makes a model");
                is_done = false;
                continue;
            }
            trash.remove(&path)?;
        }
        drop(pins);
        if is_done {
            notes.iter().for_each(|note| self.forget_note(note));
        }
        Ok(None)
    }

    /// Whether an Ollama 0.40 that makes a model may need a blob of a name that was `written` then. It touches the blobs that
    /// it needs and locks nothing.
    fn may_be_used_by_ollama(&self, blob: &Path, written: Option<SystemTime>) -> bool {
        let Some(written) = written.filter(|_| NameFolder::ManifestsV2.at(self.root()).is_dir())
        else {
            return false;
        };
        let Ok(touched) = fs::symlink_metadata(blob).and_then(|meta| meta.modified()) else {
            return false;
        };
        let is_recent = touched.elapsed().is_ok_and(|age| age <= OLLAMA_KEEPS_ALIVE);
        is_recent && touched.duration_since(written).is_ok_and(|later| later > WRITTEN_WITH)
    }

    /// Removes blobs that no name needs and no process holds. Without any it writes nothing, also not into a store that it may
    /// only read.
    ///
    /// # Errors
    /// The store cannot be read or written.
    pub fn remove_blobs(&self, digests: &[Digest]) -> Result<(), StoreError> {
        self.remove_unused(digests, |store| TrashBatch::new(store))
    }

    /// Removes blobs of failed or finished work for good, without the trash.
    ///
    /// # Errors
    /// As of [`Store::remove_blobs`].
    pub fn discard_blobs(&self, digests: &[Digest]) -> Result<(), StoreError> {
        self.remove_unused(digests, |store| TrashBatch::for_good(store))
    }

    fn remove_unused(
        &self,
        digests: &[Digest],
        batch: fn(&Self) -> TrashBatch<'_>,
    ) -> Result<(), StoreError> {
        if digests.is_empty() {
            return Ok(());
        }
        let _lock = self.lock()?;
        let candidates = digests.iter().copied().collect();
        // `remove_unreferenced` logs why blobs stay.
        self.remove_unreferenced(&candidates, &[], None, &mut batch(self))?;
        let is_gone = |digest: &&Digest| !self.own_blob_path(digest).exists();
        self.forget_begun(digests.iter().filter(is_gone).copied());
        Ok(())
    }
}

/// For how long no process has touched a file; `None` where there is none.
fn unused_for(path: &Path) -> Option<Duration> {
    let last = files::last_use(&fs::symlink_metadata(path).ok()?).ok()?;
    Some(last.elapsed().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::files::READS;
    use crate::{Layer, Manifest, media};

    /// A store with so many models, each with a layer of its own and one that all have.
    fn store_of(models: usize) -> (tempfile::TempDir, Store, Vec<Seen>) {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        for n in 0..models {
            put(&store, &format!("m{n}"), &format!("layer {n}"));
        }
        let mut entries = store.list().unwrap();
        entries.retain(|entry| !entry.is_embedded());
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        let seen = |Entry { name, digest, modified, .. }| Seen { name, digest, modified };
        (dir, store, entries.into_iter().map(seen).collect())
    }

    fn put(store: &Store, name: &str, own: &str) {
        let layer = |text: &str| {
            let blob = store.add_blob(text.as_bytes()).unwrap();
            Layer::new(media::TEMPLATE, blob.digest, blob.size)
        };
        let manifest = Manifest { config: None, layers: vec![layer(own), layer("of all")] };
        store
            .store_manifest(
                &ModelName::parse(name).unwrap(),
                &manifest.to_bytes(),
                true,
                &mut || (),
            )
            .unwrap();
    }

    fn has(store: &Store, text: &str) -> bool {
        store.has_blob(&Digest::of(text.as_bytes()))
    }

    #[test]
    fn what_was_written_again_stays_and_what_others_need_too() {
        let (dir, store, seen) = store_of(4);
        // One moves, one is written as it was, one goes: only the last is as it was seen.
        std::thread::sleep(Duration::from_millis(20));
        put(&store, "m0", "another layer");
        put(&store, "m1", "layer 1");
        store.delete(&seen[2].name).unwrap();
        assert_eq!(store.delete_seen(&seen).unwrap(), [Ok(false), Ok(false), Ok(false), Ok(true)]);
        let left =
            [("another layer", true), ("layer 1", true), ("layer 2", false), ("layer 3", false)];
        for (text, there) in left.into_iter().chain([("of all", true)]) {
            assert_eq!(has(&store, text), there, "{text}");
        }
        let again: Vec<_> =
            seen.iter().filter_map(|seen| store.find(&seen.name).unwrap()).collect();
        assert_eq!(again.len(), 2);
        for entry in again {
            let now = Seen { name: entry.name, digest: entry.digest, modified: entry.modified };
            assert_eq!(store.delete_seen(&[now]).unwrap(), [Ok(true)]);
        }
        assert!(!has(&store, "of all"));
        assert!(!dir.path().join("manifests/registry.ollama.ai").exists(), "empty folders go");
        assert!(dir.path().join("manifests").exists());
    }

    #[test]
    fn models_of_others_and_those_of_the_program_are_left_alone() {
        let (theirs, other, seen) = store_of(1);
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap().with_others([theirs.path().to_owned()]);
        let cria = crate::embedded::entry();
        let built_in = Seen { name: cria.name, digest: cria.digest, modified: cria.modified };
        assert_eq!(
            store.delete_seen(&[seen[0].clone(), built_in]).unwrap(),
            [Ok(false), Ok(false)]
        );
        assert!(other.find(&seen[0].name).unwrap().is_some());
    }

    #[test]
    fn many_are_removed_with_a_few_reads_each() {
        let (_dir, store, seen) = store_of(100);
        let before = READS.get();
        let removed = store.delete_seen(&seen).unwrap();
        let reads = READS.get() - before;
        assert!(removed.iter().all(|removed| *removed == Ok(true)));
        assert!(!has(&store, "of all") && !has(&store, "layer 99"));
        // Removed one by one they would read 5,000 manifests.
        assert!((100..10 * 100).contains(&reads), "{reads}");
    }
}
