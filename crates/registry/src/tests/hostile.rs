//! Registries that send wrong data, break connections, send without end, or stall.

use super::*;

/// A registry that answers blob requests by a function. `None` is the correct response.
async fn with_blobs(
    model: &Model,
    answer: impl Fn(&SeenRequest, &Bytes) -> Option<Response> + Send + Sync + 'static,
) -> Server {
    let served = model.clone();
    Server::start(move |seen| {
        let blob = served.blobs.get(seen.path.rsplit('/').next().unwrap());
        blob.and_then(|blob| answer(&seen, blob)).unwrap_or_else(|| served.answer(&seen))
    })
    .await
}

/// No model is listed, and no file has the name of a blob without being it.
fn assert_clean(bench: &Bench) {
    assert!(bench.store.list().unwrap().iter().all(|entry| entry.is_embedded()));
    let entries = std::fs::read_dir(bench.root().join("blobs")).into_iter().flatten();
    for name in entries.map(|e| e.unwrap().file_name().into_string().unwrap()) {
        if let Ok(digest) = name.parse::<Digest>() {
            bench.store.verify_blob(&digest).unwrap();
        }
    }
}

#[tokio::test]
async fn wrong_bytes_never_get_the_blobs_name() {
    let model = Model::new(3 << 20);
    let server = with_blobs(&model, |seen, blob| {
        let mut wrong = blob.to_vec();
        let at = wrong.len() / 2;
        wrong[at] ^= 1;
        Some(ranged(&wrong.into(), seen))
    })
    .await;
    let bench = Bench::new();
    let (done, lines) = bench.pull(&server.model()).await;
    let text = done.unwrap_err().to_string();
    let want = format!(
        "digest mismatch, file must be downloaded again: want {}, got sha256:",
        model.weights
    );
    assert!(text.starts_with(&want), "{text}");
    assert_eq!(lines.last().unwrap().status, "verifying sha256 digest");
    assert_clean(&bench);
    bench.assert_files(0);
    assert_eq!(bench.store.pulls().unwrap(), [], "nobody goes on with what is not there");
}

#[tokio::test]
async fn a_blob_that_a_registry_lacks_is_named_with_registry_and_model() {
    let model = Model::new(1000);
    let server = with_blobs(&model, |_, _| Some(status(404, "{}"))).await;
    let bench = Bench::new();
    let text = bench.pull_err(&server.model()).await;
    let start = format!("404 Not Found: {} has no blob ", server.host);
    let name = ModelRef::parse(&server.model()).unwrap().name;
    assert!(text.starts_with(&start) && text.ends_with(&format!(" of {name}: {{}}")), "{text}");
    assert_eq!(bench.store.pulls().unwrap(), []);
}

#[tokio::test]
async fn a_container_image_is_refused_before_its_layers_are_fetched() {
    let kind = "application/vnd.oci.image.layer.v1.tar+gzip";
    let config = ("application/vnd.oci.image.config.v1+json", Bytes::from_static(b"{}"));
    let server = Server::of(&Model::of(&[(kind, Bytes::from_static(b"files")), config])).await;
    let bench = Bench::new();
    let text = bench.pull_err(&server.model()).await;
    assert!(
        text.ends_with(&format!("it is a container image, not a model: it has layers of {kind}")),
        "{text}"
    );
    assert!(server.blob_requests().is_empty());
    assert!(!bench.root().join("blobs").exists());
}

#[tokio::test]
async fn malformed_manifests_are_refused_with_the_reason() {
    let digest = Digest::of(b"x");
    let layer = |digest: &str, size: &str| {
        format!(r#"{{"layers":[{{"mediaType":"m","digest":"{digest}","size":{size}}}]}}"#)
    };
    let evil = "sha256:../../../../../../../../../../etc/cron.d/evil00000000000000000000";
    for (body, want) in [
        ("<html><body>Sign in</body></html>".to_owned(), "it is a web page"),
        (String::new(), "not a JSON object"),
        ("[]".into(), "not a JSON object"),
        ("{}".into(), "it has no layers"),
        (
            r#"{"manifests":[{"digest":"x"}],"mediaType":"application/vnd.oci.image.index.v1+json"}"#.into(),
            "it has no layers",
        ),
        (layer(evil, "1"), "invalid digest format"),
        (layer("../../../etc/passwd", "1"), "invalid digest format"),
        (layer(&digest.to_string(), "-1"), "invalid value"),
        (layer(&digest.to_string(), "99999999999999999999999"), "invalid"),
        (r#"{"layers":[[]]}"#.into(), "invalid"),
        (r#"{"layers":{"0":1}}"#.into(), "invalid type"),
        ("[".repeat(1_000_000), "not a JSON object"),
        (format!("{{\"config\":{}", "[".repeat(100_000)), "recursion limit"),
        (format!("{{\"config\":{}", "[".repeat(1_000_000)), "JSON values"),
        (" ".repeat(5 << 20), "the response has more than 4194304 bytes"),
    ] {
        let server = Server::start(move |_| status(200, body.clone())).await;
        let bench = Bench::new();
        let text = bench.pull_err(&server.model()).await;
        assert!(text.starts_with("pull model manifest: ") && text.contains(want), "{want}: {text}");
        assert!(!bench.root().join("blobs").exists(), "{want}");
    }
}

#[tokio::test]
async fn a_blob_with_two_sizes_is_refused() {
    let d = Digest::of(b"x");
    let body = format!(
        r#"{{"layers":[{{"mediaType":"a","digest":"{d}","size":1}},{{"mediaType":"b","digest":"{d}","size":2}}]}}"#
    );
    let server = Server::start(move |_| status(200, body.clone())).await;
    let text = Bench::new().pull_err(&server.model()).await;
    assert!(text.contains("declares two sizes"), "{text}");
}

#[tokio::test]
async fn an_endless_manifest_exceeds_the_size_limit() {
    let server = Server::start(|_| {
        let forever = futures_util::stream::repeat_with(|| {
            Ok::<_, std::io::Error>(Bytes::from(vec![b' '; 1 << 16]))
        });
        Response::new(Body::from_stream(forever))
    })
    .await;
    let text = Bench::new().pull_err(&server.model()).await;
    assert!(text.ends_with("the response has more than 4194304 bytes"), "{text}");
}

#[tokio::test]
async fn a_manifest_that_arrives_too_slowly_is_given_up() {
    let server = Server::start(|_| {
        let drip = vec![(Duration::from_millis(100), Some(Bytes::from_static(b" "))); 1000];
        Response::new(slowly(drip))
    })
    .await;
    let bench = Bench::with(|settings| settings.stall_timeout = Duration::from_millis(150));
    let started = std::time::Instant::now();
    let text = bench.pull_err(&server.model()).await;
    assert!(text.contains(" bytes in 0 s"), "{text}");
    assert!(started.elapsed() < Duration::from_secs(5));
}

#[tokio::test]
async fn compressed_answers_are_refused_unread() {
    let model = Model::new(1000);
    for blobs in [false, true] {
        let served = model.clone();
        let server = Server::start(move |seen| {
            assert_eq!(seen.header("accept-encoding"), "identity");
            let mut answer = served.answer(&seen);
            if seen.is_blob() == blobs {
                answer.headers_mut().insert("Content-Encoding", "gzip".parse().unwrap());
            }
            answer
        })
        .await;
        let text = Bench::new().pull_err(&server.model()).await;
        assert!(text.contains("the response has the unexpected Content-Encoding gzip"), "{text}");
    }
}

#[tokio::test]
async fn a_wrong_manifest_digest_is_detected() {
    let model = Model::new(1000);
    let server = Server::start(move |seen| {
        let mut answer = model.answer(&seen);
        let lie = Digest::of(b"lie").to_string();
        answer.headers_mut().insert("Docker-Content-Digest", lie.parse().unwrap());
        answer
    })
    .await;
    let text = Bench::new().pull_err(&server.model()).await;
    assert!(text.contains("declares the manifest digest sha256:"), "{text}");
}

#[tokio::test]
async fn a_blob_of_another_size_than_the_manifest_says_is_refused() {
    let model = Model::new(3 << 20);
    for ranges in [true, false] {
        let server = with_blobs(&model, move |seen, blob| {
            let longer: Bytes = [&blob[..], b"more"].concat().into();
            Some(if ranges { ranged(&longer, seen) } else { status(200, longer) })
        })
        .await;
        let bench = Bench::new();
        let text = bench.pull_err(&server.model()).await;
        let want = format!(
            "blob {} has {} bytes at the registry, but the manifest declares {}",
            model.weights,
            (3 << 20) + 4,
            3 << 20
        );
        assert_eq!(text, want);
        assert_clean(&bench);
        assert_eq!(bench.partials(), [""; 0], "nothing of this size will come");
    }
}

#[tokio::test]
async fn an_html_page_instead_of_a_blob_is_refused() {
    let model = Model::new(3 << 20);
    let server = with_blobs(&model, |_, _| {
        let page = Response::builder().header("Content-Type", "text/html; charset=utf-8");
        Some(page.body("<html>Please sign in</html>".into()).unwrap())
    })
    .await;
    let bench = Bench::new();
    let text = bench.pull_err(&server.model()).await;
    assert!(text.ends_with("the response is a web page of 27 bytes instead of the blob"), "{text}");
    assert_clean(&bench);
}

#[tokio::test]
async fn other_ranges_than_requested_are_refused() {
    let model = Model::new(3 << 20);
    for range in [
        "",
        "bytes 5-9/3145728",
        "bytes 0-99999999/3145728",
        "bytes 9-0/3145728",
        "0-9",
        "bytes x-y/z",
    ] {
        let server = with_blobs(&model, move |_, blob| {
            let part = Response::builder().status(206).header("Content-Range", range);
            Some(part.body(blob.slice(..10).into()).unwrap())
        })
        .await;
        let bench = Bench::new();
        let text = bench.pull_err(&server.model()).await;
        assert!(
            text.contains("invalid Content-Range") || text.contains("were requested"),
            "{range}: {text}"
        );
        assert_clean(&bench);
    }
}

#[tokio::test]
async fn whole_responses_to_later_ranges_are_retried() {
    let model = Model::new(4 << 20);
    let server = with_blobs(&model, |seen, blob| {
        let whole = blob.len() > 1000 && seen.nth % 3 == 0;
        whole.then(|| status(200, blob.clone()))
    })
    .await;
    let bench = Bench::new();
    bench.pull_ok(&server.model()).await;
    bench.assert_has(&model, &server.model());
}

#[tokio::test]
async fn redirect_loops_end() {
    let model = Model::new(1000);
    let server = with_blobs(&model, |seen, _| {
        Some(
            Response::builder()
                .status(307)
                .header("Location", &seen.path)
                .body(Body::empty())
                .unwrap(),
        )
    })
    .await;
    let text = Bench::new().pull_err(&server.model()).await;
    assert!(text.ends_with("redirected more than 10 times"), "{text}");
    assert_eq!(server.blob_requests().len(), 11);
}

#[tokio::test]
async fn redirects_to_other_schemes_are_refused() {
    for place in ["file:///etc/passwd", "ftp://h/x", "http://"] {
        let model = Model::new(1000);
        let server = with_blobs(&model, move |_, _| {
            Some(
                Response::builder()
                    .status(302)
                    .header("Location", place)
                    .body(Body::empty())
                    .unwrap(),
            )
        })
        .await;
        let text = Bench::new().pull_err(&server.model()).await;
        assert!(
            text.contains("is not an HTTP URL") || text.contains("is not a valid URL"),
            "{text}"
        );
    }
}

#[tokio::test]
async fn broken_and_stalled_connections_are_retried() {
    for stall in [false, true] {
        let model = Model::new(4 << 20);
        let server = with_blobs(&model, move |seen, blob| {
            if blob.len() < 1000 || seen.nth % 2 == 0 {
                return None;
            }
            let (first, last) = seen.range()?;
            let half = blob.slice(first as usize..(first + last).div_ceil(2) as usize);
            let rest = if stall { Duration::from_secs(60) } else { Duration::ZERO };
            let part = Response::builder().status(206);
            let part = part.header("Content-Range", format!("bytes {first}-{last}/{}", blob.len()));
            Some(part.body(slowly(vec![(Duration::ZERO, Some(half)), (rest, None)])).unwrap())
        })
        .await;
        let bench = Bench::new();
        bench.pull_ok(&server.model()).await;
        bench.assert_has(&model, &server.model());
    }
}

#[tokio::test]
async fn a_blob_that_arrives_too_slowly_is_retried_and_given_up() {
    let model = Model::new(3 << 20);
    let drips = |blob: &Bytes, seen: &SeenRequest| {
        let (first, last) = seen.range().unwrap();
        let drops = (first..last)
            .take(100)
            .map(|at| (Duration::from_millis(40), Some(blob.slice(at as usize..at as usize + 1))));
        let part = Response::builder().status(206);
        let part = part.header("Content-Range", format!("bytes {first}-{last}/{}", blob.len()));
        part.body(slowly(drops.collect())).unwrap()
    };
    // Some connections are too slow: they are replaced.
    let server = with_blobs(&model, move |seen, blob| {
        (blob.len() > 1000 && seen.nth % 3 == 0).then(|| drips(blob, seen))
    })
    .await;
    let bench = Bench::new();
    bench.pull_ok(&server.model()).await;
    bench.assert_has(&model, &server.model());
    // All connections are too slow.
    let server =
        with_blobs(&model, move |seen, blob| (blob.len() > 1000).then(|| drips(blob, seen))).await;
    let (bench, started) =
        (Bench::with(|settings| settings.streams = 1), std::time::Instant::now());
    let text = bench.pull_err(&server.model()).await;
    assert!(
        text.starts_with("max retries exceeded: http://") && text.contains(": only "),
        "{text}"
    );
    assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
    let firsts: Vec<u64> =
        server.blob_requests().iter().filter_map(|s| Some(s.range()?.0)).collect();
    assert!(
        firsts.len() >= 6 && firsts.is_sorted_by(|a, b| a < b),
        "each goes on where the last one was: {firsts:?}"
    );
    assert_clean(&bench);
}

#[tokio::test]
async fn a_blob_request_that_always_fails_ends_after_six_attempts() {
    let model = Model::new(1000);
    let server = with_blobs(&model, |_, _| Some(status(500, "broken\ninside"))).await;
    let bench = Bench::new();
    let text = bench.pull_err(&server.model()).await;
    assert_eq!(text, "max retries exceeded: 500 Internal Server Error: broken inside");
    assert_eq!(server.blob_requests().len(), 6);
    assert_clean(&bench);
}

#[tokio::test]
async fn a_busy_server_is_retried_later() {
    let model = Model::new(4 << 20);
    let busy = Mutex::new(0);
    let server = with_blobs(&model, move |_, _| {
        let mut busy = busy.lock().unwrap();
        *busy += 1;
        (*busy % 3 == 0).then(|| {
            Response::builder()
                .status(429)
                .header("Retry-After", "0")
                .body("slow down".into())
                .unwrap()
        })
    })
    .await;
    let bench = Bench::new();
    bench.pull_ok(&server.model()).await;
    bench.assert_has(&model, &server.model());
}

#[tokio::test]
async fn a_manifest_request_honours_retry_after_three_times_at_most() {
    let model = Model::new(1000);
    let (served, times) = (model.clone(), Mutex::new(0));
    let busy = || {
        Response::builder().status(429).header("Retry-After", "1").body("slow down".into()).unwrap()
    };
    let server = Server::start(move |seen| {
        let mut times = times.lock().unwrap();
        *times += 1;
        if *times == 1 { busy() } else { served.answer(&seen) }
    })
    .await;
    let (bench, started) = (Bench::new(), std::time::Instant::now());
    bench.pull_ok(&server.model()).await;
    assert!(started.elapsed() >= Duration::from_secs(1), "{:?}", started.elapsed());

    let server = Server::start(|_| status(503, "closed")).await;
    let text = Bench::new().pull_err(&server.model()).await;
    assert_eq!(
        (text.as_str(), server.seen().len()),
        ("pull model manifest: 503 Service Unavailable: closed", 3)
    );
}

#[tokio::test]
async fn a_model_larger_than_the_disk_is_refused() {
    let digest = Digest::of(b"x");
    let body = format!(
        r#"{{"layers":[{{"mediaType":"{}","digest":"{digest}","size":9000000000000000000}}]}}"#,
        media::MODEL
    );
    let server = Server::start(move |_| status(200, body.clone())).await;
    let bench = Bench::new();
    let text = bench.pull_err(&server.model()).await;
    assert!(
        text.starts_with("not enough space for the model: 9000000000000000000 bytes needed"),
        "{text}"
    );
    assert!(server.blob_requests().is_empty() && bench.partials().is_empty());
}

#[tokio::test]
async fn an_unreachable_registry_is_named() {
    let bench = Bench::new();
    let text = bench.pull_err("127.0.0.1:1/x/y").await;
    assert!(
        text.starts_with(
            "pull model manifest: Get \"http://127.0.0.1:1/v2/x/y/manifests/latest\": "
        ),
        "{text}"
    );
    let server = Server::start(|_| status(404, "{}")).await;
    assert_eq!(bench.pull_err(&server.model()).await, "pull model manifest: file does not exist");
    let server = Server::start(|_| status(400, "{\"error\":\"sharded\"}")).await;
    let text = bench.pull_err(&server.model()).await;
    assert_eq!(text, "pull model manifest: 400 Bad Request: {\"error\":\"sharded\"}");
    let server = Server::start(|_| status(403, "<html>\u{1b}[31m</html>")).await;
    assert_eq!(
        bench.pull_err(&server.model()).await,
        "pull model manifest: 403 Forbidden: a web page"
    );
}

#[tokio::test]
async fn models_with_tensor_layers_are_refused_before_anything_is_fetched() {
    let kind = "application/vnd.ollama.image.tensor";
    let model = Model::of(&[(kind, noise(10, 1).into()), (media::CONFIG, "{}".into())]);
    let server = Server::start(move |seen| model.answer(&seen)).await;
    let text = Bench::new().pull_err(&server.model()).await;
    assert!(text.contains("tensor layers instead of a GGUF file"), "{text}");
    assert_eq!(server.seen().len(), 1);
}

#[tokio::test]
async fn a_server_without_tls_is_not_retried() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let host = listener.local_addr().unwrap().to_string();
    let requested = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let count = requested.clone();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let answer = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n";
            tokio::io::AsyncWriteExt::write_all(&mut stream, answer).await.unwrap();
        }
    });
    let bench = Bench::new();
    let reference = ModelRef::parse(&format!("{host}/test/m")).unwrap();
    let digest = Digest::of(b"x");
    let Err(error) = bench.registry.look_up_blob(&reference, digest, &Options::default()).await
    else {
        panic!("nobody has it")
    };
    let text = error.to_string();
    assert!(
        text.contains(
            "the server does not use TLS at this address: if the server speaks plain HTTP"
        ),
        "{text}"
    );
    assert!(!error.is_retryable());
    assert_eq!(requested.load(std::sync::atomic::Ordering::Relaxed), 1);
}
