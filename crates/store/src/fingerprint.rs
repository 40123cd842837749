//! File fingerprints, which show whether a file has changed.

use std::fs;
use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime};

/// A file that was changed within this time before it was read may change again without a new time.
pub(crate) const SETTLE_TIME: Duration =
    if cfg!(test) { Duration::from_millis(50) } else { Duration::from_secs(2) };

/// Identity, length and times of a file or folder. Times are nanoseconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FileFingerprint {
    pub(crate) length: u64,
    pub(crate) modified: i64,
    /// The change time (ctime), which programs cannot set. Equals `modified` on systems without it.
    pub(crate) changed: i64,
    /// Device and inode number on Unix, else zeros.
    pub(crate) file: (u64, u64),
}

impl FileFingerprint {
    /// The fingerprint in a file's metadata.
    ///
    /// # Errors
    /// The system reports no modification time.
    pub fn from_metadata(meta: &fs::Metadata) -> io::Result<Self> {
        let (modified, changed) = times(meta)?;
        Ok(Self { length: meta.len(), modified, changed, file: file_id(meta).unwrap_or_default() })
    }

    /// The fingerprint in a `stat` result.
    #[cfg(all(target_os = "linux", target_pointer_width = "64"))]
    pub(crate) fn from_stat(stat: &rustix::fs::Stat) -> Self {
        let nanos = |seconds, nanos: u64| {
            i64::saturating_mul(seconds, 1_000_000_000)
                .saturating_add(i64::try_from(nanos).unwrap_or(i64::MAX))
        };
        Self {
            length: u64::try_from(stat.st_size).unwrap_or_default(),
            modified: nanos(stat.st_mtime, stat.st_mtime_nsec),
            changed: nanos(stat.st_ctime, stat.st_ctime_nsec),
            file: (stat.st_dev, stat.st_ino),
        }
    }

    /// The fingerprint of the file or folder at a path; `None` if there is none.
    pub fn at(path: &Path) -> Option<Self> {
        fs::metadata(path).and_then(|meta| Self::from_metadata(&meta)).ok()
    }

    /// The modification time.
    pub(crate) fn modified(&self) -> SystemTime {
        let since = Duration::from_nanos(self.modified.unsigned_abs());
        let epoch = SystemTime::UNIX_EPOCH;
        let then =
            if self.modified < 0 { epoch.checked_sub(since) } else { epoch.checked_add(since) };
        then.unwrap_or(epoch)
    }

    /// Whether nobody wrote to the file between the two fingerprints. Its names and permissions may
    /// have changed.
    pub fn same_content_as(&self, other: &Self) -> bool {
        self.same_file_as(other) && self.modified == other.modified
    }

    /// Whether both are the same file with the same length. Without file identity, only lengths are
    /// compared.
    pub fn same_file_as(&self, other: &Self) -> bool {
        self.without_times() == other.without_times()
    }

    /// The fingerprint without times, which stays the same while a program overwrites the file
    /// without changing its length.
    pub fn without_times(&self) -> Self {
        Self { modified: 0, changed: 0, ..*self }
    }

    /// Whether any later change of the file changes its fingerprint.
    pub(crate) fn is_settled(&self) -> bool {
        let age = nanos_of(SystemTime::now()).saturating_sub(self.modified.max(self.changed));
        u128::try_from(age).is_ok_and(|age| age > SETTLE_TIME.as_nanos())
    }
}

/// Modification time and change time.
fn times(meta: &fs::Metadata) -> io::Result<(i64, i64)> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        let nanos =
            |seconds: i64, nanos: i64| seconds.saturating_mul(1_000_000_000).saturating_add(nanos);
        Ok((nanos(meta.mtime(), meta.mtime_nsec()), nanos(meta.ctime(), meta.ctime_nsec())))
    }
    #[cfg(not(unix))]
    {
        let modified = nanos_of(meta.modified()?);
        Ok((modified, modified))
    }
}

/// Device and inode number; `None` if the system has no file identity.
pub(crate) fn file_id(meta: &fs::Metadata) -> Option<(u64, u64)> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        Some((meta.dev(), meta.ino()))
    }
    #[cfg(not(unix))]
    {
        let _ = meta;
        None
    }
}

/// Whether two paths lead to the same existing file.
pub fn same_file(a: &Path, b: &Path) -> bool {
    let is_one = || -> io::Result<bool> {
        match (file_id(&fs::metadata(a)?), file_id(&fs::metadata(b)?)) {
            (Some(a), Some(b)) => Ok(a == b),
            _ => Ok(a.canonicalize()? == b.canonicalize()?),
        }
    };
    is_one().unwrap_or(false)
}

/// Nanoseconds since 1970; zero for earlier times.
fn nanos_of(time: SystemTime) -> i64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fingerprint_changes_only_when_the_file_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let (path, link, copy) = (dir.path().join("a"), dir.path().join("b"), dir.path().join("c"));
        fs::write(&path, "bytes").unwrap();
        fs::hard_link(&path, &link).unwrap();
        fs::copy(&path, &copy).unwrap();
        let before = FileFingerprint::at(&path).unwrap();
        assert!(before.same_content_as(&FileFingerprint::at(&link).unwrap()));
        if cfg!(unix) {
            assert!(same_file(&path, &link));
            assert!(!before.same_file_as(&FileFingerprint::at(&copy).unwrap()));
        }
        assert!(same_file(&path, &dir.path().join(".").join("a")));
        assert!(!same_file(&path, &copy) && !same_file(&path, &dir.path().join("none")));
        let soon = SystemTime::now() + Duration::from_secs(5);
        fs::File::options().append(true).open(&path).unwrap().set_modified(soon).unwrap();
        let touched = FileFingerprint::at(&path).unwrap();
        assert!(touched.same_file_as(&before) && !touched.same_content_as(&before));
        fs::write(&path, "more bytes").unwrap();
        assert!(!FileFingerprint::at(&path).unwrap().same_file_as(&before));
    }

    #[cfg(all(target_os = "linux", target_pointer_width = "64"))]
    #[test]
    fn fingerprints_do_not_depend_on_the_system_call() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("a"), "bytes").unwrap();
        let folder = fs::File::open(dir.path()).unwrap();
        let stat = rustix::fs::statat(&folder, "a", rustix::fs::AtFlags::empty()).unwrap();
        assert_eq!(
            Some(FileFingerprint::from_stat(&stat)),
            FileFingerprint::at(&dir.path().join("a"))
        );
    }

    #[test]
    fn modification_times_before_and_after_1970_round_trip() {
        for time in [
            SystemTime::UNIX_EPOCH,
            SystemTime::now(),
            SystemTime::UNIX_EPOCH - Duration::new(9, 7),
        ] {
            let nanos = match time.duration_since(SystemTime::UNIX_EPOCH) {
                Ok(since) => i64::try_from(since.as_nanos()).unwrap(),
                Err(before) => -i64::try_from(before.duration().as_nanos()).unwrap(),
            };
            let fingerprint =
                FileFingerprint { length: 0, modified: nanos, changed: 0, file: (0, 0) };
            assert_eq!(fingerprint.modified(), time);
        }
    }
}
