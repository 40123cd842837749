//! Index of the manifest folders, so that a listing reads only what has changed. An unchanged
//! folder is not listed again, an unchanged manifest not read again. An unchanged store costs one
//! `stat` for each folder and file.
//!
//! The index trusts nothing without a comparison of fingerprints. A folder's time changes when a
//! program creates, renames or removes an entry; a file's time changes when a program writes to it.
//! The index may therefore be stored on disk. Network shares, FAT and FUSE file systems do not
//! update folder times reliably: there each listing reads all folders.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::digest::Digest;
use crate::entry::NameDocument;
use crate::error::StoreError;
use crate::fingerprint::FileFingerprint;
use crate::manifest_list::ManifestDocument;
use crate::name_files::{NAME_DEPTH, NameFile, NameFolder, NameText, foreign_file_error, name_of};

/// Least number of model folders for which a second thread pays off.
const MIN_DIRS_FOR_SECOND_THREAD: usize = if cfg!(test) { 2 } else { 200 };

/// Linux file system types (`f_type`) whose folder times change with every entry: ext2 to ext4,
/// XFS, Btrfs, ZFS, bcachefs, F2FS, tmpfs, and overlays over them.
const RELIABLE_FILE_SYSTEMS: [u32; 8] = [
    0xef53,
    0x5846_5342,
    0x9123_683e,
    0x2fc1_2fc1,
    0xca45_1a4e,
    0xf2f5_2010,
    0x0102_1994,
    0x794c_7630,
];

/// Whether a folder's time changes with each of its entries.
fn has_reliable_dir_times(dir: &Path) -> bool {
    #[cfg(target_os = "linux")]
    return rustix::fs::statfs(dir)
        .is_ok_and(|system| RELIABLE_FILE_SYSTEMS.contains(&(system.f_type as u32)));
    #[cfg(not(target_os = "linux"))]
    {
        let _ = (dir, RELIABLE_FILE_SYSTEMS);
        false
    }
}

/// A folder in the index, with its subfolders and files.
#[derive(Debug, Default)]
pub(crate) struct IndexedDir {
    /// The fingerprint when the entries were read; `None` if later changes may not show in it.
    pub(crate) fingerprint: Option<FileFingerprint>,
    /// Entries that may be folders, by name. Empty at the depth of manifests.
    pub(crate) folders: Vec<(String, IndexedDir)>,
    /// Entries that may be manifests, by name, with their content if it was read.
    pub(crate) files: Vec<(String, Option<IndexedManifest>)>,
    /// The current fingerprint, read in advance by [`prefetch_fingerprints`].
    prefetched: Option<FileFingerprint>,
}

/// A parsed manifest or manifest list in the index.
#[derive(Debug)]
pub(crate) struct IndexedManifest {
    pub(crate) fingerprint: FileFingerprint,
    pub(crate) digest: Digest,
    pub(crate) document: ManifestDocument,
    /// The current fingerprint, read in advance by [`prefetch_fingerprints`].
    prefetched: Option<FileFingerprint>,
}

impl IndexedDir {
    /// A folder decoded from the list cache.
    pub(crate) fn new(
        fingerprint: Option<FileFingerprint>,
        folders: Vec<(String, IndexedDir)>,
        files: Vec<(String, Option<IndexedManifest>)>,
    ) -> Self {
        Self { fingerprint, folders, files, prefetched: None }
    }

    /// Number of manifests in the index.
    #[cfg(test)]
    pub(crate) fn manifests(&self) -> usize {
        let below: usize = self.folders.iter().map(|(_, folder)| folder.manifests()).sum();
        below + self.files.iter().filter(|(_, text)| text.is_some()).count()
    }

    /// Collects the folders of manifests with their paths.
    fn model_dirs<'a>(
        &'a mut self,
        at: PathBuf,
        depth: usize,
        into: &mut Vec<(PathBuf, &'a mut IndexedDir)>,
    ) {
        if depth == NAME_DEPTH {
            into.push((at, self));
            return;
        }
        for (name, folder) in &mut self.folders {
            folder.model_dirs(at.join(name), depth + 1, into);
        }
    }

    /// Reads the current fingerprints of this folder and its files.
    fn prefetch_fingerprints(&mut self, at: &Path, handle: &mut DirHandle) {
        let (Some(dir), Some(name)) = (at.parent(), at.file_name()) else { return };
        handle.enter(dir);
        let mut below = PathBuf::from(name);
        self.prefetched = handle.fingerprint(&below);
        for (name, manifest) in &mut self.files {
            let Some(manifest) = manifest else { continue };
            below.push(name);
            manifest.prefetched = handle.fingerprint(&below);
            below.pop();
        }
    }

    /// Whether the folder and everything below it are unchanged and in the index. Folders of
    /// manifests use prefetched fingerprints.
    fn is_unchanged(&self, at: &Path, depth: usize) -> bool {
        if depth == NAME_DEPTH {
            let is_unchanged = |(_, text): &(String, Option<IndexedManifest>)| {
                text.as_ref().is_some_and(|text| text.prefetched == Some(text.fingerprint))
            };
            return self.fingerprint.is_some()
                && self.prefetched == self.fingerprint
                && self.files.iter().all(is_unchanged);
        }
        if self.fingerprint.is_none() && self.folders.is_empty() && depth == 0 {
            // The folder did not exist.
            return FileFingerprint::at(at).is_none();
        }
        self.fingerprint.is_some()
            && FileFingerprint::at(at) == self.fingerprint
            && self
                .folders
                .iter()
                .all(|(name, folder)| folder.is_unchanged(&at.join(name), depth + 1))
    }

    /// Drops the prefetched fingerprints.
    fn clear_prefetched(&mut self) {
        self.prefetched = None;
        self.folders.iter_mut().for_each(|(_, folder)| folder.clear_prefetched());
        self.files
            .iter_mut()
            .filter_map(|(_, text)| text.as_mut())
            .for_each(|text| text.prefetched = None);
    }
}

/// An open folder. Fingerprints below it are read relative to it, because resolving the full path
/// of each of thousands of files is the largest cost.
#[derive(Default)]
struct DirHandle {
    dir: PathBuf,
    #[cfg(all(target_os = "linux", target_pointer_width = "64"))]
    open: Option<std::os::fd::OwnedFd>,
}

impl DirHandle {
    fn enter(&mut self, dir: &Path) {
        if self.dir == dir {
            return;
        }
        self.dir = dir.to_owned();
        #[cfg(all(target_os = "linux", target_pointer_width = "64"))]
        {
            use rustix::fs::{Mode, OFlags};
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            self.open = rustix::fs::open(dir, flags, Mode::empty()).ok();
        }
    }

    /// The fingerprint of a path below the folder; `None` if nothing is there.
    fn fingerprint(&self, below: &Path) -> Option<FileFingerprint> {
        #[cfg(all(target_os = "linux", target_pointer_width = "64"))]
        if let Some(dir) = &self.open {
            let stat = rustix::fs::statat(dir, below, rustix::fs::AtFlags::empty());
            return stat.ok().map(|stat| FileFingerprint::from_stat(&stat));
        }
        FileFingerprint::at(&self.dir.join(below))
    }
}

impl IndexedManifest {
    /// A manifest decoded from the list cache.
    pub(crate) fn new(
        fingerprint: FileFingerprint,
        digest: Digest,
        document: ManifestDocument,
    ) -> Self {
        Self { fingerprint, digest, document, prefetched: None }
    }
}

/// Reads the current fingerprints of all indexed model folders in two threads, which is most of the
/// time of a listing. The scan uses equal fingerprints as they are, and reads the others again.
fn prefetch_fingerprints(root: &Path, before: &mut IndexedDir) {
    let mut models = Vec::new();
    before.model_dirs(root.to_owned(), 0, &mut models);
    if models.len() < MIN_DIRS_FOR_SECOND_THREAD {
        return;
    }
    fn prefetch(dirs: &mut [(PathBuf, &mut IndexedDir)]) {
        let mut handle = DirHandle::default();
        dirs.iter_mut().for_each(|(at, folder)| folder.prefetch_fingerprints(at, &mut handle));
    }
    let half = models.len() / 2;
    let (first, second) = models.split_at_mut(half);
    std::thread::scope(|scope| {
        // If no thread can be started, the first half is not prefetched.
        let _ = std::thread::Builder::new().spawn_scoped(scope, || prefetch(first));
        prefetch(second);
    });
}

/// Result of scanning a folder of names.
#[derive(Default)]
pub(crate) struct IndexScan {
    /// The files of names in order of the names, each with its manifest or error.
    pub(crate) models: Vec<(NameFile, Result<NameDocument, StoreError>)>,
    /// Errors about files at the depth of names whose paths spell no model name.
    pub(crate) foreign: Vec<StoreError>,
    /// The new index. Entries that the scan did not reach are dropped.
    pub(crate) index: IndexedDir,
    /// Number of folders and manifests that were read.
    pub(crate) read_count: usize,
    /// Whether nothing has changed since the old index; `models` is then empty.
    pub(crate) is_unchanged: bool,
}

impl IndexScan {
    /// Scans a folder of names of the store at `root` with the help of an old index.
    ///
    /// # Errors
    /// A folder exists but cannot be read.
    pub(crate) fn scan(
        root: &Path,
        folder: NameFolder,
        before: IndexedDir,
    ) -> Result<Self, StoreError> {
        Self::scan_unless_unchanged(root, folder, before, false)
    }

    /// Like [`IndexScan::scan`]. If `skip_unchanged` is set and nothing has changed, the result
    /// lists no models.
    ///
    /// # Errors
    /// Those of [`IndexScan::scan`].
    pub(crate) fn scan_unless_unchanged(
        root: &Path,
        folder: NameFolder,
        mut before: IndexedDir,
        skip_unchanged: bool,
    ) -> Result<Self, StoreError> {
        let top = folder.at(root);
        prefetch_fingerprints(&top, &mut before);
        if skip_unchanged && before.is_unchanged(&top, 0) {
            before.clear_prefetched();
            return Ok(Self { index: before, is_unchanged: true, ..Self::default() });
        }
        let (scan, reliable_devices) = (Self::default(), HashMap::new());
        let mut scanner = IndexScanner { root, folder, scan, parts: Vec::new(), reliable_devices };
        let index = scanner.folder(&top, before)?;
        let mut scan = Self { index, ..scanner.scan };
        // The models are nearly in order.
        scan.models.sort_by(|a, b| a.0.cmp(&b.0));
        Ok(scan)
    }
}

/// State of a scan.
struct IndexScanner<'a> {
    /// The store's folder.
    root: &'a Path,
    /// The folder of names.
    folder: NameFolder,
    scan: IndexScan,
    /// Names of the folders from the folder of names to the current one.
    parts: Vec<String>,
    /// By device, whether folder times are reliable.
    reliable_devices: HashMap<u64, bool>,
}

impl IndexScanner<'_> {
    /// Scans a folder. A path without a folder has no entries.
    fn folder(&mut self, dir: &Path, mut before: IndexedDir) -> Result<IndexedDir, StoreError> {
        let prefetched =
            before.prefetched.take().filter(|prefetched| before.fingerprint == Some(*prefetched));
        let fingerprint = prefetched.or_else(|| FileFingerprint::at(dir));
        let fingerprint = fingerprint.filter(|fingerprint| {
            *self
                .reliable_devices
                .entry(fingerprint.file.0)
                .or_insert_with(|| has_reliable_dir_times(dir))
        });
        if fingerprint.is_some() && fingerprint == before.fingerprint {
            return self.entries(dir, before);
        }
        let fingerprint = fingerprint.filter(FileFingerprint::is_settled);
        let of_files = self.parts.len() == NAME_DEPTH;
        let mut names = entry_names(dir, of_files)?;
        names.sort();
        let mut now = IndexedDir { fingerprint, ..IndexedDir::default() };
        let (mut folders, mut files): (HashMap<_, _>, HashMap<_, _>) =
            (before.folders.into_iter().collect(), before.files.into_iter().collect());
        for name in names {
            match name.to_str().map(str::to_owned) {
                Some(name) if of_files => {
                    let text = files.remove(&name).flatten();
                    now.files.push((name, text));
                }
                Some(name) => {
                    let below = folders.remove(&name).unwrap_or_default();
                    now.folders.push((name, below));
                }
                // No model name has parts that are not UTF-8.
                None => {
                    now.fingerprint = None;
                    let path = Some(dir.join(name)).filter(|path| of_files && path.is_file());
                    self.scan.foreign.extend(path.map(foreign_file_error));
                }
            }
        }
        self.scan.read_count += usize::from(now.fingerprint.is_some());
        self.entries(dir, now)
    }

    /// Scans the entries of a folder.
    fn entries(&mut self, dir: &Path, mut now: IndexedDir) -> Result<IndexedDir, StoreError> {
        for (name, below) in &mut now.folders {
            self.parts.push(name.clone());
            *below = self.folder(&dir.join(name), std::mem::take(below))?;
            self.parts.pop();
        }
        for (name, manifest) in &mut now.files {
            let path = dir.join(&*name);
            let Some(model) = name_of(&self.parts, name) else {
                self.scan
                    .foreign
                    .extend(Some(path).filter(|path| path.is_file()).map(foreign_file_error));
                continue;
            };
            let file = NameFile { name: model, folder: self.folder, path };
            match self.manifest(&file, manifest).transpose() {
                None => {}
                Some(named) => self.scan.models.push((file, named)),
            }
        }
        Ok(now)
    }

    /// Reads the manifest of a name, or takes it from the index, and updates the index. `None` if
    /// there is no file.
    fn manifest(
        &mut self,
        file: &NameFile,
        indexed: &mut Option<IndexedManifest>,
    ) -> Result<Option<NameDocument>, StoreError> {
        let path = &file.path;
        let mut before = indexed.take();
        let prefetched = before.as_mut().and_then(|known| known.prefetched.take());
        if let Some(known) = before.take_if(|known| prefetched == Some(known.fingerprint)) {
            return indexed.insert(known).document_of(file).map(Some);
        }
        let fail = |e: &io::Error| StoreError::io("read", path, e);
        let meta = match fs::metadata(path) {
            Ok(meta) if meta.is_file() => meta,
            Ok(_) => return Ok(None),
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(fail(&e)),
        };
        let fingerprint = FileFingerprint::from_metadata(&meta).map_err(|e| fail(&e))?;
        if let Some(known) = before.filter(|known| known.fingerprint == fingerprint) {
            return indexed.insert(known).document_of(file).map(Some);
        }
        let is_settled = fingerprint.is_settled();
        let NameText { bytes, digest, modified } = match file.read(self.root) {
            Err(error) if error.is_not_found() => return Ok(None),
            read => read?,
        };
        let parsed = ManifestDocument::parse(&bytes);
        let document =
            parsed.map_err(|reason| StoreError::Manifest { path: path.clone(), reason })?;
        if is_settled {
            self.scan.read_count += 1;
            *indexed = Some(IndexedManifest::new(fingerprint, digest, document.clone()));
        }
        Ok(Some(NameDocument { digest, modified, document }))
    }
}

impl IndexedManifest {
    fn document_of(&self, file: &NameFile) -> Result<NameDocument, StoreError> {
        let modified = match file.folder {
            NameFolder::ManifestsV2 => file.modified()?,
            NameFolder::Manifests => self.fingerprint.modified(),
        };
        Ok(NameDocument { digest: self.digest, modified, document: self.document.clone() })
    }
}

/// Names of a folder's entries, without those that are certainly files, or certainly folders if
/// `of_files`. A link may be either.
pub(crate) fn entry_names(dir: &Path, of_files: bool) -> Result<Vec<PathBuf>, StoreError> {
    let fail = |e: io::Error| StoreError::io("read the folder", dir, &e);
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        // The folder never existed, or was removed during the scan.
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(Vec::new());
        }
        Err(e) => return Err(fail(e)),
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.map_err(fail)?;
        // Finder, NFS and editors leave hidden files.
        if entry.file_name().as_encoded_bytes().starts_with(b".") {
            continue;
        }
        let kind = entry.file_type();
        if !kind.is_ok_and(|kind| if of_files { kind.is_dir() } else { kind.is_file() }) {
            names.push(entry.file_name().into());
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;
    use crate::fingerprint::SETTLE_TIME;

    const MANIFEST: &str = r#"{"layers":[{"mediaType":"m","digest":"sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad","size":1}]}"#;

    fn settle() {
        std::thread::sleep(SETTLE_TIME * 2);
    }

    /// A store with one folder of manifests.
    struct TestDir {
        root: tempfile::TempDir,
        dir: PathBuf,
    }

    impl TestDir {
        fn new() -> Self {
            let root = tempfile::tempdir().unwrap();
            let dir = root.path().join("manifests/h/n/m");
            fs::create_dir_all(&dir).unwrap();
            Self { root, dir }
        }

        fn at(&self, name: &str) -> PathBuf {
            self.dir.join(name)
        }

        /// Scans the folder. Returns the tags with the size of their first layer, the number of
        /// entries read, and the new index.
        fn scan(&self, before: IndexedDir) -> (Vec<(String, u64)>, usize, IndexedDir) {
            let scan = IndexScan::scan(self.root.path(), NameFolder::Manifests, before).unwrap();
            let size = |named: NameDocument| match named.document {
                ManifestDocument::Manifest { manifest, .. } => manifest.layers[0].size,
                ManifestDocument::List(_) => panic!("no list"),
            };
            let models = scan.models.into_iter();
            let found =
                models.map(|(file, named)| (file.name.tag().to_owned(), size(named.unwrap())));
            (found.collect(), scan.read_count, scan.index)
        }
    }

    fn names(found: &[(String, u64)]) -> Vec<String> {
        found.iter().map(|(name, _)| name.clone()).collect()
    }

    #[test]
    fn unchanged_files_are_not_read_again_and_changes_are_found() {
        let test_dir = TestDir::new();
        // With two model folders, the second thread runs.
        let other = test_dir.root.path().join("manifests/h/n/other");
        fs::create_dir_all(&other).unwrap();
        fs::write(test_dir.at("a"), MANIFEST).unwrap();
        fs::write(test_dir.at("b"), MANIFEST).unwrap();
        settle();
        let (found, _, index) = test_dir.scan(IndexedDir::default());
        assert_eq!((names(&found), index.manifests()), (vec!["a".into(), "b".into()], 2));
        let (again, read, index) = test_dir.scan(index);
        assert_eq!((&again, read), (&found, 0));

        // Another program overwrites the file in place, with the same length.
        fs::write(test_dir.at("a"), MANIFEST.replace("\"size\":1", "\"size\":2")).unwrap();
        let (found, _, index) = test_dir.scan(index);
        assert_eq!(found, [("a".into(), 2), ("b".into(), 1)]);
        fs::rename(test_dir.at("b"), test_dir.at("c")).unwrap();
        let (found, _, index) = test_dir.scan(index);
        assert_eq!(names(&found), ["a", "c"]);
        settle();
        let (_, _, index) = test_dir.scan(index);
        fs::remove_file(test_dir.at("a")).unwrap();
        fs::write(test_dir.at("d"), MANIFEST).unwrap();
        let (found, _, index) = test_dir.scan(index);
        assert_eq!(names(&found), ["c", "d"]);
        assert_eq!(index.manifests(), 1, "what is gone is forgotten, and what is new may change");
        settle();
        let (_, _, index) = test_dir.scan(index);
        fs::rename(&test_dir.dir, test_dir.root.path().join("manifests/h/n/moved")).unwrap();
        fs::remove_dir(&other).unwrap();
        let (found, _, index) = test_dir.scan(index);
        assert_eq!((names(&found), index.manifests()), (vec!["c".into(), "d".into()], 2));
        fs::remove_dir_all(test_dir.root.path().join("manifests/h")).unwrap();
        assert_eq!(test_dir.scan(index).0, []);
    }

    #[test]
    fn files_without_a_settled_fingerprint_are_not_indexed() {
        let test_dir = TestDir::new();
        let path = test_dir.at("a");
        fs::write(&path, MANIFEST).unwrap();
        // The file's time is in the future, so that its fingerprint is not settled.
        let soon = SystemTime::now() + Duration::from_secs(3600);
        fs::File::options().append(true).open(&path).unwrap().set_modified(soon).unwrap();
        settle();
        let (found, _, index) = test_dir.scan(IndexedDir::default());
        assert_eq!((found.len(), index.manifests()), (1, 0));
    }

    #[cfg(unix)]
    #[test]
    fn a_link_shows_the_current_content_of_its_target() {
        let test_dir = TestDir::new();
        let elsewhere = tempfile::tempdir().unwrap();
        let target = elsewhere.path().join("target");
        std::os::unix::fs::symlink(&target, test_dir.at("a")).unwrap();
        settle();
        let (found, _, index) = test_dir.scan(IndexedDir::default());
        assert_eq!(found, []);
        fs::write(&target, MANIFEST).unwrap();
        let (found, _, index) = test_dir.scan(index);
        assert_eq!(found.len(), 1);
        fs::remove_file(&target).unwrap();
        assert_eq!(test_dir.scan(index).0, []);
    }

    #[cfg(unix)]
    #[test]
    fn a_file_name_that_is_not_utf_8_is_reported_by_each_scan() {
        use std::os::unix::ffi::OsStrExt;
        let test_dir = TestDir::new();
        fs::write(test_dir.dir.join(std::ffi::OsStr::from_bytes(b"\xff")), MANIFEST).unwrap();
        fs::write(test_dir.at("a"), MANIFEST).unwrap();
        settle();
        let mut index = IndexedDir::default();
        for _ in 0..2 {
            let scan = IndexScan::scan(test_dir.root.path(), NameFolder::Manifests, index).unwrap();
            assert_eq!((scan.models.len(), scan.foreign.len()), (1, 1));
            index = scan.index;
        }
        assert_eq!(index.manifests(), 1);
    }
}
