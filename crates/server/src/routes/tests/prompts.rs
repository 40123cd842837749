//! Tests of the log-probabilities of prompts in each dialect. In the fake engine every token has
//! -1.5, and `w` (119) has -0.5.

use super::*;

fn raw(extra: Value) -> Value {
    let mut body = json!({"model": "cria", "prompt": "abc", "raw": true, "prompt_logprobs": 1,
        "options": {"num_predict": 2}});
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

#[tokio::test]
async fn native_responses_list_the_prompt_tokens_and_streams_send_them_first() {
    let server = TestServer::new();
    let whole = server.post("/api/generate", raw(json!({"stream": false}))).await.json();
    let first = json!({"token": "a", "id": 97, "logprob": null, "rank": 0, "bytes": [97]});
    let top = json!([{"token": "w", "id": 119, "logprob": -0.5}]);
    let second = json!({"token": "b", "id": 98, "logprob": -1.5, "rank": 2, "bytes": [98], "top_logprobs": top});
    let listed = whole["prompt_logprobs"].as_array().unwrap();
    assert_eq!((listed.len(), &listed[0], &listed[1]), (3, &first, &second));
    let lines = server.post("/api/generate", raw(json!({}))).await.lines();
    assert_eq!(
        (&lines[0]["prompt_logprobs"], &lines[0]["response"]),
        (&whole["prompt_logprobs"], &json!(""))
    );
    assert!(lines[1..].iter().all(|line| line.get("prompt_logprobs").is_none()));
    let chat =
        server.post("/api/chat", chat(json!({"stream": false, "prompt_logprobs": 0}))).await.json();
    let listed = chat["prompt_logprobs"].as_array().unwrap();
    assert!(listed.len() > 2 && listed[1].get("top_logprobs").is_none(), "{chat}");
    // With `num_predict: 0` the response has the prompt only.
    let none = server
        .post("/api/generate", raw(json!({"stream": false, "options": {"num_predict": 0}})))
        .await
        .json();
    assert_eq!(none["prompt_logprobs"], whole["prompt_logprobs"]);
}

#[tokio::test]
async fn openai_routes_have_prompt_logprobs_in_the_format_of_vllm() {
    let server = TestServer::new();
    let entry = |logprob: f64, rank: u32, token: &str| json!({"logprob": logprob, "rank": rank, "decoded_token": token});
    let second = json!({"119": entry(-0.5, 1, "w"), "98": entry(-1.5, 2, "b")});
    let body =
        json!({"model": "cria", "prompt": [97, 98, 99], "max_tokens": 2, "prompt_logprobs": 1});
    let answer = server.post("/v1/completions", body).await.json();
    let listed = answer["choices"][0]["prompt_logprobs"].as_array().unwrap();
    assert_eq!((listed.len(), &listed[0], &listed[1]), (3, &Value::Null, &second));
    let answer =
        server.post("/v1/chat/completions", chat(json!({"prompt_logprobs": 1}))).await.json();
    assert!(answer["prompt_logprobs"].as_array().unwrap().len() > 2, "{answer}");
    assert!(
        server
            .post("/v1/chat/completions", chat(json!({})))
            .await
            .json()
            .get("prompt_logprobs")
            .is_none()
    );
}

#[tokio::test]
async fn an_echoed_prompt_has_its_log_probabilities() {
    let server = TestServer::new();
    let body = |stream: bool| json!({"model": "cria", "prompt": [97, 98], "max_tokens": 1, "echo": true, "logprobs": 1, "stream": stream});
    let answer = server.post("/v1/completions", body(false)).await.json();
    let choice = &answer["choices"][0];
    assert!(choice["text"].as_str().unwrap().starts_with("ab"), "{choice}");
    let all = &choice["logprobs"];
    assert_eq!(all["tokens"], json!(["a", "b", "w"]));
    assert_eq!(all["token_logprobs"], json!([null, -1.5, -0.5]));
    assert_eq!(all["top_logprobs"], json!([null, {"w": -0.5}, {"w": -0.5}]));
    assert_eq!(all["text_offset"], json!([0, 1, 2]));
    let stream = server.post("/v1/completions", body(true)).await.body;
    let chunks: Vec<Value> = stream
        .lines()
        .filter_map(|line| serde_json::from_str(line.strip_prefix("data: ")?).ok())
        .collect();
    let text: String = chunks.iter().filter_map(|c| c["choices"][0]["text"].as_str()).collect();
    assert!(text.starts_with("ab"), "{text}");
    let joined = |field: &str| -> Vec<Value> {
        let lists = chunks.iter().filter_map(|c| c["choices"][0]["logprobs"][field].as_array());
        lists.flatten().cloned().collect()
    };
    for field in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
        assert_eq!(json!(joined(field)), all[field], "{field}");
    }
}

#[tokio::test]
async fn the_tokens_of_a_scored_text_join_to_the_text() {
    let server = TestServer::new();
    server.fake.adds_bos.store(true, Ordering::Relaxed);
    let body = |stream: bool| json!({"model": "cria", "prompt": "What \u{e9}?", "max_tokens": 2, "echo": true, "logprobs": 1, "stream": stream});
    let answer = server.post("/v1/completions", body(false)).await.json();
    let choice = &answer["choices"][0];
    let texts = choice["logprobs"]["tokens"].as_array().unwrap();
    // The fake engine's tokens are bytes: a letter of two bytes is two tokens.
    let joined: String = texts.iter().filter_map(Value::as_str).collect();
    assert_eq!(joined.replace("\u{fffd}\u{fffd}", "\u{e9}"), "What \u{e9}?ww", "{choice}");
    assert!(choice["text"].as_str().unwrap().starts_with("What \u{e9}?w"), "{choice}");
    assert_eq!(choice["logprobs"]["text_offset"], json!([0, 1, 2, 3, 4, 5, 6, 6, 7, 8]));
    assert_eq!(
        choice["logprobs"]["token_logprobs"][0], -1.5,
        "behind the first token that every text gets"
    );
    let stream = server.post("/v1/completions", body(true)).await.body;
    let chunks = stream
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line.strip_prefix("data: ")?).ok());
    let offsets: Vec<Value> = chunks
        .filter_map(|chunk| chunk["choices"][0]["logprobs"]["text_offset"].as_array().cloned())
        .flatten()
        .collect();
    assert_eq!(json!(offsets), choice["logprobs"]["text_offset"]);
}

#[tokio::test]
async fn unavailable_prompt_logprobs_are_refused() {
    let server = TestServer::new();
    for (path, body, want) in [
        (
            "/api/generate",
            raw(json!({"prompt_logprobs": 21})),
            "prompt_logprobs must be between 0 and 20",
        ),
        (
            "/api/generate",
            raw(json!({"prompt_logprobs": -1})),
            "prompt_logprobs must be between 0 and 20",
        ),
        (
            "/v1/chat/completions",
            chat(json!({"prompt_logprobs": 1, "stream": true})),
            "prompt_logprobs is not supported in streams: set stream to false",
        ),
    ] {
        let answer = server.post(path, body).await;
        let json = answer.json();
        let error = json["error"].as_str().or(json["error"]["message"].as_str()).unwrap();
        assert_eq!((answer.status.as_u16(), error), (400, want), "{path}");
    }
}
