//! The context windows that lists of models tell.

use super::*;

async fn create(b: &Bench, name: &str, extra: Value) {
    let mut body = json!({"model": name, "from": "cria", "stream": false});
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    let made = b.post("/api/create", body).await;
    assert_eq!(made.status, StatusCode::OK, "{}", made.body);
}

async fn about(b: &Bench, name: &str) -> Value {
    b.get(&format!("/v1/models/{name}")).await.json()
}

#[tokio::test]
async fn a_list_tells_the_window_of_a_request_without_options_and_loads_nothing() {
    let b = Bench::new();
    create(&b, "short", json!({"parameters": {"num_ctx": 512, "unheard_of": 1}})).await;
    create(&b, "long", json!({"parameters": {"num_ctx": 100_000}})).await;
    let answer = b.get("/v1/models").await;
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
    assert_eq!(about(&b, "short").await["max_model_len"], 512);
    assert_eq!(b.fake.started.load(Ordering::Relaxed), 0, "nothing was loaded");
}

#[tokio::test]
async fn the_server_s_own_limit_counts_unless_a_model_has_one() {
    let b = Bench::with(|config| config.context_length = Some(32));
    create(&b, "short", json!({"parameters": {"num_ctx": 512}})).await;
    b.store_zoo("plain", "qwen3-bf16.gguf").await;
    assert_eq!(about(&b, "plain").await["context_length"], 32);
    assert_eq!(about(&b, "short").await["context_length"], 512);
}

#[tokio::test]
async fn a_request_s_own_limit_does_not_change_what_is_told_of_a_loaded_model() {
    let b = Bench::new();
    let short = json!({"options": {"num_predict": 1, "num_ctx": 300}});
    assert_eq!(b.post("/api/chat", chat(short)).await.status, StatusCode::OK);
    assert_eq!(b.get("/api/ps").await.json()["models"][0]["context_length"], 300);
    assert_eq!(about(&b, "cria").await["context_length"], 2048);
}

#[tokio::test]
async fn a_model_larger_than_the_memory_has_no_window() {
    let b = Bench::new();
    b.fake.need.store(u64::MAX, Ordering::Relaxed);
    let model = about(&b, "cria").await;
    assert_eq!(
        (&model["context_length"], &model["meta"]["n_ctx_train"]),
        (&Value::Null, &json!(2048))
    );
}

#[tokio::test]
async fn anthropic_s_form_tells_the_window_too() {
    let b = Bench::new();
    create(&b, "short", json!({"parameters": {"num_ctx": 512}})).await;
    for path in ["/v1/models?limit=1", "/v1/models/short"] {
        let answer =
            b.with_headers("GET", path, &[("anthropic-version", "2023-06-01")]).await.json();
        let model = answer["data"].get(0).unwrap_or(&answer);
        assert_eq!(
            (&model["max_input_tokens"], &model["context_length"]),
            (&json!(512), &json!(512)),
            "{answer}"
        );
    }
}

#[tokio::test]
async fn what_a_recipe_says_of_a_remote_model_is_shown_and_told() {
    let b = Bench::with(|config| config.remotes = vec!["127.0.0.1:9".into()]);
    let remote = json!({"from": "m", "remote_host": "http://127.0.0.1:9/v1"});
    let with = |info: Value| {
        let mut body = remote.clone();
        body["info"] = info;
        body
    };
    create(
        &b,
        "told",
        with(json!({"context_length": 131_072, "model_family": "qwen3", "embedding_length": 1024})),
    )
    .await;
    create(&b, "untold", with(json!({"capabilities": ["completion"]}))).await;
    create(&b, "nameless", with(json!({"context_length": 131_072}))).await;
    let info = async |name: &str| {
        b.post("/api/show", json!({"model": name})).await.json()["model_info"].clone()
    };
    let expected = json!({"general.architecture": "qwen3", "qwen3.context_length": 131_072, "qwen3.embedding_length": 1024});
    assert_eq!(info("told").await, expected);
    assert_eq!((info("untold").await, info("nameless").await), (json!({}), json!({})));
    assert_eq!(about(&b, "told").await["context_length"], 131_072);
    assert_eq!(about(&b, "untold").await["context_length"], Value::Null);
    assert_eq!(about(&b, "untold").await["meta"], json!({}), "a remote model takes no space here");
}
