//! Follows the download of another process: its recorded bytes can be read while it runs.
//!
//! A process records a range only after its bytes are on disk, and only adds bytes to the file. So
//! a record stays valid as long as the file is the same. A follower reads records and file
//! repeatedly, and restarts if the file has changed.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::sync::Arc;

use puna_store::{Digest, PartialBlob, PartialPath, Store, StoreError};

use crate::disk_space::check_free_space;
use crate::download::positioned_io::{CHUNK_BYTES, file_id, read_at, write_at};
use crate::download::range_table::{RangeRecord, RangeTable};
use crate::error::RegistryError;

/// Progress of another process's download.
#[derive(Debug)]
pub(super) struct ConcurrentDownload {
    /// The file is reopened at each look, since a network file system shows the bytes of others
    /// then.
    file: Arc<File>,
    pub(super) file_id: Option<u64>,
    pub(super) table: RangeTable,
}

impl ConcurrentDownload {
    /// Reads the progress. Returns `None` if no file with valid records exists.
    pub(super) fn read(
        store: &Store,
        digest: &Digest,
        total: u64,
        partial_path: PartialPath,
    ) -> Result<Option<Self>, RegistryError> {
        let partial = store.partial_at(digest, partial_path)?;
        // The file is opened before the records are read: records of a file that was replaced in
        // between do not count.
        let Ok(file) = File::open(partial.data()) else { return Ok(None) };
        let number = file_id(&file);
        let Some(table) = RangeTable::load(&partial, total)? else { return Ok(None) };
        let is_same = File::open(partial.data()).is_ok_and(|now| file_id(&now) == number);
        Ok((is_same && number.is_some()).then(|| Self {
            file: Arc::new(file),
            file_id: number,
            table,
        }))
    }

    /// The file, and the end of the contiguous bytes that start at `from`.
    pub(super) fn available_from(&self, from: u64) -> (Arc<File>, u64) {
        (self.file.clone(), self.table.contiguous_end(from))
    }
}

/// Starts a bypassing download with a copy of the ranges that the other process recorded, unless it
/// has data already. Returns the id of the copied file.
pub(super) fn copy_concurrent_partial(
    store: &Store,
    digest: &Digest,
    partial: &PartialBlob,
    total: u64,
) -> Result<Option<u64>, RegistryError> {
    if RangeTable::load(partial, total)?.is_some() {
        return Ok(None);
    }
    let Some(concurrent) = ConcurrentDownload::read(store, digest, total, PartialPath::Primary)?
    else {
        return Ok(None);
    };
    check_free_space(store, &digest.to_string(), total)?;
    partial.discard()?;
    let file = open_data(partial, total)?;
    let mut buffer = vec![0; CHUNK_BYTES];
    for record in concurrent.table.records() {
        let copied = copy_range(&concurrent.file, &file, &record, &mut buffer);
        if !copied.map_err(|e| StoreError::io("write", partial.data(), &e))? {
            // A read error makes the copy useless: all bytes are downloaded.
            partial.discard()?;
            return Ok(None);
        }
    }
    file.sync_data().map_err(|e| StoreError::io("write", partial.data(), &e))?;
    // The records are written after the bytes that they count.
    concurrent
        .table
        .records()
        .try_for_each(|record| partial.write_part(record.n, &record.to_bytes()))?;
    Ok(concurrent.file_id)
}

/// Copies the completed bytes of a range. Returns false if they cannot be read.
fn copy_range(
    source: &File,
    target: &File,
    record: &RangeRecord,
    buffer: &mut [u8],
) -> io::Result<bool> {
    let shared = || {
        let (mut from, mut to) = (source, target);
        from.seek(SeekFrom::Start(record.offset))?;
        to.seek(SeekFrom::Start(record.offset))?;
        io::copy(&mut from.take(record.completed), &mut to)
    };
    // Lets the system copy, which may share blocks between the files. On an error it does not tell
    // which file failed, so the loop below tries again.
    if shared().is_ok_and(|copied| copied == record.completed) {
        return Ok(true);
    }
    let (mut at, end) = (record.offset, record.offset + record.completed);
    while at < end {
        let piece = (end - at).min(buffer.len() as u64) as usize;
        let piece = &mut buffer[..piece];
        if let Err(error) = read_at(source, piece, at) {
            tracing::warn!(%error, at, "cannot read the partial file of a stopped process; downloading the range again");
            return Ok(false);
        }
        write_at(target, piece, at)?;
        at += piece.len() as u64;
    }
    Ok(true)
}

/// Opens the data file of a download and sets its length.
pub(super) fn open_data(partial: &PartialBlob, total: u64) -> Result<File, StoreError> {
    let path = partial.data();
    let open = || {
        let file =
            File::options().read(true).write(true).create(true).truncate(false).open(path)?;
        partial.apply_mode(&file)?;
        file.set_len(total)?;
        Ok(file)
    };
    open().map_err(|e| StoreError::io("write", path, &e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn read_errors_of_a_copy_differ_from_write_errors() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::write(at("theirs"), b"0123456789").unwrap();
        std::fs::write(at("ours"), [0; 10]).unwrap();
        let open = |name: &str, reads: bool| {
            File::options().read(reads).write(!reads).open(at(name)).unwrap()
        };
        let record = |offset, completed| RangeRecord { n: 0, offset, size: 10, completed };
        let copy = |source: &File, target: &File, record: RangeRecord| {
            copy_range(source, target, &record, &mut [0; 3])
        };
        let (source, target) = (open("theirs", true), open("ours", false));
        assert!(copy(&source, &target, record(1, 7)).unwrap());
        assert_eq!(std::fs::read(at("ours")).unwrap(), b"\x001234567\0\0");
        assert!(!copy(&source, &target, record(5, 6)).unwrap(), "it has become shorter");
        assert!(!copy(&open("theirs", false), &target, record(0, 1)).unwrap());
        assert!(copy(&source, &open("ours", true), record(0, 1)).is_err());
    }
}
