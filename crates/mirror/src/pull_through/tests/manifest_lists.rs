//! Manifest lists of an upstream, for clients that accept lists and for others.

use axum::http::HeaderMap;
use http_body_util::BodyExt;
use puna_registry::Options;
use puna_store::{ModelRef, StoredChild};
use serde_json::Value;
use tokio::sync::mpsc;

use super::*;
use crate::types::manifest_list::tests::{inline, list_of, reference};
use crate::{Mirror, NoKeys};

const NAME: &str = "library/m";
const TAG: &str = "/v2/library/m/manifests/latest";

fn at(text: &[u8]) -> String {
    format!("/v2/{NAME}/manifests/{}", Digest::of(text))
}

/// A mirror whose upstream has manifest lists.
struct ListTestMirror {
    server: TestMirror,
    mirror: Mirror,
}

impl ListTestMirror {
    fn of(server: TestMirror) -> Self {
        let settings = crate::Settings { push: true, delete: true, ..crate::Settings::default() };
        let (through, usage_log) = (server.through.clone(), UsageLog::new().unwrap());
        let mirror = Mirror::with_pull_through(through, Box::new(NoKeys), &settings, usage_log);
        Self { server, mirror: mirror.unwrap() }
    }

    /// With file storage and with S3 storage.
    fn both(upstream: &Upstream) -> [Self; 2] {
        let folder = TestMirror::new(upstream, HOUR, Upstreams::default());
        [Self::of(folder), Self::of(TestMirror::in_bucket(upstream, HOUR))]
    }

    async fn get(&self, path: &str, accept: &str) -> (u16, HeaderMap, Bytes) {
        let request =
            Request::get(path).header(header::HOST, "mirror").header(header::ACCEPT, accept);
        let answer = self.mirror.answer(request.body(Body::empty()).unwrap()).await;
        let (head, body) = answer.into_parts();
        (head.status.as_u16(), head.headers, body.collect().await.unwrap().to_bytes())
    }

    /// Pulls the tag as a client that does not accept lists. Returns the manifest.
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
    /// Adds a model without a tag. Returns its manifest.
    fn child(&self, weights: &[u8]) -> Bytes {
        let manifest = self.model(NAME, weights);
        lock(&self.state.answers).remove(TAG);
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
async fn lists_are_stored_and_children_fetched_on_demand() {
    let upstream = Upstream::new().await;
    let (ggml, llamacpp) = (upstream.child(b"of ggml"), upstream.child(b"of llamacpp"));
    let unasked = upstream.child(b"of mlx");
    let children = [refer(&ggml, "ggml"), refer(&llamacpp, "llamacpp"), refer(&unasked, "mlx")];
    let list = upstream.list(&children);
    let kept = lock(&upstream.state.answers).clone();
    for mirror in ListTestMirror::both(&upstream) {
        *lock(&upstream.state.answers) = kept.clone();
        lock(&upstream.state.request_count).clear();
        assert_eq!(mirror.pull().await, llamacpp);
        mirror.server.wait_until_idle().await;
        let (status, headers, body) = mirror.get(TAG, media::MANIFEST_LIST).await;
        assert_eq!(
            (status, &body, headers[header::CONTENT_TYPE].as_bytes()),
            (200, &list, media::MANIFEST_LIST.as_bytes())
        );
        assert_eq!(
            upstream.request_count(&blob_path(NAME, b"of ggml")),
            0,
            "nobody has asked for it"
        );
        assert_eq!(mirror.get(&at(&ggml), "*/*").await.2, ggml);
        mirror.server.wait_until_idle().await;
        assert_eq!(mirror.server.through.fetch_stats().await.failures, 0);
        // The fetched manifests remain without the upstream and after garbage collection.
        lock(&upstream.state.answers).clear();
        mirror.server.through.collect_garbage().await.unwrap();
        assert_eq!(mirror.pull().await, llamacpp);
        for (path, status) in [
            (at(&ggml), 200),
            (blob_path(NAME, b"of ggml"), 200),
            (at(&unasked), 404),
            (blob_path(NAME, b"of mlx"), 404),
        ] {
            assert_eq!(mirror.get(&path, "*/*").await.0, status, "{path}");
        }
        assert_eq!(mirror.get(TAG, media::MANIFEST_LIST).await.2, list);
        let shown = mirror.server.through.tag_entries().await.unwrap();
        let sum = b"of ggml".len() + b"of llamacpp".len() + b"{}".len();
        assert_eq!(shown.iter().map(|shown| shown.size).collect::<Vec<_>>(), [sum as u64]);
    }
}

#[tokio::test]
async fn inline_children_are_fetched_with_their_blobs() {
    let upstream = Upstream::new().await;
    upstream.child(b"weights");
    let list = upstream.list(&[inline(b"weights", "llamacpp")]);
    let kept = lock(&upstream.state.answers).clone();
    for mirror in ListTestMirror::both(&upstream) {
        *lock(&upstream.state.answers) = kept.clone();
        let child = mirror.pull().await;
        mirror.server.wait_until_idle().await;
        lock(&upstream.state.answers).clear();
        mirror.server.through.collect_garbage().await.unwrap();
        assert_eq!(mirror.pull().await, child);
        assert_eq!(mirror.get(&at(&child), "*/*").await.2, child);
        assert_eq!(mirror.get(TAG, media::MANIFEST_LIST).await.2, list);
        assert_eq!(mirror.server.through.fetch_stats().await.failures, 0);
    }
}

#[tokio::test]
async fn children_with_wrong_content_are_rejected_and_cached() {
    let upstream = Upstream::new().await;
    let (good, other) = (upstream.child(b"good"), upstream.child(b"another"));
    upstream.put(at(&good), other);
    let list = upstream.list(&[refer(&good, "llamacpp")]);
    for mirror in ListTestMirror::both(&upstream) {
        let request_count = upstream.request_count("sha256:");
        for _ in 0..3 {
            let (status, _, message) = mirror.get(TAG, media::MANIFEST).await;
            let message = String::from_utf8_lossy(&message).into_owned();
            assert!(status == 502 && message.contains(&Digest::of(&good).to_string()), "{message}");
        }
        assert_eq!(upstream.request_count("sha256:"), request_count + 1);
        assert_eq!(mirror.get(TAG, media::MANIFEST_LIST).await.2, list);
    }
    upstream.put(at(&good), list_of(&[refer(&good, "ggml")]));
    let nested =
        upstream.list(&[refer(&Bytes::from(list_of(&[refer(&good, "ggml")])), "llamacpp")]);
    upstream.put(at(list_of(&[refer(&good, "ggml")]).as_bytes()), list_of(&[refer(&good, "ggml")]));
    for mirror in ListTestMirror::both(&upstream) {
        let (status, _, message) = mirror.get(TAG, media::MANIFEST).await;
        let message = String::from_utf8_lossy(&message).into_owned();
        assert!(status == 502 && message.contains("is a list itself"), "{message}");
        assert_eq!(mirror.get(TAG, media::MANIFEST_LIST).await.2, nested);
    }
}

#[tokio::test]
async fn a_tag_moves_between_a_model_and_a_list() {
    let upstream = Upstream::new().await;
    let invalid = Bytes::from(list_of(&[]));
    for mirror in ListTestMirror::both(&upstream) {
        upstream.put(TAG.into(), invalid.clone());
        let (status, _, message) = mirror.get(TAG, "*/*").await;
        assert!(
            status == 502 && String::from_utf8_lossy(&message).contains("no children"),
            "{message:?}"
        );
    }
    for mirror in ListTestMirror::both(&upstream) {
        let child = upstream.child(b"of a list");
        let model = upstream.model(NAME, b"a model");
        assert_eq!(mirror.pull().await, model);
        mirror.server.wait_until_idle().await;
        let list = upstream.list(&[refer(&child, "ggml")]);
        assert_eq!(mirror.get(TAG, media::MANIFEST_LIST).await.2, list);
        assert_eq!(mirror.pull().await, child);
        mirror.server.wait_until_idle().await;
        let moved = upstream.model(NAME, b"another model");
        assert_eq!(mirror.pull().await, moved);
        mirror.server.wait_until_idle().await;
        assert_eq!(mirror.get(TAG, media::MANIFEST_LIST).await.2, moved);
        // An invalid list leaves the stored manifest in place.
        upstream.put(TAG.into(), invalid.clone());
        assert_eq!(mirror.get(TAG, media::MANIFEST_LIST).await.2, moved);
    }
}

#[tokio::test]
async fn a_missing_default_child_is_named() {
    let upstream = Upstream::new().await;
    let list = upstream.list(&[refer(&Bytes::from_static(b"{}"), "llamacpp")]);
    for mirror in ListTestMirror::both(&upstream) {
        assert_eq!(mirror.get(TAG, media::MANIFEST_LIST).await.2, list);
        let (status, _, message) = mirror.get(TAG, media::MANIFEST).await;
        let message = String::from_utf8_lossy(&message).into_owned();
        assert!(status == 404 && message.contains("MANIFEST_UNKNOWN"), "{message}");
        assert!(message.contains("its child 1 for llamacpp (sha256:"), "{message}");
    }
}

/// Serves a mirror on 127.0.0.1. Returns its host.
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

/// A mirror with file storage that accepts pushes.
fn first_mirror(dir: &tempfile::TempDir) -> Mirror {
    let storage = FileStorage::new(Arc::new(Store::open(dir.path()).unwrap())).into();
    let settings = crate::Settings { push: true, ..crate::Settings::default() };
    Mirror::new(storage, Box::new(NoKeys), &settings, UsageLog::new().unwrap()).unwrap()
}

#[tokio::test]
async fn lists_pass_through_two_mirrors_unchanged() {
    let dirs = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let stores = [&dirs[1], &dirs[2]].map(|dir| Arc::new(Store::open(dir.path()).unwrap()));
    let upstream = Upstream { host: serve(first_mirror(&dirs[0])).await, ..Upstream::new().await };
    let client = Registry::new(Settings::default());
    let options = Options { insecure: true, all_runners: true, ..Options::default() };
    let lines = || mpsc::channel(1000).0;
    // A pushed model whose text has unusual spaces, which must be preserved.
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
    // Clients of the second mirror get the list from the first.
    let mirror = ListTestMirror::of(TestMirror::new(&upstream, HOUR, Upstreams::default()));
    let (status, headers, body) = mirror.get(TAG, media::MANIFEST_LIST).await;
    assert_eq!((status, &body[..]), (200, list.as_bytes()));
    assert_eq!(headers["docker-content-digest"], Digest::of(list.as_bytes()).to_string());
    assert_eq!(mirror.pull().await, children[0].0, "the child for clients without lists");
    mirror.server.wait_until_idle().await;
    // A complete runnable child makes the list a model of the second mirror's store.
    let of_mirror = Store::open(mirror.server.dir.path().join("models")).unwrap();
    let present = |store: &Store, name: &str| {
        let entry = store.get(&ModelRef::parse(name).unwrap().name).unwrap();
        assert_eq!(entry.digest, Digest::of(list.as_bytes()));
        let is_present = |stored: &&StoredChild| stored.manifest.is_some();
        entry.list.unwrap().children.iter().filter(is_present).count()
    };
    assert_eq!(present(&of_mirror, "m"), 1);
    let second = serve(mirror.mirror.clone()).await;
    let name = format!("{second}/{NAME}");
    client.pull(&stores[1], &ModelRef::parse(&name).unwrap(), &options, lines()).await.unwrap();
    assert_eq!(present(&stores[1], &name), 2);
    mirror.server.wait_until_idle().await;
    assert_eq!(present(&of_mirror, "m"), 2, "a further child is added to the same list");
    let (_, bytes) = stores[1].manifest_bytes(&ModelRef::parse(&name).unwrap().name).unwrap();
    assert_eq!(bytes, list.as_bytes());
}

#[tokio::test]
async fn a_list_keeps_the_model_until_a_child_replaces_it() {
    let upstream = Upstream::new().await;
    let model = upstream.model(NAME, b"a model");
    let mirror = ListTestMirror::of(TestMirror::new(&upstream, HOUR, Upstreams::default()));
    assert_eq!(mirror.pull().await, model);
    mirror.server.wait_until_idle().await;
    let store = Store::open(mirror.server.dir.path().join("models")).unwrap();
    let stored = || store.get(&ModelRef::parse("m").unwrap().name).unwrap().digest;
    let child = upstream.child(b"of a list");
    let list = upstream.list(&[refer(&child, "ggml")]);
    assert_eq!(mirror.get(TAG, media::MANIFEST_LIST).await.2, list);
    assert_eq!(stored(), Digest::of(&model));
    assert_eq!(mirror.pull().await, child);
    mirror.server.wait_until_idle().await;
    assert_eq!(stored(), Digest::of(&list));
    // A list of the stored model itself needs no download.
    upstream.put(at(&child), child.clone());
    let again = upstream.list(&[refer(&child, "ggml"), refer(&model, "mlx")]);
    let blobs = upstream.request_count("/blobs/");
    assert_eq!(mirror.get(TAG, media::MANIFEST_LIST).await.2, again);
    assert_eq!((stored(), mirror.pull().await), (Digest::of(&again), child));
    assert_eq!(upstream.request_count("/blobs/"), blobs);
}
