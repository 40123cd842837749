//! The S3 driver loses nothing when the service fails or several mirrors work on the same objects.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use object_store::ObjectStoreExt;
use object_store::path::Path;
use object_store::throttle::{ThrottleConfig, ThrottledStore};

use super::faulty_service::{Fault, FaultyService};
use super::tests::{keys, manifest_of, noise, part, push, read};
use super::uploads::DropOutcome;
use super::*;
use crate::storage::note_store::SIZE_NOTE_REFRESH;
use crate::types::upload_id::UploadId;
use crate::uploads::admission::{MAX_UPLOADS, MAX_UPLOADS_PER_OWNER};

#[tokio::test]
async fn a_name_written_despite_an_error_keeps_its_data() {
    for (len, fault) in [100, 150_000]
        .into_iter()
        .flat_map(|len| [Fault::AnswerOfPut, Fault::Repeated].map(|f| (len, f)))
    {
        let service = FaultyService::default();
        let (one, name) = (service.storage(), Repository::parse("team/thing").unwrap());
        let bytes = noise(len);
        let (id, digest) = (one.uploads.begin(&name, "").await.unwrap(), Digest::of(&bytes));
        one.uploads.append(&name, &id, part(None, &bytes, true)).await.unwrap();
        service.fail(fault, "/blobs/", 0);
        let finished = one.uploads.finish(&name, &id, digest).await;
        if fault == Fault::AnswerOfPut {
            assert!(matches!(finished, Err(MirrorError::StorageFailed { .. })), "{finished:?}");
            one.uploads.finish(&name, &id, digest).await.unwrap();
        }
        assert_eq!(read(&one, digest, 0..len as u64).await, bytes);
        assert!(keys(&service.inner).await.iter().all(|key| !key.contains("/uploads/")));
    }
}

#[tokio::test]
async fn two_mirrors_finishing_one_upload_keep_its_data() {
    for len in [100, 150_000] {
        let service = FaultyService::default();
        // Slow requests make both mirrors reach the same step.
        let pauses = ThrottleConfig {
            wait_get_per_call: Duration::from_millis(5),
            wait_put_per_call: Duration::from_millis(5),
            ..ThrottleConfig::default()
        };
        let slow = || {
            let service = ThrottledStore::new(service.clone(), pauses);
            S3Storage::of(Bucket::new(Arc::new(service), "models", "s3://test".into()))
        };
        let (one, other, name) = (slow(), slow(), Repository::parse("team/thing").unwrap());
        let bytes = noise(len);
        let (id, digest) = (one.uploads.begin(&name, "").await.unwrap(), Digest::of(&bytes));
        one.uploads.append(&name, &id, part(None, &bytes, true)).await.unwrap();
        let (a, b) = tokio::join!(
            one.uploads.finish(&name, &id, digest),
            other.uploads.finish(&name, &id, digest)
        );
        assert!(a.is_ok() || b.is_ok(), "{a:?}, {b:?}");
        assert_eq!(read(&one, digest, 0..len as u64).await, bytes);
    }
}

#[tokio::test]
async fn a_failed_push_removes_nothing() {
    let service = FaultyService::default();
    let (one, name) = (service.storage(), Repository::parse("team/thing").unwrap());
    let (tag, blob) =
        (Reference::Tag("v1".into()), push(&service.storage(), &name, b"weights").await);
    let manifest = manifest_of(&blob);
    one.put_manifest(&name, &tag, manifest.clone()).await.unwrap();
    // The service fails after the manifest was written.
    service.fail(Fault::Get, "/blobs/", 1);
    let failed = one.put_manifest(&name, &tag, manifest.clone()).await;
    assert!(matches!(failed, Err(MirrorError::StorageFailed { .. })), "{failed:?}");
    assert_eq!(one.manifest(&name, &tag).await.unwrap().as_ref(), Some(&manifest));
}

/// A mirror that removes objects slowly.
fn slow_to_remove(service: &FaultyService) -> S3Storage {
    let pauses = ThrottleConfig {
        wait_delete_per_call: Duration::from_millis(100),
        ..ThrottleConfig::default()
    };
    let slow = ThrottledStore::new(service.clone(), pauses);
    S3Storage::of(Bucket::new(Arc::new(slow), "models", "s3://test".into()))
}

#[tokio::test]
async fn blobs_named_during_garbage_collection_are_restored() {
    let service = FaultyService::default();
    let (slow, other) = (slow_to_remove(&service), service.storage());
    let name = Repository::parse("team/thing").unwrap();
    let [needed, unneeded] =
        [push(&other, &name, b"weights").await, push(&other, &name, b"other").await];
    service.age().await;
    let pushed = async {
        // The mirror has chosen the blob by now and removes it later.
        tokio::time::sleep(Duration::from_millis(40)).await;
        other.put_manifest(&name, &Reference::Tag("v1".into()), manifest_of(&needed)).await
    };
    let (swept, pushed) = tokio::join!(slow.collect_garbage(), pushed);
    assert_eq!((swept, pushed), (Ok(()), Ok(None)));
    assert_eq!(read(&other, needed, 0..7).await, b"weights");
    assert!(other.blob(unneeded).await.unwrap().is_none());
}

/// Writes size notes of a repository.
async fn write_notes(mirror: &S3Storage, name: &str, count: u64) {
    let notes = mirror.size_notes(&Repository::parse(name).unwrap());
    for n in 0..count {
        notes.write(&n.to_string(), "[]".into()).await.unwrap();
    }
}

async fn count_notes(mirror: &S3Storage, name: &str) -> usize {
    mirror.size_notes(&Repository::parse(name).unwrap()).list().await.unwrap().len()
}

#[tokio::test]
async fn the_number_of_old_size_notes_is_limited() {
    let service = FaultyService::default();
    let mirror = service.storage();
    write_notes(&mirror, "a/b", 7).await;
    write_notes(&mirror, "a/c", 7).await;
    for (age, left) in
        [(SIZE_NOTE_REFRESH / 2, 14), (2 * SIZE_NOTE_REFRESH, 8), (31 * SIZE_NOTE_REFRESH, 0)]
    {
        service.age_by(age).await;
        mirror.collect_garbage().await.unwrap();
        assert_eq!(count_notes(&mirror, "a/b").await + count_notes(&mirror, "a/c").await, left);
    }
}

#[tokio::test]
async fn size_notes_written_again_during_cleanup_stay() {
    let service = FaultyService::default();
    let (slow, other) = (slow_to_remove(&service), service.storage());
    write_notes(&other, "a/b", 5).await;
    service.age().await;
    let again = async {
        // The mirror has listed the notes by now and is removing the first one.
        tokio::time::sleep(Duration::from_millis(40)).await;
        write_notes(&other, "a/b", 5).await;
    };
    let (swept, ()) = tokio::join!(slow.collect_garbage(), again);
    assert_eq!(swept, Ok(()));
    let left = count_notes(&other, "a/b").await;
    assert!(left >= 4, "{left}");
}

#[tokio::test]
async fn unnamed_data_is_removed_after_an_hour() {
    let service = FaultyService::default();
    let (one, name) = (service.storage(), Repository::parse("team/thing").unwrap());
    push(&one, &name, b"weights").await;
    service.age().await;
    let bytes =
        async || keys(&service.inner).await.iter().filter(|key| key.contains("/data/")).count();
    one.collect_garbage().await.unwrap();
    assert!(one.blob(Digest::of(b"weights")).await.unwrap().is_none());
    // The name stays in the trash for a day.
    for left in [1, 1, 1] {
        one.collect_garbage().await.unwrap();
        assert_eq!(bytes().await, left);
    }
    service.age().await;
    for left in [1, 0] {
        one.collect_garbage().await.unwrap();
        assert_eq!(bytes().await, left);
    }
    assert_eq!(keys(&service.inner).await, [""; 0]);
}

#[tokio::test]
async fn nothing_is_removed_from_a_bucket_with_unknown_objects() {
    let (service, name) = (FaultyService::default(), Repository::parse("team/thing").unwrap());
    let one = service.storage();
    let kept = push(&one, &name, b"weights").await;
    one.put_manifest(&name, &Reference::Tag("v1".into()), manifest_of(&kept)).await.unwrap();
    let unused = push(&one, &name, b"unused").await;
    service.age().await;
    let removals =
        crate::storage::conditional_removal(&one, &name, Some("v1"), manifest_of(&kept).digest)
            .await;
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
        one.collect_garbage().await.unwrap();
        assert_eq!(
            one.remove_unchanged(vec![removals.clone()]).await,
            Ok(vec![Ok(false)]),
            "{key}"
        );
        let refused = one.remove_blob(unused).await;
        assert!(matches!(refused, Err(MirrorError::Denied(_))), "{key}: {refused:?}");
        assert_eq!(keys(&service.inner).await, before, "{key}");
        service.delete(&key).await.unwrap();
    }
    one.collect_garbage().await.unwrap();
    assert!(one.blob(unused).await.unwrap().is_none() && one.blob(kept).await.unwrap().is_some());
    let trash = keys(&service.inner).await.into_iter().filter(|key| key.contains("/trash/"));
    assert_eq!(trash.collect::<Vec<_>>(), [format!("models/trash/{}", unused.file_name())]);
    assert_eq!(one.remove_unchanged(vec![removals]).await, Ok(vec![Ok(true)]));
}

const MINUTE: Duration = Duration::from_secs(60);

/// A part that starts with `beginning` and repeats `piece` until `until` is set.
fn trickling(beginning: &[u8], piece: &'static [u8], until: Arc<AtomicBool>) -> UploadPart {
    let beginning = Bytes::copy_from_slice(beginning);
    let rest = stream::unfold(until, move |until| async move {
        tokio::time::sleep(Duration::from_millis(2)).await;
        while piece.is_empty() && !until.load(Relaxed) {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        (!until.load(Relaxed)).then(|| (Ok(Bytes::from_static(piece)), until))
    });
    UploadPart { at: None, len: None, body: stream::iter([Ok(beginning)]).chain(rest).boxed() }
}

#[tokio::test]
async fn uploads_in_progress_are_not_dropped_by_other_mirrors() {
    // All bytes of the first upload are in memory. The second has an uploaded part that its record
    // does not list, so only the multipart upload shows that it has bytes.
    for (begun, piece, pause) in [(100, &b"x"[..], 200), (70_000, b"", 0)] {
        let (service, name) = (FaultyService::default(), Repository::parse("team/thing").unwrap());
        let (one, other) = (service.storage(), service.storage());
        let (id, ends) =
            (one.uploads.begin(&name, "a").await.unwrap(), Arc::new(AtomicBool::new(false)));
        let sent = one.uploads.append(&name, &id, trickling(&noise(begun), piece, ends.clone()));
        let looked = async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            service.age_by(120 * MINUTE).await;
            tokio::time::sleep(Duration::from_millis(pause)).await;
            let looked = other.collect_garbage().await;
            ends.store(true, Relaxed);
            looked
        };
        let (sent, looked) = tokio::join!(sent, looked);
        let len = sent.unwrap();
        looked.unwrap();
        assert_eq!(other.uploads.size(&name, &id).await, Ok(len));
        let bytes = [noise(begun), vec![b'x'; len as usize - begun]].concat();
        one.uploads.finish(&name, &id, Digest::of(&bytes)).await.unwrap();
        assert_eq!(read(&other, Digest::of(&bytes), 0..len).await, bytes);
    }
}

#[tokio::test]
async fn uploads_dropped_by_another_mirror_stay_dropped() {
    let (service, name) = (FaultyService::default(), Repository::parse("team/thing").unwrap());
    let (one, other) = (service.storage(), service.storage());
    let (id, ends) =
        (one.uploads.begin(&name, "a").await.unwrap(), Arc::new(AtomicBool::new(false)));
    let sent = one.uploads.append(&name, &id, trickling(&noise(100), b"x", ends.clone()));
    let (sent, cancelled) = tokio::join!(sent, other.uploads.cancel(&name, &id));
    cancelled.unwrap();
    assert_eq!(sent, Err(MirrorError::UploadUnknown(id.to_string())));
    assert_eq!(keys(&service.inner).await, [""; 0]);
}

#[tokio::test]
async fn mirrors_share_the_upload_limit() {
    let pauses =
        ThrottleConfig { wait_put_per_call: Duration::from_millis(2), ..ThrottleConfig::default() };
    let service = FaultyService::default();
    let mirror = || {
        let service = Arc::new(ThrottledStore::new(service.clone(), pauses));
        S3Storage::of(Bucket::new(service, "models", "s3://test".into()))
    };
    let (mirrors, name) =
        ([mirror(), mirror(), mirror()], Repository::parse("team/thing").unwrap());
    let all = mirrors.iter().flat_map(|mirror| {
        (0..2 * MAX_UPLOADS_PER_OWNER).map(|_| mirror.uploads.begin(&name, "a"))
    });
    let begun = join_all(all).await.iter().filter(|begun| begun.is_ok()).count();
    assert!(
        (MAX_UPLOADS_PER_OWNER..MAX_UPLOADS_PER_OWNER + mirrors.len()).contains(&begun),
        "{begun}"
    );
    for mirror in &mirrors {
        assert!(matches!(
            mirror.uploads.begin(&name, "a").await,
            Err(MirrorError::TooManyRequests(_))
        ));
        assert!(mirror.uploads.begin(&name, "b").await.is_ok(), "others are not kept out");
    }
}

#[tokio::test]
async fn unreadable_records_do_not_block_uploads() {
    let (service, name) = (FaultyService::default(), Repository::parse("team/thing").unwrap());
    let one = service.storage();
    let unreadable = async |count| {
        for _ in 0..count {
            let key = one.bucket.key(["uploads", &format!("{}.json", UploadId::random().unwrap())]);
            service.put(&key, "?".into()).await.unwrap();
        }
    };
    // An upload past its time.
    unreadable(1).await;
    service.age().await;
    let id = one.uploads.begin(&name, "a").await.unwrap();
    // The limit is reached, and one of the uploads can be dropped.
    unreadable(MAX_UPLOADS - 1).await;
    service.age_by(30 * MINUTE).await;
    let next = one.uploads.begin(&name, "b").await.unwrap();
    assert!(one.uploads.size(&name, &id).await.is_err());
    assert_eq!(one.uploads.size(&name, &next).await, Ok(0));
    service.age_by(30 * MINUTE).await;
    let other = one.uploads.begin(&name, "c").await.unwrap();
    // An upload with bytes is not dropped at once, and the records of the others are unreadable.
    one.uploads.append(&name, &other, part(None, b"bytes", true)).await.unwrap();
    let refused = one.uploads.begin(&name, "d").await;
    assert!(matches!(refused, Err(MirrorError::TooManyRequests(_))), "{refused:?}");
}

#[tokio::test]
async fn an_upload_in_use_is_not_dropped() {
    let (service, name) = (FaultyService::default(), Repository::parse("team/thing").unwrap());
    let one = service.storage();
    let id = one.uploads.begin(&name, "a").await.unwrap();
    let given_up = one.uploads.drop_upload_if(&id, |_, _| false).await;
    assert_eq!(given_up, Ok(DropOutcome::Kept));
    let ends = Arc::new(AtomicBool::new(false));
    let sent = one.uploads.append(&name, &id, trickling(b"bytes", b"x", ends.clone()));
    let given_up = async {
        tokio::time::sleep(Duration::from_millis(20)).await;
        let given_up = one.uploads.drop_upload_if(&id, |_, _| true).await;
        ends.store(true, Relaxed);
        given_up
    };
    let (sent, given_up) = tokio::join!(sent, given_up);
    assert_eq!((sent.is_ok(), given_up), (true, Ok(DropOutcome::Kept)), "somebody is at it");
    // A request that arrives during the removal waits, and finds no upload.
    let slow = slow_to_remove(&service);
    let late = async {
        tokio::time::sleep(Duration::from_millis(20)).await;
        slow.uploads.append(&name, &id, part(None, b"more", true)).await
    };
    let (given_up, late) = tokio::join!(slow.uploads.drop_upload_if(&id, |_, _| true), late);
    assert_eq!(
        (given_up, late),
        (Ok(DropOutcome::Dropped), Err(MirrorError::UploadUnknown(id.to_string())))
    );
    assert_eq!(keys(&service.inner).await, [""; 0]);
}
