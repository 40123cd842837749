//! Blobs: those of models in the store itself, those that were pushed in the registry's folder.

use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt, stream};
use puna_store::{Digest, sync_dir};

use super::checks::{Checks, Known, Pending};
use super::folder::{Folder, absent, io};
use super::{Blob, Body};
use crate::error::MirrorError;
use crate::holding::mark_of;
use crate::name::Repository;
use crate::waiting::blocking;

/// Bytes that are read at once.
const PIECE: usize = 256 << 10;

impl Folder {
    /// Lets the store have a blob that was pushed.
    pub(crate) fn give_to_store(&self, digest: &Digest) -> Result<(), MirrorError> {
        let pushed = self.blob(digest);
        match pushed.is_file() {
            true => Ok(self.store.link_blob(digest, &pushed)?),
            // It is there already, or missing, which the store will say.
            false => Ok(()),
        }
    }

    /// Keeps a blob of the store's for a manifest that the store does not know.
    pub(crate) fn take_from_store(&self, digest: &Digest) -> Result<(), MirrorError> {
        let (stored, kept) = (self.store.blob_path(digest), self.blob(digest));
        if kept.is_file() {
            return Ok(());
        }
        if !stored.is_file() {
            return Err(MirrorError::ManifestBlobUnknown(*digest));
        }
        fs::create_dir_all(self.blobs()).map_err(io("create the folder", &self.blobs()))?;
        link(&stored, &kept).map_err(io("write", &kept))?;
        // Before the manifest that needs it is there.
        sync_dir(&self.blobs());
        Ok(())
    }

    /// Keeps a blob that is here for a repository that will name it in a manifest: whatever else goes meanwhile, it stays as long as one
    /// that was pushed. Says whether it is here.
    pub(crate) fn mount(&self, name: &Repository, digest: &Digest) -> Result<bool, MirrorError> {
        let _changes = self.changes()?;
        match self.take_from_store(digest) {
            Err(MirrorError::ManifestBlobUnknown(_)) => return Ok(false),
            // The store's models go without this lock.
            Err(_) if !self.store.has_blob(digest) => return Ok(false),
            taken => taken?,
        }
        let blob = self.blob(digest);
        let size = fs::metadata(&blob).map_err(io("read", &blob))?.len();
        self.mark_brought(name, digest, size)?;
        Ok(true)
    }

    /// Says that a repository has been brought a blob, by which it stays until a manifest needs it, or for a day.
    pub(crate) fn mark_brought(
        &self,
        name: &Repository,
        digest: &Digest,
        size: u64,
    ) -> Result<(), MirrorError> {
        let brought = self.brought().join(name.folder());
        let mark = brought.join(mark_of(digest, size));
        fs::create_dir_all(&brought).map_err(io("create the folder", &brought))?;
        let made = File::create(&mark).and_then(|mark| mark.set_modified(SystemTime::now()));
        made.map_err(io("write", &mark))
    }

    /// Removes a blob that was pushed and that no manifest needs.
    pub(crate) fn remove_blob(&self, digest: &Digest) -> Result<bool, MirrorError> {
        let _changes = self.changes()?;
        let Some(needed) = self.needed() else { return Err(MirrorError::uncollectable(digest)) };
        if needed.contains(digest) || self.store.has_blob(digest) {
            return Err(MirrorError::needed(digest));
        }
        self.move_to_trash(&self.blob(digest), &digest.file_name())
    }
}

/// A second name of a file; a copy where the file system has none.
fn link(from: &Path, to: &Path) -> io::Result<()> {
    match fs::hard_link(from, to) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(_) => {
            let temp = to.with_extension("copy");
            fs::copy(from, &temp)?;
            File::open(&temp)?.sync_all()?;
            fs::rename(temp, to)
        }
        Ok(()) => Ok(()),
    }
}

/// A blob in a file. It stays whole while it is read, also when it is removed meanwhile.
pub(crate) struct FileBlob {
    file: Arc<File>,
    size: u64,
    /// Who wants to know when somebody is given bytes of it, and what it is to him.
    check: Option<(Checks, Known)>,
}

impl FileBlob {
    /// An open file; `None` if it is not there.
    pub(crate) fn open(path: &Path) -> Result<Option<Self>, MirrorError> {
        let Some(file) = absent(File::open(path), "read", path)? else { return Ok(None) };
        let size = file.metadata().map_err(io("read", path))?.len();
        Ok(Some(Self { file: Arc::new(file), size, check: None }))
    }

    /// The same with a check, once somebody is given bytes of it.
    pub(super) fn checked(self, checks: Checks, known: Known) -> Self {
        Self { check: Some((checks, known)), ..self }
    }

    pub(super) fn file(&self) -> &Arc<File> {
        &self.file
    }
}

impl Blob for FileBlob {
    fn size(&self) -> u64 {
        self.size
    }

    fn read(self: Box<Self>, range: Range<u64>) -> Body {
        let pending =
            self.check.as_ref().and_then(|(checks, known)| checks.given(*known, &self.file));
        let last = self.size.saturating_sub(1);
        let pieces = stream::unfold((range, pending), move |(range, mut pending)| {
            let (file, check) = (self.file.clone(), self.check.clone());
            async move {
                if range.is_empty() {
                    return None;
                }
                let ended = |error| Some((Err(error), (range.end..range.end, None)));
                let until = match reach(&mut pending, range.start, last).await {
                    Ok(until) => until.min(range.end),
                    Err(error) => return ended(error),
                };
                let len = (until - range.start).min(PIECE as u64) as usize;
                let read = match cached(&file, range.start, len) {
                    Some(bytes) => Ok(bytes),
                    None => {
                        let file = file.clone();
                        blocking(move || read_at(&file, range.start, len)).await
                    }
                };
                match read {
                    Ok(bytes) => {
                        let rest = range.start + bytes.len() as u64..range.end;
                        Some((Ok(bytes), (rest, pending)))
                    }
                    Err(error) => {
                        check.into_iter().for_each(|(checks, known)| checks.failed(known, &file));
                        ended(error)
                    }
                }
            }
        });
        pieces.boxed()
    }
}

/// Up to where bytes may be given out from one on: the last one of a blob waits until it is known to be whole, and nobody gets more of one
/// that is not.
async fn reach(pending: &mut Option<Pending>, from: u64, last: u64) -> Result<u64, MirrorError> {
    let Some(found) = pending else { return Ok(u64::MAX) };
    let judged = match found.now() {
        None if from < last => return Ok(last),
        None => found.wait().await,
        Some(judged) => judged,
    };
    judged
        .map_err(|why| MirrorError::Internal(format!("a blob is given out no further: {why}")))?;
    *pending = None;
    Ok(u64::MAX)
}

/// Bytes of a file that the system has in memory, perhaps fewer than were asked for; `None` where they come from the disk,
/// which no thread may wait for that answers others.
#[cfg(target_os = "linux")]
fn cached(file: &File, at: u64, len: usize) -> Option<Bytes> {
    let mut bytes = BytesMut::zeroed(len);
    let mut into = [io::IoSliceMut::new(&mut bytes)];
    let read = rustix::io::preadv2(file, &mut into, at, rustix::io::ReadWriteFlags::NOWAIT);
    let read = read.ok().filter(|read| *read > 0)?;
    bytes.truncate(read);
    Some(bytes.freeze())
}

#[cfg(not(target_os = "linux"))]
fn cached(_: &File, _: u64, _: usize) -> Option<Bytes> {
    None
}

/// Bytes of a file, all of them.
fn read_at(file: &File, at: u64, len: usize) -> Result<Bytes, MirrorError> {
    let mut bytes = BytesMut::zeroed(len);
    read_exact_at(file, &mut bytes, at)
        .map_err(|e| MirrorError::Internal(format!("a blob cannot be read: {e}")))?;
    Ok(bytes.freeze())
}

/// Bytes of a file from one on, as many as come at once; none at its end.
pub(super) fn read_some_at(file: &File, bytes: &mut [u8], at: u64) -> io::Result<usize> {
    #[cfg(unix)]
    return std::os::unix::fs::FileExt::read_at(file, bytes, at);
    #[cfg(windows)]
    return std::os::windows::fs::FileExt::seek_read(file, bytes, at);
}

#[cfg(unix)]
fn read_exact_at(file: &File, bytes: &mut [u8], at: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, bytes, at)
}

#[cfg(windows)]
fn read_exact_at(file: &File, mut bytes: &mut [u8], mut at: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        match std::os::windows::fs::FileExt::seek_read(file, bytes, at)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            n => (bytes, at) = (&mut bytes[n..], at + n as u64),
        }
    }
    Ok(())
}
