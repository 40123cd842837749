//! What a bucket loses where its service fails, and where mirrors are at the same at a time: nothing.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use futures_util::future::join_all;
use object_store::ObjectStoreExt;
use object_store::throttle::{ThrottleConfig, ThrottledStore};

use super::tests::{keys, manifest_of, noise, part, push, read};
use super::uploads::Fate;
use super::wayward::{Fault, Wayward};
use super::*;
use crate::library::{MAX_EACH, MAX_UPLOADS};

fn mirror_of(service: &Wayward) -> ObjectLibrary {
    ObjectLibrary::of(Bucket::new(Arc::new(service.clone()), "models", "s3://test".into()))
}

#[tokio::test]
async fn a_name_that_was_written_with_an_error_for_an_answer_keeps_its_bytes() {
    for (len, fault) in [100, 150_000]
        .into_iter()
        .flat_map(|len| [Fault::AnswerOfPut, Fault::Repeated].map(|f| (len, f)))
    {
        let service = Wayward::default();
        let (one, name) = (mirror_of(&service), Repository::parse("team/thing").unwrap());
        let bytes = noise(len);
        let (id, digest) = (one.begin(&name, "").await.unwrap(), Digest::of(&bytes));
        one.append(&name, &id, part(None, &bytes, true)).await.unwrap();
        service.fail(fault, "/blobs/", 0);
        let finished = one.finish(&name, &id, digest).await;
        if fault == Fault::AnswerOfPut {
            assert!(matches!(finished, Err(MirrorError::Storage { .. })), "{finished:?}");
            one.finish(&name, &id, digest).await.unwrap();
        }
        assert_eq!(read(&one, digest, 0..len as u64).await, bytes);
        assert!(keys(&service.inner).await.iter().all(|key| !key.contains("/uploads/")));
    }
}

#[tokio::test]
async fn two_mirrors_that_finish_one_upload_keep_its_bytes() {
    for len in [100, 150_000] {
        let service = Wayward::default();
        // Each request takes a while, so that both are at the same step.
        let pauses = ThrottleConfig {
            wait_get_per_call: Duration::from_millis(5),
            wait_put_per_call: Duration::from_millis(5),
            ..ThrottleConfig::default()
        };
        let slow = || {
            let service = ThrottledStore::new(service.clone(), pauses);
            ObjectLibrary::of(Bucket::new(Arc::new(service), "models", "s3://test".into()))
        };
        let (one, other, name) = (slow(), slow(), Repository::parse("team/thing").unwrap());
        let bytes = noise(len);
        let (id, digest) = (one.begin(&name, "").await.unwrap(), Digest::of(&bytes));
        one.append(&name, &id, part(None, &bytes, true)).await.unwrap();
        let (a, b) = tokio::join!(one.finish(&name, &id, digest), other.finish(&name, &id, digest));
        assert!(a.is_ok() || b.is_ok(), "{a:?}, {b:?}");
        assert_eq!(read(&one, digest, 0..len as u64).await, bytes);
    }
}

#[tokio::test]
async fn a_push_that_fails_takes_nothing_away_that_was_there() {
    let service = Wayward::default();
    let (one, name) = (mirror_of(&service), Repository::parse("team/thing").unwrap());
    let (tag, blob) =
        (Reference::Tag("v1".into()), push(&mirror_of(&service), &name, b"weights").await);
    let manifest = manifest_of(&blob);
    one.put_manifest(&name, &tag, manifest.clone()).await.unwrap();
    // The service fails behind the manifest's writing.
    service.fail(Fault::Get, "/blobs/", 1);
    let failed = one.put_manifest(&name, &tag, manifest.clone()).await;
    assert!(matches!(failed, Err(MirrorError::Storage { .. })), "{failed:?}");
    assert_eq!(one.manifest(&name, &tag).await.unwrap().as_ref(), Some(&manifest));
}

/// A mirror that needs a while to remove something.
fn slow_to_remove(service: &Wayward) -> ObjectLibrary {
    let pauses = ThrottleConfig {
        wait_delete_per_call: Duration::from_millis(100),
        ..ThrottleConfig::default()
    };
    let slow = ThrottledStore::new(service.clone(), pauses);
    ObjectLibrary::of(Bucket::new(Arc::new(slow), "models", "s3://test".into()))
}

#[tokio::test]
async fn a_blob_that_a_push_names_while_it_is_cleared_away_comes_back() {
    let service = Wayward::default();
    let (slow, other) = (slow_to_remove(&service), mirror_of(&service));
    let name = Repository::parse("team/thing").unwrap();
    let [needed, unneeded] =
        [push(&other, &name, b"weights").await, push(&other, &name, b"other").await];
    service.age().await;
    let pushed = async {
        // By then it has been looked, and is removed later.
        tokio::time::sleep(Duration::from_millis(40)).await;
        other.put_manifest(&name, &Reference::Tag("v1".into()), manifest_of(&needed)).await
    };
    let (swept, pushed) = tokio::join!(slow.tidy(), pushed);
    assert_eq!((swept, pushed), (Ok(()), Ok(None)));
    assert_eq!(read(&other, needed, 0..7).await, b"weights");
    assert!(other.blob(unneeded).await.unwrap().is_none());
}

/// Writes notes of sizes of a repository.
async fn write_notes(mirror: &ObjectLibrary, name: &str, count: u64) {
    let notes = mirror.sizes(&Repository::parse(name).unwrap());
    for n in 0..count {
        notes.write(&n.to_string(), "[]".into()).await.unwrap();
    }
}

async fn count_notes(mirror: &ObjectLibrary, name: &str) -> usize {
    mirror.sizes(&Repository::parse(name).unwrap()).list().await.unwrap().len()
}

#[tokio::test]
async fn of_notes_of_sizes_that_are_older_than_a_day_only_so_many_stay() {
    let service = Wayward::default();
    let mirror = mirror_of(&service);
    write_notes(&mirror, "a/b", 7).await;
    write_notes(&mirror, "a/c", 7).await;
    for (age, left) in [(AGAIN / 2, 14), (2 * AGAIN, 8), (31 * AGAIN, 0)] {
        service.age_by(age).await;
        mirror.tidy().await.unwrap();
        assert_eq!(count_notes(&mirror, "a/b").await + count_notes(&mirror, "a/c").await, left);
    }
}

#[tokio::test]
async fn notes_of_sizes_that_are_written_again_while_others_are_cleared_away_stay() {
    let service = Wayward::default();
    let (slow, other) = (slow_to_remove(&service), mirror_of(&service));
    write_notes(&other, "a/b", 5).await;
    service.age().await;
    let again = async {
        // By then they have been listed, and the first one is being removed.
        tokio::time::sleep(Duration::from_millis(40)).await;
        write_notes(&other, "a/b", 5).await;
    };
    let (swept, ()) = tokio::join!(slow.tidy(), again);
    assert_eq!(swept, Ok(()));
    let left = count_notes(&other, "a/b").await;
    assert!(left >= 4, "{left}");
}

#[tokio::test]
async fn bytes_go_that_have_had_no_name_for_an_hour() {
    let service = Wayward::default();
    let (one, name) = (mirror_of(&service), Repository::parse("team/thing").unwrap());
    push(&one, &name, b"weights").await;
    service.age().await;
    let bytes =
        async || keys(&service.inner).await.iter().filter(|key| key.contains("/data/")).count();
    one.tidy().await.unwrap();
    assert!(one.blob(Digest::of(b"weights")).await.unwrap().is_none());
    // The name lies in the trash for a day.
    for left in [1, 1, 1] {
        one.tidy().await.unwrap();
        assert_eq!(bytes().await, left);
    }
    service.age().await;
    for left in [1, 0] {
        one.tidy().await.unwrap();
        assert_eq!(bytes().await, left);
    }
    assert_eq!(keys(&service.inner).await, [""; 0]);
}

#[tokio::test]
async fn nothing_goes_from_a_bucket_that_is_not_understood() {
    let (service, name) = (Wayward::default(), Repository::parse("team/thing").unwrap());
    let one = mirror_of(&service);
    let kept = push(&one, &name, b"weights").await;
    one.put_manifest(&name, &Reference::Tag("v1".into()), manifest_of(&kept)).await.unwrap();
    let unused = push(&one, &name, b"unused").await;
    service.age().await;
    let doomed = crate::library::seen(&one, &name, Some("v1"), manifest_of(&kept).digest).await;
    let typed = r#"{"mediaType":"application/vnd.other.manifest.v9+json","layers":[]}"#;
    let list = r#"{"mediaType":"application/vnd.ollama.manifest.list.v2+json","manifests":[]}"#;
    let at = |text: &str| {
        format!("models/repositories/a+b/manifests/{}", Digest::of(text.as_bytes()).hex())
    };
    for (key, text) in [
        ("models/manifests-v3/x".to_owned(), "x"),
        ("models/x".to_owned(), "x"),
        ("models/blobs/x".to_owned(), "x"),
        ("models/repositories/a+b/other/x".to_owned(), "x"),
        (at("no manifest"), "no manifest"),
        (at("another"), r#"{"layers":[]}"#),
        (at(typed), typed),
        (at(list), list),
    ] {
        let key = Path::from(key);
        service.put(&key, text.into()).await.unwrap();
        let before = keys(&service.inner).await;
        one.tidy().await.unwrap();
        assert_eq!(one.retire(vec![doomed.clone()]).await, Ok(vec![Ok(false)]), "{key}");
        let refused = one.remove_blob(unused).await;
        assert!(matches!(refused, Err(MirrorError::Denied(_))), "{key}: {refused:?}");
        assert_eq!(keys(&service.inner).await, before, "{key}");
        service.delete(&key).await.unwrap();
    }
    one.tidy().await.unwrap();
    assert!(one.blob(unused).await.unwrap().is_none() && one.blob(kept).await.unwrap().is_some());
    let trash = keys(&service.inner).await.into_iter().filter(|key| key.contains("/trash/"));
    assert_eq!(trash.collect::<Vec<_>>(), [format!("models/trash/{}", unused.file_name())]);
    assert_eq!(one.retire(vec![doomed]).await, Ok(vec![Ok(true)]));
}

const MINUTE: Duration = Duration::from_secs(60);

/// A part that comes in these pieces, and then again and again in such ones, until it is let end.
fn trickling(beginning: &[u8], piece: &'static [u8], until: Arc<AtomicBool>) -> Part {
    let beginning = Bytes::copy_from_slice(beginning);
    let rest = stream::unfold(until, move |until| async move {
        tokio::time::sleep(Duration::from_millis(2)).await;
        while piece.is_empty() && !until.load(Relaxed) {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        (!until.load(Relaxed)).then(|| (Ok(Bytes::from_static(piece)), until))
    });
    Part { at: None, len: None, body: stream::iter([Ok(beginning)]).chain(rest).boxed() }
}

#[tokio::test]
async fn what_one_mirror_is_just_being_sent_no_other_gives_up() {
    // Of the one all that has come is in memory, of the other there is a part that no note names: that alone says it is not empty.
    for (begun, piece, pause) in [(100, &b"x"[..], 200), (70_000, b"", 0)] {
        let (service, name) = (Wayward::default(), Repository::parse("team/thing").unwrap());
        let (one, other) = (mirror_of(&service), mirror_of(&service));
        let (id, ends) = (one.begin(&name, "a").await.unwrap(), Arc::new(AtomicBool::new(false)));
        let sent = one.append(&name, &id, trickling(&noise(begun), piece, ends.clone()));
        let looked = async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            service.age_by(120 * MINUTE).await;
            tokio::time::sleep(Duration::from_millis(pause)).await;
            let looked = other.tidy().await;
            ends.store(true, Relaxed);
            looked
        };
        let (sent, looked) = tokio::join!(sent, looked);
        let len = sent.unwrap();
        looked.unwrap();
        assert_eq!(other.uploads.uploaded(&name, &id).await, Ok(len));
        let bytes = [noise(begun), vec![b'x'; len as usize - begun]].concat();
        one.finish(&name, &id, Digest::of(&bytes)).await.unwrap();
        assert_eq!(read(&other, Digest::of(&bytes), 0..len).await, bytes);
    }
}

#[tokio::test]
async fn what_another_mirror_has_given_up_does_not_come_back() {
    let (service, name) = (Wayward::default(), Repository::parse("team/thing").unwrap());
    let (one, other) = (mirror_of(&service), mirror_of(&service));
    let (id, ends) = (one.begin(&name, "a").await.unwrap(), Arc::new(AtomicBool::new(false)));
    let sent = one.append(&name, &id, trickling(&noise(100), b"x", ends.clone()));
    let (sent, cancelled) = tokio::join!(sent, other.cancel(&name, &id));
    cancelled.unwrap();
    assert_eq!(sent, Err(MirrorError::UploadUnknown(id.to_string())));
    assert_eq!(keys(&service.inner).await, [""; 0]);
}

#[tokio::test]
async fn as_many_uploads_as_begin_at_a_time_are_no_more_than_may_be() {
    let pauses =
        ThrottleConfig { wait_put_per_call: Duration::from_millis(2), ..ThrottleConfig::default() };
    let service = Arc::new(ThrottledStore::new(Wayward::default(), pauses));
    let one = ObjectLibrary::of(Bucket::new(service, "models", "s3://test".into()));
    let name = Repository::parse("team/thing").unwrap();
    let begun = join_all((0..3 * MAX_EACH).map(|_| one.begin(&name, "a"))).await;
    assert_eq!(begun.iter().filter(|begun| begun.is_ok()).count(), MAX_EACH);
}

#[tokio::test]
async fn mirrors_of_a_bucket_count_uploads_together_but_for_one_of_each_at_a_moment() {
    let pauses =
        ThrottleConfig { wait_put_per_call: Duration::from_millis(2), ..ThrottleConfig::default() };
    let service = Wayward::default();
    let mirror = || {
        let service = Arc::new(ThrottledStore::new(service.clone(), pauses));
        ObjectLibrary::of(Bucket::new(service, "models", "s3://test".into()))
    };
    let (mirrors, name) =
        ([mirror(), mirror(), mirror()], Repository::parse("team/thing").unwrap());
    let all = mirrors.iter().flat_map(|mirror| (0..2 * MAX_EACH).map(|_| mirror.begin(&name, "a")));
    let begun = join_all(all).await.iter().filter(|begun| begun.is_ok()).count();
    assert!((MAX_EACH..MAX_EACH + mirrors.len()).contains(&begun), "{begun}");
    for mirror in &mirrors {
        assert!(matches!(mirror.begin(&name, "a").await, Err(MirrorError::TooMany(_))));
        assert!(mirror.begin(&name, "b").await.is_ok(), "others are not kept out");
    }
}

#[tokio::test]
async fn a_note_that_nobody_can_read_keeps_nobody_from_beginning() {
    let (service, name) = (Wayward::default(), Repository::parse("team/thing").unwrap());
    let one = mirror_of(&service);
    let unreadable = async |count| {
        for _ in 0..count {
            let key = one.bucket.key(["uploads", &format!("{}.json", UploadId::random().unwrap())]);
            service.put(&key, "?".into()).await.unwrap();
        }
    };
    // One that is past its time.
    unreadable(1).await;
    service.age().await;
    let id = one.begin(&name, "a").await.unwrap();
    // As many as there may be, with one among them that can go.
    unreadable(MAX_UPLOADS - 1).await;
    service.age_by(30 * MINUTE).await;
    let next = one.begin(&name, "b").await.unwrap();
    assert!(one.uploads.uploaded(&name, &id).await.is_err());
    assert_eq!(one.uploads.uploaded(&name, &next).await, Ok(0));
    service.age_by(30 * MINUTE).await;
    let other = one.begin(&name, "c").await.unwrap();
    // With bytes it is none that goes at once, and of the others nobody can say.
    one.append(&name, &other, part(None, b"bytes", true)).await.unwrap();
    let refused = one.begin(&name, "d").await;
    assert!(matches!(refused, Err(MirrorError::TooMany(_))), "{refused:?}");
}

#[tokio::test]
async fn nobody_is_at_an_upload_while_it_is_given_up() {
    let (service, name) = (Wayward::default(), Repository::parse("team/thing").unwrap());
    let one = mirror_of(&service);
    let id = one.begin(&name, "a").await.unwrap();
    let given_up = one.uploads.give_up(&id, |_, _| false).await;
    assert_eq!(given_up, Ok(Fate::Stays));
    let ends = Arc::new(AtomicBool::new(false));
    let sent = one.append(&name, &id, trickling(b"bytes", b"x", ends.clone()));
    let given_up = async {
        tokio::time::sleep(Duration::from_millis(20)).await;
        let given_up = one.uploads.give_up(&id, |_, _| true).await;
        ends.store(true, Relaxed);
        given_up
    };
    let (sent, given_up) = tokio::join!(sent, given_up);
    assert_eq!((sent.is_ok(), given_up), (true, Ok(Fate::Stays)), "somebody is at it");
    // Who comes while it goes waits, and finds none.
    let slow = slow_to_remove(&service);
    let late = async {
        tokio::time::sleep(Duration::from_millis(20)).await;
        slow.append(&name, &id, part(None, b"more", true)).await
    };
    let (given_up, late) = tokio::join!(slow.uploads.give_up(&id, |_, _| true), late);
    assert_eq!((given_up, late), (Ok(Fate::Gone), Err(MirrorError::UploadUnknown(id.to_string()))));
    assert_eq!(keys(&service.inner).await, [""; 0]);
}
