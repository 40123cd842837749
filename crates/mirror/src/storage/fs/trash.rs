//! Trash: removed items stay in `trash/<seconds since 1970>/` for a day while the disk has space.

use std::fs;
use std::path::Path;
use std::time::SystemTime;

use super::registry_dir::{self, RegistryDir, io_error, none_if_absent};
use crate::error::MirrorError;
use crate::retention::usage_log::unix_seconds;
use crate::storage::collection_rules::TRASH_LIFETIME;

/// Items go to the trash only if at least 1/`MIN_FREE_FRACTION` of the disk is free.
#[cfg(target_os = "linux")]
const MIN_FREE_FRACTION: u64 = 10;

impl RegistryDir {
    /// Moves a file to the trash under a name, or removes it if the disk is nearly full. Returns
    /// whether it existed.
    pub(crate) fn move_to_trash(&self, path: &Path, name: &str) -> Result<bool, MirrorError> {
        if !(self.has_room)(self.store.root()) {
            return registry_dir::remove_file(path);
        }
        let dir = self.trash().join(unix_seconds(SystemTime::now()).to_string());
        fs::create_dir_all(&dir).map_err(io_error("create the folder", &dir))?;
        Ok(none_if_absent(fs::rename(path, dir.join(name)), "move", path)?.is_some())
    }

    /// Removes items older than a day; all items if the disk is nearly full.
    pub(crate) fn empty_trash(&self) -> Result<(), MirrorError> {
        let (now, has_room) = (unix_seconds(SystemTime::now()), (self.has_room)(self.store.root()));
        for name in registry_dir::file_names(&self.trash())? {
            let Ok(moved_at) = name.parse::<u64>() else { continue };
            if !has_room || now.saturating_sub(moved_at) > TRASH_LIFETIME.as_secs() {
                let dir = self.trash().join(name);
                none_if_absent(fs::remove_dir_all(&dir), "remove", &dir)?;
            }
        }
        Ok(())
    }
}

/// Whether a tenth of the disk is free. True if the system does not say.
pub(crate) fn has_room(path: &Path) -> bool {
    #[cfg(target_os = "linux")]
    if let Ok(disk) = rustix::fs::statvfs(path) {
        return disk.f_bavail >= disk.f_blocks / MIN_FREE_FRACTION;
    }
    true
}
