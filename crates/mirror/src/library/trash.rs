//! Trash: what a collection has removed stays in `trash/<seconds since 1970>/` for a day, as long as the disk has room.

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

use super::folder::{self, Folder, absent, io};
use crate::error::MirrorError;
use crate::history::seconds;

/// How long something stays in the trash.
pub(super) const TRASH_TIME: Duration = Duration::from_secs(24 * 60 * 60);
/// The part of the disk that must be free for anything to go to the trash: one in so many.
#[cfg(target_os = "linux")]
const FREE_PART: u64 = 10;

impl Folder {
    /// Moves a file to the trash under a name, or removes it where the disk is nearly full. Says whether there was one.
    pub(super) fn move_to_trash(&self, path: &Path, name: &str) -> Result<bool, MirrorError> {
        if !(self.has_room)(self.store.root()) {
            return folder::remove(path);
        }
        let dir = self.trash().join(seconds(SystemTime::now()).to_string());
        fs::create_dir_all(&dir).map_err(io("create the folder", &dir))?;
        Ok(absent(fs::rename(path, dir.join(name)), "move", path)?.is_some())
    }

    /// Removes what has been in the trash for a day; all of it where the disk is nearly full.
    pub(super) fn empty_trash(&self) -> Result<(), MirrorError> {
        let (now, has_room) = (seconds(SystemTime::now()), (self.has_room)(self.store.root()));
        for name in folder::names(&self.trash())? {
            let Ok(put) = name.parse::<u64>() else { continue };
            if !has_room || now.saturating_sub(put) > TRASH_TIME.as_secs() {
                let dir = self.trash().join(name);
                absent(fs::remove_dir_all(&dir), "remove", &dir)?;
            }
        }
        Ok(())
    }
}

/// Whether a tenth of the disk of a path is free. Where the system does not say, it is.
pub(super) fn has_room(path: &Path) -> bool {
    #[cfg(target_os = "linux")]
    if let Ok(disk) = rustix::fs::statvfs(path) {
        return disk.f_bavail >= disk.f_blocks / FREE_PART;
    }
    true
}
