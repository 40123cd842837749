//! Blobs: files named by the digest of their content.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::PoisonError;

use crate::digest::{Digest, Hasher};
use crate::error::StoreError;
use crate::files::{self, TempFile, read_limited};
use crate::fingerprint::FileFingerprint;
use crate::manifest::{Layer, TEXT_LIMIT};
use crate::store::Store;

impl Store {
    /// The path of a blob in the store's own folder or in a read-only folder that answers, or else
    /// where it would be.
    pub fn blob_path(&self, digest: &Digest) -> PathBuf {
        let own = self.own_blob_path(digest);
        if self.read_only_dirs().is_empty() || own.is_file() {
            return own;
        }
        let is_there = |folder: &PathBuf| {
            let path = blob_in(folder, digest);
            let ignored = self
                .ignored_blobs
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .get(&path)
                .copied();
            let look = move || (path.is_file() && !is_ignored(&path, ignored)).then_some(path);
            self.unresponsive.query(folder, look).flatten()
        };
        self.read_only_dirs().iter().find_map(is_there).unwrap_or(own)
    }

    /// Treats a damaged blob file in a read-only folder as absent until its fingerprint changes.
    /// The store may not replace it, and downloads a copy to its own folder instead.
    pub fn ignore_blob_file(&self, path: PathBuf, fingerprint: FileFingerprint) {
        self.ignored_blobs.lock().unwrap_or_else(PoisonError::into_inner).insert(path, fingerprint);
    }

    /// Creates the folder of blobs, by which programs recognize a models folder.
    ///
    /// # Errors
    /// The store cannot be written.
    pub fn create_blob_dir(&self) -> Result<(), StoreError> {
        self.create_model_dir(&self.root().join("blobs"))
    }

    /// The path that a blob has or would have in the store's own folder.
    pub(crate) fn own_blob_path(&self, digest: &Digest) -> PathBuf {
        blob_in(self.root(), digest)
    }

    /// Whether a blob exists. Its content is not verified.
    pub fn has_blob(&self, digest: &Digest) -> bool {
        self.blob_path(digest).is_file()
    }

    /// Starts a blob that is written in pieces.
    ///
    /// # Errors
    /// The store cannot be written.
    pub fn blob_writer(&self) -> Result<BlobWriter<'_>, StoreError> {
        Ok(BlobWriter {
            temp: self.new_model_file()?,
            hasher: Hasher::default(),
            size: 0,
            store: self,
        })
    }

    /// Stores bytes as a blob.
    ///
    /// # Errors
    /// The store cannot be written.
    pub fn add_blob(&self, bytes: &[u8]) -> Result<NewBlob, StoreError> {
        let digest = Digest::of(bytes);
        if let Some(blob) = self.reuse_blob(&digest, bytes.len() as u64) {
            return Ok(blob);
        }
        let mut writer = self.blob_writer()?;
        writer.write(bytes)?;
        writer.finish(None)
    }

    /// Stores a manifest as a blob of the own folder, where name files link to it, even if a
    /// read-only folder has it.
    ///
    /// # Errors
    /// The store cannot be written.
    pub fn add_manifest(&self, text: &[u8]) -> Result<Digest, StoreError> {
        let digest = Digest::of(text);
        let own = self.own_blob_path(&digest);
        self.pins.pin(&digest);
        if fs::read(&own).is_ok_and(|bytes| bytes == text) {
            self.touch_blob(&digest);
            return Ok(digest);
        }
        self.record_stored_blob(&digest);
        let written = self.write_model_file(&own, text);
        written.inspect_err(|_| self.remove_stored_blob_records([digest]))?;
        Ok(digest)
    }

    /// Copies a file into the store.
    ///
    /// # Errors
    /// The file cannot be read, or the store cannot be written.
    pub fn add_file(&self, path: &Path) -> Result<NewBlob, StoreError> {
        let fail = |e: &io::Error| StoreError::io("read", path, e);
        let mut file = File::open(path).map_err(|e| fail(&e))?;
        let mut writer = self.blob_writer()?;
        files::restrict_permissions(writer.temp.file(), path);
        let mut buffer = vec![0; 1 << 18];
        loop {
            match file.read(&mut buffer) {
                Ok(0) => return writer.finish(None),
                Ok(n) => writer.write(&buffer[..n])?,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(fail(&e)),
            }
        }
    }

    /// Reads a whole blob and verifies its digest. Returns its size in bytes.
    ///
    /// # Errors
    /// [`StoreError::BlobMissing`], [`StoreError::DigestMismatch`], or the blob cannot be read.
    pub fn verify_blob(&self, digest: &Digest) -> Result<u64, StoreError> {
        let path = self.blob_path(digest);
        if !self.has_blob(digest) {
            return Err(StoreError::BlobMissing(*digest));
        }
        let read = || Digest::of_reader(&mut File::open(&path)?);
        let (found, size) = read().map_err(|e| StoreError::io("read", &path, &e))?;
        if found == *digest {
            Ok(size)
        } else {
            Err(StoreError::DigestMismatch { expected: *digest, found })
        }
    }

    /// The path of a layer's blob, which must have the size that the manifest states.
    pub(crate) fn layer_path(&self, layer: &Layer) -> Result<PathBuf, StoreError> {
        let path = self.blob_path(&layer.digest);
        match fs::metadata(&path) {
            Ok(meta) if meta.len() == layer.size => Ok(path),
            Ok(meta) => Err(StoreError::BlobSize {
                digest: layer.digest,
                expected: layer.size,
                found: meta.len(),
            }),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                Err(StoreError::BlobMissing(layer.digest))
            }
            Err(e) => Err(StoreError::io("read", &path, &e)),
        }
    }

    /// The bytes of a small blob.
    pub(crate) fn read_layer(&self, layer: &Layer) -> Result<Vec<u8>, StoreError> {
        read_limited(&self.layer_path(layer)?, TEXT_LIMIT)
    }

    /// Pins and verifies an existing blob, and marks it as used now: neither Puna nor Ollama
    /// removes blobs that were used in the last hour. `None` if the blob is absent or damaged; it
    /// is then written again.
    fn reuse_blob(&self, digest: &Digest, size: u64) -> Option<NewBlob> {
        let is_whole = self.pin_blob(digest, size) && self.verify_blob(digest).is_ok();
        is_whole.then_some(NewBlob { digest: *digest, size, is_new: false })
    }

    /// Parses the digest of an uploaded file, which must be in the store, and pins it.
    pub(crate) fn pin_uploaded_blob(&self, digest: &str) -> Result<Digest, StoreError> {
        let digest: Digest = digest.parse()?;
        self.pins.pin(&digest);
        self.touch_blob(&digest);
        if self.has_blob(&digest) { Ok(digest) } else { Err(StoreError::BlobMissing(digest)) }
    }

    /// Marks a blob as used now.
    pub(crate) fn touch_blob(&self, digest: &Digest) {
        files::touch(&self.own_blob_path(digest));
    }

    /// Removes permissions from a blob that the file it was copied from does not have, where this
    /// process may change them.
    pub fn restrict_blob_permissions(&self, digest: &Digest, source: &Path) {
        if let Ok(blob) = File::open(self.own_blob_path(digest)) {
            files::restrict_permissions(&blob, source);
        }
    }
}

/// Whether a file is unchanged since it was ignored.
fn is_ignored(path: &Path, ignored: Option<FileFingerprint>) -> bool {
    ignored.is_some_and(|fingerprint| {
        FileFingerprint::at(path).is_some_and(|now| now.same_content_as(&fingerprint))
    })
}

fn blob_in(folder: &Path, digest: &Digest) -> PathBuf {
    folder.join("blobs").join(digest.file_name())
}

/// A stored blob.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewBlob {
    /// The digest of its content.
    pub digest: Digest,
    /// Its size in bytes.
    pub size: u64,
    /// Whether the store did not have it before.
    pub is_new: bool,
}

/// An unfinished blob. Dropping it without [`BlobWriter::finish`] removes it.
pub struct BlobWriter<'a> {
    temp: TempFile,
    hasher: Hasher,
    size: u64,
    store: &'a Store,
}

impl BlobWriter<'_> {
    /// Appends bytes.
    ///
    /// # Errors
    /// The store cannot be written.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        self.hasher.update(bytes);
        self.size += bytes.len() as u64;
        self.temp.write(bytes)
    }

    /// Renames the file to its digest, which must be `expected` if that is given.
    ///
    /// # Errors
    /// [`StoreError::DigestMismatch`], or the store cannot be written.
    pub fn finish(self, expected: Option<&Digest>) -> Result<NewBlob, StoreError> {
        let digest = self.hasher.finish();
        if let Some(expected) = expected
            && *expected != digest
        {
            return Err(StoreError::DigestMismatch { expected: *expected, found: digest });
        }
        if let Some(blob) = self.store.reuse_blob(&digest, self.size) {
            return Ok(blob);
        }
        self.store.pins.pin(&digest);
        self.store.record_stored_blob(&digest);
        let target = self.store.own_blob_path(&digest);
        let persisted = self.store.create_blob_dir().and_then(|()| self.temp.persist(&target));
        persisted.inspect_err(|_| self.store.remove_stored_blob_records([digest]))?;
        Ok(NewBlob { digest, size: self.size, is_new: true })
    }
}

impl io::Write for BlobWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        BlobWriter::write(self, bytes).map_err(|e| match &e {
            StoreError::Io { kind, .. } => io::Error::new(*kind, e.to_string()),
            _ => io::Error::other(e.to_string()),
        })?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::temp_files;

    #[test]
    fn blobs_are_named_by_their_digest_and_stored_once() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        let first = store.add_blob(b"hello blob").unwrap();
        assert_eq!(
            first.digest.hex(),
            "e997afd18e5f6be004fc193aed2c90291e68ab2c7599a62538c935b7fca6ab0f"
        );
        assert!(first.is_new && first.size == 10);
        assert!(!store.add_blob(b"hello blob").unwrap().is_new);
        assert_eq!(store.verify_blob(&first.digest), Ok(10));
        assert_eq!(temp_files(dir.path()), 0);
    }

    #[test]
    fn content_with_an_unexpected_digest_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        let expected = Digest::of(b"right");
        let mut writer = store.blob_writer().unwrap();
        writer.write(b"wrong").unwrap();
        let error = writer.finish(Some(&expected)).unwrap_err();
        assert_eq!(error, StoreError::DigestMismatch { expected, found: Digest::of(b"wrong") });
        assert!(!store.has_blob(&expected) && !store.has_blob(&Digest::of(b"wrong")));
        assert_eq!(temp_files(dir.path()), 0);
    }

    #[test]
    fn a_blob_changed_on_disk_is_detected() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        let blob = store.add_blob(b"hello blob").unwrap();
        let layer = Layer::new("m", blob.digest, blob.size);
        fs::write(store.blob_path(&blob.digest), b"hello bloc").unwrap();
        assert!(matches!(store.verify_blob(&blob.digest), Err(StoreError::DigestMismatch { .. })));
        fs::write(store.blob_path(&blob.digest), b"hello").unwrap();
        let size = StoreError::BlobSize { digest: blob.digest, expected: 10, found: 5 };
        assert_eq!(store.layer_path(&layer), Err(size));
        fs::remove_file(store.blob_path(&blob.digest)).unwrap();
        assert_eq!(store.layer_path(&layer), Err(StoreError::BlobMissing(blob.digest)));
    }
}
