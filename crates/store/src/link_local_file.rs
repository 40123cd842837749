//! Adds local files to the store without copying their bytes.

use std::fs::{self, File};
use std::io;
use std::path::Path;

use crate::digest::Digest;
use crate::error::StoreError;
use crate::files::{self, TempFile};
use crate::fingerprint::same_file;
use crate::store::Store;

/// How a file is added to the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkMethod {
    /// Clones the file's blocks (copy on write), or makes a hard link if the file system cannot
    /// clone.
    Share,
    /// Makes a symbolic link. The file must stay where it is.
    Symlink,
}

/// Result of [`Store::link_local_file`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkOutcome {
    /// The store already had the content.
    AlreadyStored,
    /// The file was added.
    Added,
    /// The file system does not support the method.
    Unsupported,
}

impl Store {
    /// Adds a file as a blob. The caller guarantees the digest: the file must not have changed
    /// since it was computed.
    ///
    /// # Errors
    /// The file's size is not `size`, or the store cannot be written.
    pub fn link_local_file(
        &self,
        path: &Path,
        digest: &Digest,
        size: u64,
        method: LinkMethod,
    ) -> Result<LinkOutcome, StoreError> {
        // Verify an existing blob, so that a damaged one is replaced.
        let is_whole =
            || same_file(path, &self.blob_path(digest)) || self.verify_blob(digest).is_ok();
        if self.pin_blob(digest, size) && is_whole() {
            return Ok(LinkOutcome::AlreadyStored);
        }
        let path = path.canonicalize().map_err(|e| StoreError::io("read", path, &e))?;
        let meta = fs::metadata(&path).map_err(|e| StoreError::io("read", &path, &e))?;
        if !meta.is_file() || meta.len() != size {
            return Err(StoreError::FileChanged { path });
        }
        let blob = self.own_blob_path(digest);
        let done = match method {
            LinkMethod::Share if self.share(&path, &blob)? => true,
            // A damaged blob must be replaced, so copy the file.
            LinkMethod::Share if blob.is_file() => match self.add_file(&path)?.digest == *digest {
                true => true,
                false => return Err(StoreError::FileChanged { path }),
            },
            LinkMethod::Share => false,
            LinkMethod::Symlink => self.link_blob_file(&blob, |to| symlink_file(&path, to))?,
        };
        self.pins.pin(digest);
        if done {
            self.record_stored_blob(digest);
        }
        // Without this, an old file would be garbage at once.
        self.touch_blob(digest);
        Ok(if done { LinkOutcome::Added } else { LinkOutcome::Unsupported })
    }

    /// Removes a file that was just added, unless a model references it.
    ///
    /// # Errors
    /// The store cannot be read or written.
    pub fn undo_link_local_file(&self, digest: &Digest) -> Result<(), StoreError> {
        self.pins.unpin([*digest]);
        let _lock = self.lock()?;
        match self.referenced_blobs()? {
            Ok(used) if !used.contains(digest) => {
                files::remove(&self.own_blob_path(digest))?;
                self.remove_stored_blob_records([*digest]);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn share(&self, path: &Path, blob: &Path) -> Result<bool, StoreError> {
        let temp = self.new_model_file()?;
        if clone_range(path, temp.file()) {
            files::restrict_permissions(temp.file(), path);
            temp.persist(blob)?;
            return Ok(true);
        }
        drop(temp);
        self.link_blob_file(blob, |to| fs::hard_link(path, to))
    }

    /// Makes a link under a temporary name and renames it to the blob. Returns `false` if the file
    /// system does not support the link.
    fn link_blob_file(
        &self,
        blob: &Path,
        link: impl Fn(&Path) -> io::Result<()>,
    ) -> Result<bool, StoreError> {
        let folder = self.root().join(files::TEMP_DIR);
        files::create_dir(&folder)?;
        let temp = folder.join(TempFile::new_name());
        if link(&temp).is_err() {
            return Ok(false);
        }
        self.create_model_dir(blob.parent().unwrap_or(self.root()))?;
        match fs::rename(&temp, blob) {
            Ok(()) => {
                files::sync_dir(blob.parent().unwrap_or(Path::new(".")));
                Ok(true)
            }
            Err(error) => {
                let _ = fs::remove_file(&temp);
                Err(StoreError::io("write", blob, &error))
            }
        }
    }
}

/// Makes an empty file share the blocks of another one.
fn clone_range(path: &Path, to: &File) -> bool {
    #[cfg(target_os = "linux")]
    return File::open(path).is_ok_and(|from| rustix::fs::ioctl_ficlone(to, &from).is_ok());
    #[cfg(not(target_os = "linux"))]
    {
        let _ = (path, to);
        false
    }
}

fn symlink_file(path: &Path, link: &Path) -> io::Result<()> {
    #[cfg(unix)]
    return std::os::unix::fs::symlink(path, link);
    #[cfg(windows)]
    return std::os::windows::fs::symlink_file(path, link);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kit() -> (tempfile::TempDir, Store, std::path::PathBuf, Digest) {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path().join("models")).unwrap();
        let path = dir.path().join("file.gguf");
        fs::write(&path, b"weights").unwrap();
        (dir, store, path, Digest::of(b"weights"))
    }

    #[test]
    fn a_shared_file_survives_the_removal_of_its_source() {
        let (_dir, store, path, digest) = kit();
        assert_eq!(
            store.link_local_file(&path, &digest, 7, LinkMethod::Share),
            Ok(LinkOutcome::Added)
        );
        assert_eq!(
            store.link_local_file(&path, &digest, 7, LinkMethod::Share),
            Ok(LinkOutcome::AlreadyStored)
        );
        fs::remove_file(&path).unwrap();
        assert_eq!(store.verify_blob(&digest), Ok(7));
        assert_eq!(crate::tests::temp_files(store.root()), 0);
    }

    #[cfg(unix)]
    #[test]
    fn a_symlinked_file_stays_in_place() {
        let (_dir, store, path, digest) = kit();
        assert_eq!(
            store.link_local_file(&path, &digest, 7, LinkMethod::Symlink),
            Ok(LinkOutcome::Added)
        );
        assert!(fs::symlink_metadata(store.blob_path(&digest)).unwrap().is_symlink());
        assert_eq!(store.verify_blob(&digest), Ok(7));
        store.undo_link_local_file(&digest).unwrap();
        assert!(path.exists() && !store.has_blob(&digest));
        store.link_local_file(&path, &digest, 7, LinkMethod::Symlink).unwrap();
        fs::remove_file(&path).unwrap();
        assert!(!store.has_blob(&digest));
    }

    #[test]
    fn a_damaged_blob_is_replaced_by_the_good_file() {
        for damage in [&b"weighty"[..], b"short"] {
            let (_dir, store, path, digest) = kit();
            fs::create_dir_all(store.root().join("blobs")).unwrap();
            let blob = store.own_blob_path(&digest);
            fs::write(&blob, damage).unwrap();
            let reader = File::open(&blob).unwrap();
            assert_eq!(
                store.link_local_file(&path, &digest, 7, LinkMethod::Share),
                Ok(LinkOutcome::Added)
            );
            assert_eq!(store.verify_blob(&digest), Ok(7));
            assert_eq!(
                io::read_to_string(reader).unwrap().as_bytes(),
                damage,
                "a reader keeps what it has"
            );
            fs::remove_file(&blob).unwrap();
            fs::write(&blob, damage).unwrap();
            assert!(store.add_blob(b"weights").unwrap().is_new);
            assert_eq!(store.verify_blob(&digest), Ok(7));
        }
    }

    #[cfg(unix)]
    #[test]
    fn adopting_a_file_keeps_its_time_and_permissions() {
        use std::os::unix::fs::{MetadataExt, PermissionsExt};
        let old = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000);
        for method in [LinkMethod::Share, LinkMethod::Symlink] {
            let (_dir, store, path, digest) = kit();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
            File::options().append(true).open(&path).unwrap().set_modified(old).unwrap();
            store.link_local_file(&path, &digest, 7, method).unwrap();
            store.link_local_file(&path, &digest, 7, method).unwrap();
            let meta = fs::metadata(&path).unwrap();
            assert_eq!((meta.modified().unwrap(), meta.mode() & 0o777), (old, 0o600));
            assert_eq!(fs::metadata(store.blob_path(&digest)).unwrap().mode() & 0o077, 0);
            // The blob counts as recently used.
            store.unpin_blobs([digest]);
            let pruned = store.prune(crate::PruneOptions::default()).unwrap();
            assert_eq!((pruned.removed.len(), pruned.young), (0, 1));
        }
        let (_dir, store, path, digest) = kit();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        store.add_file(&path).unwrap();
        assert_eq!(fs::metadata(store.blob_path(&digest)).unwrap().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_file_that_changed_is_refused() {
        let (_dir, store, path, digest) = kit();
        fs::write(&path, b"other weights").unwrap();
        let refused = store.link_local_file(&path, &digest, 7, LinkMethod::Share).unwrap_err();
        assert!(matches!(refused, StoreError::FileChanged { .. }), "{refused}");
        assert!(!store.has_blob(&digest));
    }

    #[test]
    fn a_file_that_a_model_uses_is_not_removed() {
        let (_dir, store, path, digest) = kit();
        store.link_local_file(&path, &digest, 7, LinkMethod::Share).unwrap();
        let layer = crate::Layer::new(crate::media::MODEL, digest, 7);
        let manifest = crate::Manifest { config: None, layers: vec![layer] };
        let name = crate::ModelName::parse("m").unwrap();
        store.store_manifest(&name, &manifest.to_bytes(), false, &mut || ()).unwrap();
        store.undo_link_local_file(&digest).unwrap();
        assert!(store.has_blob(&digest));
    }
}
