//! Manifest lists of an upstream, for clients that know them and for others.

use axum::http::HeaderMap;
use http_body_util::BodyExt;
use puna_registry::Options;
use puna_store::{ModelRef, StoredChild};
use serde_json::Value;
use tokio::sync::mpsc;

use super::*;
use crate::manifest_list::tests::{inline, list_of, reference};
use crate::{Mirror, NoKeys};

const NAME: &str = "library/m";
const TAG: &str = "/v2/library/m/manifests/latest";

fn at(text: &[u8]) -> String {
    format!("/v2/{NAME}/manifests/{}", Digest::of(text))
}

/// A mirror over a library, before an upstream of which it asks for lists.
struct Desk {
    bench: Bench,
    mirror: Mirror,
}

impl Desk {
    fn of(bench: Bench) -> Self {
        let settings = crate::Settings { push: true, delete: true, ..crate::Settings::default() };
        let library = bench.through.clone();
        let mirror =
            Mirror::new(library, Box::new(NoKeys), &settings, History::new().unwrap()).unwrap();
        Self { bench, mirror }
    }

    /// One over a folder, and one over a bucket.
    fn both(upstream: &Upstream) -> [Self; 2] {
        let folder = Bench::new(upstream, HOUR, Upstreams::default());
        [Self::of(folder), Self::of(Bench::in_bucket(upstream, HOUR))]
    }

    async fn get(&self, path: &str, accept: &str) -> (u16, HeaderMap, Bytes) {
        let request =
            Request::get(path).header(header::HOST, "mirror").header(header::ACCEPT, accept);
        let answer = self.mirror.answer(request.body(Body::empty()).unwrap()).await;
        let (head, body) = answer.into_parts();
        (head.status.as_u16(), head.headers, body.collect().await.unwrap().to_bytes())
    }

    /// Pulls what stands under the tag as a client does that knows no lists: the manifest.
    async fn pull(&self) -> Bytes {
        let (status, _, manifest) = self.get(TAG, media::MANIFEST).await;
        assert_eq!(status, 200, "{manifest:?}");
        let value: Value = serde_json::from_slice(&manifest).unwrap();
        for layer in value["layers"].as_array().unwrap() {
            let digest = layer["digest"].as_str().unwrap();
            let (status, _, blob) = self.get(&format!("/v2/{NAME}/blobs/{digest}"), "*/*").await;
            assert_eq!((status, Digest::of(&blob).to_string()), (200, digest.to_owned()));
        }
        manifest
    }
}

impl Upstream {
    /// A model that stands under no tag: its manifest.
    fn child(&self, weights: &[u8]) -> Bytes {
        let manifest = self.model(NAME, weights);
        lock(&self.shelf.answers).remove(TAG);
        self.put(at(&manifest), manifest.clone());
        manifest
    }

    fn list(&self, children: &[Value]) -> Bytes {
        let list = Bytes::from(list_of(children));
        self.put(TAG.into(), list.clone());
        list
    }
}

fn refer(manifest: &Bytes, runner: &str) -> Value {
    reference(std::str::from_utf8(manifest).unwrap(), runner, "gguf")
}

#[tokio::test]
async fn a_list_is_kept_and_its_children_come_on_demand() {
    let upstream = Upstream::new().await;
    let (ggml, llamacpp) = (upstream.child(b"of ggml"), upstream.child(b"of llamacpp"));
    let unasked = upstream.child(b"of mlx");
    let children = [refer(&ggml, "ggml"), refer(&llamacpp, "llamacpp"), refer(&unasked, "mlx")];
    let list = upstream.list(&children);
    let kept = lock(&upstream.shelf.answers).clone();
    for desk in Desk::both(&upstream) {
        *lock(&upstream.shelf.answers) = kept.clone();
        lock(&upstream.shelf.asked).clear();
        assert_eq!(desk.pull().await, llamacpp);
        desk.bench.settle().await;
        let (status, headers, body) = desk.get(TAG, media::MANIFEST_LIST).await;
        assert_eq!(
            (status, &body, headers[header::CONTENT_TYPE].as_bytes()),
            (200, &list, media::MANIFEST_LIST.as_bytes())
        );
        assert_eq!(upstream.asked(&blob_path(NAME, b"of ggml")), 0, "nobody has asked for it");
        assert_eq!(desk.get(&at(&ggml), "*/*").await.2, ggml);
        desk.bench.settle().await;
        assert_eq!(desk.bench.through.fetches().await.failures, 0);
        // The mirror keeps the fetched manifests while the upstream is away and after garbage collection.
        lock(&upstream.shelf.answers).clear();
        desk.bench.through.tidy().await.unwrap();
        assert_eq!(desk.pull().await, llamacpp);
        for (path, status) in [
            (at(&ggml), 200),
            (blob_path(NAME, b"of ggml"), 200),
            (at(&unasked), 404),
            (blob_path(NAME, b"of mlx"), 404),
        ] {
            assert_eq!(desk.get(&path, "*/*").await.0, status, "{path}");
        }
        assert_eq!(desk.get(TAG, media::MANIFEST_LIST).await.2, list);
        let shown = desk.bench.through.shown().await.unwrap();
        let sum = b"of ggml".len() + b"of llamacpp".len() + b"{}".len();
        assert_eq!(shown.iter().map(|shown| shown.size).collect::<Vec<_>>(), [sum as u64]);
    }
}

#[tokio::test]
async fn inline_children_come_with_their_blobs() {
    let upstream = Upstream::new().await;
    upstream.child(b"weights");
    let list = upstream.list(&[inline(b"weights", "llamacpp")]);
    let kept = lock(&upstream.shelf.answers).clone();
    for desk in Desk::both(&upstream) {
        *lock(&upstream.shelf.answers) = kept.clone();
        let child = desk.pull().await;
        desk.bench.settle().await;
        lock(&upstream.shelf.answers).clear();
        desk.bench.through.tidy().await.unwrap();
        assert_eq!(desk.pull().await, child);
        assert_eq!(desk.get(&at(&child), "*/*").await.2, child);
        assert_eq!(desk.get(TAG, media::MANIFEST_LIST).await.2, list);
        assert_eq!(desk.bench.through.fetches().await.failures, 0);
    }
}

#[tokio::test]
async fn children_that_are_not_what_the_list_says_are_refused_and_left_alone() {
    let upstream = Upstream::new().await;
    let (good, other) = (upstream.child(b"good"), upstream.child(b"another"));
    upstream.put(at(&good), other);
    let list = upstream.list(&[refer(&good, "llamacpp")]);
    for desk in Desk::both(&upstream) {
        let asked = upstream.asked("sha256:");
        for _ in 0..3 {
            let (status, _, said) = desk.get(TAG, media::MANIFEST).await;
            let said = String::from_utf8_lossy(&said).into_owned();
            assert!(status == 502 && said.contains(&Digest::of(&good).to_string()), "{said}");
        }
        assert_eq!(upstream.asked("sha256:"), asked + 1);
        assert_eq!(desk.get(TAG, media::MANIFEST_LIST).await.2, list);
    }
    upstream.put(at(&good), list_of(&[refer(&good, "ggml")]));
    let nested =
        upstream.list(&[refer(&Bytes::from(list_of(&[refer(&good, "ggml")])), "llamacpp")]);
    upstream.put(at(list_of(&[refer(&good, "ggml")]).as_bytes()), list_of(&[refer(&good, "ggml")]));
    for desk in Desk::both(&upstream) {
        let (status, _, said) = desk.get(TAG, media::MANIFEST).await;
        let said = String::from_utf8_lossy(&said).into_owned();
        assert!(status == 502 && said.contains("is a list itself"), "{said}");
        assert_eq!(desk.get(TAG, media::MANIFEST_LIST).await.2, nested);
    }
}

#[tokio::test]
async fn a_tag_moves_between_a_model_and_a_list() {
    let upstream = Upstream::new().await;
    let broken = Bytes::from(list_of(&[]));
    for desk in Desk::both(&upstream) {
        upstream.put(TAG.into(), broken.clone());
        let (status, _, said) = desk.get(TAG, "*/*").await;
        assert!(
            status == 502 && String::from_utf8_lossy(&said).contains("no children"),
            "{said:?}"
        );
    }
    for desk in Desk::both(&upstream) {
        let child = upstream.child(b"of a list");
        let model = upstream.model(NAME, b"a model");
        assert_eq!(desk.pull().await, model);
        desk.bench.settle().await;
        let list = upstream.list(&[refer(&child, "ggml")]);
        assert_eq!(desk.get(TAG, media::MANIFEST_LIST).await.2, list);
        assert_eq!(desk.pull().await, child);
        desk.bench.settle().await;
        let moved = upstream.model(NAME, b"another model");
        assert_eq!(desk.pull().await, moved);
        desk.bench.settle().await;
        assert_eq!(desk.get(TAG, media::MANIFEST_LIST).await.2, moved);
        // A list that is none leaves what is here.
        upstream.put(TAG.into(), broken.clone());
        assert_eq!(desk.get(TAG, media::MANIFEST_LIST).await.2, moved);
    }
}

#[tokio::test]
async fn a_default_child_that_nobody_has_is_named() {
    let upstream = Upstream::new().await;
    let list = upstream.list(&[refer(&Bytes::from_static(b"{}"), "llamacpp")]);
    for desk in Desk::both(&upstream) {
        assert_eq!(desk.get(TAG, media::MANIFEST_LIST).await.2, list);
        let (status, _, said) = desk.get(TAG, media::MANIFEST).await;
        let said = String::from_utf8_lossy(&said).into_owned();
        assert!(status == 404 && said.contains("MANIFEST_UNKNOWN"), "{said}");
        assert!(said.contains("its child 1 for llamacpp (sha256:"), "{said}");
    }
}

/// Serves a mirror on 127.0.0.1: its host.
async fn serve(mirror: Mirror) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let host = listener.local_addr().unwrap().to_string();
    let router = axum::Router::new().fallback(move |request: Request| {
        let mirror = mirror.clone();
        async move { mirror.answer(request).await }
    });
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    host
}

/// A mirror over a folder that takes pushes.
fn first_mirror(dir: &tempfile::TempDir) -> Mirror {
    let library = Arc::new(StoreLibrary::new(Arc::new(Store::open(dir.path()).unwrap())));
    let settings = crate::Settings { push: true, ..crate::Settings::default() };
    Mirror::new(library, Box::new(NoKeys), &settings, History::new().unwrap()).unwrap()
}

#[tokio::test]
async fn a_list_travels_through_two_mirrors_byte_for_byte() {
    let dirs = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let stores = [&dirs[1], &dirs[2]].map(|dir| Arc::new(Store::open(dir.path()).unwrap()));
    let upstream = Upstream { host: serve(first_mirror(&dirs[0])).await, ..Upstream::new().await };
    let client = Registry::new(Settings::default());
    let options = Options { insecure: true, all_runners: true, ..Options::default() };
    let lines = || mpsc::channel(1000).0;
    // A model is pushed to the first mirror, with spaces that no program would write.
    let name = ModelRef::parse(&format!("{}/{NAME}", upstream.host)).unwrap();
    let children = [(b"of ggml", "ggml"), (b"of_mlx_", "mlx")].map(|(weights, runner)| {
        let layer = stores[0].add_blob(weights).unwrap();
        let layer =
            json!({"mediaType": media::MODEL, "digest": layer.digest.to_string(), "size": layer.size});
        let child = json!({"schemaVersion": 2, "mediaType": media::MANIFEST, "layers": [layer]}).to_string();
        stores[0].add_blob(child.as_bytes()).unwrap();
        (Bytes::from(child), runner)
    });
    let list = list_of(&children.each_ref().map(|(child, runner)| refer(child, runner)))
        .replace(',', " ,\n ");
    stores[0].store_manifest(&name.name, list.as_bytes(), true, &mut || ()).unwrap();
    client.push(&stores[0], &name, &options, lines()).await.unwrap();
    // Clients of the second mirror get it from the first.
    let desk = Desk::of(Bench::new(&upstream, HOUR, Upstreams::default()));
    let (status, headers, body) = desk.get(TAG, media::MANIFEST_LIST).await;
    assert_eq!((status, &body[..]), (200, list.as_bytes()));
    assert_eq!(headers["docker-content-digest"], Digest::of(list.as_bytes()).to_string());
    assert_eq!(desk.pull().await, children[0].0, "the child for clients without lists");
    desk.bench.settle().await;
    // A complete child that can run makes the list a model of the second mirror's store.
    let of_mirror = Store::open(desk.bench.dir.path().join("models")).unwrap();
    let present = |store: &Store, name: &str| {
        let entry = store.get(&ModelRef::parse(name).unwrap().name).unwrap();
        assert_eq!(entry.digest, Digest::of(list.as_bytes()));
        let is_present = |stored: &&StoredChild| stored.manifest.is_some();
        entry.list.unwrap().children.iter().filter(is_present).count()
    };
    assert_eq!(present(&of_mirror, "m"), 1);
    let second = serve(desk.mirror.clone()).await;
    let name = format!("{second}/{NAME}");
    client.pull(&stores[1], &ModelRef::parse(&name).unwrap(), &options, lines()).await.unwrap();
    assert_eq!(present(&stores[1], &name), 2);
    desk.bench.settle().await;
    assert_eq!(present(&of_mirror, "m"), 2, "a further child is added to the same list");
    let (_, bytes) = stores[1].manifest_bytes(&ModelRef::parse(&name).unwrap().name).unwrap();
    assert_eq!(bytes, list.as_bytes());
}

#[tokio::test]
async fn a_list_leaves_the_model_until_a_child_takes_its_place() {
    let upstream = Upstream::new().await;
    let model = upstream.model(NAME, b"a model");
    let desk = Desk::of(Bench::new(&upstream, HOUR, Upstreams::default()));
    assert_eq!(desk.pull().await, model);
    desk.bench.settle().await;
    let store = Store::open(desk.bench.dir.path().join("models")).unwrap();
    let stored = || store.get(&ModelRef::parse("m").unwrap().name).unwrap().digest;
    let child = upstream.child(b"of a list");
    let list = upstream.list(&[refer(&child, "ggml")]);
    assert_eq!(desk.get(TAG, media::MANIFEST_LIST).await.2, list);
    assert_eq!(stored(), Digest::of(&model));
    assert_eq!(desk.pull().await, child);
    desk.bench.settle().await;
    assert_eq!(stored(), Digest::of(&list));
    // A list of the very model needs no download.
    upstream.put(at(&child), child.clone());
    let again = upstream.list(&[refer(&child, "ggml"), refer(&model, "mlx")]);
    let blobs = upstream.asked("/blobs/");
    assert_eq!(desk.get(TAG, media::MANIFEST_LIST).await.2, again);
    assert_eq!((stored(), desk.pull().await), (Digest::of(&again), child));
    assert_eq!(upstream.asked("/blobs/"), blobs);
}
