//! Whether blobs still are what their names say. Disks give back other bytes than they were given, or none, and say nothing before
//! somebody reads; clients find out, but only after they have fetched everything, and again each time.
//!
//! So a blob is read once more when somebody is first given bytes of it: by one thread, behind all that answers. What is damaged is put
//! away and served no more; a library that others stand behind fetches it again. What was found whole is known by its file, as long as
//! nobody writes to that, until the mirror ends.

use std::collections::{HashMap, VecDeque};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use puna_store::{Digest, Stamp, same_file, sync_dir, touch};

use super::blobs::FileBlob;
use super::folder::{self, Folder, absent};
use crate::error::MirrorError;
use crate::lock::lock;

/// Files that are remembered.
const MAX_KNOWN: usize = 100_000;

/// How long a file that was found whole is not read again though its time has changed. Pulls touch blobs that they find here: that must
/// not cost the disk a large model each time.
const AGAIN: Duration = Duration::from_secs(60 * 60);

/// Reads blobs once more. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Checks(Arc<Inner>);

struct Inner {
    folder: Folder,
    again: Duration,
    read: Box<Read>,
    state: Mutex<State>,
    /// Blobs that were put away.
    lost: AtomicU64,
}

/// Reads a file to its end.
type Read = dyn Fn(&Path) -> io::Result<Digest> + Send + Sync;

#[derive(Default)]
struct State {
    /// By the digest and the file without its times.
    known: HashMap<Known, Judged>,
    waiting: VecDeque<Known>,
    /// Whether a thread reads what waits.
    at_work: bool,
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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Unread,
    Whole,
    Damaged,
}

/// What reading a file once more has come to.
enum Outcome {
    Whole,
    /// Why it is.
    Damaged(String),
    /// Somebody has replaced or removed it meanwhile.
    Gone,
}

impl State {
    fn verdict(&self, known: &Known) -> Option<Verdict> {
        let judged = self.known.get(&known.key())?;
        judged.stamp.has_bytes_of(&known.stamp).then_some(judged.verdict)
    }

    fn judge(&mut self, known: &Known, verdict: Verdict) {
        let judged = Judged { stamp: known.stamp, verdict, at: Instant::now() };
        self.known.insert(known.key(), judged);
    }

    /// Whether a file need not be read now.
    fn is_settled(&self, known: &Known, again: Duration) -> bool {
        self.known.get(&known.key()).is_some_and(|judged| match judged.verdict {
            // It is read as it is then.
            Verdict::Unread => true,
            Verdict::Whole => judged.stamp.has_bytes_of(&known.stamp) || judged.at.elapsed() < again,
            Verdict::Damaged => judged.stamp.has_bytes_of(&known.stamp),
        })
    }

    /// Forgets what can be found out again.
    fn make_room(&mut self) {
        for verdict in [Verdict::Whole, Verdict::Damaged] {
            if self.known.len() >= MAX_KNOWN {
                self.known.retain(|_, judged| judged.verdict != verdict);
            }
        }
    }
}

impl Checks {
    pub(crate) fn new(folder: Folder) -> Self {
        Self::reading(folder, AGAIN, Box::new(|path| Ok(Digest::of_reader(&mut File::open(path)?)?.0)))
    }

    fn reading(folder: Folder, again: Duration, read: Box<Read>) -> Self {
        Self(Arc::new(Inner { folder, again, read, state: Mutex::default(), lost: AtomicU64::new(0) }))
    }

    /// How many blobs were put away.
    pub(crate) fn lost(&self) -> u64 {
        self.0.lost.load(Ordering::Relaxed)
    }

    /// An open blob, unless it is known to be damaged. Waits for the disk.
    pub(crate) fn open(&self, digest: &Digest) -> Result<Option<FileBlob>, MirrorError> {
        for path in self.0.folder.places(digest) {
            let Some(blob) = FileBlob::open(&path)? else { continue };
            let stamp =
                blob.metadata().and_then(|meta| Stamp::of(&meta)).map_err(folder::io("read", &path))?;
            let known = Known { digest: *digest, stamp };
            if lock(&self.0.state).verdict(&known) != Some(Verdict::Damaged) {
                return Ok(Some(blob.checked(self.clone(), known)));
            }
        }
        Ok(None)
    }

    /// Somebody is given bytes of a blob: has it read once more, if it was not.
    pub(crate) fn given(&self, known: Known) {
        let mut state = lock(&self.0.state);
        if state.is_settled(&known, self.0.again) {
            return;
        }
        state.make_room();
        state.judge(&known, Verdict::Unread);
        state.waiting.push_back(known);
        if state.at_work {
            return;
        }
        let checks = self.clone();
        let begun = std::thread::Builder::new().name("puna-check".into()).spawn(move || checks.work());
        state.at_work = begun.inspect_err(|error| tracing::warn!(%error, "blobs are not checked")).is_ok();
    }

    /// Somebody could not be given bytes of a blob: what was found before counts no more.
    pub(crate) fn failed(&self, known: Known) {
        let mut state = lock(&self.0.state);
        if state.verdict(&known) == Some(Verdict::Whole) {
            state.known.remove(&known.key());
        }
        drop(state);
        self.given(known);
    }

    /// Reads what waits.
    fn work(&self) {
        step_back();
        loop {
            let mut known = {
                let mut state = lock(&self.0.state);
                let Some(known) = state.waiting.pop_front() else {
                    state.at_work = false;
                    return;
                };
                known
            };
            match self.read(&mut known) {
                Ok(Outcome::Whole) => lock(&self.0.state).judge(&known, Verdict::Whole),
                Ok(Outcome::Damaged(reason)) => self.put_away(&known, &reason),
                Ok(Outcome::Gone) => self.forget(&known),
                Err(error) => {
                    let digest = known.digest;
                    tracing::error!(%digest, %error, "this blob is not checked");
                    self.forget(&known);
                }
            }
        }
    }

    fn forget(&self, known: &Known) {
        lock(&self.0.state).known.remove(&known.key());
    }

    /// Reads a file, as it is now. It is damaged where it is found to be so twice, since it may be the memory that errs.
    fn read(&self, known: &mut Known) -> io::Result<Outcome> {
        let places = self.0.folder.places(&known.digest);
        let mut there = places.iter().filter_map(|place| Some((place, Stamp::at(place)?)));
        let Some((place, stamp)) = there.find(|(_, stamp)| stamp.is_file_of(&known.stamp)) else {
            return Ok(Outcome::Gone);
        };
        known.stamp = stamp;
        let mut reason = String::new();
        for _ in 0..2 {
            reason = match (self.0.read)(place) {
                Ok(digest) if digest == known.digest => return Ok(Outcome::Whole),
                Ok(_) => "it has other bytes than its name says".into(),
                Err(error) if is_of_the_disk(&error) => format!("it cannot be read: {error}"),
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Outcome::Gone),
                Err(error) => return Err(error),
            };
        }
        let is_same = Stamp::at(place).is_some_and(|now| now.has_bytes_of(&stamp));
        Ok(if is_same { Outcome::Damaged(reason) } else { Outcome::Gone })
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
        let there = |place: &PathBuf| Stamp::at(place).is_some_and(|stamp| stamp.has_bytes_of(&known.stamp));
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

/// Whether an error of reading is the disk's, or the file system's that finds its own sums wrong: the file will give no other answer.
fn is_of_the_disk(error: &io::Error) -> bool {
    const CODES: &[i32] = if cfg!(windows) {
        // CRC, SECTOR_NOT_FOUND, READ_FAULT, IO_DEVICE, FILE_CORRUPT, DISK_CORRUPT.
        &[23, 27, 30, 1117, 1392, 1393]
    } else if cfg!(target_os = "linux") {
        // EIO, ENODATA, EBADMSG, EILSEQ, EUCLEAN, EREMOTEIO.
        &[5, 61, 74, 84, 117, 121]
    } else {
        // EIO.
        &[5]
    };
    error.raw_os_error().is_some_and(|code| CODES.contains(&code))
}

/// Lets all others go first.
fn step_back() {
    // On Linux this is of the calling thread.
    #[cfg(target_os = "linux")]
    let _ = rustix::process::setpriority_process(None, 19);
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicI32, AtomicUsize};

    use futures_util::TryStreamExt;
    use puna_store::Store;

    use super::*;
    use crate::library::Blob;
    use crate::library::folder::blocking;

    struct Bench {
        _dir: tempfile::TempDir,
        store: Arc<Store>,
        folder: Folder,
        checks: Checks,
        /// How often a file was read.
        reads: Arc<AtomicUsize>,
        /// What reading ends with, if that is an error.
        error: Arc<AtomicI32>,
    }

    fn bench(again: Duration) -> Bench {
        bench_with(again, Vec::new())
    }

    fn bench_with(again: Duration, others: Vec<PathBuf>) -> Bench {
        let dir = tempfile::tempdir().unwrap();
        let store = Arc::new(Store::open(dir.path()).unwrap().with_others(others));
        let folder = Folder::new(store.clone());
        let (reads, error) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicI32::new(0)));
        let (count, fault) = (reads.clone(), error.clone());
        let read = move |path: &Path| {
            count.fetch_add(1, Ordering::Relaxed);
            match fault.load(Ordering::Relaxed) {
                0 => Ok(Digest::of(&fs::read(path)?)),
                code => Err(io::Error::from_raw_os_error(code)),
            }
        };
        let checks = Checks::reading(folder.clone(), again, Box::new(read));
        Bench { _dir: dir, store, folder, checks, reads, error }
    }

    impl Bench {
        async fn blob(&self, digest: Digest) -> Option<FileBlob> {
            let checks = self.checks.clone();
            blocking(move || checks.open(&digest)).await.unwrap()
        }

        /// What somebody is given, when that has been checked.
        async fn read(&self, digest: Digest) -> Option<Vec<u8>> {
            let blob = Box::new(self.blob(digest).await?);
            let size = blob.size();
            let pieces: Vec<bytes::Bytes> = blob.read(0..size).try_collect().await.unwrap();
            self.checked().await;
            Some(pieces.concat())
        }

        /// Waits until nothing waits.
        async fn checked(&self) {
            while lock(&self.checks.0.state).at_work {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        }

        fn verdicts(&self) -> Vec<Verdict> {
            lock(&self.checks.0.state).known.values().map(|judged| judged.verdict).collect()
        }

        fn reads(&self) -> usize {
            self.reads.load(Ordering::Relaxed)
        }

        /// Gives a file a later time, as pulls do with what they find here.
        fn touch(&self, digest: &Digest) {
            let file = File::options().append(true).open(self.store.blob_path(digest)).unwrap();
            let later = file.metadata().unwrap().modified().unwrap() + Duration::from_secs(5);
            file.set_modified(later).unwrap();
        }

        /// The files that were put away.
        fn damaged(&self) -> Vec<String> {
            folder::names(&self.folder.damaged()).unwrap()
        }
    }

    #[tokio::test]
    async fn a_blob_is_read_once_more_and_then_known_by_its_file() {
        let bench = bench(Duration::ZERO);
        let blob = bench.store.add_blob(&[7; 1 << 20]).unwrap();
        assert!(bench.blob(blob.digest).await.is_some());
        assert_eq!((bench.verdicts(), bench.reads()), (vec![], 0), "nobody was given bytes");
        for _ in 0..3 {
            assert_eq!(bench.read(blob.digest).await.unwrap().len(), 1 << 20);
            assert_eq!((bench.verdicts(), bench.reads()), (vec![Verdict::Whole], 1));
        }
        // Somebody has written to it, for all that is known.
        bench.touch(&blob.digest);
        for _ in 0..2 {
            bench.read(blob.digest).await.unwrap();
            assert_eq!((bench.verdicts(), bench.reads()), (vec![Verdict::Whole], 2));
        }
        assert_eq!(bench.checks.lost(), 0);
    }

    #[tokio::test]
    async fn a_file_that_is_touched_again_and_again_is_not_read_each_time() {
        let bench = bench(AGAIN);
        let digest = bench.store.add_blob(b"weights of a model").unwrap().digest;
        for _ in 0..5 {
            bench.read(digest).await.unwrap();
            bench.touch(&digest);
        }
        assert_eq!((bench.verdicts(), bench.reads()), (vec![Verdict::Whole], 1));
    }

    #[tokio::test]
    async fn a_damaged_blob_is_served_no_more_under_any_of_its_names() {
        let bench = bench(AGAIN);
        let digest = bench.store.add_blob(b"weights of a model").unwrap().digest;
        bench.folder.take_from_store(&digest).unwrap();
        fs::write(bench.store.blob_path(&digest), b"weights of a moxel").unwrap();
        assert_eq!(bench.read(digest).await.unwrap(), b"weights of a moxel");
        assert_eq!(bench.reads(), 2, "it may be the memory that errs");
        assert_eq!(bench.read(digest).await, None);
        assert_eq!(bench.checks.lost(), 1);
        assert!(!bench.store.has_blob(&digest) && !bench.folder.blob(&digest).exists());
        assert_eq!(bench.damaged(), [digest.file_name()]);
        assert_eq!(fs::read(bench.folder.damaged().join(digest.file_name())).unwrap(), b"weights of a moxel");
        // A good one takes its place.
        bench.store.add_blob(b"weights of a model").unwrap();
        for _ in 0..2 {
            assert_eq!(bench.read(digest).await.unwrap(), b"weights of a model");
        }
        assert_eq!((bench.checks.lost(), bench.reads()), (1, 3));
    }

    #[tokio::test]
    async fn a_blob_that_the_disk_does_not_give_is_damaged() {
        let bench = bench(AGAIN);
        let digest = bench.store.add_blob(b"weights of a model").unwrap().digest;
        // What a process has too much of says nothing of the file.
        bench.error.store(24, Ordering::Relaxed);
        bench.read(digest).await.unwrap();
        assert_eq!((bench.verdicts(), bench.checks.lost()), (vec![], 0));
        bench.error.store(5, Ordering::Relaxed);
        assert!(bench.read(digest).await.is_some(), "nobody knows yet");
        assert_eq!(bench.read(digest).await, None);
        assert_eq!((bench.checks.lost(), bench.damaged()), (1, vec![digest.file_name()]));
        assert!(!bench.store.has_blob(&digest));
    }

    #[tokio::test]
    async fn a_file_that_was_whole_is_read_again_when_somebody_cannot_be_given_its_bytes() {
        let bench = bench(AGAIN);
        let digest = bench.store.add_blob(b"weights of a model").unwrap().digest;
        bench.read(digest).await.unwrap();
        let blob = Box::new(bench.blob(digest).await.unwrap());
        let size = blob.size();
        File::options().write(true).open(bench.store.blob_path(&digest)).unwrap().set_len(3).unwrap();
        let given: Result<Vec<bytes::Bytes>, _> = blob.read(0..size).try_collect().await;
        assert!(given.is_err());
        bench.checked().await;
        assert_eq!(bench.verdicts(), [], "it is another file now");
        assert_eq!(bench.read(digest).await.unwrap(), b"wei");
        assert_eq!(bench.read(digest).await, None);
    }

    #[test]
    fn a_file_that_comes_in_the_place_of_a_damaged_one_is_put_back() {
        let bench = bench(AGAIN);
        let digest = bench.store.add_blob(b"weights of a model").unwrap().digest;
        let place = bench.store.blob_path(&digest);
        let good = Stamp::at(&place).unwrap();
        let elsewhere = bench.folder.store.root().join("other");
        fs::write(&elsewhere, b"weights of a moxel").unwrap();
        let damaged = Known { digest, stamp: Stamp::at(&elsewhere).unwrap() };
        assert_eq!(bench.folder.take_away(&place, &damaged), Ok(None));
        assert!(Stamp::at(&place).unwrap().has_bytes_of(&good));
        assert_eq!(bench.damaged(), [""; 0]);
        fs::rename(&elsewhere, &place).unwrap();
        assert!(bench.folder.take_away(&place, &damaged).unwrap().is_some());
        assert_eq!(bench.folder.take_away(&place, &damaged), Ok(None), "there is none");
    }

    #[cfg(unix)]
    #[tokio::test]
    async fn a_damaged_blob_of_a_folder_that_is_only_read_makes_room_for_a_good_one() {
        let other = bench(AGAIN);
        let digest = other.store.add_blob(b"weights of a model").unwrap().digest;
        let place = other.store.blob_path(&digest);
        fs::write(&place, b"weights of a moxel").unwrap();
        let bench = bench_with(AGAIN, vec![other.store.root().to_owned()]);
        assert!(bench.read(digest).await.is_some());
        assert_eq!(bench.read(digest).await, None);
        assert!(place.exists(), "folders that are only read stay as they are");
        assert_eq!(bench.checks.lost(), 1);
        // A download would find it here.
        assert!(!bench.store.has_blob(&digest) && !bench.store.hold_blob(&digest, 18));
        bench.store.add_blob(b"weights of a model").unwrap();
        assert_eq!(bench.read(digest).await.unwrap(), b"weights of a model");
        fs::remove_file(bench.store.blob_path(&digest)).unwrap();
        // Mended where it is, it counts again.
        tokio::time::sleep(Duration::from_millis(20)).await;
        fs::write(&place, b"weights of a model").unwrap();
        assert_eq!(bench.read(digest).await.unwrap(), b"weights of a model");
        assert!(bench.read(digest).await.is_some());
    }
}
