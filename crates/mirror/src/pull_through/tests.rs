//! Tests with an upstream whose tags move, which stalls, and which serves wrong content.

mod declared_sizes;
mod manifest_lists;
mod outgoing;
mod unreferenced;

use std::collections::HashMap;

use axum::body::Body;
use axum::extract::Request;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use puna_gguf::Writer;
use puna_quant::TensorType;
use puna_registry::{Host, HostPattern, OutgoingPolicy, Settings};
use puna_store::{DEFAULT_HOST, media};
use serde_json::json;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::*;
use crate::auth::ClientId;
use crate::storage::{FileStorage, S3Storage};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
/// Longer than any test.
const HOUR: Duration = Duration::from_secs(60 * 60);

/// A registry and a hub on 127.0.0.1.
struct Upstream {
    host: String,
    state: Arc<UpstreamState>,
}

struct UpstreamState {
    answers: Mutex<HashMap<String, Bytes>>,
    request_count: Mutex<Vec<String>>,
    /// Whether blobs and files are served; requests wait until they are.
    open: watch::Sender<bool>,
    /// Offset up to which they are served nevertheless.
    until: Mutex<usize>,
    /// Another host to which requests are redirected, and the part of their paths.
    redirect: Mutex<Option<(String, &'static str)>>,
}

impl UpstreamState {
    async fn answer(&self, request: Request) -> Response {
        let path = request.uri().path().to_owned();
        lock(&self.request_count).push(path.clone());
        if let Some((host, part)) = &*lock(&self.redirect)
            && path.contains(part)
        {
            return Redirect::temporary(&format!("http://{host}{path}")).into_response();
        }
        let until = *lock(&self.until);
        let is_large = path.contains("/blobs/") || path.contains("/resolve/");
        if is_large && until == 0 {
            drop(self.open.subscribe().wait_for(|open| *open).await);
        }
        let Some(bytes) = lock(&self.answers).get(&path).cloned() else {
            return StatusCode::NOT_FOUND.into_response();
        };
        let range = request.headers().get(header::RANGE).and_then(|range| range.to_str().ok());
        let Some((first, last)) =
            range.and_then(|range| range.strip_prefix("bytes=")?.split_once('-'))
        else {
            return bytes.into_response();
        };
        let (first, last): (usize, usize) =
            (first.parse().unwrap(), last.parse().unwrap_or(usize::MAX));
        let last = last.min(bytes.len() - 1);
        let said = format!("bytes {first}-{last}/{}", bytes.len());
        let part = bytes.slice(first..=last);
        let cut = until.saturating_sub(first).min(part.len());
        let body = match is_large && !*self.open.borrow() {
            true => self.paused(part.slice(..cut), part.slice(cut..)),
            false => part.into(),
        };
        (StatusCode::PARTIAL_CONTENT, [(header::CONTENT_RANGE, said)], body).into_response()
    }
}

impl UpstreamState {
    /// Body that sends `first` at once and the rest when serving is enabled again.
    fn paused(&self, first: Bytes, rest: Bytes) -> Body {
        let mut open = self.open.subscribe();
        let rest = async move {
            drop(open.wait_for(|open| *open).await);
            rest
        };
        let pieces = stream::once(std::future::ready(first)).chain(stream::once(rest));
        Body::from_stream(pieces.map(Ok::<_, std::convert::Infallible>))
    }
}

impl Upstream {
    async fn new() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let host = listener.local_addr().unwrap().to_string();
        let (answers, request_count, open) =
            (Mutex::default(), Mutex::default(), watch::Sender::new(true));
        let state = Arc::new(UpstreamState {
            answers,
            request_count,
            open,
            until: Mutex::default(),
            redirect: Mutex::default(),
        });
        let at = state.clone();
        let router = axum::Router::new().fallback(move |request: Request| {
            let at = at.clone();
            async move { at.answer(request).await }
        });
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { host, state }
    }

    fn put(&self, path: String, bytes: impl Into<Bytes>) {
        lock(&self.state.answers).insert(path, bytes.into());
    }

    /// Adds a model with the tag `latest`. Returns its manifest.
    fn model(&self, name: &str, weights: &[u8]) -> Bytes {
        let layer = |kind: &str, bytes: &[u8]| {
            self.put(blob_path(name, bytes), bytes.to_vec());
            json!({"mediaType": kind, "digest": Digest::of(bytes).to_string(), "size": bytes.len()})
        };
        let config = layer(media::CONFIG, b"{}");
        let layers = [layer(media::MODEL, weights)];
        let manifest = json!({"schemaVersion": 2, "mediaType": media::MANIFEST, "config": config, "layers": layers});
        let manifest = Bytes::from(manifest.to_string());
        self.put(format!("/v2/{name}/manifests/latest"), manifest.clone());
        manifest
    }

    /// Adds a file that the hub lists, without a manifest in the registry.
    fn file(&self, name: &str, listed: &Bytes, manifest_bytes: &Bytes) {
        let (api, file) = (format!("/api/models/{name}"), "m-Q8_0.gguf");
        let refs = json!({"branches": [{"name": "main", "targetCommit": COMMIT}]});
        self.put(format!("{api}/refs"), refs.to_string());
        let lfs = json!({"oid": Digest::of(listed).hex(), "size": listed.len()});
        let tree = json!([{"type": "file", "path": file, "lfs": lfs}]);
        self.put(format!("{api}/tree/{COMMIT}"), tree.to_string());
        self.put(format!("/{name}/resolve/{COMMIT}/{file}"), manifest_bytes.clone());
    }

    fn set_open(&self, open: bool) {
        *lock(&self.state.until) = 0;
        self.state.open.send_replace(open);
    }

    /// Serves bytes before an offset to new requests.
    fn set_open_until(&self, byte: usize) {
        *lock(&self.state.until) = byte;
    }

    /// Number of requests whose path contains `part`.
    fn request_count(&self, part: &str) -> usize {
        lock(&self.state.request_count).iter().filter(|path| path.contains(part)).count()
    }
}

fn blob_path(name: &str, bytes: &[u8]) -> String {
    format!("/v2/{name}/blobs/{}", Digest::of(bytes))
}

/// Result of a request for a tag.
type TagResult = Result<Option<Manifest>, MirrorError>;

/// A small GGUF file.
fn gguf(seed: u8) -> Bytes {
    let mut writer = Writer::new();
    writer.set("general.architecture", "llama").set("general.file_type", 0u32);
    writer.set("llama.context_length", 64u32).set("llama.embedding_length", 2u32);
    writer.tensor("output_norm.weight", TensorType::F32, &[2]).unwrap();
    writer.to_vec([&[seed; 8][..]]).unwrap().into()
}

/// A pull-through cache that asks the upstream for each request unless a negative result is cached.
struct TestMirror {
    dir: Arc<tempfile::TempDir>,
    through: PullThrough,
}

impl TestMirror {
    /// With file storage.
    fn new(upstream: &Upstream, negative_cache_time: Duration, upstreams: Upstreams) -> Self {
        Self::over(upstream, negative_cache_time, upstreams, None)
    }

    fn in_bucket(upstream: &Upstream, negative_cache_time: Duration) -> Self {
        let bucket = Arc::new(S3Storage::in_memory());
        Self::over(upstream, negative_cache_time, Upstreams::default(), Some(bucket))
    }

    fn over(
        upstream: &Upstream,
        negative_cache_time: Duration,
        upstreams: Upstreams,
        bucket: Option<Arc<S3Storage>>,
    ) -> Self {
        let dir = Arc::new(tempfile::tempdir().unwrap());
        Self::at(dir, upstream, negative_cache_time, upstreams, bucket)
    }

    /// Another process with the same directory.
    fn second_process(&self, upstream: &Upstream) -> Self {
        Self::at(self.dir.clone(), upstream, HOUR, Upstreams::default(), None)
    }

    fn at(
        dir: Arc<tempfile::TempDir>,
        upstream: &Upstream,
        negative_cache_time: Duration,
        upstreams: Upstreams,
        bucket: Option<Arc<S3Storage>>,
    ) -> Self {
        let store = Arc::new(Store::open(dir.path().join("models")).unwrap());
        let mut settings = Settings {
            default_registry: Some(format!("http://{}", upstream.host)),
            retry_delay: Duration::from_millis(5),
            outgoing: Some(OutgoingPolicy::new(HostPattern::of_registry(&upstream.host))),
            ..Settings::default()
        };
        settings.hosts.set(&upstream.host, Host { http: true, hub: true, ..Host::default() });
        let upstreams = Upstreams { hosts: vec![DEFAULT_HOST.into()], ..upstreams };
        let (registry, usage_log) = (Registry::new(settings), UsageLog::new().unwrap());
        let mut through = match bucket {
            Some(bucket) => PullThrough::with_bucket(bucket, store, registry, upstreams, usage_log),
            None => {
                let storage = FileStorage::new(store.clone()).into();
                PullThrough::new(storage, store, registry, upstreams, usage_log)
            }
        };
        let inner = Arc::get_mut(&mut through.0).unwrap();
        (inner.negative_cache_time, inner.tags) = (negative_cache_time, TagCache::new(8));
        Self { dir, through }
    }

    async fn ask(&self, name: &str, tag: &str, requester: Requester) -> TagResult {
        let of = Reference::Tag(tag.into());
        self.through.manifest_for(&Repository::parse(name).unwrap(), &of, requester).await
    }

    /// A request that waits in a task.
    fn requester(&self, name: &'static str, tag: &'static str) -> JoinHandle<TagResult> {
        let (through, of) = (self.through.clone(), Reference::Tag(tag.into()));
        tokio::spawn(async move {
            through.manifest_for(&Repository::parse(name).unwrap(), &of, Requester::Trusted).await
        })
    }

    /// The manifest that an anonymous request gets.
    async fn manifest_bytes(&self, name: &str) -> Bytes {
        self.ask(name, "latest", Requester::Anonymous).await.unwrap().expect("there is one").bytes
    }

    /// Requests more names than the cache holds.
    async fn ask_for_many(&self) {
        for n in 0..50 {
            assert_eq!(
                self.ask(&format!("library/none-{n}"), "latest", Requester::Trusted).await,
                Ok(None)
            );
        }
    }

    /// Waits until nothing is being fetched.
    async fn wait_until_idle(&self) {
        let waited = async {
            while self.through.fetch_stats().await.running > 0 || self.through.0.gate.is_full() {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::time::timeout(HOUR / 60, waited).await.expect("it comes to that");
    }
}

async fn until(is_so: impl Fn() -> bool) {
    let waited = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(HOUR / 60, waited).await.expect("it comes to that");
}

#[tokio::test]
async fn assembled_models_in_a_bucket_are_not_fetched_again() {
    let (upstream, file) = (Upstream::new().await, gguf(1));
    upstream.file("you/m", &file, &file);
    let server = TestMirror::in_bucket(&upstream, HOUR);
    let first = server.ask("you/m", "Q8_0", Requester::Trusted).await.unwrap().expect("it is made");
    server.wait_until_idle().await;
    let fetched = upstream.request_count("/resolve/");
    for _ in 0..2 {
        assert_eq!(server.ask("you/m", "Q8_0", Requester::Trusted).await, Ok(Some(first.clone())));
        server.wait_until_idle().await;
    }
    assert_eq!(upstream.request_count("/resolve/"), fetched);
    let (bytes, fetch_stats) = (file.len() as u64, server.through.fetch_stats().await);
    assert_eq!(fetch_stats, FetchStats { misses: 1, hits: 2, bytes, ..FetchStats::default() });
}

#[tokio::test]
async fn older_models_are_served_while_a_newer_one_is_assembled() {
    let (upstream, old, new) = (Upstream::new().await, gguf(1), gguf(2));
    upstream.file("you/m", &old, &old);
    let server = TestMirror::in_bucket(&upstream, HOUR);
    let ask = || server.ask("you/m", "Q8_0", Requester::Trusted);
    let first = ask().await.unwrap().expect("it is made");
    server.wait_until_idle().await;
    upstream.set_open(false);
    upstream.file("you/m", &new, &new);
    for _ in 0..2 {
        let at_once = tokio::time::timeout(Duration::from_secs(10), ask()).await;
        assert_eq!(at_once.expect("what is here comes at once"), Ok(Some(first.clone())));
    }
    let shown = server.through.tag_entries().await.unwrap();
    let coming: Vec<_> =
        shown.iter().filter_map(|shown| Some((shown.completed?, shown.size))).collect();
    assert_eq!(coming, [(0, new.len() as u64)]);
    let fetch_stats = server.through.fetch_stats().await;
    assert_eq!(
        (fetch_stats.running, fetch_stats.misses, fetch_stats.bytes),
        (1, 2, old.len() as u64)
    );
    upstream.set_open(true);
    server.wait_until_idle().await;
    assert_ne!(ask().await.unwrap().expect("it is made").digest, first.digest);
    assert_eq!(server.through.fetch_stats().await.bytes, (old.len() + new.len()) as u64);
}

#[tokio::test]
async fn oversized_tags_are_looked_up_once() {
    let (upstream, large) = (Upstream::new().await, gguf(1));
    let old = upstream.model("library/m", b"small");
    upstream.model("you/m", b"small");
    let limit = Upstreams { fetch_limit: Some(20), ..Upstreams::default() };
    let server = TestMirror::new(&upstream, HOUR, limit);
    assert_eq!(server.manifest_bytes("library/m").await, old);
    assert_eq!(server.manifest_bytes("you/m").await, old);
    server.wait_until_idle().await;
    // One tag moves to a model that is too large, the other to a file that is.
    let moved = upstream.model("library/m", &[7; 1000]);
    lock(&upstream.state.answers).remove("/v2/you/m/manifests/latest");
    upstream.file("you/m", &large, &large);
    for (name, refused) in [("library/m", 1), ("you/m", 2)] {
        let looked = upstream.request_count(&format!("/v2/{name}/manifests/"));
        for _ in 0..3 {
            assert_eq!(server.manifest_bytes(name).await, old);
        }
        assert_eq!(upstream.request_count(&format!("/v2/{name}/manifests/")), looked + 1);
        assert_eq!(server.through.fetch_stats().await.refused, refused);
    }
    // A trusted requester may fetch them.
    let served = server.ask("library/m", "latest", Requester::Trusted).await.unwrap();
    assert_eq!(served.unwrap().bytes, moved);
    server.wait_until_idle().await;
    assert_eq!(server.manifest_bytes("library/m").await, moved);
}

#[tokio::test]
async fn the_fetch_limit_is_cached_while_fetches_run() {
    let upstream = Upstream::new().await;
    let old = upstream.model("library/m", b"old");
    let other = upstream.model("library/other", b"other");
    let one = Upstreams { fetch_parallel: Some(1), ..Upstreams::default() };
    let server = TestMirror::new(&upstream, HOUR, one);
    assert_eq!(server.manifest_bytes("library/m").await, old);
    server.wait_until_idle().await;
    upstream.set_open(false);
    assert_eq!(server.manifest_bytes("library/other").await, other);
    let new = upstream.model("library/m", b"new");
    let looked = upstream.request_count("/v2/library/m/manifests/");
    for _ in 0..3 {
        assert_eq!(server.manifest_bytes("library/m").await, old);
    }
    assert_eq!(upstream.request_count("/v2/library/m/manifests/"), looked + 1);
    upstream.set_open(true);
    server.wait_until_idle().await;
    assert_eq!(server.manifest_bytes("library/m").await, new);
}

#[tokio::test]
async fn failed_fetches_are_not_retried_for_a_while() {
    let (upstream, file) = (Upstream::new().await, gguf(1));
    upstream.model("library/m", b"the weights");
    upstream.put(blob_path("library/m", b"the weights"), "the damaged");
    upstream.file("you/m", &file, &Bytes::from(vec![0; file.len()]));
    let server = TestMirror::new(&upstream, HOUR, Upstreams::default());
    assert!(
        server.ask("library/m", "latest", Requester::Trusted).await.unwrap().is_some(),
        "nobody knows yet"
    );
    server.wait_until_idle().await;
    for (name, tag, failures) in [("library/m", "latest", 1), ("you/m", "Q8_0", 2)] {
        let first = server.ask(name, tag, Requester::Trusted).await.unwrap_err();
        assert_eq!(first.code().0, 502);
        assert!(first.to_string().contains("digest mismatch"), "{first}");
        let request_count = upstream.request_count("");
        assert_eq!(server.ask(name, tag, Requester::Trusted).await, Err(first));
        assert_eq!(upstream.request_count(""), request_count);
        assert_eq!(server.through.fetch_stats().await.failures, failures);
    }
    let other = TestMirror::new(&upstream, Duration::ZERO, Upstreams::default());
    for failures in 1..=2 {
        assert!(other.ask("library/m", "latest", Requester::Trusted).await.unwrap().is_some());
        other.wait_until_idle().await;
        assert_eq!(
            other.through.fetch_stats().await.failures,
            failures,
            "it is tried again after that"
        );
    }
}

#[tokio::test]
async fn missing_tags_are_cached() {
    let upstream = Upstream::new().await;
    let old = upstream.model("library/m", b"weights");
    let server = TestMirror::new(&upstream, HOUR, Upstreams::default());
    assert_eq!(server.manifest_bytes("library/m").await, old);
    server.wait_until_idle().await;
    lock(&upstream.state.answers).clear();
    let looked = upstream.request_count("/manifests/");
    for _ in 0..3 {
        assert_eq!(server.manifest_bytes("library/m").await, old);
        assert_eq!(server.ask("library/none", "latest", Requester::Trusted).await, Ok(None));
    }
    assert_eq!(upstream.request_count("/manifests/"), looked + 2);
}

#[tokio::test]
async fn missing_tags_do_not_evict_models_in_flight() {
    let (upstream, file) = (Upstream::new().await, gguf(1));
    upstream.file("you/m", &file, &file);
    let manifest = upstream.model("library/m", b"weights");
    upstream.set_open(false);
    let server = TestMirror::new(&upstream, HOUR, Upstreams::default());
    let (first, listed) = (server.requester("you/m", "Q8_0"), "/api/models/you/m/refs");
    until(|| upstream.request_count("/resolve/") > 0).await;
    first.abort();
    assert_eq!(server.manifest_bytes("library/m").await, manifest);
    let request_count =
        || (upstream.request_count("/v2/library/m/manifests/"), upstream.request_count(listed));
    let before = request_count();
    server.ask_for_many().await;
    assert_eq!(server.through.fetch_stats().await.running, 2);
    let blob = server.through.blob(Digest::of(b"weights")).await.unwrap();
    assert_eq!(blob.expect("it is handed on").size(), 7);
    let second = server.requester("you/m", "Q8_0");
    assert_eq!(server.manifest_bytes("library/m").await, manifest);
    upstream.set_open(true);
    assert!(second.await.unwrap().unwrap().is_some());
    server.wait_until_idle().await;
    assert_eq!((request_count(), server.through.fetch_stats().await.misses), (before, 2));
}

#[tokio::test]
async fn a_client_cannot_take_the_fetch_slots_of_others() {
    let upstream = Upstream::new().await;
    for name in ["library/m", "library/n"] {
        upstream.model(name, name.as_bytes());
    }
    let two = Upstreams { fetch_parallel: Some(2), ..Upstreams::default() };
    let server = TestMirror::new(&upstream, HOUR, two);
    let ask = async |client: &str, name: &str| {
        ClientId::of_key(client).scope(server.ask(name, "latest", Requester::Trusted)).await
    };
    upstream.set_open(false);
    assert!(ask("a", "library/m").await.unwrap().is_some());
    for _ in 0..2 {
        let refused = ask("a", "library/n").await.unwrap_err();
        assert_eq!(refused.code(), (429, "TOOMANYREQUESTS"));
    }
    assert!(ask("b", "library/n").await.unwrap().is_some());
    upstream.set_open(true);
    server.wait_until_idle().await;
}
