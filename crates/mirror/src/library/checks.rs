//! Whether blobs still are what their names say. Disks give back other bytes than they were given, and say nothing; clients find out,
//! but only after they have fetched everything, and again each time.
//!
//! So a blob is read once more when somebody is first given bytes of it: by one thread, behind all that answers. What is damaged is put
//! away and served no more; a library that others stand behind fetches it again. What was found whole is known by its file, as long as
//! nobody writes to that, until the mirror ends.

use std::collections::{HashMap, VecDeque};
use std::fs::{self, File, Metadata};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use puna_store::{Digest, sync_dir};

use super::blobs::FileBlob;
use super::folder::{self, Folder};
use crate::error::MirrorError;
use crate::lock::lock;

/// Files that are remembered.
const MAX_KNOWN: usize = 100_000;

/// Reads blobs once more. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Checks(Arc<Inner>);

struct Inner {
    folder: Folder,
    state: Mutex<State>,
    /// Blobs that were put away.
    lost: AtomicU64,
}

#[derive(Default)]
struct State {
    known: HashMap<Known, Verdict>,
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

/// What is known of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Unread,
    Whole,
    Damaged,
}

/// What tells a file from others, and from itself before it was written to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Stamp {
    file: (u64, u64),
    size: u64,
    modified: Option<SystemTime>,
}

impl Stamp {
    fn of(meta: &Metadata) -> Self {
        Self { file: identity(meta), size: meta.len(), modified: meta.modified().ok() }
    }

    fn is_of(&self, path: &Path) -> bool {
        fs::metadata(path).is_ok_and(|meta| Self::of(&meta) == *self)
    }
}

#[cfg(unix)]
fn identity(meta: &Metadata) -> (u64, u64) {
    use std::os::unix::fs::MetadataExt;
    (meta.dev(), meta.ino())
}

#[cfg(not(unix))]
fn identity(_: &Metadata) -> (u64, u64) {
    (0, 0)
}

impl Checks {
    pub(crate) fn new(folder: Folder) -> Self {
        Self(Arc::new(Inner { folder, state: Mutex::default(), lost: AtomicU64::new(0) }))
    }

    /// How many blobs were put away.
    pub(crate) fn lost(&self) -> u64 {
        self.0.lost.load(Ordering::Relaxed)
    }

    /// An open blob, unless it is known to be damaged. Waits for the disk.
    pub(crate) fn open(&self, digest: &Digest) -> Result<Option<FileBlob>, MirrorError> {
        for path in self.0.folder.places(digest) {
            let Some(blob) = FileBlob::open(&path)? else { continue };
            let meta = blob.metadata().map_err(folder::io("read", &path))?;
            let known = Known { digest: *digest, stamp: Stamp::of(&meta) };
            if lock(&self.0.state).known.get(&known) != Some(&Verdict::Damaged) {
                return Ok(Some(blob.checked(self.clone(), known)));
            }
        }
        Ok(None)
    }

    /// Somebody is given bytes of a blob: has it read once more, if it was not.
    pub(crate) fn given(&self, known: Known) {
        let mut state = lock(&self.0.state);
        if state.known.contains_key(&known) {
            return;
        }
        if state.known.len() >= MAX_KNOWN {
            state.known.retain(|_, verdict| *verdict != Verdict::Whole);
        }
        state.known.insert(known, Verdict::Unread);
        state.waiting.push_back(known);
        if state.at_work {
            return;
        }
        let checks = self.clone();
        let begun = std::thread::Builder::new().name("puna-check".into()).spawn(move || checks.work());
        state.at_work = begun.inspect_err(|error| tracing::warn!(%error, "blobs are not checked")).is_ok();
    }

    /// Reads what waits.
    fn work(&self) {
        step_back();
        loop {
            let known = {
                let mut state = lock(&self.0.state);
                let Some(known) = state.waiting.pop_front() else {
                    state.at_work = false;
                    return;
                };
                known
            };
            match self.is_damaged(&known) {
                Ok(true) => self.put_away(&known),
                Ok(false) => _ = lock(&self.0.state).known.insert(known, Verdict::Whole),
                Err(error) => {
                    let digest = known.digest;
                    tracing::error!(%digest, %error, "this blob cannot be read, or is gone: it is not checked");
                    lock(&self.0.state).known.remove(&known);
                }
            }
        }
    }

    /// Whether a file has other bytes than its name says; found twice, since it may be the memory that errs.
    fn is_damaged(&self, known: &Known) -> io::Result<bool> {
        let places = self.0.folder.places(&known.digest);
        let place = places.iter().find(|place| known.stamp.is_of(place));
        let place = place.ok_or(io::ErrorKind::NotFound)?;
        let differs = || Ok::<_, io::Error>(Digest::of_reader(&mut File::open(place)?)?.0 != known.digest);
        Ok(differs()? && differs()? && known.stamp.is_of(place))
    }

    /// Puts a damaged blob where nobody is served from, for people to look at.
    fn put_away(&self, known: &Known) {
        let (folder, digest) = (&self.0.folder, &known.digest);
        let _changes = folder.changes();
        lock(&self.0.state).known.insert(*known, Verdict::Damaged);
        let mut away = None;
        // Folders that are only read are not ours to change.
        let own = |place: &PathBuf| place.starts_with(folder.store.root()) && known.stamp.is_of(place);
        // All names of the file are looked for before one changes its time.
        let places: Vec<_> = folder.places(digest).into_iter().filter(own).collect();
        for place in places {
            let moved = match away {
                None => folder.put_away(&place, digest).map(|to| away = Some(to)),
                // A second name of the same file.
                Some(_) => folder::remove(&place).map(drop),
            };
            if let Err(error) = moved {
                tracing::error!(%digest, %error, "a damaged blob stays where it is");
            }
        }
        self.0.lost.fetch_add(1, Ordering::Relaxed);
        let away = away.unwrap_or_default();
        tracing::error!(%digest, away = %away.display(), "this blob is damaged on the disk: it is served no more; pull or push it again where no upstream has it");
    }
}

impl Folder {
    fn put_away(&self, place: &Path, digest: &Digest) -> Result<PathBuf, MirrorError> {
        let dir = self.damaged();
        fs::create_dir_all(&dir).map_err(folder::io("create the folder", &dir))?;
        let to = dir.join(digest.file_name());
        fs::rename(place, &to).map_err(folder::io("move", place))?;
        sync_dir(&dir);
        // Whoever clears away looks at the time.
        let _ = File::options().append(true).open(&to).and_then(|file| file.set_modified(SystemTime::now()));
        Ok(to)
    }
}

/// Lets all others go first.
fn step_back() {
    // On Linux this is of the calling thread.
    #[cfg(target_os = "linux")]
    let _ = rustix::process::setpriority_process(None, 19);
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::TryStreamExt;
    use puna_store::Store;

    use super::*;
    use crate::library::{Library, StoreLibrary};

    struct Bench {
        _dir: tempfile::TempDir,
        store: Arc<Store>,
        library: StoreLibrary,
    }

    fn bench() -> Bench {
        let dir = tempfile::tempdir().unwrap();
        let store = Arc::new(Store::open(dir.path()).unwrap());
        Bench { _dir: dir, library: StoreLibrary::new(store.clone()), store }
    }

    impl Bench {
        async fn read(&self, digest: Digest) -> Option<Vec<u8>> {
            let blob = self.library.blob(digest).await.unwrap()?;
            let size = blob.size();
            let pieces: Vec<bytes::Bytes> = blob.read(0..size).try_collect().await.unwrap();
            Some(pieces.concat())
        }

        /// Waits until nothing waits.
        async fn checked(&self) {
            while lock(&self.library.checks().0.state).at_work {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        }

        fn verdicts(&self) -> Vec<Verdict> {
            lock(&self.library.checks().0.state).known.values().copied().collect()
        }
    }

    #[tokio::test]
    async fn a_blob_is_read_once_more_and_then_known_by_its_file() {
        let bench = bench();
        let blob = bench.store.add_blob(&[7; 1 << 20]).unwrap();
        assert!(bench.library.blob(blob.digest).await.unwrap().is_some());
        assert_eq!(bench.verdicts(), [], "nobody was given bytes");
        for _ in 0..3 {
            assert_eq!(bench.read(blob.digest).await.unwrap().len(), 1 << 20);
            bench.checked().await;
            assert_eq!(bench.verdicts(), [Verdict::Whole]);
        }
        // Written to since then: another file, for all that is known. Times have some granularity.
        tokio::time::sleep(Duration::from_millis(20)).await;
        fs::write(bench.store.blob_path(&blob.digest), [7; 1 << 20]).unwrap();
        bench.read(blob.digest).await.unwrap();
        bench.checked().await;
        assert_eq!(bench.verdicts(), [Verdict::Whole; 2]);
        assert_eq!(bench.library.lost(), 0);
    }

    #[tokio::test]
    async fn a_damaged_blob_is_served_no_more_under_any_of_its_names() {
        let bench = bench();
        let digest = bench.store.add_blob(b"weights of a model").unwrap().digest;
        let folder = Folder::new(bench.store.clone());
        folder.take_from_store(&digest).unwrap();
        fs::write(bench.store.blob_path(&digest), b"weights of a moxel").unwrap();
        assert_eq!(bench.read(digest).await.unwrap(), b"weights of a moxel");
        bench.checked().await;
        assert_eq!(bench.read(digest).await, None);
        assert_eq!(bench.library.lost(), 1);
        assert!(!bench.store.has_blob(&digest) && !folder.blob(&digest).exists());
        assert_eq!(fs::read(folder.damaged().join(digest.file_name())).unwrap(), b"weights of a moxel");
        // A good one takes its place.
        bench.store.add_blob(b"weights of a model").unwrap();
        for _ in 0..2 {
            assert_eq!(bench.read(digest).await.unwrap(), b"weights of a model");
            bench.checked().await;
        }
        assert_eq!(bench.library.lost(), 1);
    }

    #[cfg(unix)]
    #[tokio::test]
    async fn a_damaged_blob_that_cannot_be_put_away_is_not_served_either() {
        let other = bench();
        let digest = other.store.add_blob(b"weights of a model").unwrap().digest;
        let place = other.store.blob_path(&digest);
        fs::write(&place, b"weights of a moxel").unwrap();
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap().with_others(vec![other.store.root().to_owned()]);
        let bench = Bench { library: StoreLibrary::new(Arc::new(store)), ..other };
        assert!(bench.read(digest).await.is_some());
        bench.checked().await;
        assert_eq!(bench.read(digest).await, None);
        assert!(place.exists(), "folders that are only read stay as they are");
    }
}
