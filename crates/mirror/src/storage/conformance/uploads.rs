//! Behaviour of an [`UploadStore`](crate::storage::UploadStore).

use std::collections::HashSet;

use futures_util::future::join_all;

use super::*;
use crate::storage::InventoryScope;
use crate::types::upload_id::UploadId;
use crate::uploads::admission::MAX_UPLOADS_PER_OWNER;

/// Checks that no upload has the id.
async fn check_unknown(storage: &Storage, name: &Repository, id: &UploadId) {
    let uploads = &storage.uploads;
    for error in [
        uploads.size(name, id).await.unwrap_err(),
        uploads.append(name, id, part(None, b"x", true)).await.unwrap_err(),
        uploads.finish(name, id, Digest::of(b"x")).await.unwrap_err(),
        uploads.cancel(name, id).await.unwrap_err(),
    ] {
        assert_eq!(error.code(), (404, "BLOB_UPLOAD_UNKNOWN"), "{error}");
    }
}

pub(super) async fn an_upload_becomes_a_blob_when_its_digest_is_verified(test: &Fixture) {
    let (uploads, name) = (&test.storage.uploads, named("team/thing"));
    for len in [0, 1, 65_535, 65_536, 65_537, 131_072, 300_000] {
        let (bytes, id) = (noise(len), uploads.begin(&name, "").await.unwrap());
        assert_eq!(uploads.size(&name, &id).await, Ok(0));
        let mut at = 0;
        while at < len {
            let end = (at + 70_001).min(len);
            // The offset of a part is optional.
            let offset = (at == 0).then_some(at as u64);
            let added = uploads.append(&name, &id, part(offset, &bytes[at..end], true)).await;
            assert_eq!(added, Ok(end as u64));
            assert_eq!(uploads.size(&name, &id).await, added);
            at = end;
        }
        let digest = Digest::of(&bytes);
        assert!(!has_blob(&test.storage, digest).await, "the digest is not verified");
        uploads.finish(&name, &id, digest).await.unwrap();
        assert_eq!(read(&test.storage, digest, 0..len as u64).await, bytes);
        check_unknown(&test.storage, &name, &id).await;
    }
    let paths = test.paths().await;
    assert!(paths.iter().all(|path| !path.starts_with("uploads/")), "{paths:?}");
}

pub(super) async fn an_upload_continues_after_a_restart(test: &Fixture) {
    let (name, bytes) = (named("team/thing"), noise(200_000));
    let id = test.storage.uploads.begin(&name, "").await.unwrap();
    let first = part(Some(0), &bytes[..90_000], true);
    test.storage.uploads.append(&name, &id, first).await.unwrap();
    // The next process knows only what is stored.
    let uploads = &test.other.uploads;
    assert_eq!(uploads.size(&name, &id).await, Ok(90_000));
    let rest = part(Some(90_000), &bytes[90_000..], true);
    assert_eq!(uploads.append(&name, &id, rest).await, Ok(200_000));
    uploads.finish(&name, &id, Digest::of(&bytes)).await.unwrap();
    assert_eq!(read(&test.storage, Digest::of(&bytes), 0..200_000).await, bytes);
}

pub(super) async fn an_interrupted_part_can_be_resent_or_continued(test: &Fixture) {
    let name = named("team/thing");
    for from in [100_000, 180_000] {
        let (bytes, uploads) = (noise(250_000), &test.storage.uploads);
        let id = uploads.begin(&name, "").await.unwrap();
        uploads.append(&name, &id, part(None, &bytes[..100_000], true)).await.unwrap();
        let broken = part(None, &bytes[100_000..180_000], false);
        assert_eq!(uploads.append(&name, &id, broken).await, Err(interruption()));
        for uploads in [uploads, &test.other.uploads] {
            assert_eq!(uploads.size(&name, &id).await, Ok(180_000));
            for first in [0, 50_000, 179_999, 180_001] {
                let elsewhere = uploads.append(&name, &id, part(Some(first), b"x", true)).await;
                assert_eq!(elsewhere, Err(MirrorError::OutOfOrder { first, at: 180_000 }));
            }
        }
        let uploads = &test.other.uploads;
        let rest = part(Some(from as u64), &bytes[from..], true);
        assert_eq!(uploads.append(&name, &id, rest).await, Ok(250_000));
        uploads.finish(&name, &id, Digest::of(&bytes)).await.unwrap();
        assert_eq!(read(&test.storage, Digest::of(&bytes), 0..250_000).await, bytes);
    }
}

pub(super) async fn parts_of_another_length_are_rejected(test: &Fixture) {
    let (uploads, name) = (&test.storage.uploads, named("team/thing"));
    let id = uploads.begin(&name, "").await.unwrap();
    let stated = |bytes: &[u8]| UploadPart { len: Some(5), ..part(None, bytes, true) };
    for (bytes, message, size) in [
        (&b"0123456789"[..], "received 10 bytes, but 5 were announced", 0),
        (b"012", "received 3 bytes, but 5 were announced", 3),
    ] {
        let error = uploads.append(&name, &id, stated(bytes)).await.unwrap_err();
        assert_eq!((error.code().0, error.to_string().as_str()), (400, message));
        assert_eq!(uploads.size(&name, &id).await, Ok(size));
    }
    let whole = UploadPart { at: Some(0), ..stated(b"01234") };
    assert_eq!(uploads.append(&name, &id, whole).await, Ok(5));
    uploads.finish(&name, &id, Digest::of(b"01234")).await.unwrap();
    assert_eq!(read(&test.storage, Digest::of(b"01234"), 0..5).await, b"01234");
}

pub(super) async fn an_upload_belongs_to_its_repository(test: &Fixture) {
    let (name, other) = (named("team/thing"), named("team/other"));
    let id = test.storage.uploads.begin(&name, "").await.unwrap();
    test.storage.uploads.append(&name, &id, part(None, b"weights", true)).await.unwrap();
    for storage in [&test.storage, &test.other] {
        check_unknown(storage, &other, &id).await;
    }
    check_unknown(&test.storage, &name, &UploadId::random().unwrap()).await;
    test.storage.uploads.finish(&name, &id, Digest::of(b"weights")).await.unwrap();
}

pub(super) async fn a_digest_mismatch_ends_the_upload(test: &Fixture) {
    let (uploads, name, bytes) = (&test.storage.uploads, named("team/thing"), noise(200_000));
    let id = uploads.begin(&name, "").await.unwrap();
    uploads.append(&name, &id, part(None, &bytes, true)).await.unwrap();
    let (expected, found) = (Digest::of(b"other"), Digest::of(&bytes));
    let finished = uploads.finish(&name, &id, expected).await;
    assert_eq!(finished, Err(MirrorError::DigestMismatch { expected, found }));
    check_unknown(&test.storage, &name, &id).await;
    assert!(!has_blob(&test.storage, expected).await && !has_blob(&test.storage, found).await);
    assert_eq!(test.paths().await, [""; 0]);
}

pub(super) async fn a_cancelled_upload_leaves_nothing(test: &Fixture) {
    let (uploads, name) = (&test.storage.uploads, named("team/thing"));
    for len in [0, 10, 80_000, 200_000] {
        let id = uploads.begin(&name, "").await.unwrap();
        uploads.append(&name, &id, part(None, &noise(len), true)).await.unwrap();
        uploads.cancel(&name, &id).await.unwrap();
        check_unknown(&test.storage, &name, &id).await;
        assert_eq!(test.paths().await, [""; 0]);
    }
}

pub(super) async fn two_uploads_of_a_blob_succeed(test: &Fixture) {
    let (one, other) = (&test.storage.uploads, &test.other.uploads);
    let (name, bytes) = (named("team/thing"), noise(150_000));
    let (first, second) =
        (one.begin(&name, "").await.unwrap(), other.begin(&name, "").await.unwrap());
    one.append(&name, &first, part(None, &bytes, true)).await.unwrap();
    other.append(&name, &second, part(None, &bytes, true)).await.unwrap();
    let digest = Digest::of(&bytes);
    let done =
        tokio::join!(one.finish(&name, &first, digest), other.finish(&name, &second, digest));
    assert_eq!(done, (Ok(()), Ok(())));
    for storage in [&test.storage, &test.other] {
        assert_eq!(read(storage, digest, 0..150_000).await, bytes);
    }
}

pub(super) async fn concurrent_uploads_stay_within_the_limit(test: &Fixture) {
    let (uploads, name) = (&test.storage.uploads, named("team/thing"));
    let begun = join_all((0..3 * MAX_UPLOADS_PER_OWNER).map(|_| uploads.begin(&name, "k"))).await;
    let (begun, refused): (Vec<_>, Vec<_>) = begun.into_iter().partition(Result::is_ok);
    assert_eq!(begun.len(), MAX_UPLOADS_PER_OWNER);
    for error in refused.into_iter().map(Result::unwrap_err) {
        assert_eq!(error.code(), (429, "TOOMANYREQUESTS"), "{error}");
    }
    let paths = test.paths().await;
    let file_names = paths.iter().filter_map(|path| path.strip_prefix("uploads/"));
    let ids: HashSet<&str> = file_names.filter_map(|name| name.split('.').next()).collect();
    assert_eq!(ids.len(), MAX_UPLOADS_PER_OWNER);
    assert!(uploads.begin(&name, "another").await.is_ok());
}

pub(super) async fn open_uploads_are_listed_with_their_bytes(test: &Fixture) {
    let (uploads, name) = (&test.storage.uploads, named("team/thing"));
    let list = async |scope| {
        let mut stored = test.other.uploads.stored_uploads(scope).await.unwrap();
        stored.sort_by_key(|upload| upload.bytes);
        stored
    };
    let empty = uploads.begin(&name, "").await.unwrap();
    let begun = uploads.begin(&named("Team/other"), "k").await.unwrap();
    let apart = uploads.begin(&named("else/x"), "").await.unwrap();
    for len in [80_000, 120_000] {
        uploads
            .append(&named("Team/other"), &begun, part(None, &noise(40_000), true))
            .await
            .unwrap();
        if len == 80_000 {
            uploads
                .append(&named("Team/other"), &begun, part(None, &noise(40_000), true))
                .await
                .unwrap();
        }
        let stored = list(InventoryScope::Namespace("team".into())).await;
        let found: Vec<_> = stored.iter().map(|upload| (&upload.id, upload.bytes)).collect();
        assert_eq!(found, [(&empty, 0), (&begun, len)]);
        assert!(stored.iter().all(|upload| upload.record_bytes > 10));
    }
    uploads.cancel(&named("Team/other"), &begun).await.unwrap();
    let stored = list(InventoryScope::All).await;
    let mut found: Vec<_> = stored.into_iter().map(|upload| upload.id).collect();
    found.sort_by_key(|id| *id != empty);
    assert_eq!(found, [empty, apart]);
}
