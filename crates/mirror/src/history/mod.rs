//! When things came to a library and when they were last pulled, as far as its mirrors know.
//!
//! Each process writes what it knows into notes of its own beside the library, and reads those of the others: nothing that one
//! of them knows is lost by what another one writes. What the notes of an earlier process say is taken over after a day.

mod exchange;
mod record;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use puna_store::{Digest, Entry};
use tokio::sync::Notify;

use crate::error::MirrorError;
use crate::id::UploadId;
use crate::lock::lock;
use crate::name::{Reference, Repository};
use crate::notes::Notes;
use record::{Known, Record};

pub(crate) use record::By;

/// Seconds of a day.
pub(crate) const DAY: u64 = 24 * 60 * 60;
/// How much later than it is noted a mirror may have written a model. What was written behind that was written by somebody else.
const SLACK: u64 = 60;
/// Pulls of one thing that are nearer to each other count as one.
const MINUTE: u64 = 60;
/// What came so shortly ago may have come behind the look of somebody who asks about what was there before.
const LOOK: u64 = 60 * MINUTE;
/// Begins 2025: an earlier time is that of a clock that was not set, and says nothing.
const SET: u64 = 1_735_689_600;

/// What tells the time.
pub(crate) type Clock = Arc<dyn Fn() -> SystemTime + Send + Sync>;

/// What matters of a thing where it is judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Times {
    /// When it came; now, where nobody knows.
    pub(crate) arrived: u64,
    /// When it was last pulled, or came.
    pub(crate) used: u64,
    /// Whether a mirror brought it.
    pub(crate) is_brought: bool,
}

impl Times {
    /// Whether a mirror brought what was written then.
    pub(crate) fn is_of_mirror(&self, written: u64) -> bool {
        self.is_brought && written <= self.arrived.saturating_add(SLACK)
    }
}

/// Remembers. Cheap to clone.
#[derive(Clone)]
pub struct History(Arc<Inner>);

struct Inner {
    /// What the names of its notes begin with.
    id: String,
    clock: Clock,
    known: Mutex<Known>,
    changed: Notify,
    /// Something is new that others should know soon.
    pressed: Notify,
    /// Held while notes are written.
    writing: tokio::sync::Mutex<()>,
    /// When those of the others were read for people.
    looked: tokio::sync::Mutex<Option<Instant>>,
}

/// A tag, or the manifest of a digest. Names of models differ by more than case.
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

/// Seconds since 1970.
pub(crate) fn seconds(at: SystemTime) -> u64 {
    at.duration_since(SystemTime::UNIX_EPOCH).as_ref().map_or(0, Duration::as_secs)
}

impl History {
    /// One that knows nothing yet.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub fn new() -> Result<Self, MirrorError> {
        Self::with_clock(Arc::new(SystemTime::now))
    }

    pub(crate) fn with_clock(clock: Clock) -> Result<Self, MirrorError> {
        Ok(Self(Arc::new(Inner {
            id: UploadId::random()?.to_string(),
            clock,
            known: Mutex::default(),
            changed: Notify::new(),
            pressed: Notify::new(),
            writing: Default::default(),
            looked: Default::default(),
        })))
    }

    pub(crate) fn now(&self) -> u64 {
        seconds((self.0.clock)())
    }

    /// Changes what is known of something. Says the change so, others are to know of it soon.
    fn change(&self, key: String, change: impl FnOnce(&mut Record) -> bool) {
        let mut is_pressing = false;
        if lock(&self.0.known).change(key, |record| is_pressing = change(record)) {
            self.0.changed.notify_one();
            if is_pressing {
                self.0.pressed.notify_one();
            }
        }
    }

    /// Somebody was given a manifest. What nobody had used for a while may be about to be removed elsewhere.
    pub(crate) fn pulled(&self, name: &Repository, of: &Reference) {
        let now = self.now();
        self.change(key_of(name, of), |record| {
            let used = record.pulled.max(record.arrived);
            if record.pulled.is_none_or(|at| at.saturating_add(MINUTE) <= now) {
                record.pulled = Some(now);
            }
            used.is_none_or(|at| at.saturating_add(DAY / 2) <= now)
        });
    }

    /// A tag came, or moved, or a manifest was pushed by its digest; or came once more. What replaces a model of the machine's user
    /// stays his, if it was fetched or is the same: one that no mirror is known to have brought, or that was written since.
    pub(crate) fn arrived(
        &self,
        name: &Repository,
        of: &Reference,
        digest: Digest,
        by: By,
        replaced: Option<&Entry>,
    ) {
        let now = self.now();
        self.change(key_of(name, of), |record| {
            let is_ours = |old: &Entry| {
                let times = Times {
                    arrived: record.arrived.unwrap_or(0),
                    used: 0,
                    is_brought: record.is_brought(),
                };
                record.digest == Some(old.digest) && times.is_of_mirror(seconds(old.modified))
            };
            let is_his = |old: &Entry| (by == By::Fetch || old.digest == digest) && !is_ours(old);
            let by = if replaced.is_some_and(is_his) { By::User } else { by };
            // A manifest without a tag is what its name says.
            record.digest = matches!(of, Reference::Tag(_)).then_some(digest);
            (record.arrived, record.by) = (Some(now), Some(by));
            true
        });
    }

    /// The same, after a look at what others know of what was replaced.
    pub(crate) async fn came(
        &self,
        notes: &dyn Notes,
        name: &Repository,
        of: &Reference,
        digest: Digest,
        by: By,
        replaced: Option<&Entry>,
    ) {
        if replaced.is_some()
            && let Err(error) = self.learn(notes).await
        {
            tracing::warn!(%error, "the notes of other mirrors cannot be read: who has brought a model may be forgotten");
        }
        self.arrived(name, of, digest, by, replaced);
    }

    /// When a tag that stands for a manifest, or a manifest without one, came and was last used. What is seen for the first time
    /// came now.
    pub(crate) fn times(&self, name: &Repository, tag: Option<&str>, digest: Digest) -> Times {
        let now = self.now();
        let mut times = Times { arrived: now, used: now, is_brought: false };
        let of_digest = key_of_digest(name, &digest);
        let by_digest =
            lock(&self.0.known).records.get(&of_digest).and_then(|record| record.pulled);
        let key = tag.map_or(of_digest, |tag| key(name, tag));
        self.change(key, |record| {
            let is_same = tag.is_none() || record.digest == Some(digest);
            let is_behind = record.by.is_some()
                && record.arrived.is_some_and(|at| at.saturating_add(LOOK) > now);
            if !is_same && is_behind {
                return false;
            }
            let arrived = record.arrived.filter(|at| is_same && *at >= SET);
            if arrived.is_none() {
                record.arrived = Some(now);
                record.by = record.by.filter(|_| is_same);
                record.digest = tag.map(|_| digest);
            }
            let arrived = arrived.unwrap_or(now).min(now);
            let used = arrived.max(record.pulled.max(by_digest).unwrap_or(0)).min(now);
            times = Times { arrived, used, is_brought: record.is_brought() };
            false
        });
        times
    }

    /// When a tag was last pulled, by its name or its digest.
    pub(crate) fn last_pull(&self, name: &Repository, tag: &str, digest: &Digest) -> Option<u64> {
        let known = lock(&self.0.known);
        let pulled = |key| known.records.get(&key).and_then(|record| record.pulled);
        pulled(key(name, tag)).max(pulled(key_of_digest(name, digest)))
    }
}
