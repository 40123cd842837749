//! Whether blobs still are what their names say. Disks give back other bytes than they were given, or none, and say nothing before
//! somebody reads; and whoever shares the folder may give files their names before he has looked what is in them.
//!
//! So a blob is read once more when somebody is first given bytes of it, and until it was found whole nobody gets its last byte: a
//! damaged one is never given out wholly. It is put away and served no more; a library that others stand behind fetches it again. What
//! was found whole is known by its file, as long as nobody writes to that, until the mirror ends. It is not written down: what a file was
//! found to be once says nothing of what the disk gives now, and a start is when that is looked at.
//!
//! Small blobs are read before anything of them is given out. Large ones are read by threads behind it, a slice of each in turn.

mod reading;

use std::collections::{HashMap, VecDeque};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use puna_store::{Digest, Stamp, same_file, sync_dir, touch};

use super::Blob;
use super::blobs::{FileBlob, read_some_at};
use super::folder::{self, Folder, absent};
use crate::error::MirrorError;
use crate::lock::lock;
pub(super) use reading::Pending;
use reading::{Outcome, ReadAt, Reading};

/// Files that are remembered.
const MAX_KNOWN: usize = 100_000;

/// How long a file that was found whole is not read again though its time has changed. Pulls touch blobs that they find here: that must
/// not cost the disk a large model each time.
const AGAIN: Duration = Duration::from_secs(60 * 60);

/// Threads that read at most.
const MAX_THREADS: usize = 4;

/// How it is done.
#[derive(Debug, Clone, Copy)]
struct Manner {
    again: Duration,
    /// Bytes up to which a blob is read before anything of it is given out.
    small: u64,
    /// Bytes of one that are read before it is the next one's turn.
    slice: u64,
    threads: usize,
}

impl Default for Manner {
    fn default() -> Self {
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get().min(MAX_THREADS));
        Self { again: AGAIN, small: 1 << 20, slice: 64 << 20, threads }
    }
}

/// Reads blobs once more. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Checks(Arc<Inner>);

struct Inner {
    folder: Folder,
    manner: Manner,
    read: Box<ReadAt>,
    state: Mutex<State>,
    /// Blobs that were put away.
    lost: AtomicU64,
}

#[derive(Default)]
struct State {
    /// By the digest and the file without its times.
    known: HashMap<Known, Judged>,
    /// What is being read, but for what the threads are at.
    waiting: VecDeque<Reading>,
    threads: usize,
}

/// A file that was opened as a blob.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Known {
    digest: Digest,
    stamp: Stamp,
}

impl Known {
    fn key(&self) -> Self {
        Self { stamp: self.stamp.untimed(), ..*self }
    }
}

/// What is known of a file as it was.
struct Judged {
    stamp: Stamp,
    verdict: Verdict,
    at: Instant,
}

enum Verdict {
    /// It is being read.
    Unread(Pending),
    Whole,
    Damaged,
}

impl State {
    /// What is known of a file, as far as it is the same.
    fn verdict(&self, known: &Known) -> Option<&Verdict> {
        let judged = self.known.get(&known.key())?;
        judged.stamp.has_bytes_of(&known.stamp).then_some(&judged.verdict)
    }

    fn judge(&mut self, known: &Known, verdict: Verdict) {
        let judged = Judged { stamp: known.stamp, verdict, at: Instant::now() };
        self.known.insert(known.key(), judged);
    }

    /// Whether a file was found whole and need not be read now.
    fn is_whole(&self, known: &Known, again: Duration) -> bool {
        self.known.get(&known.key()).is_some_and(|judged| {
            matches!(judged.verdict, Verdict::Whole)
                && (judged.stamp.has_bytes_of(&known.stamp) || judged.at.elapsed() < again)
        })
    }

    fn is_damaged(&self, known: &Known) -> bool {
        matches!(self.verdict(known), Some(Verdict::Damaged))
    }

    /// Forgets what can be found out again.
    fn make_room(&mut self) {
        let is_whole = |judged: &Judged| matches!(judged.verdict, Verdict::Whole);
        let is_damaged = |judged: &Judged| matches!(judged.verdict, Verdict::Damaged);
        for is_one in [is_whole, is_damaged] {
            if self.known.len() >= MAX_KNOWN {
                self.known.retain(|_, judged| !is_one(judged));
            }
        }
    }
}

impl Checks {
    pub(crate) fn new(folder: Folder) -> Self {
        Self::reading(folder, Manner::default(), Box::new(read_some_at))
    }

    fn reading(folder: Folder, manner: Manner, read: Box<ReadAt>) -> Self {
        Self(Arc::new(Inner {
            folder,
            manner,
            read,
            state: Mutex::default(),
            lost: AtomicU64::new(0),
        }))
    }

    /// How many blobs were put away.
    pub(crate) fn lost(&self) -> u64 {
        self.0.lost.load(Ordering::Relaxed)
    }

    /// An open blob, unless it is known to be damaged; a small one is whole. Waits for the disk.
    pub(crate) fn open(&self, digest: &Digest) -> Result<Option<FileBlob>, MirrorError> {
        for path in self.0.folder.places(digest) {
            let Some(blob) = FileBlob::open(&path)? else { continue };
            let stamp = Stamp::of(&blob.file().metadata().map_err(folder::io("read", &path))?);
            let known = Known { digest: *digest, stamp: stamp.map_err(folder::io("read", &path))? };
            if blob.size() <= self.0.manner.small {
                self.read_now(known, blob.file());
            }
            if !lock(&self.0.state).is_damaged(&known) {
                return Ok(Some(blob.checked(self.clone(), known)));
            }
        }
        Ok(None)
    }

    /// Reads a file at once, if it was not.
    fn read_now(&self, known: Known, file: &Arc<File>) {
        {
            let state = lock(&self.0.state);
            if state.is_whole(&known, self.0.manner.again) || state.is_damaged(&known) {
                return;
            }
        }
        let mut reading = Reading::new(known, file);
        loop {
            if let Some(outcome) = reading.go_on(&self.0.folder, &*self.0.read, u64::MAX) {
                return self.end(&reading, outcome);
            }
        }
    }

    /// Somebody is given bytes of a blob: has it read once more, if it was not. What comes of that, if it is not known to be whole.
    pub(crate) fn given(&self, known: Known, file: &Arc<File>) -> Option<Pending> {
        let mut state = lock(&self.0.state);
        if state.is_whole(&known, self.0.manner.again) {
            return None;
        }
        match state.known.get(&known.key()).map(|judged| &judged.verdict) {
            Some(Verdict::Unread(pending)) => return Some(pending.clone()),
            Some(Verdict::Damaged) if state.is_damaged(&known) => {
                return Some(Pending::ended(Outcome::Damaged("so it was found before".into())));
            }
            _ => {}
        }
        let reading = Reading::new(known, file);
        let pending = reading.pending();
        state.make_room();
        state.judge(&known, Verdict::Unread(pending.clone()));
        state.waiting.push_back(reading);
        if state.threads < self.0.manner.threads {
            let checks = self.clone();
            let begun =
                std::thread::Builder::new().name("puna-check".into()).spawn(move || checks.work());
            match begun {
                Ok(_) => state.threads += 1,
                Err(error) => {
                    tracing::warn!(%error, "blobs are checked by fewer threads");
                    if state.threads == 0 {
                        // Who waits for it is told by its end.
                        state.waiting.pop_back();
                        state.known.remove(&known.key());
                    }
                }
            }
        }
        Some(pending)
    }

    /// Somebody could not be given bytes of a blob: what was found before counts no more.
    pub(crate) fn failed(&self, known: Known, file: &Arc<File>) {
        let mut state = lock(&self.0.state);
        if matches!(state.verdict(&known), Some(Verdict::Whole)) {
            state.known.remove(&known.key());
        }
        drop(state);
        self.given(known, file);
    }

    /// Reads what waits, a slice of each in turn.
    fn work(&self) {
        step_back();
        loop {
            let mut reading = {
                let mut state = lock(&self.0.state);
                let Some(reading) = state.waiting.pop_front() else {
                    state.threads -= 1;
                    return;
                };
                reading
            };
            match reading.go_on(&self.0.folder, &*self.0.read, self.0.manner.slice) {
                None => lock(&self.0.state).waiting.push_back(reading),
                Some(outcome) => self.end(&reading, outcome),
            }
        }
    }

    /// A file was read to its end.
    fn end(&self, reading: &Reading, outcome: Outcome) {
        let known = &reading.known;
        match &outcome {
            Outcome::Whole => lock(&self.0.state).judge(known, Verdict::Whole),
            Outcome::Damaged(reason) => self.put_away(known, reason),
            Outcome::Gone => self.forget(known),
            Outcome::Unknown(error) => {
                tracing::error!(digest = %known.digest, error, "this blob is not checked");
                self.forget(known);
            }
        }
        reading.tell(outcome);
    }

    fn forget(&self, known: &Known) {
        lock(&self.0.state).known.remove(&known.key());
    }

    /// Puts a damaged blob where nobody is served from, for people to look at.
    fn put_away(&self, known: &Known, reason: &str) {
        let (folder, digest) = (&self.0.folder, &known.digest);
        // Files that can neither be moved nor passed over are not served either.
        lock(&self.0.state).judge(known, Verdict::Damaged);
        let changes = folder.changes();
        if let Err(error) = &changes {
            tracing::warn!(%digest, %error, "a damaged blob is put away though others may be writing");
        }
        let there = |place: &PathBuf| {
            Stamp::at(place).is_some_and(|stamp| stamp.has_bytes_of(&known.stamp))
        };
        let places = folder.places(digest).into_iter().filter(there);
        let (own, others): (Vec<_>, Vec<_>) =
            places.partition(|place| place.starts_with(folder.store.root()));
        let (mut away, mut found) = (None, !others.is_empty());
        for place in own {
            match folder.take_away(&place, known) {
                Ok(to) => away = to.or(away),
                Err(error) => {
                    found = true;
                    tracing::error!(%digest, %error, "a damaged blob stays where it is");
                }
            }
        }
        for place in others {
            tracing::error!(%digest, place = %place.display(), "a damaged blob stays where it is, in a folder that is only read");
            folder.store.shun(place, known.stamp);
        }
        if !found && away.is_none() {
            // Another file has come in its place.
            return self.forget(known);
        }
        self.0.lost.fetch_add(1, Ordering::Relaxed);
        // Whoever clears away looks at the time. Not before now: all names of the file have one.
        away.iter().for_each(|away: &PathBuf| touch(away));
        let away = away.unwrap_or_default();
        tracing::error!(%digest, reason, away = %away.display(), "this blob is damaged on the disk: it is served no more; pull or push it again where no upstream has it");
    }
}

impl Folder {
    /// Moves a damaged file to where damaged blobs are, and says where. A file that has come in its place at this moment, which may be
    /// a good one, is put back.
    fn take_away(&self, place: &Path, known: &Known) -> Result<Option<PathBuf>, MirrorError> {
        let dir = self.damaged();
        fs::create_dir_all(&dir).map_err(folder::io("create the folder", &dir))?;
        let to = dir.join(known.digest.file_name());
        let moving = to.with_extension("moving");
        // Of a run that was killed. Of two names of one file, none would be moved to the other.
        folder::remove(&moving)?;
        if absent(fs::rename(place, &moving), "move", place)?.is_none() {
            return Ok(None);
        }
        if !Stamp::at(&moving).is_some_and(|stamp| stamp.has_bytes_of(&known.stamp)) {
            // A third one may have come by now, which stays.
            match fs::hard_link(&moving, place) {
                Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
                    fs::rename(&moving, place).map_err(folder::io("move", &moving))?;
                }
                _ => _ = folder::remove(&moving)?,
            }
            return Ok(None);
        }
        match same_file(&moving, &to) {
            true => _ = folder::remove(&moving)?,
            false => fs::rename(&moving, &to).map_err(folder::io("move", &moving))?,
        }
        sync_dir(&dir);
        Ok(Some(to))
    }
}

/// Lets others go first, but not for ever: somebody waits for what is found.
fn step_back() {
    // On Linux this is of the calling thread.
    #[cfg(target_os = "linux")]
    let _ = rustix::process::setpriority_process(None, 5);
}

#[cfg(test)]
mod tests;
