//! Tests of embeddings behind the middleware, on a fake engine. A vector is the text's length and
//! 1; a token is a byte.

use super::*;

/// Starts a server with a stored embedding model.
async fn start_server() -> TestServer {
    let server = TestServer::new();
    server.store_zoo("embedder", "bert-mean.gguf").await;
    server.fake.embeds.store(true, Ordering::Relaxed);
    server
}

#[tokio::test]
async fn truncated_tokens_are_reported_on_every_route() {
    let server = start_server().await;
    let ask = |truncate: bool| {
        json!({"model": "embedder", "input": ["abc", "x".repeat(20), "y".repeat(9)],
        "truncate": truncate, "options": {"num_ctx": 8}})
    };
    let answer = server.post("/api/embed", ask(true)).await.json();
    let figures =
        ["prompt_eval_count", "truncated_inputs", "truncated_tokens"].map(|field| &answer[field]);
    assert_eq!(figures, [&json!(3 + 8 + 8), &json!(2), &json!(12 + 1)], "{answer}");
    let refused = server.post("/api/embed", ask(false)).await;
    let text = "the input length exceeds the context length";
    assert_eq!((refused.status.as_u16(), &refused.json()["error"]), (400, &json!(text)));
    let short =
        server.post("/api/embed", json!({"model": "embedder", "input": "abc"})).await.json();
    assert!(
        short.get("truncated_inputs").is_none() && short.get("truncated_tokens").is_none(),
        "{short}"
    );

    let ask = |inputs: Value| {
        server.post("/v1/embeddings", json!({"model": "embedder", "input": inputs}))
    };
    let plain = ask(json!(["abc"])).await.json();
    assert_eq!(plain["usage"], json!({"prompt_tokens": 3, "total_tokens": 3}));
    assert!(plain["data"][0].get("truncated_tokens").is_none(), "{plain}");
    let cut = ask(json!(["abc", "x".repeat(100_000)])).await.json();
    let taken = cut["usage"]["prompt_tokens"].as_u64().unwrap() - 3;
    let lost = 100_000 - taken;
    assert!(taken > 0 && lost > 0, "{}", cut["usage"]);
    assert_eq!(
        (&cut["usage"]["truncated_inputs"], &cut["usage"]["truncated_tokens"]),
        (&json!(1), &json!(lost))
    );
    assert_eq!(cut["data"][1]["truncated_tokens"], lost);
    assert!(cut["data"][0].get("truncated_tokens").is_none());

    // The older route truncates nothing.
    let older = json!({"model": "embedder", "prompt": "x".repeat(100_000)});
    let older = server.post("/api/embeddings", older).await;
    assert_eq!((older.status.as_u16(), &older.json()["error"]), (400, &json!(text)));
}

#[tokio::test]
async fn an_impossible_number_of_dimensions_is_named() {
    let server = start_server().await;
    for path in ["/api/embed", "/v1/embeddings"] {
        for (dimensions, named) in [(1, ""), (2, ""), (3, "dimensions"), (-1, "dimensions")] {
            let body = json!({"model": "embedder", "input": "ab", "dimensions": dimensions});
            let answer = server.post(path, body).await;
            assert_eq!(answer.status, 200, "{}", answer.body);
            assert_eq!(answer.header("x-puna-ignored"), named, "{path} {dimensions}");
        }
    }
}
