//! The lock of a download, and the wait for another process that holds it.
//!
//! A stopped process (`SIGSTOP`) keeps its files: it would continue to write them, and two writers
//! would corrupt them. After a timeout, another process downloads to its own files, which start as
//! a copy of the recorded bytes. Whichever finishes first stores the blob. The other process stores
//! the same bytes under the same name if it continues.
//!
//! A running process may need time without progress, for a slow registry or a digest. After a
//! longer timeout, it is bypassed too. Where the disk has no space for a copy, the wait ends with
//! an error.

use std::fs::File;
use std::sync::Arc;
use std::time::{Duration, Instant};

use puna_store::{BlobLock, Digest, LockHolder, PartialPath, Store};
use tokio::sync::watch;

use super::active::{DownloadState, IDLE_POLL_INTERVAL};
use super::concurrent::ConcurrentDownload;
use crate::blocking::blocking;
use crate::disk_space::check_free_space;
use crate::download::positioned_io::file_id;
use crate::download::range_table::RangeTable;
use crate::download::source::DownloadSpec;
use crate::error::RegistryError;

/// Time without progress after which a running lock holder is bypassed, as a multiple of the
/// timeout for a stopped one.
pub(super) const EXPIRY_FACTOR: u32 = 20;

/// Whether the disk has space for a separate download: the whole blob, less the bytes of an
/// earlier separate download.
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

/// Waits for the lock of a download. Returns the lock and its path, or `None` if another process
/// has finished the blob. A private download ignores a stored blob, and has no secondary path.
///
/// If the lock holder is stopped and has made no progress for `timeout`, this process takes the
/// secondary path, given enough disk space. Without space, the status tells the user how to
/// continue. A running holder has [`EXPIRY_FACTOR`] times as long.
///
/// # Errors
/// The store cannot be written, the download is cancelled, or after the longer time there is no
/// space, or a third process holds the secondary path.
pub(super) async fn acquire_download_lock(
    store: &Arc<Store>,
    spec: &DownloadSpec,
    timeout: Duration,
    state: &watch::Sender<DownloadState>,
) -> Result<Option<(BlobLock, PartialPath)>, RegistryError> {
    let (digest, total) = (spec.key, spec.total);
    let (mut wait, mut partial_path, mut bypassed_holder) =
        (LockHolderWait::new(timeout), spec.partial_path(), None);
    loop {
        let at = store.clone();
        let attempt = blocking(move || LockAttempt::new(&at, &digest, total, partial_path)).await?;
        if !matches!(attempt, LockAttempt::HeldByOther(..)) {
            let holder =
                bypassed_holder.as_ref().filter(|_| matches!(attempt, LockAttempt::Acquired(_)));
            let copying = holder.map(|holder| format!("a copy of the data of {holder}"));
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
                let is_expired = wait.is_expired(now);
                let is_stopped = || holder.as_ref().is_some_and(LockHolder::is_stopped);
                if partial_path == PartialPath::Primary
                    && (is_expired || wait.is_stalled(now) && is_stopped())
                    && has_space_for_copy(store, digest, total).await?
                {
                    tracing::info!(holder = holder_name(holder.as_ref()), %digest, "lock holder makes no progress; downloading to a second file");
                    (wait, partial_path, bypassed_holder) =
                        (LockHolderWait::new(timeout), PartialPath::Secondary, holder);
                    continue;
                }
                if is_expired {
                    return Err(wait.expired_error(holder.as_ref(), &digest));
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

    /// Whether there has been no progress for [`EXPIRY_FACTOR`] timeouts.
    fn is_expired(&self, now: Instant) -> bool {
        now.duration_since(self.since) >= self.timeout.saturating_mul(EXPIRY_FACTOR)
    }

    /// Error that names the holder and tells the user what to do.
    fn expired_error(&self, holder: Option<&LockHolder>, digest: &Digest) -> RegistryError {
        RegistryError::DownloadLocked {
            digest: digest.short(),
            holder: holder_name(holder),
            seconds: self.timeout.saturating_mul(EXPIRY_FACTOR).as_secs(),
        }
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
        let description = format!("{}, which fetches {}", holder_name(holder), digest.short());
        if !self.is_stalled(now) {
            return description;
        }
        let instruction = match holder.and_then(LockHolder::pid) {
            Some(pid) if cfg!(unix) => {
                format!("resume it (`kill -CONT {pid}`) or end it (`kill -KILL {pid}`)")
            }
            _ => "resume it or end it".into(),
        };
        format!(
            "{description}: no progress for {} s; {instruction}, and this pull continues with its data",
            self.timeout.as_secs()
        )
    }
}

/// Name of a lock holder in messages.
fn holder_name(holder: Option<&LockHolder>) -> String {
    holder.map_or("another process".into(), LockHolder::to_string)
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
        let is_private = matches!(partial_path, PartialPath::Private(_));
        if !is_private && store.pin_blob(digest, total) {
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
        assert!(message(0, 31).contains("no progress for 30 s"));
        assert_eq!(message(5, 32), plain, "it goes on");
        assert_eq!(message(5, 61), plain);
        assert!(message(5, 62).contains("no progress for 30 s"));
    }
}
