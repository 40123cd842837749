//! Tests of models on remote servers that cannot be reached.

use super::*;

async fn start_server(dialect: &str) -> TestServer {
    let server = TestServer::with(|config| config.remotes = vec!["127.0.0.1:9".into()]);
    let made = json!({"model": "far", "from": "m", "remote_host": format!("http://127.0.0.1:9/{dialect}"), "stream": false});
    let made = server.post("/api/create", made).await;
    assert_eq!(made.status, 200, "{}", made.body);
    server
}

#[tokio::test]
async fn fields_that_a_remote_server_ignores_are_named() {
    let options =
        json!({"num_ctx": 8, "temperature": 1, "mirostat": 1, "num_predict": 3, "dry_base": 2});
    let extra = json!({"model": "far", "keep_alive": "5m", "truncate": false, "shift": true, "options": options});
    let with = |own: Value| {
        let mut body = extra.clone();
        body.as_object_mut().unwrap().extend(own.as_object().unwrap().clone());
        body
    };
    let messages = json!([{"role": "user", "content": "hi"}]);
    let lost = "options.mirostat, keep_alive, truncate, shift, options.num_ctx, options.dry_base";
    let cases = [
        ("/api/chat", json!({"messages": messages}), lost),
        ("/api/generate", json!({"prompt": "hi"}), lost),
        ("/v1/chat/completions", json!({"messages": messages, "top_k": 4}), lost),
        ("/v1/messages", json!({"messages": messages, "max_tokens": 4}), lost),
    ];
    let (openai, native) = (start_server("v1").await, start_server("api").await);
    for (path, own, lost) in cases {
        let answer = openai.post(path, with(own.clone())).await;
        assert_eq!(
            (answer.status.as_u16(), answer.header("x-puna-ignored")),
            (502, lost),
            "{path}: {}",
            answer.body
        );
        let answer = native.post(path, with(own)).await;
        assert_eq!(
            (answer.status.as_u16(), answer.header("x-puna-ignored")),
            (502, "options.mirostat"),
            "{path}"
        );
    }
    let embed = json!({"model": "far", "input": "x", "truncate": true, "keep_alive": 1, "options": {"num_ctx": 8}});
    let answer = openai.post("/api/embed", embed.clone()).await;
    assert_eq!(
        answer.header("x-puna-ignored"),
        "keep_alive, truncate, options.num_ctx",
        "{}",
        answer.body
    );
    assert_eq!(native.post("/api/embed", embed).await.header("x-puna-ignored"), "");
    // These requests send nothing to the remote server.
    let unload = native.post("/api/chat", json!({"model": "far", "keep_alive": 0})).await;
    assert_eq!((unload.status.as_u16(), unload.header("x-puna-ignored")), (200, "keep_alive"));
}

/// Starts a server that sends the same texts for every request, then ends the answer. Without a
/// `count` it never ends.
async fn start_repeating_server(text: String, count: Option<usize>, end: &'static str) -> String {
    let answer = move || {
        let text = axum::body::Bytes::from(text.clone());
        let texts = std::iter::repeat_n(text, count.unwrap_or(usize::MAX));
        let texts = texts.chain([axum::body::Bytes::from_static(end.as_bytes())]);
        let stream = futures_util::stream::iter(texts.map(Ok::<_, std::convert::Infallible>));
        async move { axum::body::Body::from_stream(stream) }
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let router = axum::Router::new().fallback(answer);
    tokio::spawn(async move { axum::serve(listener, router).await });
    format!("http://{address}")
}

/// Asks a remote model for an answer in one piece.
async fn ask(base: &str, dialect: &str) -> TestResponse {
    let allowed = base.trim_start_matches("http://").to_owned();
    let server = TestServer::with(move |config| config.remotes = vec![allowed]);
    let host = format!("{base}/{dialect}");
    let made = json!({"model": "far", "from": "m", "remote_host": host, "stream": false});
    assert_eq!(server.post("/api/create", made).await.status, 200);
    let messages = json!([{"role": "user", "content": "hi"}]);
    let body = json!({"model": "far", "messages": messages, "stream": false});
    server.post("/api/chat", body).await
}

#[tokio::test]
async fn a_remote_server_that_sends_no_output_without_end_is_an_error() {
    let long = "x".repeat(60);
    let idle = [
        ("v1", format!(": {long}\n\n").repeat(1000)),
        ("v1", format!("data: {{\"choices\": [], \"padding\": \"{long}\"}}\n\n").repeat(100)),
        (
            "v1",
            format!("data: {{\"choices\": [{{\"delta\": {{\"role\": \"{long}\"}}}}]}}\n\n")
                .repeat(100),
        ),
        ("api", "\n".repeat(64 << 10)),
        (
            "api",
            format!(
                "{{\"message\": {{\"role\": \"{long}\", \"content\": \"\"}}, \"done\": false}}\n"
            )
            .repeat(100),
        ),
    ];
    for (dialect, text) in idle {
        let start: String = text.chars().take(20).collect();
        let base = start_repeating_server(text, None, "").await;
        let answer = ask(&base, dialect).await;
        assert_eq!(answer.status, 502, "{start}: {}", answer.body);
        assert!(
            answer.body.contains("more than 16 MiB without an output"),
            "{start}: {}",
            answer.body
        );
    }
}

#[tokio::test]
async fn output_of_a_remote_server_has_no_limit_of_idle_data() {
    let piece = "x".repeat(1 << 20);
    let cases = [
        (
            "v1",
            format!("data: {{\"choices\": [{{\"delta\": {{\"content\": \"{piece}\"}}}}]}}\n\n"),
            "data: {\"choices\": [{\"delta\": {}, \"finish_reason\": \"stop\"}]}\n\ndata: [DONE]\n\n",
        ),
        (
            "api",
            format!("{{\"message\": {{\"role\": \"assistant\", \"content\": \"{piece}\"}}}}\n"),
            "{\"message\": {\"role\": \"assistant\", \"content\": \"\"}, \"done\": true}\n",
        ),
    ];
    for (dialect, text, end) in cases {
        let base = start_repeating_server(text, Some(18), end).await;
        let answer = ask(&base, dialect).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        assert!(answer.body.len() > 18 << 20, "{dialect}: {}", answer.body.len());
    }
}
