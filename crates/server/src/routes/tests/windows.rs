//! Tests of the context windows in lists of models.

use super::*;

async fn create(server: &TestServer, name: &str, extra: Value) {
    let mut body = json!({"model": name, "from": "cria", "stream": false});
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    let made = server.post("/api/create", body).await;
    assert_eq!(made.status, StatusCode::OK, "{}", made.body);
}

async fn model_object(server: &TestServer, name: &str) -> Value {
    server.get(&format!("/v1/models/{name}")).await.json()
}

#[tokio::test]
async fn a_list_has_the_context_window_without_options_and_loads_nothing() {
    let server = TestServer::new();
    create(&server, "short", json!({"parameters": {"num_ctx": 512, "unheard_of": 1}})).await;
    create(&server, "long", json!({"parameters": {"num_ctx": 100_000}})).await;
    let answer = server.get("/v1/models").await;
    assert_eq!(
        answer.header("x-puna-ignored"),
        "",
        "parameters of models are no fields of this request"
    );
    for model in answer.json()["data"].as_array().unwrap() {
        let expected = if model["id"] == "short:latest" { 512 } else { 2048 };
        let windows = [&model["context_length"], &model["max_model_len"], &model["meta"]["n_ctx"]];
        assert_eq!(windows, [&json!(expected); 3], "{model}");
        assert_eq!(
            (&model["meta"]["n_ctx_train"], &model["meta"]["n_vocab"]),
            (&json!(2048), &json!(4096)),
            "{model}"
        );
        assert!(model["meta"]["n_params"].as_u64().unwrap() > 1_000_000, "{model}");
        assert!(
            model["meta"]["n_embd"].as_u64().unwrap() > 1
                && model["meta"]["size"].as_u64().unwrap() > 1_000_000
        );
    }
    assert_eq!(model_object(&server, "short").await["max_model_len"], 512);
    assert_eq!(server.fake.started.load(Ordering::Relaxed), 0, "nothing was loaded");
}

#[tokio::test]
async fn the_limit_of_the_server_applies_unless_a_model_has_one() {
    let server = TestServer::with(|config| config.context_length = Some(32));
    create(&server, "short", json!({"parameters": {"num_ctx": 512}})).await;
    server.store_zoo("plain", "qwen3-bf16.gguf").await;
    assert_eq!(model_object(&server, "plain").await["context_length"], 32);
    assert_eq!(model_object(&server, "short").await["context_length"], 512);
}

#[tokio::test]
async fn the_limit_of_a_request_does_not_change_the_listed_window_of_a_loaded_model() {
    let server = TestServer::new();
    let short = json!({"options": {"num_predict": 1, "num_ctx": 300}});
    assert_eq!(server.post("/api/chat", chat(short)).await.status, StatusCode::OK);
    assert_eq!(server.get("/api/ps").await.json()["models"][0]["context_length"], 300);
    assert_eq!(model_object(&server, "cria").await["context_length"], 2048);
}

#[tokio::test]
async fn a_model_larger_than_the_memory_has_no_window() {
    let server = TestServer::new();
    server.fake.need.store(u64::MAX, Ordering::Relaxed);
    let model = model_object(&server, "cria").await;
    assert_eq!(
        (&model["context_length"], &model["meta"]["n_ctx_train"]),
        (&Value::Null, &json!(2048))
    );
}

#[tokio::test]
async fn the_anthropic_model_list_has_the_context_window_too() {
    let server = TestServer::new();
    create(&server, "short", json!({"parameters": {"num_ctx": 512}})).await;
    for path in ["/v1/models?limit=1", "/v1/models/short"] {
        let answer =
            server.with_headers("GET", path, &[("anthropic-version", "2023-06-01")]).await.json();
        let model = answer["data"].get(0).unwrap_or(&answer);
        assert_eq!(
            (&model["max_input_tokens"], &model["context_length"]),
            (&json!(512), &json!(512)),
            "{answer}"
        );
    }
}

#[tokio::test]
async fn sizes_in_the_config_of_a_remote_model_are_shown_and_listed() {
    let server = TestServer::with(|config| config.remotes = vec!["127.0.0.1:9".into()]);
    let remote = json!({"from": "m", "remote_host": "http://127.0.0.1:9/v1"});
    let with = |info: Value| {
        let mut body = remote.clone();
        body["info"] = info;
        body
    };
    create(
        &server,
        "told",
        with(json!({"context_length": 131_072, "model_family": "qwen3", "embedding_length": 1024})),
    )
    .await;
    create(&server, "untold", with(json!({"capabilities": ["completion"]}))).await;
    create(&server, "nameless", with(json!({"context_length": 131_072}))).await;
    let info = async |name: &str| {
        server.post("/api/show", json!({"model": name})).await.json()["model_info"].clone()
    };
    let expected = json!({"general.architecture": "qwen3", "qwen3.context_length": 131_072, "qwen3.embedding_length": 1024});
    assert_eq!(info("told").await, expected);
    assert_eq!((info("untold").await, info("nameless").await), (json!({}), json!({})));
    assert_eq!(model_object(&server, "told").await["context_length"], 131_072);
    assert_eq!(model_object(&server, "untold").await["context_length"], Value::Null);
    assert_eq!(
        model_object(&server, "untold").await["meta"],
        json!({}),
        "a remote model takes no space here"
    );
}
