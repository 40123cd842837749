//! Requests for blobs whose manifest is unknown.

use futures_util::TryStreamExt;

use super::*;

/// Result of a request for a blob.
type BlobResult = Result<Option<Vec<u8>>, MirrorError>;

impl TestMirror {
    async fn blob(&self, name: &str, content: &[u8], requester: Requester) -> BlobResult {
        read(self.through.clone(), name.to_owned(), Digest::of(content), requester).await
    }

    /// A request that waits in a task.
    fn reader(&self, name: &str, content: &[u8]) -> JoinHandle<BlobResult> {
        tokio::spawn(read(
            self.through.clone(),
            name.to_owned(),
            Digest::of(content),
            Requester::Anonymous,
        ))
    }
}

async fn read(
    through: PullThrough,
    name: String,
    digest: Digest,
    requester: Requester,
) -> BlobResult {
    let name = Repository::parse(&name).unwrap();
    let Some(blob) = through.blob_for(&name, digest, requester).await? else { return Ok(None) };
    let size = blob.size();
    let pieces: Vec<Bytes> = blob.read(0..size).try_collect().await?;
    Ok(Some(pieces.concat()))
}

#[tokio::test]
async fn blobs_of_manifests_served_by_other_mirrors_are_fetched() {
    let (upstream, weights) = (Upstream::new().await, b"the weights");
    upstream.model("library/m", weights);
    let bucket = Arc::new(S3Storage::in_memory());
    let mirror = || TestMirror::over(&upstream, HOUR, Upstreams::default(), Some(bucket.clone()));
    let (one, other) = (mirror(), mirror());
    upstream.set_open(false);
    one.manifest_bytes("library/m").await;
    let (first, second) = (other.reader("library/m", weights), other.reader("library/m", weights));
    until(|| upstream.request_count(&blob_path("library/m", weights)) > 1).await;
    upstream.set_open(true);
    for reader in [first, second] {
        assert_eq!(reader.await.unwrap(), Ok(Some(weights.to_vec())));
    }
    one.wait_until_idle().await;
    assert_eq!(
        other.blob("library/m", b"{}", Requester::Anonymous).await,
        Ok(Some(b"{}".to_vec()))
    );
    // The bytes are counted when the download ends, a moment after the last byte.
    other.wait_until_idle().await;
    assert_eq!(other.through.fetch_stats().await.bytes, weights.len() as u64);
}

#[tokio::test]
async fn processes_with_one_directory_fetch_a_blob_once() {
    let (upstream, weights) = (Upstream::new().await, [7; 5000]);
    upstream.model("library/m", &weights);
    let one = TestMirror::new(&upstream, HOUR, Upstreams::default());
    let other = one.second_process(&upstream);
    upstream.set_open(false);
    one.manifest_bytes("library/m").await;
    let reader = other.reader("library/m", &weights);
    until(|| upstream.request_count(&blob_path("library/m", &weights)) > 0).await;
    upstream.set_open(true);
    assert_eq!(reader.await.unwrap(), Ok(Some(weights.to_vec())));
    one.wait_until_idle().await;
    // One request for the size, and one for the content.
    assert_eq!(upstream.request_count(&blob_path("library/m", &weights)), 2);
}

#[tokio::test]
async fn single_blobs_are_limited_like_models() {
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
    let server = TestMirror::new(&upstream, HOUR, bounds);
    let code = |manifest_bytes: BlobResult| manifest_bytes.unwrap_err().code();
    assert_eq!(
        server.blob("me/m", &weights, Requester::Trusted).await,
        Ok(None),
        "it is the mirror's own name"
    );
    assert_eq!(code(server.blob("you/m", &weights, Requester::Trusted).await), (403, "DENIED"));
    assert_eq!(
        code(server.blob("library/m", &weights, Requester::Anonymous).await),
        (403, "DENIED")
    );
    for _ in 0..3 {
        assert_eq!(server.blob("library/m", b"of another", Requester::Trusted).await, Ok(None));
    }
    assert_eq!(upstream.request_count(&blob_path("library/m", b"of another")), 1);
    let name = Repository::parse("library/n").unwrap();
    assert_eq!(server.through.upstream_confirms_blob(&name, Digest::of(&[8; 10])).await, Ok(true));
    assert_eq!(server.through.upstream_confirms_blob(&name, Digest::of(&weights)).await, Ok(false));
    upstream.set_open(false);
    let reader = server.requester("library/n", "latest");
    assert!(reader.await.unwrap().unwrap().is_some());
    upstream.set_open(true);
    server.wait_until_idle().await;
    assert_eq!(
        server.blob("library/m", &weights, Requester::Trusted).await,
        Ok(Some(weights.to_vec()))
    );
    server.wait_until_idle().await;
    assert_eq!(server.through.fetch_stats().await.refused, 2);
}

#[tokio::test]
async fn blobs_of_one_repository_share_a_fetch_permit() {
    let (upstream, weights) = (Upstream::new().await, [7; 50]);
    upstream.model("library/m", &weights);
    upstream.model("library/n", &[8; 10]);
    let one = Upstreams { fetch_parallel: Some(1), ..Upstreams::default() };
    let server = TestMirror::new(&upstream, HOUR, one);
    let known = [
        ("library/m", Digest::of(&weights)),
        ("library/m", Digest::of(b"{}")),
        ("library/n", Digest::of(&[8; 10])),
    ];
    for (name, digest) in known {
        assert_eq!(
            server.through.upstream_confirms_blob(&Repository::parse(name).unwrap(), digest).await,
            Ok(true)
        );
    }
    upstream.set_open(false);
    let (first, second) = (server.reader("library/m", &weights), server.reader("library/m", b"{}"));
    until(|| upstream.request_count(&blob_path("library/m", b"{}")) > 1).await;
    let refused = server.blob("library/n", &[8; 10], Requester::Trusted).await.unwrap_err();
    assert_eq!(refused.code(), (429, "TOOMANYREQUESTS"));
    upstream.set_open(true);
    assert_eq!(first.await.unwrap(), Ok(Some(weights.to_vec())));
    assert_eq!(second.await.unwrap(), Ok(Some(b"{}".to_vec())));
    server.wait_until_idle().await;
    assert_eq!(server.blob("library/n", &[8; 10], Requester::Trusted).await, Ok(Some(vec![8; 10])));
}

#[tokio::test]
async fn blobs_of_other_tags_in_a_bucket_are_not_fetched_again() {
    let (upstream, weights) = (Upstream::new().await, b"the weights");
    upstream.model("library/m", weights);
    let other = upstream.model("library/n", weights);
    let server = TestMirror::in_bucket(&upstream, HOUR);
    server.manifest_bytes("library/m").await;
    server.wait_until_idle().await;
    let bytes = server.through.fetch_stats().await.bytes;
    assert_eq!(server.manifest_bytes("library/n").await, other);
    server.wait_until_idle().await;
    assert_eq!(upstream.request_count("/v2/library/n/blobs/"), 0);
    assert_eq!(server.through.fetch_stats().await.bytes, bytes);
    assert_eq!(server.manifest_bytes("library/n").await, other);
    assert_eq!(upstream.request_count("/v2/library/n/manifests/"), 2, "fresh is 0 here");
}

#[tokio::test]
async fn present_bytes_are_not_counted_as_fetched() {
    let (upstream, weights) = (Upstream::new().await, vec![7; 3 << 20]);
    upstream.model("library/m", &weights);
    let server = TestMirror::new(&upstream, HOUR, Upstreams::default());
    // Leftover of a killed process.
    let partial = server.through.0.store.partial(&Digest::of(&weights)).unwrap();
    let mut there = weights.clone();
    there[(2 << 20)..].fill(0);
    std::fs::write(partial.data(), &there).unwrap();
    let note = json!({"N": 0, "Offset": 0, "Size": weights.len(), "Completed": 2 << 20});
    std::fs::write(format!("{}-0", partial.data().display()), note.to_string()).unwrap();
    server.manifest_bytes("library/m").await;
    server.wait_until_idle().await;
    let fetch_stats = server.through.fetch_stats().await;
    assert_eq!((fetch_stats.bytes, fetch_stats.failures), ((1 << 20) + 2, 0));
}
