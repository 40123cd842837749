//! Bodies that are compressed, forms, or hold more than is understood; and the small routes.

use std::sync::atomic::AtomicBool;
use std::time::Instant;

use ruzstd::encoding::{CompressionLevel, compress_to_vec};

use super::*;

async fn zstd(b: &Bench, path: &str, body: Vec<u8>) -> Answer {
    b.send(Request::post(path).header("content-encoding", "zstd").body(Body::from(body)).unwrap())
        .await
}

#[tokio::test]
async fn options_that_nobody_knows_are_named_in_every_dialect() {
    let b = Bench::new();
    let options = json!({"tempreture": 0, "num_predict": 2});
    let native = b.post("/api/chat", chat(json!({"options": options}))).await;
    assert_eq!(
        (native.status.as_u16(), native.header("x-puna-ignored")),
        (200, "options.tempreture")
    );
    let openai = b.post("/v1/chat/completions", chat(json!({"options": options, "foo": 1}))).await;
    assert_eq!(openai.header("x-puna-ignored"), "foo, options.tempreture");
    let create = json!({"model": "m", "from": "cria", "parameters": {"speed": 1}, "stream": false});
    assert_eq!(b.post("/api/create", create).await.header("x-puna-ignored"), "parameters.speed");
}

#[tokio::test]
async fn compressed_bodies_are_read_up_to_a_limit() {
    let b = Bench::new();
    let pack = |text: &[u8]| compress_to_vec(text, CompressionLevel::Fastest);
    let body = chat(json!({"model": "no-such"})).to_string();
    for path in ["/v1/chat/completions", "/api/chat"] {
        let answer = zstd(&b, path, pack(body.as_bytes())).await;
        assert!(
            answer.status == 404 && answer.body.contains("model 'no-such' not found"),
            "{}",
            answer.body
        );
    }
    let error = async |body: Vec<u8>| {
        let answer = zstd(&b, "/v1/responses", body).await;
        assert_eq!(answer.status, 400);
        answer.json()["error"]["message"].as_str().unwrap().to_owned()
    };
    assert_eq!(error(body.into_bytes()).await, "invalid input: magic number mismatch");
    assert_eq!(error(pack(&vec![b' '; (20 << 20) + 1])).await, "http: request body too large");
    assert_eq!(error(pack(&vec![b' '; 20 << 20])).await, "EOF", "the limit itself is allowed");
    let cut = pack(br#"{"model":"cria"}"#);
    assert!(error(cut[..cut.len() - 3].to_vec()).await.starts_with("invalid zstd body: "));
    // A frame of no content that claims a window of 2^37 bytes.
    let claim = vec![0x28, 0xb5, 0x2f, 0xfd, 0, 27 << 3, 1, 0, 0];
    assert!(error(claim).await.starts_with("invalid zstd body: "));
    let gzip =
        Request::post("/api/chat").header("content-encoding", "gzip").body(Body::empty()).unwrap();
    let answer = b.send(gzip).await;
    assert!(
        answer.status == 400 && answer.body.contains("Content-Encoding gzip"),
        "{}",
        answer.body
    );
}

/// What was heard of `/health` from a large body's last byte to its answer.
struct Beside {
    asked: usize,
    /// The longest time that an answer took.
    longest: Duration,
    whole: Duration,
    answer: Answer,
}

/// Sends a large body, and asks all the while how the server is, on one thread.
async fn beside(path: &str, text: String) -> Beside {
    const PIECE: usize = 64 << 10;
    let (b, text, come) = (Bench::new(), bytes::Bytes::from(text), Arc::<AtomicBool>::default());
    let (length, last) = (text.len(), come.clone());
    let pieces = (0..length).step_by(PIECE).map(move |at| {
        last.store(at + PIECE >= length, Ordering::Relaxed);
        Ok::<_, std::io::Error>(text.slice(at..length.min(at + PIECE)))
    });
    let body = Body::from_stream(futures_util::stream::iter(pieces));
    let large = b.send(Request::post(path).body(body).unwrap());
    tokio::pin!(large);
    let (mut asked, mut longest, mut begun) = (0, Duration::ZERO, None);
    loop {
        let before = Instant::now();
        tokio::select! {
            biased;
            answer = &mut large => {
                let whole = begun.map_or(Duration::ZERO, |begun: Instant| begun.elapsed());
                return Beside { asked, longest, whole, answer };
            }
            health = b.get("/health") => assert_eq!(health.status, 200),
        }
        match begun {
            Some(_) => (asked, longest) = (asked + 1, longest.max(before.elapsed())),
            None => begun = come.load(Ordering::Relaxed).then(Instant::now),
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "current_thread")]
async fn nobody_waits_while_a_large_body_is_decoded() {
    // Broken at its end, so that there is nothing to do but to decode it.
    let text = format!(r#"{{"model": "cria", "prompt": "{}" "#, "x".repeat(100_000_000));
    let beside = beside("/api/generate", text).await;
    assert_eq!(beside.answer.status, 400, "{}", beside.answer.body);
    assert!(beside.asked > 10, "{}", beside.asked);
}

#[tokio::test(flavor = "current_thread")]
async fn nobody_waits_while_a_large_task_is_written_for_its_runner() {
    let text = "x".repeat(50_000_000);
    let beside = beside(
        "/api/chat",
        chat(json!({"messages": [{"role": "user", "content": text}]})).to_string(),
    );
    let Beside { asked, longest, whole, answer } = beside.await;
    // What is written is more than a message of the tests may have.
    assert!(
        answer.status == 413 && answer.body.contains("too large for the model runner"),
        "{}",
        answer.body
    );
    assert!(asked > 10 && 2 * longest < whole, "{asked} answers, {longest:?} of {whole:?}");
}

#[tokio::test]
async fn fields_that_nobody_understands_are_named_in_a_header_of_every_dialect() {
    let b = Bench::new();
    let extra = json!({"frob": 1, "user": "u", "max_tokens": 3, "stream": false, "prompt": "x", "input": "x"});
    for (path, names) in [
        ("/api/chat", "options.frob, frob, user, max_tokens, prompt, input"),
        ("/v1/chat/completions", "frob, user, prompt, input"),
        ("/v1/messages", "frob, user, prompt, input"),
        ("/v1/responses", "messages, frob, user, max_tokens, prompt"),
    ] {
        let answer = b.post(path, chat(extra.clone())).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        let got = answer.header("x-puna-ignored");
        // Options are looked at one by one, elsewhere.
        assert_eq!(got, names.trim_start_matches("options.frob, "), "{path}");
    }
    let nested = json!({"messages": [{"role": "user", "content": "hi", "a,\u{e9}": 1}, {"role": "user", "content": "hi", "x": 1}]});
    assert_eq!(
        b.post("/api/chat", chat(nested)).await.header("x-puna-ignored"),
        "messages.a%2C%C3%A9, messages.x"
    );
    assert!(b.post("/api/chat", chat(json!({}))).await.headers.get("x-puna-ignored").is_none());
}

#[tokio::test]
async fn texts_become_tokens_and_tokens_texts() {
    let b = Bench::new();
    let tokens = b.post("/api/tokenize", json!({"model": "cria", "text": "ab"})).await.json();
    assert_eq!((&tokens["model"], &tokens["tokens"]), (&json!("cria"), &json!([97, 98])));
    let text = b.post("/api/detokenize", json!({"model": "cria", "tokens": [97, 98]})).await.json();
    assert_eq!(text["text"], "ab");
    let unknown = b.post("/api/detokenize", json!({"model": "cria", "tokens": [97, 256]})).await;
    assert_eq!(
        (unknown.status.as_u16(), unknown.json()),
        (400, json!({"error": "this model has no token 256"}))
    );
    assert_eq!(
        b.post("/api/tokenize", json!({"text": "x"})).await.json()["error"],
        "model is required"
    );
    assert_eq!(b.post("/api/tokenize", json!({"model": "no-such", "text": "x"})).await.status, 404);
    let content = b.post("/api/tokenize", json!({"model": "cria", "content": "ab"})).await;
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
            "text and content are the same: give one of them",
        ),
    ] {
        let refused = b.post(path, body).await;
        assert_eq!(
            (refused.status.as_u16(), &refused.json()["error"]),
            (400, &json!(error)),
            "{path}"
        );
    }
    let nothing = b.post("/api/tokenize", json!({"model": "cria", "text": ""})).await;
    assert_eq!((nothing.status.as_u16(), &nothing.json()["tokens"]), (200, &json!([])));
    assert_eq!(b.fake.generated.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn what_alone_says_nothing_is_named_or_refused() {
    let b = Bench::new();
    let top = chat(json!({"top_logprobs": 2, "stream": false}));
    let native = b.post("/api/chat", top.clone()).await;
    assert_eq!((native.status.as_u16(), native.header("x-puna-ignored")), (200, "top_logprobs"));
    let openai = b.post("/v1/chat/completions", top).await;
    assert_eq!(openai.status, 400);
    assert_eq!(openai.json()["error"]["message"], "top_logprobs needs logprobs: true");
    let both =
        b.post("/v1/chat/completions", chat(json!({"top_logprobs": 2, "logprobs": true}))).await;
    assert_eq!(both.status, 200, "{}", both.body);
}

#[tokio::test]
async fn health_is_told() {
    let answer = Bench::new().get("/health").await;
    assert_eq!((answer.status.as_u16(), answer.json()), (200, json!({"status": "ok"})));
}

#[tokio::test]
async fn sound_is_refused_with_what_is_wrong() {
    let b = Bench::new();
    let ask = async |kind: &str, body: &str| {
        let request = Request::post("/v1/audio/transcriptions").header("content-type", kind);
        let answer = b.send(request.body(Body::from(body.to_owned())).unwrap()).await;
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
async fn what_waits_for_its_model_counts_among_the_bodies() {
    let b = Bench::new();
    let all = crate::http::body_budget::BODY_BUDGET_BYTES as u64;
    let is_free = || b.door.body_budget().reservation().check_available(all).is_ok();
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
        b.post("/v1/completions", body)
    };
    assert!(is_free());
    b.fake.dawdles.store(true, Ordering::Relaxed);
    {
        let asked = ask(2);
        tokio::pin!(asked);
        let is_read = || b.fake.dawdled.load(Ordering::Relaxed) == 2;
        tokio::select! {
            _ = &mut asked => panic!("it waits"),
            () = until("it is read", &is_read) => {}
        }
        // The text of the second answer's prompt, too.
        assert!(b.door.body_budget().reservation().check_available(all - 1_000_000).is_err());
        // Taken, it holds nothing more, however long it goes on.
        b.fake.hangs.store(true, Ordering::Relaxed);
        b.fake.dawdles.store(false, Ordering::Relaxed);
        tokio::select! {
            _ = &mut asked => panic!("it hangs"),
            () = until("it is taken", &is_free) => {}
        }
        b.fake.hangs.store(false, Ordering::Relaxed);
        assert_eq!(asked.await.status, 200);
    }
    // So does one that is given up.
    b.fake.dawdles.store(true, Ordering::Relaxed);
    let left = tokio::time::timeout(Duration::from_millis(200), ask(1)).await;
    assert!(left.is_err());
    until("it is given up", &is_free).await;
    b.fake.dawdles.store(false, Ordering::Relaxed);
}
