use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, future, stream};
use object_store::memory::InMemory;
use object_store::throttle::{ThrottleConfig, ThrottledStore};
use object_store::{ObjectStore, ObjectStoreExt};
use tokio::sync::Notify;

use super::*;
use crate::retention::usage_log::{ChangeSource, UsageLog};
use crate::retention::{Rule, apply_retention};
use crate::storage::conditional_removal;
use crate::types::manifest::OCI_MANIFEST;

fn two_mirrors() -> (Arc<InMemory>, Arc<S3Storage>, Arc<S3Storage>) {
    let service = Arc::new(InMemory::new());
    let storage = || {
        let bucket = Bucket::new(service.clone(), "office/models", "s3://test".into());
        Arc::new(S3Storage::of(bucket))
    };
    (service.clone(), storage(), storage())
}

pub(super) fn noise(len: usize) -> Vec<u8> {
    (0..len as u64).map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

/// A part that is interrupted after its bytes unless `is_complete` is set.
pub(super) fn part(at: Option<u64>, bytes: &[u8], is_complete: bool) -> UploadPart {
    let pieces: Vec<_> =
        bytes.chunks(10_000).map(|piece| Ok(Bytes::copy_from_slice(piece))).collect();
    let end = (!is_complete).then(|| Err(MirrorError::BodyInterrupted { reason: "gone".into() }));
    UploadPart { at, len: None, body: stream::iter(pieces.into_iter().chain(end)).boxed() }
}

pub(super) async fn read(storage: &S3Storage, digest: Digest, range: Range<u64>) -> Vec<u8> {
    let blob = storage.blob(digest).await.unwrap().expect("it is there");
    let pieces: Vec<Bytes> = blob.read(range).try_collect().await.unwrap();
    pieces.concat()
}

pub(super) async fn keys(service: &InMemory) -> Vec<String> {
    let mut keys: Vec<String> =
        service.list(None).map_ok(|meta| meta.location.to_string()).try_collect().await.unwrap();
    keys.sort();
    keys
}

pub(super) fn manifest_of(blob: &Digest) -> Manifest {
    let text = format!(
        r#"{{"mediaType":"{OCI_MANIFEST}","layers":[{{"mediaType":"x","digest":"{blob}","size":1}}]}}"#
    );
    Manifest::parse(text.into_bytes().into(), None).unwrap()
}

pub(super) async fn push(storage: &S3Storage, name: &Repository, bytes: &[u8]) -> Digest {
    let id = storage.uploads.begin(name, "").await.unwrap();
    storage.uploads.append(name, &id, part(None, bytes, true)).await.unwrap();
    storage.uploads.finish(name, &id, Digest::of(bytes)).await.unwrap();
    Digest::of(bytes)
}

#[tokio::test]
async fn an_upload_continues_on_another_mirror() {
    let (service, one, other) = two_mirrors();
    let name = Repository::parse("team/thing").unwrap();
    for len in [0, 1, 65_535, 65_536, 65_537, 131_072, 300_000] {
        let (bytes, id) = (noise(len), one.uploads.begin(&name, "").await.unwrap());
        let (mut at, mut turn) = (0, 0);
        while at < len {
            let storage = if turn % 2 == 0 { &other } else { &one };
            let end = (at + 70_001).min(len);
            assert_eq!(
                storage
                    .uploads
                    .append(&name, &id, part(Some(at as u64), &bytes[at..end], true))
                    .await,
                Ok(end as u64)
            );
            (at, turn) = (end, turn + 1);
        }
        let digest = Digest::of(&bytes);
        assert!(one.blob(digest).await.unwrap().is_none(), "nobody sees what is not verified");
        other.uploads.finish(&name, &id, digest).await.unwrap();
        assert_eq!(read(&one, digest, 0..len as u64).await, bytes);
        if len > 100 {
            assert_eq!(read(&other, digest, 7..99).await, bytes[7..99]);
        }
    }
    let left = keys(&service).await;
    assert!(left.iter().all(|key| !key.contains("uploads/")), "{left:?}");
    assert!(left.iter().all(|key| key.starts_with("office/models/")), "{left:?}");
}

#[tokio::test]
async fn an_interrupted_part_continues_on_another_mirror() {
    let (_, one, other) = two_mirrors();
    let name = Repository::parse("team/thing").unwrap();
    let (bytes, id) = (noise(250_000), one.uploads.begin(&name, "").await.unwrap());
    let broken = part(None, &bytes[..180_000], false);
    assert!(one.uploads.append(&name, &id, broken).await.is_err());
    let early = other.uploads.finish(&name, &id, Digest::of(&bytes[..180_000])).await;
    assert!(matches!(early, Err(MirrorError::UploadInvalid(_))));
    let rest = part(Some(180_000), &bytes[180_000..], true);
    assert_eq!(other.uploads.append(&name, &id, rest).await, Ok(250_000));
    one.uploads.finish(&name, &id, Digest::of(&bytes)).await.unwrap();
    assert_eq!(read(&other, Digest::of(&bytes), 0..250_000).await, bytes);
}

#[tokio::test]
async fn a_digest_mismatch_leaves_nothing() {
    let (service, one, other) = two_mirrors();
    let (name, elsewhere) = (Repository::parse("a/b").unwrap(), Repository::parse("a/c").unwrap());
    let id = one.uploads.begin(&name, "").await.unwrap();
    one.uploads.append(&name, &id, part(None, &noise(200_000), true)).await.unwrap();
    assert!(other.uploads.size(&elsewhere, &id).await.is_err(), "an upload is its repository's");
    let invalid_object = other.uploads.finish(&name, &id, Digest::of(b"other")).await;
    assert!(matches!(invalid_object, Err(MirrorError::DigestMismatch { .. })));
    assert!(matches!(one.uploads.size(&name, &id).await, Err(MirrorError::UploadUnknown(_))));
    let id = other.uploads.begin(&name, "").await.unwrap();
    other.uploads.append(&name, &id, part(None, &noise(80_000), true)).await.unwrap();
    one.uploads.cancel(&name, &id).await.unwrap();
    assert_eq!(keys(&service).await, [""; 0]);
}

#[tokio::test]
async fn a_blob_pushed_twice_is_stored_once() {
    let (service, one, other) = two_mirrors();
    let name = Repository::parse("team/thing").unwrap();
    let bytes = noise(150_000);
    let (first, second) = (
        one.uploads.begin(&name, "").await.unwrap(),
        other.uploads.begin(&name, "").await.unwrap(),
    );
    one.uploads.append(&name, &first, part(None, &bytes, true)).await.unwrap();
    other.uploads.append(&name, &second, part(None, &bytes, true)).await.unwrap();
    let digest = Digest::of(&bytes);
    let (a, b) = tokio::join!(
        one.uploads.finish(&name, &first, digest),
        other.uploads.finish(&name, &second, digest)
    );
    assert_eq!((a, b), (Ok(()), Ok(())));
    let kept: Vec<_> =
        keys(&service).await.into_iter().filter(|key| !key.contains("/brought/")).collect();
    assert_eq!(kept.len(), 2, "{kept:?}");
    assert_eq!(read(&one, digest, 0..150_000).await, bytes);
}

#[tokio::test]
async fn a_changed_blob_name_is_not_served() {
    let (service, one, _) = two_mirrors();
    let name = Repository::parse("team/thing").unwrap();
    let blob = push(&one, &name, b"weights").await;
    service.put(&blob_key(&one.bucket, &blob), "?".into()).await.unwrap();
    let Err(error) = one.blob(blob).await else { panic!("no blob lies there") };
    let text = error.to_string();
    assert!(text.contains("s3://test") && text.contains(&blob.hex()), "{text}");
}

#[tokio::test]
async fn repositories_are_listed_concurrently() {
    const REPOSITORIES: usize = 48;
    const PAUSE: Duration = Duration::from_millis(20);
    let (service, one, _) = two_mirrors();
    let blob = push(&one, &Repository::parse("team/thing").unwrap(), b"weights").await;
    for number in 0..REPOSITORIES {
        let name = Repository::parse(&format!("team/thing{number}")).unwrap();
        one.put_manifest(&name, &Reference::Tag("v1".into()), manifest_of(&blob)).await.unwrap();
    }
    let pauses = ThrottleConfig {
        wait_get_per_call: PAUSE,
        wait_list_with_delimiter_per_call: PAUSE,
        ..ThrottleConfig::default()
    };
    let slow = ThrottledStore::new(service.fork(), pauses);
    let storage = S3Storage::of(Bucket::new(Arc::new(slow), "office/models", "s3://test".into()));
    let begun = Instant::now();
    let kept = storage
        .stored_objects(InventoryScope::All)
        .await
        .unwrap()
        .into_iter()
        .filter(|held| held.manifest.is_some())
        .count();
    assert_eq!(kept, REPOSITORIES);
    assert_eq!(storage.tag_entries().await.unwrap().len(), REPOSITORIES);
    let needed = storage.remove_blob(blob).await;
    assert!(matches!(needed, Err(MirrorError::Denied(_))));
    // Sequential requests would take two pauses for each repository.
    let took = begun.elapsed();
    assert!(took < PAUSE * REPOSITORIES as u32 * 2, "{took:?}");
}

/// A part of two pieces; the second arrives on a signal.
fn halting(first: &[u8], rest: &[u8], go_on: Arc<Notify>) -> UploadPart {
    let [first, rest] = [first, rest].map(Bytes::copy_from_slice);
    let rest = async move {
        go_on.notified().await;
        // The next reader need not wait.
        go_on.notify_one();
        Ok(rest)
    };
    UploadPart {
        at: None,
        len: None,
        body: stream::iter([Ok(first)]).chain(stream::once(rest)).boxed(),
    }
}

#[tokio::test]
async fn slow_clients_hold_no_memory() {
    // Slow uploads that lack one byte of their part hold all the memory of their owner.
    for begun in [1, 65_535] {
        let (_, one, _) = two_mirrors();
        let (name, bytes) = (Repository::parse("team/thing").unwrap(), noise(200_000));
        let go_on = Arc::new(Notify::new());
        let slow = async || {
            let id = one.uploads.begin(&name, "").await.unwrap();
            let part = halting(&bytes[..begun], &bytes[begun..], go_on.clone());
            assert_eq!(one.uploads.append(&name, &id, part).await, Ok(200_000));
            one.uploads.finish(&name, &id, Digest::of(&bytes)).await
        };
        let fast = async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            let begun = Instant::now();
            for text in ["one", "other"] {
                push(&one, &name, &[&bytes[..], text.as_bytes()].concat()).await;
            }
            go_on.notify_one();
            begun.elapsed()
        };
        let (slow, took) = future::join(future::join_all((0..10).map(|_| slow())), fast).await;
        assert!(took < Duration::from_secs(5), "{took:?}");
        assert!(slow.iter().all(|done| *done == Ok(())), "{slow:?}");
        assert_eq!(read(&one, Digest::of(&bytes), 0..200_000).await, bytes);
    }
}

#[tokio::test]
async fn a_tag_moved_after_the_listing_is_not_cached() {
    let (_, one, other) = two_mirrors();
    let name = Repository::parse("team/thing").unwrap();
    let tag = Reference::Tag("v1".into());
    let blobs = [push(&one, &name, b"a").await, push(&one, &name, b"b").await];
    let [a, b] = blobs.map(|blob| manifest_of(&blob));
    other.put_manifest(&name, &tag, a.clone()).await.unwrap();
    let manifest_of_object =
        one.bucket.list_objects(&one.repository_key(&name).join("tags")).await.unwrap();
    other.put_manifest(&name, &tag, b.clone()).await.unwrap();
    assert_eq!(one.cached_tag(&name, &manifest_of_object[0]).await.unwrap(), Some(b.digest));
    // Services give equal content equal versions.
    other.put_manifest(&name, &tag, a.clone()).await.unwrap();
    assert_eq!(one.cached_tag(&name, &manifest_of_object[0]).await.unwrap(), Some(a.digest));
}

/// A mirror that removes objects slowly, and a future that waits until it has started.
fn slow_to_remove(service: &InMemory) -> S3Storage {
    let pauses = ThrottleConfig {
        wait_delete_per_call: Duration::from_millis(100),
        ..ThrottleConfig::default()
    };
    let slow = ThrottledStore::new(service.clone(), pauses);
    S3Storage::of(Bucket::new(Arc::new(slow), "office/models", "s3://test".into()))
}

async fn is_at_it(service: &InMemory) {
    while !keys(service).await.iter().any(|key| key.contains("/retiring/")) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // The mirror has read the state by now and removes the item later.
    tokio::time::sleep(Duration::from_millis(40)).await;
}

#[tokio::test]
async fn manifests_pushed_during_their_removal_stay() {
    let (service, other, _) = two_mirrors();
    let slow = slow_to_remove(&service);
    let name = Repository::parse("team/thing").unwrap();
    let tag = Reference::Tag("v1".into());
    let manifest = manifest_of(&push(&other, &name, b"weights").await);
    for reference in [tag.clone(), Reference::Digest(manifest.digest)] {
        other.put_manifest(&name, &reference, manifest.clone()).await.unwrap();
        let word = matches!(reference, Reference::Tag(_)).then_some("v1");
        let removals = conditional_removal(&slow, &name, word, manifest.digest).await;
        let pushed = async {
            is_at_it(&service).await;
            other.put_manifest(&name, &reference, manifest.clone()).await
        };
        let (removed, pushed) = tokio::join!(slow.remove_unchanged(vec![removals]), pushed);
        assert_eq!((removed.unwrap(), pushed), (vec![Ok(true)], Ok(None)));
        assert_eq!(other.manifest(&name, &reference).await.unwrap().as_ref(), Some(&manifest));
        assert!(keys(&service).await.iter().all(|key| !key.contains("/retiring/")));
        other.remove_manifest(&name, &tag).await.unwrap();
    }
}

#[tokio::test]
async fn children_of_a_list_pushed_during_their_removal_stay() {
    let (service, other, _) = two_mirrors();
    let slow = slow_to_remove(&service);
    let name = Repository::parse("team/thing").unwrap();
    let child = manifest_of(&push(&other, &name, b"weights").await);
    let by_digest = Reference::Digest(child.digest);
    other.put_manifest(&name, &by_digest, child.clone()).await.unwrap();
    let text =
        format!(r#"{{"manifests":[{{"mediaType":"x","digest":"{}","size":1}}]}}"#, child.digest);
    let list = Manifest::parse(text.into_bytes().into(), None).unwrap();
    let removals = conditional_removal(&slow, &name, None, child.digest).await;
    let pushed = async {
        is_at_it(&service).await;
        other.put_manifest(&name, &Reference::Tag("list".into()), list).await
    };
    let (_, pushed) = tokio::join!(slow.remove_unchanged(vec![removals.clone()]), pushed);
    assert_eq!(pushed, Ok(None));
    assert_eq!(other.manifest(&name, &by_digest).await.unwrap().as_ref(), Some(&child));
    // A mirror that reads the state now sees that the list needs the child.
    let removals = conditional_removal(&slow, &name, None, child.digest).await;
    assert_eq!(slow.remove_unchanged(vec![removals]).await.unwrap(), [Ok(false)]);
}

#[tokio::test]
async fn retention_removes_each_item_once() {
    let (service, one, other) = two_mirrors();
    let [one_storage, other_storage] = [&one, &other].map(|storage| Storage::from(storage.clone()));
    let name = Repository::parse("team/thing").unwrap();
    let days = Duration::from_secs(40 * 24 * 60 * 60);
    let later = || UsageLog::with_clock(Arc::new(move || SystemTime::now() + days)).unwrap();
    let now = UsageLog::new().unwrap();
    for tag in ["v1", "v2", "v3"] {
        let manifest = manifest_of(&push(&one, &name, tag.as_bytes()).await);
        one.put_manifest(&name, &Reference::Tag(tag.into()), manifest.clone()).await.unwrap();
        now.record_arrival(
            &name,
            &Reference::Tag(tag.into()),
            manifest.digest,
            ChangeSource::Push,
            None,
        );
    }
    // A manifest that has lost its tag.
    let lost = manifest_of(&push(&one, &name, b"lost").await);
    one.put_manifest(&name, &Reference::Digest(lost.digest), lost.clone()).await.unwrap();
    now.times(&name, None, lost.digest);
    now.write(one.usage_notes()).await.unwrap();
    let rules = ["team=last:1 pulled:30d".parse::<Rule>().unwrap()];
    let young = apply_retention(&one_storage, &now, &rules, false).await.unwrap();
    assert_eq!(young.removals, []);
    let (a, b) = (later(), later());
    let (a, b) = tokio::join!(
        apply_retention(&one_storage, &a, &rules, false),
        apply_retention(&other_storage, &b, &rules, false)
    );
    let (a, b) = (a.unwrap(), b.unwrap());
    assert!(a.failed.is_empty() && b.failed.is_empty());
    assert!(
        a.removals.len().max(b.removals.len()) <= 3 && a.removals.len() + b.removals.len() >= 3
    );
    assert_eq!(other.tags(&name).await.unwrap().unwrap(), ["v3"]);
    let left = keys(&service).await;
    assert_eq!(left.iter().filter(|key| key.contains("/manifests/")).count(), 1, "{left:?}");
}
