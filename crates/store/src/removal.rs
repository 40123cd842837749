//! Removes model names and the blobs that no other name references.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::digest::Digest;
use crate::entry::{Entry, StoreLocation};
use crate::error::StoreError;
use crate::files;
use crate::name::ModelName;
use crate::name_files::{NameFile, NameFolder};
use crate::prune::UNUSED_BLOB_GRACE;
use crate::store::Store;
use crate::trash::TrashBatch;

/// Ollama touches the blobs of a model that it creates at least this often.
const OLLAMA_TOUCH_INTERVAL: Duration = Duration::from_secs(20 * 60);
/// If a blob was touched within this time after its name was written, the writer of the name
/// touched it.
const NAME_WRITE_WINDOW: Duration = Duration::from_secs(60);

/// A model in a known state, for [`Store::delete_unchanged`].
#[derive(Debug, Clone, PartialEq)]
pub struct ModelVersion {
    /// The model's name.
    pub name: ModelName,
    /// The digest of its manifest.
    pub digest: Digest,
    /// When the name was written.
    pub modified: SystemTime,
}

impl ModelVersion {
    fn matches(&self, entry: &Entry) -> bool {
        entry.location == StoreLocation::Own
            && (entry.digest, entry.modified) == (self.digest, self.modified)
    }
}

impl Store {
    /// Removes models that have not changed, then the blobs that no other model references. The
    /// references are computed once for all models. Returns for each model whether it was removed.
    /// A model that was written again in the meantime stays, even with the same manifest.
    ///
    /// # Errors
    /// The store cannot be locked.
    pub fn delete_unchanged(
        &self,
        seen: &[ModelVersion],
    ) -> Result<Vec<Result<bool, StoreError>>, StoreError> {
        if seen.is_empty() {
            return Ok(Vec::new());
        }
        let _lock = self.lock()?;
        let (mut needed, mut records, mut trash) =
            (HashSet::new(), Vec::new(), TrashBatch::new(self));
        let mut written = None;
        let mut delete = |seen: &ModelVersion| {
            if self.find_own(&seen.name)?.filter(|entry| seen.matches(entry)).is_none() {
                return Ok(false);
            }
            let found = NameFile::all_of(self.root(), &seen.name)?;
            let references = self.references_of_files(&found);
            records.extend(self.record_removal(&references)?);
            written = written.max(Some(seen.modified));
            self.remove_name_files(&found, &mut trash)?;
            needed.extend(references);
            Ok(true)
        };
        let removed = seen.iter().map(&mut delete).collect();
        // The names are removed even if this fails. The records name the blobs that are left to
        // remove.
        match self.remove_unreferenced(&needed, &records, written, &mut trash) {
            Ok(_) => {}
            Err(error) => {
                tracing::warn!(%error, "cannot remove blobs of removed models; garbage collection removes them later")
            }
        }
        Ok(removed)
    }

    /// Removes the `candidates` that no name references, then the `records` of them. `written` is
    /// when the removed names were written. Nothing is removed while the store contains an entry
    /// that Puna does not know; that error is returned. Blobs that another process may need stay
    /// until garbage collection.
    pub(crate) fn remove_unreferenced(
        &self,
        candidates: &HashSet<Digest>,
        records: &[PathBuf],
        written: Option<SystemTime>,
        trash: &mut TrashBatch<'_>,
    ) -> Result<Option<StoreError>, StoreError> {
        let referenced = match self.referenced_blobs()? {
            Ok(referenced) => referenced,
            Err(error) => return Ok(Some(error)),
        };
        // The same rule as in [`Store::prune`].
        let needed =
            self.pins.oldest_other_work_age().map(|since| UNUSED_BLOB_GRACE.saturating_add(since));
        let (pins, mut is_done) = (self.pins.lock(), true);
        for digest in candidates {
            if referenced.contains(digest) {
                continue;
            }
            let path = self.own_blob_path(digest);
            let Some(age) = unused_for(&path) else { continue };
            let may_be_needed = needed.is_some_and(|needed| age <= needed);
            if pins.contains(digest) || may_be_needed || self.may_be_used_by_ollama(&path, written)
            {
                tracing::info!(blob = %digest, "keeping a blob that another process may need");
                is_done = false;
                continue;
            }
            trash.remove(&path)?;
        }
        drop(pins);
        if is_done {
            records.iter().for_each(|record| self.remove_blob_record(record));
        }
        Ok(None)
    }

    /// Whether Ollama 0.40 may be creating a model with this blob. `written` is when the removed
    /// name was written. Ollama touches the blobs that it needs and holds no locks.
    fn may_be_used_by_ollama(&self, blob: &Path, written: Option<SystemTime>) -> bool {
        let Some(written) = written.filter(|_| NameFolder::ManifestsV2.at(self.root()).is_dir())
        else {
            return false;
        };
        let Ok(touched) = fs::symlink_metadata(blob).and_then(|meta| meta.modified()) else {
            return false;
        };
        let is_recent = touched.elapsed().is_ok_and(|age| age <= OLLAMA_TOUCH_INTERVAL);
        is_recent && touched.duration_since(written).is_ok_and(|later| later > NAME_WRITE_WINDOW)
    }

    /// Removes blobs that no name references and no process uses. An empty list writes nothing, so
    /// that it works on a read-only store.
    ///
    /// # Errors
    /// The store cannot be read or written.
    pub fn remove_blobs(&self, digests: &[Digest]) -> Result<(), StoreError> {
        self.remove_unused(digests, |store| TrashBatch::new(store))
    }

    /// Removes blobs of failed or finished work, without the trash.
    ///
    /// # Errors
    /// Those of [`Store::remove_blobs`].
    pub fn discard_blobs(&self, digests: &[Digest]) -> Result<(), StoreError> {
        self.remove_unused(digests, |store| TrashBatch::without_trash(store))
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
        self.remove_stored_blob_records(digests.iter().filter(is_gone).copied());
        Ok(())
    }
}

/// Time since a file was last used; `None` if it does not exist.
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

    /// A store with `models` models. Each has one layer of its own and one layer that all share.
    fn store_of(models: usize) -> (tempfile::TempDir, Store, Vec<ModelVersion>) {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        for n in 0..models {
            put(&store, &format!("m{n}"), &format!("layer {n}"));
        }
        let mut entries = store.list().unwrap();
        entries.retain(|entry| !entry.is_embedded());
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        let seen = |Entry { name, digest, modified, .. }| ModelVersion { name, digest, modified };
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
    fn models_written_again_and_shared_blobs_stay() {
        let (dir, store, seen) = store_of(4);
        // `m0` changes, `m1` is written again with the same content, `m2` is deleted. Only `m3` is
        // unchanged.
        std::thread::sleep(Duration::from_millis(20));
        put(&store, "m0", "another layer");
        put(&store, "m1", "layer 1");
        store.delete(&seen[2].name).unwrap();
        assert_eq!(
            store.delete_unchanged(&seen).unwrap(),
            [Ok(false), Ok(false), Ok(false), Ok(true)]
        );
        let left =
            [("another layer", true), ("layer 1", true), ("layer 2", false), ("layer 3", false)];
        for (text, there) in left.into_iter().chain([("of all", true)]) {
            assert_eq!(has(&store, text), there, "{text}");
        }
        let again: Vec<_> =
            seen.iter().filter_map(|seen| store.find(&seen.name).unwrap()).collect();
        assert_eq!(again.len(), 2);
        for entry in again {
            let now =
                ModelVersion { name: entry.name, digest: entry.digest, modified: entry.modified };
            assert_eq!(store.delete_unchanged(&[now]).unwrap(), [Ok(true)]);
        }
        assert!(!has(&store, "of all"));
        assert!(!dir.path().join("manifests/registry.ollama.ai").exists(), "empty folders go");
        assert!(dir.path().join("manifests").exists());
    }

    #[test]
    fn models_of_read_only_folders_and_embedded_ones_are_not_removed() {
        let (theirs, other, seen) = store_of(1);
        let dir = tempfile::tempdir().unwrap();
        let store =
            Store::open(dir.path()).unwrap().with_read_only_dirs([theirs.path().to_owned()]);
        let cria = crate::embedded::entry();
        let built_in =
            ModelVersion { name: cria.name, digest: cria.digest, modified: cria.modified };
        assert_eq!(
            store.delete_unchanged(&[seen[0].clone(), built_in]).unwrap(),
            [Ok(false), Ok(false)]
        );
        assert!(other.find(&seen[0].name).unwrap().is_some());
    }

    #[test]
    fn removing_many_models_reads_each_manifest_a_few_times() {
        let (_dir, store, seen) = store_of(100);
        let before = READS.get();
        let removed = store.delete_unchanged(&seen).unwrap();
        let reads = READS.get() - before;
        assert!(removed.iter().all(|removed| *removed == Ok(true)));
        assert!(!has(&store, "of all") && !has(&store, "layer 99"));
        // Removing the models one by one would read 5,000 manifests.
        assert!((100..10 * 100).contains(&reads), "{reads}");
    }
}
