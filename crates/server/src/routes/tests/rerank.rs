//! Tests of `POST /api/rerank` and its aliases, on a fake engine. A score is a hundredth of the
//! pair's length.

use super::*;

/// Starts a server with a stored reranker.
async fn start_server() -> TestServer {
    let server = TestServer::new();
    for (name, file) in [("ranker", "bert-rank.gguf"), ("embedder", "bert-mean.gguf")] {
        server.store_zoo(name, file).await;
    }
    server.fake.ranks.store(true, Ordering::Relaxed);
    server
}

fn rerank(extra: Value) -> Value {
    let mut body = json!({"model": "ranker", "query": "q",
        "documents": ["bb", {"text": "dddd", "year": 1}, "a", "ccc"]});
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

fn indices(answer: &Value) -> Vec<u64> {
    answer["results"].as_array().unwrap().iter().map(|r| r["index"].as_u64().unwrap()).collect()
}

#[tokio::test]
async fn documents_are_sorted_by_score_on_every_route() {
    let server = start_server().await;
    for path in ["/api/rerank", "/rerank", "/v1/rerank", "/v2/rerank"] {
        let answer = server.post(path, rerank(json!({}))).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        let answer = answer.json();
        assert_eq!(indices(&answer), [1, 3, 0, 2], "{path}");
        assert_eq!((&answer["model"], &answer["object"]), (&json!("ranker"), &json!("list")));
        // Each pair has a control token before the query, between query and document, and at the
        // end.
        assert_eq!(answer["usage"], json!({"prompt_tokens": 26, "total_tokens": 26}));
        assert_eq!(answer["meta"], json!({"tokens": {"input_tokens": 26, "output_tokens": 0}}));
        let first = answer["results"][0].as_object().unwrap();
        assert_eq!(first.keys().collect::<Vec<_>>(), ["index", "relevance_score"]);
        assert!((first["relevance_score"].as_f64().unwrap() - 0.08).abs() < 1e-6);
    }
}

#[tokio::test]
async fn top_n_return_documents_and_normalize_are_applied() {
    let server = start_server().await;
    let wish = json!({"top_n": 2, "return_documents": true, "normalize": true});
    let answer = server.post("/v1/rerank", rerank(wish)).await.json();
    assert_eq!(indices(&answer), [1, 3]);
    assert_eq!(answer["results"][0]["document"], json!({"text": "dddd"}));
    assert_eq!(answer["results"][1]["document"], json!({"text": "ccc"}));
    let score = answer["results"][0]["relevance_score"].as_f64().unwrap();
    assert!((score - 1.0 / (1.0 + (-0.08f64).exp())).abs() < 1e-6, "{score}");
    let more = server.post("/v1/rerank", rerank(json!({"top_n": 99}))).await.json();
    assert_eq!(indices(&more).len(), 4);
}

#[tokio::test]
async fn truncated_tokens_of_documents_are_reported() {
    let server = start_server().await;
    let answer = server.post("/api/rerank", rerank(json!({"max_tokens_per_doc": 2}))).await.json();
    assert_eq!(answer["usage"]["truncated_documents"], 2);
    assert_eq!(answer["usage"]["truncated_tokens"], 3);
    let of = |index: u64| {
        let results = answer["results"].as_array().unwrap();
        results.iter().find(|r| r["index"] == index).unwrap()["truncated_tokens"].clone()
    };
    assert_eq!([of(0), of(1), of(2), of(3)], [Value::Null, json!(2), Value::Null, json!(1)]);
}

#[tokio::test]
async fn wrong_rerank_requests_are_refused_with_advice() {
    let server = start_server().await;
    let error = async |path: &str, body: Value| {
        let answer = server.post(path, body).await;
        assert_eq!(answer.status, 400, "{}", answer.body);
        let json = answer.json();
        json["error"].as_str().or(json["error"]["message"].as_str()).unwrap().to_owned()
    };
    let native = async |extra: Value| error("/api/rerank", rerank(extra)).await;
    assert_eq!(native(json!({"query": null})).await, "query is required");
    assert!(
        native(json!({"documents": []})).await.starts_with("documents is required: send a list")
    );
    assert_eq!(native(json!({"top_n": 0})).await, "top_n must be at least 1");
    assert_eq!(
        native(json!({"truncate_prompt_tokens": -2})).await,
        "truncate_prompt_tokens must be at least 1"
    );
    assert_eq!(native(json!({"model": ""})).await, "model is required");
    let wrong = |kind: &str, field: &str| {
        format!(
            "json: cannot unmarshal {kind} into Go struct field RerankRequest.{field} of type string"
        )
    };
    for (given, kind) in [(json!(5), "number"), (json!({"x": 1}), "object"), (json!([]), "array")] {
        assert_eq!(native(json!({"documents": ["a", given]})).await, wrong(kind, "documents"));
        assert_eq!(native(json!({"query": given})).await, wrong(kind, "query"));
    }
    let wrong = native(json!({"model": "cria"})).await;
    assert!(
        wrong.starts_with(
            "\"cria\" does not support reranking: it generates text, use POST /api/chat"
        ),
        "{wrong}"
    );
    let wrong = native(json!({"model": "embedder"})).await;
    assert!(
        wrong.contains("does not support reranking: it is an embedding model, use POST /api/embed"),
        "{wrong}"
    );
    let message = "\"ranker\" does not support chat: it is a reranker, use POST /api/rerank";
    let chat = json!({"model": "ranker", "messages": [{"role": "user", "content": "hi"}]});
    assert_eq!(error("/api/chat", chat.clone()).await, message);
    assert_eq!(error("/v1/chat/completions", chat).await, message);
    let embed = json!({"model": "ranker", "input": "hi"});
    assert_eq!(
        error("/v1/embeddings", embed).await,
        "\"ranker\" does not support embeddings: it is a reranker, use POST /api/rerank"
    );
    assert_eq!(server.fake.rerank.load(Ordering::Relaxed), 0);
    let shown = server.post("/api/show", json!({"model": "ranker"})).await.json();
    assert_eq!(shown["capabilities"], json!(["rerank"]));
}

#[tokio::test]
async fn num_ctx_limits_the_length_of_a_pair() {
    let server = start_server().await;
    let small = |more: Value| {
        let mut body = rerank(json!({"options": {"num_ctx": 6}}));
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let answer = server.post("/v1/rerank", small(json!({}))).await;
    assert_eq!(answer.status, 400, "{}", answer.body);
    assert!(
        answer
            .body
            .contains("document 1 is too long: it has 8 tokens with the query, and the limit is 6"),
        "{}",
        answer.body
    );
    let answer = server.post("/v1/rerank", small(json!({"truncate": true}))).await.json();
    assert_eq!(
        (&answer["usage"]["truncated_documents"], &answer["usage"]["truncated_tokens"]),
        (&json!(2), &json!(3)),
        "{answer}"
    );
    assert_eq!(
        server.post("/v1/rerank", rerank(json!({}))).await.status,
        200,
        "only its own request is limited"
    );
}
