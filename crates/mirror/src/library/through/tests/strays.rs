//! Blobs that are asked for where nothing is known of their manifest.

use futures_util::TryStreamExt;

use super::*;

/// What somebody is given who asks for a blob.
type Bytewise = Result<Option<Vec<u8>>, MirrorError>;

impl Bench {
    async fn blob(&self, name: &str, content: &[u8], asker: Asker) -> Bytewise {
        read(self.through.clone(), name.to_owned(), Digest::of(content), asker).await
    }

    /// Somebody who waits for a blob.
    fn reader(&self, name: &str, content: &[u8]) -> JoinHandle<Bytewise> {
        tokio::spawn(read(
            self.through.clone(),
            name.to_owned(),
            Digest::of(content),
            Asker::Anybody,
        ))
    }
}

async fn read(through: Arc<Through>, name: String, digest: Digest, asker: Asker) -> Bytewise {
    let name = Repository::parse(&name).unwrap();
    let Some(blob) = through.blob_for(&name, digest, asker).await? else { return Ok(None) };
    let size = blob.size();
    let pieces: Vec<Bytes> = blob.read(0..size).try_collect().await?;
    Ok(Some(pieces.concat()))
}

#[tokio::test]
async fn blobs_of_what_another_mirror_has_handed_out_are_fetched() {
    let (upstream, weights) = (Upstream::new().await, b"the weights");
    upstream.model("library/m", weights);
    let bucket: Arc<dyn Library> = Arc::new(ObjectLibrary::in_memory());
    let mirror = || Bench::over(&upstream, HOUR, Upstreams::default(), Some(bucket.clone()));
    let (one, other) = (mirror(), mirror());
    upstream.hands_out(false);
    one.given("library/m").await;
    let (first, second) = (other.reader("library/m", weights), other.reader("library/m", weights));
    until(|| upstream.asked(&blob_path("library/m", weights)) > 1).await;
    upstream.hands_out(true);
    for reader in [first, second] {
        assert_eq!(reader.await.unwrap(), Ok(Some(weights.to_vec())));
    }
    one.settle().await;
    assert_eq!(other.blob("library/m", b"{}", Asker::Anybody).await, Ok(Some(b"{}".to_vec())));
    // It is counted when its end is seen, a moment after the last byte.
    other.settle().await;
    assert_eq!(other.through.fetches().await.bytes, weights.len() as u64);
}

#[tokio::test]
async fn mirrors_over_one_folder_fetch_a_blob_once() {
    let (upstream, weights) = (Upstream::new().await, [7; 5000]);
    upstream.model("library/m", &weights);
    let one = Bench::new(&upstream, HOUR, Upstreams::default());
    let other = one.beside(&upstream);
    upstream.hands_out(false);
    one.given("library/m").await;
    let reader = other.reader("library/m", &weights);
    until(|| upstream.asked(&blob_path("library/m", &weights)) > 0).await;
    upstream.hands_out(true);
    assert_eq!(reader.await.unwrap(), Ok(Some(weights.to_vec())));
    one.settle().await;
    // Once how large it is, and once its bytes.
    assert_eq!(upstream.asked(&blob_path("library/m", &weights)), 2);
}

#[tokio::test]
async fn what_is_known_of_nothing_but_a_blob_is_bounded_as_models_are() {
    let (upstream, weights) = (Upstream::new().await, [7; 50]);
    upstream.model("library/m", &weights);
    upstream.model("library/n", &[8; 10]);
    upstream.model("me/m", &weights);
    let bounds = Upstreams {
        private: vec!["me".into()],
        fetch: vec!["library".into()],
        fetch_limit: Some(40),
        fetch_parallel: Some(1),
        ..Upstreams::default()
    };
    let bench = Bench::new(&upstream, HOUR, bounds);
    let code = |given: Bytewise| given.unwrap_err().code();
    assert_eq!(
        bench.blob("me/m", &weights, Asker::Known).await,
        Ok(None),
        "it is the mirror's own name"
    );
    assert_eq!(code(bench.blob("you/m", &weights, Asker::Known).await), (403, "DENIED"));
    assert_eq!(code(bench.blob("library/m", &weights, Asker::Anybody).await), (403, "DENIED"));
    for _ in 0..3 {
        assert_eq!(bench.blob("library/m", b"of another", Asker::Known).await, Ok(None));
    }
    assert_eq!(upstream.asked(&blob_path("library/m", b"of another")), 1);
    let name = Repository::parse("library/n").unwrap();
    assert_eq!(bench.through.vouches(&name, Digest::of(&[8; 10])).await, Ok(true));
    assert_eq!(bench.through.vouches(&name, Digest::of(&weights)).await, Ok(false));
    upstream.hands_out(false);
    let reader = bench.asker("library/n", "latest");
    assert!(reader.await.unwrap().unwrap().is_some());
    upstream.hands_out(true);
    bench.settle().await;
    assert_eq!(bench.blob("library/m", &weights, Asker::Known).await, Ok(Some(weights.to_vec())));
    bench.settle().await;
    assert_eq!(bench.through.fetches().await.refused, 2);
}

#[tokio::test]
async fn blobs_wait_for_models_and_those_of_one_repository_go_together() {
    let (upstream, weights) = (Upstream::new().await, [7; 50]);
    upstream.model("library/m", &weights);
    upstream.model("library/n", &[8; 10]);
    let one = Upstreams { fetch_parallel: Some(1), ..Upstreams::default() };
    let bench = Bench::new(&upstream, HOUR, one);
    let known = [
        ("library/m", Digest::of(&weights)),
        ("library/m", Digest::of(b"{}")),
        ("library/n", Digest::of(&[8; 10])),
    ];
    for (name, digest) in known {
        assert_eq!(
            bench.through.vouches(&Repository::parse(name).unwrap(), digest).await,
            Ok(true)
        );
    }
    upstream.hands_out(false);
    let (first, second) = (bench.reader("library/m", &weights), bench.reader("library/m", b"{}"));
    until(|| upstream.asked(&blob_path("library/m", b"{}")) > 1).await;
    let refused = bench.blob("library/n", &[8; 10], Asker::Known).await.unwrap_err();
    assert_eq!(refused.code(), (429, "TOOMANYREQUESTS"));
    upstream.hands_out(true);
    assert_eq!(first.await.unwrap(), Ok(Some(weights.to_vec())));
    assert_eq!(second.await.unwrap(), Ok(Some(b"{}".to_vec())));
    bench.settle().await;
    assert_eq!(bench.blob("library/n", &[8; 10], Asker::Known).await, Ok(Some(vec![8; 10])));
}

#[tokio::test]
async fn what_a_bucket_has_of_another_tag_is_not_fetched_again() {
    let (upstream, weights) = (Upstream::new().await, b"the weights");
    upstream.model("library/m", weights);
    let other = upstream.model("library/n", weights);
    let bench = Bench::in_bucket(&upstream, HOUR);
    bench.given("library/m").await;
    bench.settle().await;
    let bytes = bench.through.fetches().await.bytes;
    assert_eq!(bench.given("library/n").await, other);
    bench.settle().await;
    assert_eq!(upstream.asked("/v2/library/n/blobs/"), 0);
    assert_eq!(bench.through.fetches().await.bytes, bytes);
    assert_eq!(bench.given("library/n").await, other);
    assert_eq!(upstream.asked("/v2/library/n/manifests/"), 2, "fresh is 0 here");
}

#[tokio::test]
async fn bytes_that_were_here_are_not_counted_as_fetched() {
    let (upstream, weights) = (Upstream::new().await, vec![7; 3 << 20]);
    upstream.model("library/m", &weights);
    let bench = Bench::new(&upstream, HOUR, Upstreams::default());
    // What a process that was killed has left.
    let partial = bench.through.0.store.partial(&Digest::of(&weights)).unwrap();
    let mut there = weights.clone();
    there[(2 << 20)..].fill(0);
    std::fs::write(partial.data(), &there).unwrap();
    let note = json!({"N": 0, "Offset": 0, "Size": weights.len(), "Completed": 2 << 20});
    std::fs::write(format!("{}-0", partial.data().display()), note.to_string()).unwrap();
    bench.given("library/m").await;
    bench.settle().await;
    let fetches = bench.through.fetches().await;
    assert_eq!((fetches.bytes, fetches.failures), ((1 << 20) + 2, 0));
}
