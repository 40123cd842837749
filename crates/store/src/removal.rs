//! Removing many models at once: what else uses their blobs is looked for once, however many go.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::time::SystemTime;

use crate::digest::Digest;
use crate::error::StoreError;
use crate::files::{self, sync_dir};
use crate::manifest::{Layer, Manifest};
use crate::name::ModelName;
use crate::store::{Entry, Place, Store};

/// A model as somebody has seen it.
#[derive(Debug, Clone, PartialEq)]
pub struct Seen {
    /// Its name.
    pub name: ModelName,
    /// The digest of its manifest.
    pub digest: Digest,
    /// When that was written.
    pub modified: SystemTime,
}

impl Seen {
    fn is(&self, entry: &Entry) -> bool {
        entry.place == Place::Own && (entry.digest, entry.modified) == (self.digest, self.modified)
    }
}

impl Store {
    /// Removes the models that still are what was seen, and then the blobs that no other model uses. Says of each, in their order,
    /// whether it was removed: what was written again meanwhile stays, also where the new manifest is the old one.
    ///
    /// # Errors
    /// The store cannot be locked.
    pub fn delete_seen(&self, seen: &[Seen]) -> Result<Vec<Result<bool, StoreError>>, StoreError> {
        if seen.is_empty() {
            return Ok(Vec::new());
        }
        let _lock = self.lock()?;
        let (mut layers, mut folders) = (Vec::new(), BTreeSet::new());
        let delete = |seen: &Seen| {
            let Some(entry) = self.find_own(&seen.name)?.filter(|entry| seen.is(entry)) else {
                return Ok(false);
            };
            let path = entry.name.manifest_path(&self.manifests());
            files::remove(&path)?;
            folders.extend(path.parent().map(PathBuf::from));
            layers.extend(entry.manifest.blobs().cloned());
            Ok(true)
        };
        let removed = seen.iter().map(delete).collect();
        self.clear_folders(folders);
        self.remove_behind(layers);
        Ok(removed)
    }

    /// Removes folders of manifests that are empty, and those above them, and makes last what was removed in the others.
    fn clear_folders(&self, mut folders: BTreeSet<PathBuf>) {
        let manifests = self.manifests();
        // What lies in a folder comes behind it.
        while let Some(dir) = folders.pop_last() {
            match dir != manifests && fs::remove_dir(&dir).is_ok() {
                true => folders.extend(dir.parent().map(PathBuf::from)),
                false => sync_dir(&dir),
            }
        }
    }

    /// Removes what no model uses of the blobs of models that are gone. They are gone whatever becomes of these: what stays here is
    /// found by whoever clears away.
    fn remove_behind(&self, layers: Vec<Layer>) {
        if layers.is_empty() {
            return;
        }
        if let Err(error) = self.remove_unused(&Manifest { config: None, layers }) {
            tracing::warn!(%error, "blobs of removed models stay until unused ones are cleared away");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::media;

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
            .store_manifest(&ModelName::parse(name).unwrap(), &manifest.to_bytes(), true, &mut || ())
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
        let left = [("another layer", true), ("layer 1", true), ("layer 2", false), ("layer 3", false)];
        for (text, there) in left.into_iter().chain([("of all", true)]) {
            assert_eq!(has(&store, text), there, "{text}");
        }
        let again: Vec<_> = seen.iter().filter_map(|seen| store.find(&seen.name).unwrap()).collect();
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
        assert_eq!(store.delete_seen(&[seen[0].clone(), built_in]).unwrap(), [Ok(false), Ok(false)]);
        assert!(other.find(&seen[0].name).unwrap().is_some());
    }

    #[test]
    fn hundreds_go_as_soon_as_a_few() {
        let (_dir, store, seen) = store_of(300);
        let begun = std::time::Instant::now();
        let removed = store.delete_seen(&seen).unwrap();
        let took = begun.elapsed();
        assert!(removed.iter().all(|removed| *removed == Ok(true)));
        assert!(!has(&store, "of all") && !has(&store, "layer 299"));
        // One by one they read 45 000 manifests, which takes many times as long.
        assert!(took < Duration::from_secs(5), "{took:?}");
    }
}
