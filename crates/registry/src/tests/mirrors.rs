//! Mirrors: they are tried first, skipped when they fail, and do not change the model's name.

use super::*;

/// A client that uses mirrors for `origin`.
fn bench(origin: &Server, mirrors: &[&str]) -> Bench {
    let mirrors = mirrors.iter().map(|host| format!("http://{host}")).collect();
    let host = crate::client::hosts::Host { mirrors, ..Default::default() };
    Bench::with(|settings| settings.hosts.set(&origin.host, host))
}

#[tokio::test]
async fn a_mirror_serves_without_requests_to_the_registry() {
    let model = Model::new(3 << 20);
    let (origin, mirror) = (Server::of(&model).await, Server::of(&model).await);
    let bench = bench(&origin, &[&mirror.host]);
    bench.pull_ok(&origin.model()).await;
    bench.assert_has(&model, &origin.model());
    assert_eq!(origin.seen().len(), 0);
    let ns = format!("ns={}", origin.host.replace(':', "%3A"));
    assert!(mirror.seen().iter().all(|seen| seen.query == ns), "mirrors hear for whom they stand");
}

#[tokio::test]
async fn missing_and_broken_mirrors_are_skipped() {
    let model = Model::new(3 << 20);
    let origin = Server::of(&model).await;
    let empty = Server::start(|_| status(404, "")).await;
    let broken = Server::start(|_| status(500, "")).await;
    let gone = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap().to_string()
    };
    let page = Server::start(|_| status(200, "<html>Who are you?</html>")).await;
    let bench = bench(&origin, &[&gone, &empty.host, &broken.host, &page.host]);
    bench.pull_ok(&origin.model()).await;
    bench.assert_has(&model, &origin.model());
    assert!([&empty, &broken, &page].iter().all(|mirror| !mirror.seen().is_empty()));
}

#[tokio::test]
async fn the_registry_completes_blobs_that_a_mirror_fails_to_send() {
    let model = Model::new(8 << 20);
    let origin = Server::of(&model).await;
    let served = model.clone();
    let weights = model.weights.to_string();
    let mirror = Server::start_async(move |seen| {
        let served = served.clone();
        async move {
            match seen.range() {
                // Only the first range of the weights arrives.
                Some((first, _))
                    if seen.path.ends_with(&served.weights.to_string()) && first > 0 =>
                {
                    tokio::time::sleep(Duration::from_millis(200)).await;
                    status(500, "disk failure")
                }
                _ => served.answer(&seen),
            }
        }
    })
    .await;
    let bench = bench(&origin, &[&mirror.host]);
    bench.pull_ok(&origin.model()).await;
    bench.assert_has(&model, &origin.model());
    let of_weights: Vec<_> =
        origin.blob_requests().into_iter().filter(|s| s.path.ends_with(&weights)).collect();
    let ranges: Vec<_> = of_weights.iter().filter_map(SeenRequest::range).collect();
    assert!(!ranges.is_empty() && ranges.iter().all(|(first, _)| *first > 0), "{ranges:?}");
}

#[tokio::test]
async fn wrong_bytes_of_a_mirror_are_detected() {
    let model = Model::new(1 << 20);
    let origin = Server::of(&model).await;
    let mut wrong_model = model.clone();
    let weights = wrong_model.weights.to_string();
    wrong_model.blobs.insert(weights, noise(1 << 20, 7).into());
    let mirror = Server::of(&wrong_model).await;
    let bench = bench(&origin, &[&mirror.host]);
    bench.pull_ok(&origin.model()).await;
    bench.assert_has(&model, &origin.model());
}

#[tokio::test]
async fn the_via_header_is_sent_to_registries_only() {
    let model = Model::new(1 << 20);
    let storage = Server::of(&model).await;
    let (served, target) = (model.clone(), storage.host.clone());
    let origin = Server::start(move |seen| {
        if !seen.is_blob() {
            return served.answer(&seen);
        }
        let place = format!("http://{target}{}", seen.path);
        Response::builder().status(307).header("Location", place).body(Body::empty()).unwrap()
    })
    .await;
    let bench = Bench::new();
    let reference = ModelRef::parse(&origin.model()).unwrap();
    let options =
        Options { insecure: true, via: Some("1.1 one, 1.1 two".into()), ..Options::default() };
    bench
        .registry
        .look_up_model(&reference, &options)
        .await
        .unwrap()
        .fetch(&bench.store)
        .await
        .unwrap();
    assert!(origin.seen().iter().all(|seen| seen.header("via") == "1.1 one, 1.1 two"));
    assert!(
        !storage.seen().is_empty()
            && storage.seen().iter().all(|seen| seen.header("via").is_empty())
    );
}

#[tokio::test]
async fn a_request_loop_is_not_retried() {
    let server = Server::start(|_| status(508, "asked by itself")).await;
    let reference = ModelRef::parse(&server.model()).unwrap();
    let options = Options { insecure: true, ..Options::default() };
    let Err(error) = Bench::new().registry.look_up_model(&reference, &options).await else {
        panic!("it has no model")
    };
    assert!(error.is_loop() && error.to_string().contains("asked by itself"), "{error}");
    assert_eq!(server.seen().len(), 1);
}

#[tokio::test]
async fn a_missing_model_error_lists_all_endpoints() {
    let origin = Server::start(|_| status(404, "")).await;
    let mirror = Server::start(|_| status(403, "not for you")).await;
    let bench = bench(&origin, &[&mirror.host]);
    let text = bench.pull_err(&origin.model()).await;
    let want = format!(
        "pull model manifest: file does not exist (mirrors tried first: {}: 403 Forbidden: not for you)",
        mirror.host
    );
    assert_eq!(text, want);
}

#[tokio::test]
async fn a_missing_blob_error_lists_all_endpoints() {
    let model = Model::new(1 << 20);
    let served = model.clone();
    let origin = Server::start(move |seen| match seen.is_blob() {
        true => status(403, "not today"),
        false => served.answer(&seen),
    })
    .await;
    let mut wrong_model = model.clone();
    wrong_model.blobs.insert(model.weights.to_string(), noise(1 << 20, 7).into());
    let mirror = Server::of(&wrong_model).await;
    let bench = bench(&origin, &[&mirror.host]);
    let text = bench.pull_err(&origin.model()).await;
    let want =
        format!("403 Forbidden: not today (mirrors tried first: {}: digest mismatch", mirror.host);
    assert!(text.starts_with(&want), "{text}");
}

#[tokio::test]
async fn a_rate_limit_bounds_the_download_rate() {
    let model = Model::new(1 << 20);
    let origin = Server::of(&model).await;
    let bench = Bench::with(|settings| settings.limit_rate = Some(2 << 20));
    let started = std::time::Instant::now();
    bench.pull_ok(&origin.model()).await;
    let took = started.elapsed().as_secs_f64();
    assert!((0.3..3.0).contains(&took), "{took}");
}

#[tokio::test]
async fn a_child_that_a_mirror_lacks_is_fetched_from_the_registry() {
    let registry = super::lists::ListRegistry::of(&super::lists::RUNNERS);
    let (origin, served) = (registry.serve().await, registry.clone());
    let mirror = Server::start(move |seen| match seen.path.ends_with("/manifests/latest") {
        true => served.answer(&seen),
        false => status(404, ""),
    })
    .await;
    let bench = bench(&origin, &[&mirror.host]);
    bench.pull_ok(&origin.model()).await;
    let entry = bench.store.get(&ModelRef::parse(&origin.model()).unwrap().name).unwrap();
    assert_eq!((entry.digest, entry.runner.as_str()), (Digest::of(&registry.list), "llamacpp"));
    assert!(
        origin.seen().iter().all(|seen| !seen.path.ends_with("/latest")),
        "the mirror's list counts"
    );
    // A mirror with an invalid list is skipped.
    let bad =
        Server::start(|_| status(200, json!({"mediaType": media::MANIFEST_LIST}).to_string()))
            .await;
    let bench = self::bench(&origin, &[&bad.host]);
    bench.pull_ok(&origin.model()).await;
    assert_eq!(bad.seen().len(), 1);
}
