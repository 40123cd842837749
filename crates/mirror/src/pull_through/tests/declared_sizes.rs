//! Serving of blobs in flight with known, unknown and conflicting sizes.

use std::fs;
use std::ops::Range;
use std::path::PathBuf;
use std::time::SystemTime;

use futures_util::TryStreamExt;

use super::*;
use crate::pull_through::declared_sizes::DeclaredSize;

impl TestMirror {
    /// A mirror that was restarted with the same storage.
    fn again(&self, upstream: &Upstream) -> Self {
        let bucket = self.through.0.bucket.clone();
        Self::at(self.dir.clone(), upstream, HOUR, Upstreams::default(), bucket)
    }

    /// Declares the sizes of a manifest as if it had been served.
    async fn declare(&self, name: &str, manifest: &Bytes) {
        let manifest = Manifest::parse(manifest.clone(), None).unwrap();
        let (inner, name) = (&self.through.0, Repository::parse(name).unwrap());
        inner.declared_sizes.declare(&*inner.storage.inventory, &name, &manifest).await.unwrap();
    }

    /// Size that the manifests of a repository declare for a blob.
    async fn declared_size(&self, name: &str, digest: Digest) -> Option<DeclaredSize> {
        let (inner, name) = (&self.through.0, Repository::parse(name).unwrap());
        inner.declared_sizes.get(&*inner.storage.inventory, &name, digest).await.unwrap()
    }

    /// Number of size notes of the repositories `library/m0` to `library/m2`.
    async fn count_notes(&self) -> usize {
        let mut count = 0;
        for n in 0..3 {
            let notes =
                self.through.size_notes(&Repository::parse(&format!("library/m{n}")).unwrap());
            count += notes.list().await.unwrap().len();
        }
        count
    }

    fn notes(&self) -> PathBuf {
        self.dir.path().join("models/puna-registry/sizes")
    }

    async fn part(&self, digest: Digest, range: Range<u64>) -> Result<Vec<u8>, MirrorError> {
        let manifest_bytes = part(self, "library/m", digest, range);
        tokio::time::timeout(Duration::from_secs(20), manifest_bytes)
            .await
            .expect("it does not wait for what is not sent")
    }
}

/// Mirrors with file storage and with S3 storage.
fn both(upstream: &Upstream) -> [TestMirror; 2] {
    [TestMirror::new(upstream, HOUR, Upstreams::default()), TestMirror::in_bucket(upstream, HOUR)]
}

/// Requests a range of a blob in a repository.
async fn part(
    server: &TestMirror,
    name: &str,
    digest: Digest,
    range: std::ops::Range<u64>,
) -> Result<Vec<u8>, MirrorError> {
    let name = Repository::parse(name).unwrap();
    let blob = server
        .through
        .blob_for(&name, digest, Requester::Trusted)
        .await?
        .expect("the upstream has it");
    let pieces: Vec<Bytes> = blob.read(range).try_collect().await?;
    Ok(pieces.concat())
}

/// Content of a malicious upstream: one byte is changed, and bytes are appended.
fn corrupted(bytes: &[u8]) -> Vec<u8> {
    let mut corrupted = bytes.to_vec();
    corrupted[100] ^= 1;
    corrupted.extend([0; 1000]);
    corrupted
}

#[tokio::test]
async fn upstream_blobs_must_have_the_declared_size() {
    let (upstream, weights) = (Upstream::new().await, [7; 5000]);
    upstream.model("library/m", &weights);
    let longer = [&weights[..], &[0; 1000]].concat();
    for manifest_bytes in [corrupted(&weights), longer] {
        let server = TestMirror::new(&upstream, HOUR, Upstreams::default());
        upstream.put(blob_path("library/m", &weights), manifest_bytes);
        server.manifest_bytes("library/m").await;
        server.wait_until_idle().await;
        let error = part(&server, "library/m", Digest::of(&weights), 0..5000).await.unwrap_err();
        assert_eq!(error.code().0, 502, "{error}");
        assert!(
            error
                .to_string()
                .contains("6000 bytes at the upstream, but its manifest declares 5000"),
            "{error}"
        );
    }
}

#[tokio::test]
async fn size_mismatches_are_cached_for_a_while() {
    let (upstream, weights) = (Upstream::new().await, [7; 5000]);
    let manifest = upstream.model("library/m", &weights);
    let path = blob_path("library/m", &weights);
    upstream.put(path.clone(), corrupted(&weights));
    for (negative_cache_time, manifest_bytes) in [(HOUR, false), (Duration::ZERO, true)] {
        let server = TestMirror::new(&upstream, negative_cache_time, Upstreams::default());
        server.declare("library/m", &manifest).await;
        let first = part(&server, "library/m", Digest::of(&weights), 0..5000).await.unwrap_err();
        let request_count = upstream.request_count(&path);
        upstream.put(path.clone(), weights.to_vec());
        let again = part(&server, "library/m", Digest::of(&weights), 0..5000).await;
        match manifest_bytes {
            true => assert_eq!(again, Ok(weights.to_vec())),
            false => {
                assert_eq!(
                    (again, upstream.request_count(&path)),
                    (Err(first), request_count),
                    "it is left alone"
                )
            }
        }
        upstream.put(path.clone(), corrupted(&weights));
    }
}

#[tokio::test]
async fn blobs_of_unknown_size_are_served_after_verification() {
    let (upstream, weights) = (Upstream::new().await, vec![7; 3 << 20]);
    let digest = Digest::of(&weights);
    for range in [0..1, 0..100_000, 1..100_000, 1 << 20..(1 << 20) + 100_000] {
        upstream.put(blob_path("library/m", &weights), corrupted(&weights));
        let server = TestMirror::new(&upstream, HOUR, Upstreams::default());
        // All requested bytes are present before the last ones arrive.
        upstream.set_open(false);
        upstream.set_open_until(weights.len());
        let mut manifest_bytes = Box::pin(part(&server, "library/m", digest, range.clone()));
        let waits = tokio::time::timeout(Duration::from_millis(500), &mut manifest_bytes).await;
        assert!(waits.is_err(), "{range:?} is given");
        upstream.set_open(true);
        assert!(manifest_bytes.await.is_err(), "{range:?}: its bytes are not those of the digest");
    }
    // An intact blob is served, also from its beginning.
    upstream.put(blob_path("library/n", &weights), weights.clone());
    let server = TestMirror::new(&upstream, HOUR, Upstreams::default());
    for range in [0..4000, 1000..5000] {
        assert_eq!(part(&server, "library/n", digest, range).await, Ok(vec![7; 4000]));
    }
}

#[tokio::test]
async fn manifests_of_other_repositories_declare_no_size() {
    let (upstream, weights) = (Upstream::new().await, [7; 5000]);
    let digest = Digest::of(&weights);
    let manifest = upstream.model("library/m", &weights);
    let lying = String::from_utf8(manifest.to_vec()).unwrap().replace("5000", "6000");
    upstream.put("/v2/library/z/manifests/latest".into(), lying);
    upstream.put(blob_path("library/z", b"{}"), &b"{}"[..]);
    upstream.put(blob_path("library/z", &weights), corrupted(&weights));
    let server = TestMirror::new(&upstream, HOUR, Upstreams::default());
    upstream.set_open(false);
    server.manifest_bytes("library/z").await;
    let reader = |name: &'static str| {
        let through = server.through.clone();
        async move {
            let name = Repository::parse(name).unwrap();
            let blob = through.blob_for(&name, digest, Requester::Trusted).await.unwrap().unwrap();
            blob.read(0..5000).try_collect::<Vec<Bytes>>().await
        }
    };
    let reader = tokio::spawn(reader("library/m"));
    until(|| upstream.request_count(&blob_path("library/z", &weights)) > 0).await;
    upstream.set_open(true);
    assert!(reader.await.unwrap().is_err(), "its bytes are not those of the digest");
}

#[tokio::test]
async fn blobs_are_served_in_flight_after_a_restart() {
    let (upstream, weights) = (Upstream::new().await, vec![7; 3 << 20]);
    let digest = Digest::of(&weights);
    upstream.model("library/m", &weights);
    upstream.put(blob_path("library/other", &weights), weights.clone());
    for server in both(&upstream) {
        upstream.set_open(false);
        server.manifest_bytes("library/m").await;
        let mirror = server.again(&upstream);
        // All bytes but the last ones arrive.
        upstream.set_open_until(weights.len() - 1000);
        for range in [0..100_000, 1 << 20..(1 << 20) + 100_000] {
            let manifest_bytes = mirror.part(digest, range.clone()).await.unwrap();
            assert_eq!(manifest_bytes.len() as u64, range.end - range.start);
        }
        // The repository `library/other` declares no size.
        let other = async { part(&mirror, "library/other", digest, 0..100).await };
        assert!(tokio::time::timeout(Duration::from_millis(300), other).await.is_err());
        upstream.set_open(true);
        // The first process may put the blob into the bucket between two pieces; then the request
        // is repeated.
        let whole = match mirror.part(digest, 0..3 << 20).await {
            Err(error @ MirrorError::Upstream(_))
                if error.to_string().contains("request the whole blob again") =>
            {
                mirror.part(digest, 0..3 << 20).await
            }
            manifest_bytes => manifest_bytes,
        };
        assert_eq!(whole.unwrap().len(), 3 << 20);
        server.wait_until_idle().await;
    }
}

#[tokio::test]
async fn resumed_downloads_do_not_get_a_longer_blob() {
    let (upstream, weights) = (Upstream::new().await, [7; 5000]);
    let digest = Digest::of(&weights);
    let manifest = upstream.model("library/m", &weights);
    for server in both(&upstream) {
        // With a declared size, all bytes but the last are served although one is wrong.
        upstream.put("/v2/library/m/manifests/latest".into(), manifest.clone());
        upstream.put(blob_path("library/m", &weights), corrupted(&weights)[..5000].to_vec());
        server.manifest_bytes("library/m").await;
        server.wait_until_idle().await;
        // After a restart the upstream has a longer blob, and states so itself or in another
        // manifest.
        upstream.put(blob_path("library/m", &weights), corrupted(&weights));
        let mirror = server.again(&upstream);
        for range in [4000..5000, 4999..5000, 4999..6000] {
            let error = mirror.part(digest, range).await.unwrap_err();
            assert!(error.to_string().contains("its manifest declares 5000"), "{error}");
        }
        let moved = String::from_utf8(manifest.to_vec()).unwrap().replace("5000", "6000");
        upstream.put("/v2/library/m/manifests/latest".into(), moved);
        let mirror = server.again(&upstream);
        upstream.set_open(false);
        mirror.manifest_bytes("library/m").await;
        assert_eq!(
            mirror.declared_size("library/m", digest).await,
            Some(DeclaredSize::Conflicting)
        );
        let reader = |range: Range<u64>| {
            let through = mirror.through.clone();
            let name = Repository::parse("library/m").unwrap();
            async move {
                let blob = through
                    .blob_for(&name, digest, Requester::Trusted)
                    .await?
                    .expect("it is on its way");
                assert_eq!(blob.size(), 6000);
                blob.read(range).try_collect::<Vec<Bytes>>().await
            }
        };
        let readers = [4000..5000, 4999..6000].map(|range| tokio::spawn(reader(range)));
        tokio::time::sleep(Duration::from_millis(50)).await;
        upstream.set_open(true);
        for reader in readers {
            assert!(reader.await.unwrap().is_err(), "its bytes are not those of the digest");
        }
        mirror.wait_until_idle().await;
    }
}

#[tokio::test]
async fn sizes_of_manifests_served_by_other_mirrors_apply_at_once() {
    let (upstream, weights) = (Upstream::new().await, [7; 5000]);
    let digest = Digest::of(&weights);
    let manifest = upstream.model("library/m", &weights);
    let moved = Bytes::from(String::from_utf8(manifest.to_vec()).unwrap().replace("5000", "6000"));
    for server in both(&upstream) {
        let (one, other) = (server.again(&upstream), server.again(&upstream));
        assert_eq!(other.declared_size("library/m", digest).await, None);
        one.declare("library/m", &manifest).await;
        assert_eq!(other.declared_size("library/m", digest).await, Some(DeclaredSize::Bytes(5000)));
        assert_eq!(other.declared_size("library/n", digest).await, None);
        one.declare("library/m", &moved).await;
        assert_eq!(other.declared_size("library/m", digest).await, Some(DeclaredSize::Conflicting));
    }
}

#[tokio::test]
async fn sizes_are_declared_for_each_name_of_a_manifest() {
    let (upstream, weights) = (Upstream::new().await, [7; 5000]);
    let digest = Digest::of(&weights);
    let manifest = upstream.model("library/m", &weights);
    let other = format!("{DEFAULT_HOST}/library/m");
    for by_digest in [false, true] {
        let server = TestMirror::new(&upstream, HOUR, Upstreams::default());
        upstream.set_open(false);
        server.manifest_bytes("library/m").await;
        assert_eq!(server.declared_size(&other, digest).await, None);
        let of = match by_digest {
            true => Reference::Digest(Digest::of(&manifest)),
            false => Reference::Tag("latest".into()),
        };
        let manifest_bytes = async |name: &str| {
            let name = Repository::parse(name).unwrap();
            server
                .through
                .manifest(&name, &of)
                .await
                .unwrap()
                .map(|manifest_bytes| manifest_bytes.bytes)
        };
        assert_eq!(manifest_bytes(&other).await, Some(manifest.clone()));
        assert_eq!(server.declared_size(&other, digest).await, Some(DeclaredSize::Bytes(5000)));
        // A repository without the manifest gets none.
        for none in ["library/n", "team/m"] {
            assert_eq!(manifest_bytes(none).await, None);
            assert_eq!(server.declared_size(none, digest).await, None);
        }
        upstream.set_open(true);
        server.wait_until_idle().await;
    }
}

#[tokio::test]
async fn stored_manifests_declare_sizes() {
    let (upstream, weights) = (Upstream::new().await, [7; 5000]);
    upstream.model("library/m", &weights);
    for server in both(&upstream) {
        server.manifest_bytes("library/m").await;
        server.wait_until_idle().await;
        let notes = server.through.size_notes(&Repository::parse("library/m").unwrap());
        let [note] = &notes.list().await.unwrap()[..] else {
            panic!("one manifest was handed out")
        };
        notes.remove(&note.name).await.unwrap();
        let mirror = server.again(&upstream);
        assert_eq!(
            mirror.declared_size("library/m", Digest::of(&weights)).await,
            Some(DeclaredSize::Bytes(5000))
        );
    }
}

#[tokio::test]
async fn notes_without_sizes_declare_nothing() {
    let (upstream, weights) = (Upstream::new().await, [7; 5000]);
    let digest = Digest::of(&weights);
    let manifest = upstream.model("library/m", &weights);
    let server = TestMirror::new(&upstream, HOUR, Upstreams::default());
    server.declare("library/m", &manifest).await;
    server.declare("library/n", &manifest).await;
    let blob = |n: u8| json!({"mediaType": "x", "digest": Digest::of(&[n]).to_string(), "size": 1});
    let large =
        json!({"schemaVersion": 2, "layers": (0..21).map(blob).collect::<Vec<_>>()}).to_string();
    server.declare("library/m", &large.into()).await;
    fs::write(server.notes().join("library+n/broken"), "[[").unwrap();
    for name in ["library/m", "library/n"] {
        for mirror in [&server, &server.again(&upstream)] {
            assert_eq!(
                mirror.declared_size(name, digest).await,
                Some(DeclaredSize::Conflicting),
                "{name}"
            );
        }
    }
}

#[tokio::test]
async fn blobs_are_verified_first_if_notes_are_unreadable() {
    let (upstream, weights) = (Upstream::new().await, vec![7; 3 << 20]);
    let digest = Digest::of(&weights);
    upstream.model("library/m", &weights);
    let server = TestMirror::new(&upstream, HOUR, Upstreams::default());
    upstream.set_open(false);
    upstream.set_open_until(weights.len() - 1000);
    server.manifest_bytes("library/m").await;
    fs::create_dir(server.notes().join("library+m/broken")).unwrap();
    // The blob is fetched with its manifest, and on its own after a restart.
    for mirror in [&server, &server.again(&upstream)] {
        upstream.set_open(false);
        upstream.set_open_until(weights.len() - 1000);
        let mut manifest_bytes = Box::pin(part(mirror, "library/m", digest, 0..100_000));
        let waits = tokio::time::timeout(Duration::from_millis(500), &mut manifest_bytes).await;
        assert!(waits.is_err(), "it is given though nobody knows where it ends: {waits:?}");
        upstream.set_open(true);
        assert_eq!(manifest_bytes.await, Ok(vec![7; 100_000]));
        server.wait_until_idle().await;
        // The next mirror fetches it again.
        let _ = fs::remove_file(
            Store::open(server.dir.path().join("models")).unwrap().blob_path(&digest),
        );
    }
}

#[tokio::test]
async fn evicted_sizes_are_read_again() {
    let (upstream, weights) = (Upstream::new().await, [7; 5000]);
    let digest = Digest::of(&weights);
    let server = TestMirror::new(&upstream, HOUR, Upstreams::default());
    let manifest = upstream.model("library/m", &weights);
    for n in 0..50 {
        server.declare(&format!("library/m{n}"), &manifest).await;
    }
    let moved = String::from_utf8(manifest.to_vec()).unwrap().replace("5000", "6000");
    server.declare("library/m0", &moved.into()).await;
    assert!(server.through.0.declared_sizes.remembered() <= 40);
    assert_eq!(server.declared_size("library/m0", digest).await, Some(DeclaredSize::Conflicting));
    for n in 1..50 {
        assert_eq!(
            server.declared_size(&format!("library/m{n}"), digest).await,
            Some(DeclaredSize::Bytes(5000)),
            "{n}"
        );
    }
}

#[tokio::test]
async fn a_repository_with_too_many_manifests_is_read_once() {
    let (upstream, weights) = (Upstream::new().await, [7; 5000]);
    let digest = Digest::of(&weights);
    let server = TestMirror::new(&upstream, HOUR, Upstreams::default());
    let manifest = upstream.model("library/m", &weights);
    server.declare("library/n", &manifest).await;
    for n in 0..50 {
        server.declare("library/m", &upstream.model("library/m", &[n])).await;
    }
    let mirrors = [&server, &server.again(&upstream)];
    for mirror in mirrors {
        assert_eq!(
            mirror.declared_size("library/n", digest).await,
            Some(DeclaredSize::Bytes(5000))
        );
        assert_eq!(
            mirror.declared_size("library/m", digest).await,
            Some(DeclaredSize::Conflicting)
        );
        assert!(mirror.through.0.declared_sizes.remembered() <= 40);
    }
    // Reading the notes again would fail.
    for name in ["library+m", "library+n"] {
        fs::create_dir(server.notes().join(name).join("broken")).unwrap();
    }
    for mirror in mirrors {
        assert_eq!(
            mirror.declared_size("library/m", digest).await,
            Some(DeclaredSize::Conflicting)
        );
        let (inner, name) = (&mirror.through.0, Repository::parse("library/n").unwrap());
        assert!(
            inner.declared_sizes.get(&*inner.storage.inventory, &name, digest).await.is_err(),
            "these are read each time"
        );
    }
}

#[tokio::test]
async fn manifests_are_not_served_if_their_note_cannot_be_written() {
    let (upstream, weights) = (Upstream::new().await, [7; 5000]);
    let old = upstream.model("library/m", &weights);
    let server = TestMirror::new(&upstream, HOUR, Upstreams::default());
    assert_eq!(server.manifest_bytes("library/m").await, old);
    server.wait_until_idle().await;
    fs::remove_dir_all(server.notes()).unwrap();
    fs::write(server.notes(), "").unwrap();
    upstream.model("library/m", b"others");
    upstream.model("library/n", b"others");
    assert_eq!(
        server.manifest_bytes("library/m").await,
        old,
        "it is served while the new one cannot be had"
    );
    let error = server.ask("library/n", "latest", Requester::Trusted).await.unwrap_err();
    assert_eq!(error.code().0, 500, "{error}");
}

#[tokio::test]
async fn size_notes_expire() {
    let upstream = Upstream::new().await;
    let [folder, bucket] = both(&upstream);
    for server in [&folder, &bucket] {
        for n in 0..20 {
            let manifest = upstream.model("library/m", &[n]);
            server.declare(&format!("library/m{}", n % 3), &manifest).await;
        }
        server.through.collect_garbage().await.unwrap();
        assert_eq!(
            server.count_notes().await,
            20,
            "who has written them does not do so again today"
        );
    }
    // Objects in the bucket are aged by the test service.
    for n in 0..3 {
        let dir = folder.notes().join(format!("library+m{n}"));
        for note in fs::read_dir(dir).unwrap() {
            let note = fs::File::options().append(true).open(note.unwrap().path()).unwrap();
            note.set_modified(SystemTime::now() - 48 * HOUR).unwrap();
        }
    }
    folder.through.collect_garbage().await.unwrap();
    assert_eq!(folder.count_notes().await, 8);
}

#[tokio::test]
async fn files_named_by_other_programs_are_checked() {
    let upstream = Upstream::new().await;
    // A small blob is checked at once, a large one while it is served.
    for (len, is_right) in [(3 << 20, true), (3 << 20, false), (5000, true), (5000, false)] {
        let (weights, named) = (vec![7; len], vec![if is_right { 7 } else { 8 }; len]);
        let digest = Digest::of(&weights);
        upstream.model("library/m", &weights);
        let server = TestMirror::new(&upstream, HOUR, Upstreams::default());
        // Another process fetches the blob and names its file.
        let other = Store::open(server.dir.path().join("models")).unwrap();
        let lock = other.lock_download(&digest).unwrap().unwrap();
        server.manifest_bytes("library/m").await;
        let name = || async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            fs::create_dir_all(other.blob_path(&digest).parent().unwrap()).unwrap();
            fs::write(other.blob_path(&digest), named).unwrap();
            drop(lock);
        };
        let reader = || server.part(digest, 0..len as u64);
        let (one, another, ()) = tokio::join!(reader(), reader(), name());
        for manifest_bytes in [one, another] {
            match is_right {
                true => assert!(manifest_bytes.unwrap() == weights),
                false => {
                    assert!(manifest_bytes.is_err(), "{len}: its bytes are not those of the digest")
                }
            }
        }
    }
}
