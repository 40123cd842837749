//! Tests of images by URL behind the middleware: the errors where they are not fetched, and where
//! the model accepts no images.

use tokio::net::TcpListener;

use super::*;

#[tokio::test]
async fn image_urls_are_refused_by_setting_or_capability_and_not_fetched() {
    let host = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/a.png", host.local_addr().unwrap());
    let requests = [
        (
            "/v1/chat/completions",
            json!({"model": "cria", "messages": [{"role": "user", "content": [
            {"type": "image_url", "image_url": {"url": url}}]}]}),
        ),
        (
            "/v1/responses",
            json!({"model": "cria", "input": [{"role": "user", "content": [
            {"type": "input_image", "image_url": url}]}]}),
        ),
        (
            "/v1/responses/input_tokens",
            json!({"model": "cria", "input": [{"role": "user", "content": [
            {"type": "input_image", "image_url": url}]}]}),
        ),
        (
            "/v1/messages",
            json!({"model": "cria", "max_tokens": 5, "messages": [{"role": "user", "content": [
            {"type": "image", "source": {"type": "url", "url": url}}]}]}),
        ),
        (
            "/v1/messages/count_tokens",
            json!({"model": "cria", "messages": [{"role": "user", "content": [
            {"type": "image", "source": {"type": "url", "url": url}}]}]}),
        ),
    ];
    let off = TestServer::new();
    let on = TestServer::with(|config| {
        (config.image_urls, config.image_hosts) = (true, vec!["127.0.0.1".into()])
    });
    for (path, body) in requests {
        for (bench, want) in [(&off, "image_urls"), (&on, "model does not support image input")] {
            let answer = bench.post(path, body.clone()).await;
            let text = answer.json()["error"]["message"].as_str().unwrap_or_default().to_owned();
            assert!(answer.status == 400 && text.contains(want), "{path}: {want}: {}", answer.body);
        }
    }
    let asked = tokio::time::timeout(Duration::from_millis(100), host.accept()).await;
    assert!(asked.is_err(), "somebody was asked for an image that nobody sees");
}

#[tokio::test]
async fn a_conversation_continues_after_an_unreadable_image() {
    let (link, broken) = ("http://127.0.0.1:9/a.png", "data:image/png;base64,!!");
    let source = |url: &str| match url.split_once(',') {
        Some((_, data)) => json!({"type": "base64", "media_type": "image/png", "data": data}),
        None => json!({"type": "url", "url": url}),
    };
    let turns = |content: Value| {
        json!([{"role": "user", "content": content},
        {"role": "assistant", "content": "a"}, {"role": "user", "content": "b"}])
    };
    let requests = |url: &str| {
        let image = json!({"type": "image", "source": source(url)});
        let result = json!({"type": "tool_result", "tool_use_id": "a", "content": [image]});
        [
            (
                "/v1/chat/completions",
                json!({"max_tokens": 2,
                "messages": turns(json!([{"type": "image_url", "image_url": {"url": url}}]))}),
            ),
            (
                "/v1/responses",
                json!({"max_output_tokens": 2,
                "input": turns(json!([{"type": "input_image", "image_url": url}]))}),
            ),
            (
                "/v1/responses",
                json!({"max_output_tokens": 2, "input": [{"role": "user", "content": "hi"},
                {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_image", "image_url": url}]}]}),
            ),
            ("/v1/messages", json!({"max_tokens": 2, "messages": turns(json!([image]))})),
            (
                "/v1/messages",
                json!({"max_tokens": 2, "messages": [{"role": "user", "content": "hi"},
                {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]},
                {"role": "user", "content": [result]}]}),
            ),
        ]
    };
    let off = TestServer::new();
    let on = TestServer::with(|config| {
        (config.image_urls, config.image_hosts) = (true, vec!["127.0.0.1".into()])
    });
    for (url, bench) in [(link, &off), (link, &on), (broken, &off)] {
        for (path, mut body) in requests(url) {
            body["model"] = json!("cria");
            let answer = bench.post(path, body).await;
            assert_eq!(answer.status, 200, "{path}: {}", answer.body);
            assert!(answer.header("x-puna-adapted").contains("placeholder"), "{path}");
        }
    }
}
