//! Behaviour of a [`BlobStore`](crate::storage::BlobStore).

use super::*;

pub(super) async fn a_blob_is_read_whole_and_in_ranges(test: &Fixture) {
    let name = named("team/thing");
    for len in [1, 300_000] {
        let bytes = noise(len);
        let digest = push(&test.storage, &name, &bytes).await;
        for storage in [&test.storage, &test.other] {
            let blob = storage.blobs.blob(digest).await.unwrap().unwrap();
            assert_eq!(blob.size(), len as u64);
            assert_eq!(read(storage, digest, 0..len as u64).await, bytes);
            for range in [0..1, len / 3..len / 2, len - 1..len] {
                let part = read(storage, digest, range.start as u64..range.end as u64).await;
                assert_eq!(part, bytes[range]);
            }
        }
    }
}

pub(super) async fn a_repository_references_pushed_blobs_and_those_of_its_manifests(
    test: &Fixture,
) {
    let (storage, name, other) = (&test.storage, named("team/thing"), named("team/other"));
    let digest = push(storage, &name, b"weights").await;
    let is_referenced = async |name: &Repository, digest| {
        storage.blobs.references_blob(name, digest).await.unwrap()
    };
    assert!(is_referenced(&name, digest).await && !is_referenced(&other, digest).await);
    let manifest = image_of(b"weights");
    storage.manifests.put_manifest(&other, &tag("v1"), manifest.clone()).await.unwrap();
    assert!(is_referenced(&other, digest).await);
    assert!(!is_referenced(&other, Digest::of(b"none")).await);
    let of = Reference::Digest(manifest.digest);
    assert!(storage.manifests.remove_manifest(&other, &of).await.unwrap());
    assert!(is_referenced(&name, digest).await && !is_referenced(&other, digest).await);
}

pub(super) async fn only_stored_blobs_can_be_mounted(test: &Fixture) {
    let (storage, name, other) = (&test.storage, named("team/thing"), named("team/other"));
    assert_eq!(storage.blobs.mount(&other, Digest::of(b"weights")).await, Ok(false));
    let digest = push(storage, &name, b"weights").await;
    for _ in 0..2 {
        assert_eq!(storage.blobs.mount(&other, digest).await, Ok(true));
    }
    let manifest = image_of(b"weights");
    storage.manifests.put_manifest(&other, &tag("v1"), manifest.clone()).await.unwrap();
    assert_eq!(storage.manifests.manifest(&other, &tag("v1")).await, Ok(Some(manifest)));
    assert_eq!(storage.manifests.tags(&name).await, Ok(None));
}

pub(super) async fn blobs_in_use_cannot_be_removed(test: &Fixture) {
    let (storage, name) = (&test.storage, named("team/thing"));
    let manifest = push_image(storage, &name, "v1", b"weights").await;
    let (needed, unneeded) = (Digest::of(b"weights"), push(storage, &name, b"unused").await);
    let error = storage.blobs.remove_blob(needed).await.unwrap_err();
    assert_eq!(error.code(), (403, "DENIED"), "{error}");
    assert_eq!(storage.blobs.remove_blob(unneeded).await, Ok(true));
    assert_eq!(storage.blobs.remove_blob(unneeded).await, Ok(false));
    assert!(has_blob(storage, needed).await && !has_blob(storage, unneeded).await);
    let of = Reference::Digest(manifest.digest);
    assert!(storage.manifests.remove_manifest(&name, &of).await.unwrap());
    assert_eq!(storage.blobs.remove_blob(needed).await, Ok(true));
    assert!(!has_blob(storage, needed).await);
}
