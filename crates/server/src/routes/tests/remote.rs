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
