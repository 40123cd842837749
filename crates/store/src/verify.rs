//! Reading what is stored once more: whether blobs still are what their names say.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::digest::{Digest, Hasher};
use crate::entry::{Place, read_entry};
use crate::error::StoreError;
use crate::files::{self, TEMP_DIR};
use crate::manifest::{Layer, media};
use crate::name::ModelName;
use crate::names::{NameFile, NameFolder, NameScan, dangling, foreign, is_shadow};
use crate::store::Store;

/// Blobs that are read at once: more than one, since a processor computes digests more slowly than a good disk reads.
const READERS: usize = 4;
/// Bytes that are read at once.
const PIECE: usize = 1 << 20;

/// What files are called that hold a damaged blob while a whole one is fetched.
pub(crate) const ASIDE_SUFFIX: &str = ".aside";

/// What is wrong with a blob.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Damage {
    /// It is not there.
    Missing,
    /// It is longer or shorter than the manifest says.
    Size {
        /// Bytes that it should have.
        expected: u64,
        /// Bytes that it has.
        found: u64,
    },
    /// Its content is not what its name says.
    Content,
    /// The system cannot read it, for this reason.
    Unreadable(String),
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => f.write_str("is missing"),
            Self::Size { expected, found } => write!(f, "has {found} bytes instead of {expected}"),
            Self::Content => f.write_str("has other content than its name says"),
            Self::Unreadable(reason) => write!(f, "cannot be read: {reason}"),
        }
    }
}

/// A file among the manifests that is no model.
#[derive(Debug, Clone, PartialEq)]
pub struct Unusable {
    /// The model that it should be, where its name is one's.
    pub name: Option<ModelName>,
    /// What is wrong, with the file's name.
    pub error: StoreError,
}

impl Store {
    /// The files of names in the own folder that cannot be read as a manifest, or that name no weights.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn unusable(&self) -> Result<Vec<Unusable>, StoreError> {
        let scan = NameScan::of(self.root())?;
        let (mut found, mut linked) = (Vec::new(), HashSet::new());
        for file in scan.files {
            match file.folder {
                // A link that leads to nothing counts for none; see `Store::find`.
                NameFolder::ManifestsV2 if file.path.exists() => {
                    _ = linked.insert(file.name.clone())
                }
                NameFolder::ManifestsV2 => {}
                // Read by older versions of Ollama alone.
                NameFolder::Manifests if linked.contains(&file.name) || is_shadow(&file.name) => {
                    continue;
                }
                NameFolder::Manifests => {}
            }
            if let Some(error) = self.why_unusable(&file) {
                found.push(Unusable { name: Some(file.name), error });
            }
        }
        let foreign_files = scan.foreign.into_iter().filter(|path| path.is_file());
        found.extend(foreign_files.map(|path| Unusable { name: None, error: foreign(path) }));
        Ok(found)
    }

    /// What is wrong with the file of a name, if anything.
    fn why_unusable(&self, file: &NameFile) -> Option<StoreError> {
        match read_entry(self.root(), file, Place::Own, self.runner()) {
            Ok(entry) if entry.manifest.last(media::MODEL).is_some() => None,
            // A model of another server has none.
            Ok(entry) => match self.resolve_entry(&entry) {
                Err(StoreError::NoWeights(_)) => Some(StoreError::Manifest {
                    path: file.path.clone(),
                    reason: "it names no weights".into(),
                }),
                _ => None,
            },
            Err(error) if error.is_absence() => self.is_lost(file).then(|| dangling(file)),
            Err(error) => Some(error),
        }
    }

    /// Whether a link of `manifests-v2` leads to nothing, and no other file has its name. A link of `manifests` may lead to a
    /// disk that is not there now.
    fn is_lost(&self, file: &NameFile) -> bool {
        let is_there = |other: &NameFile| other.path.exists();
        file.folder == NameFolder::ManifestsV2
            && file.path.symlink_metadata().is_ok()
            && NameFile::all_of(self.root(), &file.name).is_ok_and(|all| !all.iter().any(is_there))
    }

    /// Reads the blobs of layers, each once and several at a time, and says which of them are damaged. `go_on` is told the
    /// bytes that were read since it was last called, on any thread; when it says no, the blobs that are left are not read.
    pub fn damages(
        &self,
        layers: &[Layer],
        go_on: &(dyn Fn(u64) -> bool + Sync),
    ) -> HashMap<Digest, Damage> {
        let mut distinct: HashMap<Digest, &Layer> = HashMap::new();
        layers.iter().for_each(|layer| _ = distinct.insert(layer.digest, layer));
        let mut distinct: Vec<_> = distinct.into_values().collect();
        // The largest first, so that no thread is left alone with it in the end.
        distinct.sort_by_key(|layer| (std::cmp::Reverse(layer.size), layer.digest.hex()));
        let (next, found) = (AtomicUsize::new(0), Mutex::new(HashMap::new()));
        let read = || {
            while let Some(layer) = distinct.get(next.fetch_add(1, Ordering::Relaxed)) {
                match self.damage(layer, go_on) {
                    Some(None) => {}
                    Some(Some(damage)) => {
                        found.lock().expect("no reader panics").insert(layer.digest, damage);
                    }
                    None => return,
                }
            }
        };
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(READERS);
        std::thread::scope(|scope| (0..threads).for_each(|_| _ = scope.spawn(read)));
        found.into_inner().expect("no reader panics")
    }

    /// What is wrong with a layer's blob, if anything; the outer `None`: nobody wants to know any more.
    fn damage(&self, layer: &Layer, go_on: &dyn Fn(u64) -> bool) -> Option<Option<Damage>> {
        let mut file = match self.layer_path(layer).map(|path| (File::open(&path), path)) {
            Ok((Ok(file), _)) => file,
            Ok((Err(error), _)) => return Some(Some(Damage::Unreadable(error.to_string()))),
            Err(StoreError::BlobMissing(_)) => return Some(Some(Damage::Missing)),
            Err(StoreError::BlobSize { expected, found, .. }) => {
                return Some(Some(Damage::Size { expected, found }));
            }
            Err(error) => return Some(Some(Damage::Unreadable(error.to_string()))),
        };
        let (mut hasher, mut piece) = (Hasher::default(), vec![0; PIECE]);
        loop {
            match file.read(&mut piece) {
                Ok(0) => break,
                Ok(n) => {
                    hasher.update(&piece[..n]);
                    if !go_on(n as u64) {
                        return None;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Some(Some(Damage::Unreadable(error.to_string()))),
            }
        }
        Some((hasher.finish() != layer.digest).then_some(Damage::Content))
    }

    /// Puts a blob out of the way, so that it can be fetched anew. It comes back unless a new one is there when this is
    /// dropped. Models that are in memory keep the file they have.
    ///
    /// # Errors
    /// The store cannot be written.
    pub fn set_aside(&self, digest: &Digest) -> Result<Aside, StoreError> {
        let (blob, folder) = (self.own_blob_path(digest), self.root().join(TEMP_DIR));
        files::create_dir(&folder)?;
        let aside = folder.join(format!("{}{ASIDE_SUFFIX}", digest.hex()));
        match fs::rename(&blob, &aside) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(StoreError::io("move", &blob, &e)),
            _ => {
                // Whoever clears away looks at the time.
                files::touch(&aside);
                // And at the lock, however long the repair takes.
                let lock = File::open(&aside).ok().filter(|file| file.try_lock().is_ok());
                Ok(Aside { blob, aside, lock })
            }
        }
    }
}

/// A blob that is out of the way.
#[derive(Debug)]
pub struct Aside {
    blob: PathBuf,
    aside: PathBuf,
    lock: Option<File>,
}

impl Drop for Aside {
    fn drop(&mut self) {
        drop(self.lock.take());
        let done = match self.blob.exists() {
            true => files::remove(&self.aside),
            false => match fs::rename(&self.aside, &self.blob) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => {
                    Err(StoreError::io("move", &self.aside, &e))
                }
                _ => Ok(()),
            },
        };
        if let Err(error) = done {
            tracing::warn!(%error, "a damaged blob stays aside");
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
        let layers = [&b"one"[..], b"two22", &[7; 3 * PIECE]]
            .map(blob)
            .map(|b| Layer::new("m", b.digest, b.size));
        (dir, store, layers.to_vec())
    }

    #[test]
    fn what_is_as_it_was_has_no_damage_and_is_read_once() {
        let (_dir, store, mut layers) = store();
        layers.push(layers[0].clone());
        let read = AtomicU64::new(0);
        let found = store.damages(&layers, &|n| read.fetch_add(n, Ordering::Relaxed) < u64::MAX);
        assert_eq!((found.len(), read.into_inner()), (0, 3 + 5 + 3 * PIECE as u64));
    }

    #[test]
    fn every_kind_of_damage_is_told() {
        let (_dir, store, layers) = store();
        fs::write(store.blob_path(&layers[0].digest), b"0ne").unwrap();
        fs::write(store.blob_path(&layers[1].digest), b"two").unwrap();
        fs::remove_file(store.blob_path(&layers[2].digest)).unwrap();
        let found = store.damages(&layers, &|_| true);
        assert_eq!(found[&layers[0].digest], Damage::Content);
        assert_eq!(found[&layers[1].digest], Damage::Size { expected: 5, found: 3 });
        assert_eq!(found[&layers[2].digest], Damage::Missing);
    }

    #[test]
    fn manifests_that_are_none_are_told() {
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
        let found = store.unusable().unwrap();
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
    fn a_manifest_that_is_a_link_to_itself_is_told() {
        let (_dir, store, _) = store();
        let name = ModelName::parse("m").unwrap();
        let path = NameFolder::Manifests.path(store.root(), &name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink(&path, &path).unwrap();
        let found = store.unusable().unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].name, Some(name));
        assert!(
            found[0].error.to_string().contains(&path.display().to_string()),
            "{}",
            found[0].error
        );
        // One that leads nowhere may be of a disk that is not there.
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink(path.with_extension("gone"), &path).unwrap();
        assert_eq!(store.unusable().unwrap(), []);
    }

    #[test]
    fn nobody_reads_on_for_a_listener_that_left() {
        let (_dir, store, layers) = store();
        let calls = AtomicU64::new(0);
        store.damages(&layers, &|_| {
            calls.fetch_add(1, Ordering::Relaxed);
            false
        });
        assert!(calls.into_inner() <= READERS as u64);
    }

    #[test]
    fn what_a_running_repair_has_set_aside_is_not_cleared_away() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        let digest = store.add_blob(b"damaged").unwrap().digest;
        let aside = store.set_aside(&digest).unwrap();
        let hours = |file: &std::path::Path, hours: u64| {
            let time =
                std::time::SystemTime::now() - std::time::Duration::from_secs(hours * 60 * 60);
            File::options().append(true).open(file).unwrap().set_modified(time).unwrap();
        };
        hours(&aside.aside, 24 * 30);
        for partial in [false, true] {
            store.prune(crate::PruneOptions { partial, dry_run: false }).unwrap();
        }
        let file = aside.aside.clone();
        drop(aside);
        assert!(store.has_blob(&digest), "a repair that failed leaves what was there");
        // What a repair has left that was killed may be needed, too, but not for ever.
        fs::rename(dir.path().join("blobs").join(digest.file_name()), &file).unwrap();
        for (age, is_there) in [(2, true), (24 * 30, false)] {
            hours(&file, age);
            store.prune(crate::PruneOptions::default()).unwrap();
            assert_eq!(file.exists(), is_there);
        }
    }

    #[test]
    fn what_was_set_aside_comes_back_unless_there_is_a_new_one() {
        let (_dir, store, layers) = store();
        let digest = layers[0].digest;
        let path = store.blob_path(&digest);
        drop(store.set_aside(&digest).unwrap());
        assert_eq!(fs::read(&path).unwrap(), b"one");
        let aside = store.set_aside(&digest).unwrap();
        assert!(!path.exists());
        fs::write(&path, b"new").unwrap();
        drop(aside);
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(crate::tests::temp_files(store.root()), 0);
    }
}
