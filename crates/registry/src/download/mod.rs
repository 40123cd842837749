//! Download of one blob: connections that fetch byte ranges, a thread that computes the digest, and
//! records of the completed ranges on disk.

mod concurrent;
mod connection;
mod connection_scaling;
mod hash;
pub(crate) mod positioned_io;
pub(crate) mod range_table;
pub(crate) mod resumable_sha256;
pub(crate) mod shared;
pub(crate) mod source;
#[cfg(test)]
mod tests;
mod throughput;

use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

use puna_store::{BlobLock, Digest, PartialBlob, PartialPath, Store, StoreError};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

use crate::blocking::blocking;
use crate::client::session::Session;
use crate::client::settings::Settings;
use crate::disk_space::check_free_space;
use crate::download::connection_scaling::{ConnectionScaling, INITIAL_CONNECTIONS};
use crate::download::positioned_io::file_id;
use crate::download::range_table::RangeTable;
use crate::download::resumable_sha256::Sha256State;
use crate::download::source::{BlobSource, DownloadSpec};
use crate::error::RegistryError;
use crate::lock::lock;
use concurrent::{ConcurrentDownload, acquire_download_lock, copy_concurrent_partial};
use hash::StopHashingOnDrop;

/// Bytes that are written or read at once.
const CHUNK_BYTES: usize = 1 << 20;
/// The first checkpoint comes after the checkpoint interval divided by this.
const FIRST_CHECKPOINT_DIVISOR: u32 = 16;
/// Additional connections for readers that wait for distant bytes.
const READER_CONNECTIONS: usize = 2;
/// How long an idle connection waits before it looks for a range again.
const IDLE_POLL_INTERVAL: Duration = Duration::from_millis(200);

/// State of a download, which its pulls and readers watch.
#[derive(Debug, Clone, Default)]
pub(crate) struct DownloadState {
    pub(crate) completed: u64,
    /// Set at the end: the digest of the bytes, or the error.
    pub(crate) result: Option<Result<Digest, RegistryError>>,
    /// How often the received bytes were wrong and discarded.
    pub(crate) generation: u64,
    /// The running download, if there is one.
    active: Weak<ActiveDownload>,
    /// Description of the other process that this download waits for.
    pub(crate) waiting_for: Option<String>,
    /// Progress of another process that downloads the same blob.
    concurrent: Option<Arc<ConcurrentDownload>>,
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
    fn restart(&mut self) {
        (self.generation, self.active, self.concurrent) = (self.generation + 1, Weak::new(), None);
    }
}

/// Running download, shared by its connections.
pub(crate) struct ActiveDownload {
    source: BlobSource,
    store: Arc<Store>,
    partial: PartialBlob,
    file: Arc<File>,
    digest: Digest,
    verified: bool,
    /// Lock of the download, held until the last byte is written, even if the download was
    /// cancelled.
    lock: Arc<BlobLock>,
    table: Mutex<RangeTable>,
    /// State of the digest's computation.
    hash_state: Mutex<Option<Sha256State>>,
    /// Bytes of the last hash state that is on disk.
    saved_hash_bytes: AtomicU64,
    /// Notified when bytes were written.
    bytes_written: Condvar,
    /// Notified at the first response, which shows whether the server supports ranges.
    first_response: Notify,
    /// The server does not support range requests.
    ranges_unsupported: AtomicBool,
    /// Tells the hashing thread to stop.
    cancelled: AtomicBool,
    connections: AtomicUsize,
    started: Instant,
    received_bytes: Mutex<u64>,
    state: watch::Sender<DownloadState>,
    /// Notified when a reader waits for distant bytes.
    range_requested: Notify,
}

/// Downloads a blob into the store and resumes earlier downloads. Ends when nobody watches `state`
/// any more.
pub(crate) async fn run_download(
    session: Arc<Session>,
    store: Arc<Store>,
    spec: DownloadSpec,
    state: &watch::Sender<DownloadState>,
) -> Result<Digest, RegistryError> {
    let (digest, total, min_range_bytes) =
        (spec.key, spec.total, session.settings().min_range_bytes);
    let lock_holder_timeout = session.settings().lock_holder_timeout;
    let Some((lock, partial_path)) =
        acquire_download_lock(&store, digest, total, lock_holder_timeout, state).await?
    else {
        return Ok(digest);
    };
    let lock = Arc::new(lock);
    let mut is_first = true;
    loop {
        let store_handle = store.clone();
        // After a damaged copy of another process's bytes, the second attempt copies nothing.
        let copy_concurrent =
            std::mem::take(&mut is_first) && partial_path == PartialPath::Secondary;
        let partial_file = blocking(move || {
            PartialFile::open(
                &store_handle,
                &digest,
                total,
                min_range_bytes,
                partial_path,
                copy_concurrent,
            )
        })
        .await?;
        let (resumed, file_id) = (partial_file.table.is_resumed(), partial_file.file_id);
        let source = BlobSource::new(session.clone(), &spec);
        let active =
            Arc::new(ActiveDownload::new(source, &store, &spec, lock.clone(), partial_file, state));
        let completed = active.table().completed();
        state.send_modify(|state| {
            // The other process may have restarted its download before it ended.
            state.follow_to(file_id);
            // The copy of the other process's bytes is complete.
            state.waiting_for = None;
            (state.completed, state.active) = (completed, Arc::downgrade(&active));
        });
        let error = match active.run().await {
            Err(error @ RegistryError::DigestMismatch { .. }) => error,
            Err(error @ RegistryError::SizeMismatch { .. }) if active.table().completed() == 0 => {
                // Nothing has arrived, and the registry has no blob of this size.
                let partial = active.partial.clone();
                blocking(move || Ok(partial.discard()?)).await?;
                return Err(error);
            }
            ended => return ended,
        };
        state.send_modify(DownloadState::restart);
        let partial = active.partial.clone();
        blocking(move || Ok(partial.discard()?)).await?;
        // A power failure may have lost recorded bytes. The second attempt fetches all of them.
        if !resumed {
            return Err(error);
        }
        tracing::warn!(%error, "what an interrupted download left was damaged: downloading anew");
    }
}

/// Files of a download on disk: data, and the records of completed ranges.
struct PartialFile {
    partial: PartialBlob,
    table: RangeTable,
    file: File,
    /// Id of the file whose bytes readers may have seen.
    file_id: Option<u64>,
}

impl PartialFile {
    fn open(
        store: &Store,
        digest: &Digest,
        total: u64,
        min_range_bytes: u64,
        partial_path: PartialPath,
        copy_concurrent: bool,
    ) -> Result<Self, RegistryError> {
        let partial = store.partial_at(digest, partial_path)?;
        let copied_file_id = if copy_concurrent {
            copy_concurrent_partial(store, digest, &partial, total)?
        } else {
            None
        };
        let table = open_table(&partial, total, min_range_bytes)?;
        check_free_space(store, &digest.to_string(), total - table.completed())?;
        let file = open_data(&partial, total)?;
        let file_id = copied_file_id.or_else(|| file_id(&file));
        Ok(Self { partial, table, file, file_id })
    }
}

/// Reads the range table of an earlier download, or plans a new one.
fn open_table(
    partial: &PartialBlob,
    total: u64,
    min_range_bytes: u64,
) -> Result<RangeTable, RegistryError> {
    let Some(table) = RangeTable::load(partial, total)? else {
        partial.discard()?;
        return Ok(RangeTable::plan(total, min_range_bytes));
    };
    let current = table.record_numbers();
    for n in partial.parts()?.into_iter().filter(|n| !current.contains(n)) {
        partial.remove_part(n)?;
    }
    Ok(table)
}

fn open_data(partial: &PartialBlob, total: u64) -> Result<File, StoreError> {
    let path = partial.data();
    let open = || {
        let file =
            File::options().read(true).write(true).create(true).truncate(false).open(path)?;
        file.set_len(total)?;
        Ok(file)
    };
    open().map_err(|e| StoreError::io("write", path, &e))
}

impl ActiveDownload {
    fn new(
        source: BlobSource,
        store: &Arc<Store>,
        spec: &DownloadSpec,
        lock: Arc<BlobLock>,
        partial_file: PartialFile,
        state: &watch::Sender<DownloadState>,
    ) -> Self {
        let PartialFile { partial, table, file, .. } = partial_file;
        Self {
            source,
            store: store.clone(),
            partial,
            file: Arc::new(file),
            digest: spec.key,
            verified: spec.verified,
            lock,
            table: Mutex::new(table),
            hash_state: Mutex::new(None),
            saved_hash_bytes: AtomicU64::new(0),
            bytes_written: Condvar::new(),
            first_response: Notify::new(),
            ranges_unsupported: AtomicBool::new(false),
            cancelled: AtomicBool::new(false),
            connections: AtomicUsize::new(0),
            started: Instant::now(),
            received_bytes: Mutex::new(0),
            state: state.clone(),
            range_requested: Notify::new(),
        }
    }

    async fn run(self: &Arc<Self>) -> Result<Digest, RegistryError> {
        self.checkpoint().await?;
        let hashing = {
            let active = self.clone();
            tokio::task::spawn_blocking(move || active.hash())
        };
        // Stops the hashing thread in any case, also if this future is dropped.
        let _hashing = StopHashingOnDrop(self);
        let fetched = async {
            tokio::select! {
                fetched = self.fetch() => fetched,
                () = self.state.closed() => Err(RegistryError::Cancelled),
            }
        };
        // A disk read error ends the download at once.
        let hashed = async { hashing.await.map_err(|e| RegistryError::Setup(e.to_string()))? };
        let got = match tokio::try_join!(fetched, hashed) {
            Ok(((), got)) => got.unwrap_or_else(|| Digest::of(b"")),
            Err(error) => {
                // The next attempt resumes from what has arrived.
                self.checkpoint().await?;
                return Err(error);
            }
        };
        if self.verified && got != self.digest {
            return Err(RegistryError::DigestMismatch { want: self.digest, got });
        }
        let active = self.clone();
        blocking(move || Ok(active.store.finish_partial(&active.partial, &got)?)).await?;
        Ok(got)
    }

    /// Runs connections until all ranges are complete, with checkpoints and scaling.
    async fn fetch(self: &Arc<Self>) -> Result<(), RegistryError> {
        let mut connections = JoinSet::new();
        let spawn = |connections: &mut JoinSet<_>| {
            self.connections.fetch_add(1, Ordering::Relaxed);
            connections.spawn(self.clone().run_connection());
        };
        if !self.table().is_complete() {
            spawn(&mut connections);
        }
        // The first checkpoint is early so that short downloads can resume too. Then the interval
        // doubles up to the configured one.
        let mut interval = self.settings().checkpoint_interval / FIRST_CHECKPOINT_DIVISOR;
        let mut next_checkpoint = Instant::now() + interval;
        let (mut is_single, mut scaling) = (true, ConnectionScaling::new(1));
        loop {
            tokio::select! {
                done = connections.join_next() => match done {
                    None if self.table().is_complete() => return Ok(()),
                    // The last connection released a range that it could not fetch.
                    None => spawn(&mut connections),
                    Some(done) => done.map_err(|e| RegistryError::Setup(e.to_string()))??,
                },
                () = self.first_response.notified(), if is_single => {
                    is_single = false;
                    let limit = match self.ranges_unsupported.load(Ordering::Relaxed) {
                        true => 1,
                        false => self.source.session().connection_limit(),
                    };
                    scaling = ConnectionScaling::new(limit);
                    (1..limit.min(INITIAL_CONNECTIONS)).for_each(|_| spawn(&mut connections));
                }
                // Running connections finish their ranges first, so a new connection fetches the
                // requested bytes.
                () = self.range_requested.notified(), if !is_single => {
                    let limit = self.source.session().connection_limit() + READER_CONNECTIONS;
                    let ranges_unsupported = self.ranges_unsupported.load(Ordering::Relaxed);
                    if !ranges_unsupported && self.connections.load(Ordering::Relaxed) < limit {
                        spawn(&mut connections);
                    }
                }
                () = tokio::time::sleep_until(scaling.next_check.into()),
                    if scaling.is_active() =>
                {
                    let running = self.connections.load(Ordering::Relaxed);
                    let more = scaling.connections_to_add(*lock(&self.received_bytes), running);
                    (0..more).for_each(|_| spawn(&mut connections));
                }
                () = tokio::time::sleep_until(next_checkpoint.into()) => {
                    self.checkpoint().await?;
                    interval = (interval * 2).min(self.settings().checkpoint_interval);
                    next_checkpoint = Instant::now() + interval;
                }
            }
        }
    }

    /// Makes the received bytes durable, then records them on disk.
    async fn checkpoint(self: &Arc<Self>) -> Result<(), RegistryError> {
        // The hash state is read before the records, so that the recorded bytes include the hashed
        // ones.
        let hash_state = lock(&self.hash_state).clone();
        let records = self.table().unsaved_records();
        if records.is_empty() {
            return Ok(());
        }
        let active = self.clone();
        blocking(move || {
            active.file.sync_data().map_err(|e| active.io(&e))?;
            // A full disk may have space for some of the records; each saves bytes of the next
            // attempt.
            let mut failed = None;
            for record in records {
                match active.partial.write_part(record.n, &record.to_bytes()) {
                    Ok(()) => active.table().mark_saved(record),
                    Err(error) => failed = failed.or(Some(error)),
                }
            }
            if let Some(error) = failed {
                return Err(error.into());
            }
            if let Some(hash_state) = hash_state.filter(|hash_state| {
                hash_state.at > active.saved_hash_bytes.load(Ordering::Relaxed)
            }) {
                let text = serde_json::to_vec(&hash_state)
                    .map_err(|e| RegistryError::Setup(e.to_string()))?;
                active.partial.write_hash_state(&text)?;
                active.saved_hash_bytes.store(hash_state.at, Ordering::Relaxed);
            }
            // The check for space comes last, so that progress is recorded on a full disk too.
            let left = {
                let table = active.table();
                table.total() - table.completed()
            };
            check_free_space(&active.store, &active.digest.to_string(), left)
        })
        .await
    }

    fn publish_progress(&self) {
        let completed = self.table().completed();
        self.state.send_modify(|state| state.completed = completed);
    }

    fn table(&self) -> MutexGuard<'_, RangeTable> {
        lock(&self.table)
    }

    fn settings(&self) -> &Settings {
        self.source.session().settings()
    }

    fn io(&self, error: &io::Error) -> RegistryError {
        StoreError::io("write", self.partial.data(), error).into()
    }
}
