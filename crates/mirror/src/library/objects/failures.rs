//! What a bucket loses where its service fails, and where mirrors are at the same at a time: nothing.

use object_store::throttle::{ThrottleConfig, ThrottledStore};

use super::tests::{keys, manifest_of, noise, part, push, read};
use super::wayward::{Fault, Wayward};
use super::*;

fn mirror_of(service: &Wayward) -> ObjectLibrary {
    ObjectLibrary::of(Bucket::new(Arc::new(service.clone()), "models", "s3://test".into()))
}

#[tokio::test]
async fn a_name_that_was_written_with_an_error_for_an_answer_keeps_its_bytes() {
    for (len, fault) in
        [100, 150_000].into_iter().flat_map(|len| [Fault::AnswerOfPut, Fault::Repeated].map(|f| (len, f)))
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
    let (tag, blob) = (Reference::Tag("v1".into()), push(&mirror_of(&service), &name, b"weights").await);
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
    let pauses =
        ThrottleConfig { wait_delete_per_call: Duration::from_millis(100), ..ThrottleConfig::default() };
    let slow = ThrottledStore::new(service.clone(), pauses);
    ObjectLibrary::of(Bucket::new(Arc::new(slow), "models", "s3://test".into()))
}

#[tokio::test]
async fn a_blob_that_a_push_names_while_it_is_cleared_away_comes_back() {
    let service = Wayward::default();
    let (slow, other) = (slow_to_remove(&service), mirror_of(&service));
    let name = Repository::parse("team/thing").unwrap();
    let [needed, unneeded] = [push(&other, &name, b"weights").await, push(&other, &name, b"other").await];
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

#[tokio::test]
async fn bytes_go_that_have_had_no_name_for_an_hour() {
    let service = Wayward::default();
    let (one, name) = (mirror_of(&service), Repository::parse("team/thing").unwrap());
    push(&one, &name, b"weights").await;
    service.age().await;
    let bytes = async || keys(&service.inner).await.iter().filter(|key| key.contains("/data/")).count();
    one.tidy().await.unwrap();
    assert!(one.blob(Digest::of(b"weights")).await.unwrap().is_none());
    for left in [1, 0] {
        one.tidy().await.unwrap();
        assert_eq!(bytes().await, left);
    }
}
