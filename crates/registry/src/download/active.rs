//! A running download and its state, which connections, the hashing thread and readers share.

use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

use puna_store::{BlobLock, Digest, PartialBlob, Store, StoreError};
use tokio::sync::{Notify, watch};

use super::concurrent::ConcurrentDownload;
use crate::client::settings::Settings;
use crate::download::range_table::RangeTable;
use crate::download::resumable_sha256::Sha256State;
use crate::download::source::BlobSource;
use crate::error::RegistryError;
use crate::lock::lock;

/// How long an idle connection waits before it looks for a range again.
pub(super) const IDLE_POLL_INTERVAL: Duration = Duration::from_millis(200);

/// State of a download, which its pulls and readers watch.
#[derive(Debug, Clone, Default)]
pub(crate) struct DownloadState {
    pub(crate) completed: u64,
    /// Set at the end: the digest of the bytes, or the error.
    pub(crate) result: Option<Result<Digest, RegistryError>>,
    /// How often the received bytes were wrong and discarded.
    pub(crate) generation: u64,
    /// The running download, if there is one.
    pub(super) active: Weak<ActiveDownload>,
    /// Description of the other process that this download waits for.
    pub(crate) waiting_for: Option<String>,
    /// Progress of another process that downloads the same blob.
    pub(super) concurrent: Option<Arc<ConcurrentDownload>>,
    /// Another process stored the blob. It may be Ollama, which names blobs before it verifies
    /// them.
    pub(crate) is_unverified: bool,
}

impl DownloadState {
    /// Whether this process is downloading.
    pub(crate) fn is_at_work(&self) -> bool {
        self.active.strong_count() > 0
    }

    /// Requests that a byte is fetched before others.
    pub(crate) fn request_byte(&self, offset: u64) {
        if let Some(active) = self.active.upgrade()
            && active.table().request_byte(offset)
        {
            active.range_requested.notify_one();
        }
    }

    /// The file that has contiguous bytes starting at `from`, and their end. `None`: the byte has
    /// not arrived. The result is the file of this download, even if another file has its name by
    /// now.
    pub(crate) fn available_from(&self, from: u64) -> Option<(Arc<File>, u64)> {
        let (file, until) = match (self.active.upgrade(), &self.concurrent) {
            (Some(active), _) => (active.file.clone(), active.table().contiguous_end(from)),
            (None, Some(concurrent)) => concurrent.available_from(from),
            (None, None) => return None,
        };
        (until > from).then_some((file, until))
    }

    /// Starts a new generation: readers have seen wrong bytes.
    pub(super) fn restart(&mut self) {
        (self.generation, self.active, self.concurrent) = (self.generation + 1, Weak::new(), None);
    }

    /// Takes over the progress that another process has recorded.
    pub(super) fn follow(&mut self, concurrent: Option<ConcurrentDownload>) {
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

/// Running download, shared by its connections.
pub(crate) struct ActiveDownload {
    pub(super) source: BlobSource,
    pub(super) store: Arc<Store>,
    pub(super) partial: PartialBlob,
    pub(super) file: Arc<File>,
    pub(super) digest: Digest,
    pub(super) verified: bool,
    /// Lock of the download, held until the last byte is written, even if the download was
    /// cancelled.
    pub(super) lock: Arc<BlobLock>,
    pub(super) table: Mutex<RangeTable>,
    /// State of the digest's computation.
    pub(super) hash_state: Mutex<Option<Sha256State>>,
    /// Bytes of the last hash state that is on disk.
    pub(super) saved_hash_bytes: AtomicU64,
    /// Notified when bytes were written.
    pub(super) bytes_written: Condvar,
    /// Notified at the first response, which shows whether the server supports ranges.
    pub(super) first_response: Notify,
    /// The server does not support range requests.
    pub(super) ranges_unsupported: AtomicBool,
    /// Tells the hashing thread to stop.
    pub(super) cancelled: AtomicBool,
    pub(super) connections: AtomicUsize,
    pub(super) started: Instant,
    pub(super) received_bytes: Mutex<u64>,
    pub(super) state: watch::Sender<DownloadState>,
    /// Notified when a reader waits for distant bytes.
    pub(super) range_requested: Notify,
}

impl ActiveDownload {
    pub(super) fn table(&self) -> MutexGuard<'_, RangeTable> {
        lock(&self.table)
    }

    pub(super) fn settings(&self) -> &Settings {
        self.source.session().settings()
    }

    pub(super) fn io(&self, error: &io::Error) -> RegistryError {
        StoreError::io("write", self.partial.data(), error).into()
    }
}
