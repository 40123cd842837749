//! Blobs of the file system driver: those of models lie in the store, pushed ones in the registry
//! directory.

use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt, stream};
use puna_store::{Digest, sync_dir};

use super::registry_dir::{self, RegistryDir, io_error, none_if_absent};
use crate::blocking::blocking;
use crate::error::{Denial, InternalError, MirrorError};
use crate::integrity::{BlobFile, IntegrityChecker, PendingCheck};
use crate::storage::{Blob, ByteStream};
use crate::types::repository::Repository;
use crate::types::stored_object::{is_push_mark_of, push_mark_name};

/// Bytes of one read.
const READ_BYTES: usize = 256 << 10;

impl RegistryDir {
    /// Opens a blob unless it is known to be damaged. Its check starts with the first read; a small
    /// blob is checked first. Blocks on the disk.
    pub(crate) fn open_blob(
        &self,
        digest: &Digest,
        checks: &IntegrityChecker,
    ) -> Result<Option<FileBlob>, MirrorError> {
        for path in self.blob_paths(digest) {
            let Some(blob) = FileBlob::open(&path)? else { continue };
            let blob_file = BlobFile::new(*digest, &blob.file).map_err(io_error("read", &path))?;
            if checks.may_serve(blob_file, &blob.file, blob.size) {
                return Ok(Some(FileBlob { check: Some((checks.clone(), blob_file)), ..blob }));
            }
        }
        Ok(None)
    }

    /// Links a pushed blob into the store.
    pub(crate) fn link_into_store(&self, digest: &Digest) -> Result<(), MirrorError> {
        let pushed = self.blob(digest);
        match pushed.is_file() {
            true => Ok(self.store.link_blob(digest, &pushed)?),
            // The store has it already, or reports that it is missing.
            false => Ok(()),
        }
    }

    /// Links a blob of the store into the registry directory, for a manifest that the store does
    /// not know.
    pub(crate) fn link_from_store(&self, digest: &Digest) -> Result<(), MirrorError> {
        let (stored, target) = (self.store.blob_path(digest), self.blob(digest));
        if target.is_file() {
            return Ok(());
        }
        if !stored.is_file() {
            return Err(MirrorError::ManifestBlobUnknown(*digest));
        }
        fs::create_dir_all(self.blobs()).map_err(io_error("create the folder", &self.blobs()))?;
        link(&stored, &target).map_err(io_error("write", &target))?;
        // The blob must be durable before a manifest that references it.
        sync_dir(&self.blobs());
        Ok(())
    }

    /// Makes a stored blob available in a repository, as if it had been pushed there. It stays as
    /// long as a pushed blob even if its model is removed. Returns whether the blob is stored.
    pub(crate) fn mount(&self, name: &Repository, digest: &Digest) -> Result<bool, MirrorError> {
        let _lock = self.lock_writes()?;
        match self.link_from_store(digest) {
            Err(MirrorError::ManifestBlobUnknown(_)) => return Ok(false),
            // The store may remove models without this lock.
            Err(_) if !self.store.has_blob(digest) => return Ok(false),
            taken => taken?,
        }
        let blob = self.blob(digest);
        let size = fs::metadata(&blob).map_err(io_error("read", &blob))?.len();
        self.mark_pushed(name, digest, size)?;
        Ok(true)
    }

    /// Records that a blob was pushed to a repository. The blob stays until a manifest references
    /// it, for a day at most.
    pub(crate) fn mark_pushed(
        &self,
        name: &Repository,
        digest: &Digest,
        size: u64,
    ) -> Result<(), MirrorError> {
        let dir = self.pushed_marks().join(name.dir_name());
        let mark = dir.join(push_mark_name(digest, size));
        fs::create_dir_all(&dir).map_err(io_error("create the folder", &dir))?;
        let made = File::create(&mark).and_then(|mark| mark.set_modified(SystemTime::now()));
        made.map_err(io_error("write", &mark))
    }

    /// Removes a pushed blob that no manifest references.
    pub(crate) fn remove_blob(&self, digest: &Digest) -> Result<bool, MirrorError> {
        let _lock = self.lock_writes()?;
        let Some(blobs_in_use) = self.blobs_in_use() else {
            return Err(Denial::BlobUsageUnknown(*digest).into());
        };
        if blobs_in_use.contains(digest) || self.store.has_blob(digest) {
            return Err(Denial::BlobInUse(*digest).into());
        }
        let removed = self.move_to_trash(&self.blob(digest), &digest.file_name())?;
        self.remove_push_marks(digest)?;
        Ok(removed)
    }

    /// Removes the push marks of a blob, so that quotas no longer count it.
    fn remove_push_marks(&self, digest: &Digest) -> Result<(), MirrorError> {
        for dir_name in registry_dir::file_names(&self.pushed_marks())? {
            let dir = self.pushed_marks().join(dir_name);
            for mark in registry_dir::file_names(&dir)? {
                if is_push_mark_of(&mark, digest) {
                    registry_dir::remove_file(&dir.join(mark))?;
                }
            }
        }
        Ok(())
    }
}

/// Makes a hard link; a copy where the file system supports no hard links.
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

/// A blob in a file. It stays readable if the file is removed.
pub(crate) struct FileBlob {
    file: Arc<File>,
    size: u64,
    /// Checker to inform when a client reads the blob.
    check: Option<(IntegrityChecker, BlobFile)>,
}

impl FileBlob {
    /// Opens a file; `None` if it does not exist.
    pub(crate) fn open(path: &Path) -> Result<Option<Self>, MirrorError> {
        let Some(file) = none_if_absent(File::open(path), "read", path)? else { return Ok(None) };
        let size = file.metadata().map_err(io_error("read", path))?.len();
        Ok(Some(Self { file: Arc::new(file), size, check: None }))
    }
}

impl Blob for FileBlob {
    fn size(&self) -> u64 {
        self.size
    }

    fn read(self: Box<Self>, range: Range<u64>) -> ByteStream {
        let pending = self
            .check
            .as_ref()
            .and_then(|(checks, blob_file)| checks.start_check(*blob_file, &self.file));
        let last = self.size.saturating_sub(1);
        let pieces = stream::unfold((range, pending), move |(range, mut pending)| {
            let (file, check) = (self.file.clone(), self.check.clone());
            async move {
                if range.is_empty() {
                    return None;
                }
                let ended = |error| Some((Err(error), (range.end..range.end, None)));
                let until = match readable_end(&mut pending, range.start, last).await {
                    Ok(until) => until.min(range.end),
                    Err(error) => return ended(error),
                };
                let len = (until - range.start).min(READ_BYTES as u64) as usize;
                let read = match read_from_page_cache(&file, range.start, len) {
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
                        check
                            .into_iter()
                            .for_each(|(checks, blob_file)| checks.recheck(blob_file, &file));
                        ended(error)
                    }
                }
            }
        });
        pieces.boxed()
    }
}

/// Returns the offset up to which bytes after `from` may be served. The last byte waits for the
/// check, and a damaged blob ends with an error.
async fn readable_end(
    pending: &mut Option<PendingCheck>,
    from: u64,
    last: u64,
) -> Result<u64, MirrorError> {
    let Some(check) = pending else { return Ok(u64::MAX) };
    let result = match check.now() {
        None if from < last => return Ok(last),
        None => check.wait().await,
        Some(result) => result,
    };
    result.map_err(|reason| InternalError::BlobNotVerified { reason })?;
    *pending = None;
    Ok(u64::MAX)
}

/// Reads bytes that the page cache has, perhaps fewer than asked for. `None` means that they must
/// come from the disk, which would block the thread of other requests.
#[cfg(target_os = "linux")]
fn read_from_page_cache(file: &File, at: u64, len: usize) -> Option<Bytes> {
    let mut bytes = BytesMut::zeroed(len);
    let mut into = [io::IoSliceMut::new(&mut bytes)];
    let read = rustix::io::preadv2(file, &mut into, at, rustix::io::ReadWriteFlags::NOWAIT);
    let read = read.ok().filter(|read| *read > 0)?;
    bytes.truncate(read);
    Some(bytes.freeze())
}

#[cfg(not(target_os = "linux"))]
fn read_from_page_cache(_: &File, _: u64, _: usize) -> Option<Bytes> {
    None
}

/// Reads `len` bytes at an offset.
fn read_at(file: &File, at: u64, len: usize) -> Result<Bytes, MirrorError> {
    let mut bytes = BytesMut::zeroed(len);
    read_exact_at(file, &mut bytes, at)
        .map_err(|e| InternalError::BlobUnreadable { reason: e.to_string() })?;
    Ok(bytes.freeze())
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
