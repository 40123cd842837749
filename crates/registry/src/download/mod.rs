//! Download of one blob: connections that fetch byte ranges, a thread that computes the digest, and
//! records of the completed ranges on disk.

mod active;
mod concurrent;
mod connection;
mod connection_scaling;
mod download_lock;
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
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Instant;

use puna_store::{BlobLock, Digest, PartialBlob, PartialPath, Store};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

use crate::blocking::blocking;
use crate::client::session::Session;
use crate::disk_space::check_free_space;
use crate::download::connection_scaling::{ConnectionScaling, INITIAL_CONNECTIONS};
use crate::download::positioned_io::file_id;
use crate::download::range_table::RangeTable;
use crate::download::source::{BlobSource, DownloadSpec};
use crate::error::{RegistryError, SetupProblem};
use crate::lock::lock;
use active::ActiveDownload;
pub(crate) use active::DownloadState;
use concurrent::{copy_concurrent_partial, open_data};
use download_lock::acquire_download_lock;
use hash::StopHashingOnDrop;

/// The first checkpoint comes after the checkpoint interval divided by this.
const FIRST_CHECKPOINT_DIVISOR: u32 = 16;
/// Additional connections for readers that wait for distant bytes.
const READER_CONNECTIONS: usize = 2;

/// Downloads a blob into the store and resumes earlier downloads. Ends when `state` has no
/// receivers left.
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
        acquire_download_lock(&store, &spec, lock_holder_timeout, state).await?
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
        tracing::warn!(%error, "partial file of an interrupted download is damaged; downloading again");
    }
}

/// Files of a download on disk: data, and the records of completed ranges.
struct PartialFile {
    partial: PartialBlob,
    table: RangeTable,
    file: File,
    /// Id of the file from which readers may have seen bytes.
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
        let hashed = async { hashing.await.map_err(SetupProblem::from)? };
        let got = match tokio::try_join!(fetched, hashed) {
            Ok(((), got)) => got.unwrap_or_else(|| Digest::of(b"")),
            Err(error) => {
                // The next attempt resumes from the received bytes.
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
                    Some(done) => done.map_err(SetupProblem::from)??,
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
                let text = serde_json::to_vec(&hash_state).map_err(SetupProblem::from)?;
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
}
