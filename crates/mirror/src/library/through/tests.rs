//! Libraries before an upstream that moves, stands still, and has what is damaged.

mod lists;
mod sizes;
mod strays;

use std::collections::HashMap;

use axum::body::Body;
use axum::extract::Request;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use puna_gguf::Writer;
use puna_quant::TensorType;
use puna_registry::{Host, Settings};
use puna_store::{DEFAULT_HOST, media};
use serde_json::json;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::*;
use crate::library::{ObjectLibrary, StoreLibrary};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
/// As good as for ever.
const HOUR: Duration = Duration::from_secs(60 * 60);

/// A registry and a hub on 127.0.0.1.
struct Upstream {
    host: String,
    shelf: Arc<Shelf>,
}

struct Shelf {
    answers: Mutex<HashMap<String, Bytes>>,
    asked: Mutex<Vec<String>>,
    /// Whether blobs and files are handed out; who asks for one waits until they are.
    open: watch::Sender<bool>,
    /// Up to which byte, though that is not so.
    until: Mutex<usize>,
}

impl Shelf {
    async fn answer(&self, request: Request) -> Response {
        let path = request.uri().path().to_owned();
        lock(&self.asked).push(path.clone());
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

impl Shelf {
    /// What is sent at once, and what when things are handed out again.
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
        let (answers, asked, open) = (Mutex::default(), Mutex::default(), watch::Sender::new(true));
        let shelf = Arc::new(Shelf { answers, asked, open, until: Mutex::default() });
        let at = shelf.clone();
        let router = axum::Router::new().fallback(move |request: Request| {
            let at = at.clone();
            async move { at.answer(request).await }
        });
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { host, shelf }
    }

    fn put(&self, path: String, bytes: impl Into<Bytes>) {
        lock(&self.shelf.answers).insert(path, bytes.into());
    }

    /// A model with weights under the tag `latest`: its manifest.
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

    /// What is no model of the registry's, but a file that the hub lists.
    fn file(&self, name: &str, listed: &Bytes, given: &Bytes) {
        let (api, file) = (format!("/api/models/{name}"), "m-Q8_0.gguf");
        let refs = json!({"branches": [{"name": "main", "targetCommit": COMMIT}]});
        self.put(format!("{api}/refs"), refs.to_string());
        let lfs = json!({"oid": Digest::of(listed).hex(), "size": listed.len()});
        let tree = json!([{"type": "file", "path": file, "lfs": lfs}]);
        self.put(format!("{api}/tree/{COMMIT}"), tree.to_string());
        self.put(format!("/{name}/resolve/{COMMIT}/{file}"), given.clone());
    }

    fn hands_out(&self, open: bool) {
        *lock(&self.shelf.until) = 0;
        self.shelf.open.send_replace(open);
    }

    /// Hands out what is before a byte to those who ask from now on.
    fn hands_out_until(&self, byte: usize) {
        *lock(&self.shelf.until) = byte;
    }

    /// How often something with this in its path was asked for.
    fn asked(&self, part: &str) -> usize {
        lock(&self.shelf.asked).iter().filter(|path| path.contains(part)).count()
    }
}

fn blob_path(name: &str, bytes: &[u8]) -> String {
    format!("/v2/{name}/blobs/{}", Digest::of(bytes))
}

/// What somebody is given who asks for a tag.
type Given = Result<Option<Manifest>, MirrorError>;

/// A small file of weights.
fn gguf(seed: u8) -> Bytes {
    let mut writer = Writer::new();
    writer.set("general.architecture", "llama").set("general.file_type", 0u32);
    writer.set("llama.context_length", 64u32).set("llama.embedding_length", 2u32);
    writer.tensor("output_norm.weight", TensorType::F32, &[2]).unwrap();
    writer.to_vec([&[seed; 8][..]]).unwrap().into()
}

/// A library before an upstream that is asked for each request anew, as long as nothing rests.
struct Bench {
    dir: Arc<tempfile::TempDir>,
    through: Arc<Through>,
}

impl Bench {
    /// Over a folder.
    fn new(upstream: &Upstream, rest: Duration, upstreams: Upstreams) -> Self {
        Self::over(upstream, rest, upstreams, None)
    }

    fn in_bucket(upstream: &Upstream, rest: Duration) -> Self {
        let bucket: Arc<dyn Library> = Arc::new(ObjectLibrary::in_memory());
        Self::over(upstream, rest, Upstreams::default(), Some(bucket))
    }

    fn over(
        upstream: &Upstream,
        rest: Duration,
        upstreams: Upstreams,
        library: Option<Arc<dyn Library>>,
    ) -> Self {
        Self::at(Arc::new(tempfile::tempdir().unwrap()), upstream, rest, upstreams, library)
    }

    /// Another process over the same folder.
    fn beside(&self, upstream: &Upstream) -> Self {
        Self::at(self.dir.clone(), upstream, HOUR, Upstreams::default(), None)
    }

    fn at(
        dir: Arc<tempfile::TempDir>,
        upstream: &Upstream,
        rest: Duration,
        upstreams: Upstreams,
        library: Option<Arc<dyn Library>>,
    ) -> Self {
        let store = Arc::new(Store::open(dir.path().join("models")).unwrap());
        let library = library.unwrap_or_else(|| Arc::new(StoreLibrary::new(store.clone())));
        let mut settings = Settings {
            default_registry: Some(format!("http://{}", upstream.host)),
            pause: Duration::from_millis(5),
            ..Settings::default()
        };
        settings.hosts.set(&upstream.host, Host { http: true, hub: true, ..Host::default() });
        let upstreams = Upstreams { hosts: vec![DEFAULT_HOST.into()], ..upstreams };
        let (registry, history) = (Registry::new(settings), History::new().unwrap());
        let mut through = Through::new(library, store, registry, upstreams, history);
        let inner = Arc::get_mut(&mut through.0).unwrap();
        (inner.rest, inner.tags) = (rest, Tags::new(8));
        Self { dir, through: Arc::new(through) }
    }

    async fn ask(&self, name: &str, tag: &str, asker: Asker) -> Given {
        let of = Reference::Tag(tag.into());
        self.through.manifest_for(&Repository::parse(name).unwrap(), &of, asker).await
    }

    /// Somebody who waits for an answer.
    fn asker(&self, name: &'static str, tag: &'static str) -> JoinHandle<Given> {
        let (through, of) = (self.through.clone(), Reference::Tag(tag.into()));
        tokio::spawn(async move {
            through.manifest_for(&Repository::parse(name).unwrap(), &of, Asker::Known).await
        })
    }

    /// The bytes of a manifest that a stranger is given.
    async fn given(&self, name: &str) -> Bytes {
        self.ask(name, "latest", Asker::Anybody).await.unwrap().expect("there is one").bytes
    }

    /// Asks for far more names than are remembered.
    async fn ask_for_many(&self) {
        for n in 0..50 {
            assert_eq!(
                self.ask(&format!("library/none-{n}"), "latest", Asker::Known).await,
                Ok(None)
            );
        }
    }

    /// Waits until nothing is being fetched.
    async fn settle(&self) {
        let waited = async {
            while self.through.fetches().await.running > 0 || self.through.0.gate.is_full() {
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
async fn what_a_bucket_has_of_a_hub_is_not_fetched_again() {
    let (upstream, file) = (Upstream::new().await, gguf(1));
    upstream.file("you/m", &file, &file);
    let bench = Bench::in_bucket(&upstream, HOUR);
    let first = bench.ask("you/m", "Q8_0", Asker::Known).await.unwrap().expect("it is made");
    bench.settle().await;
    let fetched = upstream.asked("/resolve/");
    for _ in 0..2 {
        assert_eq!(bench.ask("you/m", "Q8_0", Asker::Known).await, Ok(Some(first.clone())));
        bench.settle().await;
    }
    assert_eq!(upstream.asked("/resolve/"), fetched);
    let (bytes, fetches) = (file.len() as u64, bench.through.fetches().await);
    assert_eq!(fetches, Fetches { misses: 1, hits: 2, bytes, ..Fetches::default() });
}

#[tokio::test]
async fn what_is_being_made_is_seen_and_who_has_another_one_does_not_wait() {
    let (upstream, old, new) = (Upstream::new().await, gguf(1), gguf(2));
    upstream.file("you/m", &old, &old);
    let bench = Bench::in_bucket(&upstream, HOUR);
    let ask = || bench.ask("you/m", "Q8_0", Asker::Known);
    let first = ask().await.unwrap().expect("it is made");
    bench.settle().await;
    upstream.hands_out(false);
    upstream.file("you/m", &new, &new);
    for _ in 0..2 {
        let at_once = tokio::time::timeout(Duration::from_secs(10), ask()).await;
        assert_eq!(at_once.expect("what is here comes at once"), Ok(Some(first.clone())));
    }
    let shown = bench.through.shown().await.unwrap();
    let coming: Vec<_> =
        shown.iter().filter_map(|shown| Some((shown.completed?, shown.size))).collect();
    assert_eq!(coming, [(0, new.len() as u64)]);
    let fetches = bench.through.fetches().await;
    assert_eq!((fetches.running, fetches.misses, fetches.bytes), (1, 2, old.len() as u64));
    upstream.hands_out(true);
    bench.settle().await;
    assert_ne!(ask().await.unwrap().expect("it is made").digest, first.digest);
    assert_eq!(bench.through.fetches().await.bytes, (old.len() + new.len()) as u64);
}

#[tokio::test]
async fn a_tag_that_strangers_may_not_have_fetched_is_looked_up_once() {
    let (upstream, large) = (Upstream::new().await, gguf(1));
    let old = upstream.model("library/m", b"small");
    upstream.model("you/m", b"small");
    let limit = Upstreams { fetch_limit: Some(20), ..Upstreams::default() };
    let bench = Bench::new(&upstream, HOUR, limit);
    assert_eq!(bench.given("library/m").await, old);
    assert_eq!(bench.given("you/m").await, old);
    bench.settle().await;
    // One moves to a model that is too large, the other to a file that is.
    let moved = upstream.model("library/m", &[7; 1000]);
    lock(&upstream.shelf.answers).remove("/v2/you/m/manifests/latest");
    upstream.file("you/m", &large, &large);
    for (name, refused) in [("library/m", 1), ("you/m", 2)] {
        let looked = upstream.asked(&format!("/v2/{name}/manifests/"));
        for _ in 0..3 {
            assert_eq!(bench.given(name).await, old);
        }
        assert_eq!(upstream.asked(&format!("/v2/{name}/manifests/")), looked + 1);
        assert_eq!(bench.through.fetches().await.refused, refused);
    }
    // Others may.
    let served = bench.ask("library/m", "latest", Asker::Known).await.unwrap();
    assert_eq!(served.unwrap().bytes, moved);
    bench.settle().await;
    assert_eq!(bench.given("library/m").await, moved);
}

#[tokio::test]
async fn a_tag_that_has_to_wait_for_others_rests_as_long_as_they_are_at_it() {
    let upstream = Upstream::new().await;
    let old = upstream.model("library/m", b"old");
    let other = upstream.model("library/other", b"other");
    let one = Upstreams { fetch_parallel: Some(1), ..Upstreams::default() };
    let bench = Bench::new(&upstream, HOUR, one);
    assert_eq!(bench.given("library/m").await, old);
    bench.settle().await;
    upstream.hands_out(false);
    assert_eq!(bench.given("library/other").await, other);
    let new = upstream.model("library/m", b"new");
    let looked = upstream.asked("/v2/library/m/manifests/");
    for _ in 0..3 {
        assert_eq!(bench.given("library/m").await, old);
    }
    assert_eq!(upstream.asked("/v2/library/m/manifests/"), looked + 1);
    upstream.hands_out(true);
    bench.settle().await;
    assert_eq!(bench.given("library/m").await, new);
}

#[tokio::test]
async fn what_could_not_be_fetched_is_left_alone_for_a_while() {
    let (upstream, file) = (Upstream::new().await, gguf(1));
    upstream.model("library/m", b"the weights");
    upstream.put(blob_path("library/m", b"the weights"), "the damaged");
    upstream.file("you/m", &file, &Bytes::from(vec![0; file.len()]));
    let bench = Bench::new(&upstream, HOUR, Upstreams::default());
    assert!(
        bench.ask("library/m", "latest", Asker::Known).await.unwrap().is_some(),
        "nobody knows yet"
    );
    bench.settle().await;
    for (name, tag, failures) in [("library/m", "latest", 1), ("you/m", "Q8_0", 2)] {
        let first = bench.ask(name, tag, Asker::Known).await.unwrap_err();
        assert_eq!(first.code().0, 502);
        assert!(first.to_string().contains("digest mismatch"), "{first}");
        let asked = upstream.asked("");
        assert_eq!(bench.ask(name, tag, Asker::Known).await, Err(first));
        assert_eq!(upstream.asked(""), asked);
        assert_eq!(bench.through.fetches().await.failures, failures);
    }
    let other = Bench::new(&upstream, Duration::ZERO, Upstreams::default());
    for failures in 1..=2 {
        assert!(other.ask("library/m", "latest", Asker::Known).await.unwrap().is_some());
        other.settle().await;
        assert_eq!(
            other.through.fetches().await.failures,
            failures,
            "it is tried again after that"
        );
    }
}

#[tokio::test]
async fn what_is_not_there_is_not_asked_for_again_for_a_while() {
    let upstream = Upstream::new().await;
    let old = upstream.model("library/m", b"weights");
    let bench = Bench::new(&upstream, HOUR, Upstreams::default());
    assert_eq!(bench.given("library/m").await, old);
    bench.settle().await;
    lock(&upstream.shelf.answers).clear();
    let looked = upstream.asked("/manifests/");
    for _ in 0..3 {
        assert_eq!(bench.given("library/m").await, old);
        assert_eq!(bench.ask("library/none", "latest", Asker::Known).await, Ok(None));
    }
    assert_eq!(upstream.asked("/manifests/"), looked + 2);
}

#[tokio::test]
async fn names_of_nothing_do_not_have_what_is_on_its_way_forgotten() {
    let (upstream, file) = (Upstream::new().await, gguf(1));
    upstream.file("you/m", &file, &file);
    let manifest = upstream.model("library/m", b"weights");
    upstream.hands_out(false);
    let bench = Bench::new(&upstream, HOUR, Upstreams::default());
    let (first, listed) = (bench.asker("you/m", "Q8_0"), "/api/models/you/m/refs");
    until(|| upstream.asked("/resolve/") > 0).await;
    first.abort();
    assert_eq!(bench.given("library/m").await, manifest);
    let asked = || (upstream.asked("/v2/library/m/manifests/"), upstream.asked(listed));
    let before = asked();
    bench.ask_for_many().await;
    assert_eq!(bench.through.fetches().await.running, 2);
    let blob = bench.through.blob(Digest::of(b"weights")).await.unwrap();
    assert_eq!(blob.expect("it is handed on").size(), 7);
    let second = bench.asker("you/m", "Q8_0");
    assert_eq!(bench.given("library/m").await, manifest);
    upstream.hands_out(true);
    assert!(second.await.unwrap().unwrap().is_some());
    bench.settle().await;
    assert_eq!((asked(), bench.through.fetches().await.misses), (before, 2));
}
