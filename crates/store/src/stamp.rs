//! What files are known again by.

use std::fs;
use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime};

/// What was changed so shortly before it was read may change again without its times showing it.
pub(crate) const SETTLED: Duration =
    if cfg!(test) { Duration::from_millis(50) } else { Duration::from_secs(2) };

/// By what a file or folder is known again. Times are nanoseconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Stamp {
    pub(crate) length: u64,
    pub(crate) modified: i64,
    /// The last change of its state, which nobody can set; as `modified` where the system has no such time.
    pub(crate) changed: i64,
    /// Which one it is, on Unix.
    pub(crate) file: (u64, u64),
}

impl Stamp {
    /// Of what the system says of a file.
    ///
    /// # Errors
    /// The system does not say when it was written.
    pub fn of(meta: &fs::Metadata) -> io::Result<Self> {
        let (modified, changed) = times(meta)?;
        Ok(Self { length: meta.len(), modified, changed, file: identity(meta).unwrap_or_default() })
    }

    /// The same of what Linux says of it.
    #[cfg(all(target_os = "linux", target_pointer_width = "64"))]
    pub(crate) fn of_stat(stat: &rustix::fs::Stat) -> Self {
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

    /// Of the file or folder at a path; `None` where there is none.
    pub fn at(path: &Path) -> Option<Self> {
        fs::metadata(path).and_then(|meta| Self::of(&meta)).ok()
    }

    /// When it was written.
    pub(crate) fn modified(&self) -> SystemTime {
        let since = Duration::from_nanos(self.modified.unsigned_abs());
        let epoch = SystemTime::UNIX_EPOCH;
        let then =
            if self.modified < 0 { epoch.checked_sub(since) } else { epoch.checked_add(since) };
        then.unwrap_or(epoch)
    }

    /// Whether nobody has written to the file between the two. It may have got other names and permissions.
    pub fn has_bytes_of(&self, other: &Self) -> bool {
        self.is_file_of(other) && self.modified == other.modified
    }

    /// Whether it is the same file, and as long. Where the system does not tell files apart, only the length is compared.
    pub fn is_file_of(&self, other: &Self) -> bool {
        self.untimed() == other.untimed()
    }

    /// The same without its times: what stays of a file that somebody writes to, as long as its length does.
    pub fn untimed(&self) -> Self {
        Self { modified: 0, changed: 0, ..*self }
    }

    /// Whether nobody can change it from now on without it showing.
    pub(crate) fn is_settled(&self) -> bool {
        let age = nanos_of(SystemTime::now()).saturating_sub(self.modified.max(self.changed));
        u128::try_from(age).is_ok_and(|age| age > SETTLED.as_nanos())
    }
}

/// When it was written, and when its state was changed.
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

/// Which file it is; `None` where the system does not tell.
pub(crate) fn identity(meta: &fs::Metadata) -> Option<(u64, u64)> {
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

/// Whether two paths lead to one file, be it under two names. What is not there is no file.
pub fn same_file(a: &Path, b: &Path) -> bool {
    let is_one = || -> io::Result<bool> {
        match (identity(&fs::metadata(a)?), identity(&fs::metadata(b)?)) {
            (Some(a), Some(b)) => Ok(a == b),
            _ => Ok(a.canonicalize()? == b.canonicalize()?),
        }
    };
    is_one().unwrap_or(false)
}

/// Nanoseconds since 1970; before it, which no clock of today shows, none.
fn nanos_of(time: SystemTime) -> i64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_known_again_under_its_names_until_somebody_writes_to_it() {
        let dir = tempfile::tempdir().unwrap();
        let (path, link, copy) = (dir.path().join("a"), dir.path().join("b"), dir.path().join("c"));
        fs::write(&path, "bytes").unwrap();
        fs::hard_link(&path, &link).unwrap();
        fs::copy(&path, &copy).unwrap();
        let before = Stamp::at(&path).unwrap();
        assert!(before.has_bytes_of(&Stamp::at(&link).unwrap()));
        if cfg!(unix) {
            assert!(same_file(&path, &link));
            assert!(!before.is_file_of(&Stamp::at(&copy).unwrap()));
        }
        assert!(same_file(&path, &dir.path().join(".").join("a")));
        assert!(!same_file(&path, &copy) && !same_file(&path, &dir.path().join("none")));
        let soon = SystemTime::now() + Duration::from_secs(5);
        fs::File::options().append(true).open(&path).unwrap().set_modified(soon).unwrap();
        let touched = Stamp::at(&path).unwrap();
        assert!(touched.is_file_of(&before) && !touched.has_bytes_of(&before));
        fs::write(&path, "more bytes").unwrap();
        assert!(!Stamp::at(&path).unwrap().is_file_of(&before));
    }

    #[cfg(all(target_os = "linux", target_pointer_width = "64"))]
    #[test]
    fn a_file_has_one_stamp_from_wherever_it_is_asked_for() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("a"), "bytes").unwrap();
        let folder = fs::File::open(dir.path()).unwrap();
        let stat = rustix::fs::statat(&folder, "a", rustix::fs::AtFlags::empty()).unwrap();
        assert_eq!(Some(Stamp::of_stat(&stat)), Stamp::at(&dir.path().join("a")));
    }

    #[test]
    fn times_of_all_ages_are_kept() {
        for time in [
            SystemTime::UNIX_EPOCH,
            SystemTime::now(),
            SystemTime::UNIX_EPOCH - Duration::new(9, 7),
        ] {
            let nanos = match time.duration_since(SystemTime::UNIX_EPOCH) {
                Ok(since) => i64::try_from(since.as_nanos()).unwrap(),
                Err(before) => -i64::try_from(before.duration().as_nanos()).unwrap(),
            };
            let stamp = Stamp { length: 0, modified: nanos, changed: 0, file: (0, 0) };
            assert_eq!(stamp.modified(), time);
        }
    }
}
