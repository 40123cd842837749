//! Store operations for pulls and pushes: partial blobs under Ollama's file names, download locks
//! between processes, and manifests as bytes.

use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::digest::Digest;
use crate::entry::{Entry, StoreLocation};
use crate::error::StoreError;
use crate::files::{self, TempFile, is_locked, sync_dir};
use crate::lock_holder::LockHolder;
use crate::manifest::Layer;
use crate::name::ModelName;
use crate::name_files::NameFile;
use crate::store::Store;
use crate::store_mode::StoreMode;

/// Suffix of files with the hash state of a partial blob.
pub(crate) const HASH_STATE_SUFFIX: &str = ".sum";
/// Largest size of a hash state in bytes.
const MAX_HASH_STATE_BYTES: u64 = 4 << 10;
/// Part of the file names of secondary downloads, after the digest.
const SECONDARY_INFIX: &str = "-beside";
/// Part of the file names of private downloads, before the number of the caller.
const PRIVATE_INFIX: &str = "-private-";

/// Which files a download uses. Two processes never write to the same file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PartialPath {
    /// The files that Ollama also uses.
    Primary,
    /// Separate files, used while the holder of the primary lock is stopped.
    Secondary,
    /// Files of one caller, given by its number. They contain no bytes of other callers' downloads.
    Private(u64),
}

impl PartialPath {
    /// Name of the files in the folder of temporary files, without suffixes; `None` for the
    /// primary files.
    fn temp_name(self, digest: &Digest) -> Option<String> {
        let hex = digest.hex();
        match self {
            Self::Primary => None,
            Self::Secondary => Some(format!("{hex}{SECONDARY_INFIX}")),
            Self::Private(caller) => Some(format!("{hex}{PRIVATE_INFIX}{caller:016x}")),
        }
    }

    /// Parses the name of a file of a secondary or private download.
    fn parse(file_name: &str) -> Option<(Digest, Self)> {
        let (hex, path) = if let Some((hex, rest)) = file_name.split_once(PRIVATE_INFIX) {
            (hex, Self::Private(u64::from_str_radix(rest.get(..16)?, 16).ok()?))
        } else {
            (file_name.split_once(SECONDARY_INFIX)?.0, Self::Secondary)
        };
        Some((format!("sha256-{hex}").parse().ok()?, path))
    }
}

/// A partial blob: one file of full size, and one JSON file for each part.
///
/// ```text
/// blobs/sha256-<64 hex>-partial        the bytes at their offsets, with holes
/// blobs/sha256-<64 hex>-partial-<N>    {"N":0,"Offset":0,"Size":100000000,"Completed":12345}
/// puna-tmp/<64 hex>.sum                hash state, where Ollama looks for no parts
/// puna-tmp/<64 hex>-beside…            the same files of a secondary download
/// puna-tmp/<64 hex>-private-<16 hex>…  the same files of a private download
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartialBlob {
    data: PathBuf,
    temp: PathBuf,
    mode: Option<StoreMode>,
}

impl PartialBlob {
    /// Path of the file with the bytes.
    pub fn data(&self) -> &Path {
        &self.data
    }

    /// Sets the permission bits of the file with the bytes, as [`Store::apply_mode`].
    ///
    /// # Errors
    /// The file has other bits and belongs to another user.
    pub fn apply_mode(&self, file: &File) -> io::Result<()> {
        self.mode.map_or(Ok(()), |mode| mode.apply_to_file(file))
    }

    /// Path of the JSON file of part `n`.
    pub fn part(&self, n: u64) -> PathBuf {
        let mut name = self.data.clone().into_os_string();
        name.push(format!("-{n}"));
        name.into()
    }

    /// Replaces the JSON file of part `n` atomically. The file is not flushed: after a power
    /// failure only that part is downloaded again, and there are many parts.
    ///
    /// # Errors
    /// The store cannot be written.
    pub fn write_part(&self, n: u64, text: &[u8]) -> Result<(), StoreError> {
        self.write_file(&self.part(n), text)
    }

    /// Replaces the hash state atomically.
    ///
    /// # Errors
    /// The store cannot be written.
    pub fn write_hash_state(&self, text: &[u8]) -> Result<(), StoreError> {
        self.write_file(&self.hash_state_path(), text)
    }

    /// Replaces a file atomically. On a full disk it is overwritten in place, which needs no more
    /// space. Readers ignore a file that a crash leaves incomplete.
    fn write_file(&self, path: &Path, text: &[u8]) -> Result<(), StoreError> {
        let temp = self.temp.join(TempFile::new_name());
        let anew = || fs::write(&temp, text).and_then(|()| fs::rename(&temp, path));
        let over = || {
            let mut file = fs::File::options().write(true).open(path)?;
            file.write_all(text)?;
            file.set_len(text.len() as u64)
        };
        let written = anew().or_else(|e| {
            let _ = fs::remove_file(&temp);
            let is_full =
                matches!(e.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
            if is_full && over().is_ok() { Ok(()) } else { Err(e) }
        });
        written.map_err(|e| StoreError::io("write", path, &e))
    }

    /// The stored hash state, if any.
    pub fn read_hash_state(&self) -> Option<Vec<u8>> {
        files::read_limited(&self.hash_state_path(), MAX_HASH_STATE_BYTES).ok()
    }

    fn hash_state_path(&self) -> PathBuf {
        let name = self.data.file_name().unwrap_or_default().to_string_lossy();
        let hex = name.trim_start_matches("sha256-").trim_end_matches("-partial");
        self.temp.join(format!("{hex}{HASH_STATE_SUFFIX}"))
    }

    /// Removes the JSON file of part `n`.
    ///
    /// # Errors
    /// The file cannot be removed.
    pub fn remove_part(&self, n: u64) -> Result<(), StoreError> {
        files::remove(&self.part(n))
    }

    /// Numbers of the parts with a JSON file, unsorted.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn parts(&self) -> Result<Vec<u64>, StoreError> {
        let dir = self.folder();
        let prefix = format!("{}-", self.data.file_name().unwrap_or_default().to_string_lossy());
        let entries = match fs::read_dir(dir) {
            Ok(entries) => entries,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(StoreError::io("read the folder", dir, &e)),
        };
        let number =
            |entry: fs::DirEntry| entry.file_name().to_str()?.strip_prefix(&prefix)?.parse().ok();
        Ok(entries.filter_map(Result::ok).filter_map(number).collect())
    }

    /// Removes the bytes, the parts and the hash state.
    ///
    /// # Errors
    /// An existing file cannot be removed.
    pub fn discard(&self) -> Result<(), StoreError> {
        // Remove the parts first: the bytes are useless without them.
        self.discard_parts()?;
        files::remove(&self.data)
    }

    fn discard_parts(&self) -> Result<(), StoreError> {
        files::remove(&self.hash_state_path())?;
        self.parts()?.into_iter().try_for_each(|n| self.remove_part(n))
    }

    fn folder(&self) -> &Path {
        self.data.parent().unwrap_or(Path::new("."))
    }
}

/// A download lock between processes. Dropping it releases the lock.
#[derive(Debug)]
pub struct BlobLock {
    path: PathBuf,
    _file: File,
}

impl Drop for BlobLock {
    fn drop(&mut self) {
        // A process that has opened the file in the meantime notices that it is gone, and creates a
        // new one.
        let _ = fs::remove_file(&self.path);
    }
}

impl Store {
    /// The primary partial files of a blob. Creates their folders.
    ///
    /// # Errors
    /// The store cannot be written.
    pub fn partial(&self, digest: &Digest) -> Result<PartialBlob, StoreError> {
        self.partial_at(digest, PartialPath::Primary)
    }

    /// The partial files of a blob for a kind of download. Creates their folders.
    ///
    /// # Errors
    /// The store cannot be written.
    pub fn partial_at(
        &self,
        digest: &Digest,
        path_kind: PartialPath,
    ) -> Result<PartialBlob, StoreError> {
        let mut partial = self.partial_of(digest);
        match path_kind.temp_name(digest) {
            None => self.create_model_dir(partial.folder())?,
            Some(name) => partial.data = partial.temp.join(name),
        }
        files::create_dir(&partial.temp)?;
        Ok(partial)
    }

    /// Like [`Store::partial`], without creating folders.
    pub(crate) fn partial_of(&self, digest: &Digest) -> PartialBlob {
        let data = self.root().join("blobs").join(format!("{}-partial", digest.file_name()));
        PartialBlob { temp: self.root().join(files::TEMP_DIR), data, mode: self.mode }
    }

    /// Turns a verified download into a blob: flushes the file, then renames it. A stored blob with
    /// the same content stays, because models may be loaded from its file. The blob is pinned until
    /// [`Store::unpin_blobs`] or until a manifest with it is stored.
    ///
    /// # Errors
    /// The store cannot be written.
    pub fn finish_partial(&self, partial: &PartialBlob, digest: &Digest) -> Result<(), StoreError> {
        let target = self.own_blob_path(digest);
        let fail = |e: &io::Error| StoreError::io("write", &target, e);
        let size = fs::metadata(&partial.data).map_err(|e| fail(&e))?.len();
        if self.pin_blob(digest, size) {
            self.record_stored_blob(digest);
            return partial.discard();
        }
        File::options()
            .write(true)
            .open(&partial.data)
            .and_then(|file| self.apply_mode(&file).and_then(|()| file.sync_all()))
            .map_err(|e| fail(&e))?;
        self.pins.pin(digest);
        self.record_stored_blob(digest);
        self.create_blob_dir()?;
        fs::rename(&partial.data, &target).map_err(|e| fail(&e))?;
        sync_dir(target.parent().unwrap_or(Path::new(".")));
        self.touch_blob(digest);
        partial.discard_parts()
    }

    /// Pins a blob if it exists with this size. It stays until [`Store::unpin_blobs`] or until a
    /// manifest with it is stored.
    pub fn pin_blob(&self, digest: &Digest, size: u64) -> bool {
        let path = self.blob_path(digest);
        let is_there =
            || fs::metadata(&path).is_ok_and(|meta| meta.is_file() && meta.len() == size);
        if !is_there() {
            return false;
        }
        self.pins.pin(digest);
        self.touch_blob(digest);
        // The blob may have been removed before it was pinned.
        is_there()
    }

    /// Unpins blobs whose manifest will not be stored.
    pub fn unpin_blobs(&self, digests: impl IntoIterator<Item = Digest>) {
        self.pins.unpin(digests);
    }

    /// Takes the lock for the primary download of a blob. `None` if another process holds it.
    ///
    /// # Errors
    /// The store cannot be written.
    pub fn lock_download(&self, digest: &Digest) -> Result<Option<BlobLock>, StoreError> {
        self.lock_download_at(digest, PartialPath::Primary)
    }

    /// Takes the lock for a kind of download of a blob. `None` if another process holds it.
    ///
    /// # Errors
    /// The store cannot be written.
    pub fn lock_download_at(
        &self,
        digest: &Digest,
        path_kind: PartialPath,
    ) -> Result<Option<BlobLock>, StoreError> {
        let dir = self.root().join(files::TEMP_DIR);
        files::create_dir(&dir)?;
        let path = self.download_lock(digest, path_kind);
        let fail = |e: &io::Error| StoreError::io("lock", &path, e);
        loop {
            let file = files::open_lock_file(&path).map_err(|e| fail(&e))?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Ok(None),
                Err(TryLockError::Error(e)) if files::is_lock_unsupported(&e) => {}
                Err(TryLockError::Error(e)) => return Err(fail(&e)),
            }
            // The former holder may have removed the file before it was locked.
            if files::is_file_at(&file, &path).map_err(|e| fail(&e))? {
                LockHolder::current().write_to(&file);
                return Ok(Some(BlobLock { path, _file: file }));
            }
        }
    }

    /// The process that holds the download lock of a blob, if the lock file tells.
    pub fn download_lock_holder(
        &self,
        digest: &Digest,
        path_kind: PartialPath,
    ) -> Option<LockHolder> {
        LockHolder::read(&self.download_lock(digest, path_kind))
    }

    /// Whether a process holds the lock for the primary download of a blob.
    pub(crate) fn is_being_downloaded(&self, digest: &Digest) -> bool {
        is_locked(&self.download_lock(digest, PartialPath::Primary))
    }

    /// Whether the secondary or private download that a file belongs to is running; `None` for
    /// other files.
    pub(crate) fn is_separate_download_running(&self, file_name: &str) -> Option<bool> {
        let (digest, path_kind) = PartialPath::parse(file_name)?;
        Some(is_locked(&self.download_lock(&digest, path_kind)))
    }

    fn download_lock(&self, digest: &Digest, path_kind: PartialPath) -> PathBuf {
        let name = path_kind.temp_name(digest).unwrap_or_else(|| digest.hex().to_string());
        self.root().join(files::TEMP_DIR).join(format!("{name}.lock"))
    }

    /// Free disk space in bytes; `None` if the system does not tell.
    pub fn free_bytes(&self) -> Option<u64> {
        self.disk_space().map(|(free, _)| free)
    }

    /// Free disk space and size of the disk in bytes; `None` if the system does not tell.
    pub(crate) fn disk_space(&self) -> Option<(u64, u64)> {
        #[cfg(unix)]
        {
            let there = self.root().ancestors().find(|path| path.is_dir())?;
            let space = rustix::fs::statvfs(there).ok()?;
            Some((
                space.f_bavail.checked_mul(space.f_frsize)?,
                space.f_blocks.checked_mul(space.f_frsize)?,
            ))
        }
        #[cfg(not(unix))]
        None
    }

    /// A model and the bytes of its manifest.
    ///
    /// # Errors
    /// [`StoreError::NotFound`], or the store cannot be read.
    pub fn manifest_bytes(&self, name: &ModelName) -> Result<(Entry, Vec<u8>), StoreError> {
        let entry = self.get(name)?;
        let bytes = self.stored_manifest(&entry)?;
        Ok((entry, bytes))
    }

    /// The path of a layer's blob, which must have the size that the manifest states.
    ///
    /// # Errors
    /// [`StoreError::BlobMissing`], [`StoreError::BlobSize`], or the blob cannot be read.
    pub fn layer_file(&self, layer: &Layer) -> Result<PathBuf, StoreError> {
        self.layer_path(layer)
    }

    /// The spelling under which a model is or would be stored: names that differ only by case are
    /// the same.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn stored_spelling(&self, name: &ModelName) -> Result<ModelName, StoreError> {
        self.spelling(name)
    }

    /// The files that hold the manifests of a model in the own folder, with their sizes in bytes:
    /// the files of its name, and the blobs that are its manifest or manifests of its children.
    /// Only blobs have a digest, because models may share them.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn manifest_files(&self, entry: &Entry) -> Result<Vec<(Option<Digest>, u64)>, StoreError> {
        if entry.location != StoreLocation::Own {
            return Ok(Vec::new());
        }
        let size = |path: &Path| fs::symlink_metadata(path).map(|meta| meta.len()).ok();
        let names = NameFile::all_of(self.root(), &entry.name)?;
        let mut files: Vec<_> =
            names.iter().filter_map(|file| Some((None, size(&file.path)?))).collect();
        let children = entry.list.iter().flat_map(|list| &list.children);
        let references = children.filter(|stored| stored.child.inline.is_none());
        let blobs = references.map(|stored| stored.child.digest).chain([entry.digest]);
        files
            .extend(blobs.filter_map(|blob| Some((Some(blob), size(&self.own_blob_path(&blob))?))));
        Ok(files)
    }

    /// The tags of the models with this host, namespace and model name, in all folders. The name's
    /// own tag is ignored.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn tags(&self, name: &ModelName) -> Result<Vec<String>, StoreError> {
        Ok(self
            .models_of_any_tag(name)?
            .into_iter()
            .map(|entry| entry.name.tag().to_owned())
            .collect())
    }

    /// The models with this host, namespace and model name, in all folders. The name's own tag is
    /// ignored.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn models_of_any_tag(&self, name: &ModelName) -> Result<Vec<Entry>, StoreError> {
        let same = |other: &ModelName| {
            ModelName::from_parts(name.host(), name.namespace(), name.model(), other.tag())
                .is_ok_and(|wanted| wanted.same(other))
        };
        let models =
            self.list()?.into_iter().filter(|entry| !entry.is_embedded() && same(&entry.name));
        Ok(models.collect())
    }

    /// Adds a file as a blob with an already verified digest: by a hard link if possible, else by a
    /// copy. The blob is pinned until [`Store::unpin_blobs`] or until a manifest with it is stored.
    ///
    /// # Errors
    /// The store cannot be written, or the copy has another digest.
    pub fn link_blob(&self, digest: &Digest, path: &Path) -> Result<(), StoreError> {
        let size = fs::metadata(path).map_err(|e| StoreError::io("read", path, &e))?.len();
        if self.pin_blob(digest, size) {
            return Ok(());
        }
        let target = self.blob_path(digest);
        files::create_dir(&self.root().join("blobs"))?;
        self.pins.pin(digest);
        self.record_stored_blob(digest);
        if files::fault_point().and_then(|()| fs::hard_link(path, &target)).is_err() {
            let mut file = File::open(path).map_err(|e| StoreError::io("read", path, &e))?;
            let mut writer = self.blob_writer()?;
            io::copy(&mut file, &mut writer).map_err(|e| StoreError::io("write", &target, &e))?;
            writer.finish(Some(digest))?;
        }
        sync_dir(target.parent().unwrap_or(Path::new(".")));
        self.touch_blob(digest);
        Ok(())
    }

    /// Stores the bytes of a received manifest, whose blobs must all exist, and returns the
    /// replaced entry. Calls `on_remove` before it removes blobs that only the replaced manifest
    /// referenced, unless `keep_unused`.
    ///
    /// # Errors
    /// A blob is missing, or the store cannot be written.
    pub fn store_manifest(
        &self,
        name: &ModelName,
        bytes: &[u8],
        keep_unused: bool,
        on_remove: &mut dyn FnMut(),
    ) -> Result<Option<Entry>, StoreError> {
        let replaced = self.replace_manifest(name, bytes, keep_unused, on_remove)?;
        self.forget_pull(name);
        Ok(replaced)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store() -> (tempfile::TempDir, Store) {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        (dir, store)
    }

    #[test]
    fn partial_files_have_ollamas_names_and_become_the_blob() {
        let (dir, store) = store();
        let digest = Digest::of(b"abc");
        let partial = store.partial(&digest).unwrap();
        let blobs = dir.path().join("blobs");
        assert_eq!(partial.data(), blobs.join(format!("{}-partial", digest.file_name())));
        assert_eq!(partial.part(7), blobs.join(format!("{}-partial-7", digest.file_name())));
        fs::write(partial.data(), b"abc").unwrap();
        partial.write_part(0, b"{}").unwrap();
        partial.write_part(12, b"{}").unwrap();
        let mut parts = partial.parts().unwrap();
        parts.sort();
        assert_eq!(parts, [0, 12]);
        store.finish_partial(&partial, &digest).unwrap();
        assert_eq!(store.verify_blob(&digest), Ok(3));
        assert_eq!(fs::read_dir(&blobs).unwrap().count(), 1);
    }

    #[test]
    fn a_download_lock_has_one_holder_at_a_time() {
        let (_dir, store) = store();
        let digest = Digest::of(b"abc");
        let lock = store.lock_download(&digest).unwrap().unwrap();
        assert!(store.lock_download(&digest).unwrap().is_none());
        assert!(store.lock_download(&Digest::of(b"other")).unwrap().is_some());
        drop(lock);
        assert!(store.lock_download(&digest).unwrap().is_some());
    }

    #[test]
    fn a_secondary_download_has_its_own_files_and_lock() {
        let (dir, store) = store();
        let digest = Digest::of(b"abc");
        let _usual = store.lock_download(&digest).unwrap().unwrap();
        let lock = store.lock_download_at(&digest, PartialPath::Secondary).unwrap().unwrap();
        assert!(store.lock_download_at(&digest, PartialPath::Secondary).unwrap().is_none());
        let (usual, beside) = (
            store.partial(&digest).unwrap(),
            store.partial_at(&digest, PartialPath::Secondary).unwrap(),
        );
        for (partial, bytes) in [(&usual, b"a.."), (&beside, b"abc")] {
            fs::write(partial.data(), bytes).unwrap();
            partial.write_part(0, b"{}").unwrap();
            partial.write_hash_state(bytes).unwrap();
        }
        assert_eq!(usual.read_hash_state().unwrap(), b"a..");
        let name = |partial: &PartialBlob| {
            partial.data().file_name().unwrap().to_str().unwrap().to_owned()
        };
        assert_eq!(
            (
                store.is_separate_download_running(&name(&beside)),
                store.is_separate_download_running(&name(&usual))
            ),
            (Some(true), None)
        );
        store.finish_partial(&beside, &digest).unwrap();
        drop(lock);
        assert_eq!(store.is_separate_download_running(&name(&beside)), Some(false));
        assert_eq!(store.verify_blob(&digest), Ok(3));
        assert_eq!(
            (fs::read(usual.data()).unwrap(), usual.parts().unwrap()),
            (b"a..".to_vec(), vec![0])
        );
        // The lock and the hash state of the primary download are left.
        assert_eq!(crate::tests::temp_files(dir.path()), 2);
    }

    #[test]
    fn a_blob_of_another_size_is_not_pinned() {
        let (_dir, store) = store();
        let blob = store.add_blob(b"abc").unwrap();
        assert!(store.pin_blob(&blob.digest, 3));
        assert!(!store.pin_blob(&blob.digest, 4));
        assert!(!store.pin_blob(&Digest::of(b"other"), 5));
    }

    #[test]
    fn free_disk_space_is_reported() {
        let (_dir, store) = store();
        assert!(store.free_bytes().is_none_or(|free| free > 0));
    }
}
