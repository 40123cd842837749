//! Manifest lists of an upstream, for clients that know them and for others.

use axum::http::HeaderMap;
use http_body_util::BodyExt;
use puna_registry::{Options, RegistryError};
use puna_store::ModelRef;
use serde_json::Value;

use super::*;
use crate::manifest_list::tests::{inline, list_of, reference};
use crate::{Mirror, NoKeys};

/// Asks the upstream for lists, too.
struct Lookup {
    registry: Registry,
    host: String,
}

impl Lookup {
    async fn get(&self, reference: &ModelRef, at: &str) -> Result<Bytes, RegistryError> {
        let name = &reference.name;
        let url = format!("http://{}/v2/{}/{}/manifests/{at}", self.host, name.namespace(), name.model());
        let client = self.registry.connections(&self.host)?;
        let answer = client.get(url).header(header::ACCEPT, media::MANIFEST_LIST).send().await.unwrap();
        match answer.status().is_success() {
            true => Ok(answer.bytes().await.unwrap()),
            false => Err(RegistryError::NotFound),
        }
    }
}

impl UpstreamLookup for Lookup {
    fn look_up_tag<'a>(
        &'a self,
        reference: &'a ModelRef,
        options: &'a Options,
    ) -> BoxFuture<'a, Result<UpstreamManifest, RegistryError>> {
        Box::pin(async {
            let bytes = self.get(reference, reference.name.tag()).await?;
            let value: Value = serde_json::from_slice(&bytes).unwrap_or_default();
            match value["mediaType"] == media::MANIFEST_LIST {
                true => Ok(UpstreamManifest::List(bytes)),
                false => Ok(UpstreamManifest::Model(Box::new(self.registry.look(reference, options).await?))),
            }
        })
    }

    fn fetch_manifest<'a>(
        &'a self,
        reference: &'a ModelRef,
        digest: Digest,
        _: &'a Options,
    ) -> BoxFuture<'a, Result<Bytes, RegistryError>> {
        Box::pin(async move { self.get(reference, &digest.to_string()).await })
    }
}

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
    fn of(mut bench: Bench, upstream: &Upstream) -> Self {
        let through = Arc::get_mut(&mut bench.through).unwrap();
        let inner = Arc::get_mut(&mut through.0).unwrap();
        let (registry, host) = (inner.registry.clone(), upstream.host.clone());
        inner.lookup = Arc::new(Lookup { registry, host });
        let settings = crate::Settings { push: true, delete: true, ..crate::Settings::default() };
        let library = bench.through.clone();
        let mirror = Mirror::new(library, Box::new(NoKeys), &settings, History::new().unwrap()).unwrap();
        Self { bench, mirror }
    }

    /// One over a folder, and one over a bucket.
    fn both(upstream: &Upstream) -> [Self; 2] {
        let folder = Bench::new(upstream, HOUR, Upstreams::default());
        [Self::of(folder, upstream), Self::of(Bench::in_bucket(upstream, HOUR), upstream)]
    }

    async fn get(&self, path: &str, accept: &str) -> (u16, HeaderMap, Bytes) {
        let request = Request::get(path).header(header::HOST, "mirror").header(header::ACCEPT, accept);
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
        // What has come stays, whoever is away and whatever is cleared away.
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
    let nested = upstream.list(&[refer(&Bytes::from(list_of(&[refer(&good, "ggml")])), "llamacpp")]);
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
        assert!(status == 502 && String::from_utf8_lossy(&said).contains("no children"), "{said:?}");
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
