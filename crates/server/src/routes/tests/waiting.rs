//! Streams whose model is not in memory yet.

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

async fn stream(b: &Bench, path: &str, body: &Value) -> Answer {
    let mut body = body.clone();
    (body["model"], body["stream"]) = (json!("cria"), json!(true));
    b.post(path, body).await
}

#[tokio::test]
async fn event_streams_tell_that_the_model_loads_in_comments() {
    for (path, body) in requests() {
        let b = Bench::new();
        b.fake.slow.store(1500, Ordering::Relaxed);
        let answer = stream(&b, path, &body).await;
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
        // One that is in memory has no such thing to say.
        let again = stream(&b, path, &body).await;
        assert!(!again.body.contains(": loading"), "{path}: {}", again.body);
    }
}

#[tokio::test]
async fn clients_that_count_events_only_get_events_while_the_model_loads() {
    let [_, _, responses, messages] = requests();
    for ((path, body), event, first) in [
        (responses, "response.in_progress", "response.created"),
        (messages, "ping", "message_start"),
    ] {
        let b = Bench::new();
        b.fake.slow.store(1500, Ordering::Relaxed);
        let answer = stream(&b, path, &body).await;
        let events: Vec<_> =
            answer.body.lines().filter_map(|line| line.strip_prefix("event: ")).collect();
        let loading = answer.body.rfind(": loading").unwrap();
        let before = answer.body[..loading].matches(&format!("event: {event}\n")).count();
        assert!(before >= 2, "{path}: {}", answer.body);
        assert_eq!(events.iter().filter(|name| **name == first).count(), 1, "{path}: {events:?}");
    }
}

#[tokio::test]
async fn a_load_that_fails_late_is_the_stream_s_end_and_one_that_fails_early_a_status() {
    for (path, body) in requests() {
        let b = Bench::new();
        b.fake.broken.store(true, Ordering::Relaxed);
        assert_eq!(stream(&b, path, &body).await.status, 500, "{path}");
        b.fake.slow.store(1000, Ordering::Relaxed);
        let answer = stream(&b, path, &body).await;
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
async fn native_streams_have_nothing_but_their_lines() {
    let b = Bench::new();
    b.fake.slow.store(1500, Ordering::Relaxed);
    let answer = b.post("/api/chat", chat(json!({}))).await;
    assert!(answer.lines().iter().all(|line| line["message"].is_object()), "{}", answer.body);
}

#[tokio::test]
async fn what_a_stream_waits_with_counts_among_the_bodies() {
    let b = Bench::new();
    b.fake.slow.store(1500, Ordering::Relaxed);
    let is_free = || {
        b.door
            .body_budget()
            .reservation()
            .check_available(crate::http::body_budget::BODY_BUDGET_BYTES as u64)
            .is_ok()
    };
    let body =
        json!({"model": "cria", "prompt": "x".repeat(400_000), "max_tokens": 1, "stream": true});
    let asked = b.post("/v1/completions", body);
    tokio::pin!(asked);
    // The stream has begun by then, which needed the request until that; the model is still on its way.
    tokio::select! {
        _ = &mut asked => panic!("it waits for its model"),
        () = tokio::time::sleep(Duration::from_millis(900)) => assert!(!is_free()),
    }
    let answer = asked.await;
    assert!(answer.body.contains(": loading") && is_free(), "{}", answer.body);
}
