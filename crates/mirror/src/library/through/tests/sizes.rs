//! What is given of blobs that are on their way, as their manifests say how large they are.

use std::fs;
use std::ops::Range;
use std::path::PathBuf;
use std::time::SystemTime;

use futures_util::TryStreamExt;

use super::*;
use crate::library::through::sizes::Said as Size;

impl Bench {
    /// A mirror that was started anew over the same folder or bucket.
    fn again(&self, upstream: &Upstream) -> Self {
        let library = self.through.0.library.clone();
        Self::at(self.dir.clone(), upstream, HOUR, Upstreams::default(), Some(library))
    }

    /// Notes a manifest as one that was handed out.
    async fn say(&self, name: &str, manifest: &Bytes) {
        let manifest = Manifest::parse(manifest.clone(), None).unwrap();
        let (inner, name) = (&self.through.0, Repository::parse(name).unwrap());
        inner.sizes.note(&*inner.library, &name, &manifest).await.unwrap();
    }

    /// What is said of a blob.
    async fn said(&self, name: &str, digest: Digest) -> Option<Size> {
        let (inner, name) = (&self.through.0, Repository::parse(name).unwrap());
        inner.sizes.of(&*inner.library, &name, digest).await.unwrap()
    }

    /// Of the repositories `library/m0` to `library/m2`.
    async fn count_notes(&self) -> usize {
        let mut count = 0;
        for n in 0..3 {
            let notes = self.through.sizes(&Repository::parse(&format!("library/m{n}")).unwrap());
            count += notes.list().await.unwrap().len();
        }
        count
    }

    fn notes(&self) -> PathBuf {
        self.dir.path().join("models/puna-registry/sizes")
    }

    async fn part(&self, digest: Digest, range: Range<u64>) -> Result<Vec<u8>, MirrorError> {
        let given = part(self, "library/m", digest, range);
        tokio::time::timeout(Duration::from_secs(20), given)
            .await
            .expect("it does not wait for what is not sent")
    }
}

/// A mirror over a folder and one over a bucket.
fn both(upstream: &Upstream) -> [Bench; 2] {
    [Bench::new(upstream, HOUR, Upstreams::default()), Bench::in_bucket(upstream, HOUR)]
}

/// A part of a blob for somebody who asks for it in a repository.
async fn part(
    bench: &Bench,
    name: &str,
    digest: Digest,
    range: std::ops::Range<u64>,
) -> Result<Vec<u8>, MirrorError> {
    let name = Repository::parse(name).unwrap();
    let blob =
        bench.through.blob_for(&name, digest, Asker::Known).await?.expect("the upstream has it");
    let pieces: Vec<Bytes> = blob.read(range).try_collect().await?;
    Ok(pieces.concat())
}

/// What a lying upstream has in the place of some bytes: one of them is another one, and there are more.
fn lies(bytes: &[u8]) -> Vec<u8> {
    let mut lies = bytes.to_vec();
    lies[100] ^= 1;
    lies.extend([0; 1000]);
    lies
}

#[tokio::test]
async fn an_upstream_is_held_to_the_size_that_its_manifest_says() {
    let (upstream, weights) = (Upstream::new().await, [7; 5000]);
    upstream.model("library/m", &weights);
    let longer = [&weights[..], &[0; 1000]].concat();
    for given in [lies(&weights), longer] {
        let bench = Bench::new(&upstream, HOUR, Upstreams::default());
        upstream.put(blob_path("library/m", &weights), given);
        bench.given("library/m").await;
        bench.settle().await;
        let error = part(&bench, "library/m", Digest::of(&weights), 0..5000).await.unwrap_err();
        assert_eq!(error.code().0, 502, "{error}");
        assert!(
            error.to_string().contains("6000 bytes there, but its manifest says 5000"),
            "{error}"
        );
    }
}

#[tokio::test]
async fn an_upstream_whose_size_was_wrong_is_asked_again_after_a_rest() {
    let (upstream, weights) = (Upstream::new().await, [7; 5000]);
    let manifest = upstream.model("library/m", &weights);
    let path = blob_path("library/m", &weights);
    upstream.put(path.clone(), lies(&weights));
    for (rest, given) in [(HOUR, false), (Duration::ZERO, true)] {
        let bench = Bench::new(&upstream, rest, Upstreams::default());
        bench.say("library/m", &manifest).await;
        let first = part(&bench, "library/m", Digest::of(&weights), 0..5000).await.unwrap_err();
        let asked = upstream.asked(&path);
        upstream.put(path.clone(), weights.to_vec());
        let again = part(&bench, "library/m", Digest::of(&weights), 0..5000).await;
        match given {
            true => assert_eq!(again, Ok(weights.to_vec())),
            false => {
                assert_eq!((again, upstream.asked(&path)), (Err(first), asked), "it is left alone")
            }
        }
        upstream.put(path.clone(), lies(&weights));
    }
}

#[tokio::test]
async fn of_a_blob_of_unknown_size_nothing_is_given_before_it_is_right() {
    let (upstream, weights) = (Upstream::new().await, vec![7; 3 << 20]);
    let digest = Digest::of(&weights);
    for range in [0..1, 0..100_000, 1..100_000, 1 << 20..(1 << 20) + 100_000] {
        upstream.put(blob_path("library/m", &weights), lies(&weights));
        let bench = Bench::new(&upstream, HOUR, Upstreams::default());
        // All that is asked for is here before the last bytes are.
        upstream.hands_out(false);
        upstream.hands_out_until(weights.len());
        let mut given = Box::pin(part(&bench, "library/m", digest, range.clone()));
        let waits = tokio::time::timeout(Duration::from_millis(500), &mut given).await;
        assert!(waits.is_err(), "{range:?} is given");
        upstream.hands_out(true);
        assert!(given.await.is_err(), "{range:?}: its bytes are not those of the digest");
    }
    // One that is right is given, from its beginning too.
    upstream.put(blob_path("library/n", &weights), weights.clone());
    let bench = Bench::new(&upstream, HOUR, Upstreams::default());
    for range in [0..4000, 1000..5000] {
        assert_eq!(part(&bench, "library/n", digest, range).await, Ok(vec![7; 4000]));
    }
}

#[tokio::test]
async fn what_the_manifest_of_another_repository_says_vouches_for_nothing() {
    let (upstream, weights) = (Upstream::new().await, [7; 5000]);
    let digest = Digest::of(&weights);
    let manifest = upstream.model("library/m", &weights);
    let lying = String::from_utf8(manifest.to_vec()).unwrap().replace("5000", "6000");
    upstream.put("/v2/library/z/manifests/latest".into(), lying);
    upstream.put(blob_path("library/z", b"{}"), &b"{}"[..]);
    upstream.put(blob_path("library/z", &weights), lies(&weights));
    let bench = Bench::new(&upstream, HOUR, Upstreams::default());
    upstream.hands_out(false);
    bench.given("library/z").await;
    let reader = |name: &'static str| {
        let through = bench.through.clone();
        async move {
            let name = Repository::parse(name).unwrap();
            let blob = through.blob_for(&name, digest, Asker::Known).await.unwrap().unwrap();
            blob.read(0..5000).try_collect::<Vec<Bytes>>().await
        }
    };
    let reader = tokio::spawn(reader("library/m"));
    until(|| upstream.asked(&blob_path("library/z", &weights)) > 0).await;
    upstream.hands_out(true);
    assert!(reader.await.unwrap().is_err(), "its bytes are not those of the digest");
}

#[tokio::test]
async fn after_a_restart_a_blob_is_given_while_it_arrives() {
    let (upstream, weights) = (Upstream::new().await, vec![7; 3 << 20]);
    let digest = Digest::of(&weights);
    upstream.model("library/m", &weights);
    upstream.put(blob_path("library/other", &weights), weights.clone());
    for bench in both(&upstream) {
        upstream.hands_out(false);
        bench.given("library/m").await;
        let mirror = bench.again(&upstream);
        // All but the last bytes come.
        upstream.hands_out_until(weights.len() - 1000);
        for range in [0..100_000, 1 << 20..(1 << 20) + 100_000] {
            let given = mirror.part(digest, range.clone()).await.unwrap();
            assert_eq!(given.len() as u64, range.end - range.start);
        }
        // Before another one does: nobody vouches for it there.
        let other = async { part(&mirror, "library/other", digest, 0..100).await };
        assert!(tokio::time::timeout(Duration::from_millis(300), other).await.is_err());
        upstream.hands_out(true);
        // Who was started first may put it into the bucket between two pieces; then it is asked for again.
        let whole = match mirror.part(digest, 0..3 << 20).await {
            Err(MirrorError::Upstream(reason)) if reason.contains("ask for all of it again") => {
                mirror.part(digest, 0..3 << 20).await
            }
            given => given,
        };
        assert_eq!(whole.unwrap().len(), 3 << 20);
        bench.settle().await;
    }
}

#[tokio::test]
async fn who_goes_on_after_a_restart_is_not_given_the_rest_of_a_lie() {
    let (upstream, weights) = (Upstream::new().await, [7; 5000]);
    let digest = Digest::of(&weights);
    let manifest = upstream.model("library/m", &weights);
    for bench in both(&upstream) {
        // As long as the size is known all but the last byte is given, though one is wrong.
        upstream.put("/v2/library/m/manifests/latest".into(), manifest.clone());
        upstream.put(blob_path("library/m", &weights), lies(&weights)[..5000].to_vec());
        bench.given("library/m").await;
        bench.settle().await;
        // Then it is started anew, and the upstream has more, which it says itself, or with another manifest.
        upstream.put(blob_path("library/m", &weights), lies(&weights));
        let mirror = bench.again(&upstream);
        for range in [4000..5000, 4999..5000, 4999..6000] {
            let error = mirror.part(digest, range).await.unwrap_err();
            assert!(error.to_string().contains("its manifest says 5000"), "{error}");
        }
        let moved = String::from_utf8(manifest.to_vec()).unwrap().replace("5000", "6000");
        upstream.put("/v2/library/m/manifests/latest".into(), moved);
        let mirror = bench.again(&upstream);
        upstream.hands_out(false);
        mirror.given("library/m").await;
        assert_eq!(mirror.said("library/m", digest).await, Some(Size::Anything));
        let reader = |range: Range<u64>| {
            let through = mirror.through.clone();
            let name = Repository::parse("library/m").unwrap();
            async move {
                let blob =
                    through.blob_for(&name, digest, Asker::Known).await?.expect("it is on its way");
                assert_eq!(blob.size(), 6000);
                blob.read(range).try_collect::<Vec<Bytes>>().await
            }
        };
        let readers = [4000..5000, 4999..6000].map(|range| tokio::spawn(reader(range)));
        tokio::time::sleep(Duration::from_millis(50)).await;
        upstream.hands_out(true);
        for reader in readers {
            assert!(reader.await.unwrap().is_err(), "its bytes are not those of the digest");
        }
        mirror.settle().await;
    }
}

#[tokio::test]
async fn what_another_mirror_hands_out_counts_at_once() {
    let (upstream, weights) = (Upstream::new().await, [7; 5000]);
    let digest = Digest::of(&weights);
    let manifest = upstream.model("library/m", &weights);
    let moved = Bytes::from(String::from_utf8(manifest.to_vec()).unwrap().replace("5000", "6000"));
    for bench in both(&upstream) {
        let (one, other) = (bench.again(&upstream), bench.again(&upstream));
        assert_eq!(other.said("library/m", digest).await, None);
        one.say("library/m", &manifest).await;
        assert_eq!(other.said("library/m", digest).await, Some(Size::Bytes(5000)));
        assert_eq!(other.said("library/n", digest).await, None);
        one.say("library/m", &moved).await;
        assert_eq!(other.said("library/m", digest).await, Some(Size::Anything));
    }
}

#[tokio::test]
async fn a_manifest_counts_under_each_name_under_which_it_is_handed_out() {
    let (upstream, weights) = (Upstream::new().await, [7; 5000]);
    let digest = Digest::of(&weights);
    let manifest = upstream.model("library/m", &weights);
    let other = format!("{DEFAULT_HOST}/library/m");
    for by_digest in [false, true] {
        let bench = Bench::new(&upstream, HOUR, Upstreams::default());
        upstream.hands_out(false);
        bench.given("library/m").await;
        assert_eq!(bench.said(&other, digest).await, None);
        let of = match by_digest {
            true => Reference::Digest(Digest::of(&manifest)),
            false => Reference::Tag("latest".into()),
        };
        let given = async |name: &str| {
            let name = Repository::parse(name).unwrap();
            bench.through.manifest(&name, &of).await.unwrap().map(|given| given.bytes)
        };
        assert_eq!(given(&other).await, Some(manifest.clone()));
        assert_eq!(bench.said(&other, digest).await, Some(Size::Bytes(5000)));
        // Of a repository that has it not, it is none.
        for none in ["library/n", "team/m"] {
            assert_eq!(given(none).await, None);
            assert_eq!(bench.said(none, digest).await, None);
        }
        upstream.hands_out(true);
        bench.settle().await;
    }
}

#[tokio::test]
async fn manifests_that_are_here_say_how_large_blobs_are() {
    let (upstream, weights) = (Upstream::new().await, [7; 5000]);
    upstream.model("library/m", &weights);
    for bench in both(&upstream) {
        bench.given("library/m").await;
        bench.settle().await;
        let notes = bench.through.sizes(&Repository::parse("library/m").unwrap());
        let [note] = &notes.list().await.unwrap()[..] else {
            panic!("one manifest was handed out")
        };
        notes.remove(&note.name).await.unwrap();
        let mirror = bench.again(&upstream);
        assert_eq!(mirror.said("library/m", Digest::of(&weights)).await, Some(Size::Bytes(5000)));
    }
}

#[tokio::test]
async fn where_a_note_does_not_say_it_nothing_is_vouched_for() {
    let (upstream, weights) = (Upstream::new().await, [7; 5000]);
    let digest = Digest::of(&weights);
    let manifest = upstream.model("library/m", &weights);
    let bench = Bench::new(&upstream, HOUR, Upstreams::default());
    bench.say("library/m", &manifest).await;
    bench.say("library/n", &manifest).await;
    let blob = |n: u8| json!({"mediaType": "x", "digest": Digest::of(&[n]).to_string(), "size": 1});
    let large =
        json!({"schemaVersion": 2, "layers": (0..21).map(blob).collect::<Vec<_>>()}).to_string();
    bench.say("library/m", &large.into()).await;
    fs::write(bench.notes().join("library+n/broken"), "[[").unwrap();
    for name in ["library/m", "library/n"] {
        for mirror in [&bench, &bench.again(&upstream)] {
            assert_eq!(mirror.said(name, digest).await, Some(Size::Anything), "{name}");
        }
    }
}

#[tokio::test]
async fn where_notes_cannot_be_read_a_blob_is_given_when_it_is_right() {
    let (upstream, weights) = (Upstream::new().await, vec![7; 3 << 20]);
    let digest = Digest::of(&weights);
    upstream.model("library/m", &weights);
    let bench = Bench::new(&upstream, HOUR, Upstreams::default());
    upstream.hands_out(false);
    upstream.hands_out_until(weights.len() - 1000);
    bench.given("library/m").await;
    fs::create_dir(bench.notes().join("library+m/broken")).unwrap();
    // While it is fetched with its manifest, and by itself after a restart.
    for mirror in [&bench, &bench.again(&upstream)] {
        upstream.hands_out(false);
        upstream.hands_out_until(weights.len() - 1000);
        let mut given = Box::pin(part(mirror, "library/m", digest, 0..100_000));
        let waits = tokio::time::timeout(Duration::from_millis(500), &mut given).await;
        assert!(waits.is_err(), "it is given though nobody knows where it ends: {waits:?}");
        upstream.hands_out(true);
        assert_eq!(given.await, Ok(vec![7; 100_000]));
        bench.settle().await;
        // The next one fetches it, too.
        let _ = fs::remove_file(
            Store::open(bench.dir.path().join("models")).unwrap().blob_path(&digest),
        );
    }
}

#[tokio::test]
async fn what_is_forgotten_in_memory_is_read_again() {
    let (upstream, weights) = (Upstream::new().await, [7; 5000]);
    let digest = Digest::of(&weights);
    let bench = Bench::new(&upstream, HOUR, Upstreams::default());
    let manifest = upstream.model("library/m", &weights);
    for n in 0..50 {
        bench.say(&format!("library/m{n}"), &manifest).await;
    }
    let moved = String::from_utf8(manifest.to_vec()).unwrap().replace("5000", "6000");
    bench.say("library/m0", &moved.into()).await;
    assert!(bench.through.0.sizes.remembered() <= 40);
    assert_eq!(bench.said("library/m0", digest).await, Some(Size::Anything));
    for n in 1..50 {
        assert_eq!(
            bench.said(&format!("library/m{n}"), digest).await,
            Some(Size::Bytes(5000)),
            "{n}"
        );
    }
}

#[tokio::test]
async fn a_repository_with_too_many_manifests_is_read_once() {
    let (upstream, weights) = (Upstream::new().await, [7; 5000]);
    let digest = Digest::of(&weights);
    let bench = Bench::new(&upstream, HOUR, Upstreams::default());
    let manifest = upstream.model("library/m", &weights);
    bench.say("library/n", &manifest).await;
    for n in 0..50 {
        bench.say("library/m", &upstream.model("library/m", &[n])).await;
    }
    let mirrors = [&bench, &bench.again(&upstream)];
    for mirror in mirrors {
        assert_eq!(mirror.said("library/n", digest).await, Some(Size::Bytes(5000)));
        assert_eq!(mirror.said("library/m", digest).await, Some(Size::Anything));
        assert!(mirror.through.0.sizes.remembered() <= 40);
    }
    // Whoever read the notes now would fail.
    for name in ["library+m", "library+n"] {
        fs::create_dir(bench.notes().join(name).join("broken")).unwrap();
    }
    for mirror in mirrors {
        assert_eq!(mirror.said("library/m", digest).await, Some(Size::Anything));
        let (inner, name) = (&mirror.through.0, Repository::parse("library/n").unwrap());
        assert!(
            inner.sizes.of(&*inner.library, &name, digest).await.is_err(),
            "these are read each time"
        );
    }
}

#[tokio::test]
async fn a_manifest_that_cannot_be_noted_is_not_handed_out() {
    let (upstream, weights) = (Upstream::new().await, [7; 5000]);
    let old = upstream.model("library/m", &weights);
    let bench = Bench::new(&upstream, HOUR, Upstreams::default());
    assert_eq!(bench.given("library/m").await, old);
    bench.settle().await;
    fs::remove_dir_all(bench.notes()).unwrap();
    fs::write(bench.notes(), "").unwrap();
    upstream.model("library/m", b"others");
    upstream.model("library/n", b"others");
    assert_eq!(bench.given("library/m").await, old, "it is served while the new one cannot be had");
    let error = bench.ask("library/n", "latest", Asker::Known).await.unwrap_err();
    assert_eq!(error.code().0, 500, "{error}");
}

#[tokio::test]
async fn notes_of_sizes_are_cleared_away() {
    let upstream = Upstream::new().await;
    let [folder, bucket] = both(&upstream);
    for bench in [&folder, &bucket] {
        for n in 0..20 {
            let manifest = upstream.model("library/m", &[n]);
            bench.say(&format!("library/m{}", n % 3), &manifest).await;
        }
        bench.through.tidy().await.unwrap();
        assert_eq!(
            bench.count_notes().await,
            20,
            "who has written them does not do so again today"
        );
    }
    // Those of a bucket are made old where the services are.
    for n in 0..3 {
        let dir = folder.notes().join(format!("library+m{n}"));
        for note in fs::read_dir(dir).unwrap() {
            let note = fs::File::options().append(true).open(note.unwrap().path()).unwrap();
            note.set_modified(SystemTime::now() - 48 * HOUR).unwrap();
        }
    }
    folder.through.tidy().await.unwrap();
    assert_eq!(folder.count_notes().await, 8);
}

#[tokio::test]
async fn what_another_program_has_named_is_looked_into_before_it_is_given_wholly() {
    let upstream = Upstream::new().await;
    // A small one is looked into at once, a large one while it is given.
    for (len, is_right) in [(3 << 20, true), (3 << 20, false), (5000, true), (5000, false)] {
        let (weights, named) = (vec![7; len], vec![if is_right { 7 } else { 8 }; len]);
        let digest = Digest::of(&weights);
        upstream.model("library/m", &weights);
        let bench = Bench::new(&upstream, HOUR, Upstreams::default());
        // It fetches, and gives the blob its name.
        let other = Store::open(bench.dir.path().join("models")).unwrap();
        let lock = other.lock_download(&digest).unwrap().unwrap();
        bench.given("library/m").await;
        let name = || async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            fs::create_dir_all(other.blob_path(&digest).parent().unwrap()).unwrap();
            fs::write(other.blob_path(&digest), named).unwrap();
            drop(lock);
        };
        let reader = || bench.part(digest, 0..len as u64);
        let (one, another, ()) = tokio::join!(reader(), reader(), name());
        for given in [one, another] {
            match is_right {
                true => assert!(given.unwrap() == weights),
                false => assert!(given.is_err(), "{len}: its bytes are not those of the digest"),
            }
        }
    }
}
