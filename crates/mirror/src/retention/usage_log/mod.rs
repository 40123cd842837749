//! Usage log: when tags and manifests arrived in the storage and when they were last pulled.
//!
//! Each mirror process writes its records to its own notes in the storage and reads the notes of
//! the others. So no process overwrites records of another one. Notes of processes that have ended
//! are merged after a day.

mod record;
mod sync;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use puna_store::{Digest, Entry};
use tokio::sync::Notify;

use crate::error::MirrorError;
use crate::locks::lock;
use crate::storage::note_store::NoteStore;
use crate::types::repository::{Reference, Repository};
use crate::types::upload_id::UploadId;
use record::{Record, RecordTable};

pub(crate) use record::{ChangeSource, USAGE_RECORDS};

/// Seconds of a day.
pub(crate) const SECONDS_PER_DAY: u64 = 24 * 60 * 60;
/// How much later than its record a mirror may write a model, in seconds. A model that was written
/// later was written by another program.
const WRITE_SLACK_SECONDS: u64 = 60;
/// Pulls of an item within a minute count as one.
const SECONDS_PER_MINUTE: u64 = 60;
/// A newer item that arrived this recently may have arrived after the caller read the storage.
const SCAN_OVERLAP_SECONDS: u64 = 60 * SECONDS_PER_MINUTE;
/// Start of 2025. An earlier time comes from a clock that was not set, and is ignored.
const MIN_VALID_TIME: u64 = 1_735_689_600;

/// Returns the current time.
pub(crate) type Clock = Arc<dyn Fn() -> SystemTime + Send + Sync>;

/// Arrival and last use of an item, in seconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct UsageTimes {
    /// When the item arrived; the current time if unknown.
    pub(crate) arrived: u64,
    /// When the item was last pulled or arrived.
    pub(crate) last_used: u64,
    /// Whether a mirror fetched or received the item.
    pub(crate) is_from_mirror: bool,
}

impl UsageTimes {
    /// Whether a mirror wrote the model that has this write time.
    pub(crate) fn is_written_by_mirror(&self, written: u64) -> bool {
        self.is_from_mirror && written <= self.arrived.saturating_add(WRITE_SLACK_SECONDS)
    }
}

/// Records arrivals and pulls. Cheap to clone.
#[derive(Clone)]
pub struct UsageLog(Arc<Inner>);

struct Inner {
    /// Prefix of the names of this process's notes.
    id: String,
    clock: Clock,
    table: Mutex<RecordTable>,
    changed: Notify,
    /// Signals a change that other mirrors should see soon.
    urgent: Notify,
    /// Held while notes are written.
    writing: tokio::sync::Mutex<()>,
    /// When the notes of others were last read for the web page.
    notes_read_at: tokio::sync::Mutex<Option<Instant>>,
}

/// Key of a tag in the table. Case is ignored, because model names differ by more than case.
fn key(name: &Repository, tag: &str) -> String {
    format!("{name}:{tag}").to_ascii_lowercase()
}

fn key_of_digest(name: &Repository, digest: &Digest) -> String {
    format!("{name}@{digest}").to_ascii_lowercase()
}

fn key_of(name: &Repository, of: &Reference) -> String {
    match of {
        Reference::Tag(tag) => key(name, tag),
        Reference::Digest(digest) => key_of_digest(name, digest),
    }
}

/// Converts a time to seconds since 1970.
pub(crate) fn unix_seconds(at: SystemTime) -> u64 {
    at.duration_since(SystemTime::UNIX_EPOCH).as_ref().map_or(0, Duration::as_secs)
}

impl UsageLog {
    /// Creates an empty log.
    ///
    /// # Errors
    /// The system provides no random numbers.
    pub fn new() -> Result<Self, MirrorError> {
        Self::with_clock(Arc::new(SystemTime::now))
    }

    pub(crate) fn with_clock(clock: Clock) -> Result<Self, MirrorError> {
        Ok(Self(Arc::new(Inner {
            id: UploadId::random()?.to_string(),
            clock,
            table: Mutex::default(),
            changed: Notify::new(),
            urgent: Notify::new(),
            writing: Default::default(),
            notes_read_at: Default::default(),
        })))
    }

    pub(crate) fn now(&self) -> u64 {
        unix_seconds((self.0.clock)())
    }

    /// Changes a record. If `change` returns true, the record is written soon.
    fn change(&self, key: String, change: impl FnOnce(&mut Record) -> bool) {
        let mut is_urgent = false;
        if lock(&self.0.table).change(key, |record| is_urgent = change(record)) {
            self.0.changed.notify_one();
            if is_urgent {
                self.0.urgent.notify_one();
            }
        }
    }

    /// Records that a client pulled a manifest. The pull is urgent if the item was unused for a
    /// while, because another mirror may be about to remove it.
    pub(crate) fn record_pull(&self, name: &Repository, of: &Reference) {
        let now = self.now();
        self.change(key_of(name, of), |record| {
            let used = record.pulled.max(record.arrived);
            if record.pulled.is_none_or(|at| at.saturating_add(SECONDS_PER_MINUTE) <= now) {
                record.pulled = Some(now);
            }
            used.is_none_or(|at| at.saturating_add(SECONDS_PER_DAY / 2) <= now)
        });
    }

    /// Records that a tag was pushed, fetched or moved, or a manifest was pushed by digest. A
    /// replaced model of the machine's user remains the user's if the new one was fetched or is
    /// equal. A model is the user's if no mirror is known to have written it, or it was written
    /// after that.
    pub(crate) fn record_arrival(
        &self,
        name: &Repository,
        of: &Reference,
        digest: Digest,
        by: ChangeSource,
        replaced: Option<&Entry>,
    ) {
        let now = self.now();
        self.change(key_of(name, of), |record| {
            let is_by_mirror = |old: &Entry| {
                let times = UsageTimes {
                    arrived: record.arrived.unwrap_or(0),
                    last_used: 0,
                    is_from_mirror: record.is_from_mirror(),
                };
                record.digest == Some(old.digest)
                    && times.is_written_by_mirror(unix_seconds(old.modified))
            };
            let keeps_user = |old: &Entry| {
                (by == ChangeSource::Fetch || old.digest == digest) && !is_by_mirror(old)
            };
            let by = if replaced.is_some_and(keeps_user) { ChangeSource::User } else { by };
            // The key of an untagged manifest contains its digest.
            record.digest = matches!(of, Reference::Tag(_)).then_some(digest);
            (record.arrived, record.by) = (Some(now), Some(by));
            true
        });
    }

    /// Like [`UsageLog::record_arrival`], after reading what other mirrors know about a replaced
    /// model.
    pub(crate) async fn record_arrival_after_sync(
        &self,
        notes: &dyn NoteStore,
        name: &Repository,
        of: &Reference,
        digest: Digest,
        by: ChangeSource,
        replaced: Option<&Entry>,
    ) {
        if replaced.is_some()
            && let Err(error) = self.read_other_notes(notes).await
        {
            tracing::warn!(%error, "cannot read usage records of other mirrors; the origin of a model may be lost");
        }
        self.record_arrival(name, of, digest, by, replaced);
    }

    /// Returns arrival and last use of a tag that points to `digest`, or of an untagged manifest.
    /// An unknown item counts as arrived now.
    pub(crate) fn times(&self, name: &Repository, tag: Option<&str>, digest: Digest) -> UsageTimes {
        let now = self.now();
        let mut times = UsageTimes { arrived: now, last_used: now, is_from_mirror: false };
        let of_digest = key_of_digest(name, &digest);
        let by_digest = lock(&self.0.table).get(&of_digest).and_then(|record| record.pulled);
        let key = tag.map_or(of_digest, |tag| key(name, tag));
        self.change(key, |record| {
            let is_same = tag.is_none() || record.digest == Some(digest);
            let is_recent = record.by.is_some()
                && record.arrived.is_some_and(|at| at.saturating_add(SCAN_OVERLAP_SECONDS) > now);
            if !is_same && is_recent {
                return false;
            }
            let arrived = record.arrived.filter(|at| is_same && *at >= MIN_VALID_TIME);
            if arrived.is_none() {
                record.arrived = Some(now);
                record.by = record.by.filter(|_| is_same);
                record.digest = tag.map(|_| digest);
            }
            let arrived = arrived.unwrap_or(now).min(now);
            let used = arrived.max(record.pulled.max(by_digest).unwrap_or(0)).min(now);
            times =
                UsageTimes { arrived, last_used: used, is_from_mirror: record.is_from_mirror() };
            false
        });
        times
    }

    /// Returns when a tag was last pulled, by its name or by its digest.
    pub(crate) fn last_pull(&self, name: &Repository, tag: &str, digest: &Digest) -> Option<u64> {
        let table = lock(&self.0.table);
        let pulled = |key: String| table.get(&key).and_then(|record| record.pulled);
        pulled(key(name, tag)).max(pulled(key_of_digest(name, digest)))
    }
}
