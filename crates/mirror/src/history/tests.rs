use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime};

use puna_store::{Digest, Entry, ModelName, Place, Store};

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

fn tag(tag: &str) -> Reference {
    Reference::Tag(tag.to_owned())
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
    history.arrived(&name(), &tag("t"), of, By::Fetch, None);
    history.pulled(&name(), &tag("t"));
    time.store(SET + 7, Relaxed);
    let times = history.times(&name(), Some("t"), of);
    assert_eq!(times, Times { arrived: SET + 7, used: SET + 7, is_brought: true });
    time.store(SET + 10 * DAY, Relaxed);
    history.pulled(&name(), &tag("t"));
    time.store(SET + DAY, Relaxed);
    assert_eq!(history.times(&name(), Some("t"), of).used, SET + DAY, "no later than now");
}

/// A model of the store, written at some time.
fn entry(digest: Digest, at: u64) -> Entry {
    Entry {
        name: ModelName::parse("m").unwrap(),
        digest,
        modified: SystemTime::UNIX_EPOCH + Duration::from_secs(at),
        manifest: puna_store::Manifest { config: None, layers: Vec::new() },
        place: Place::Own,
        runner: String::new(),
        list: None,
    }
}

#[test]
fn what_stands_in_the_place_of_the_users_own_is_not_the_mirrors() {
    let history = history(&Arc::new(AtomicU64::new(SET)));
    let digests = [b"a", b"b", b"c"].map(|of| Digest::of(of));
    let brought = |of: &str, digest| history.times(&name(), Some(of), digest).is_brought;
    let arrived = |of: &str, digest, by, replaced: Option<(Digest, u64)>| {
        let replaced = replaced.map(|(digest, at)| entry(digest, at));
        history.arrived(&name(), &tag(of), digest, by, replaced.as_ref());
    };
    arrived("own", digests[1], By::Fetch, Some((digests[0], SET)));
    assert!(!brought("own", digests[1]));
    arrived("new", digests[0], By::Fetch, None);
    arrived("new", digests[1], By::Fetch, Some((digests[0], SET)));
    assert!(brought("new", digests[1]));
    // Meanwhile somebody else has written it, as something else or as the same.
    for taken in [(digests[0], SET), (digests[1], SET + SLACK + 1)] {
        arrived("taken", digests[1], By::Fetch, None);
        arrived("taken", digests[2], By::Fetch, Some(taken));
        assert!(!brought("taken", digests[2]));
    }
    // Who pushes what is there takes nothing from him whose it is, and who pushes something else does.
    arrived("pushed", digests[0], By::Push, Some((digests[0], SET)));
    assert!(!brought("pushed", digests[0]));
    arrived("pushed", digests[1], By::Push, Some((digests[0], SET)));
    arrived("pushed", digests[1], By::Push, Some((digests[1], SET)));
    assert!(brought("pushed", digests[1]));
}

#[tokio::test]
async fn what_another_mirror_has_brought_is_known_where_it_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let library = StoreLibrary::new(Arc::new(Store::open(dir.path()).unwrap()));
    let time = Arc::new(AtomicU64::new(SET));
    let (one, other, notes) = (history(&time), history(&time), library.notes());
    let [old, new] = [b"a", b"b"].map(|of| Digest::of(of));
    one.came(notes, &name(), &tag("t"), old, By::Fetch, None).await;
    one.write(notes).await.unwrap();
    time.store(SET + 900, Relaxed);
    other.came(notes, &name(), &tag("t"), new, By::Fetch, Some(&entry(old, SET))).await;
    assert!(other.times(&name(), Some("t"), new).is_brought);
    // Who finds it there before he reads who has brought it does not make it nobody's.
    let third = history(&time);
    assert!(!third.times(&name(), Some("t"), new).is_brought);
    other.write(notes).await.unwrap();
    third.learn(notes).await.unwrap();
    assert!(third.times(&name(), Some("t"), new).is_brought);
    // Nor does who took it lose it to those who had it before.
    time.store(SET + 1800, Relaxed);
    third.came(notes, &name(), &tag("t"), new, By::Push, Some(&entry(new, SET + 1500))).await;
    third.write(notes).await.unwrap();
    other.learn(notes).await.unwrap();
    assert!(!other.times(&name(), Some("t"), new).is_brought);
}

#[test]
fn what_came_behind_a_look_is_not_forgotten_for_what_was_there_before() {
    let time = Arc::new(AtomicU64::new(SET));
    let (history, [old, new]) = (history(&time), [b"a", b"b"].map(|of| Digest::of(of)));
    history.arrived(&name(), &tag("t"), old, By::Push, None);
    time.store(SET + 30 * DAY, Relaxed);
    history.arrived(&name(), &tag("t"), new, By::Push, None);
    // Whoever has looked before is told that it is in use, and nothing else.
    let before = Times { arrived: SET + 30 * DAY, used: SET + 30 * DAY, is_brought: false };
    assert_eq!(history.times(&name(), Some("t"), old), before);
    assert!(history.times(&name(), Some("t"), new).is_brought);
}

#[test]
fn what_is_pushed_by_its_digest_came_then() {
    let time = Arc::new(AtomicU64::new(SET));
    let (history, of) = (history(&time), Digest::of(b"m"));
    let arrived = || history.arrived(&name(), &Reference::Digest(of), of, By::Push, None);
    arrived();
    time.store(SET + 30 * DAY, Relaxed);
    assert_eq!(history.times(&name(), None, of).used, SET);
    arrived();
    assert_eq!(history.times(&name(), None, of).used, SET + 30 * DAY);
}

#[tokio::test]
async fn pulls_of_a_minute_are_one_and_nothing_new_is_not_written() {
    let dir = tempfile::tempdir().unwrap();
    let library = StoreLibrary::new(Arc::new(Store::open(dir.path()).unwrap()));
    let time = Arc::new(AtomicU64::new(SET));
    let (history, tag) = (history(&time), tag("t"));
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
    earlier.pulled(&name(), &tag("t"));
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
    assert_eq!(left.iter().filter(|name| name.starts_with(&later.0.id)).count(), 1, "{left:?}");
    assert_eq!(left.len(), 5, "{left:?}");
    assert_eq!(later.last_pull(&name(), "t", &Digest::of(b"m")), Some(SET));
}

#[tokio::test]
async fn what_is_gone_for_a_day_is_forgotten() {
    let time = Arc::new(AtomicU64::new(SET));
    let history = history(&time);
    history.pulled(&name(), &tag("t"));
    time.store(SET + DAY - 1, Relaxed);
    history.forget(Vec::new(), Vec::new()).await.unwrap();
    assert!(history.last_pull(&name(), "t", &Digest::of(b"m")).is_some());
    time.store(SET + DAY, Relaxed);
    history.forget(Vec::new(), Vec::new()).await.unwrap();
    assert!(history.last_pull(&name(), "t", &Digest::of(b"m")).is_none());
}

#[tokio::test]
async fn more_than_one_note_has_is_written_in_several_and_none_is_left_behind() {
    const MANY: usize = 12_345;
    let dir = tempfile::tempdir().unwrap();
    let library = StoreLibrary::new(Arc::new(Store::open(dir.path()).unwrap()));
    let time = Arc::new(AtomicU64::new(SET));
    let (one, notes) = (history(&time), library.notes());
    for n in 0..MANY {
        one.pulled(&name(), &tag(&format!("t{n}")));
    }
    one.write(notes).await.unwrap();
    assert_eq!(notes.list().await.unwrap().len(), 2);
    let other = history(&time);
    other.learn(notes).await.unwrap();
    assert!(
        (0..MANY).all(|n| other.last_pull(&name(), &format!("t{n}"), &Digest::of(b"m")).is_some())
    );
    // All but one of them go.
    time.store(SET + DAY, Relaxed);
    one.pulled(&name(), &tag("t7"));
    one.forget(Vec::new(), Vec::new()).await.unwrap();
    one.write(notes).await.unwrap();
    let listed = notes.list().await.unwrap();
    let text = notes.read(&listed[0].name).await.unwrap().unwrap();
    let records: serde_json::Value = serde_json::from_slice(&text).unwrap();
    assert_eq!((listed.len(), records.as_object().unwrap().len()), (1, 1));
}

#[tokio::test]
async fn that_something_old_was_pulled_is_written_soon() {
    let dir = tempfile::tempdir().unwrap();
    let library = StoreLibrary::new(Arc::new(Store::open(dir.path()).unwrap()));
    let (history, notes) = (history(&Arc::new(AtomicU64::new(SET))), library.notes());
    let written = async {
        history.pulled(&name(), &tag("t"));
        let begun = std::time::Instant::now();
        while notes.list().await.unwrap().is_empty() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        begun.elapsed()
    };
    tokio::select! {
        () = history.keep(notes) => unreachable!(),
        took = written => assert!(took < Duration::from_secs(6), "{took:?}"),
    }
}
