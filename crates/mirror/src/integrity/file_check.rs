//! Check of one file, read in slices, so that a small file need not wait for the end of a large
//! one.

use std::fs::File;
use std::io;
use std::sync::{Arc, Weak};

use puna_store::{Digest, FileFingerprint, Hasher};
use tokio::sync::watch;

use crate::auth::ClientId;
use crate::storage::fs::registry_dir::RegistryDir;

/// Bytes of one read.
const READ_BYTES: usize = 1 << 20;

/// Reads bytes of a file from an offset; returns 0 at its end.
pub(crate) type ReadAt = dyn Fn(&File, &mut [u8], u64) -> io::Result<usize> + Send + Sync;

/// File that was opened as a blob.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct BlobFile {
    pub(super) digest: Digest,
    pub(super) stamp: FileFingerprint,
}

impl BlobFile {
    /// Identifies an open file of a blob.
    pub(crate) fn new(digest: Digest, file: &File) -> io::Result<Self> {
        Ok(Self { digest, stamp: stamp(file)? })
    }

    /// Key of the file's results: the file without its times.
    pub(super) fn key(&self) -> Self {
        Self { stamp: self.stamp.without_times(), ..*self }
    }
}

/// Outcome of a check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CheckOutcome {
    Intact,
    /// The content has another digest or cannot be read; the reason.
    Damaged(String),
    /// The file was replaced, changed or removed meanwhile.
    Replaced,
    /// The check failed for a reason that says nothing about the file.
    Failed(String),
}

/// A check in progress.
pub(crate) struct FileCheck {
    pub(crate) blob_file: BlobFile,
    /// Client that reads the blob.
    pub(super) client: ClientId,
    /// File as the reading client has it open. Its content stays the same if the blob is removed or
    /// replaced.
    file: Weak<File>,
    hasher: Hasher,
    at: u64,
    /// Failure of the first attempt.
    first_failure: Option<String>,
    /// Publishes the outcome.
    sender: watch::Sender<Option<CheckOutcome>>,
}

impl FileCheck {
    pub(crate) fn new(blob_file: BlobFile, file: &Arc<File>, client: ClientId) -> Self {
        let (sender, _) = watch::channel(None);
        Self {
            blob_file,
            client,
            file: Arc::downgrade(file),
            hasher: Hasher::default(),
            at: 0,
            first_failure: None,
            sender,
        }
    }

    /// Returns a handle to wait for the outcome.
    pub(crate) fn pending(&self) -> PendingCheck {
        PendingCheck(self.sender.subscribe())
    }

    /// Publishes the outcome.
    pub(crate) fn send(&self, outcome: CheckOutcome) {
        self.sender.send_replace(Some(outcome));
    }

    /// Reads the next slice. A file counts as damaged only after two failures, because the memory
    /// may be at fault. `None` means that the check continues.
    pub(crate) fn step(
        &mut self,
        registry: &RegistryDir,
        read: &ReadAt,
        max: u64,
    ) -> Option<CheckOutcome> {
        let wrong = match self.read_slice(registry, read, max) {
            Ok(Slice::More) => return None,
            Ok(Slice::Replaced) => return Some(CheckOutcome::Replaced),
            Ok(Slice::End) => {
                let found = std::mem::take(&mut self.hasher).finish();
                if found == self.blob_file.digest {
                    return Some(CheckOutcome::Intact);
                }
                "the content does not match the digest".to_owned()
            }
            Err(error) if is_disk_error(&error) => format!("it cannot be read: {error}"),
            Err(error) => return Some(CheckOutcome::Failed(error.to_string())),
        };
        if self.first_failure.is_none() {
            (self.hasher, self.at, self.first_failure) = (Hasher::default(), 0, Some(wrong));
            return None;
        }
        let is_same = match self.open(registry) {
            Ok(Some(file)) => {
                stamp(&file).is_ok_and(|now| now.same_content_as(&self.blob_file.stamp))
            }
            _ => false,
        };
        Some(if is_same { CheckOutcome::Damaged(wrong) } else { CheckOutcome::Replaced })
    }

    fn read_slice(&mut self, registry: &RegistryDir, read: &ReadAt, max: u64) -> io::Result<Slice> {
        let Some(file) = self.open(registry)? else { return Ok(Slice::Replaced) };
        if self.at == 0 {
            let now = stamp(&file)?;
            if !now.same_file_as(&self.blob_file.stamp) {
                return Ok(Slice::Replaced);
            }
            self.blob_file.stamp = now;
        }
        let (mut buffer, until) = (vec![0; READ_BYTES], self.at.saturating_add(max));
        while self.at < until {
            match read(&file, &mut buffer, self.at) {
                Ok(0) => return Ok(Slice::End),
                Ok(n) => {
                    self.hasher.update(&buffer[..n]);
                    self.at += n as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Slice::More)
    }

    /// Opens the file; `None` if it is no longer a blob and no client has it open.
    fn open(&self, registry: &RegistryDir) -> io::Result<Option<Arc<File>>> {
        if let Some(file) = self.file.upgrade() {
            return Ok(Some(file));
        }
        for place in registry.blob_paths(&self.blob_file.digest) {
            match File::open(place) {
                Ok(file) if stamp(&file)?.same_file_as(&self.blob_file.stamp) => {
                    return Ok(Some(Arc::new(file)));
                }
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(None)
    }
}

enum Slice {
    More,
    End,
    Replaced,
}

/// Handle to wait for the outcome of a check.
#[derive(Clone)]
pub(crate) struct PendingCheck(watch::Receiver<Option<CheckOutcome>>);

impl PendingCheck {
    /// Handle of a check that has ended.
    pub(crate) fn finished(outcome: CheckOutcome) -> Self {
        Self(watch::channel(Some(outcome)).1)
    }

    /// Returns the result if the check has ended; an error says why the blob must not be served
    /// whole.
    pub(crate) fn now(&self) -> Option<Result<(), String>> {
        self.0.borrow().as_ref().map(CheckOutcome::to_result)
    }

    /// Waits for the result.
    pub(crate) async fn wait(&mut self) -> Result<(), String> {
        match self.0.wait_for(Option::is_some).await {
            Ok(outcome) => outcome.as_ref().map_or(Ok(()), CheckOutcome::to_result),
            Err(_) => Err("it was not verified".to_owned()),
        }
    }
}

impl CheckOutcome {
    fn to_result(&self) -> Result<(), String> {
        match self {
            Self::Intact => Ok(()),
            Self::Damaged(reason) => Err(format!("it is damaged on disk: {reason}")),
            Self::Replaced => Err("its file was replaced while it was read".to_owned()),
            Self::Failed(reason) => Err(format!("it could not be verified: {reason}")),
        }
    }
}

/// Reads some bytes at an offset; 0 at the end.
pub(super) fn read_some_at(file: &File, bytes: &mut [u8], at: u64) -> io::Result<usize> {
    #[cfg(unix)]
    return std::os::unix::fs::FileExt::read_at(file, bytes, at);
    #[cfg(windows)]
    return std::os::windows::fs::FileExt::seek_read(file, bytes, at);
}

fn stamp(file: &File) -> io::Result<FileFingerprint> {
    FileFingerprint::from_metadata(&file.metadata()?)
}

/// Whether the disk, or a file system that verifies checksums, reports the error. The file will not
/// become readable.
fn is_disk_error(error: &io::Error) -> bool {
    const CODES: &[i32] = if cfg!(windows) {
        // CRC, SECTOR_NOT_FOUND, READ_FAULT, IO_DEVICE, FILE_CORRUPT, DISK_CORRUPT.
        &[23, 27, 30, 1117, 1392, 1393]
    } else if cfg!(target_os = "linux") {
        // EIO, ENODATA, EBADMSG, EILSEQ, EUCLEAN, EREMOTEIO.
        &[5, 61, 74, 84, 117, 121]
    } else {
        // EIO.
        &[5]
    };
    error.raw_os_error().is_some_and(|code| CODES.contains(&code))
}
