//! Embeddings behind the door, on a fake whose vectors are a text's length and 1, and whose tokens are bytes.

use super::*;

/// A bench with a stored model that makes embeddings.
async fn bench() -> Bench {
    let b = Bench::new();
    b.store_zoo("embedder", "bert-mean.gguf").await;
    b.fake.embeds.store(true, Ordering::Relaxed);
    b
}

#[tokio::test]
async fn what_was_cut_off_texts_that_are_too_long_is_told_on_every_route() {
    let b = bench().await;
    let ask = |truncate: bool| {
        json!({"model": "embedder", "input": ["abc", "x".repeat(20), "y".repeat(9)],
        "truncate": truncate, "options": {"num_ctx": 8}})
    };
    let answer = b.post("/api/embed", ask(true)).await.json();
    let figures =
        ["prompt_eval_count", "truncated_inputs", "truncated_tokens"].map(|field| &answer[field]);
    assert_eq!(figures, [&json!(3 + 8 + 8), &json!(2), &json!(12 + 1)], "{answer}");
    let refused = b.post("/api/embed", ask(false)).await;
    let text = "the input length exceeds the context length";
    assert_eq!((refused.status.as_u16(), &refused.json()["error"]), (400, &json!(text)));
    let short = b.post("/api/embed", json!({"model": "embedder", "input": "abc"})).await.json();
    assert!(
        short.get("truncated_inputs").is_none() && short.get("truncated_tokens").is_none(),
        "{short}"
    );

    let ask =
        |inputs: Value| b.post("/v1/embeddings", json!({"model": "embedder", "input": inputs}));
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

    // The older route cuts nothing.
    let older = json!({"model": "embedder", "prompt": "x".repeat(100_000)});
    let older = b.post("/api/embeddings", older).await;
    assert_eq!((older.status.as_u16(), &older.json()["error"]), (400, &json!(text)));
}

#[tokio::test]
async fn a_number_of_dimensions_that_no_vector_has_is_named() {
    let b = bench().await;
    for path in ["/api/embed", "/v1/embeddings"] {
        for (dimensions, named) in [(1, ""), (2, ""), (3, "dimensions"), (-1, "dimensions")] {
            let body = json!({"model": "embedder", "input": "ab", "dimensions": dimensions});
            let answer = b.post(path, body).await;
            assert_eq!(answer.status, 200, "{}", answer.body);
            assert_eq!(answer.header("x-puna-ignored"), named, "{path} {dimensions}");
        }
    }
}
