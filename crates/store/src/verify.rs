//! Verifies blobs against their digests, and the manifests of all names.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::digest::{Digest, Hasher};
use crate::entry::{StoreLocation, read_entry};
use crate::error::StoreError;
use crate::files::{self, TEMP_DIR};
use crate::manifest::{Layer, media};
use crate::name::ModelName;
use crate::name_files::{
    NameFile, NameFolder, NameScan, dangling_link_error, foreign_file_error, is_shadow,
};
use crate::store::Store;

/// Largest number of blobs read at the same time. One core computes digests more slowly than a good
/// disk reads.
const MAX_READERS: usize = 4;
/// Bytes of one read.
const READ_BYTES: usize = 1 << 20;

/// Suffix of files that hold a damaged blob while a repair fetches a new one.
pub(crate) const DISPLACED_SUFFIX: &str = ".aside";

/// What is wrong with a blob.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Damage {
    /// The blob is absent.
    Missing,
    /// The size differs from that in the manifest.
    Size {
        /// Size in the manifest, in bytes.
        expected: u64,
        /// Size of the file, in bytes.
        found: u64,
    },
    /// The content has another digest.
    Content,
    /// The system cannot read the file, for this reason.
    Unreadable(String),
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => f.write_str("is missing"),
            Self::Size { expected, found } => write!(f, "has {found} bytes instead of {expected}"),
            Self::Content => f.write_str("does not match its digest"),
            Self::Unreadable(reason) => write!(f, "cannot be read: {reason}"),
        }
    }
}

/// A file among the manifests that is no valid manifest.
#[derive(Debug, Clone, PartialEq)]
pub struct InvalidManifest {
    /// The model name that the path spells, if any.
    pub name: Option<ModelName>,
    /// What is wrong; the message names the file.
    pub error: StoreError,
}

impl Store {
    /// The files of names in the own folder that are no valid manifests, or that have no weights.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn invalid_manifests(&self) -> Result<Vec<InvalidManifest>, StoreError> {
        let scan = NameScan::of(self.root())?;
        let (mut found, mut linked) = (Vec::new(), HashSet::new());
        for file in scan.files {
            match file.folder {
                // A dangling link counts as absent; see `Store::find`.
                NameFolder::ManifestsV2 if file.path.exists() => {
                    _ = linked.insert(file.name.clone())
                }
                NameFolder::ManifestsV2 => {}
                // Only older versions of Ollama read this file.
                NameFolder::Manifests if linked.contains(&file.name) || is_shadow(&file.name) => {
                    continue;
                }
                NameFolder::Manifests => {}
            }
            if let Some(error) = self.manifest_error(&file) {
                found.push(InvalidManifest { name: Some(file.name), error });
            }
        }
        let foreign_files = scan.foreign.into_iter().filter(|path| path.is_file());
        found.extend(
            foreign_files
                .map(|path| InvalidManifest { name: None, error: foreign_file_error(path) }),
        );
        Ok(found)
    }

    /// What is wrong with the file of a name, if anything.
    fn manifest_error(&self, file: &NameFile) -> Option<StoreError> {
        match read_entry(self.root(), file, StoreLocation::Own, self.runner()) {
            Ok(entry) if entry.manifest.last(media::MODEL).is_some() => None,
            // A remote model has no weights.
            Ok(entry) => match self.resolve_entry(&entry) {
                Err(StoreError::NoWeights(_)) => Some(StoreError::Manifest {
                    path: file.path.clone(),
                    reason: "it has no weights".into(),
                }),
                _ => None,
            },
            Err(error) if error.is_not_found() => {
                self.is_dangling(file).then(|| dangling_link_error(file))
            }
            Err(error) => Some(error),
        }
    }

    /// Whether a link of `manifests-v2` dangles and no other file has its name. A dangling link of
    /// `manifests` may point to a disk that is not mounted.
    fn is_dangling(&self, file: &NameFile) -> bool {
        let is_there = |other: &NameFile| other.path.exists();
        file.folder == NameFolder::ManifestsV2
            && file.path.symlink_metadata().is_ok()
            && NameFile::all_of(self.root(), &file.name).is_ok_and(|all| !all.iter().any(is_there))
    }

    /// Reads the blobs of layers, each once and several at a time, and returns the damaged ones.
    /// `on_read` receives the bytes read since its last call, on any thread. If it returns `false`,
    /// the remaining blobs are not read.
    pub fn find_damage(
        &self,
        layers: &[Layer],
        on_read: &(dyn Fn(u64) -> bool + Sync),
    ) -> HashMap<Digest, Damage> {
        let mut distinct: HashMap<Digest, &Layer> = HashMap::new();
        layers.iter().for_each(|layer| _ = distinct.insert(layer.digest, layer));
        let mut distinct: Vec<_> = distinct.into_values().collect();
        // Largest blobs first, so that the threads end at about the same time.
        distinct.sort_by_key(|layer| (std::cmp::Reverse(layer.size), layer.digest.hex()));
        let (next, found) = (AtomicUsize::new(0), Mutex::new(HashMap::new()));
        let read = || {
            while let Some(layer) = distinct.get(next.fetch_add(1, Ordering::Relaxed)) {
                match self.check_layer(layer, on_read) {
                    Some(None) => {}
                    Some(Some(damage)) => {
                        found.lock().expect("no reader panics").insert(layer.digest, damage);
                    }
                    None => return,
                }
            }
        };
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(MAX_READERS);
        std::thread::scope(|scope| (0..threads).for_each(|_| _ = scope.spawn(read)));
        found.into_inner().expect("no reader panics")
    }

    /// What is wrong with a layer's blob, if anything. The outer `None` means that `on_read`
    /// stopped the check.
    fn check_layer(&self, layer: &Layer, on_read: &dyn Fn(u64) -> bool) -> Option<Option<Damage>> {
        let mut file = match self.layer_path(layer).map(|path| (File::open(&path), path)) {
            Ok((Ok(file), _)) => file,
            Ok((Err(error), _)) => return Some(Some(Damage::Unreadable(error.to_string()))),
            Err(StoreError::BlobMissing(_)) => return Some(Some(Damage::Missing)),
            Err(StoreError::BlobSize { expected, found, .. }) => {
                return Some(Some(Damage::Size { expected, found }));
            }
            Err(error) => return Some(Some(Damage::Unreadable(error.to_string()))),
        };
        let (mut hasher, mut piece) = (Hasher::default(), vec![0; READ_BYTES]);
        loop {
            match file.read(&mut piece) {
                Ok(0) => break,
                Ok(n) => {
                    hasher.update(&piece[..n]);
                    if !on_read(n as u64) {
                        return None;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Some(Some(Damage::Unreadable(error.to_string()))),
            }
        }
        Some((hasher.finish() != layer.digest).then_some(Damage::Content))
    }

    /// Moves a damaged blob out of the way, so that it can be fetched again. When the result is
    /// dropped, the blob returns unless a new one exists. Loaded models keep the old file.
    ///
    /// # Errors
    /// The store cannot be written.
    pub fn displace_blob(&self, digest: &Digest) -> Result<DisplacedBlob, StoreError> {
        let (blob, folder) = (self.own_blob_path(digest), self.root().join(TEMP_DIR));
        files::create_dir(&folder)?;
        let displaced = folder.join(format!("{}{DISPLACED_SUFFIX}", digest.hex()));
        match fs::rename(&blob, &displaced) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(StoreError::io("move", &blob, &e)),
            _ => {
                // Garbage collection respects the file's time.
                files::touch(&displaced);
                // Garbage collection respects the lock, however long the repair takes.
                let lock = File::open(&displaced).ok().filter(|file| file.try_lock().is_ok());
                Ok(DisplacedBlob { blob, displaced, lock })
            }
        }
    }
}

/// A damaged blob that a repair has moved out of the way.
#[derive(Debug)]
pub struct DisplacedBlob {
    blob: PathBuf,
    displaced: PathBuf,
    lock: Option<File>,
}

impl Drop for DisplacedBlob {
    fn drop(&mut self) {
        drop(self.lock.take());
        let done = match self.blob.exists() {
            true => files::remove(&self.displaced),
            false => match fs::rename(&self.displaced, &self.blob) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => {
                    Err(StoreError::io("move", &self.displaced, &e))
                }
                _ => Ok(()),
            },
        };
        if let Err(error) = done {
            tracing::warn!(%error, "cannot remove a damaged blob");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;

    fn store() -> (tempfile::TempDir, Store, Vec<Layer>) {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        let blob = |bytes: &[u8]| store.add_blob(bytes).unwrap();
        let layers = [&b"one"[..], b"two22", &[7; 3 * READ_BYTES]]
            .map(blob)
            .map(|b| Layer::new("m", b.digest, b.size));
        (dir, store, layers.to_vec())
    }

    #[test]
    fn intact_blobs_are_read_once_and_have_no_damage() {
        let (_dir, store, mut layers) = store();
        layers.push(layers[0].clone());
        let read = AtomicU64::new(0);
        let found =
            store.find_damage(&layers, &|n| read.fetch_add(n, Ordering::Relaxed) < u64::MAX);
        assert_eq!((found.len(), read.into_inner()), (0, 3 + 5 + 3 * READ_BYTES as u64));
    }

    #[test]
    fn every_kind_of_damage_is_reported() {
        let (_dir, store, layers) = store();
        fs::write(store.blob_path(&layers[0].digest), b"0ne").unwrap();
        fs::write(store.blob_path(&layers[1].digest), b"two").unwrap();
        fs::remove_file(store.blob_path(&layers[2].digest)).unwrap();
        let found = store.find_damage(&layers, &|_| true);
        assert_eq!(found[&layers[0].digest], Damage::Content);
        assert_eq!(found[&layers[1].digest], Damage::Size { expected: 5, found: 3 });
        assert_eq!(found[&layers[2].digest], Damage::Missing);
    }

    #[test]
    fn invalid_manifests_are_reported() {
        let (_dir, store, layers) = store();
        let layer = |media_type: &str| Layer::new(media_type, layers[0].digest, layers[0].size);
        let good = crate::Manifest { config: None, layers: vec![layer(media::MODEL)] };
        let name = |tag: &str| ModelName::parse(&format!("m:{tag}")).unwrap();
        store.store_manifest(&name("good"), &good.to_bytes(), false, &mut || ()).unwrap();
        let climbing = String::from_utf8(good.to_bytes()).unwrap().replace("sha256:", "sha256:../");
        let broken = [("a", "junk"), ("b", ""), ("c", "[]"), ("d", "{}"), ("e", climbing.as_str())];
        for (tag, text) in broken {
            fs::write(NameFolder::Manifests.path(store.root(), &name(tag)), text).unwrap();
        }
        let found = store.invalid_manifests().unwrap();
        let names: Vec<_> = found.iter().map(|found| found.name.clone()).collect();
        assert_eq!(names, broken.map(|(tag, _)| Some(name(tag))));
        for (found, (tag, _)) in found.iter().zip(broken) {
            let path = NameFolder::Manifests.path(store.root(), &name(tag));
            let text = found.error.to_string();
            assert!(text.contains(&path.display().to_string()), "{text}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_manifest_that_links_to_itself_is_reported() {
        let (_dir, store, _) = store();
        let name = ModelName::parse("m").unwrap();
        let path = NameFolder::Manifests.path(store.root(), &name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink(&path, &path).unwrap();
        let found = store.invalid_manifests().unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].name, Some(name));
        assert!(
            found[0].error.to_string().contains(&path.display().to_string()),
            "{}",
            found[0].error
        );
        // A dangling link may point to a disk that is not mounted.
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink(path.with_extension("gone"), &path).unwrap();
        assert_eq!(store.invalid_manifests().unwrap(), []);
    }

    #[test]
    fn verification_stops_when_its_callback_declines() {
        let (_dir, store, layers) = store();
        let calls = AtomicU64::new(0);
        store.find_damage(&layers, &|_| {
            calls.fetch_add(1, Ordering::Relaxed);
            false
        });
        assert!(calls.into_inner() <= MAX_READERS as u64);
    }

    #[test]
    fn a_blob_displaced_by_a_running_repair_is_not_pruned() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        let digest = store.add_blob(b"damaged").unwrap().digest;
        let displaced = store.displace_blob(&digest).unwrap();
        let hours = |file: &std::path::Path, hours: u64| {
            let time =
                std::time::SystemTime::now() - std::time::Duration::from_secs(hours * 60 * 60);
            File::options().append(true).open(file).unwrap().set_modified(time).unwrap();
        };
        hours(&displaced.displaced, 24 * 30);
        for partial in [false, true] {
            store.prune(crate::PruneOptions { partial, dry_run: false }).unwrap();
        }
        let file = displaced.displaced.clone();
        drop(displaced);
        assert!(store.has_blob(&digest), "a repair that failed leaves what was there");
        // The displaced file of a killed repair is kept for a while.
        fs::rename(dir.path().join("blobs").join(digest.file_name()), &file).unwrap();
        for (age, is_there) in [(2, true), (24 * 30, false)] {
            hours(&file, age);
            store.prune(crate::PruneOptions::default()).unwrap();
            assert_eq!(file.exists(), is_there);
        }
    }

    #[test]
    fn a_displaced_blob_is_restored_unless_a_new_one_replaces_it() {
        let (_dir, store, layers) = store();
        let digest = layers[0].digest;
        let path = store.blob_path(&digest);
        drop(store.displace_blob(&digest).unwrap());
        assert_eq!(fs::read(&path).unwrap(), b"one");
        let displaced = store.displace_blob(&digest).unwrap();
        assert!(!path.exists());
        fs::write(&path, b"new").unwrap();
        drop(displaced);
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(crate::tests::temp_files(store.root()), 0);
    }
}
