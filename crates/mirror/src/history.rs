//! When things came to a library and when they were last pulled, as far as its mirrors know.
//!
//! Each process writes what it knows into notes of its own beside the library, and reads those of the others: nothing that one
//! of them knows is lost by what another one writes. What the notes of an earlier process say is taken over after a day.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use puna_store::Digest;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use crate::error::MirrorError;
use crate::library::{Holding, Note, Notes, Shown, UploadId};
use crate::lock::lock;
use crate::name::{Reference, Repository};

/// Seconds of a day.
pub(crate) const DAY: u64 = 24 * 60 * 60;
/// Pulls of one thing that are nearer to each other count as one.
const MINUTE: u64 = 60;
/// How long what is new is gathered before it is written.
const GATHER: Duration = Duration::from_secs(10);
/// How long nothing is tried after the notes could not be written.
const REST: Duration = Duration::from_secs(10 * 60);
/// How old what the others say may be where people look at it.
const RECENT: Duration = Duration::from_secs(60);
/// Tags and manifests that are remembered.
const MAX_RECORDS: usize = 100_000;
/// Those of one note, which may not be larger than a manifest.
const OF_NOTE: usize = 10_000;
/// Begins 2025: an earlier time is that of a clock that was not set, and says nothing.
const SET: u64 = 1_735_689_600;

/// What tells the time.
pub(crate) type Clock = Arc<dyn Fn() -> SystemTime + Send + Sync>;

/// How something came to the library.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum By {
    /// It was fetched for somebody.
    Fetch,
    /// Somebody pushed it.
    Push,
}

/// What is known of a tag, or of a manifest. Times are seconds since 1970.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    /// What the tag stood for when it came.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    digest: Option<Digest>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    arrived: Option<u64>,
    /// How, unless the mirror did not bring it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    by: Option<By>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pulled: Option<u64>,
}

impl Record {
    /// Learns what somebody else knows.
    fn merge(&mut self, other: Self) {
        self.pulled = self.pulled.max(other.pulled);
        if self.digest == other.digest {
            (self.arrived, self.by) = (self.arrived.max(other.arrived), self.by.max(other.by));
        } else if other.arrived > self.arrived {
            (self.digest, self.arrived, self.by) = (other.digest, other.arrived, other.by);
        }
    }
}

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

/// Remembers.
pub struct History {
    /// What the names of its notes begin with.
    id: String,
    clock: Clock,
    known: Mutex<Known>,
    changed: Notify,
    /// Held while notes are written.
    writing: tokio::sync::Mutex<()>,
    /// When those of the others were read for people.
    looked: tokio::sync::Mutex<Option<Instant>>,
}

#[derive(Default)]
struct Known {
    records: BTreeMap<String, Record>,
    /// Whether something is not written.
    is_new: bool,
    /// The notes of others that were read, and their versions.
    read: HashMap<String, String>,
}

impl Known {
    /// Changes what is known of something, if there is room for it. Says whether that is something new.
    fn change(&mut self, key: String, change: impl FnOnce(&mut Record)) -> bool {
        if self.records.len() >= MAX_RECORDS && !self.records.contains_key(&key) {
            return false;
        }
        let record = self.records.entry(key).or_default();
        let before = record.clone();
        change(record);
        let is_new = *record != before;
        self.is_new |= is_new;
        is_new
    }
}

/// A tag, or the manifest of a digest. Names of models differ by more than case.
fn key(name: &Repository, tag: &str) -> String {
    format!("{name}:{tag}").to_ascii_lowercase()
}

fn key_of_digest(name: &Repository, digest: &Digest) -> String {
    format!("{name}@{digest}").to_ascii_lowercase()
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
        let id = UploadId::random()?.to_string();
        let (known, changed) = (Mutex::default(), Notify::new());
        Ok(Self { id, clock, known, changed, writing: Default::default(), looked: Default::default() })
    }

    pub(crate) fn now(&self) -> u64 {
        (self.clock)().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
    }

    fn change(&self, key: String, change: impl FnOnce(&mut Record)) {
        if lock(&self.known).change(key, change) {
            self.changed.notify_one();
        }
    }

    /// Somebody was given a manifest.
    pub(crate) fn pulled(&self, name: &Repository, of: &Reference) {
        let now = self.now();
        let key = match of {
            Reference::Tag(tag) => key(name, tag),
            Reference::Digest(digest) => key_of_digest(name, digest),
        };
        self.change(key, |record| {
            if record.pulled.is_none_or(|at| at.saturating_add(MINUTE) <= now) {
                record.pulled = Some(now);
            }
        });
    }

    /// A tag came, or moved. Where it stood for something that no mirror had brought, it stays what it was: somebody else's.
    pub(crate) fn arrived(
        &self,
        name: &Repository,
        tag: &str,
        digest: Digest,
        by: By,
        replaced: Option<Digest>,
    ) {
        let now = self.now();
        self.change(key(name, tag), |record| {
            let is_ours = |old| record.digest == Some(old) && record.by.is_some();
            let by = Some(by).filter(|_| replaced.is_none_or(is_ours));
            (record.digest, record.arrived, record.by) = (Some(digest), Some(now), by);
        });
    }

    /// When a tag that stands for a manifest, or a manifest without one, came and was last used. What is seen for the first time
    /// came now.
    pub(crate) fn times(&self, name: &Repository, tag: Option<&str>, digest: Digest) -> Times {
        let now = self.now();
        let mut times = Times { arrived: now, used: now, is_brought: false };
        let of_digest = key_of_digest(name, &digest);
        let by_digest = lock(&self.known).records.get(&of_digest).and_then(|record| record.pulled);
        let key = tag.map_or(of_digest, |tag| key(name, tag));
        self.change(key, |record| {
            let is_same = tag.is_none() || record.digest == Some(digest);
            let arrived = record.arrived.filter(|at| is_same && *at >= SET);
            if arrived.is_none() {
                record.arrived = Some(now);
                record.by = record.by.filter(|_| is_same);
                record.digest = tag.map(|_| digest);
            }
            let arrived = arrived.unwrap_or(now).min(now);
            let used = arrived.max(record.pulled.max(by_digest).unwrap_or(0)).min(now);
            times = Times { arrived, used, is_brought: record.by.is_some() };
        });
        times
    }

    /// When a tag was last pulled, by its name or its digest.
    pub(crate) fn last_pull(&self, name: &Repository, tag: &str, digest: &Digest) -> Option<u64> {
        let known = lock(&self.known);
        let pulled = |key| known.records.get(&key).and_then(|record| record.pulled);
        pulled(key(name, tag)).max(pulled(key_of_digest(name, digest)))
    }

    /// Forgets what is not there any more, once a day has passed since.
    pub(crate) fn forget(&self, shown: &[Shown], holdings: &[Holding]) {
        let tags = shown.iter().map(|shown| key(&shown.name, &shown.tag));
        let manifests = holdings.iter().filter_map(|held| Some(key_of_digest(&held.name, &held.manifest?)));
        let there: HashSet<String> = tags.chain(manifests).collect();
        let now = self.now();
        let is_young = |record: &Record| {
            record.arrived.max(record.pulled).is_some_and(|at| at.saturating_add(DAY) > now)
        };
        let mut known = lock(&self.known);
        let before = known.records.len();
        known.records.retain(|key, record| there.contains(key) || is_young(record));
        known.is_new |= known.records.len() < before;
    }

    /// Reads the notes of others, as far as they have changed.
    pub(crate) async fn learn(&self, notes: &dyn Notes) -> Result<Vec<Note>, MirrorError> {
        let mut listed = notes.list().await?;
        listed.retain(|note| !note.name.starts_with(&self.id));
        for Note { name, version, .. } in &listed {
            if lock(&self.known).read.get(name) == Some(version) {
                continue;
            }
            let Some(bytes) = notes.read(name).await? else { continue };
            match serde_json::from_slice::<BTreeMap<String, Record>>(&bytes) {
                Ok(records) => {
                    let mut known = lock(&self.known);
                    let was_new = known.is_new;
                    for (key, record) in records {
                        known.change(key, |own| own.merge(record));
                    }
                    // It is written already.
                    known.is_new = was_new;
                    known.read.insert(name.clone(), version.clone());
                }
                Err(error) => {
                    tracing::warn!(name, %error, "a note of earlier pulls cannot be read: it is left alone")
                }
            }
        }
        let there: HashSet<&String> = listed.iter().map(|note| &note.name).collect();
        lock(&self.known).read.retain(|name, _| there.contains(name));
        Ok(listed)
    }

    /// The same for people who look, now and then.
    pub(crate) async fn learn_for_people(&self, notes: &dyn Notes) {
        let mut looked = self.looked.lock().await;
        if looked.is_none_or(|at| at.elapsed() >= RECENT) {
            if let Err(error) = self.learn(notes).await {
                tracing::warn!(%error, "the notes of earlier pulls cannot be read");
            }
            *looked = Some(Instant::now());
        }
    }

    /// Writes what is new.
    pub(crate) async fn write(&self, notes: &dyn Notes) -> Result<(), MirrorError> {
        let _writing = self.writing.lock().await;
        let records = {
            let mut known = lock(&self.known);
            if !std::mem::take(&mut known.is_new) {
                return Ok(());
            }
            known.records.clone()
        };
        let all: Vec<_> = records.iter().collect();
        for (n, part) in all.chunks(OF_NOTE).enumerate() {
            let part: BTreeMap<_, _> = part.iter().copied().collect();
            let text = serde_json::to_vec(&part).map_err(|e| MirrorError::Internal(e.to_string()))?;
            let written = notes.write(&format!("{}-{n}.json", self.id), Bytes::from(text)).await;
            if written.is_err() {
                lock(&self.known).is_new = true;
                return written;
            }
        }
        Ok(())
    }

    /// Writes what is new, and takes over the notes that nobody has written for a day: their writers are gone, or know what is in
    /// them and will write it again.
    pub(crate) async fn gather(&self, notes: &dyn Notes) -> Result<(), MirrorError> {
        let mut old = self.learn(notes).await?;
        old.retain(|note| {
            let is_read = lock(&self.known).read.get(&note.name) == Some(&note.version);
            is_read && note.age.as_secs() > DAY
        });
        lock(&self.known).is_new |= !old.is_empty();
        self.write(notes).await?;
        if old.is_empty() {
            return Ok(());
        }
        let now = notes.list().await?;
        for note in old {
            if now.iter().any(|other| (&other.name, &other.version) == (&note.name, &note.version)) {
                notes.remove(&note.name).await?;
            }
        }
        Ok(())
    }

    /// Writes what is new for ever, some seconds behind it.
    pub(crate) async fn keep(&self, notes: &dyn Notes) {
        self.learn_for_people(notes).await;
        loop {
            self.changed.notified().await;
            tokio::time::sleep(GATHER).await;
            if let Err(error) = self.write(notes).await {
                tracing::warn!(%error, "when models were pulled cannot be noted: it is tried again in ten minutes");
                tokio::time::sleep(REST).await;
                self.changed.notify_one();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    use puna_store::Store;

    use super::*;
    use crate::library::{Library, StoreLibrary};

    fn history(time: &Arc<AtomicU64>) -> History {
        let time = time.clone();
        let clock = move || SystemTime::UNIX_EPOCH + Duration::from_secs(time.load(Relaxed));
        History::with_clock(Arc::new(clock)).unwrap()
    }

    fn name() -> Repository {
        Repository::parse("library/m").unwrap()
    }

    #[test]
    fn what_nobody_knows_came_now() {
        let time = Arc::new(AtomicU64::new(SET + 5));
        let (history, of) = (history(&time), Digest::of(b"m"));
        let first = Times { arrived: SET + 5, used: SET + 5, is_brought: false };
        assert_eq!(history.times(&name(), Some("t"), of), first);
        time.store(SET + 500, Relaxed);
        assert_eq!(history.times(&name(), Some("T"), of), first);
        // It has moved, and nobody saw who did that.
        let moved = history.times(&name(), Some("t"), Digest::of(b"n"));
        assert_eq!((moved.arrived, moved.is_brought), (SET + 500, false));
        // A pull by the digest is one of the tag, too.
        time.store(SET + 900, Relaxed);
        history.pulled(&name(), &Reference::Digest(Digest::of(b"n")));
        assert_eq!(history.times(&name(), Some("t"), Digest::of(b"n")).used, SET + 900);
        assert_eq!(history.last_pull(&name(), "t", &Digest::of(b"n")), Some(SET + 900));
        assert_eq!(history.last_pull(&name(), "t", &of), None);
    }

    #[test]
    fn a_clock_that_was_not_set_makes_nothing_old_and_one_of_the_future_nothing_young_for_long() {
        let time = Arc::new(AtomicU64::new(100));
        let (history, of) = (history(&time), Digest::of(b"m"));
        history.arrived(&name(), "t", of, By::Fetch, None);
        history.pulled(&name(), &Reference::Tag("t".into()));
        time.store(SET + 7, Relaxed);
        let times = history.times(&name(), Some("t"), of);
        assert_eq!(times, Times { arrived: SET + 7, used: SET + 7, is_brought: true });
        time.store(SET + 10 * DAY, Relaxed);
        history.pulled(&name(), &Reference::Tag("t".into()));
        time.store(SET + DAY, Relaxed);
        assert_eq!(history.times(&name(), Some("t"), of).used, SET + DAY, "no later than now");
    }

    #[test]
    fn what_stands_in_the_place_of_the_users_own_is_not_the_mirrors() {
        let history = history(&Arc::new(AtomicU64::new(SET)));
        let digests = [b"a", b"b", b"c"].map(|of| Digest::of(of));
        let brought = |tag: &str, of| history.times(&name(), Some(tag), of).is_brought;
        history.arrived(&name(), "own", digests[1], By::Fetch, Some(digests[0]));
        assert!(!brought("own", digests[1]));
        history.arrived(&name(), "new", digests[0], By::Fetch, None);
        history.arrived(&name(), "new", digests[1], By::Fetch, Some(digests[0]));
        assert!(brought("new", digests[1]));
        // Meanwhile somebody else has written it.
        history.arrived(&name(), "new", digests[2], By::Fetch, Some(digests[0]));
        assert!(!brought("new", digests[2]));
    }

    #[test]
    fn merging_is_the_same_in_any_order() {
        let record = |of: &[u8], arrived, by, pulled| Record {
            digest: Some(Digest::of(of)),
            arrived: Some(arrived),
            by,
            pulled,
        };
        let all = [
            record(b"a", 5, Some(By::Fetch), Some(7)),
            record(b"a", 6, None, None),
            record(b"b", 9, Some(By::Push), Some(3)),
            Record { pulled: Some(8), ..Record::default() },
        ];
        let expected = record(b"b", 9, Some(By::Push), Some(8));
        for order in [[0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2], [2, 0, 3, 1]] {
            let mut merged = Record::default();
            order.iter().for_each(|n| merged.merge(all[*n].clone()));
            assert_eq!(merged, expected, "{order:?}");
        }
        let mut same = all[1].clone();
        same.merge(all[0].clone());
        assert_eq!(same, record(b"a", 6, Some(By::Fetch), Some(7)));
    }

    #[tokio::test]
    async fn pulls_of_a_minute_are_one_and_nothing_new_is_not_written() {
        let dir = tempfile::tempdir().unwrap();
        let library = StoreLibrary::new(Arc::new(Store::open(dir.path()).unwrap()));
        let time = Arc::new(AtomicU64::new(SET));
        let (history, tag) = (history(&time), Reference::Tag("t".into()));
        let notes = library.notes();
        history.write(notes).await.unwrap();
        assert_eq!(notes.list().await.unwrap(), []);
        history.pulled(&name(), &tag);
        history.write(notes).await.unwrap();
        let listed = notes.list().await.unwrap();
        notes.remove(&listed[0].name).await.unwrap();
        time.store(SET + MINUTE - 1, Relaxed);
        history.pulled(&name(), &tag);
        history.write(notes).await.unwrap();
        assert_eq!(notes.list().await.unwrap(), []);
        time.store(SET + MINUTE, Relaxed);
        history.pulled(&name(), &tag);
        history.write(notes).await.unwrap();
        assert_eq!(notes.list().await.unwrap().len(), 1);
    }

    #[tokio::test]
    async fn old_notes_are_taken_over_and_broken_ones_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let library = StoreLibrary::new(Arc::new(Store::open(dir.path()).unwrap()));
        let (notes, time) = (library.notes(), Arc::new(AtomicU64::new(SET)));
        let earlier = history(&time);
        earlier.pulled(&name(), &Reference::Tag("t".into()));
        earlier.write(notes).await.unwrap();
        for broken in ["null", "[", "{\"a\":7}", "{\"library/m:t\":{\"pulled\":-1}}"] {
            notes.write(&format!("broken-{}.json", broken.len()), broken.into()).await.unwrap();
        }
        let folder = dir.path().join("puna-registry/history");
        let age_all = || {
            for entry in std::fs::read_dir(&folder).unwrap() {
                let file = std::fs::File::options().append(true).open(entry.unwrap().path()).unwrap();
                file.set_modified(SystemTime::now() - Duration::from_secs(2 * DAY)).unwrap();
            }
        };
        let later = history(&time);
        later.gather(notes).await.unwrap();
        assert_eq!(notes.list().await.unwrap().len(), 5, "the earlier process may live");
        age_all();
        later.gather(notes).await.unwrap();
        let left: Vec<String> = notes.list().await.unwrap().into_iter().map(|note| note.name).collect();
        assert_eq!(left.iter().filter(|name| name.starts_with("broken")).count(), 4, "{left:?}");
        assert_eq!(left.iter().filter(|name| name.starts_with(&later.id)).count(), 1, "{left:?}");
        assert_eq!(left.len(), 5, "{left:?}");
        assert_eq!(later.last_pull(&name(), "t", &Digest::of(b"m")), Some(SET));
    }

    #[test]
    fn what_is_gone_for_a_day_is_forgotten() {
        let time = Arc::new(AtomicU64::new(SET));
        let history = history(&time);
        history.pulled(&name(), &Reference::Tag("t".into()));
        time.store(SET + DAY - 1, Relaxed);
        history.forget(&[], &[]);
        assert!(history.last_pull(&name(), "t", &Digest::of(b"m")).is_some());
        time.store(SET + DAY, Relaxed);
        history.forget(&[], &[]);
        assert!(history.last_pull(&name(), "t", &Digest::of(b"m")).is_none());
    }
}
