//! Pushes to registries of different kinds.

use std::sync::atomic::{AtomicBool, Ordering};

use md5::{Digest as _, Md5};

use super::*;

/// A registry like the reference implementation: relative URLs, and checked offsets.
#[derive(Clone, Default)]
struct UploadRegistry {
    blobs: Arc<Mutex<HashMap<String, Vec<u8>>>>,
    uploads: Arc<Mutex<HashMap<String, Vec<u8>>>>,
    manifests: Arc<Mutex<HashMap<String, Bytes>>>,
    absolute: bool,
}

impl UploadRegistry {
    fn place(&self, seen: &SeenRequest, id: &str) -> String {
        let path = format!("/v2/me/m/blobs/uploads/{id}?state=x");
        if self.absolute { format!("http://{}{path}", seen.header("host")) } else { path }
    }

    fn accepted(&self, seen: &SeenRequest, id: &str, len: usize) -> Response {
        Response::builder()
            .status(if seen.method == "GET" { 204 } else { 202 })
            .header("Location", self.place(seen, id))
            .header("Range", format!("0-{}", len.saturating_sub(1)))
            .body(Body::empty())
            .unwrap()
    }

    fn answer(&self, seen: &SeenRequest) -> Response {
        let id = seen.path.rsplit('/').next().unwrap().to_owned();
        let mut uploads = self.uploads.lock().unwrap();
        match (seen.method.as_str(), seen.path.contains("/uploads/")) {
            ("HEAD", _) => {
                status(if self.blobs.lock().unwrap().contains_key(&id) { 200 } else { 404 }, "")
            }
            ("POST", true) => {
                let id = format!("u{}", seen.nth);
                uploads.insert(id.clone(), Vec::new());
                self.accepted(seen, &id, 0)
            }
            ("GET", true) => match uploads.get(&id) {
                Some(data) => self.accepted(seen, &id, data.len()),
                None => status(404, ""),
            },
            ("PATCH", true) => {
                let Some(data) = uploads.get_mut(&id) else { return status(404, "") };
                let first: usize =
                    seen.header("content-range").split('-').next().unwrap().parse().unwrap();
                if first != data.len() {
                    return status(416, "out of order");
                }
                data.extend(&seen.body);
                let len = data.len();
                self.accepted(seen, &id, len)
            }
            ("PUT", true) => {
                let data = uploads.remove(&id).unwrap_or_default();
                let digest = seen.query.split('&').find_map(|p| p.strip_prefix("digest=")).unwrap();
                let digest = digest.replace("%3A", ":");
                if Digest::of(&data).to_string() != digest {
                    return status(400, r#"{"errors":[{"code":"DIGEST_INVALID"}]}"#);
                }
                self.blobs.lock().unwrap().insert(digest, data);
                status(201, "")
            }
            ("PUT", false) => {
                self.manifests.lock().unwrap().insert(id, seen.body.clone());
                status(201, "")
            }
            _ => status(405, ""),
        }
    }
}

impl Bench {
    /// Stores a model under the name `me/m` at this registry.
    fn store_model(&self, model: &Model, host: &str) -> String {
        for blob in model.blobs.values() {
            self.store.add_blob(blob).unwrap();
        }
        let name = format!("{host}/me/m:v1");
        let parsed = ModelRef::parse(&name).unwrap().name;
        self.store.store_manifest(&parsed, &model.manifest, true, &mut || ()).unwrap();
        name
    }

    pub(crate) async fn push(&self, name: &str) -> (Result<(), RegistryError>, Vec<Progress>) {
        let (report, mut lines) = mpsc::channel(1000);
        let name = ModelRef::parse(name).unwrap();
        let options = Options { insecure: true, ..Options::default() };
        let done = self.registry.push(&self.store, &name, &options, report).await;
        let mut seen = Vec::new();
        while let Some(line) = lines.recv().await {
            seen.push(line);
        }
        (done, seen)
    }
}

#[tokio::test]
async fn a_push_sends_missing_blobs_and_the_unchanged_manifest() {
    for absolute in [true, false] {
        let model = Model::new(2 << 20);
        let registry_state = UploadRegistry { absolute, ..UploadRegistry::default() };
        let served = registry_state.clone();
        let server = Server::start(move |seen| served.answer(&seen)).await;
        let bench = Bench::new();
        let name = bench.store_model(&model, &server.host);
        let (done, lines) = bench.push(&name).await;
        done.unwrap();
        assert_eq!(registry_state.blobs.lock().unwrap().len(), 3);
        assert_eq!(
            registry_state.blobs.lock().unwrap()[&model.weights.to_string()],
            model.blobs[&model.weights.to_string()]
        );
        assert_eq!(registry_state.manifests.lock().unwrap()["v1"], model.manifest);
        let statuses: Vec<_> = lines.iter().map(|line| line.status.as_str()).collect();
        assert_eq!(statuses[0], "retrieving manifest");
        assert!(statuses.ends_with(&["pushing manifest", "success"]));
        let last = lines.iter().rfind(|line| line.digest == Some(model.weights)).unwrap();
        assert_eq!(last.status, format!("pushing {}", model.weights.short()));
        assert_eq!((last.total, last.completed), (2 << 20, 2 << 20));

        let before = server.seen().len();
        bench.push(&name).await.0.unwrap();
        let again: Vec<_> =
            server.seen()[before..].iter().map(|seen| seen.method.clone()).collect();
        assert_eq!(again, ["HEAD", "HEAD", "HEAD", "PUT"], "what is there is not sent again");
    }
}

#[tokio::test]
async fn push_requests_equal_those_of_ollama() {
    let model = Model::new(5000);
    let registry_state = UploadRegistry { absolute: true, ..UploadRegistry::default() };
    let server = Server::start(move |seen| registry_state.answer(&seen)).await;
    let bench = Bench::new();
    let name = bench.store_model(&model, &server.host);
    bench.push(&name).await.0.unwrap();
    let seen = server.seen();
    assert_eq!(seen[1].path, "/v2/me/m/blobs/uploads/");
    assert_eq!((seen[1].header("content-length"), seen[1].query.as_str()), ("0", ""));
    assert_eq!((seen[2].method.as_str(), seen[2].header("content-range")), ("PATCH", "0-4999"));
    assert_eq!(seen[2].header("content-length"), "5000");
    assert_eq!(
        (seen[2].header("content-type"), seen[2].header("x-redirect-uploads")),
        ("application/octet-stream", "1")
    );
    // The recorded form: MD5 of the concatenated MD5s, and their number.
    let sum: String =
        Md5::digest(Md5::digest(&seen[2].body)).iter().map(|b| format!("{b:02x}")).collect();
    let digest = model.weights.to_string().replace(':', "%3A");
    assert_eq!(seen[3].query, format!("state=x&digest={digest}&etag={sum}-1"));
    let manifest = seen.last().unwrap();
    assert_eq!(
        (manifest.method.as_str(), manifest.path.as_str()),
        ("PUT", "/v2/me/m/manifests/v1")
    );
    assert_eq!(manifest.header("content-type"), media::MANIFEST);
}

#[tokio::test]
async fn a_layer_of_another_model_is_mounted() {
    let blob = Bytes::from(noise(100, 9));
    let digest = Digest::of(&blob);
    let manifest = json!({"layers": [{"mediaType": media::MODEL, "digest": digest.to_string(), "size": 100, "from": "library/base:1b"}]});
    let model = Model {
        blobs: [(digest.to_string(), blob)].into(),
        manifest: manifest.to_string().into(),
        weights: digest,
    };
    let server = Server::start(|seen| match seen.method.as_str() {
        "HEAD" => status(404, ""),
        _ => status(201, ""),
    })
    .await;
    let bench = Bench::new();
    let name = bench.store_model(&model, &server.host);
    bench.push(&name).await.0.unwrap();
    let digest = digest.to_string().replace(':', "%3A");
    assert_eq!(server.seen()[1].query, format!("from=library%2Fbase&mount={digest}"));
    assert_eq!(server.seen().len(), 3);
}

#[tokio::test]
async fn a_failed_piece_resumes_where_the_registry_stopped() {
    let model = Model::new(300_000);
    let registry_state = UploadRegistry::default();
    let served = registry_state.clone();
    let server = Server::start(move |seen| {
        if seen.method == "PATCH"
            && seen.header("content-range").starts_with("0-")
            && seen.body.len() > 1000
        {
            // Accepts a part of the piece, then fails.
            let id = seen.path.rsplit('/').next().unwrap().to_owned();
            served.uploads.lock().unwrap().insert(id, seen.body[..100_000].to_vec());
            return status(502, "gone");
        }
        served.answer(&seen)
    })
    .await;
    let bench = Bench::new();
    let name = bench.store_model(&model, &server.host);
    bench.push(&name).await.0.unwrap();
    assert_eq!(
        registry_state.blobs.lock().unwrap()[&model.weights.to_string()],
        model.blobs[&model.weights.to_string()]
    );
    let ranges: Vec<_> =
        server.seen().iter().map(|seen| seen.header("content-range").to_owned()).collect();
    assert!(ranges.contains(&"100000-299999".to_owned()), "{ranges:?}");
}

#[tokio::test]
async fn an_external_storage_gets_the_bytes_but_no_credentials() {
    let model = Model::new(3000);
    let storage = Server::start(|_| status(200, "")).await;
    let target = storage.host.clone();
    let server = Server::start(move |seen| match seen.method.as_str() {
        _ if seen.path == "/token" => status(200, r#"{"token":"t"}"#),
        _ if seen.header("authorization") != "Bearer t" => {
            let text = format!(
                r#"Bearer realm="http://{}/token",service="s",scope="x""#,
                seen.header("host")
            );
            Response::builder()
                .status(401)
                .header("WWW-Authenticate", text)
                .body(Body::empty())
                .unwrap()
        }
        "HEAD" => status(404, ""),
        "POST" => Response::builder()
            .status(202)
            .header("Location", "/v2/me/m/blobs/uploads/1")
            .body(Body::empty())
            .unwrap(),
        "PATCH" => Response::builder()
            .status(307)
            .header("Location", format!("http://{target}/bucket/1?signature=s"))
            .header("Docker-Upload-Location", "/v2/me/m/blobs/uploads/2")
            .body(Body::empty())
            .unwrap(),
        _ => status(201, ""),
    })
    .await;
    let bench = Bench::new();
    let name = bench.store_model(&model, &server.host);
    bench.push(&name).await.0.unwrap();
    let put = &storage.seen()[0];
    assert_eq!((put.method.as_str(), put.path.as_str()), ("PUT", "/bucket/1"));
    assert_eq!(put.body, model.blobs[&model.weights.to_string()]);
    assert!(storage.seen().iter().all(|seen| seen.headers.get("authorization").is_none()));
    assert!(
        server.seen().iter().any(|seen| seen.method == "PUT" && seen.path.ends_with("/uploads/2"))
    );
}

#[tokio::test]
async fn errors_quote_the_refusal_of_the_registry() {
    let model = Model::new(3000);
    for (code, location, want) in [
        (403, "", "403 Forbidden: DENIED"),
        (202, "", "lacks the URL of the upload"),
        (202, "ftp://x/", "is not an HTTP URL"),
    ] {
        let server = Server::start(move |seen| match seen.method.as_str() {
            "HEAD" => status(404, ""),
            _ => {
                let answer = Response::builder().status(code);
                let answer =
                    if location.is_empty() { answer } else { answer.header("Location", location) };
                answer.body("DENIED".into()).unwrap()
            }
        })
        .await;
        let bench = Bench::new();
        let name = bench.store_model(&model, &server.host);
        let text = bench.push(&name).await.0.unwrap_err().to_string();
        assert!(text.contains(want), "{text}");
    }
}

#[tokio::test]
async fn a_refusal_without_a_text_is_explained() {
    let model = Model::new(3000);
    for (head, post, want) in [
        // The response to the second request gives the reason of the first refusal too.
        (
            (403, ""),
            (403, "DENIED: not your namespace"),
            "403 Forbidden: DENIED: not your namespace",
        ),
        ((403, ""), (403, ""), "403 Forbidden: no reason given: ask the registry's administrator"),
        ((404, ""), (413, " \n"), ": too large for the registry"),
        ((405, ""), (202, ""), "405 Method Not Allowed: no reason given"),
    ] {
        let server = Server::start(move |seen| match seen.method.as_str() {
            "HEAD" => status(head.0, head.1),
            _ => status(post.0, post.1),
        })
        .await;
        let bench = Bench::new();
        let name = bench.store_model(&model, &server.host);
        let text = bench.push(&name).await.0.unwrap_err().to_string();
        assert!(text.contains(want), "{text}");
    }
}

#[tokio::test]
async fn missing_and_incomplete_models_are_not_pushed() {
    let bench = Bench::new();
    let (done, lines) = bench.push("127.0.0.1:1/me/none").await;
    assert_eq!(done.unwrap_err().to_string(), "model '127.0.0.1:1/me/none:latest' not found");
    let statuses: Vec<_> = lines.iter().map(|line| line.status.as_str()).collect();
    assert_eq!(statuses, ["retrieving manifest", "couldn't retrieve manifest"]);
    let model = Model::new(3000);
    let name = bench.store_model(&model, "127.0.0.1:1");
    std::fs::remove_file(bench.store.blob_path(&model.weights)).unwrap();
    let text = bench.push(&name).await.0.unwrap_err().to_string();
    assert!(text.contains("is incomplete"), "{text}");
    let text = bench.push("cria").await.0.unwrap_err().to_string();
    assert!(text.contains("is built into this program"), "{text}");
}

#[tokio::test]
async fn an_upload_to_an_unresponsive_registry_is_given_up() {
    let model = Model::new(3 << 20);
    let server = Server::start_async(|seen| async move {
        match seen.method.as_str() {
            "HEAD" => status(404, ""),
            "POST" => Response::builder()
                .status(202)
                .header("Location", "/u")
                .body(Body::empty())
                .unwrap(),
            "PATCH" => std::future::pending().await,
            _ => status(404, ""),
        }
    })
    .await;
    let bench = Bench::with(|settings| settings.stall_timeout = Duration::from_millis(50));
    let name = bench.store_model(&model, &server.host);
    let text = bench.push(&name).await.0.unwrap_err().to_string();
    assert!(
        text.starts_with("max retries exceeded: Patch \"") && text.contains("no data for"),
        "{text}"
    );
}

/// Pushes until the registry has `half` bytes of the weights, then stops as a killed process does.
async fn push_until_stalled(
    bench: &Bench,
    name: &str,
    registry_state: &UploadRegistry,
    half: usize,
) {
    let arrived = async {
        while !registry_state.uploads.lock().unwrap().values().any(|data| data.len() == half) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::select! {
        (done, _) = bench.push(name) => panic!("it ended: {done:?}"),
        () = arrived => {}
    }
}

/// A registry that accepts `half` bytes of the first piece and then stalls, once.
async fn stalling_server(registry_state: &UploadRegistry, half: usize) -> Server {
    stalling_server_with(registry_state, half, |_| None).await
}

/// The same. Afterwards some requests fail with a status, or get no response if it is 0.
async fn stalling_server_with(
    registry_state: &UploadRegistry,
    half: usize,
    fails: impl Fn(&SeenRequest) -> Option<u16> + Send + Sync + 'static,
) -> Server {
    let (served, done) = (registry_state.clone(), Arc::new(AtomicBool::new(false)));
    Server::start_async(move |seen| {
        let (served, done) = (served.clone(), done.clone());
        let failure = fails(&seen).filter(|_| done.load(Ordering::Relaxed));
        async move {
            match failure {
                None => {}
                Some(0) => std::future::pending::<()>().await,
                Some(code) => return status(code, "broken"),
            }
            let id = seen.path.rsplit('/').next().unwrap().to_owned();
            if seen.method == "PATCH"
                && seen.body.len() > half
                && !done.swap(true, Ordering::Relaxed)
            {
                served.uploads.lock().unwrap().insert(id, seen.body[..half].to_vec());
                std::future::pending::<()>().await;
            }
            served.answer(&seen)
        }
    })
    .await
}

impl Bench {
    /// Records of uploads in the store.
    fn upload_records(&self) -> Vec<std::ffi::OsString> {
        let entries = std::fs::read_dir(self.root().join("puna-tmp")).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name());
        names.filter(|name| name.to_string_lossy().ends_with(".push")).collect()
    }
}

#[tokio::test]
async fn a_killed_push_resumes() {
    let (half, model, registry_state) = (100_000, Model::new(300_000), UploadRegistry::default());
    let server = stalling_server(&registry_state, half).await;
    let bench = Bench::with(|settings| settings.stall_timeout = Duration::from_secs(30));
    let name = bench.store_model(&model, &server.host);
    push_until_stalled(&bench, &name, &registry_state, half).await;
    let before = server.seen().len();

    // Another process knows only the contents of the store.
    let store = Arc::new(Store::open(bench.root()).unwrap());
    let again =
        Bench { dir: tempfile::tempdir().unwrap(), store, registry: bench.registry.clone() };
    let (done, lines) = again.push(&name).await;
    done.unwrap();
    let digest = model.weights.to_string();
    assert_eq!(registry_state.blobs.lock().unwrap()[&digest], model.blobs[&digest]);
    let seen = server.seen().split_off(before);
    let ranges: Vec<_> = seen
        .iter()
        .filter(|seen| seen.body.len() > 1000)
        .map(|seen| seen.header("content-range"))
        .collect();
    assert_eq!(ranges, ["100000-299999"], "what the registry had was sent again");
    let first = lines.iter().find(|line| line.digest == Some(model.weights)).unwrap();
    assert!(first.completed >= half as u64, "{first:?}");
    assert_eq!(again.upload_records().len(), 0, "finished uploads are forgotten");
}

#[tokio::test]
async fn an_expired_or_damaged_upload_starts_again() {
    for gone in [true, false] {
        let (half, model, registry_state) =
            (100_000, Model::new(300_000), UploadRegistry::default());
        let server = stalling_server(&registry_state, half).await;
        let bench = Bench::with(|settings| settings.stall_timeout = Duration::from_secs(30));
        let name = bench.store_model(&model, &server.host);
        push_until_stalled(&bench, &name, &registry_state, half).await;
        assert_eq!(bench.upload_records().len(), 1);
        {
            let mut uploads = registry_state.uploads.lock().unwrap();
            match gone {
                true => uploads.clear(),
                false => uploads.values_mut().for_each(|data| data.fill(0)),
            }
        }
        bench.push(&name).await.0.unwrap();
        let digest = model.weights.to_string();
        assert_eq!(
            registry_state.blobs.lock().unwrap()[&digest],
            model.blobs[&digest],
            "gone: {gone}"
        );
        assert_eq!(bench.upload_records().len(), 0);
    }
}

/// The pieces of the weights that were sent.
fn pieces(seen: &[SeenRequest]) -> Vec<String> {
    let sent = seen.iter().filter(|seen| seen.body.len() > 1000);
    sent.map(|seen| seen.header("content-range").to_owned()).collect()
}

#[tokio::test]
async fn an_upload_that_fails_repeatedly_starts_again() {
    // The registry rejects further bytes, or accepts all and stores no blob.
    for (method, in_vain) in [("PATCH", 2), ("PUT", 3)] {
        let (half, model, registry_state) =
            (100_000, Model::new(300_000), UploadRegistry::default());
        let first = Arc::<Mutex<String>>::default();
        let broken = first.clone();
        let server = stalling_server_with(&registry_state, half, move |seen| {
            let is_first = seen.path.ends_with(&format!("/uploads/{}", broken.lock().unwrap()));
            (seen.method == method && is_first).then_some(500)
        })
        .await;
        let bench = Bench::with(|settings| settings.stall_timeout = Duration::from_secs(30));
        let name = bench.store_model(&model, &server.host);
        push_until_stalled(&bench, &name, &registry_state, half).await;
        *first.lock().unwrap() =
            registry_state.uploads.lock().unwrap().keys().next().unwrap().clone();
        for _ in 0..in_vain {
            let error = bench.push(&name).await.0.unwrap_err();
            assert!(matches!(error, RegistryError::RetriesExceeded(_)), "{error}");
            assert_eq!(bench.upload_records().len(), 1);
        }
        let before = server.seen().len();
        bench.push(&name).await.0.unwrap();
        assert_eq!(pieces(&server.seen()[before..]), ["0-299999"], "{method}");
        let digest = model.weights.to_string();
        assert_eq!(registry_state.blobs.lock().unwrap()[&digest], model.blobs[&digest]);
        assert_eq!(bench.upload_records().len(), 0);
    }
}

#[tokio::test]
async fn a_temporary_error_does_not_restart_an_upload() {
    for failures in [2, 6] {
        let (half, model, registry_state) =
            (100_000, Model::new(300_000), UploadRegistry::default());
        let left = std::sync::atomic::AtomicU32::new(failures);
        let server = stalling_server_with(&registry_state, half, move |seen| {
            let is_asked = seen.method == "GET" && seen.path.contains("/uploads/");
            let next = |left: u32| left.checked_sub(1);
            (is_asked && left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).is_ok())
                .then_some(0)
        })
        .await;
        let bench = Bench::new();
        let name = bench.store_model(&model, &server.host);
        push_until_stalled(&bench, &name, &registry_state, half).await;
        let before = server.seen().len();
        if failures == 6 {
            let error = bench.push(&name).await.0.unwrap_err().to_string();
            assert!(
                error.starts_with("max retries exceeded: Get") && error.contains("no data for"),
                "{error}"
            );
            assert_eq!(bench.upload_records().len(), 1);
        }
        bench.push(&name).await.0.unwrap();
        assert_eq!(pieces(&server.seen()[before..]), ["100000-299999"]);
    }
}

#[tokio::test]
async fn an_upload_without_a_known_position_starts_again() {
    let (half, model, registry_state) = (100_000, Model::new(300_000), UploadRegistry::default());
    let is_asked = |seen: &SeenRequest| seen.method == "GET" && seen.path.contains("/uploads/");
    let server =
        stalling_server_with(&registry_state, half, move |seen| is_asked(seen).then_some(503))
            .await;
    let bench = Bench::with(|settings| settings.stall_timeout = Duration::from_secs(30));
    let name = bench.store_model(&model, &server.host);
    push_until_stalled(&bench, &name, &registry_state, half).await;
    let before = server.seen().len();
    bench.push(&name).await.0.unwrap();
    assert_eq!(pieces(&server.seen()[before..]), ["0-299999"]);
}

#[tokio::test]
async fn a_blob_is_not_sent_again_when_only_the_last_answer_is_lost() {
    // The registry stores the blob before the next request, or a while later.
    for looks in [0, 3] {
        let (model, registry_state) = (Model::new(300_000), UploadRegistry::default());
        let (served, weights) = (registry_state.clone(), model.weights.to_string());
        let late = Mutex::new((looks, None));
        let server = Server::start(move |seen| {
            let id = seen.path.rsplit('/').next().unwrap().to_owned();
            let is_there = served.uploads.lock().unwrap().contains_key(&id);
            match (seen.method.as_str(), seen.path.contains("/uploads/")) {
                ("PUT", true) if !is_there => {
                    return status(404, r#"{"errors":[{"code":"BLOB_UPLOAD_UNKNOWN"}]}"#);
                }
                ("PUT", true) if seen.query.contains(&weights[7..]) => {
                    late.lock().unwrap().1 = served.uploads.lock().unwrap().remove(&id);
                    return status(502, "");
                }
                ("HEAD", _) if id == weights => {
                    let mut late = late.lock().unwrap();
                    match late.0 {
                        0 => served
                            .blobs
                            .lock()
                            .unwrap()
                            .extend(late.1.take().map(|data| (id, data))),
                        _ if late.1.is_some() => late.0 -= 1,
                        _ => {}
                    }
                }
                _ => {}
            }
            served.answer(&seen)
        })
        .await;
        let bench = Bench::new();
        let name = bench.store_model(&model, &server.host);
        bench.push(&name).await.0.unwrap();
        assert_eq!(pieces(&server.seen()), ["0-299999"]);
        let digest = model.weights.to_string();
        assert_eq!(registry_state.blobs.lock().unwrap()[&digest], model.blobs[&digest]);
    }
}

#[tokio::test]
async fn an_upload_is_resumed_only_at_its_registry() {
    let (half, model, registry_state) = (100_000, Model::new(300_000), UploadRegistry::default());
    let server = stalling_server(&registry_state, half).await;
    let bench = Bench::with(|settings| settings.stall_timeout = Duration::from_secs(30));
    let name = bench.store_model(&model, &server.host);
    push_until_stalled(&bench, &name, &registry_state, half).await;
    // The record contains a URL of another host.
    let stranger = Server::start(|_| status(204, "")).await;
    let record = bench.root().join("puna-tmp").join(&bench.upload_records()[0]);
    std::fs::write(record, format!(r#"{{"url":"http://{}/x","piece":1000000}}"#, stranger.host))
        .unwrap();
    bench.push(&name).await.0.unwrap();
    assert_eq!(stranger.seen().len(), 0);
}

#[tokio::test]
async fn a_registry_that_does_not_answer_is_named_with_the_reason_of_the_retry() {
    // The server accepts connections and never answers.
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let host = silent.local_addr().unwrap().to_string();
    let bench = Bench::with(|settings| {
        settings.stall_timeout = Duration::from_millis(150);
        settings.waiting_notice_delay = Duration::from_millis(40);
        settings.retry_delay = Duration::from_millis(30);
    });
    let name = bench.store_model(&Model::new(3000), &host);
    let (done, lines) = bench.push(&name).await;
    assert!(matches!(done, Err(RegistryError::RetriesExceeded(_))), "{done:?}");
    let waits: Vec<_> =
        lines.iter().filter_map(|line| line.status.strip_prefix("waiting for ")).collect();
    assert_eq!(waits[0], host);
    assert!(
        waits[1].contains("no data for") && waits[1].ends_with("(attempt 2 of 6)"),
        "{waits:?}"
    );
    assert_eq!(waits.len(), 6, "each is said once: {waits:?}");
}
