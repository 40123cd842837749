//! Tests against registries on 127.0.0.1, correct and hostile ones.

mod auth;
mod download_reader;
mod hostile;
mod hub;
mod lists;
mod mirrors;
mod outgoing;
mod proxies;
mod pull;
mod push;
mod push_lists;
mod resume;

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use bytes::Bytes;
use puna_store::{Digest, ModelRef, Store, media};
use serde_json::json;
use tokio::sync::mpsc;

use crate::{Options, Progress, Registry, RegistryError, Settings};
#[cfg(target_os = "linux")]
pub(crate) use resume::SleepingProcess;

/// Request that a registry received.
#[derive(Debug, Clone, Default)]
pub(crate) struct SeenRequest {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) query: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    /// Number of this request, from 0.
    pub(crate) nth: usize,
}

impl SeenRequest {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |v| v.to_str().unwrap())
    }

    /// First and last byte of the requested range.
    pub(crate) fn range(&self) -> Option<(u64, u64)> {
        let (first, last) = self.header("range").strip_prefix("bytes=")?.split_once('-')?;
        Some((first.parse().ok()?, last.parse().ok()?))
    }

    pub(crate) fn is_blob(&self) -> bool {
        self.path.contains("/blobs/")
    }
}

/// Server that answers by a function and records its requests.
pub(crate) struct Server {
    pub(crate) host: String,
    pub(crate) seen: Arc<Mutex<Vec<SeenRequest>>>,
}

impl Server {
    /// A correct registry with a model.
    pub(crate) async fn of(model: &Model) -> Self {
        let served = model.clone();
        Self::start(move |seen| served.answer(&seen)).await
    }

    pub(crate) async fn start(
        answer: impl Fn(SeenRequest) -> Response + Send + Sync + 'static,
    ) -> Self {
        Self::start_async(move |seen| std::future::ready(answer(seen))).await
    }

    pub(crate) async fn start_async<F>(
        answer: impl Fn(SeenRequest) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Response> + Send + 'static,
    {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let host = listener.local_addr().unwrap().to_string();
        let seen = Arc::<Mutex<Vec<SeenRequest>>>::default();
        let (noted, answer) = (seen.clone(), Arc::new(answer));
        let router = axum::Router::new().fallback(move |request: Request| {
            let (noted, answer) = (noted.clone(), answer.clone());
            async move {
                let (parts, body) = request.into_parts();
                let body = axum::body::to_bytes(body, usize::MAX).await.unwrap_or_default();
                let mut seen = SeenRequest {
                    method: parts.method.to_string(),
                    path: parts.uri.path().to_owned(),
                    query: parts.uri.query().unwrap_or_default().to_owned(),
                    headers: parts.headers,
                    body,
                    nth: 0,
                };
                {
                    let mut noted = noted.lock().unwrap();
                    seen.nth = noted.len();
                    noted.push(seen.clone());
                }
                answer(seen).await
            }
        });
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { host, seen }
    }

    pub(crate) fn seen(&self) -> Vec<SeenRequest> {
        self.seen.lock().unwrap().clone()
    }

    pub(crate) fn blob_requests(&self) -> Vec<SeenRequest> {
        self.seen().into_iter().filter(SeenRequest::is_blob).collect()
    }

    /// Name of the model `test/m` at this registry.
    pub(crate) fn model(&self) -> String {
        format!("{}/test/m", self.host)
    }
}

pub(crate) fn status(code: u16, body: impl Into<Body>) -> Response {
    Response::builder().status(code).body(body.into()).unwrap()
}

/// Model at a registry.
#[derive(Clone)]
pub(crate) struct Model {
    pub(crate) blobs: HashMap<String, Bytes>,
    pub(crate) manifest: Bytes,
    pub(crate) weights: Digest,
}

impl Model {
    /// A model with `size` bytes of weights, a template and a config.
    pub(crate) fn new(size: usize) -> Self {
        let weights = noise(size, 1);
        let digest = Digest::of(&weights);
        Self::of(&[
            (media::MODEL, Bytes::from(weights)),
            (media::TEMPLATE, Bytes::from_static(b"{{ .Prompt }}")),
            (media::CONFIG, Bytes::from_static(br#"{"model_format":"gguf"}"#)),
        ])
        .with_weights(digest)
    }

    fn with_weights(self, weights: Digest) -> Self {
        Self { weights, ..self }
    }

    /// A model with the given layers; the last one is the config.
    pub(crate) fn of(layers: &[(&str, Bytes)]) -> Self {
        let layer = |(kind, bytes): &(&str, Bytes)| json!({"mediaType": kind, "digest": Digest::of(bytes).to_string(), "size": bytes.len()});
        let mut all: Vec<_> = layers.iter().map(layer).collect();
        let config = all.pop();
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": media::MANIFEST,
            "config": config,
            "layers": all,
            "unknown": ["is", "kept"],
        });
        Self {
            blobs: layers.iter().map(|(_, b)| (Digest::of(b).to_string(), b.clone())).collect(),
            manifest: manifest.to_string().into(),
            weights: Digest::of(&layers[0].1),
        }
    }

    /// The response of a registry that follows the OCI specification.
    pub(crate) fn answer(&self, seen: &SeenRequest) -> Response {
        if seen.path.contains("/manifests/") {
            return Response::builder()
                .header("Content-Type", media::MANIFEST)
                .header("Docker-Content-Digest", Digest::of(&self.manifest).to_string())
                .body(self.manifest.clone().into())
                .unwrap();
        }
        let name = seen.path.rsplit('/').next().unwrap_or_default();
        match self.blobs.get(name) {
            Some(blob) => ranged(blob, seen),
            None => status(404, r#"{"errors":[{"code":"BLOB_UNKNOWN"}]}"#),
        }
    }
}

/// The response to a range request.
pub(crate) fn ranged(blob: &Bytes, seen: &SeenRequest) -> Response {
    let Some((first, last)) = seen.range() else { return status(200, blob.clone()) };
    let last = last.min(blob.len() as u64 - 1);
    let part = blob.slice(first as usize..=last as usize);
    Response::builder()
        .status(StatusCode::PARTIAL_CONTENT)
        .header("Content-Range", format!("bytes {first}-{last}/{}", blob.len()))
        .body(part.into())
        .unwrap()
}

/// Pseudo-random bytes.
pub(crate) fn noise(size: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut out = Vec::with_capacity(size + 8);
    while out.len() < size {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        out.extend(state.to_le_bytes());
    }
    out.truncate(size);
    out
}

/// A body that arrives in pieces, with pauses. `None` breaks the connection.
pub(crate) fn slowly(pieces: Vec<(Duration, Option<Bytes>)>) -> Body {
    let pieces = futures_util::stream::unfold(pieces.into_iter(), |mut pieces| async {
        let (pause, piece) = pieces.next()?;
        tokio::time::sleep(pause).await;
        Some((piece.ok_or(std::io::Error::other("broken off")), pieces))
    });
    Body::from_stream(pieces)
}

/// A small GGUF file.
pub(crate) fn gguf(seed: u32) -> Bytes {
    let mut writer = puna_gguf::Writer::new();
    writer
        .set("general.architecture", "llama")
        .set("general.file_type", 0u32)
        .set("test.seed", seed);
    writer.set("llama.context_length", 64u32).set("llama.embedding_length", 2u32);
    writer.tensor("output_norm.weight", puna_quant::TensorType::F32, &[2]).unwrap();
    writer.to_vec([&[0u8; 8][..]]).unwrap().into()
}

/// A store in a temporary folder, and a client with short timeouts.
pub(crate) struct Bench {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) store: Arc<Store>,
    pub(crate) registry: Registry,
}

impl Bench {
    pub(crate) fn new() -> Self {
        Self::with(|_| {})
    }

    pub(crate) fn with(change: impl FnOnce(&mut Settings)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("models");
        Self::at(dir, &root, change)
    }

    /// The same store with another client, as in another process.
    pub(crate) fn with_another_client(&self) -> Self {
        Self::at(tempfile::tempdir().unwrap(), self.root(), |_| {})
    }

    fn at(dir: tempfile::TempDir, root: &Path, change: impl FnOnce(&mut Settings)) -> Self {
        let store = Arc::new(Store::open(root).unwrap());
        let mut settings = Settings {
            user_agent: "ollama/0.0.0 puna-test".into(),
            key_file: Some(dir.path().join("id_ed25519")),
            streams: 4,
            stall_timeout: Duration::from_millis(400),
            retry_delay: Duration::from_millis(5),
            checkpoint_interval: Duration::from_millis(20),
            progress_interval: Duration::from_millis(2),
            min_range_bytes: 1 << 20,
            ..Settings::default()
        };
        change(&mut settings);
        Self { dir, store, registry: Registry::new(settings) }
    }

    pub(crate) fn root(&self) -> &Path {
        self.store.root()
    }

    /// Pulls a model. Returns the result and the progress reports.
    pub(crate) async fn pull(&self, name: &str) -> (Result<(), RegistryError>, Vec<Progress>) {
        self.pull_with(name, Options::default()).await
    }

    /// Pulls a model with options. Returns the result and the progress reports.
    pub(crate) async fn pull_with(
        &self,
        name: &str,
        options: Options,
    ) -> (Result<(), RegistryError>, Vec<Progress>) {
        let (report, mut lines) = mpsc::channel(1000);
        let name = ModelRef::parse(name).unwrap();
        let options = Options { insecure: true, ..options };
        let done = self.registry.pull(&self.store, &name, &options, report).await;
        let mut seen = Vec::new();
        while let Some(line) = lines.recv().await {
            seen.push(line);
        }
        (done, seen)
    }

    pub(crate) async fn pull_ok(&self, name: &str) -> Vec<Progress> {
        let (done, lines) = self.pull(name).await;
        done.unwrap();
        lines
    }

    pub(crate) async fn pull_err(&self, name: &str) -> String {
        self.pull(name).await.0.unwrap_err().to_string()
    }

    /// Checks that the store has the complete model, and no other files.
    pub(crate) fn assert_has(&self, model: &Model, name: &str) {
        let entry = self.store.get(&ModelRef::parse(name).unwrap().name).unwrap();
        assert_eq!(
            entry.digest,
            Digest::of(&model.manifest),
            "the manifest is stored byte for byte"
        );
        for layer in entry.manifest.blobs() {
            self.store.verify_blob(&layer.digest).unwrap();
        }
        assert!(
            self.store.pulls().unwrap().iter().all(|pull| pull.name != entry.name),
            "it is noted no more"
        );
        self.assert_files(model.blobs.len());
    }

    /// Checks the number of blobs, and that there are no temporary files.
    pub(crate) fn assert_files(&self, blobs: usize) {
        let names = |dir: &str| -> Vec<String> {
            let entries = std::fs::read_dir(self.root().join(dir)).into_iter().flatten();
            entries
                .map(|e| e.unwrap().file_name().into_string().unwrap())
                .filter(|n| !["begun", "lock", "pulls", "removals"].contains(&n.as_str()))
                .collect()
        };
        assert_eq!(names("blobs").len(), blobs, "{:?}", names("blobs"));
        assert_eq!(names("puna-tmp"), Vec::<String>::new());
    }

    /// File names of interrupted downloads.
    pub(crate) fn partials(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.root().join("blobs")).into_iter().flatten();
        entries
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .filter(|n| n.contains("-partial"))
            .collect()
    }
}
