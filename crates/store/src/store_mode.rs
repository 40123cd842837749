//! Permission bits of the files and folders of models.

use std::fmt;
use std::fs::File;
use std::io;
use std::path::Path;
use std::str::FromStr;

use crate::error::StoreError;
use crate::files::{self, TempFile};
use crate::store::Store;

/// Permission bits of model files, such as `0640`. A folder may also be entered by each class of
/// users that may read it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreMode(u32);

/// Bits that the owner needs.
const OWNER_BITS: u32 = 0o600;
/// Bits that a model file may have. Other users never write: they could replace a model.
const ALLOWED_BITS: u32 = 0o664;

impl FromStr for StoreMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text.strip_prefix("0o").unwrap_or(text);
        let bits = match digits.bytes().all(|digit| digit.is_ascii_digit()) {
            true => u32::from_str_radix(digits, 8).ok(),
            false => None,
        };
        match bits {
            Some(bits) if bits & OWNER_BITS == OWNER_BITS && bits & !ALLOWED_BITS == 0 => {
                Ok(Self(bits))
            }
            _ => Err("it must be one of 0600, 0640, 0644, 0660 and 0664".into()),
        }
    }
}

impl fmt::Display for StoreMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04o}", self.0)
    }
}

impl StoreMode {
    /// Sets the permission bits of a file that lacks them. Only its owner may change them.
    pub(crate) fn apply_to_file(self, file: &File) -> io::Result<()> {
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            if file.metadata()?.permissions().mode() & 0o777 != self.0 {
                file.set_permissions(PermissionsExt::from_mode(self.0))?;
            }
        }
        #[cfg(not(unix))]
        let _ = file;
        Ok(())
    }

    fn apply_to_dir(self, dir: &Path) -> Result<(), StoreError> {
        #[cfg(unix)]
        {
            // Users that may read a folder may enter it, and its group keeps a setgid bit.
            use std::os::unix::fs::PermissionsExt;
            let enter = (self.0 & 0o444) >> 2;
            let set = || {
                let setgid = std::fs::metadata(dir)?.permissions().mode() & 0o2000;
                let mode = PermissionsExt::from_mode(self.0 | enter | setgid);
                std::fs::set_permissions(dir, mode)
            };
            set().map_err(|e: io::Error| StoreError::io("set the permissions of", dir, &e))?;
        }
        #[cfg(not(unix))]
        let _ = dir;
        Ok(())
    }
}

impl Store {
    /// Sets the permission bits of model files and folders that this store creates; `None` leaves
    /// them to the umask. Lock files and other files of Puna keep their own.
    pub fn with_mode(mut self, mode: Option<StoreMode>) -> Self {
        self.mode = mode;
        self
    }

    /// Sets the permission bits of a model file, if [`Store::with_mode`] states them.
    ///
    /// # Errors
    /// The file has other bits and belongs to another user.
    pub fn apply_mode(&self, file: &File) -> io::Result<()> {
        self.mode.map_or(Ok(()), |mode| mode.apply_to_file(file))
    }

    /// Starts a model file under a temporary name.
    pub(crate) fn new_model_file(&self) -> Result<TempFile, StoreError> {
        let temp = TempFile::new(self.root())?;
        self.apply_mode(temp.file())
            .map_err(|e| StoreError::io("set the permissions of", temp.path(), &e))?;
        Ok(temp)
    }

    /// Writes a model file atomically.
    pub(crate) fn write_model_file(&self, target: &Path, bytes: &[u8]) -> Result<(), StoreError> {
        let mut temp = self.new_model_file()?;
        temp.write(bytes)?;
        self.create_model_dir(target.parent().unwrap_or(self.root()))?;
        temp.persist(target)
    }

    /// Creates a folder of models and its parents. Existing folders keep their permissions, and so
    /// does the folder of the store.
    pub(crate) fn create_model_dir(&self, dir: &Path) -> Result<(), StoreError> {
        let Some(mode) = self.mode else { return files::create_dir(dir) };
        let is_below = |dir: &&Path| *dir != self.root() && dir.starts_with(self.root());
        let is_missing = |dir: &&Path| !dir.exists();
        let missing: Vec<&Path> = dir.ancestors().take_while(is_below).filter(is_missing).collect();
        files::create_dir(dir)?;
        missing.into_iter().try_for_each(|dir| mode.apply_to_dir(dir))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_octal_and_never_writable_for_others() {
        for (text, shown) in [("0640", "0640"), ("600", "0600"), ("0o664", "0664")] {
            assert_eq!(text.parse::<StoreMode>().unwrap().to_string(), shown);
        }
        for text in
            ["", "0o", "0400", "0666", "0755", "640x", "-640", "+640", "1640", "99999999999"]
        {
            assert!(text.parse::<StoreMode>().is_err(), "{text}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn model_files_and_folders_have_the_mode_and_locks_have_their_own() {
        use std::os::unix::fs::PermissionsExt;
        for (text, folder_mode) in [("0600", 0o700), ("0640", 0o750), ("0664", 0o775)] {
            let dir = tempfile::tempdir().unwrap();
            let mode: StoreMode = text.parse().unwrap();
            let store = Store::open(dir.path().join("models")).unwrap().with_mode(Some(mode));
            let bits = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
            let blob = store.add_blob(b"weights").unwrap();
            assert_eq!(bits(&store.blob_path(&blob.digest)), mode.0, "{text}");
            // A download that another umask has started.
            let digest = crate::Digest::of(b"pulled");
            let partial = store.partial(&digest).unwrap();
            std::fs::write(partial.data(), b"pulled").unwrap();
            let open = || File::open(partial.data()).unwrap();
            open().set_permissions(PermissionsExt::from_mode(0o400)).unwrap();
            partial.apply_mode(&open()).unwrap();
            assert_eq!(bits(partial.data()), mode.0, "{text}");
            open().set_permissions(PermissionsExt::from_mode(0o604)).unwrap();
            store.finish_partial(&partial, &digest).unwrap();
            assert_eq!(bits(&store.blob_path(&digest)), mode.0, "{text}");
            let name = store.root().join("manifests/host/space/model/tag");
            store.write_model_file(&name, b"{}").unwrap();
            assert_eq!(bits(&name), mode.0, "{text}");
            let folders = name.ancestors().skip(1).take(4);
            for folder in folders.chain([&*store.root().join("blobs")]) {
                assert_eq!(bits(folder), folder_mode, "{text}: {folder:?}");
            }
            assert_eq!(bits(&store.root().join("puna-tmp")), 0o700);
            let lock = store.lock_download(&digest).unwrap().unwrap();
            assert_eq!(bits(&store.root().join(format!("puna-tmp/{}.lock", digest.hex()))), 0o600);
            drop(lock);
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_copy_of_a_private_file_stays_private() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let private = dir.path().join("private");
        std::fs::write(&private, b"weights").unwrap();
        std::fs::set_permissions(&private, PermissionsExt::from_mode(0o600)).unwrap();
        let store = Store::open(dir.path().join("models")).unwrap();
        let store = store.with_mode(Some("0664".parse().unwrap()));
        let blob = store.add_file(&private).unwrap();
        let meta = std::fs::metadata(store.blob_path(&blob.digest)).unwrap();
        assert_eq!(meta.permissions().mode() & 0o777, 0o600);
    }
}
