//! The lock of a download, and following the download of another process: its recorded bytes can be
//! read while it runs.
//!
//! A process records a range only after its bytes are on disk, and only adds bytes to the file. So
//! a record stays valid as long as the file is the same. A follower reads records and file
//! repeatedly, and restarts if the file has changed.
//!
//! A stopped process (`SIGSTOP`) keeps its files: it would continue to write them, and two writers
//! would corrupt them. After a timeout, another process downloads to its own files, which start as
//! a copy of the recorded bytes. Whichever finishes first stores the blob. The other process stores
//! the same bytes under the same name if it continues.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::sync::Arc;
use std::time::{Duration, Instant};

use puna_store::{BlobLock, Digest, LockHolder, PartialBlob, PartialPath, Store, StoreError};
use tokio::sync::watch;

use super::{CHUNK_BYTES, DownloadState, IDLE_POLL_INTERVAL, open_data};
use crate::blocking::blocking;
use crate::disk_space::check_free_space;
use crate::download::positioned_io::{file_id, read_at, write_at};
use crate::download::range_table::{RangeRecord, RangeTable};
use crate::error::RegistryError;

/// Progress of another process's download.
#[derive(Debug)]
pub(super) struct ConcurrentDownload {
    /// The file is reopened at each look, since a network file system shows the bytes of others
    /// then.
    file: Arc<File>,
    file_id: Option<u64>,
    table: RangeTable,
}

impl ConcurrentDownload {
    fn read(
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

impl DownloadState {
    /// Takes over what another process has recorded.
    fn follow(&mut self, concurrent: Option<ConcurrentDownload>) {
        let is_same_file = |now: &ConcurrentDownload| {
            self.concurrent.as_ref().is_none_or(|before| before.file_id == now.file_id)
        };
        match concurrent {
            Some(now) if is_same_file(&now) => {
                self.completed = now.table.completed();
                self.concurrent = Some(Arc::new(now));
            }
            // The other process is starting or finishing. The open file is kept so that no new file
            // can get its number.
            None => {}
            Some(now) => {
                self.restart();
                self.concurrent = Some(Arc::new(now));
            }
        }
    }

    /// Keeps the current generation if the bytes that readers have seen are in the file `file_id`,
    /// else restarts.
    pub(super) fn follow_to(&mut self, file_id: Option<u64>) {
        if self.concurrent.take().is_some_and(|concurrent| concurrent.file_id != file_id) {
            self.restart();
        }
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
            tracing::warn!(%error, at, "what a stopped process has noted cannot be read: it is fetched anew");
            return Ok(false);
        }
        write_at(target, piece, at)?;
        at += piece.len() as u64;
    }
    Ok(true)
}

/// Whether the disk has space for a separate download: the whole blob, less what an earlier one
/// left there.
async fn has_space_for_copy(
    store: &Arc<Store>,
    digest: Digest,
    total: u64,
) -> Result<bool, RegistryError> {
    let store = store.clone();
    blocking(move || {
        let left = RangeTable::load(&store.partial_at(&digest, PartialPath::Secondary)?, total)?;
        let left = left.map_or(0, |table| table.completed());
        Ok(check_free_space(&store, &digest.to_string(), total - left).is_ok())
    })
    .await
}

/// Waits for the lock of a download. Returns the lock and its place, or `None` if another process
/// has finished the blob.
///
/// If the lock holder is stopped and has made no progress for `timeout`, this process takes the
/// second place, given enough disk space. Without space, the status tells the user how to continue.
pub(super) async fn acquire_download_lock(
    store: &Arc<Store>,
    digest: Digest,
    total: u64,
    timeout: Duration,
    state: &watch::Sender<DownloadState>,
) -> Result<Option<(BlobLock, PartialPath)>, RegistryError> {
    let (mut wait, mut partial_path, mut bypassed_holder) =
        (LockHolderWait::new(timeout), PartialPath::Primary, None);
    loop {
        let at = store.clone();
        let attempt = blocking(move || LockAttempt::new(&at, &digest, total, partial_path)).await?;
        if !matches!(attempt, LockAttempt::HeldByOther(..)) {
            let holder =
                bypassed_holder.as_ref().filter(|_| matches!(attempt, LockAttempt::Acquired(_)));
            let copying = holder.map(|holder| format!("a copy of what {holder} has noted"));
            state.send_modify(|state| state.waiting_for = copying);
        }
        match attempt {
            LockAttempt::BlobExists(blob) => {
                state.send_modify(|state| {
                    state.is_unverified = true;
                    match &blob {
                        Some(blob) => state.follow_to(file_id(blob)),
                        None => state.restart(),
                    }
                });
                return Ok(None);
            }
            LockAttempt::Acquired(lock) => return Ok(Some((lock, partial_path))),
            LockAttempt::HeldByOther(..) if state.is_closed() => {
                return Err(RegistryError::Cancelled);
            }
            LockAttempt::HeldByOther(holder, concurrent) => {
                let now = Instant::now();
                state.send_modify(|state| {
                    state.follow(concurrent);
                    state.waiting_for =
                        Some(wait.message(holder.as_ref(), &digest, state.completed, now));
                });
                let stopped = holder.filter(|holder| wait.is_stalled(now) && holder.is_stopped());
                if let (PartialPath::Primary, Some(holder)) = (partial_path, stopped)
                    && has_space_for_copy(store, digest, total).await?
                {
                    tracing::info!(%holder, %digest, "who fetches it is stopped: it is fetched beside what that has");
                    (wait, partial_path, bypassed_holder) =
                        (LockHolderWait::new(timeout), PartialPath::Secondary, Some(holder));
                    continue;
                }
            }
        }
        tokio::time::sleep(IDLE_POLL_INTERVAL).await;
    }
}

/// State of waiting for the lock holder.
struct LockHolderWait {
    /// Completed bytes of the holder, and when they last changed.
    completed: u64,
    since: Instant,
    /// Time without progress after which the holder counts as stalled.
    timeout: Duration,
}

impl LockHolderWait {
    fn new(timeout: Duration) -> Self {
        Self { completed: 0, since: Instant::now(), timeout }
    }

    /// Whether there has been no progress for the timeout.
    fn is_stalled(&self, now: Instant) -> bool {
        now.duration_since(self.since) >= self.timeout
    }

    /// Status that names the holder and, if it is stalled, tells the user what to do.
    fn message(
        &mut self,
        holder: Option<&LockHolder>,
        digest: &Digest,
        completed: u64,
        now: Instant,
    ) -> String {
        if completed != self.completed {
            (self.completed, self.since) = (completed, now);
        }
        let description = holder.map_or("another process".into(), LockHolder::to_string);
        let description = format!("{description}, which fetches {}", digest.short());
        if !self.is_stalled(now) {
            return description;
        }
        let instruction = match holder.and_then(LockHolder::pid) {
            Some(pid) if cfg!(unix) => {
                format!("let it go on (`kill -CONT {pid}`) or end it (`kill -KILL {pid}`)")
            }
            _ => "let it go on or end it".into(),
        };
        format!(
            "{description}: it has brought nothing for {} s; {instruction}, and this pull goes on with what is there",
            self.timeout.as_secs()
        )
    }
}

/// Result of an attempt to lock a download.
enum LockAttempt {
    /// The blob exists.
    BlobExists(Option<File>),
    Acquired(BlobLock),
    /// Another process holds the lock, with its progress.
    HeldByOther(Option<LockHolder>, Option<ConcurrentDownload>),
}

impl LockAttempt {
    fn new(
        store: &Store,
        digest: &Digest,
        total: u64,
        partial_path: PartialPath,
    ) -> Result<Self, RegistryError> {
        let lock = store.lock_download_at(digest, partial_path)?;
        if store.pin_blob(digest, total) {
            return Ok(Self::BlobExists(File::open(store.blob_path(digest)).ok()));
        }
        if let Some(lock) = lock {
            return Ok(Self::Acquired(lock));
        }
        let concurrent = ConcurrentDownload::read(store, digest, total, partial_path)?;
        Ok(Self::HeldByOther(store.download_lock_holder(digest, partial_path), concurrent))
    }
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

    #[test]
    fn a_stalled_lock_holder_is_named_with_instructions() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        let digest = Digest::of(b"abc");
        let _lock = store.lock_download(&digest).unwrap();
        let holder = store.download_lock_holder(&digest, PartialPath::Primary);
        let begun = Instant::now();
        let mut wait =
            LockHolderWait { completed: 0, since: begun, timeout: Duration::from_secs(30) };
        let mut message = |completed, seconds| {
            wait.message(holder.as_ref(), &digest, completed, begun + Duration::from_secs(seconds))
        };
        let plain = message(0, 29);
        assert!(plain.ends_with(&format!(", which fetches {}", digest.short())), "{plain}");
        if cfg!(unix) {
            let pid = std::process::id();
            assert!(plain.starts_with(&format!("process {pid},")), "{plain}");
            assert!(message(0, 30).contains(&format!("`kill -CONT {pid}`")));
        }
        assert!(message(0, 31).contains("has brought nothing for 30 s"));
        assert_eq!(message(5, 32), plain, "it goes on");
        assert_eq!(message(5, 61), plain);
        assert!(message(5, 62).contains("has brought nothing for 30 s"));
    }
}
