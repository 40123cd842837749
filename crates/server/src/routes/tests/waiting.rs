//! Tests of streams that wait for their model to load.

use super::*;

fn requests() -> [(&'static str, Value); 4] {
    let messages = json!([{"role": "user", "content": "hi"}]);
    [
        ("/v1/chat/completions", json!({"messages": messages, "max_tokens": 2})),
        ("/v1/completions", json!({"prompt": "hi", "max_tokens": 2})),
        ("/v1/responses", json!({"input": "hi", "max_output_tokens": 2})),
        ("/v1/messages", json!({"messages": messages, "max_tokens": 2})),
    ]
}

async fn stream(server: &TestServer, path: &str, body: &Value) -> TestResponse {
    let mut body = body.clone();
    (body["model"], body["stream"]) = (json!("cria"), json!(true));
    server.post(path, body).await
}

#[tokio::test]
async fn event_streams_report_loading_in_comments() {
    for (path, body) in requests() {
        let server = TestServer::new();
        server.fake.slow.store(1500, Ordering::Relaxed);
        let answer = stream(&server, path, &body).await;
        assert_eq!(
            (answer.status.as_u16(), answer.header("content-type")),
            (200, "text/event-stream"),
            "{path}"
        );
        let (comments, rest): (Vec<&str>, Vec<&str>) =
            answer.body.split("\n\n").partition(|piece| piece.starts_with(':'));
        assert!(comments.len() >= 3 && comments.contains(&": loading"), "{path}: {comments:?}");
        assert!(
            answer.body.starts_with(": ") && rest.concat().contains("w1"),
            "{path}: {}",
            answer.body
        );
        // A loaded model sends no comments about loading.
        let again = stream(&server, path, &body).await;
        assert!(!again.body.contains(": loading"), "{path}: {}", again.body);
    }
}

#[tokio::test]
async fn streams_of_responses_and_messages_send_events_during_loading() {
    let [_, _, responses, messages] = requests();
    for ((path, body), event, first) in [
        (responses, "response.in_progress", "response.created"),
        (messages, "ping", "message_start"),
    ] {
        let server = TestServer::new();
        server.fake.slow.store(1500, Ordering::Relaxed);
        let answer = stream(&server, path, &body).await;
        let events: Vec<_> =
            answer.body.lines().filter_map(|line| line.strip_prefix("event: ")).collect();
        let loading = answer.body.rfind(": loading").unwrap();
        let before = answer.body[..loading].matches(&format!("event: {event}\n")).count();
        assert!(before >= 2, "{path}: {}", answer.body);
        assert_eq!(events.iter().filter(|name| **name == first).count(), 1, "{path}: {events:?}");
    }
}

#[tokio::test]
async fn an_early_load_failure_sets_the_status_and_a_late_one_ends_the_stream() {
    for (path, body) in requests() {
        let server = TestServer::new();
        server.fake.broken.store(true, Ordering::Relaxed);
        assert_eq!(stream(&server, path, &body).await.status, 500, "{path}");
        server.fake.slow.store(1000, Ordering::Relaxed);
        let answer = stream(&server, path, &body).await;
        assert_eq!(answer.status, 200, "{path}");
        let mut data = answer
            .body
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line.strip_prefix("data: ")?).ok());
        let last = data.next_back().unwrap();
        let text =
            last["error"]["message"].as_str().or(last["response"]["error"]["message"].as_str());
        assert!(
            text.is_some_and(|text| text.contains("could not be loaded")),
            "{path}: {}",
            answer.body
        );
    }
}

#[tokio::test]
async fn native_streams_contain_only_json_lines() {
    let server = TestServer::new();
    server.fake.slow.store(1500, Ordering::Relaxed);
    let answer = server.post("/api/chat", chat(json!({}))).await;
    assert!(answer.lines().iter().all(|line| line["message"].is_object()), "{}", answer.body);
}

#[tokio::test]
async fn the_body_of_a_waiting_stream_counts_against_the_budget() {
    let server = TestServer::new();
    server.fake.slow.store(1500, Ordering::Relaxed);
    let is_free = || {
        let budget = server.middleware.body_budget();
        budget.free_bytes() == crate::http::body_budget::BODY_BUDGET_BYTES
    };
    let body =
        json!({"model": "cria", "prompt": "x".repeat(400_000), "max_tokens": 1, "stream": true});
    let asked = server.post("/v1/completions", body);
    tokio::pin!(asked);
    // The stream has begun and holds the request while the model is still loading.
    let is_held = async {
        while is_free() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::select! {
        _ = &mut asked => panic!("the stream does not hold its request"),
        () = is_held => {}
    }
    let answer = asked.await;
    assert!(answer.body.contains(": loading") && is_free(), "{}", answer.body);
}
