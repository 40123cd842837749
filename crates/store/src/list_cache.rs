//! Cache of listings in memory: indexes of the folders of names, details of models, and the last
//! listing.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::digest::Digest;
use crate::entry::{Entry, StoreLocation, entry_of};
use crate::error::StoreError;
use crate::files::read_limited;
use crate::fingerprint::FileFingerprint;
use crate::list_cache_format::{decode, encode};
use crate::manifest_index::{IndexScan, IndexedDir};
use crate::name_files::{NameFolder, is_shadow};
use crate::summary::Summary;

/// Least number of new items for which the cache is written.
pub(crate) const MIN_NEW_ITEMS: usize = 32;
/// Largest size of the cache file in bytes.
const MAX_CACHE_BYTES: u64 = 256 << 20;
/// Version of the cache file. Increase the number when the details of a model change their meaning
/// or format.
const CACHE_VERSION: &str = concat!("lists 5 of ", env!("CARGO_PKG_VERSION"));

/// Cache of listings, in memory.
#[derive(Default)]
pub(crate) struct ListCache(Mutex<CachedLists>);

/// Indexes, details and the last listing.
#[derive(Default)]
pub(crate) struct CachedLists {
    /// Indexed folders of names, by path.
    pub(crate) dirs: HashMap<PathBuf, IndexedDir>,
    pub(crate) summaries: HashMap<Digest, Arc<Summary>>,
    /// Whether the cache file has been read.
    is_read: bool,
    /// Number of items that are not in the cache file yet.
    pub(crate) new: usize,
    /// The last listing, if the store has no read-only folders.
    pub(crate) last: Option<LastListing>,
}

/// A listing and the fingerprints of its files, without those of the name folders.
#[derive(Clone)]
pub(crate) struct LastListing {
    pub(crate) listing: Arc<Listing>,
    /// Blobs of the manifests in manifest lists, with their fingerprints.
    pub(crate) children: Vec<(PathBuf, Option<FileFingerprint>)>,
}

impl LastListing {
    pub(crate) fn is_unchanged(&self) -> bool {
        self.children.iter().all(|(path, fingerprint)| FileFingerprint::at(path) == *fingerprint)
    }
}

/// All models, and errors.
#[derive(Debug, Default)]
pub struct Listing {
    /// Models, newest first.
    pub entries: Vec<Entry>,
    /// Errors of skipped files, and of read-only folders that do not answer.
    pub errors: Vec<StoreError>,
}

impl ListCache {
    pub(crate) fn lock(&self) -> MutexGuard<'_, CachedLists> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CachedLists {
    /// Reads the cache file once. A missing or invalid file counts as empty.
    pub(crate) fn load(&mut self, path: &Path) {
        if std::mem::replace(&mut self.is_read, true) {
            return;
        }
        let bytes = read_limited(path, MAX_CACHE_BYTES).unwrap_or_default();
        let Some((dirs, summaries)) = decode(CACHE_VERSION, &bytes) else { return };
        self.dirs = dirs.into_iter().collect();
        let summaries = summaries.into_iter();
        self.summaries = summaries.map(|(digest, summary)| (digest, Arc::new(summary))).collect();
    }

    /// Encodes the cache file if enough is new.
    pub(crate) fn encode_if_due(&mut self) -> Option<Vec<u8>> {
        if self.new < MIN_NEW_ITEMS {
            return None;
        }
        self.new = 0;
        let dirs = self.dirs.iter().map(|(path, folder)| (path.as_path(), folder));
        let summaries = self.summaries.iter().map(|(digest, summary)| (digest, summary.as_ref()));
        Some(encode(CACHE_VERSION, dirs, summaries))
    }

    /// Adds the details of a model, by the digest of its manifest.
    pub(crate) fn add_summary(&mut self, digest: Digest, summary: Arc<Summary>) {
        self.summaries.insert(digest, summary);
        self.new += 1;
    }

    /// Takes the indexes of the folders of names of the store at `root`.
    pub(crate) fn take(&mut self, root: &Path) -> [IndexedDir; 2] {
        NameFolder::ALL.map(|folder| self.dirs.remove(&folder.at(root)).unwrap_or_default())
    }

    /// Stores the new indexes of a location. Returns its models sorted by name, and errors about
    /// invalid files.
    pub(crate) fn add_scan(
        &mut self,
        location: &StoreLocation,
        root: &Path,
        scan: [IndexScan; 2],
        runner: Option<&str>,
    ) -> (Vec<Entry>, Vec<StoreError>) {
        let (mut entries, mut broken, mut linked) = (Vec::new(), Vec::new(), HashSet::new());
        for (folder, scan) in NameFolder::ALL.into_iter().zip(scan) {
            let mut plain = HashSet::new();
            self.new += scan.read_count;
            self.dirs.insert(folder.at(root), scan.index);
            let mut models = scan.models;
            // Of two spellings of a host, the usual one counts, as in `NameFile::all_of`.
            models.sort_by_cached_key(|(file, _)| file.path != file.folder.path(root, &file.name));
            for (file, named) in models {
                match folder {
                    NameFolder::ManifestsV2 if !linked.insert(file.name.clone()) => continue,
                    NameFolder::ManifestsV2 => {}
                    // The anchor of a name in the other folder, or a name that is no model.
                    NameFolder::Manifests
                        if linked.contains(&file.name) || is_shadow(&file.name) =>
                    {
                        continue;
                    }
                    NameFolder::Manifests if !plain.insert(file.name.clone()) => continue,
                    NameFolder::Manifests => {}
                }
                match named.and_then(|named| entry_of(root, &file, named, location.clone(), runner))
                {
                    Ok(entry) => entries.push(entry),
                    Err(error) => broken.push(error),
                }
            }
            broken.extend(scan.foreign);
        }
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        (entries, broken)
    }

    #[cfg(test)]
    pub(crate) fn manifests(&self) -> usize {
        self.dirs.values().map(IndexedDir::manifests).sum()
    }
}
