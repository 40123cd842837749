//! Tests of request bodies that are compressed, multipart or have unknown fields, and of the small
//! routes.

use std::sync::atomic::AtomicBool;
use std::time::Instant;

use ruzstd::encoding::{CompressionLevel, compress_to_vec};

use super::*;

async fn zstd(server: &TestServer, path: &str, body: Vec<u8>) -> TestResponse {
    server
        .send(
            Request::post(path).header("content-encoding", "zstd").body(Body::from(body)).unwrap(),
        )
        .await
}

#[tokio::test]
async fn unknown_options_are_named_in_every_dialect() {
    let server = TestServer::new();
    let options = json!({"tempreture": 0, "num_predict": 2});
    let native = server.post("/api/chat", chat(json!({"options": options}))).await;
    assert_eq!(
        (native.status.as_u16(), native.header("x-puna-ignored")),
        (200, "options.tempreture")
    );
    let openai =
        server.post("/v1/chat/completions", chat(json!({"options": options, "foo": 1}))).await;
    assert_eq!(openai.header("x-puna-ignored"), "foo, options.tempreture");
    let create = json!({"model": "m", "from": "cria", "parameters": {"speed": 1}, "stream": false});
    assert_eq!(
        server.post("/api/create", create).await.header("x-puna-ignored"),
        "parameters.speed"
    );
}

#[tokio::test]
async fn compressed_bodies_are_read_up_to_a_limit() {
    let server = TestServer::new();
    let pack = |text: &[u8]| compress_to_vec(text, CompressionLevel::Fastest);
    let body = chat(json!({"model": "no-such"})).to_string();
    for path in ["/v1/chat/completions", "/api/chat"] {
        let answer = zstd(&server, path, pack(body.as_bytes())).await;
        assert!(
            answer.status == 404 && answer.body.contains("model 'no-such' not found"),
            "{}",
            answer.body
        );
    }
    let error = async |body: Vec<u8>| {
        let answer = zstd(&server, "/v1/responses", body).await;
        assert_eq!(answer.status, 400);
        answer.json()["error"]["message"].as_str().unwrap().to_owned()
    };
    assert_eq!(
        error(body.into_bytes()).await,
        "invalid zstd body: it has bytes outside of zstd frames"
    );
    assert_eq!(error(pack(&vec![b' '; (20 << 20) + 1])).await, "http: request body too large");
    assert_eq!(error(pack(&vec![b' '; 20 << 20])).await, "EOF", "the limit itself is allowed");
    let cut = pack(br#"{"model":"cria"}"#);
    assert!(error(cut[..cut.len() - 3].to_vec()).await.starts_with("invalid zstd body: "));
    // A frame without content that claims a window of 2^37 bytes.
    let claim = vec![0x28, 0xb5, 0x2f, 0xfd, 0, 27 << 3, 1, 0, 0];
    assert!(error(claim).await.starts_with("invalid zstd body: "));
    let gzip =
        Request::post("/api/chat").header("content-encoding", "gzip").body(Body::empty()).unwrap();
    let answer = server.send(gzip).await;
    assert!(
        answer.status == 400 && answer.body.contains("Content-Encoding gzip"),
        "{}",
        answer.body
    );
}

#[tokio::test]
async fn requests_without_long_texts_have_a_smaller_limit_than_conversations() {
    let server = TestServer::new();
    let send = async |path: &str, bytes: usize| {
        // The server refuses the declared length before any data arrives.
        let never = futures_util::stream::pending::<Result<bytes::Bytes, std::io::Error>>();
        let request = Request::post(path).header("content-length", bytes);
        server.send(request.body(Body::from_stream(never)).unwrap()).await
    };
    for (path, limit) in [
        ("/api/show", "1 MiB"),
        ("/api/copy", "1 MiB"),
        ("/api/pull", "1 MiB"),
        ("/api/tokenize", "2 MiB"),
        ("/api/chat", "128 MiB"),
    ] {
        let bytes = match limit {
            "128 MiB" => (128 << 20) + 1,
            _ => 3 << 20,
        };
        let answer = send(path, bytes).await;
        assert!(answer.status == 413 && answer.body.contains(limit), "{path}: {}", answer.body);
    }
    let whole = server.post("/api/show", json!({"model": "cria", "x": "x".repeat(1 << 19)})).await;
    assert_eq!(whole.status, 200, "{}", whole.body);
}

/// Responses of `/health` from a large body's last byte to its response.
struct HealthTimes {
    asked: usize,
    /// The longest time that a response took.
    longest: Duration,
    whole: Duration,
    answer: TestResponse,
}

/// Sends a large body while it requests `/health` repeatedly, on one thread.
async fn health_during(path: &str, text: String) -> HealthTimes {
    const PIECE: usize = 64 << 10;
    let (server, text, last_byte_sent) =
        (TestServer::new(), bytes::Bytes::from(text), Arc::<AtomicBool>::default());
    let (length, last) = (text.len(), last_byte_sent.clone());
    let pieces = (0..length).step_by(PIECE).map(move |at| {
        last.store(at + PIECE >= length, Ordering::Relaxed);
        Ok::<_, std::io::Error>(text.slice(at..length.min(at + PIECE)))
    });
    let body = Body::from_stream(futures_util::stream::iter(pieces));
    let large = server.send(Request::post(path).body(body).unwrap());
    tokio::pin!(large);
    let (mut asked, mut longest, mut begun) = (0, Duration::ZERO, None);
    loop {
        let before = Instant::now();
        tokio::select! {
            biased;
            answer = &mut large => {
                let whole = begun.map_or(Duration::ZERO, |begun: Instant| begun.elapsed());
                return HealthTimes { asked, longest, whole, answer };
            }
            health = server.get("/health") => assert_eq!(health.status, 200),
        }
        match begun {
            Some(_) => (asked, longest) = (asked + 1, longest.max(before.elapsed())),
            None => begun = last_byte_sent.load(Ordering::Relaxed).then(Instant::now),
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "current_thread")]
async fn decoding_a_large_body_does_not_block_other_requests() {
    // The JSON is invalid at its end, so that the server only decodes it.
    let text = format!(r#"{{"model": "cria", "prompt": "{}" "#, "x".repeat(100_000_000));
    let health_times = health_during("/api/generate", text).await;
    assert_eq!(health_times.answer.status, 400, "{}", health_times.answer.body);
    assert!(health_times.asked > 10, "{}", health_times.asked);
}

#[tokio::test(flavor = "current_thread")]
async fn encoding_a_large_task_does_not_block_other_requests() {
    let body = format!(r#"{{"model": "cria", "tokens": [{}1]}}"#, "1000000,".repeat(2_000_000));
    let health_times = health_during("/api/detokenize", body);
    let HealthTimes { asked, longest, whole, answer } = health_times.await;
    // The task is larger than a message may be in tests.
    assert!(
        answer.status == 413 && answer.body.contains("too large for the model runner"),
        "{}",
        answer.body
    );
    assert!(asked > 10 && 2 * longest < whole, "{asked} answers, {longest:?} of {whole:?}");
}

#[tokio::test]
async fn unknown_fields_are_named_in_a_header_of_every_dialect() {
    let server = TestServer::new();
    let extra = json!({"frob": 1, "user": "u", "max_tokens": 3, "stream": false, "prompt": "x", "input": "x"});
    for (path, names) in [
        ("/api/chat", "options.frob, frob, user, max_tokens, prompt, input"),
        ("/v1/chat/completions", "frob, user, prompt, input"),
        ("/v1/messages", "frob, user, prompt, input"),
        ("/v1/responses", "messages, frob, user, max_tokens, prompt"),
    ] {
        let answer = server.post(path, chat(extra.clone())).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        let got = answer.header("x-puna-ignored");
        // Another part of the server checks the options one by one.
        assert_eq!(got, names.trim_start_matches("options.frob, "), "{path}");
    }
    let nested = json!({"messages": [{"role": "user", "content": "hi", "a,\u{e9}": 1}, {"role": "user", "content": "hi", "x": 1}]});
    assert_eq!(
        server.post("/api/chat", chat(nested)).await.header("x-puna-ignored"),
        "messages.a%2C%C3%A9, messages.x"
    );
    assert!(
        server.post("/api/chat", chat(json!({}))).await.headers.get("x-puna-ignored").is_none()
    );
}

#[tokio::test]
async fn texts_are_tokenized_and_tokens_detokenized() {
    let server = TestServer::new();
    let tokens = server.post("/api/tokenize", json!({"model": "cria", "text": "ab"})).await.json();
    assert_eq!((&tokens["model"], &tokens["tokens"]), (&json!("cria"), &json!([97, 98])));
    let text =
        server.post("/api/detokenize", json!({"model": "cria", "tokens": [97, 98]})).await.json();
    assert_eq!(text["text"], "ab");
    let unknown =
        server.post("/api/detokenize", json!({"model": "cria", "tokens": [97, 256]})).await;
    assert_eq!(
        (unknown.status.as_u16(), unknown.json()),
        (400, json!({"error": "this model has no token 256"}))
    );
    assert_eq!(
        server.post("/api/tokenize", json!({"text": "x"})).await.json()["error"],
        "model is required"
    );
    assert_eq!(
        server.post("/api/tokenize", json!({"model": "no-such", "text": "x"})).await.status,
        404
    );
    let content = server.post("/api/tokenize", json!({"model": "cria", "content": "ab"})).await;
    assert_eq!(
        (&content.json()["tokens"], content.header("x-puna-ignored")),
        (&json!([97, 98]), "")
    );
    for (path, body, error) in [
        ("/api/tokenize", json!({"model": "cria"}), "text is required"),
        ("/api/detokenize", json!({"model": "cria"}), "tokens is required"),
        (
            "/api/tokenize",
            json!({"model": "cria", "text": "a", "content": "b"}),
            "text and content are the same field: send one of them",
        ),
    ] {
        let refused = server.post(path, body).await;
        assert_eq!(
            (refused.status.as_u16(), &refused.json()["error"]),
            (400, &json!(error)),
            "{path}"
        );
    }
    let nothing = server.post("/api/tokenize", json!({"model": "cria", "text": ""})).await;
    assert_eq!((nothing.status.as_u16(), &nothing.json()["tokens"]), (200, &json!([])));
    assert_eq!(server.fake.generated.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn fields_that_need_another_field_are_named_or_refused() {
    let server = TestServer::new();
    let top = chat(json!({"top_logprobs": 2, "stream": false}));
    let native = server.post("/api/chat", top.clone()).await;
    assert_eq!((native.status.as_u16(), native.header("x-puna-ignored")), (200, "top_logprobs"));
    let openai = server.post("/v1/chat/completions", top).await;
    assert_eq!(openai.status, 400);
    assert_eq!(openai.json()["error"]["message"], "top_logprobs needs logprobs: true");
    let both = server
        .post("/v1/chat/completions", chat(json!({"top_logprobs": 2, "logprobs": true})))
        .await;
    assert_eq!(both.status, 200, "{}", both.body);
}

#[tokio::test]
async fn health_is_reported() {
    let answer = TestServer::new().get("/health").await;
    assert_eq!((answer.status.as_u16(), answer.json()), (200, json!({"status": "ok"})));
}

#[tokio::test]
async fn audio_is_refused_with_the_reason() {
    let server = TestServer::new();
    let ask = async |kind: &str, body: &str| {
        let request = Request::post("/v1/audio/transcriptions").header("content-type", kind);
        let answer = server.send(request.body(Body::from(body.to_owned())).unwrap()).await;
        (answer.status.as_u16(), answer.json()["error"]["message"].as_str().unwrap().to_owned())
    };
    let form = "multipart/form-data; boundary=x";
    let part = |name: &str, content: &str| {
        format!("--x\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{content}\r\n")
    };
    let (model, file) = (part("model", "cria"), part("file", "RIFF"));
    let not = "failed to parse multipart form: request Content-Type isn't multipart/form-data";
    for (kind, body, want) in [
        ("application/json", "{}".into(), (400, not)),
        (form, "--x".into(), (400, "failed to parse multipart form: unexpected EOF")),
        (form, "--x--\r\n".into(), (400, "model is required")),
        (form, format!("{model}--x--\r\n"), (400, "file is required: http: no such file")),
        (form, format!("{model}{}--x--\r\n", part("file", "")), (400, "audio file is empty")),
        (form, format!("{model}{file}--x--\r\n"), (400, "\"cria\" does not support audio input")),
        (
            form,
            format!("{}{file}--x--\r\n", part("model", "no-such")),
            (404, "model 'no-such' not found"),
        ),
    ] {
        assert_eq!(ask(kind, &body).await, (want.0, want.1.to_owned()));
    }
}

#[tokio::test]
async fn the_body_of_a_waiting_request_counts_against_the_budget() {
    let server = TestServer::new();
    let free_bytes = || server.middleware.body_budget().free_bytes();
    let is_free = || free_bytes() == crate::http::body_budget::BODY_BUDGET_BYTES;
    let until = async |what: &str, is_so: &dyn Fn() -> bool| {
        for _ in 0..2000 {
            if is_so() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("{what}");
    };
    let ask = |n: u64| {
        let prompt = "x".repeat(400_000);
        let body =
            json!({"model": "cria", "prompt": prompt, "max_tokens": 1, "n": n, "truncate": true});
        server.post("/v1/completions", body)
    };
    assert!(is_free());
    server.fake.dawdles.store(true, Ordering::Relaxed);
    {
        let asked = ask(2);
        tokio::pin!(asked);
        let is_read = || server.fake.dawdled.load(Ordering::Relaxed) == 2;
        tokio::select! {
            _ = &mut asked => panic!("it waits"),
            () = until("it is read", &is_read) => {}
        }
        // The text of the second choice's prompt is reserved too.
        assert!(free_bytes() < crate::http::body_budget::BODY_BUDGET_BYTES - 1_000_000);
        // An accepted request holds no memory, however long it runs.
        server.fake.hangs.store(true, Ordering::Relaxed);
        server.fake.dawdles.store(false, Ordering::Relaxed);
        tokio::select! {
            _ = &mut asked => panic!("it hangs"),
            () = until("it is taken", &is_free) => {}
        }
        server.fake.hangs.store(false, Ordering::Relaxed);
        assert_eq!(asked.await.status, 200);
    }
    // A cancelled request releases its memory too.
    server.fake.dawdles.store(true, Ordering::Relaxed);
    let left = tokio::time::timeout(Duration::from_millis(200), ask(1)).await;
    assert!(left.is_err());
    until("it is given up", &is_free).await;
    server.fake.dawdles.store(false, Ordering::Relaxed);
}
