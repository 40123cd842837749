//! Pulls that are not finished: which models they are of, and how much of them has arrived.
//!
//! The blobs of an interrupted pull lie under their digests, which tell nobody anything; so the manifest is kept, too, from
//! the moment it is known until it is stored.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::digest::Digest;
use crate::error::StoreError;
use crate::files::{self, TEMP_DIR, read_limited, write_atomic};
use crate::manifest::{Layer, Manifest, TEXT_LIMIT};
use crate::name::ModelName;
use crate::store::Store;

/// The folder of the notes, below that of temporary files.
const PULLS: &str = "pulls";

/// A pull that is not finished.
#[derive(Debug, Clone, PartialEq)]
pub struct Pull {
    /// The model.
    pub name: ModelName,
    /// Its bytes.
    pub total: u64,
    /// Those that are here.
    pub completed: u64,
    /// When it began, or was last begun again.
    pub began: SystemTime,
    /// Whether somebody is at it.
    pub is_running: bool,
    /// What it is made of.
    pub(crate) manifest: Manifest,
    /// The note about it.
    pub(crate) note: PathBuf,
}

impl Store {
    /// Notes that a model is being fetched of blobs whose manifest is of another kind, or which have none.
    ///
    /// # Errors
    /// The store cannot be written.
    pub fn note_blobs(&self, name: &ModelName, blobs: &[(Digest, u64)]) -> Result<(), StoreError> {
        let layers = blobs.iter().map(|(digest, size)| Layer::new("", *digest, *size)).collect();
        self.note_pull(name, &Manifest { config: None, layers }.to_bytes())
    }

    /// Notes that a model is being fetched.
    ///
    /// # Errors
    /// The store cannot be written.
    pub fn note_pull(&self, name: &ModelName, manifest: &[u8]) -> Result<(), StoreError> {
        let path = self.pull_note(name);
        files::create_dir(path.parent().unwrap_or(Path::new(".")))?;
        // The name and the manifest as it is, in one file that is there wholly or not at all.
        let text = [name.full().as_bytes(), b"\n", manifest].concat();
        write_atomic(self.root(), &path, &text)
    }

    /// Forgets the note about a model that is stored now.
    pub fn forget_pull(&self, name: &ModelName) {
        let note = self.pull_note(name);
        if let Err(error) = files::remove(&note) {
            tracing::warn!(%error, "a finished pull is still noted");
        }
        // Refused unless it was the last one.
        note.parent().iter().for_each(|folder| _ = fs::remove_dir(folder));
    }

    /// Forgets the note about a model whose pull failed for good, unless it has left something that another one could go on from: a part
    /// of a blob, or a blob that no model uses.
    pub fn forget_failed_pull(&self, name: &ModelName) {
        let Some(pull) = self.read_pull(self.pull_note(name)).filter(|pull| !pull.is_running)
        else {
            return;
        };
        // Who uses what is unknown: it stays.
        let Ok(Ok(used)) = self.referenced_blobs() else { return };
        let is_of_use = |layer: &Layer| match self.layer_path(layer) {
            Ok(_) => !used.contains(&layer.digest),
            Err(_) => self.arrived(&layer.digest) > 0,
        };
        if !pull.manifest.blobs().any(is_of_use) {
            self.forget_pull(name);
        }
    }

    /// The pulls that are not finished, in the order of their names.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn pulls(&self) -> Result<Vec<Pull>, StoreError> {
        let dir = self.root().join(TEMP_DIR).join(PULLS);
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

    /// `None` for what is no note, or no more.
    fn read_pull(&self, note: PathBuf) -> Option<Pull> {
        let began = fs::metadata(&note).and_then(|meta| meta.modified()).ok()?;
        let text = read_limited(&note, TEXT_LIMIT + 1024).ok()?;
        let line = text.iter().position(|byte| *byte == b'\n')?;
        let name = ModelName::parse(std::str::from_utf8(&text[..line]).ok()?).ok()?;
        let manifest = Manifest::parse(&text[line + 1..], &note).ok()?;
        let mut completed = 0;
        let mut is_running = false;
        for layer in manifest.blobs() {
            if self.layer_path(layer).is_ok() {
                completed += layer.size;
                continue;
            }
            completed += self.arrived(&layer.digest).min(layer.size);
            is_running |= self.is_being_downloaded(&layer.digest);
        }
        Some(Pull { total: manifest.size(), completed, began, is_running, name, manifest, note })
    }

    /// Bytes of an unfinished blob that are noted to be here.
    fn arrived(&self, digest: &Digest) -> u64 {
        let partial = self.partial_of(digest);
        let parts = partial.parts().unwrap_or_default();
        let completed = |n: u64| {
            let note = read_limited(&partial.part(n), 1024).ok()?;
            serde_json::from_slice::<serde_json::Value>(&note).ok()?.get("Completed")?.as_u64()
        };
        parts.into_iter().filter_map(completed).fold(0, u64::saturating_add)
    }

    fn pull_note(&self, name: &ModelName) -> PathBuf {
        // The digest of the name: a file name for every spelling, on every system.
        let name = Digest::of(name.folded().as_bytes()).hex();
        self.root().join(TEMP_DIR).join(PULLS).join(name)
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
        store.note_pull(&name, &manifest).unwrap();
        let partial = store.partial(&coming).unwrap();
        fs::write(partial.data(), b"to ....").unwrap();
        partial.write_part(0, br#"{"N":0,"Offset":0,"Size":7,"Completed":3}"#).unwrap();
        let lock = store.lock_download(&coming).unwrap();
        let [pull] = &store.pulls().unwrap()[..] else { panic!("one pull") };
        assert_eq!((&pull.name, pull.completed, pull.total, pull.is_running), (&name, 7, 11, true));
        drop(lock);
        assert!(!store.pulls().unwrap()[0].is_running);
        fs::write(partial.data(), b"to come").unwrap();
        store.finish_partial(&partial, &coming).unwrap();
        store.store_manifest(&name, &manifest, false, &mut || ()).unwrap();
        assert_eq!(store.pulls().unwrap(), []);
    }

    #[test]
    fn a_failed_pull_is_noted_as_long_as_something_is_left_of_it() {
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
            store.note_pull(&name, &manifest).unwrap();
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
    fn what_is_no_note_is_not_listed() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        let notes = dir.path().join(TEMP_DIR).join(PULLS);
        fs::create_dir_all(&notes).unwrap();
        for (n, text) in ["", "\n", "name only", "../x\n{}", "fine\nno manifest", "\u{fffd}\n{}"]
            .iter()
            .enumerate()
        {
            fs::write(notes.join(n.to_string()), text).unwrap();
        }
        assert_eq!(store.pulls().unwrap(), []);
    }
}
