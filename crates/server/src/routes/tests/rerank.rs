//! `POST /api/rerank` and its aliases, on a fake whose scores are hundredths of a pair's length.

use super::*;

/// A bench with a stored reranker.
async fn bench() -> Bench {
    let b = Bench::new();
    for (name, file) in [("ranker", "bert-rank.gguf"), ("embedder", "bert-mean.gguf")] {
        b.store_zoo(name, file).await;
    }
    b.fake.ranks.store(true, Ordering::Relaxed);
    b
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
async fn documents_come_back_by_their_scores_on_every_route() {
    let b = bench().await;
    for path in ["/api/rerank", "/rerank", "/v1/rerank", "/v2/rerank"] {
        let answer = b.post(path, rerank(json!({}))).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        let answer = answer.json();
        assert_eq!(indices(&answer), [1, 3, 0, 2], "{path}");
        assert_eq!((&answer["model"], &answer["object"]), (&json!("ranker"), &json!("list")));
        // Each pair is a mark, the query, a mark, the document and a mark.
        assert_eq!(answer["usage"], json!({"prompt_tokens": 26, "total_tokens": 26}));
        assert_eq!(answer["meta"], json!({"tokens": {"input_tokens": 26, "output_tokens": 0}}));
        let first = answer["results"][0].as_object().unwrap();
        assert_eq!(first.keys().collect::<Vec<_>>(), ["index", "relevance_score"]);
        assert!((first["relevance_score"].as_f64().unwrap() - 0.08).abs() < 1e-6);
    }
}

#[tokio::test]
async fn the_best_few_come_with_their_texts_and_as_shares_of_one_where_that_is_asked_for() {
    let b = bench().await;
    let wish = json!({"top_n": 2, "return_documents": true, "normalize": true});
    let answer = b.post("/v1/rerank", rerank(wish)).await.json();
    assert_eq!(indices(&answer), [1, 3]);
    assert_eq!(answer["results"][0]["document"], json!({"text": "dddd"}));
    assert_eq!(answer["results"][1]["document"], json!({"text": "ccc"}));
    let score = answer["results"][0]["relevance_score"].as_f64().unwrap();
    assert!((score - 1.0 / (1.0 + (-0.08f64).exp())).abs() < 1e-6, "{score}");
    let more = b.post("/v1/rerank", rerank(json!({"top_n": 99}))).await.json();
    assert_eq!(indices(&more).len(), 4);
}

#[tokio::test]
async fn what_was_cut_off_a_document_is_told() {
    let b = bench().await;
    let answer = b.post("/api/rerank", rerank(json!({"max_tokens_per_doc": 2}))).await.json();
    assert_eq!(answer["usage"]["truncated_documents"], 2);
    assert_eq!(answer["usage"]["truncated_tokens"], 3);
    let of = |index: u64| {
        let results = answer["results"].as_array().unwrap();
        results.iter().find(|r| r["index"] == index).unwrap()["truncated_tokens"].clone()
    };
    assert_eq!([of(0), of(1), of(2), of(3)], [Value::Null, json!(2), Value::Null, json!(1)]);
}

#[tokio::test]
async fn wrong_requests_for_ranking_are_refused_with_what_to_do() {
    let b = bench().await;
    let error = async |path: &str, body: Value| {
        let answer = b.post(path, body).await;
        assert_eq!(answer.status, 400, "{}", answer.body);
        let json = answer.json();
        json["error"].as_str().or(json["error"]["message"].as_str()).unwrap().to_owned()
    };
    let native = async |extra: Value| error("/api/rerank", rerank(extra)).await;
    assert_eq!(native(json!({"query": null})).await, "query is required");
    assert!(
        native(json!({"documents": []}))
            .await
            .starts_with("documents is required: a list of texts")
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
        wrong.starts_with("\"cria\" does not support reranking; it generates text: POST /api/chat"),
        "{wrong}"
    );
    let wrong = native(json!({"model": "embedder"})).await;
    assert!(
        wrong.contains("does not support reranking; it makes embeddings: POST /api/embed"),
        "{wrong}"
    );
    let message = "\"ranker\" does not support chat; it ranks texts: POST /api/rerank";
    let chat = json!({"model": "ranker", "messages": [{"role": "user", "content": "hi"}]});
    assert_eq!(error("/api/chat", chat.clone()).await, message);
    assert_eq!(error("/v1/chat/completions", chat).await, message);
    let embed = json!({"model": "ranker", "input": "hi"});
    assert_eq!(
        error("/v1/embeddings", embed).await,
        "\"ranker\" does not support embeddings; it ranks texts: POST /api/rerank"
    );
    assert_eq!(b.fake.ranked.load(Ordering::Relaxed), 0);
    let shown = b.post("/api/show", json!({"model": "ranker"})).await.json();
    assert_eq!(shown["capabilities"], json!(["rerank"]));
}

#[tokio::test]
async fn a_context_that_is_asked_for_is_the_limit_of_a_pair() {
    let b = bench().await;
    let small = |more: Value| {
        let mut body = rerank(json!({"options": {"num_ctx": 6}}));
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let answer = b.post("/v1/rerank", small(json!({}))).await;
    assert_eq!(answer.status, 400, "{}", answer.body);
    assert!(
        answer.body.contains(
            "document 1 is too long: with the query it has 8 tokens, and the context holds 6"
        ),
        "{}",
        answer.body
    );
    let answer = b.post("/v1/rerank", small(json!({"truncate": true}))).await.json();
    assert_eq!(
        (&answer["usage"]["truncated_documents"], &answer["usage"]["truncated_tokens"]),
        (&json!(2), &json!(3)),
        "{answer}"
    );
    assert_eq!(
        b.post("/v1/rerank", rerank(json!({}))).await.status,
        200,
        "only its own request is limited"
    );
}
