//! Tests of checks while blobs are served.

use std::sync::atomic::{AtomicI32, AtomicUsize};
use std::sync::mpsc;

use futures_util::{StreamExt, TryStreamExt};
use puna_store::{Digest, Store};

use super::*;
use crate::blocking::blocking;
use crate::storage::Blob;
use crate::storage::fs::blobs::FileBlob;

struct TestChecker {
    _dir: tempfile::TempDir,
    store: Arc<Store>,
    registry: RegistryDir,
    checks: IntegrityChecker,
    /// Number of times that a file was read.
    reads: Arc<AtomicUsize>,
    /// Error code that reads end with; 0 for none.
    error: Arc<AtomicI32>,
}

/// One thread; no blob counts as small.
const SETTINGS: CheckSettings = CheckSettings {
    recheck_interval: RECHECK_INTERVAL,
    small_blob_bytes: 0,
    slice_bytes: 64 << 20,
    threads: 1,
};

fn start(settings: CheckSettings) -> TestChecker {
    start_with_dirs(settings, Vec::new())
}

fn start_with_dirs(settings: CheckSettings, others: Vec<PathBuf>) -> TestChecker {
    let dir = tempfile::tempdir().unwrap();
    let store = Arc::new(Store::open(dir.path()).unwrap().with_read_only_dirs(others));
    let registry = RegistryDir::new(store.clone());
    let (reads, error) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicI32::new(0)));
    let (count, fault) = (reads.clone(), error.clone());
    let read = move |file: &File, bytes: &mut [u8], at: u64| {
        count.fetch_add(usize::from(at == 0), Ordering::Relaxed);
        match fault.load(Ordering::Relaxed) {
            0 => read_some_at(file, bytes, at),
            code => Err(io::Error::from_raw_os_error(code)),
        }
    };
    let checks = IntegrityChecker::with_reader(registry.clone(), settings, Box::new(read));
    TestChecker { _dir: dir, store, registry, checks, reads, error }
}

impl TestChecker {
    async fn blob(&self, digest: Digest) -> Option<FileBlob> {
        let (registry, checks) = (self.registry.clone(), self.checks.clone());
        blocking(move || registry.open_blob(&digest, &checks)).await.unwrap()
    }

    /// Reads a blob and waits for its check. Returns the content or the error that ended the
    /// stream.
    async fn read(&self, digest: Digest) -> Option<Result<Vec<u8>, String>> {
        let blob = Box::new(self.blob(digest).await?);
        let size = blob.size();
        let pieces: Result<Vec<bytes::Bytes>, _> = blob.read(0..size).try_collect().await;
        self.checked().await;
        Some(pieces.map(|pieces| pieces.concat()).map_err(|error| error.to_string()))
    }

    /// Content of an intact blob.
    async fn whole(&self, digest: Digest) -> Vec<u8> {
        self.read(digest).await.expect("it is here").unwrap()
    }

    /// Error that ended the stream.
    async fn refused(&self, digest: Digest) -> String {
        self.read(digest).await.expect("nobody knows yet").unwrap_err()
    }

    /// Waits until all checks have ended.
    async fn checked(&self) {
        while lock(&self.checks.0.state).threads > 0 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    fn verdicts(&self) -> Vec<&'static str> {
        let word = |record: &CheckRecord| match record.verdict {
            Verdict::Pending(_) => "unread",
            Verdict::Intact => "whole",
            Verdict::Damaged => "damaged",
        };
        lock(&self.checks.0.state).records.values().map(word).collect()
    }

    fn reads(&self) -> usize {
        self.reads.load(Ordering::Relaxed)
    }

    /// Sets a later modification time, as pulls do.
    fn touch(&self, digest: &Digest) {
        let file = File::options().append(true).open(self.store.blob_path(digest)).unwrap();
        let later = file.metadata().unwrap().modified().unwrap() + Duration::from_secs(5);
        file.set_modified(later).unwrap();
    }

    /// Names of quarantined files.
    fn damaged(&self) -> Vec<String> {
        registry_dir::file_names(&self.registry.damaged()).unwrap()
    }
}

#[tokio::test]
async fn a_blob_is_checked_once_per_file() {
    let test = start(CheckSettings { recheck_interval: Duration::ZERO, ..SETTINGS });
    let blob = test.store.add_blob(&[7; 1 << 20]).unwrap();
    assert!(test.blob(blob.digest).await.is_some());
    assert_eq!((test.verdicts(), test.reads()), (vec![], 0), "nobody was given bytes");
    for _ in 0..3 {
        assert_eq!(test.whole(blob.digest).await.len(), 1 << 20);
        assert_eq!((test.verdicts(), test.reads()), (vec!["whole"], 1));
    }
    // The changed time may mean that the content has changed.
    test.touch(&blob.digest);
    for _ in 0..2 {
        test.whole(blob.digest).await;
        assert_eq!((test.verdicts(), test.reads()), (vec!["whole"], 2));
    }
    assert_eq!(test.checks.damaged_blob_count(), 0);
}

#[tokio::test]
async fn touched_files_are_not_checked_each_time() {
    let test = start(SETTINGS);
    let digest = test.store.add_blob(b"weights of a model").unwrap().digest;
    for _ in 0..5 {
        test.whole(digest).await;
        test.touch(&digest);
    }
    assert_eq!((test.verdicts(), test.reads()), (vec!["whole"], 1));
}

#[tokio::test]
async fn a_damaged_blob_is_never_served_completely_and_is_refused_afterwards() {
    let test = start(SETTINGS);
    let digest = test.store.add_blob(b"weights of a model").unwrap().digest;
    test.registry.link_from_store(&digest).unwrap();
    fs::write(test.store.blob_path(&digest), b"weights of a moxel").unwrap();
    let blob = Box::new(test.blob(digest).await.unwrap());
    let late = Box::new(test.blob(digest).await.unwrap());
    let served: Vec<_> = blob.read(0..18).collect().await;
    let [Ok(first), Err(why)] = &served[..] else { panic!("{served:?}") };
    assert_eq!(first, &b"weights of a moxe"[..]);
    assert!(
        why.to_string().contains("damaged on disk: the content does not match the digest"),
        "{why}"
    );
    test.checked().await;
    assert_eq!(test.reads(), 2, "it may be the memory that errs");
    // A client that opened the file before.
    let served: Vec<_> = late.read(0..18).collect().await;
    assert!(matches!(&served[..], [Err(_)]), "{served:?}");
    assert_eq!(test.read(digest).await, None);
    assert_eq!(test.checks.damaged_blob_count(), 1);
    assert!(!test.store.has_blob(&digest) && !test.registry.blob(&digest).exists());
    assert_eq!(test.damaged(), [digest.file_name()]);
    assert_eq!(
        fs::read(test.registry.damaged().join(digest.file_name())).unwrap(),
        b"weights of a moxel"
    );
    // An intact blob takes its place.
    test.store.add_blob(b"weights of a model").unwrap();
    for _ in 0..2 {
        assert_eq!(test.whole(digest).await, b"weights of a model");
    }
    assert_eq!((test.checks.damaged_blob_count(), test.reads()), (1, 3));
}

#[tokio::test]
async fn no_byte_of_a_damaged_small_blob_is_served() {
    let test = start(CheckSettings { small_blob_bytes: 18, ..SETTINGS });
    let digest = test.store.add_blob(b"weights of a model").unwrap().digest;
    assert_eq!(test.whole(digest).await, b"weights of a model");
    assert_eq!(test.whole(digest).await, b"weights of a model");
    assert_eq!((test.verdicts(), test.reads()), (vec!["whole"], 1));
    let other = test.store.add_blob(b"another template").unwrap().digest;
    fs::write(test.store.blob_path(&other), b"another xemplate").unwrap();
    assert!(test.blob(other).await.is_none());
    assert_eq!((test.checks.damaged_blob_count(), test.damaged()), (1, vec![other.file_name()]));
}

#[tokio::test]
async fn ranges_without_the_last_byte_do_not_wait() {
    let test = start(SETTINGS);
    let digest = test.store.add_blob(b"weights of a model").unwrap().digest;
    fs::write(test.store.blob_path(&digest), b"weights of a moxel").unwrap();
    let blob = Box::new(test.blob(digest).await.unwrap());
    let served: Vec<_> = blob.read(0..7).try_collect::<Vec<_>>().await.unwrap();
    assert_eq!(served.concat(), b"weights");
    test.checked().await;
    assert!(test.blob(digest).await.is_none());
}

#[tokio::test]
async fn a_blob_removed_while_it_is_read_is_served_completely() {
    let test = start(SETTINGS);
    let digest = test.store.add_blob(b"weights of a model").unwrap().digest;
    let blob = Box::new(test.blob(digest).await.unwrap());
    fs::remove_file(test.store.blob_path(&digest)).unwrap();
    let served: Vec<_> = blob.read(0..18).try_collect::<Vec<_>>().await.unwrap();
    assert_eq!(served.concat(), b"weights of a model");
}

#[tokio::test]
async fn small_blobs_do_not_wait_for_large_ones() {
    let dir = tempfile::tempdir().unwrap();
    let registry = RegistryDir::new(Arc::new(Store::open(dir.path()).unwrap()));
    let (large, little) = [&[1; 5 << 20][..], &[2; 3]]
        .map(|bytes| registry.store.add_blob(bytes).unwrap().digest)
        .into();
    let (go, wait) = mpsc::channel::<()>();
    let wait = Mutex::new(wait);
    // The test controls reads of the large blob.
    let read = move |file: &File, bytes: &mut [u8], at: u64| {
        if file.metadata()?.len() > 3 {
            let _ = lock(&wait).recv();
        }
        read_some_at(file, bytes, at)
    };
    let settings = CheckSettings { slice_bytes: 1 << 20, ..SETTINGS };
    let checks = IntegrityChecker::with_reader(registry.clone(), settings, Box::new(read));
    let open = |digest| Box::new(registry.open_blob(&digest, &checks).unwrap().unwrap());
    let mut slow = open(large).read(0..5 << 20);
    let fast = tokio::spawn(open(little).read(0..3).try_collect::<Vec<_>>());
    // One of five slices was read, and the end of the small blob.
    go.send(()).unwrap();
    assert_eq!(fast.await.unwrap().unwrap().concat(), [2; 3]);
    let mut served = 0;
    while served < (5 << 20) - 1 {
        served += slow.next().await.expect("it comes as far as it may").unwrap().len();
    }
    drop(go);
    let rest: Vec<_> = slow.try_collect::<Vec<_>>().await.unwrap();
    assert_eq!(rest.concat(), [1], "the last byte by itself");
}

#[tokio::test]
async fn read_errors_of_the_disk_mean_damage() {
    let test = start(SETTINGS);
    let digest = test.store.add_blob(b"weights of a model").unwrap().digest;
    // EMFILE concerns the process, not the file.
    test.error.store(24, Ordering::Relaxed);
    assert!(test.refused(digest).await.contains("it could not be verified"));
    assert_eq!((test.verdicts(), test.checks.damaged_blob_count()), (vec![], 0));
    test.error.store(5, Ordering::Relaxed);
    assert!(test.refused(digest).await.contains("it cannot be read"));
    assert_eq!(test.read(digest).await, None);
    assert_eq!((test.checks.damaged_blob_count(), test.damaged()), (1, vec![digest.file_name()]));
    assert!(!test.store.has_blob(&digest));
}

#[tokio::test]
async fn a_read_error_starts_a_new_check() {
    let test = start(SETTINGS);
    let digest = test.store.add_blob(b"weights of a model").unwrap().digest;
    test.whole(digest).await;
    let blob = Box::new(test.blob(digest).await.unwrap());
    let size = blob.size();
    File::options().write(true).open(test.store.blob_path(&digest)).unwrap().set_len(3).unwrap();
    let served: Result<Vec<bytes::Bytes>, _> = blob.read(0..size).try_collect().await;
    assert!(served.is_err());
    test.checked().await;
    assert!(test.verdicts().is_empty(), "it is another file now");
    assert!(test.refused(digest).await.contains("damaged"));
    assert_eq!(test.read(digest).await, None);
}

#[test]
fn a_file_that_replaces_a_damaged_one_is_restored() {
    let test = start(SETTINGS);
    let digest = test.store.add_blob(b"weights of a model").unwrap().digest;
    let place = test.store.blob_path(&digest);
    let good = FileFingerprint::at(&place).unwrap();
    let elsewhere = test.registry.store.root().join("other");
    fs::write(&elsewhere, b"weights of a moxel").unwrap();
    let damaged = BlobFile { digest, stamp: FileFingerprint::at(&elsewhere).unwrap() };
    assert_eq!(test.registry.move_to_damaged(&place, &damaged), Ok(None));
    assert!(FileFingerprint::at(&place).unwrap().same_content_as(&good));
    assert_eq!(test.damaged(), [""; 0]);
    fs::rename(&elsewhere, &place).unwrap();
    assert!(test.registry.move_to_damaged(&place, &damaged).unwrap().is_some());
    assert_eq!(test.registry.move_to_damaged(&place, &damaged), Ok(None), "there is none");
}

#[cfg(unix)]
#[tokio::test]
async fn a_damaged_blob_of_a_read_only_directory_is_skipped() {
    let other = start(SETTINGS);
    let digest = other.store.add_blob(b"weights of a model").unwrap().digest;
    let place = other.store.blob_path(&digest);
    fs::write(&place, b"weights of a moxel").unwrap();
    let test = start_with_dirs(SETTINGS, vec![other.store.root().to_owned()]);
    assert!(test.refused(digest).await.contains("damaged"));
    assert_eq!(test.read(digest).await, None);
    assert!(place.exists(), "folders that are only read stay as they are");
    assert_eq!(test.checks.damaged_blob_count(), 1);
    // A download would find the blob here.
    assert!(!test.store.has_blob(&digest) && !test.store.pin_blob(&digest, 18));
    test.store.add_blob(b"weights of a model").unwrap();
    assert_eq!(test.whole(digest).await, b"weights of a model");
    fs::remove_file(test.store.blob_path(&digest)).unwrap();
    // A repaired file counts again.
    tokio::time::sleep(Duration::from_millis(20)).await;
    fs::write(&place, b"weights of a model").unwrap();
    assert_eq!(test.whole(digest).await, b"weights of a model");
    assert_eq!(test.whole(digest).await, b"weights of a model");
}
