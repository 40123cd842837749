//! What pulling and pushing need of the store: unfinished blobs under the names that Ollama gives them, locks between
//! processes, and manifests as bytes.

use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::digest::Digest;
use crate::entry::Entry;
use crate::error::StoreError;
use crate::files::{self, TempFile, sync_dir};
use crate::holder::Holder;
use crate::manifest::Layer;
use crate::name::ModelName;
use crate::store::Store;

/// What files are called that say how far a digest is computed.
pub(crate) const SUM_SUFFIX: &str = ".sum";
/// Bytes of such a file at most.
const SUM_LIMIT: u64 = 4 << 10;
/// What names of files have, behind the digest, of a download beside another one.
const BESIDE: &str = "-beside";

/// Where a blob is downloaded. Two processes never write to one file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seat {
    /// Where Ollama does it, too.
    Usual,
    /// Beside a process that has the right to the usual place and does not use it.
    Beside,
}

/// A blob that is being downloaded: one file of its full size, and a file of JSON for each of its parts.
///
/// ```text
/// blobs/sha256-<64 hex>-partial        the bytes, at their places; the rest is holes
/// blobs/sha256-<64 hex>-partial-<N>    {"N":0,"Offset":0,"Size":100000000,"Completed":12345}
/// puna-tmp/<64 hex>.sum                how far its digest is computed, where Ollama does not look for parts
/// puna-tmp/<64 hex>-beside…            the same of a download beside one that stands still
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Partial {
    data: PathBuf,
    temp: PathBuf,
}

impl Partial {
    /// The file with the bytes.
    pub fn data(&self) -> &Path {
        &self.data
    }

    /// The file about part `n`.
    pub fn part(&self, n: u64) -> PathBuf {
        let mut name = self.data.clone().into_os_string();
        name.push(format!("-{n}"));
        name.into()
    }

    /// Writes the file about part `n`: the old text or the new one is there at any moment. It is not flushed to the disk:
    /// a note that is lost with the power costs its part, and there are many of them.
    ///
    /// # Errors
    /// The store cannot be written.
    pub fn write_part(&self, n: u64, text: &[u8]) -> Result<(), StoreError> {
        self.write_note(&self.part(n), text)
    }

    /// Writes down how far the digest is: the old text or the new one is there at any moment.
    ///
    /// # Errors
    /// The store cannot be written.
    pub fn write_sum(&self, text: &[u8]) -> Result<(), StoreError> {
        self.write_note(&self.sum(), text)
    }

    /// Writes a note, the old one or the new at any moment; on a full disk over the old one, which takes no further space. Of one
    /// that is broken by a crash then, nothing counts.
    fn write_note(&self, path: &Path, text: &[u8]) -> Result<(), StoreError> {
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

    /// What was written down of the digest, if anything was.
    pub fn read_sum(&self) -> Option<Vec<u8>> {
        files::read_limited(&self.sum(), SUM_LIMIT).ok()
    }

    fn sum(&self) -> PathBuf {
        let name = self.data.file_name().unwrap_or_default().to_string_lossy();
        let hex = name.trim_start_matches("sha256-").trim_end_matches("-partial");
        self.temp.join(format!("{hex}{SUM_SUFFIX}"))
    }

    /// Removes the file about part `n`.
    ///
    /// # Errors
    /// It cannot be removed.
    pub fn remove_part(&self, n: u64) -> Result<(), StoreError> {
        files::remove(&self.part(n))
    }

    /// The numbers of the parts of which there are files, in no order.
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

    /// Removes the bytes and what is known about them.
    ///
    /// # Errors
    /// A file is there that cannot be removed.
    pub fn discard(&self) -> Result<(), StoreError> {
        // The parts first: without them the bytes count for nothing.
        self.discard_parts()?;
        files::remove(&self.data)
    }

    fn discard_parts(&self) -> Result<(), StoreError> {
        files::remove(&self.sum())?;
        self.parts()?.into_iter().try_for_each(|n| self.remove_part(n))
    }

    fn folder(&self) -> &Path {
        self.data.parent().unwrap_or(Path::new("."))
    }
}

/// A lock between processes, held until it is dropped.
#[derive(Debug)]
pub struct BlobLock {
    path: PathBuf,
    _file: File,
}

impl Drop for BlobLock {
    fn drop(&mut self) {
        // Whoever opened it meanwhile finds out that it is gone, and makes a new one.
        let _ = fs::remove_file(&self.path);
    }
}

impl Store {
    /// Where a blob is kept while it is downloaded. Makes the folder.
    ///
    /// # Errors
    /// The store cannot be written.
    pub fn partial(&self, digest: &Digest) -> Result<Partial, StoreError> {
        self.partial_at(digest, Seat::Usual)
    }

    /// The same at one of the places where that may be done.
    ///
    /// # Errors
    /// The store cannot be written.
    pub fn partial_at(&self, digest: &Digest, seat: Seat) -> Result<Partial, StoreError> {
        let mut partial = self.partial_of(digest);
        if seat == Seat::Beside {
            partial.data = partial.temp.join(format!("{}{BESIDE}", digest.hex()));
        }
        files::create_dir(partial.folder())?;
        files::create_dir(&partial.temp)?;
        Ok(partial)
    }

    /// The same without making anything.
    pub(crate) fn partial_of(&self, digest: &Digest) -> Partial {
        let data = self.root().join("blobs").join(format!("{}-partial", digest.file_name()));
        Partial { temp: self.root().join(files::TEMP_DIR), data }
    }

    /// Makes a blob of what was downloaded as `partial`, whose bytes have the digest: flushed to the disk, then renamed. It is
    /// kept from being cleared away until [`Store::let_go`] or a manifest with it.
    ///
    /// # Errors
    /// The store cannot be written.
    pub fn finish_partial(&self, partial: &Partial, digest: &Digest) -> Result<(), StoreError> {
        let target = self.own_blob_path(digest);
        let fail = |e: &io::Error| StoreError::io("write", &target, e);
        File::options()
            .write(true)
            .open(&partial.data)
            .and_then(|file| file.sync_all())
            .map_err(|e| fail(&e))?;
        self.pin(digest);
        self.note_begun(digest);
        files::create_dir(&self.root().join("blobs"))?;
        fs::rename(&partial.data, &target).map_err(|e| fail(&e))?;
        sync_dir(target.parent().unwrap_or(Path::new(".")));
        self.touch_blob(digest);
        partial.discard_parts()
    }

    /// Whether a blob of this size is there; if so it is kept from being cleared away until [`Store::let_go`] or a
    /// manifest with it.
    pub fn hold_blob(&self, digest: &Digest, size: u64) -> bool {
        let path = self.blob_path(digest);
        let is_there =
            || fs::metadata(&path).is_ok_and(|meta| meta.is_file() && meta.len() == size);
        if !is_there() {
            return false;
        }
        self.pin(digest);
        self.touch_blob(digest);
        // It may have gone between the look and the pin.
        is_there()
    }

    /// Lets go of blobs that were held for a manifest that will not come.
    pub fn let_go(&self, digests: impl IntoIterator<Item = Digest>) {
        self.release(digests);
    }

    /// The right to download a blob, which one process at a time has. `None`: another one has it.
    ///
    /// # Errors
    /// The store cannot be written.
    pub fn lock_download(&self, digest: &Digest) -> Result<Option<BlobLock>, StoreError> {
        self.lock_download_at(digest, Seat::Usual)
    }

    /// The same at one of the places where that may be done.
    ///
    /// # Errors
    /// The store cannot be written.
    pub fn lock_download_at(
        &self,
        digest: &Digest,
        seat: Seat,
    ) -> Result<Option<BlobLock>, StoreError> {
        let dir = self.root().join(files::TEMP_DIR);
        files::create_dir(&dir)?;
        let path = self.download_lock(digest, seat);
        let fail = |e: &io::Error| StoreError::io("lock", &path, e);
        loop {
            let open = File::options().write(true).create(true).truncate(false).open(&path);
            let file = open.map_err(|e| fail(&e))?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Ok(None),
                Err(TryLockError::Error(e)) if files::has_no_locks(&e) => {}
                Err(TryLockError::Error(e)) => return Err(fail(&e)),
            }
            // Whoever had it may have removed it between the opening and the locking.
            if files::is_at(&file, &path).map_err(|e| fail(&e))? {
                Holder::here().note(&file);
                return Ok(Some(BlobLock { path, _file: file }));
            }
        }
    }

    /// Who has the right to download a blob, as far as that can be told.
    pub fn download_holder(&self, digest: &Digest, seat: Seat) -> Option<Holder> {
        Holder::read(&self.download_lock(digest, seat))
    }

    /// Whether some process has the right to download a blob.
    pub(crate) fn is_being_downloaded(&self, digest: &Digest) -> bool {
        is_held(&self.download_lock(digest, Seat::Usual))
    }

    /// Whether a file of a name belongs to a download beside another one, and whether that goes on.
    pub(crate) fn beside(&self, name: &str) -> Option<bool> {
        let (hex, _) = name.split_once(BESIDE)?;
        let digest = format!("sha256-{hex}").parse().ok()?;
        Some(is_held(&self.download_lock(&digest, Seat::Beside)))
    }

    fn download_lock(&self, digest: &Digest, seat: Seat) -> PathBuf {
        let beside = if seat == Seat::Beside { BESIDE } else { "" };
        self.root().join(files::TEMP_DIR).join(format!("{}{beside}.lock", digest.hex()))
    }

    /// Bytes that may still be written; `None` where the system does not say.
    pub fn free_bytes(&self) -> Option<u64> {
        self.disk_space().map(|(free, _)| free)
    }

    /// Bytes that may still be written, and all bytes of the disk; `None` where the system does not say.
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

    /// A model and its manifest's bytes.
    ///
    /// # Errors
    /// [`StoreError::NotFound`], or the store cannot be read.
    pub fn manifest_bytes(&self, name: &ModelName) -> Result<(Entry, Vec<u8>), StoreError> {
        let entry = self.get(name)?;
        let bytes = self.bytes_of(&entry)?;
        Ok((entry, bytes))
    }

    /// The file of a layer, which must have the size that the manifest says.
    ///
    /// # Errors
    /// [`StoreError::BlobMissing`], [`StoreError::BlobSize`], or it cannot be read.
    pub fn layer_file(&self, layer: &Layer) -> Result<PathBuf, StoreError> {
        self.layer_path(layer)
    }

    /// The spelling under which a model of this name is stored or would be: names differ by more than case.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn spelled(&self, name: &ModelName) -> Result<ModelName, StoreError> {
        self.spelling(name)
    }

    /// The tags of which there are models of a name, whose own tag does not count, in all folders.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn tags(&self, name: &ModelName) -> Result<Vec<String>, StoreError> {
        Ok(self.tagged(name)?.into_iter().map(|entry| entry.name.tag().to_owned()).collect())
    }

    /// The models of a name, whose own tag does not count, in all folders.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn tagged(&self, name: &ModelName) -> Result<Vec<Entry>, StoreError> {
        let same = |other: &ModelName| {
            ModelName::from_parts(name.host(), name.namespace(), name.model(), other.tag())
                .is_ok_and(|wanted| wanted.same(other))
        };
        let models =
            self.list()?.into_iter().filter(|entry| !entry.is_embedded() && same(&entry.name));
        Ok(models.collect())
    }

    /// Takes a file over as the blob of a digest that was compared with its content: by a second name where the file
    /// system can, else by a copy. It is kept from being cleared away until [`Store::let_go`] or a manifest with it.
    ///
    /// # Errors
    /// The store cannot be written, or the copy has another digest.
    pub fn link_blob(&self, digest: &Digest, path: &Path) -> Result<(), StoreError> {
        let size = fs::metadata(path).map_err(|e| StoreError::io("read", path, &e))?.len();
        if self.hold_blob(digest, size) {
            return Ok(());
        }
        let target = self.blob_path(digest);
        files::create_dir(&self.root().join("blobs"))?;
        self.pin(digest);
        self.note_begun(digest);
        if files::step().and_then(|()| fs::hard_link(path, &target)).is_err() {
            let mut file = File::open(path).map_err(|e| StoreError::io("read", path, &e))?;
            let mut writer = self.blob_writer()?;
            io::copy(&mut file, &mut writer).map_err(|e| StoreError::io("write", &target, &e))?;
            writer.finish(Some(digest))?;
        }
        sync_dir(target.parent().unwrap_or(Path::new(".")));
        self.touch_blob(digest);
        Ok(())
    }

    /// Stores a manifest as it was received, all of whose blobs are there, and says what it replaced. `removing` is called before
    /// blobs are removed that only the replaced manifest had, unless these are to be kept.
    ///
    /// # Errors
    /// A blob is missing, or the store cannot be written.
    pub fn store_manifest(
        &self,
        name: &ModelName,
        bytes: &[u8],
        keep_unused: bool,
        removing: &mut dyn FnMut(),
    ) -> Result<Option<Entry>, StoreError> {
        let replaced = self.replace_manifest(name, bytes, keep_unused, removing)?;
        self.forget_pull(name);
        Ok(replaced)
    }
}

/// Whether somebody holds the lock of a file.
pub(crate) fn is_held(path: &Path) -> bool {
    let held = |file: File| matches!(file.try_lock(), Err(TryLockError::WouldBlock));
    // Opening a pipe would wait for its other end.
    path.is_file() && File::open(path).is_ok_and(held)
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
    fn a_download_is_one_holders_until_it_lets_go() {
        let (_dir, store) = store();
        let digest = Digest::of(b"abc");
        let lock = store.lock_download(&digest).unwrap().unwrap();
        assert!(store.lock_download(&digest).unwrap().is_none());
        assert!(store.lock_download(&Digest::of(b"other")).unwrap().is_some());
        drop(lock);
        assert!(store.lock_download(&digest).unwrap().is_some());
    }

    #[test]
    fn a_download_beside_another_has_files_and_a_right_of_its_own() {
        let (dir, store) = store();
        let digest = Digest::of(b"abc");
        let _usual = store.lock_download(&digest).unwrap().unwrap();
        let lock = store.lock_download_at(&digest, Seat::Beside).unwrap().unwrap();
        assert!(store.lock_download_at(&digest, Seat::Beside).unwrap().is_none());
        let (usual, beside) =
            (store.partial(&digest).unwrap(), store.partial_at(&digest, Seat::Beside).unwrap());
        for (partial, bytes) in [(&usual, b"a.."), (&beside, b"abc")] {
            fs::write(partial.data(), bytes).unwrap();
            partial.write_part(0, b"{}").unwrap();
            partial.write_sum(bytes).unwrap();
        }
        assert_eq!(usual.read_sum().unwrap(), b"a..");
        let name =
            |partial: &Partial| partial.data().file_name().unwrap().to_str().unwrap().to_owned();
        assert_eq!((store.beside(&name(&beside)), store.beside(&name(&usual))), (Some(true), None));
        store.finish_partial(&beside, &digest).unwrap();
        drop(lock);
        assert_eq!(store.beside(&name(&beside)), Some(false));
        assert_eq!(store.verify_blob(&digest), Ok(3));
        assert_eq!(
            (fs::read(usual.data()).unwrap(), usual.parts().unwrap()),
            (b"a..".to_vec(), vec![0])
        );
        // What is left are the files of the usual one: its lock and its sum.
        assert_eq!(crate::tests::temp_files(dir.path()), 2);
    }

    #[test]
    fn a_blob_of_another_size_is_not_held() {
        let (_dir, store) = store();
        let blob = store.add_blob(b"abc").unwrap();
        assert!(store.hold_blob(&blob.digest, 3));
        assert!(!store.hold_blob(&blob.digest, 4));
        assert!(!store.hold_blob(&Digest::of(b"other"), 5));
    }

    #[test]
    fn there_is_some_room_on_this_disk() {
        let (_dir, store) = store();
        assert!(store.free_bytes().is_none_or(|free| free > 0));
    }
}
