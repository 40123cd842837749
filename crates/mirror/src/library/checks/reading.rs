//! Reading a file to its end, a slice at a time: so a small one that came later need not wait for the end of a large one.

use std::fs::File;
use std::io;
use std::sync::{Arc, Weak};

use puna_store::{Hasher, Stamp};
use tokio::sync::watch;

use super::super::folder::Folder;
use super::Known;

/// Bytes that are read at once.
const PIECE: usize = 1 << 20;

/// Reads bytes of a file from one on; none at its end.
pub(super) type ReadAt = dyn Fn(&File, &mut [u8], u64) -> io::Result<usize> + Send + Sync;

/// What reading a file once more has come to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Outcome {
    Whole,
    /// Why it is.
    Damaged(String),
    /// Somebody has replaced, changed or removed it meanwhile.
    Gone,
    /// Why nobody can tell.
    Unknown(String),
}

/// A file that is being read.
pub(super) struct Reading {
    pub(super) known: Known,
    /// As somebody has it open who is given its bytes: it stays what it is when the blob is removed or replaced.
    file: Weak<File>,
    hasher: Hasher,
    at: u64,
    /// What was found wrong the first time.
    doubt: Option<String>,
    /// For those who wait for what comes of it.
    told: watch::Sender<Option<Outcome>>,
}

impl Reading {
    pub(super) fn new(known: Known, file: &Arc<File>) -> Self {
        let (told, _) = watch::channel(None);
        Self {
            known,
            file: Arc::downgrade(file),
            hasher: Hasher::default(),
            at: 0,
            doubt: None,
            told,
        }
    }

    /// What will come of it.
    pub(super) fn pending(&self) -> Pending {
        Pending(self.told.subscribe())
    }

    /// Tells those who wait.
    pub(super) fn tell(&self, outcome: Outcome) {
        self.told.send_replace(Some(outcome));
    }

    /// Reads on. A file is damaged where it is found to be so twice, since it may be the memory that errs. `None`: it is to be gone on with.
    pub(super) fn go_on(&mut self, folder: &Folder, read: &ReadAt, most: u64) -> Option<Outcome> {
        let wrong = match self.slice(folder, read, most) {
            Ok(Slice::More) => return None,
            Ok(Slice::Gone) => return Some(Outcome::Gone),
            Ok(Slice::End) => {
                let found = std::mem::take(&mut self.hasher).finish();
                if found == self.known.digest {
                    return Some(Outcome::Whole);
                }
                "it has other bytes than its name says".to_owned()
            }
            Err(error) if is_of_the_disk(&error) => format!("it cannot be read: {error}"),
            Err(error) => return Some(Outcome::Unknown(error.to_string())),
        };
        if self.doubt.is_none() {
            (self.hasher, self.at, self.doubt) = (Hasher::default(), 0, Some(wrong));
            return None;
        }
        let is_same = match self.open(folder) {
            Ok(Some(file)) => stamp(&file).is_ok_and(|now| now.has_bytes_of(&self.known.stamp)),
            _ => false,
        };
        Some(if is_same { Outcome::Damaged(wrong) } else { Outcome::Gone })
    }

    fn slice(&mut self, folder: &Folder, read: &ReadAt, most: u64) -> io::Result<Slice> {
        let Some(file) = self.open(folder)? else { return Ok(Slice::Gone) };
        if self.at == 0 {
            let now = stamp(&file)?;
            if !now.is_file_of(&self.known.stamp) {
                return Ok(Slice::Gone);
            }
            self.known.stamp = now;
        }
        let (mut buffer, until) = (vec![0; PIECE], self.at.saturating_add(most));
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

    /// The file; `None` where it is no blob any more and nobody has it open.
    fn open(&self, folder: &Folder) -> io::Result<Option<Arc<File>>> {
        if let Some(file) = self.file.upgrade() {
            return Ok(Some(file));
        }
        for place in folder.places(&self.known.digest) {
            match File::open(place) {
                Ok(file) if stamp(&file)?.is_file_of(&self.known.stamp) => {
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
    Gone,
}

/// What comes of reading a file once more.
#[derive(Clone)]
pub(crate) struct Pending(watch::Receiver<Option<Outcome>>);

impl Pending {
    /// What has come of it before.
    pub(super) fn ended(outcome: Outcome) -> Self {
        Self(watch::channel(Some(outcome)).1)
    }

    /// Whether it is whole, as far as that is known; else why nobody may have all of it.
    pub(crate) fn now(&self) -> Option<Result<(), String>> {
        self.0.borrow().as_ref().map(Outcome::judged)
    }

    /// Waits for it.
    pub(crate) async fn wait(&mut self) -> Result<(), String> {
        match self.0.wait_for(Option::is_some).await {
            Ok(outcome) => outcome.as_ref().map_or(Ok(()), Outcome::judged),
            Err(_) => Err("it is not checked".to_owned()),
        }
    }
}

impl Outcome {
    fn judged(&self) -> Result<(), String> {
        match self {
            Self::Whole => Ok(()),
            Self::Damaged(reason) => Err(format!("it is damaged on the disk: {reason}")),
            Self::Gone => Err("it was replaced while it was read".to_owned()),
            Self::Unknown(reason) => Err(format!("it is not checked: {reason}")),
        }
    }
}

fn stamp(file: &File) -> io::Result<Stamp> {
    Stamp::of(&file.metadata()?)
}

/// Whether an error of reading is the disk's, or the file system's that finds its own sums wrong: the file will give no other answer.
fn is_of_the_disk(error: &io::Error) -> bool {
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
