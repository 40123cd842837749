//! Unfinished pulls: their models, and how much of each has arrived.
//!
//! The blobs of an interrupted pull are named by their digests, which do not tell the model. So the
//! manifest is kept in a record from the moment it is known until it is stored.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::digest::Digest;
use crate::error::StoreError;
use crate::files::{self, TEMP_DIR, read_limited, write_atomic};
use crate::manifest::{Layer, Manifest, TEXT_LIMIT};
use crate::name::ModelName;
use crate::store::Store;

/// Folder of the records, in the folder of temporary files.
const PULLS_DIR: &str = "pulls";

/// Longest time from the record of a pull until it downloads the first blob.
const MAX_START_TIME: Duration = Duration::from_secs(60);

/// A pull that is not finished.
#[derive(Debug, Clone, PartialEq)]
pub struct UnfinishedPull {
    /// The model.
    pub name: ModelName,
    /// Size of the model in bytes.
    pub total: u64,
    /// Bytes that have arrived.
    pub completed: u64,
    /// When the pull was last started.
    pub began: SystemTime,
    /// Whether a process is downloading one of its blobs.
    pub is_running: bool,
    /// The blobs of which something has arrived, with the number of these bytes.
    pub(crate) present: Vec<(Digest, u64)>,
    /// The manifest in the record.
    pub(crate) manifest: Manifest,
    /// Path of the record.
    pub(crate) record: PathBuf,
}

impl UnfinishedPull {
    /// The blobs for which the pull needs space, with their sizes in bytes. A pull that stopped
    /// needs what it has downloaded.
    pub fn reserved_blobs(&self) -> Vec<(Digest, u64)> {
        let age = SystemTime::now().duration_since(self.began).unwrap_or_default();
        if !self.is_running && age > MAX_START_TIME {
            return self.present.clone();
        }
        self.manifest.blobs().map(|layer| (layer.digest, layer.size)).collect()
    }
}

impl Store {
    /// Records a pull of blobs that have no Ollama manifest.
    ///
    /// # Errors
    /// The store cannot be written.
    pub fn record_blobs(
        &self,
        name: &ModelName,
        blobs: &[(Digest, u64)],
    ) -> Result<(), StoreError> {
        let layers = blobs.iter().map(|(digest, size)| Layer::new("", *digest, *size)).collect();
        self.record_pull(name, &Manifest { config: None, layers }.to_bytes())
    }

    /// Records a pull.
    ///
    /// # Errors
    /// The store cannot be written.
    pub fn record_pull(&self, name: &ModelName, manifest: &[u8]) -> Result<(), StoreError> {
        let path = self.pull_record_path(name);
        files::create_dir(path.parent().unwrap_or(Path::new(".")))?;
        // The name and the unchanged manifest are in one file, so that the record is written
        // atomically.
        let text = [name.full().as_bytes(), b"\n", manifest].concat();
        write_atomic(self.root(), &path, &text)
    }

    /// Removes the record of a model that is now stored.
    pub fn forget_pull(&self, name: &ModelName) {
        let record = self.pull_record_path(name);
        if let Err(error) = files::remove(&record) {
            tracing::warn!(%error, "cannot remove the record of a finished pull");
        }
        // This fails unless the folder is empty.
        record.parent().iter().for_each(|folder| _ = fs::remove_dir(folder));
    }

    /// Removes the record of a pull that failed for good, unless it has left a partial or
    /// unreferenced blob that another pull could use.
    pub fn forget_failed_pull(&self, name: &ModelName) {
        let Some(pull) =
            self.read_pull(self.pull_record_path(name)).filter(|pull| !pull.is_running)
        else {
            return;
        };
        // The references are unknown, so the record stays.
        let Ok(Ok(used)) = self.referenced_blobs() else { return };
        let is_of_use = |layer: &Layer| match self.layer_path(layer) {
            Ok(_) => !used.contains(&layer.digest),
            Err(_) => self.downloaded_bytes(&layer.digest) > 0,
        };
        if !pull.manifest.blobs().any(is_of_use) {
            self.forget_pull(name);
        }
    }

    /// The unfinished pulls, sorted by name.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn pulls(&self) -> Result<Vec<UnfinishedPull>, StoreError> {
        let dir = self.root().join(TEMP_DIR).join(PULLS_DIR);
        let entries = match fs::read_dir(&dir) {
            Ok(entries) => entries,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(StoreError::io("read the folder", &dir, &e)),
        };
        let read = |entry: std::io::Result<fs::DirEntry>| self.read_pull(entry.ok()?.path());
        let mut pulls: Vec<_> = entries.filter_map(read).collect();
        pulls.sort_by_key(|pull| pull.name.full());
        Ok(pulls)
    }

    /// Reads a record; `None` if it is invalid or gone.
    fn read_pull(&self, record: PathBuf) -> Option<UnfinishedPull> {
        let began = fs::metadata(&record).and_then(|meta| meta.modified()).ok()?;
        let text = read_limited(&record, TEXT_LIMIT + 1024).ok()?;
        let line = text.iter().position(|byte| *byte == b'\n')?;
        let name = ModelName::parse(std::str::from_utf8(&text[..line]).ok()?).ok()?;
        let manifest = Manifest::parse(&text[line + 1..], &record).ok()?;
        let mut present = Vec::new();
        let mut is_running = false;
        for layer in manifest.blobs() {
            if self.layer_path(layer).is_ok() {
                present.push((layer.digest, layer.size));
                continue;
            }
            present.push((layer.digest, self.downloaded_bytes(&layer.digest).min(layer.size)));
            is_running |= self.is_being_downloaded(&layer.digest);
        }
        let completed = present.iter().fold(0u64, |sum, (_, bytes)| sum.saturating_add(*bytes));
        present.retain(|(_, bytes)| *bytes > 0);
        Some(UnfinishedPull {
            total: manifest.size(),
            completed,
            began,
            is_running,
            name,
            present,
            manifest,
            record,
        })
    }

    /// Bytes of a partial blob that have arrived, according to its part files.
    fn downloaded_bytes(&self, digest: &Digest) -> u64 {
        let partial = self.partial_of(digest);
        let parts = partial.parts().unwrap_or_default();
        let completed = |n: u64| {
            let record = read_limited(&partial.part(n), 1024).ok()?;
            serde_json::from_slice::<serde_json::Value>(&record).ok()?.get("Completed")?.as_u64()
        };
        parts.into_iter().filter_map(completed).fold(0, u64::saturating_add)
    }

    fn pull_record_path(&self, name: &ModelName) -> PathBuf {
        // The digest of the folded name is a valid file name on every system, and the same for
        // every spelling.
        let name = Digest::of(name.folded().as_bytes()).hex();
        self.root().join(TEMP_DIR).join(PULLS_DIR).join(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::media;

    #[test]
    fn an_unfinished_pull_is_listed_until_its_model_is_stored() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        assert_eq!(store.pulls().unwrap(), []);
        let name = ModelName::parse("host:5000/me/Big:1b").unwrap();
        let blob = store.add_blob(b"here").unwrap();
        let coming = Digest::of(b"to come");
        let layers =
            vec![Layer::new(media::MODEL, coming, 7), Layer::new(media::TEMPLATE, blob.digest, 4)];
        let manifest = Manifest { config: None, layers }.to_bytes();
        store.record_pull(&name, &manifest).unwrap();
        let partial = store.partial(&coming).unwrap();
        fs::write(partial.data(), b"to ....").unwrap();
        partial.write_part(0, br#"{"N":0,"Offset":0,"Size":7,"Completed":3}"#).unwrap();
        let lock = store.lock_download(&coming).unwrap();
        let [pull] = &store.pulls().unwrap()[..] else { panic!("one pull") };
        assert_eq!((&pull.name, pull.completed, pull.total, pull.is_running), (&name, 7, 11, true));
        let (all, arrived) = ([(coming, 7), (blob.digest, 4)], [(coming, 3), (blob.digest, 4)]);
        let set_age = |secs| {
            let began = SystemTime::now() - Duration::from_secs(secs);
            let record = fs::File::options().append(true).open(store.pull_record_path(&name));
            record.unwrap().set_modified(began).unwrap();
            store.pulls().unwrap().remove(0)
        };
        assert_eq!(set_age(3600).reserved_blobs(), all, "it runs");
        drop(lock);
        assert_eq!((set_age(1).reserved_blobs(), set_age(1).is_running), (all.into(), false));
        assert_eq!(set_age(3600).reserved_blobs(), arrived, "it has stopped");
        fs::write(partial.data(), b"to come").unwrap();
        store.finish_partial(&partial, &coming).unwrap();
        store.store_manifest(&name, &manifest, false, &mut || ()).unwrap();
        assert_eq!(store.pulls().unwrap(), []);
    }

    #[test]
    fn a_failed_pull_is_noted_while_some_of_its_data_remains() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        let name = ModelName::parse("host:5000/me/big:1b").unwrap();
        let (template, coming) = (store.add_blob(b"here").unwrap(), Digest::of(b"to come"));
        let layers = vec![
            Layer::new(media::MODEL, coming, 7),
            Layer::new(media::TEMPLATE, template.digest, 4),
        ];
        let manifest = Manifest { config: None, layers }.to_bytes();
        let is_noted = || {
            store.record_pull(&name, &manifest).unwrap();
            store.forget_failed_pull(&name);
            !store.pulls().unwrap().is_empty()
        };
        assert!(is_noted(), "a blob that no model uses");
        let layers = vec![Layer::new(media::MODEL, template.digest, 4)];
        let other = ModelName::parse("other").unwrap();
        let of_other = Manifest { config: None, layers }.to_bytes();
        store.store_manifest(&other, &of_other, false, &mut || ()).unwrap();
        assert!(!is_noted(), "all that is here is another model's");
        let partial = store.partial(&coming).unwrap();
        partial.write_part(0, br#"{"N":0,"Offset":0,"Size":7,"Completed":3}"#).unwrap();
        assert!(is_noted(), "a part");
        partial.discard().unwrap();
        let lock = store.lock_download(&coming).unwrap();
        assert!(is_noted(), "somebody is at it");
        drop(lock);
        assert!(!is_noted());
    }

    #[test]
    fn invalid_notes_are_not_listed() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        let records = dir.path().join(TEMP_DIR).join(PULLS_DIR);
        fs::create_dir_all(&records).unwrap();
        for (n, text) in ["", "\n", "name only", "../x\n{}", "fine\nno manifest", "\u{fffd}\n{}"]
            .iter()
            .enumerate()
        {
            fs::write(records.join(n.to_string()), text).unwrap();
        }
        assert_eq!(store.pulls().unwrap(), []);
    }
}
