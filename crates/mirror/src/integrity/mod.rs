//! Verifies that the content of stored blobs matches their digest. Disks may return wrong bytes, or
//! none, without a sign before the read. Another program that shares the directory may name files
//! before their content is verified.
//!
//! So a blob is read once more when a client first reads it. Until the check is done, no client
//! gets its last byte, so that a damaged blob is never served whole. A damaged blob is quarantined
//! and no longer served; a pull-through cache fetches it again. The result is remembered by file
//! until the file is written to or the process ends. It is not stored, because an earlier result
//! says nothing about what the disk returns now.
//!
//! Small blobs are checked before their first byte is served. Background threads check large ones:
//! a slice for each client in turn, and of each of its blobs in turn.

mod check_queue;
mod file_check;

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use puna_store::{FileFingerprint, same_file, sync_dir, touch};

use crate::auth::ClientId;
use crate::error::MirrorError;
use crate::locks::lock;
use crate::storage::fs::registry_dir::{self, RegistryDir, none_if_absent};
use crate::types::shared_table::{SharedTable, TableLimit};
use check_queue::CheckQueue;
pub(crate) use file_check::{BlobFile, PendingCheck};
use file_check::{CheckOutcome, FileCheck, ReadAt, read_some_at};

/// Largest number of remembered files.
const MAX_REMEMBERED_FILES: usize = 100_000;

/// How long an intact file is not checked again although its modification time changed. Pulls touch
/// the blobs they find, and reading a large model each time would be too slow.
const RECHECK_INTERVAL: Duration = Duration::from_secs(60 * 60);

/// Largest number of checking threads.
const MAX_THREADS: usize = 4;

/// Description of the integrity checks.
pub(crate) static BLOB_CHECKS: SharedTable = SharedTable {
    name: "mirror: integrity checks of served blobs",
    holders: &["puna_mirror::integrity::Inner"],
    limits: &[TableLimit::Entries(MAX_REMEMBERED_FILES)],
    shares: &[TableLimit::Rule("clients take turns")],
    when_full: "old results are dropped; the blob is checked again",
    test: "clients_take_turns",
};

/// Parameters of the checks.
#[derive(Debug, Clone, Copy)]
struct CheckSettings {
    recheck_interval: Duration,
    /// Largest size of a blob, in bytes, that is checked before its first byte is served.
    small_blob_bytes: u64,
    /// Bytes of a blob that are read before the next blob has its turn.
    slice_bytes: u64,
    threads: usize,
}

impl Default for CheckSettings {
    fn default() -> Self {
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get().min(MAX_THREADS));
        Self {
            recheck_interval: RECHECK_INTERVAL,
            small_blob_bytes: 1 << 20,
            slice_bytes: 64 << 20,
            threads,
        }
    }
}

/// Checks blobs when they are served. Cheap to clone.
#[derive(Clone)]
pub(crate) struct IntegrityChecker(Arc<Inner>);

struct Inner {
    registry: RegistryDir,
    settings: CheckSettings,
    read: Box<ReadAt>,
    state: Mutex<CheckState>,
    /// Number of quarantined blobs.
    damaged_count: AtomicU64,
}

#[derive(Default)]
struct CheckState {
    /// Results by digest and file, without file times.
    records: HashMap<BlobFile, CheckRecord>,
    /// Checks in progress, except the ones that a thread works on.
    queue: CheckQueue,
    threads: usize,
}

/// Result of a check, with the state of the file.
struct CheckRecord {
    stamp: FileFingerprint,
    verdict: Verdict,
    at: Instant,
}

enum Verdict {
    /// The check is in progress.
    Pending(PendingCheck),
    Intact,
    Damaged,
}

impl CheckState {
    /// Returns the verdict on a file if the file is unchanged.
    fn verdict(&self, blob_file: &BlobFile) -> Option<&Verdict> {
        let record = self.records.get(&blob_file.key())?;
        record.stamp.same_content_as(&blob_file.stamp).then_some(&record.verdict)
    }

    fn set_verdict(&mut self, blob_file: &BlobFile, verdict: Verdict) {
        let record = CheckRecord { stamp: blob_file.stamp, verdict, at: Instant::now() };
        self.records.insert(blob_file.key(), record);
    }

    /// Whether a file was found intact and needs no check now.
    fn is_intact(&self, blob_file: &BlobFile, recheck_interval: Duration) -> bool {
        self.records.get(&blob_file.key()).is_some_and(|record| {
            matches!(record.verdict, Verdict::Intact)
                && (record.stamp.same_content_as(&blob_file.stamp)
                    || record.at.elapsed() < recheck_interval)
        })
    }

    fn is_damaged(&self, blob_file: &BlobFile) -> bool {
        matches!(self.verdict(blob_file), Some(Verdict::Damaged))
    }

    /// Removes results that a new check can restore.
    fn evict_if_full(&mut self) {
        let is_intact = |record: &CheckRecord| matches!(record.verdict, Verdict::Intact);
        let is_damaged = |record: &CheckRecord| matches!(record.verdict, Verdict::Damaged);
        for is_one in [is_intact, is_damaged] {
            if self.records.len() >= MAX_REMEMBERED_FILES {
                self.records.retain(|_, record| !is_one(record));
            }
        }
    }
}

impl IntegrityChecker {
    pub(crate) fn new(registry: RegistryDir) -> Self {
        Self::with_reader(registry, CheckSettings::default(), Box::new(read_some_at))
    }

    fn with_reader(registry: RegistryDir, settings: CheckSettings, read: Box<ReadAt>) -> Self {
        Self(Arc::new(Inner {
            registry,
            settings,
            read,
            state: Mutex::default(),
            damaged_count: AtomicU64::new(0),
        }))
    }

    /// Number of quarantined blobs.
    pub(crate) fn damaged_blob_count(&self) -> u64 {
        self.0.damaged_count.load(Ordering::Relaxed)
    }

    /// Whether a blob of `size` bytes may be served: not if it is known to be damaged. A small blob
    /// is checked first, which blocks on the disk.
    pub(crate) fn may_serve(&self, blob_file: BlobFile, file: &Arc<File>, size: u64) -> bool {
        if size <= self.0.settings.small_blob_bytes {
            self.check_now(blob_file, file);
        }
        !lock(&self.0.state).is_damaged(&blob_file)
    }

    /// Checks a file on this thread, unless it was checked before.
    fn check_now(&self, blob_file: BlobFile, file: &Arc<File>) {
        {
            let state = lock(&self.0.state);
            if state.is_intact(&blob_file, self.0.settings.recheck_interval)
                || state.is_damaged(&blob_file)
            {
                return;
            }
        }
        let mut check = FileCheck::new(blob_file, file, ClientId::current());
        loop {
            if let Some(outcome) = check.step(&self.0.registry, &*self.0.read, u64::MAX) {
                return self.finish(&check, outcome);
            }
        }
    }

    /// Starts the check of a blob that a client reads. Returns the running check; `None` if the
    /// blob is known to be intact.
    pub(crate) fn start_check(
        &self,
        blob_file: BlobFile,
        file: &Arc<File>,
    ) -> Option<PendingCheck> {
        let mut state = lock(&self.0.state);
        if state.is_intact(&blob_file, self.0.settings.recheck_interval) {
            return None;
        }
        match state.records.get(&blob_file.key()).map(|record| &record.verdict) {
            Some(Verdict::Pending(pending)) => {
                let pending = pending.clone();
                state.queue.move_to_client(&blob_file, &ClientId::current());
                return Some(pending);
            }
            Some(Verdict::Damaged) if state.is_damaged(&blob_file) => {
                return Some(PendingCheck::finished(CheckOutcome::Damaged(
                    "an earlier check found the damage".into(),
                )));
            }
            _ => {}
        }
        let check = FileCheck::new(blob_file, file, ClientId::current());
        let pending = check.pending();
        state.evict_if_full();
        state.set_verdict(&blob_file, Verdict::Pending(pending.clone()));
        state.queue.push(check);
        if state.threads < self.0.settings.threads {
            let checks = self.clone();
            let begun =
                std::thread::Builder::new().name("puna-check".into()).spawn(move || checks.work());
            match begun {
                Ok(_) => state.threads += 1,
                Err(error) => {
                    tracing::warn!(%error, "cannot start a thread that verifies blobs");
                    if state.threads == 0 {
                        // Dropping the check wakes those that wait for it.
                        state.queue.remove(&blob_file);
                        state.records.remove(&blob_file.key());
                    }
                }
            }
        }
        Some(pending)
    }

    /// Discards the verdict on a blob after a read error, and starts a new check.
    pub(crate) fn recheck(&self, blob_file: BlobFile, file: &Arc<File>) {
        let mut state = lock(&self.0.state);
        if matches!(state.verdict(&blob_file), Some(Verdict::Intact)) {
            state.records.remove(&blob_file.key());
        }
        drop(state);
        self.start_check(blob_file, file);
    }

    /// Runs queued checks, a slice for each client in turn.
    fn work(&self) {
        lower_thread_priority();
        loop {
            let mut check = {
                let mut state = lock(&self.0.state);
                let Some(check) = state.queue.pop() else {
                    state.threads -= 1;
                    return;
                };
                check
            };
            match check.step(&self.0.registry, &*self.0.read, self.0.settings.slice_bytes) {
                None => lock(&self.0.state).queue.push(check),
                Some(outcome) => self.finish(&check, outcome),
            }
        }
    }

    /// Records the outcome of a check.
    fn finish(&self, check: &FileCheck, outcome: CheckOutcome) {
        let blob_file = &check.blob_file;
        match &outcome {
            CheckOutcome::Intact => lock(&self.0.state).set_verdict(blob_file, Verdict::Intact),
            CheckOutcome::Damaged(reason) => self.quarantine(blob_file, reason),
            CheckOutcome::Replaced => self.forget(blob_file),
            CheckOutcome::Failed(error) => {
                tracing::error!(digest = %blob_file.digest, error, "cannot verify blob");
                self.forget(blob_file);
            }
        }
        check.send(outcome);
    }

    fn forget(&self, blob_file: &BlobFile) {
        lock(&self.0.state).records.remove(&blob_file.key());
    }

    /// Moves a damaged blob to the directory for damaged blobs, where an administrator can inspect
    /// it.
    fn quarantine(&self, blob_file: &BlobFile, reason: &str) {
        let (registry, digest) = (&self.0.registry, &blob_file.digest);
        // A damaged file that can be neither moved nor skipped must not be served either.
        lock(&self.0.state).set_verdict(blob_file, Verdict::Damaged);
        let guard = registry.lock_writes();
        if let Err(error) = &guard {
            tracing::warn!(%digest, %error, "cannot lock the registry; moving a damaged blob without the lock");
        }
        let there = |place: &PathBuf| {
            FileFingerprint::at(place).is_some_and(|stamp| stamp.same_content_as(&blob_file.stamp))
        };
        let paths = registry.blob_paths(digest).into_iter().filter(there);
        let (own, others): (Vec<_>, Vec<_>) =
            paths.partition(|place| place.starts_with(registry.store.root()));
        let (mut away, mut found) = (None, !others.is_empty());
        for place in own {
            match registry.move_to_damaged(&place, blob_file) {
                Ok(to) => away = to.or(away),
                Err(error) => {
                    found = true;
                    tracing::error!(%digest, %error, "cannot move damaged blob");
                }
            }
        }
        for place in others {
            tracing::error!(%digest, place = %place.display(), "damaged blob stays in a read-only folder; ignoring its file");
            registry.store.ignore_blob_file(place, blob_file.stamp);
        }
        if !found && away.is_none() {
            // Another file has taken its place.
            return self.forget(blob_file);
        }
        self.0.damaged_count.fetch_add(1, Ordering::Relaxed);
        // Cleanup goes by this time. It is set only now, because all hard links of the file share
        // it.
        away.iter().for_each(|away: &PathBuf| touch(away));
        let away = away.unwrap_or_default();
        tracing::error!(%digest, reason, away = %away.display(), "stopped serving damaged blob; pull or push it again if no upstream has it");
    }
}

impl RegistryDir {
    /// Moves a damaged file to the directory for damaged blobs and returns its new path. If another
    /// file has just taken its place, that file is restored.
    fn move_to_damaged(
        &self,
        place: &Path,
        blob_file: &BlobFile,
    ) -> Result<Option<PathBuf>, MirrorError> {
        let dir = self.damaged();
        fs::create_dir_all(&dir).map_err(registry_dir::io_error("create the folder", &dir))?;
        let to = dir.join(blob_file.digest.file_name());
        let moving = to.with_extension("moving");
        // Removes the file of a killed process. A rename between two hard links of one file would
        // do nothing.
        registry_dir::remove_file(&moving)?;
        if none_if_absent(fs::rename(place, &moving), "move", place)?.is_none() {
            return Ok(None);
        }
        if !FileFingerprint::at(&moving)
            .is_some_and(|stamp| stamp.same_content_as(&blob_file.stamp))
        {
            // If a third file has taken the place meanwhile, it stays.
            match fs::hard_link(&moving, place) {
                Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
                    fs::rename(&moving, place).map_err(registry_dir::io_error("move", &moving))?;
                }
                _ => _ = registry_dir::remove_file(&moving)?,
            }
            return Ok(None);
        }
        match same_file(&moving, &to) {
            true => _ = registry_dir::remove_file(&moving)?,
            false => fs::rename(&moving, &to).map_err(registry_dir::io_error("move", &moving))?,
        }
        sync_dir(&dir);
        Ok(Some(to))
    }
}

/// Lowers the priority of the thread a little; clients wait for its results.
fn lower_thread_priority() {
    // On Linux this applies to the calling thread only.
    #[cfg(target_os = "linux")]
    let _ = rustix::process::setpriority_process(None, 5);
}

#[cfg(test)]
mod tests;
