//! Successful pulls from registries of different kinds.

use std::collections::HashSet;

use futures_util::FutureExt;
use tokio::sync::{Notify, watch};

use super::*;
use crate::FileUrl;

#[tokio::test]
async fn a_pull_reports_like_ollama_and_stores_the_manifest_unchanged() {
    let model = Model::new(5 << 20);
    let server = Server::of(&model).await;
    let bench = Bench::new();
    let lines = bench.pull_ok(&server.model()).await;
    bench.assert_has(&model, &server.model());

    let mut statuses: Vec<&str> = lines.iter().map(|line| line.status.as_str()).collect();
    statuses.dedup();
    let pulling: Vec<String> = ["pulling manifest".to_owned()]
        .into_iter()
        .chain(bench.layers(&server).map(|digest| format!("pulling {}", digest.short())))
        .collect();
    assert_eq!(statuses[..4], pulling);
    assert_eq!(statuses[4..], ["verifying sha256 digest", "writing manifest", "success"]);
    let of_weights: Vec<_> =
        lines.iter().filter(|line| line.digest == Some(model.weights)).collect();
    assert!(of_weights.iter().all(|line| line.total == 5 << 20));
    assert!(of_weights.is_sorted_by_key(|line| line.completed), "progress never goes back");
    assert_eq!(of_weights.last().unwrap().completed, 5 << 20);

    let manifest = &server.seen()[0];
    assert_eq!(manifest.path, "/v2/test/m/manifests/latest");
    assert!(manifest.header("accept").starts_with(&format!(
        "{}, {}",
        media::MANIFEST_LIST,
        media::MANIFEST
    )));
    assert!(manifest.header("user-agent").starts_with("ollama/"));
    let ranges: Vec<_> = server.blob_requests().iter().map(|seen| seen.range().unwrap()).collect();
    assert!(
        ranges.contains(&(0, (1 << 20) - 1)) && ranges.contains(&(4 << 20, (5 << 20) - 1)),
        "{ranges:?}"
    );
}

/// Admits models up to a size in bytes, and records the sizes of all models.
#[derive(Debug, Default)]
struct SizeLimit(u64, std::sync::Mutex<Vec<u64>>);

impl puna_store::ModelAdmission for SizeLimit {
    fn admit<'a>(&'a self, model: &'a puna_store::NewModel) -> puna_store::AdmissionFuture<'a> {
        let bytes = model.blobs.iter().map(|(_, size)| size).sum();
        self.1.lock().unwrap().push(bytes);
        let refused = || puna_store::StoreError::NotAdmitted("too large".into());
        let admitted: Result<puna_store::AdmissionGuard, _> =
            if bytes > self.0 { Err(refused()) } else { Ok(Box::new(())) };
        Box::pin(std::future::ready(admitted))
    }
}

#[tokio::test]
async fn a_model_that_is_not_admitted_is_not_fetched() {
    let model = Model::new(3000);
    let server = Server::of(&model).await;
    let bench = Bench::new();
    for limit in [2999, 1 << 20] {
        let admission = Arc::new(SizeLimit(limit, std::sync::Mutex::default()));
        let options = Options { admission: Some(admission.clone()), ..Options::default() };
        let (pulled, _) = bench.pull_with(&server.model(), options).await;
        assert!(admission.1.lock().unwrap()[..] >= [3000][..], "the weights and more");
        assert_eq!(pulled.is_ok(), limit > 3000, "{pulled:?}");
        assert_eq!(server.blob_requests().is_empty(), pulled.is_err());
        assert_eq!(bench.store.pulls().unwrap(), [], "no record stays");
    }
}

impl Bench {
    fn layers(&self, server: &Server) -> impl Iterator<Item = Digest> + use<> {
        let entry = self.store.get(&ModelRef::parse(&server.model()).unwrap().name).unwrap();
        entry.manifest.blobs().map(|layer| layer.digest).collect::<Vec<_>>().into_iter()
    }
}

#[tokio::test]
async fn a_busy_registry_is_named_while_requests_are_retried() {
    let model = Model::new(3000);
    let served = model.clone();
    let server = Server::start(move |seen| match seen.nth {
        0 | 1 => status(503, "too much to do"),
        _ => served.answer(&seen),
    })
    .await;
    let bench = Bench::with(|settings| {
        settings.waiting_notice_delay = Duration::from_millis(10);
        settings.retry_delay = Duration::from_millis(60);
    });
    let lines = bench.pull_ok(&server.model()).await;
    let waits: Vec<_> =
        lines.iter().filter_map(|line| line.status.strip_prefix("waiting for ")).collect();
    let why = "503 Service Unavailable: too much to do";
    let said = [2, 3].map(|attempt| format!("{}: {why} (attempt {attempt} of 3)", server.host));
    // The reason may not have been known in the first notice.
    assert!(waits.ends_with(&said.each_ref().map(String::as_str)), "{waits:?}");
    assert_eq!(lines[0].status, "pulling manifest");
}

#[tokio::test]
async fn stored_blobs_are_not_fetched_again() {
    let model = Model::new(3 << 20);
    let server = Server::of(&model).await;
    let bench = Bench::new();
    bench.pull_ok(&server.model()).await;
    let before = server.blob_requests().len();
    let lines = bench.pull_ok(&server.model()).await;
    assert_eq!(server.blob_requests().len(), before);
    let of_weights: Vec<_> =
        lines.iter().filter(|line| line.digest == Some(model.weights)).collect();
    assert_eq!(of_weights.len(), 1, "one line, complete");
    assert_eq!((of_weights[0].total, of_weights[0].completed), (3 << 20, 3 << 20));
    // A truncated file does not count as a blob.
    std::fs::write(bench.store.blob_path(&model.weights), b"cut").unwrap();
    bench.pull_ok(&server.model()).await;
    bench.assert_has(&model, &server.model());
}

#[tokio::test]
async fn a_new_version_removes_blobs_that_only_the_old_one_used() {
    let old = Model::of(&[(media::MODEL, noise(9000, 1).into()), (media::CONFIG, "{}".into())]);
    let new = Model::of(&[(media::MODEL, noise(9000, 2).into()), (media::CONFIG, "{}".into())]);
    let current = Arc::new(Mutex::new(old));
    let served = current.clone();
    let server = Server::start(move |seen| served.lock().unwrap().answer(&seen)).await;
    let bench = Bench::new();
    let lines = bench.pull_ok(&server.model()).await;
    assert!(lines.iter().all(|line| line.status != "removing unused layers"));
    *current.lock().unwrap() = new.clone();
    let lines = bench.pull_ok(&server.model()).await;
    let statuses: Vec<&str> = lines.iter().map(|line| line.status.as_str()).collect();
    assert!(
        statuses.ends_with(&["writing manifest", "removing unused layers", "success"]),
        "{statuses:?}"
    );
    bench.assert_has(&new, &server.model());
}

#[tokio::test]
async fn a_location_in_a_successful_response_is_followed() {
    let model = Model::new(3 << 20);
    let served = model.clone();
    let server = Server::start(move |seen| {
        if seen.is_blob() && !seen.query.contains("signed") {
            return Response::builder()
                .header("Location", format!("{}?signed=1", seen.path))
                .body("x".into())
                .unwrap();
        }
        served.answer(&seen)
    })
    .await;
    let bench = Bench::new();
    bench.pull_ok(&server.model()).await;
    bench.assert_has(&model, &server.model());
}

#[tokio::test]
async fn every_kind_of_redirect_is_followed_and_its_target_is_remembered() {
    for code in [301, 302, 303, 307, 308] {
        let model = Model::new(4 << 20);
        let storage = Server::of(&model).await;
        let (served, target) = (model.clone(), storage.host.replace("127.0.0.1", "localhost"));
        let server = Server::start(move |seen| {
            if !seen.is_blob() {
                return served.answer(&seen);
            }
            let place = format!("http://{target}{}?signature=secret", seen.path);
            Response::builder().status(code).header("Location", place).body(Body::empty()).unwrap()
        })
        .await;
        let bench = Bench::with(|settings| settings.streams = 1);
        bench.pull_ok(&server.model()).await;
        bench.assert_has(&model, &server.model());
        assert_eq!(server.blob_requests().len(), 3, "one a blob");
        assert!(storage.seen().iter().all(|seen| seen.query == "signature=secret"));
    }
}

#[tokio::test]
async fn an_expired_url_is_requested_again() {
    let model = Model::new(4 << 20);
    let served = model.clone();
    let server = Server::start(move |seen| {
        if !seen.is_blob() {
            return served.answer(&seen);
        }
        match seen.query.strip_prefix("at=").map(|at| at.parse::<usize>().unwrap()) {
            // The URL is valid for two requests.
            Some(at) if seen.nth > at + 2 => {
                status(403, "<Error><Code>AccessDenied</Code></Error>")
            }
            Some(_) => served.answer(&seen),
            None => {
                let place = format!("{}?at={}", seen.path, seen.nth);
                Response::builder()
                    .status(307)
                    .header("Location", place)
                    .body(Body::empty())
                    .unwrap()
            }
        }
    })
    .await;
    let bench = Bench::with(|settings| settings.streams = 1);
    bench.pull_ok(&server.model()).await;
    bench.assert_has(&model, &server.model());
}

#[tokio::test]
async fn a_server_without_range_requests_works() {
    let model = Model::new(5 << 20);
    let served = model.clone();
    let server = Server::start(move |mut seen| {
        seen.headers.remove("range");
        // The first response breaks in the middle; the second attempt restarts.
        match served.blobs.get(seen.path.rsplit('/').next().unwrap()) {
            Some(blob) if blob.len() > 1000 && seen.nth == 1 => {
                let piece = blob.slice(..3_000_000);
                Response::new(slowly(vec![(Duration::ZERO, Some(piece)), (Duration::ZERO, None)]))
            }
            _ => served.answer(&seen),
        }
    })
    .await;
    let bench = Bench::new();
    bench.pull_ok(&server.model()).await;
    bench.assert_has(&model, &server.model());
    assert_eq!(server.blob_requests().len(), 4);
}

#[tokio::test]
async fn several_pulls_share_a_download_and_the_first_may_be_cancelled() {
    let model = Model::new(4 << 20);
    let served = model.clone();
    let server = Server::start_async(move |seen| {
        let answer = served.answer(&seen);
        async move {
            if seen.is_blob() {
                tokio::time::sleep(Duration::from_millis(30)).await;
            }
            answer
        }
    })
    .await;
    let bench = Bench::new();
    let name = server.model();
    let leaving = tokio::time::timeout(Duration::from_millis(45), bench.pull(&name));
    let (left, ..) = tokio::join!(leaving, bench.pull_ok(&name), bench.pull_ok(&name));
    assert!(left.is_err(), "it was cancelled");
    bench.assert_has(&model, &name);
    let mut ranges: Vec<_> = server
        .blob_requests()
        .iter()
        .filter(|seen| seen.path.ends_with(&model.weights.to_string()))
        .map(|seen| seen.range().unwrap())
        .collect();
    let all = ranges.len();
    ranges.sort();
    ranges.dedup();
    assert_eq!(ranges.len(), all, "no part is fetched twice");
}

#[tokio::test]
async fn a_pull_takes_over_a_failed_download_of_another_pull() {
    let model = Model::new(3 << 20);
    let served = model.clone();
    // The first registry's blobs fail after the other pull has joined.
    let (requested, (open, gate)) = (Arc::new(Notify::new()), watch::channel(false));
    let is_asked = requested.clone();
    let bad = Server::start_async(move |seen| {
        let (served, is_asked, mut gate) = (served.clone(), is_asked.clone(), gate.clone());
        async move {
            if !seen.is_blob() {
                return served.answer(&seen);
            }
            is_asked.notify_one();
            let _ = gate.wait_for(|is_open| *is_open).await;
            status(404, "")
        }
    })
    .await;
    let good = Server::of(&model).await;
    let bench = Bench::new();
    let (bad, good_name) = (bad.model(), good.model());
    let late = async {
        requested.notified().await;
        let release = async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            open.send(true).unwrap();
        };
        tokio::join!(bench.pull_ok(&good_name), release)
    };
    let (failed, _) = tokio::join!(bench.pull(&bad), late);
    assert!(failed.0.unwrap_err().to_string().starts_with("404 Not Found"));
    bench.assert_has(&model, &good_name);
}

#[tokio::test]
async fn names_keep_the_case_in_which_they_are_stored() {
    let model = Model::new(1000);
    let server = Server::of(&model).await;
    let bench = Bench::new();
    bench.pull_ok(&format!("{}/Test/M", server.host)).await;
    bench.pull_ok(&server.model()).await;
    assert_eq!(server.seen().last().unwrap().path, "/v2/Test/M/manifests/latest");
    assert_eq!(bench.store.list().unwrap().iter().filter(|entry| !entry.is_embedded()).count(), 1);
}

#[tokio::test]
async fn empty_and_equal_blobs_are_pulled() {
    let same = Bytes::from_static(b"{}");
    let model = Model::of(&[
        (media::MODEL, noise(100, 3).into()),
        (media::SYSTEM, Bytes::new()),
        (media::PARAMS, same.clone()),
        (media::CONFIG, same),
    ]);
    let server = Server::of(&model).await;
    let bench = Bench::new();
    bench.pull_ok(&server.model()).await;
    bench.assert_has(&model, &server.model());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_ignores_progress_does_not_block_the_store() {
    let [old, new] = [1, 2]
        .map(|n| Model::of(&[(media::MODEL, noise(9000, n).into()), (media::CONFIG, "{}".into())]));
    let current = Arc::new(Mutex::new(old));
    let served = current.clone();
    let server = Server::start(move |seen| served.lock().unwrap().answer(&seen)).await;
    let bench = Bench::new();
    bench.pull_ok(&server.model()).await;
    *current.lock().unwrap() = new.clone();
    let (report, mut lines) = mpsc::channel(1);
    let (registry, store, name) =
        (bench.registry.clone(), bench.store.clone(), ModelRef::parse(&server.model()).unwrap());
    let pulled = name.clone();
    let pull = tokio::spawn(async move {
        let options = Options { insecure: true, ..Options::default() };
        registry.pull(&store, &pulled, &options, report).await
    });
    while lines.recv().await.unwrap().status != "verifying sha256 digest" {}
    // The next report fills the channel, so there is no room for the report before the removal.
    let is_new = || bench.store.get(&name.name).unwrap().digest == Digest::of(&new.manifest);
    while !is_new() {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let store = bench.store.clone();
    let other = tokio::task::spawn_blocking(move || store.discard_blobs(&[Digest::of(b"other")]));
    tokio::time::timeout(Duration::from_secs(20), other)
        .await
        .expect("the store is free")
        .unwrap()
        .unwrap();
    let mut rest = Vec::new();
    while let Some(line) = lines.recv().await {
        rest.push(line.status);
    }
    assert_eq!(rest, ["writing manifest", "removing unused layers", "success"]);
    pull.await.unwrap().unwrap();
    bench.assert_has(&new, &server.model());
}

#[test]
fn asynchronous_tasks_do_not_wait_for_the_disk() {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().max_blocking_threads(1).build().unwrap();
    runtime.block_on(async {
        let model = Model::new(3000);
        let server = Server::of(&model).await;
        let bench = Bench::new();
        let reference = ModelRef::parse(&server.model()).unwrap();
        let options = Options { insecure: true, ..Options::default() };
        let found = bench.registry.look_up_model(&reference, &options).await.unwrap();
        let file = FileUrl::parse(&format!("http://{}/m.gguf", server.host)).unwrap().unwrap();
        let (report, _lines) = mpsc::channel(100);
        // The only blocking thread is busy.
        let (go, wait) = std::sync::mpsc::channel::<()>();
        let busy = tokio::task::spawn_blocking(move || wait.recv());
        let (registry, store) = (&bench.registry, &bench.store);
        assert!(
            registry.pull(store, &reference, &options, report.clone()).now_or_never().is_none()
        );
        assert!(registry.pull_file(store, &file, &options, report).now_or_never().is_none());
        assert!(found.fetch(store).now_or_never().is_none());
        assert!(found.completed(store).now_or_never().is_none());
        assert!(!bench.root().exists(), "nothing was written by this thread");
        drop(go);
        let _ = busy.await;
    });
}

/// The caller may use no stored blob.
#[derive(Debug)]
struct NoReuse;

impl crate::BlobReuse for NoReuse {
    fn reusable(&self, _: &[Digest]) -> Result<HashSet<Digest>, puna_store::StoreError> {
        Ok(HashSet::new())
    }

    fn caller_number(&self) -> u64 {
        7
    }
}

pub(super) fn without_reuse() -> Options {
    Options { reuse: Some(Arc::new(NoReuse)), ..Options::default() }
}

/// Ranges of the requests for a model's weights.
fn weight_ranges(server: &Server, model: &Model) -> Vec<(u64, u64)> {
    let requests = server.blob_requests().into_iter();
    let weights = requests.filter(|seen| seen.path.ends_with(&model.weights.to_string()));
    let mut ranges: Vec<_> = weights.filter_map(|seen| seen.range()).collect();
    ranges.sort_unstable();
    ranges
}

/// Puts data of another caller into the store: nothing, partial downloads without the last byte, or
/// the whole blobs.
fn add_data_of_others(bench: &Bench, model: &Model, kind: usize) {
    for (digest, blob) in &model.blobs {
        let (digest, size) = (digest.parse::<Digest>().unwrap(), blob.len());
        match kind {
            0 => {}
            1 => {
                let partial = bench.store.partial(&digest).unwrap();
                std::fs::write(partial.data(), [&blob[..size - 1], &[0]].concat()).unwrap();
                let record =
                    json!({"N": 0, "Offset": 0, "Size": size, "Completed": size - 1}).to_string();
                std::fs::write(partial.part(0), record).unwrap();
            }
            _ => assert_eq!(bench.store.add_blob(blob).unwrap().digest, digest),
        }
    }
}

#[tokio::test]
async fn a_registry_does_not_learn_which_blobs_of_others_are_stored() {
    let model = Model::new(6 << 20);
    let mut seen = Vec::new();
    for kind in 0..3 {
        let server = Server::of(&model).await;
        let bench = Bench::new();
        add_data_of_others(&bench, &model, kind);
        let (pulled, lines) = bench.pull_with(&server.model(), without_reuse()).await;
        pulled.unwrap();
        let of_weights = lines.iter().find(|line| line.digest == Some(model.weights));
        assert!(of_weights.unwrap().completed < 6 << 20, "{kind}: {of_weights:?}");
        let mut statuses: Vec<String> = lines.iter().map(|line| line.status.clone()).collect();
        statuses.dedup();
        let ranges = weight_ranges(&server, &model);
        assert!(ranges[0].0 == 0 && ranges.len() > 1, "several connections: {ranges:?}");
        seen.push(statuses);
        assert!(bench.store.get(&ModelRef::parse(&server.model()).unwrap().name).is_ok());
        let before = server.blob_requests().len();
        bench.pull_ok(&server.model()).await;
        assert_eq!(server.blob_requests().len(), before, "others use the stored blobs");
    }
    assert_eq!(seen[1], seen[0], "partial downloads of others");
    assert_eq!(seen[2], seen[0], "stored blobs of others");
}

#[tokio::test]
async fn a_manifest_that_names_blobs_of_others_gives_nothing() {
    let model = Model::new(3000);
    let weights = model.weights.to_string();
    // The registry has no blob, another content, or another content with the same last byte.
    let mut guessed = noise(3000, 9);
    guessed[2999] = model.blobs[&weights][2999];
    for content in [None, Some(Bytes::from(noise(3000, 9))), Some(guessed.into())] {
        let mut served = model.clone();
        match &content {
            Some(other) => served.blobs.insert(weights.clone(), other.clone()),
            None => served.blobs.remove(&weights),
        };
        let server = Server::of(&served).await;
        let mut errors = Vec::new();
        for kind in 0..3 {
            let bench = Bench::new();
            add_data_of_others(&bench, &model, kind);
            let (pulled, _) = bench.pull_with(&server.model(), without_reuse()).await;
            errors.push(pulled.unwrap_err().to_string());
            assert!(bench.store.get(&ModelRef::parse(&server.model()).unwrap().name).is_err());
        }
        assert_eq!(errors[1], errors[0], "the error does not tell of a partial download");
        assert_eq!(errors[2], errors[0], "the error does not tell whether the store has the blob");
    }
}

#[tokio::test]
async fn a_file_that_names_a_blob_of_others_gives_nothing() {
    let [stored, served] = [gguf(1), gguf(2)];
    assert_eq!(stored.len(), served.len());
    let digest = Digest::of(&stored);
    let server = Server::start(move |seen| ranged(&served, &seen)).await;
    let url = format!("http://{}/m.gguf#sha256={}", server.host, digest.hex());
    let file = FileUrl::parse(&url).unwrap().unwrap();
    let mut errors = Vec::new();
    for is_stored in [false, true] {
        let bench = Bench::new();
        if is_stored {
            bench.store.add_blob(&stored).unwrap();
        }
        let options = Options { insecure: true, ..without_reuse() };
        let (report, _lines) = mpsc::channel(100);
        let pulled = bench.registry.pull_file(&bench.store, &file, &options, report).await;
        errors.push(pulled.unwrap_err().to_string());
    }
    assert_eq!(errors[0], errors[1]);
}

#[tokio::test]
async fn the_space_that_a_pull_needs_does_not_depend_on_blobs_of_others() {
    let mut model = Model::new(3000);
    // More bytes than any disk has.
    let mut manifest: serde_json::Value = serde_json::from_slice(&model.manifest).unwrap();
    manifest["config"]["size"] = json!(1u64 << 62);
    model.manifest = manifest.to_string().into();
    let server = Server::of(&model).await;
    let mut errors = Vec::new();
    for kind in 0..3 {
        let bench = Bench::new();
        add_data_of_others(&bench, &model, kind);
        let (pulled, _) = bench.pull_with(&server.model(), without_reuse()).await;
        let error = pulled.unwrap_err().to_string();
        let (needed, _) = error.split_once(" needed").expect(&error);
        errors.push(needed.to_owned());
    }
    assert_eq!([&errors[1], &errors[2]], [&errors[0], &errors[0]]);
}
