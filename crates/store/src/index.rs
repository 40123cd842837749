//! What lists remember of the folders of manifests: a folder that is as it was need not be listed again, and a manifest not
//! be read. What is left of a list is one look at each of them.
//!
//! Nothing is believed that was not compared: a folder's time changes with each file that is made, renamed or removed in it, by
//! whichever program, and a file's own with each that is written in place. So what is remembered may as well be on disk. Not every
//! file system keeps the times of folders that well (shares, FAT, what programs mount): there folders are listed each time.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::error::StoreError;
use crate::files::read_limited;
use crate::manifest::{Layer, Manifest, TEXT_LIMIT};

/// What was changed so shortly before it was read may change again without its times showing it.
const SETTLED: Duration = if cfg!(test) { Duration::from_millis(50) } else { Duration::from_secs(2) };

/// The numbers by which Linux calls file systems whose folders' times show all that happens in them: ext2 to ext4, XFS, Btrfs, ZFS,
/// bcachefs, F2FS, tmpfs, and overlays over these.
const SHOWING: [u32; 8] =
    [0xef53, 0x5846_5342, 0x9123_683e, 0x2fc1_2fc1, 0xca45_1a4e, 0xf2f5_2010, 0x0102_1994, 0x794c_7630];

/// Whether the time of a folder changes with each of its entries.
fn shows_changes(dir: &Path) -> bool {
    #[cfg(target_os = "linux")]
    return rustix::fs::statfs(dir).is_ok_and(|system| SHOWING.contains(&(system.f_type as u32)));
    #[cfg(not(target_os = "linux"))]
    {
        let _ = (dir, SHOWING);
        false
    }
}

/// By what a file or folder is known again. Times are nanoseconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Stamp {
    length: u64,
    modified: i64,
    /// The last change of its state, which nobody can set; as `modified` where the system has no such time.
    changed: i64,
    /// Which one it is, on Unix.
    file: (u64, u64),
}

impl Stamp {
    fn of(meta: &fs::Metadata) -> io::Result<Self> {
        #[cfg(unix)]
        {
            use std::os::unix::fs::MetadataExt;
            let nanos =
                |seconds: i64, nanos: i64| seconds.saturating_mul(1_000_000_000).saturating_add(nanos);
            Ok(Self {
                length: meta.len(),
                modified: nanos(meta.mtime(), meta.mtime_nsec()),
                changed: nanos(meta.ctime(), meta.ctime_nsec()),
                file: (meta.dev(), meta.ino()),
            })
        }
        #[cfg(not(unix))]
        {
            let modified = nanos_of(meta.modified()?);
            Ok(Self { length: meta.len(), modified, changed: modified, file: (0, 0) })
        }
    }

    /// Whether nobody can change it from now on without it showing.
    fn is_settled(&self) -> bool {
        let age = nanos_of(SystemTime::now()).saturating_sub(self.modified.max(self.changed));
        u128::try_from(age).is_ok_and(|age| age > SETTLED.as_nanos())
    }
}

/// Nanoseconds since 1970; before it, which no clock of today shows, none.
fn nanos_of(time: SystemTime) -> i64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

/// What is below a folder, as it was read.
#[derive(Debug, Serialize, Deserialize)]
struct Folder {
    stamp: Stamp,
    /// The names of its entries.
    names: Vec<PathBuf>,
}

/// What a file says.
#[derive(Debug, Serialize, Deserialize)]
struct Text {
    stamp: Stamp,
    digest: Digest,
    layers: Vec<Layer>,
    config: Option<Layer>,
}

/// What is remembered, by path.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Index {
    folders: HashMap<PathBuf, Folder>,
    manifests: HashMap<PathBuf, Text>,
}

impl Index {
    /// Whether it can have been written by us: names that lead elsewhere than into their folder are nobody's.
    pub(crate) fn is_sound(&self) -> bool {
        let is_name = |name: &PathBuf| {
            let mut parts = name.components();
            matches!((parts.next(), parts.next()), (Some(Component::Normal(part)), None) if part == name.as_os_str())
        };
        self.folders.values().all(|folder| folder.names.iter().all(is_name))
    }

    /// How many manifests are remembered.
    #[cfg(test)]
    pub(crate) fn manifests(&self) -> usize {
        self.manifests.len()
    }
}

/// A manifest as a list finds it.
pub(crate) struct Found {
    pub(crate) digest: Digest,
    pub(crate) manifest: Manifest,
    pub(crate) modified: SystemTime,
}

/// A look at all that there is: what was known before, and what is known now. What it does not come by is forgotten.
#[derive(Default)]
pub(crate) struct Look {
    before: Index,
    pub(crate) now: Index,
    /// What had to be read.
    pub(crate) read: usize,
    /// By device, whether the times of its folders are to be believed.
    showing: HashMap<u64, bool>,
}

impl Look {
    pub(crate) fn new(before: Index) -> Self {
        Self { before, ..Self::default() }
    }

    /// The names in a folder of those that may be folders, or else of those that may be files; none where it is no folder.
    pub(crate) fn names(&mut self, dir: &Path, of_files: bool) -> Result<Vec<PathBuf>, StoreError> {
        let stamp = fs::metadata(dir).and_then(|meta| Stamp::of(&meta)).ok();
        let stamp =
            stamp.filter(|stamp| *self.showing.entry(stamp.file.0).or_insert_with(|| shows_changes(dir)));
        if let Some(folder) = self.before.folders.remove(dir).filter(|known| Some(known.stamp) == stamp) {
            let names = folder.names.clone();
            self.now.folders.insert(dir.to_owned(), folder);
            return Ok(names);
        }
        let is_settled = stamp.is_some_and(|stamp| stamp.is_settled());
        let names = names_in(dir, of_files)?;
        if let Some(stamp) = stamp.filter(|_| is_settled && names.iter().all(|name| name.to_str().is_some()))
        {
            self.read += 1;
            self.now.folders.insert(dir.to_owned(), Folder { stamp, names: names.clone() });
        }
        Ok(names)
    }

    /// The manifest in a file; `None` where there is no file, or no more.
    pub(crate) fn manifest(&mut self, path: &Path) -> Result<Option<Found>, StoreError> {
        let fail = |e: &io::Error| StoreError::io("read", path, e);
        let meta = match fs::metadata(path) {
            Ok(meta) if meta.is_file() => meta,
            Ok(_) => return Ok(None),
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(fail(&e)),
        };
        let modified = meta.modified().map_err(|e| fail(&e))?;
        let stamp = Stamp::of(&meta).map_err(|e| fail(&e))?;
        let is_settled = stamp.is_settled();
        let known = self.before.manifests.remove(path).filter(|known| known.stamp == stamp);
        let is_known = known.is_some();
        let text = match known.map_or_else(|| read(path, stamp), Ok) {
            Err(error) if error.is_absence() => return Ok(None),
            text => text?,
        };
        let manifest = Manifest { config: text.config.clone(), layers: text.layers.clone() };
        let found = Found { digest: text.digest, manifest, modified };
        if is_known || is_settled {
            self.read += usize::from(!is_known);
            self.now.manifests.insert(path.to_owned(), text);
        }
        Ok(Some(found))
    }
}

fn read(path: &Path, stamp: Stamp) -> Result<Text, StoreError> {
    let bytes = read_limited(path, TEXT_LIMIT)?;
    let Manifest { config, layers } = Manifest::parse(&bytes, path)?;
    Ok(Text { stamp, digest: Digest::of(&bytes), layers, config })
}

/// The names of a folder's entries but for those that are surely of the other kind. A link may be either.
pub(crate) fn names_in(dir: &Path, of_files: bool) -> Result<Vec<PathBuf>, StoreError> {
    let fail = |e: io::Error| StoreError::io("read the folder", dir, &e);
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        // Never there, or removed while we look.
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(Vec::new());
        }
        Err(e) => return Err(fail(e)),
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.map_err(fail)?;
        let kind = entry.file_type();
        if !kind.is_ok_and(|kind| if of_files { kind.is_dir() } else { kind.is_file() }) {
            names.push(entry.file_name().into());
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANIFEST: &str = r#"{"layers":[{"mediaType":"m","digest":"sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad","size":1}]}"#;

    fn settle() {
        std::thread::sleep(SETTLED * 2);
    }

    /// The names in a folder and the sizes of their layers, and how much had to be read for that.
    fn look(dir: &Path, before: Index) -> (Vec<(String, u64)>, usize, Index) {
        let mut look = Look::new(before);
        let mut found = Vec::new();
        for name in look.names(dir, true).unwrap() {
            let manifest = look.manifest(&dir.join(&name)).unwrap();
            found.extend(manifest.map(|m| (name.display().to_string(), m.manifest.layers[0].size)));
        }
        found.sort();
        (found, look.read, look.now)
    }

    #[test]
    fn what_is_as_it_was_is_not_read_again_and_whatever_changes_shows() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let names = |found: &[(String, u64)]| found.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
        fs::write(at("a"), MANIFEST).unwrap();
        fs::write(at("b"), MANIFEST).unwrap();
        settle();
        let (found, _, index) = look(dir.path(), Index::default());
        assert_eq!((names(&found), index.manifests.len()), (vec!["a".into(), "b".into()], 2));
        let (again, read, index) = look(dir.path(), index);
        assert_eq!((&again, read), (&found, 0));

        // In place, of the same length: by another program that does not rename.
        fs::write(at("a"), MANIFEST.replace("\"size\":1", "\"size\":2")).unwrap();
        let (found, _, index) = look(dir.path(), index);
        assert_eq!(found, [("a".into(), 2), ("b".into(), 1)]);
        fs::rename(at("b"), at("c")).unwrap();
        let (found, _, index) = look(dir.path(), index);
        assert_eq!(names(&found), ["a", "c"]);
        settle();
        let (_, _, index) = look(dir.path(), index);
        fs::remove_file(at("a")).unwrap();
        fs::write(at("d"), MANIFEST).unwrap();
        let (found, _, index) = look(dir.path(), index);
        assert_eq!(names(&found), ["c", "d"]);
        assert!(!index.manifests.contains_key(&at("a")), "what is gone is forgotten");
    }

    #[test]
    fn what_may_still_change_unseen_is_not_remembered() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        fs::write(&path, MANIFEST).unwrap();
        // By a clock that is ahead, or just now.
        let soon = SystemTime::now() + Duration::from_secs(3600);
        fs::File::options().append(true).open(&path).unwrap().set_modified(soon).unwrap();
        settle();
        let (found, _, index) = look(dir.path(), Index::default());
        assert_eq!((found.len(), index.manifests.len()), (1, 0));
    }

    #[cfg(unix)]
    #[test]
    fn a_link_shows_what_it_leads_to_now() {
        let dir = tempfile::tempdir().unwrap();
        let elsewhere = tempfile::tempdir().unwrap();
        let target = elsewhere.path().join("target");
        std::os::unix::fs::symlink(&target, dir.path().join("a")).unwrap();
        settle();
        let (found, _, index) = look(dir.path(), Index::default());
        assert_eq!(found, []);
        fs::write(&target, MANIFEST).unwrap();
        let (found, _, index) = look(dir.path(), index);
        assert_eq!(found.len(), 1);
        fs::remove_file(&target).unwrap();
        assert_eq!(look(dir.path(), index).0, []);
    }

    #[test]
    fn an_index_that_leads_elsewhere_is_nobodys() {
        let stamp = Stamp { length: 0, modified: 0, changed: 0, file: (0, 0) };
        let of = |name: &str| {
            let folder = Folder { stamp, names: vec!["good".into(), name.into()] };
            Index { folders: [("dir".into(), folder)].into(), ..Index::default() }
        };
        assert!(of("m:1b").is_sound());
        for name in ["..", ".", "/etc", "a/b", "../x", "", "a/"] {
            assert!(!of(name).is_sound(), "{name:?}");
        }
    }
}
