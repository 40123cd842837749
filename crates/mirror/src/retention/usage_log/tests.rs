use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime};

use puna_store::{Digest, Entry, ModelName, Store, StoreLocation};

use super::*;
use crate::storage::{FileStorage, ObjectInventory};

fn usage_log(time: &Arc<AtomicU64>) -> UsageLog {
    let time = time.clone();
    let clock = move || SystemTime::UNIX_EPOCH + Duration::from_secs(time.load(Relaxed));
    UsageLog::with_clock(Arc::new(clock)).unwrap()
}

fn name() -> Repository {
    Repository::parse("library/m").unwrap()
}

fn tag(tag: &str) -> Reference {
    Reference::Tag(tag.to_owned())
}

#[test]
fn unknown_items_count_as_arrived_now() {
    let time = Arc::new(AtomicU64::new(MIN_VALID_TIME + 5));
    let (usage_log, of) = (usage_log(&time), Digest::of(b"m"));
    let first = UsageTimes {
        arrived: MIN_VALID_TIME + 5,
        last_used: MIN_VALID_TIME + 5,
        is_from_mirror: false,
    };
    assert_eq!(usage_log.times(&name(), Some("t"), of), first);
    time.store(MIN_VALID_TIME + 500, Relaxed);
    assert_eq!(usage_log.times(&name(), Some("T"), of), first);
    // The tag moved, and no mirror recorded the change.
    let moved = usage_log.times(&name(), Some("t"), Digest::of(b"n"));
    assert_eq!((moved.arrived, moved.is_from_mirror), (MIN_VALID_TIME + 500, false));
    // A pull by digest counts as a pull of the tag.
    time.store(MIN_VALID_TIME + 900, Relaxed);
    usage_log.record_pull(&name(), &Reference::Digest(Digest::of(b"n")));
    assert_eq!(
        usage_log.times(&name(), Some("t"), Digest::of(b"n")).last_used,
        MIN_VALID_TIME + 900
    );
    assert_eq!(usage_log.last_pull(&name(), "t", &Digest::of(b"n")), Some(MIN_VALID_TIME + 900));
    assert_eq!(usage_log.last_pull(&name(), "t", &of), None);
}

#[test]
fn invalid_and_future_clock_times_are_ignored() {
    let time = Arc::new(AtomicU64::new(100));
    let (usage_log, of) = (usage_log(&time), Digest::of(b"m"));
    usage_log.record_arrival(&name(), &tag("t"), of, ChangeSource::Fetch, None);
    usage_log.record_pull(&name(), &tag("t"));
    time.store(MIN_VALID_TIME + 7, Relaxed);
    let times = usage_log.times(&name(), Some("t"), of);
    assert_eq!(
        times,
        UsageTimes {
            arrived: MIN_VALID_TIME + 7,
            last_used: MIN_VALID_TIME + 7,
            is_from_mirror: true
        }
    );
    time.store(MIN_VALID_TIME + 10 * SECONDS_PER_DAY, Relaxed);
    usage_log.record_pull(&name(), &tag("t"));
    time.store(MIN_VALID_TIME + SECONDS_PER_DAY, Relaxed);
    assert_eq!(
        usage_log.times(&name(), Some("t"), of).last_used,
        MIN_VALID_TIME + SECONDS_PER_DAY,
        "no later than now"
    );
}

/// A model of the store with a write time.
fn entry(digest: Digest, at: u64) -> Entry {
    Entry {
        name: ModelName::parse("m").unwrap(),
        digest,
        modified: SystemTime::UNIX_EPOCH + Duration::from_secs(at),
        manifest: puna_store::Manifest { config: None, layers: Vec::new() },
        location: StoreLocation::Own,
        runner: String::new(),
        list: None,
    }
}

#[test]
fn replaced_user_models_still_belong_to_the_user() {
    let usage_log = usage_log(&Arc::new(AtomicU64::new(MIN_VALID_TIME)));
    let digests = [b"a", b"b", b"c"].map(|of| Digest::of(of));
    let brought = |of: &str, digest| usage_log.times(&name(), Some(of), digest).is_from_mirror;
    let arrived = |of: &str, digest, by, replaced: Option<(Digest, u64)>| {
        let replaced = replaced.map(|(digest, at)| entry(digest, at));
        usage_log.record_arrival(&name(), &tag(of), digest, by, replaced.as_ref());
    };
    arrived("own", digests[1], ChangeSource::Fetch, Some((digests[0], MIN_VALID_TIME)));
    assert!(!brought("own", digests[1]));
    arrived("new", digests[0], ChangeSource::Fetch, None);
    arrived("new", digests[1], ChangeSource::Fetch, Some((digests[0], MIN_VALID_TIME)));
    assert!(brought("new", digests[1]));
    // Another program has replaced the model, with another or the same content.
    for taken in
        [(digests[0], MIN_VALID_TIME), (digests[1], MIN_VALID_TIME + WRITE_SLACK_SECONDS + 1)]
    {
        arrived("taken", digests[1], ChangeSource::Fetch, None);
        arrived("taken", digests[2], ChangeSource::Fetch, Some(taken));
        assert!(!brought("taken", digests[2]));
    }
    // A push of equal content leaves the model to its user; a push of other content does not.
    arrived("pushed", digests[0], ChangeSource::Push, Some((digests[0], MIN_VALID_TIME)));
    assert!(!brought("pushed", digests[0]));
    arrived("pushed", digests[1], ChangeSource::Push, Some((digests[0], MIN_VALID_TIME)));
    arrived("pushed", digests[1], ChangeSource::Push, Some((digests[1], MIN_VALID_TIME)));
    assert!(brought("pushed", digests[1]));
}

#[tokio::test]
async fn arrivals_on_other_mirrors_are_known_on_replacement() {
    let dir = tempfile::tempdir().unwrap();
    let storage = FileStorage::new(Arc::new(Store::open(dir.path()).unwrap()));
    let time = Arc::new(AtomicU64::new(MIN_VALID_TIME));
    let (one, other, notes) = (usage_log(&time), usage_log(&time), storage.usage_notes());
    let [old, new] = [b"a", b"b"].map(|of| Digest::of(of));
    one.record_arrival_after_sync(notes, &name(), &tag("t"), old, ChangeSource::Fetch, None).await;
    one.write(notes).await.unwrap();
    time.store(MIN_VALID_TIME + 900, Relaxed);
    other
        .record_arrival_after_sync(
            notes,
            &name(),
            &tag("t"),
            new,
            ChangeSource::Fetch,
            Some(&entry(old, MIN_VALID_TIME)),
        )
        .await;
    assert!(other.times(&name(), Some("t"), new).is_from_mirror);
    // A mirror that finds the item before it reads the notes does not erase the arrival.
    let third = usage_log(&time);
    assert!(!third.times(&name(), Some("t"), new).is_from_mirror);
    other.write(notes).await.unwrap();
    third.read_other_notes(notes).await.unwrap();
    assert!(third.times(&name(), Some("t"), new).is_from_mirror);
    // A later record of a model that the user took over outranks older ones.
    time.store(MIN_VALID_TIME + 1800, Relaxed);
    third
        .record_arrival_after_sync(
            notes,
            &name(),
            &tag("t"),
            new,
            ChangeSource::Push,
            Some(&entry(new, MIN_VALID_TIME + 1500)),
        )
        .await;
    third.write(notes).await.unwrap();
    other.read_other_notes(notes).await.unwrap();
    assert!(!other.times(&name(), Some("t"), new).is_from_mirror);
}

#[test]
fn stale_scans_do_not_erase_newer_arrivals() {
    let time = Arc::new(AtomicU64::new(MIN_VALID_TIME));
    let (usage_log, [old, new]) = (usage_log(&time), [b"a", b"b"].map(|of| Digest::of(of)));
    usage_log.record_arrival(&name(), &tag("t"), old, ChangeSource::Push, None);
    time.store(MIN_VALID_TIME + 30 * SECONDS_PER_DAY, Relaxed);
    usage_log.record_arrival(&name(), &tag("t"), new, ChangeSource::Push, None);
    // A caller with an older state sees that the item is in use, and nothing else.
    let before = UsageTimes {
        arrived: MIN_VALID_TIME + 30 * SECONDS_PER_DAY,
        last_used: MIN_VALID_TIME + 30 * SECONDS_PER_DAY,
        is_from_mirror: false,
    };
    assert_eq!(usage_log.times(&name(), Some("t"), old), before);
    assert!(usage_log.times(&name(), Some("t"), new).is_from_mirror);
}

#[test]
fn a_push_by_digest_is_recorded() {
    let time = Arc::new(AtomicU64::new(MIN_VALID_TIME));
    let (usage_log, of) = (usage_log(&time), Digest::of(b"m"));
    let arrived =
        || usage_log.record_arrival(&name(), &Reference::Digest(of), of, ChangeSource::Push, None);
    arrived();
    time.store(MIN_VALID_TIME + 30 * SECONDS_PER_DAY, Relaxed);
    assert_eq!(usage_log.times(&name(), None, of).last_used, MIN_VALID_TIME);
    arrived();
    assert_eq!(usage_log.times(&name(), None, of).last_used, MIN_VALID_TIME + 30 * SECONDS_PER_DAY);
}

#[tokio::test]
async fn pulls_within_a_minute_are_merged_and_clean_logs_not_written() {
    let dir = tempfile::tempdir().unwrap();
    let storage = FileStorage::new(Arc::new(Store::open(dir.path()).unwrap()));
    let time = Arc::new(AtomicU64::new(MIN_VALID_TIME));
    let (usage_log, tag) = (usage_log(&time), tag("t"));
    let notes = storage.usage_notes();
    usage_log.write(notes).await.unwrap();
    assert_eq!(notes.list().await.unwrap(), []);
    usage_log.record_pull(&name(), &tag);
    usage_log.write(notes).await.unwrap();
    let listed = notes.list().await.unwrap();
    notes.remove(&listed[0].name).await.unwrap();
    time.store(MIN_VALID_TIME + SECONDS_PER_MINUTE - 1, Relaxed);
    usage_log.record_pull(&name(), &tag);
    usage_log.write(notes).await.unwrap();
    assert_eq!(notes.list().await.unwrap(), []);
    time.store(MIN_VALID_TIME + SECONDS_PER_MINUTE, Relaxed);
    usage_log.record_pull(&name(), &tag);
    usage_log.write(notes).await.unwrap();
    assert_eq!(notes.list().await.unwrap().len(), 1);
}

#[tokio::test]
async fn old_notes_are_adopted_and_invalid_ones_stay() {
    let dir = tempfile::tempdir().unwrap();
    let storage = FileStorage::new(Arc::new(Store::open(dir.path()).unwrap()));
    let (notes, time) = (storage.usage_notes(), Arc::new(AtomicU64::new(MIN_VALID_TIME)));
    let earlier = usage_log(&time);
    earlier.record_pull(&name(), &tag("t"));
    earlier.write(notes).await.unwrap();
    for broken in ["null", "[", "{\"a\":7}", "{\"library/m:t\":{\"pulled\":-1}}"] {
        notes.write(&format!("broken-{}.json", broken.len()), broken.into()).await.unwrap();
    }
    let folder = dir.path().join("puna-registry/history");
    let age_all = || {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let file = std::fs::File::options().append(true).open(entry.unwrap().path()).unwrap();
            file.set_modified(SystemTime::now() - Duration::from_secs(2 * SECONDS_PER_DAY))
                .unwrap();
        }
    };
    let later = usage_log(&time);
    later.write_and_merge_notes(notes).await.unwrap();
    assert_eq!(notes.list().await.unwrap().len(), 5, "the earlier process may live");
    age_all();
    later.write_and_merge_notes(notes).await.unwrap();
    let left: Vec<String> = notes.list().await.unwrap().into_iter().map(|note| note.name).collect();
    assert_eq!(left.iter().filter(|name| name.starts_with("broken")).count(), 4, "{left:?}");
    assert_eq!(left.iter().filter(|name| name.starts_with(&later.0.id)).count(), 1, "{left:?}");
    assert_eq!(left.len(), 5, "{left:?}");
    assert_eq!(later.last_pull(&name(), "t", &Digest::of(b"m")), Some(MIN_VALID_TIME));
}

#[tokio::test]
async fn records_of_missing_items_expire_after_a_day() {
    let time = Arc::new(AtomicU64::new(MIN_VALID_TIME));
    let usage_log = usage_log(&time);
    usage_log.record_pull(&name(), &tag("t"));
    time.store(MIN_VALID_TIME + SECONDS_PER_DAY - 1, Relaxed);
    usage_log.forget_missing(Vec::new(), Vec::new()).await.unwrap();
    assert!(usage_log.last_pull(&name(), "t", &Digest::of(b"m")).is_some());
    time.store(MIN_VALID_TIME + SECONDS_PER_DAY, Relaxed);
    usage_log.forget_missing(Vec::new(), Vec::new()).await.unwrap();
    assert!(usage_log.last_pull(&name(), "t", &Digest::of(b"m")).is_none());
}

#[tokio::test]
async fn large_logs_use_several_notes_and_remove_surplus_ones() {
    const MANY: usize = 12_345;
    let dir = tempfile::tempdir().unwrap();
    let storage = FileStorage::new(Arc::new(Store::open(dir.path()).unwrap()));
    let time = Arc::new(AtomicU64::new(MIN_VALID_TIME));
    let (one, notes) = (usage_log(&time), storage.usage_notes());
    for n in 0..MANY {
        one.record_pull(&name(), &tag(&format!("t{n}")));
    }
    one.write(notes).await.unwrap();
    assert_eq!(notes.list().await.unwrap().len(), 2);
    let other = usage_log(&time);
    other.read_other_notes(notes).await.unwrap();
    assert!(
        (0..MANY).all(|n| other.last_pull(&name(), &format!("t{n}"), &Digest::of(b"m")).is_some())
    );
    // All records but one expire.
    time.store(MIN_VALID_TIME + SECONDS_PER_DAY, Relaxed);
    one.record_pull(&name(), &tag("t7"));
    one.forget_missing(Vec::new(), Vec::new()).await.unwrap();
    one.write(notes).await.unwrap();
    let listed = notes.list().await.unwrap();
    let text = notes.read(&listed[0].name).await.unwrap().unwrap();
    let records: serde_json::Value = serde_json::from_slice(&text).unwrap();
    assert_eq!((listed.len(), records.as_object().unwrap().len()), (1, 1));
}

#[tokio::test]
async fn pulls_of_unused_items_are_written_soon() {
    let dir = tempfile::tempdir().unwrap();
    let storage = FileStorage::new(Arc::new(Store::open(dir.path()).unwrap()));
    let (usage_log, notes) =
        (usage_log(&Arc::new(AtomicU64::new(MIN_VALID_TIME))), storage.usage_notes());
    let written = async {
        usage_log.record_pull(&name(), &tag("t"));
        let begun = std::time::Instant::now();
        while notes.list().await.unwrap().is_empty() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        begun.elapsed()
    };
    tokio::select! {
        () = usage_log.run(notes) => unreachable!(),
        took = written => assert!(took < Duration::from_secs(6), "{took:?}"),
    }
}
