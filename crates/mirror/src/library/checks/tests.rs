//! Blobs that are read once more while they are given out.

use std::sync::atomic::{AtomicI32, AtomicUsize};
use std::sync::mpsc;

use futures_util::{StreamExt, TryStreamExt};
use puna_store::Store;

use super::*;
use crate::library::Blob;
use crate::waiting::blocking;

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

/// Of one thread, for which no blob is small.
const MANNER: Manner = Manner { again: AGAIN, small: 0, slice: 64 << 20, threads: 1 };

fn bench(manner: Manner) -> Bench {
    bench_with(manner, Vec::new())
}

fn bench_with(manner: Manner, others: Vec<PathBuf>) -> Bench {
    let dir = tempfile::tempdir().unwrap();
    let store = Arc::new(Store::open(dir.path()).unwrap().with_others(others));
    let folder = Folder::new(store.clone());
    let (reads, error) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicI32::new(0)));
    let (count, fault) = (reads.clone(), error.clone());
    let read = move |file: &File, bytes: &mut [u8], at: u64| {
        count.fetch_add(usize::from(at == 0), Ordering::Relaxed);
        match fault.load(Ordering::Relaxed) {
            0 => read_some_at(file, bytes, at),
            code => Err(io::Error::from_raw_os_error(code)),
        }
    };
    let checks = Checks::reading(folder.clone(), manner, Box::new(read));
    Bench { _dir: dir, store, folder, checks, reads, error }
}

impl Bench {
    async fn blob(&self, digest: Digest) -> Option<FileBlob> {
        let checks = self.checks.clone();
        blocking(move || checks.open(&digest)).await.unwrap()
    }

    /// What somebody is given of a blob, when that has been checked; the error that it broke off with.
    async fn read(&self, digest: Digest) -> Option<Result<Vec<u8>, String>> {
        let blob = Box::new(self.blob(digest).await?);
        let size = blob.size();
        let pieces: Result<Vec<bytes::Bytes>, _> = blob.read(0..size).try_collect().await;
        self.checked().await;
        Some(pieces.map(|pieces| pieces.concat()).map_err(|error| error.to_string()))
    }

    /// The same of one that is whole.
    async fn whole(&self, digest: Digest) -> Vec<u8> {
        self.read(digest).await.expect("it is here").unwrap()
    }

    /// Why somebody is not given all of a blob.
    async fn refused(&self, digest: Digest) -> String {
        self.read(digest).await.expect("nobody knows yet").unwrap_err()
    }

    /// Waits until nothing waits.
    async fn checked(&self) {
        while lock(&self.checks.0.state).threads > 0 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    fn verdicts(&self) -> Vec<&'static str> {
        let word = |judged: &Judged| match judged.verdict {
            Verdict::Unread(_) => "unread",
            Verdict::Whole => "whole",
            Verdict::Damaged => "damaged",
        };
        lock(&self.checks.0.state).known.values().map(word).collect()
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
    let bench = bench(Manner { again: Duration::ZERO, ..MANNER });
    let blob = bench.store.add_blob(&[7; 1 << 20]).unwrap();
    assert!(bench.blob(blob.digest).await.is_some());
    assert_eq!((bench.verdicts(), bench.reads()), (vec![], 0), "nobody was given bytes");
    for _ in 0..3 {
        assert_eq!(bench.whole(blob.digest).await.len(), 1 << 20);
        assert_eq!((bench.verdicts(), bench.reads()), (vec!["whole"], 1));
    }
    // Somebody has written to it, for all that is known.
    bench.touch(&blob.digest);
    for _ in 0..2 {
        bench.whole(blob.digest).await;
        assert_eq!((bench.verdicts(), bench.reads()), (vec!["whole"], 2));
    }
    assert_eq!(bench.checks.lost(), 0);
}

#[tokio::test]
async fn a_file_that_is_touched_again_and_again_is_not_read_each_time() {
    let bench = bench(MANNER);
    let digest = bench.store.add_blob(b"weights of a model").unwrap().digest;
    for _ in 0..5 {
        bench.whole(digest).await;
        bench.touch(&digest);
    }
    assert_eq!((bench.verdicts(), bench.reads()), (vec!["whole"], 1));
}

#[tokio::test]
async fn a_damaged_blob_is_never_given_out_wholly_and_then_served_no_more_under_any_of_its_names() {
    let bench = bench(MANNER);
    let digest = bench.store.add_blob(b"weights of a model").unwrap().digest;
    bench.folder.take_from_store(&digest).unwrap();
    fs::write(bench.store.blob_path(&digest), b"weights of a moxel").unwrap();
    let blob = Box::new(bench.blob(digest).await.unwrap());
    let late = Box::new(bench.blob(digest).await.unwrap());
    let given: Vec<_> = blob.read(0..18).collect().await;
    let [Ok(first), Err(why)] = &given[..] else { panic!("{given:?}") };
    assert_eq!(first, &b"weights of a moxe"[..]);
    assert!(
        why.to_string().contains("damaged on the disk: it has other bytes than its name says"),
        "{why}"
    );
    bench.checked().await;
    assert_eq!(bench.reads(), 2, "it may be the memory that errs");
    // One who had it open before.
    let given: Vec<_> = late.read(0..18).collect().await;
    assert!(matches!(&given[..], [Err(_)]), "{given:?}");
    assert_eq!(bench.read(digest).await, None);
    assert_eq!(bench.checks.lost(), 1);
    assert!(!bench.store.has_blob(&digest) && !bench.folder.blob(&digest).exists());
    assert_eq!(bench.damaged(), [digest.file_name()]);
    assert_eq!(
        fs::read(bench.folder.damaged().join(digest.file_name())).unwrap(),
        b"weights of a moxel"
    );
    // A good one takes its place.
    bench.store.add_blob(b"weights of a model").unwrap();
    for _ in 0..2 {
        assert_eq!(bench.whole(digest).await, b"weights of a model");
    }
    assert_eq!((bench.checks.lost(), bench.reads()), (1, 3));
}

#[tokio::test]
async fn of_a_small_blob_that_is_damaged_nothing_is_given_out() {
    let bench = bench(Manner { small: 18, ..MANNER });
    let digest = bench.store.add_blob(b"weights of a model").unwrap().digest;
    assert_eq!(bench.whole(digest).await, b"weights of a model");
    assert_eq!(bench.whole(digest).await, b"weights of a model");
    assert_eq!((bench.verdicts(), bench.reads()), (vec!["whole"], 1));
    let other = bench.store.add_blob(b"another template").unwrap().digest;
    fs::write(bench.store.blob_path(&other), b"another xemplate").unwrap();
    assert!(bench.blob(other).await.is_none());
    assert_eq!((bench.checks.lost(), bench.damaged()), (1, vec![other.file_name()]));
}

#[tokio::test]
async fn a_part_of_a_blob_without_its_last_byte_waits_for_nothing() {
    let bench = bench(MANNER);
    let digest = bench.store.add_blob(b"weights of a model").unwrap().digest;
    fs::write(bench.store.blob_path(&digest), b"weights of a moxel").unwrap();
    let blob = Box::new(bench.blob(digest).await.unwrap());
    let given: Vec<_> = blob.read(0..7).try_collect::<Vec<_>>().await.unwrap();
    assert_eq!(given.concat(), b"weights");
    bench.checked().await;
    assert!(bench.blob(digest).await.is_none());
}

#[tokio::test]
async fn a_blob_that_is_removed_while_it_is_read_is_given_out_wholly() {
    let bench = bench(MANNER);
    let digest = bench.store.add_blob(b"weights of a model").unwrap().digest;
    let blob = Box::new(bench.blob(digest).await.unwrap());
    fs::remove_file(bench.store.blob_path(&digest)).unwrap();
    let given: Vec<_> = blob.read(0..18).try_collect::<Vec<_>>().await.unwrap();
    assert_eq!(given.concat(), b"weights of a model");
}

#[tokio::test]
async fn a_blob_that_came_later_does_not_wait_for_the_end_of_a_large_one() {
    let dir = tempfile::tempdir().unwrap();
    let folder = Folder::new(Arc::new(Store::open(dir.path()).unwrap()));
    let (large, little) = [&[1; 5 << 20][..], &[2; 3]]
        .map(|bytes| folder.store.add_blob(bytes).unwrap().digest)
        .into();
    let (go, wait) = mpsc::channel::<()>();
    let wait = Mutex::new(wait);
    // A large one is read as the test lets it.
    let read = move |file: &File, bytes: &mut [u8], at: u64| {
        if file.metadata()?.len() > 3 {
            let _ = lock(&wait).recv();
        }
        read_some_at(file, bytes, at)
    };
    let manner = Manner { slice: 1 << 20, ..MANNER };
    let checks = Checks::reading(folder, manner, Box::new(read));
    let open = |digest| Box::new(checks.open(&digest).unwrap().unwrap());
    let mut slow = open(large).read(0..5 << 20);
    let fast = tokio::spawn(open(little).read(0..3).try_collect::<Vec<_>>());
    // Of five slices one, with the look for the end of none.
    go.send(()).unwrap();
    assert_eq!(fast.await.unwrap().unwrap().concat(), [2; 3]);
    let mut given = 0;
    while given < (5 << 20) - 1 {
        given += slow.next().await.expect("it comes as far as it may").unwrap().len();
    }
    drop(go);
    let rest: Vec<_> = slow.try_collect::<Vec<_>>().await.unwrap();
    assert_eq!(rest.concat(), [1], "the last byte by itself");
}

#[tokio::test]
async fn a_blob_that_the_disk_does_not_give_is_damaged() {
    let bench = bench(MANNER);
    let digest = bench.store.add_blob(b"weights of a model").unwrap().digest;
    // What a process has too much of says nothing of the file.
    bench.error.store(24, Ordering::Relaxed);
    assert!(bench.refused(digest).await.contains("it is not checked"));
    assert_eq!((bench.verdicts(), bench.checks.lost()), (vec![], 0));
    bench.error.store(5, Ordering::Relaxed);
    assert!(bench.refused(digest).await.contains("it cannot be read"));
    assert_eq!(bench.read(digest).await, None);
    assert_eq!((bench.checks.lost(), bench.damaged()), (1, vec![digest.file_name()]));
    assert!(!bench.store.has_blob(&digest));
}

#[tokio::test]
async fn a_file_that_was_whole_is_read_again_when_somebody_cannot_be_given_its_bytes() {
    let bench = bench(MANNER);
    let digest = bench.store.add_blob(b"weights of a model").unwrap().digest;
    bench.whole(digest).await;
    let blob = Box::new(bench.blob(digest).await.unwrap());
    let size = blob.size();
    File::options().write(true).open(bench.store.blob_path(&digest)).unwrap().set_len(3).unwrap();
    let given: Result<Vec<bytes::Bytes>, _> = blob.read(0..size).try_collect().await;
    assert!(given.is_err());
    bench.checked().await;
    assert!(bench.verdicts().is_empty(), "it is another file now");
    assert!(bench.refused(digest).await.contains("damaged"));
    assert_eq!(bench.read(digest).await, None);
}

#[test]
fn a_file_that_comes_in_the_place_of_a_damaged_one_is_put_back() {
    let bench = bench(MANNER);
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
    let other = bench(MANNER);
    let digest = other.store.add_blob(b"weights of a model").unwrap().digest;
    let place = other.store.blob_path(&digest);
    fs::write(&place, b"weights of a moxel").unwrap();
    let bench = bench_with(MANNER, vec![other.store.root().to_owned()]);
    assert!(bench.refused(digest).await.contains("damaged"));
    assert_eq!(bench.read(digest).await, None);
    assert!(place.exists(), "folders that are only read stay as they are");
    assert_eq!(bench.checks.lost(), 1);
    // A download would find it here.
    assert!(!bench.store.has_blob(&digest) && !bench.store.hold_blob(&digest, 18));
    bench.store.add_blob(b"weights of a model").unwrap();
    assert_eq!(bench.whole(digest).await, b"weights of a model");
    fs::remove_file(bench.store.blob_path(&digest)).unwrap();
    // Mended where it is, it counts again.
    tokio::time::sleep(Duration::from_millis(20)).await;
    fs::write(&place, b"weights of a model").unwrap();
    assert_eq!(bench.whole(digest).await, b"weights of a model");
    assert_eq!(bench.whole(digest).await, b"weights of a model");
}
