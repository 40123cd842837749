//! Tests of `/v1/messages` and the other Anthropic routes behind the middleware.

use super::*;

fn request(extra: Value) -> Value {
    let mut body = json!({
        "model": "cria", "max_tokens": 5, "thinking": {"type": "disabled"}, "messages": [{"role": "user", "content": "hi"}],
    });
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

#[tokio::test]
async fn messages_are_answered_whole_and_streamed() {
    let server = TestServer::new();
    let whole = server.post("/v1/messages?beta=true", request(json!({}))).await;
    assert_eq!((whole.status.as_u16(), whole.header("content-type")), (200, "application/json"));
    let whole = whole.json();
    assert_eq!(
        (&whole["type"], &whole["role"], &whole["model"]),
        (&json!("message"), &json!("assistant"), &json!("cria"))
    );
    assert_eq!(
        (&whole["stop_reason"], &whole["stop_sequence"]),
        (&json!("max_tokens"), &Value::Null)
    );
    assert_eq!(whole["usage"]["output_tokens"], 5);
    let text =
        whole["content"].as_array().unwrap().iter().find(|block| block["type"] == "text").unwrap();
    let streamed = server.post("/v1/messages", request(json!({"stream": true}))).await;
    assert_eq!(
        (streamed.header("content-type"), streamed.header("cache-control")),
        ("text/event-stream", "no-cache")
    );
    assert!(
        streamed
            .body
            .starts_with("event: message_start\ndata: {\"type\":\"message_start\",\"message\":")
    );
    assert!(streamed.body.ends_with("event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"));
    let events = streamed.body.lines().filter_map(|line| line.strip_prefix("data: "));
    let events: Vec<Value> = events.map(|data| serde_json::from_str(data).unwrap()).collect();
    let joined: String =
        events.iter().filter_map(|event| event["delta"]["text"].as_str()).collect();
    assert_eq!(text["text"], joined);
}

#[tokio::test]
async fn a_stop_sequence_is_reported() {
    let server = TestServer::new();
    let answer =
        server.post("/v1/messages", request(json!({"stop_sequences": ["w9", "w3"]}))).await.json();
    assert_eq!(
        (&answer["stop_reason"], &answer["stop_sequence"]),
        (&json!("stop_sequence"), &json!("w3"))
    );
}

#[tokio::test]
async fn errors_have_the_anthropic_format_for_streams_too() {
    let server = TestServer::new();
    let error = async |body: Value| {
        let answer = server.post("/v1/messages", body).await;
        let json = answer.json();
        let id = json["request_id"].as_str().unwrap().strip_prefix("req_").unwrap();
        assert!(id.len() == 24 && id.bytes().all(|server| server.is_ascii_hexdigit()));
        assert_eq!(json["type"], "error");
        (answer.status.as_u16(), json["error"].clone())
    };
    let wrong = |message: &str| (400, json!({"type": "invalid_request_error", "message": message}));
    assert_eq!(error(json!({"max_tokens": 0})).await, wrong("model is required"));
    let limit = "max_tokens is required and must be positive";
    assert_eq!(error(json!({"model": "cria"})).await, wrong(limit));
    assert_eq!(error(request(json!({"messages": []}))).await, wrong("messages is required"));
    let missing = json!({"type": "not_found_error", "message": "model 'no-such' not found"});
    assert_eq!(error(request(json!({"model": "no-such", "stream": true}))).await, (404, missing));
    let text =
        "json: cannot unmarshal string into Go struct field MessagesRequest.max_tokens of type int";
    assert_eq!(error(request(json!({"max_tokens": "5"}))).await, wrong(text));
}

#[tokio::test]
async fn a_stored_thread_is_not_found() {
    let server = TestServer::new();
    let created = server.post("/v1/messages", request(json!({"thread": {"type": "create"}}))).await;
    assert_eq!(created.status, 200, "{}", created.body);
    for stream in [false, true] {
        let thread = json!({"type": "continue", "previous_message_id": "msg_1"});
        let refused =
            server.post("/v1/messages", request(json!({"thread": thread, "stream": stream}))).await;
        assert_eq!(refused.status, 404, "{}", refused.body);
        let error = &refused.json()["error"];
        assert_eq!(
            (&error["type"], &error["details"]["error_code"]),
            (&json!("not_found_error"), &json!("thread_not_found"))
        );
    }
}

#[tokio::test]
async fn tokens_are_counted_without_max_tokens() {
    let server = TestServer::new();
    let prompt =
        server.post("/v1/messages", request(json!({"_debug_render_only": true}))).await.json();
    let prompt = prompt["_debug_info"]["rendered_template"].as_str().unwrap().len();
    let mut count = request(json!({}));
    count.as_object_mut().unwrap().remove("max_tokens");
    let answer = server.post("/v1/messages/count_tokens", count).await;
    assert_eq!(
        (answer.status.as_u16(), answer.json()),
        (200, json!({"input_tokens": prompt})),
        "{}",
        answer.body
    );
    assert_eq!(server.fake.generated.load(Ordering::Relaxed), 0);
    let missing = server.post("/v1/messages/count_tokens", json!({"model": "cria"})).await;
    assert_eq!(missing.json()["error"]["message"], "messages is required");
}

#[tokio::test]
async fn clients_receive_pings_during_the_prefill() {
    let server = TestServer::new();
    server.fake.prefill.store(60, Ordering::Relaxed);
    let answer = server.post("/v1/messages", request(json!({"stream": true}))).await;
    let before = answer.body.split_once("content_block_start").unwrap().0;
    assert!(before.matches("event: ping\n").count() >= 2, "{before}");
}

#[tokio::test]
async fn models_are_listed_in_the_format_that_the_client_header_selects() {
    let server = TestServer::new();
    server.post("/api/copy", json!({"source": "cria", "destination": "twin"})).await;
    let get = async |path: &str| {
        server.with_headers("GET", path, &[("anthropic-version", "2023-06-01")]).await.json()
    };
    let list = get("/v1/models").await;
    let model = &list["data"][0];
    assert_eq!((&model["type"], &model["display_name"]), (&json!("model"), &model["id"]));
    assert!(model["created_at"].as_str().unwrap().parse::<jiff::Timestamp>().is_ok());
    assert_eq!((list["data"].as_array().unwrap().len(), &list["has_more"]), (2, &json!(false)));
    let first = get("/v1/models?limit=1").await;
    assert_eq!(
        (&first["data"][0], &first["has_more"], &first["last_id"]),
        (model, &json!(true), &list["first_id"])
    );
    let after = get(&format!("/v1/models?after_id={}", list["first_id"].as_str().unwrap())).await;
    assert_eq!((&after["data"][0], &after["has_more"]), (&list["data"][1], &json!(false)));
    assert_eq!(get("/v1/models?limit=0").await["error"]["type"], "invalid_request_error");
    assert_eq!(get("/v1/models/cria").await["type"], "model");
    assert_eq!(get("/v1/models/no-such").await["error"]["type"], "not_found_error");
    assert_eq!(server.get("/v1/models/cria").await.json()["object"], "model");
}

#[tokio::test]
async fn a_prompt_that_is_too_long_is_refused_if_it_may_not_be_truncated() {
    let server = TestServer::new();
    let turn = |role: &str, text: &str, times| json!({"role": role, "content": text.repeat(times)});
    let messages =
        json!([turn("user", "one ", 2), turn("assistant", "two ", 30), turn("user", "three ", 3)]);
    let long = |extra: Value| {
        let mut body = request(json!({"messages": messages, "options": {"num_ctx": 100}}));
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        body
    };
    let figures = |usage: &Value| {
        ["truncated_messages", "truncated_tokens"].map(|name| usage[name].as_u64().unwrap_or(0))
    };
    let [messages, tokens] = figures(
        &server.post("/v1/messages", long(json!({"truncate": true}))).await.json()["usage"],
    );
    assert_eq!((messages, tokens), (1, 0), "the task and the newest turn stay");
    let stream =
        server.post("/v1/messages", long(json!({"stream": true, "truncate": true}))).await.body;
    let events = stream
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line.strip_prefix("data: ")?).ok());
    let end = events.into_iter().find(|event| event["type"] == "message_delta").unwrap();
    assert_eq!(figures(&end["usage"]), [messages, tokens]);
    for refused in [json!({}), json!({"truncate": false}), json!({"stream": true})] {
        let refused = server.post("/v1/messages", long(refused)).await;
        let error = refused.json()["error"].clone();
        assert_eq!(
            (refused.status.as_u16(), &error["type"]),
            (400, &json!("invalid_request_error"))
        );
        // Clients compact the conversation when the message has these words.
        let message = error["message"].as_str().unwrap();
        assert!(
            message.starts_with("prompt is too long: ")
                && message.ends_with(" tokens > 100 maximum"),
            "{error}"
        );
    }
    let fits = server.post("/v1/messages", request(json!({"truncate": false}))).await;
    assert_eq!((fits.status.as_u16(), fits.header("x-puna-ignored")), (200, ""));
    assert!(fits.json()["usage"].get("truncated_tokens").is_none());
}

#[tokio::test]
async fn thinking_is_ignored_and_named_for_a_model_without_it() {
    let server = TestServer::new();
    let made = json!({"model": "plain", "from": "cria", "renderer": "qwen3-coder", "parser": "qwen3-coder", "stream": false});
    assert_eq!(server.post("/api/create", made).await.status, 200);
    let ignored = async |extra: Value| {
        let mut body = request(extra);
        body["model"] = json!("plain");
        let answer = server.post("/v1/messages", body).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        answer.header("x-puna-ignored").to_owned()
    };
    assert_eq!(
        ignored(json!({"thinking": {"type": "enabled", "budget_tokens": 1024}})).await,
        "thinking"
    );
    assert_eq!(ignored(json!({"output_config": {"effort": "high"}})).await, "output_config.effort");
    assert_eq!(ignored(json!({"thinking": {"type": "disabled"}})).await, "");
    let form = json!({"output_format": {"type": "regex", "pattern": "("}, "model": "cria"});
    let refused = server.post("/v1/messages", request(form)).await;
    assert_eq!(
        (refused.status.as_u16(), refused.header("x-puna-ignored")),
        (400, ""),
        "{}",
        refused.body
    );
}
