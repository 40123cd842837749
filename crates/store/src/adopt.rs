//! Taking files of this machine into the store without copying their bytes.

use std::fs::{self, File};
use std::io;
use std::path::Path;

use crate::digest::Digest;
use crate::error::StoreError;
use crate::files::{self, TempFile};
use crate::stamp::same_file;
use crate::store::Store;

/// How a file comes into the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Adopt {
    /// It shares its bytes with the file until either is changed; where the file system cannot do that, it is a hard link: the
    /// same file under a second name.
    Share,
    /// It is a symbolic link: it stands for the file, which has to stay where it is.
    Refer,
}

/// What became of a file that was to be taken in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Adopted {
    /// The store had its content already.
    Known,
    /// It is in the store now.
    New,
    /// The file system has no way to do it.
    Impossible,
}

impl Store {
    /// Takes a file of known content into the store, as a blob. The digest is the caller's word: what it was computed from
    /// must not have changed since.
    ///
    /// # Errors
    /// The file has another size than `size`, or the store cannot be written.
    pub fn adopt(
        &self,
        path: &Path,
        digest: &Digest,
        size: u64,
        how: Adopt,
    ) -> Result<Adopted, StoreError> {
        // What another file of this name holds is read: a damaged one is replaced.
        let is_whole =
            || same_file(path, &self.blob_path(digest)) || self.verify_blob(digest).is_ok();
        if self.hold_blob(digest, size) && is_whole() {
            return Ok(Adopted::Known);
        }
        let path = path.canonicalize().map_err(|e| StoreError::io("read", path, &e))?;
        let meta = fs::metadata(&path).map_err(|e| StoreError::io("read", &path, &e))?;
        if !meta.is_file() || meta.len() != size {
            return Err(StoreError::Changed { path });
        }
        let blob = self.own_blob_path(digest);
        let done = match how {
            Adopt::Share if self.share(&path, &blob)? => true,
            // A damaged blob must not stay.
            Adopt::Share if blob.is_file() => match self.add_file(&path)?.digest == *digest {
                true => true,
                false => return Err(StoreError::Changed { path }),
            },
            Adopt::Share => false,
            Adopt::Refer => self.place(&blob, |to| refer(&path, to))?,
        };
        self.pin(digest);
        if done {
            self.note_begun(digest);
        }
        // An old file would count as left over at once.
        self.touch_blob(digest);
        Ok(if done { Adopted::New } else { Adopted::Impossible })
    }

    /// Takes back a file that was just taken in, unless a model uses it by now.
    ///
    /// # Errors
    /// The store cannot be read or written.
    pub fn disown(&self, digest: &Digest) -> Result<(), StoreError> {
        self.release([*digest]);
        let _lock = self.lock()?;
        match self.referenced_blobs()? {
            Ok(used) if !used.contains(digest) => {
                files::remove(&self.own_blob_path(digest))?;
                self.forget_begun([*digest]);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn share(&self, path: &Path, blob: &Path) -> Result<bool, StoreError> {
        let temp = TempFile::new(self.root())?;
        if clone(path, temp.file()) {
            files::keep_private(temp.file(), path);
            temp.persist(blob)?;
            return Ok(true);
        }
        drop(temp);
        self.place(blob, |to| fs::hard_link(path, to))
    }

    /// Makes a link under a temporary name and gives it its own. `false`: the file system has no such links, or not from there
    /// to here.
    fn place(
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
        files::create_dir(blob.parent().unwrap_or(Path::new(".")))?;
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

/// Makes an empty file share the bytes of another one.
fn clone(path: &Path, to: &File) -> bool {
    #[cfg(target_os = "linux")]
    return File::open(path).is_ok_and(|from| rustix::fs::ioctl_ficlone(to, &from).is_ok());
    #[cfg(not(target_os = "linux"))]
    {
        let _ = (path, to);
        false
    }
}

fn refer(path: &Path, link: &Path) -> io::Result<()> {
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
    fn a_file_is_shared_and_outlives_its_first_name() {
        let (_dir, store, path, digest) = kit();
        assert_eq!(store.adopt(&path, &digest, 7, Adopt::Share), Ok(Adopted::New));
        assert_eq!(store.adopt(&path, &digest, 7, Adopt::Share), Ok(Adopted::Known));
        fs::remove_file(&path).unwrap();
        assert_eq!(store.verify_blob(&digest), Ok(7));
        assert_eq!(crate::tests::temp_files(store.root()), 0);
    }

    #[cfg(unix)]
    #[test]
    fn a_file_that_is_referred_to_stays_where_it_is() {
        let (_dir, store, path, digest) = kit();
        assert_eq!(store.adopt(&path, &digest, 7, Adopt::Refer), Ok(Adopted::New));
        assert!(fs::symlink_metadata(store.blob_path(&digest)).unwrap().is_symlink());
        assert_eq!(store.verify_blob(&digest), Ok(7));
        store.disown(&digest).unwrap();
        assert!(path.exists() && !store.has_blob(&digest));
        store.adopt(&path, &digest, 7, Adopt::Refer).unwrap();
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
            assert_eq!(store.adopt(&path, &digest, 7, Adopt::Share), Ok(Adopted::New));
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
    fn time_and_permissions_of_a_file_stay_its_owners() {
        use std::os::unix::fs::{MetadataExt, PermissionsExt};
        let old = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000);
        for how in [Adopt::Share, Adopt::Refer] {
            let (_dir, store, path, digest) = kit();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
            File::options().append(true).open(&path).unwrap().set_modified(old).unwrap();
            store.adopt(&path, &digest, 7, how).unwrap();
            store.adopt(&path, &digest, 7, how).unwrap();
            let meta = fs::metadata(&path).unwrap();
            assert_eq!((meta.modified().unwrap(), meta.mode() & 0o777), (old, 0o600));
            assert_eq!(fs::metadata(store.blob_path(&digest)).unwrap().mode() & 0o077, 0);
            // It counts as young all the same.
            store.let_go([digest]);
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
        let refused = store.adopt(&path, &digest, 7, Adopt::Share).unwrap_err();
        assert!(matches!(refused, StoreError::Changed { .. }), "{refused}");
        assert!(!store.has_blob(&digest));
    }

    #[test]
    fn what_a_model_uses_is_not_taken_back() {
        let (_dir, store, path, digest) = kit();
        store.adopt(&path, &digest, 7, Adopt::Share).unwrap();
        let layer = crate::Layer::new(crate::media::MODEL, digest, 7);
        let manifest = crate::Manifest { config: None, layers: vec![layer] };
        let name = crate::ModelName::parse("m").unwrap();
        store.store_manifest(&name, &manifest.to_bytes(), false, &mut || ()).unwrap();
        store.disown(&digest).unwrap();
        assert!(store.has_blob(&digest));
    }
}
