//! Listings of all models, fast enough for two thousand models in some ten thousand small files.
//!
//! A listing compares the fingerprints of all folders and manifests with the
//! [index](crate::manifest_index) and reads only what has changed. Details of a model are cached by
//! the digest of its manifest. Index and details are also written to `puna-tmp/lists/`. Without
//! that file, each command would read the vocabularies of all models, which takes seconds.
//!
//! Read-only folders are scanned at the same time as the own folder, [with a
//! timeout](crate::unresponsive_dirs).

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Instant, SystemTime};

use crate::digest::Digest;
use crate::embedded;
use crate::entry::{Entry, StoreLocation};
use crate::error::StoreError;
use crate::files::{TEMP_DIR, create_dir, write_atomic};
use crate::fingerprint::FileFingerprint;
use crate::list_cache::{CachedLists, LastListing, Listing};
use crate::manifest_index::{IndexScan, IndexedDir};
use crate::name_files::NameFolder;
use crate::store::Store;
use crate::summary::Summary;
use crate::unresponsive_dirs::{DirQuery, READ_ONLY_DIR_TIMEOUT};

/// Folder and file of the list cache, in the folder of temporary files.
const CACHE_FILE: [&str; 2] = ["lists", "index"];
/// Scans of both folders of names.
type NameDirScans = Result<[IndexScan; 2], StoreError>;
/// An unfinished scan of a read-only folder.
type PendingScan = DirQuery<NameDirScans>;

/// Scans both folders of names of the store at `root`, with the help of old indexes.
fn scan_name_dirs(root: &Path, before: [IndexedDir; 2]) -> NameDirScans {
    let [linked, plain] = before;
    Ok([
        IndexScan::scan(root, NameFolder::ManifestsV2, linked)?,
        IndexScan::scan(root, NameFolder::Manifests, plain)?,
    ])
}

impl Store {
    /// All models, newest first. Models embedded in the program come last, unless the store has one
    /// of their name. Invalid manifests are skipped with a warning. Of models with the same name,
    /// the listing has the one that [`Store::find`] finds.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn list(&self) -> Result<Vec<Entry>, StoreError> {
        Ok(self.listing()?.entries.clone())
    }

    /// Like [`Store::list`], with the errors of skipped files and unresponsive folders. The same
    /// `Arc` is returned while nothing changes.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn listing(&self) -> Result<Arc<Listing>, StoreError> {
        // The lock is held until the end, because concurrent listings would read everything again.
        let mut cache = self.list_cache.lock();
        cache.load(&self.list_cache_path());
        let queries = self.start_read_only_scans(&mut cache);
        let last = cache
            .last
            .take()
            .filter(|last| self.read_only_dirs().is_empty() && last.is_unchanged());
        let scan = match self.scan_own_dirs(&mut cache, last)? {
            Ok(same) => return Ok(same),
            Err(scan) => scan,
        };
        let (mut entries, mut broken) =
            cache.add_scan(&StoreLocation::Own, self.root(), scan, self.runner());
        for error in &broken {
            if self.is_first_report(&error.to_string()) {
                tracing::warn!(%error, "invalid manifest; not listed, and it blocks garbage collection");
            }
        }
        let unresponsive = self.add_read_only_models(queries, &mut cache, &mut entries);
        let seconds = |e: &Entry| {
            e.modified.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
        };
        entries.sort_by_key(|entry| std::cmp::Reverse(seconds(entry)));
        let cria = embedded::entry();
        if !entries.iter().any(|entry| entry.name.same(&cria.name)) {
            entries.push(cria);
        }
        let folders = |location| NameFolder::ALL.map(|folder| folder.at(self.root_of(&location)));
        let dirs: Vec<PathBuf> = self.locations().flat_map(folders).collect();
        cache.dirs.retain(|path, _| dirs.contains(path));
        if unresponsive.is_empty() && cache.summaries.len() > entries.len() {
            let rows = entries.iter().flat_map(Entry::rows);
            let digests: HashSet<Digest> = rows.map(|row| row.shown_digest()).collect();
            cache.summaries.retain(|digest, _| digests.contains(digest));
        }
        broken.extend(unresponsive);
        let listing = Arc::new(Listing { entries, errors: broken });
        cache.last = Some(LastListing {
            children: self.child_blobs(&listing.entries),
            listing: listing.clone(),
        });
        Ok(listing)
    }

    /// Scans the own folders of names. The inner `Ok` is the `last` listing if nothing has changed
    /// since.
    #[allow(clippy::type_complexity)] // one of two outcomes, used once
    fn scan_own_dirs(
        &self,
        cache: &mut CachedLists,
        last: Option<LastListing>,
    ) -> Result<Result<Arc<Listing>, [IndexScan; 2]>, StoreError> {
        let [linked, plain] = cache.take(self.root());
        let scan_dir = |folder, before, skip_unchanged| {
            IndexScan::scan_unless_unchanged(self.root(), folder, before, skip_unchanged)
        };
        let skip_unchanged = last.is_some();
        let scan = [
            scan_dir(NameFolder::ManifestsV2, linked, skip_unchanged)?,
            scan_dir(NameFolder::Manifests, plain, skip_unchanged)?,
        ];
        let Some(last) = last else { return Ok(Err(scan)) };
        if scan.iter().all(|scan| scan.is_unchanged) {
            for (folder, scan) in NameFolder::ALL.into_iter().zip(scan) {
                cache.dirs.insert(folder.at(self.root()), scan.index);
            }
            cache.last = Some(last.clone());
            return Ok(Ok(last.listing));
        }
        // The scan of an unchanged folder has no models: scan it again.
        let [linked, plain] = scan;
        let whole = |folder, scan: IndexScan| match scan.is_unchanged {
            true => IndexScan::scan(self.root(), folder, scan.index),
            false => Ok(scan),
        };
        Ok(Err([whole(NameFolder::ManifestsV2, linked)?, whole(NameFolder::Manifests, plain)?]))
    }

    /// Blobs of the manifests in manifest lists of the own folder, with their current fingerprints.
    fn child_blobs(&self, entries: &[Entry]) -> Vec<(PathBuf, Option<FileFingerprint>)> {
        let own = entries.iter().filter(|entry| entry.location == StoreLocation::Own);
        let children = own.filter_map(|entry| entry.list.as_ref()).flat_map(|list| &list.children);
        let stored = children.filter(|stored| stored.child.inline.is_none());
        let paths = stored.map(|stored| self.own_blob_path(&stored.child.digest));
        paths.map(|path| (path.clone(), FileFingerprint::at(&path))).collect()
    }

    /// Starts to scan the read-only folders, except those whose last query is unfinished.
    fn start_read_only_scans(
        &self,
        cache: &mut CachedLists,
    ) -> Vec<(PathBuf, Option<PendingScan>)> {
        let start = |folder: &PathBuf| {
            if self.unresponsive.contains(folder) {
                return (folder.clone(), None);
            }
            let (root, before) = (folder.clone(), cache.take(folder));
            (folder.clone(), Some(DirQuery::at(folder, move || scan_name_dirs(&root, before))))
        };
        self.read_only_dirs().iter().map(start).collect()
    }

    /// Adds the models of read-only folders whose names are not listed yet. Errors in these folders
    /// are logged only. Returns the folders that do not answer.
    fn add_read_only_models(
        &self,
        queries: Vec<(PathBuf, Option<PendingScan>)>,
        cache: &mut CachedLists,
        entries: &mut Vec<Entry>,
    ) -> Vec<StoreError> {
        let (until, mut unresponsive) = (Instant::now() + READ_ONLY_DIR_TIMEOUT, Vec::new());
        for (folder, query) in queries {
            let location = StoreLocation::ReadOnly(folder.clone());
            let left = until.saturating_duration_since(Instant::now());
            let scan = match query.as_ref().map(|query| query.wait(left)) {
                Some(Ok(scan)) => scan,
                Some(Err(RecvTimeoutError::Disconnected)) => {
                    scan_name_dirs(&folder, Default::default())
                }
                pending @ (None | Some(Err(RecvTimeoutError::Timeout))) => {
                    let error = StoreError::Unresponsive { folder: folder.clone() };
                    if pending.is_some() {
                        tracing::warn!(%error, "not listing a read-only folder until it responds");
                    }
                    query.into_iter().for_each(|query| self.unresponsive.insert(&folder, query));
                    unresponsive.push(error);
                    continue;
                }
            };
            let (found, broken) = match scan {
                Ok(scan) => cache.add_scan(&location, &folder, scan, self.runner()),
                Err(error) => (Vec::new(), vec![error]),
            };
            let names: HashSet<String> = entries.iter().map(|entry| entry.name.folded()).collect();
            entries.extend(found.into_iter().filter(|entry| !names.contains(&entry.name.folded())));
            for error in broken.into_iter().filter(|error| self.is_first_report(&error.to_string()))
            {
                tracing::warn!(%error, "invalid manifest; not listed");
            }
        }
        unresponsive
    }

    /// Details of a model in a listing.
    ///
    /// # Errors
    /// Those of [`Store::resolve`], if the details are not cached.
    pub fn summary(&self, entry: &Entry) -> Result<Arc<Summary>, StoreError> {
        {
            let mut cache = self.list_cache.lock();
            cache.load(&self.list_cache_path());
            if let Some(summary) = cache.summaries.get(&entry.shown_digest()) {
                return Ok(summary.clone());
            }
        }
        let model = self.resolve_entry(entry)?;
        let summary = Arc::new(Summary {
            details: model.details(),
            context_length: model.gguf_info.context_length,
            embedding_length: model.gguf_info.embedding_length,
            capabilities: model.capabilities(),
            remote_model: model.config.remote_model,
            remote_host: model.config.remote_host,
        });
        self.list_cache.lock().add_summary(entry.shown_digest(), summary.clone());
        Ok(summary)
    }

    /// Writes the cache file if enough is new. Write errors are ignored.
    pub fn save_list_cache(&self) {
        let mut cache = self.list_cache.lock();
        let Some(bytes) = cache.encode_if_due() else { return };
        drop(cache);
        let path = self.list_cache_path();
        let written = path.parent().map_or(Ok(()), create_dir);
        if let Err(error) = written.and_then(|()| write_atomic(self.root(), &path, &bytes)) {
            tracing::debug!(%error, "cannot write the list cache");
        }
    }

    fn list_cache_path(&self) -> PathBuf {
        self.root().join(TEMP_DIR).join(CACHE_FILE[0]).join(CACHE_FILE[1])
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::fs;
    use std::time::Duration;

    use super::*;
    use crate::entry::read_entry;
    use crate::list_cache::MIN_NEW_ITEMS;
    use crate::name_files::NameFile;
    use crate::unresponsive_dirs::tests::hung;
    use crate::{Layer, Manifest, ModelName, media};

    #[test]
    fn an_unresponsive_folder_is_reported_and_left_out_until_it_answers() {
        let [own, share, gone] = [(); 3].map(|()| tempfile::tempdir().unwrap());
        let put = |folder: &Path, name: &str| {
            let store = Store::open(folder).unwrap();
            let blob = store.add_blob(name.as_bytes()).unwrap();
            let layers = vec![Layer::new(media::TEMPLATE, blob.digest, blob.size)];
            let bytes = Manifest { config: None, layers }.to_bytes();
            store
                .store_manifest(&ModelName::parse(name).unwrap(), &bytes, true, &mut || ())
                .unwrap();
        };
        put(own.path(), "mine");
        put(share.path(), "theirs");
        put(gone.path(), "far");
        let others = [gone.path().to_owned(), share.path().to_owned()];
        let store = Store::open(own.path()).unwrap().with_read_only_dirs(others);
        let list = || {
            let listed = store.listing().unwrap();
            let (mut entries, broken) = (listed.entries.clone(), listed.errors.clone());
            entries.retain(|entry| !entry.is_embedded());
            let mut names: Vec<String> =
                entries.iter().map(|entry| entry.name.model().to_owned()).collect();
            names.sort();
            (names, broken)
        };
        let hanging = gone.path();
        hung().push(hanging.to_owned());
        let said = vec![StoreError::Unresponsive { folder: gone.path().to_owned() }];
        assert_eq!(list(), (vec!["mine".into(), "theirs".into()], said.clone()));
        // The folder is not queried again, also not for blobs.
        let begun = Instant::now();
        assert_eq!(list().1, said);
        assert!(!store.has_blob(&Digest::of(b"far")) && store.has_blob(&Digest::of(b"theirs")));
        assert!(begun.elapsed() < READ_ONLY_DIR_TIMEOUT, "{:?}", begun.elapsed());
        hung().retain(|path| path != hanging);
        while store.unresponsive.contains(gone.path()) {
            std::thread::sleep(Duration::from_millis(2));
        }
        assert!(store.has_blob(&Digest::of(b"far")));
        assert_eq!(list(), (vec!["far".into(), "mine".into(), "theirs".into()], vec![]));
    }

    #[test]
    fn the_cache_file_outlives_the_process_and_damaged_ones_are_ignored() {
        let dir = tempfile::tempdir().unwrap();
        let zoo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/zoo/llama-f16.gguf");
        let store = Store::open(dir.path()).unwrap();
        let weights = store.add_blob(&fs::read(zoo).unwrap()).unwrap();
        for n in 0..MIN_NEW_ITEMS {
            let config = store.add_blob(format!("{{\"model_type\":\"{n}M\"}}").as_bytes()).unwrap();
            let config = Some(Layer::new(media::CONFIG, config.digest, config.size));
            let layers = vec![Layer::new(media::MODEL, weights.digest, weights.size)];
            let name = ModelName::parse(&format!("m{n}")).unwrap();
            let bytes = Manifest { config, layers }.to_bytes();
            store.store_manifest(&name, &bytes, true, &mut || ()).unwrap();
        }
        let list = |store: &Store| {
            let entries: Vec<_> =
                store.list().unwrap().into_iter().filter(|e| !e.is_embedded()).collect();
            let all: Vec<_> = entries.iter().map(|entry| store.summary(entry)).collect();
            store.save_list_cache();
            all
        };
        let first: Vec<_> = list(&store).into_iter().map(Result::unwrap).collect();
        // Without the weights, details can only come from the cache.
        fs::remove_file(store.blob_path(&weights.digest)).unwrap();
        let again: Vec<_> =
            list(&Store::open(dir.path()).unwrap()).into_iter().map(Result::unwrap).collect();
        assert_eq!(again, first);
        let path = store.list_cache_path();
        let bytes = fs::read(&path).unwrap();
        for other in [&[b"another ", &bytes[..]].concat()[..], &bytes[..bytes.len() - 1], b""] {
            fs::write(&path, other).unwrap();
            assert!(list(&Store::open(dir.path()).unwrap()).iter().all(Result::is_err));
        }
    }

    #[test]
    fn a_listing_from_the_cache_file_shows_the_current_models() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        let blobs = [b"one", b"two"].map(|bytes| store.add_blob(bytes).unwrap());
        let manifest = |digest: Digest| {
            let layers = vec![Layer::new(media::TEMPLATE, digest, 3)];
            Manifest { config: None, layers }.to_bytes()
        };
        let name = |n: usize| ModelName::parse(&format!("m{n}")).unwrap();
        for n in 0..MIN_NEW_ITEMS {
            store.store_manifest(&name(n), &manifest(blobs[0].digest), true, &mut || ()).unwrap();
        }
        std::thread::sleep(std::time::Duration::from_millis(200));
        store.list().unwrap();
        store.save_list_cache();
        assert!(store.list_cache_path().is_file());

        // Another program overwrites a manifest in place, removes one and adds one.
        let path = |n: usize| NameFolder::Manifests.path(store.root(), &name(n));
        fs::write(path(0), manifest(blobs[1].digest)).unwrap();
        fs::remove_file(path(1)).unwrap();
        fs::create_dir_all(path(99).parent().unwrap()).unwrap();
        fs::write(path(99), manifest(blobs[1].digest)).unwrap();
        let now = Store::open(dir.path()).unwrap();
        let listed: HashMap<String, Entry> = now
            .list()
            .unwrap()
            .into_iter()
            .map(|entry| (entry.name.model().to_owned(), entry))
            .collect();
        assert_eq!(listed["m0"].manifest.layers[0].digest, blobs[1].digest);
        assert_eq!(listed["m0"].digest, Digest::of(&manifest(blobs[1].digest)));
        assert!(!listed.contains_key("m1") && listed.contains_key("m99"));
        let one = &listed["m2"];
        let file =
            NameFile { name: one.name.clone(), folder: NameFolder::Manifests, path: path(2) };
        let read = read_entry(store.root(), &file, StoreLocation::Own, None).unwrap();
        assert_eq!(*one, read, "as if it had been read");
        assert!(now.list_cache.lock().new < 10, "it was not");
    }

    #[test]
    fn the_same_listing_is_returned_until_something_changes() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        let blobs = [b"one", b"two"].map(|bytes| store.add_blob(bytes).unwrap().digest);
        let manifest = |digest| {
            Manifest { config: None, layers: vec![Layer::new(media::TEMPLATE, digest, 3)] }
                .to_bytes()
        };
        let name = |name: &str| ModelName::parse(name).unwrap();
        let put = |model: &str| {
            store.store_manifest(&name(model), &manifest(blobs[0]), true, &mut || ()).unwrap();
        };
        for model in ["a", "b", "me/c", "me/c:1b"] {
            put(model);
        }
        let settled = || {
            std::thread::sleep(std::time::Duration::from_millis(200));
            store.listing().unwrap();
            store.listing().unwrap()
        };
        let is_same = |before: &Arc<Listing>| Arc::ptr_eq(before, &store.listing().unwrap());
        let first = settled();
        assert!(is_same(&first) && is_same(&first));
        // Other programs overwrite a manifest in place with the same length, add a tag, remove a
        // tag, and add a model.
        let path = |model: &str| NameFolder::Manifests.path(store.root(), &name(model));
        let changes: [&dyn Fn(); 4] = [
            &|| fs::write(path("a"), manifest(blobs[1])).unwrap(),
            &|| assert!(fs::copy(path("me/c"), path("me/c:2b")).is_ok()),
            &|| fs::remove_file(path("me/c:1b")).unwrap(),
            &|| put("d"),
        ];
        for change in changes {
            let before = settled();
            assert!(is_same(&before));
            change();
            assert!(!is_same(&before));
        }
        assert_eq!(store.list().unwrap().iter().filter(|entry| !entry.is_embedded()).count(), 5);
        assert!(
            store.list().unwrap().iter().any(|entry| entry.manifest.layers[0].digest == blobs[1])
        );
    }

    #[test]
    fn a_listing_reads_changed_manifests_and_drops_removed_ones() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        let blobs = [b"one", b"two"].map(|bytes| store.add_blob(bytes).unwrap());
        let put = |name: &str, digest: Digest| {
            let manifest =
                Manifest { config: None, layers: vec![Layer::new(media::TEMPLATE, digest, 3)] };
            let name = ModelName::parse(name).unwrap();
            store.store_manifest(&name, &manifest.to_bytes(), true, &mut || ()).unwrap();
            let old = SystemTime::now() - std::time::Duration::from_secs(3600);
            let path = NameFolder::Manifests.path(store.root(), &name);
            fs::File::options().append(true).open(path).unwrap().set_modified(old).unwrap();
            std::thread::sleep(std::time::Duration::from_millis(200));
        };
        let digests = || {
            let entries = store.list().unwrap().into_iter().filter(|entry| !entry.is_embedded());
            entries.map(|entry| entry.manifest.layers[0].digest).collect::<Vec<_>>()
        };
        put("a", blobs[0].digest);
        put("b", blobs[0].digest);
        assert_eq!(digests(), [blobs[0].digest; 2]);
        assert_eq!(store.list_cache.lock().manifests(), 2);
        // Same length and time.
        put("a", blobs[1].digest);
        assert!(digests().contains(&blobs[1].digest));
        store.delete(&ModelName::parse("a").unwrap()).unwrap();
        assert_eq!(digests(), [blobs[0].digest]);
        assert_eq!(store.list_cache.lock().manifests(), 1);
    }
}
