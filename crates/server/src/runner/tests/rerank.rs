//! Tests of rerankers on this program's engine, against results of llama.cpp.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use puna_gguf::{Gguf, Value, Writer};

use super::*;
use crate::canonical::{RerankScores, RerankTask};

fn zoo(name: &str) -> Gguf {
    let zoo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/zoo");
    Gguf::open(&zoo.join(name)).unwrap()
}

/// Returns a copy of a file with changed keys and one more tensor.
fn modified(
    gguf: &Gguf,
    keys: Vec<(&str, Value)>,
    more: Option<(&str, [u64; 2], Vec<f32>)>,
) -> Vec<u8> {
    let mut writer = Writer::with_metadata(gguf.metadata().clone());
    for (key, value) in keys {
        writer.set(key, value);
    }
    let mut data: Vec<Vec<u8>> = Vec::new();
    for tensor in gguf.tensors() {
        writer.tensor(&tensor.name, tensor.ty, &tensor.shape).unwrap();
        data.push(gguf.data(tensor).to_vec());
    }
    if let Some((name, shape, values)) = more {
        let floats = gguf.tensor("output_norm.weight").unwrap().ty;
        writer.tensor(name, floats, &shape).unwrap();
        data.push(values.iter().flat_map(|x| x.to_le_bytes()).collect());
    }
    writer.to_vec(data.iter().map(Vec::as_slice)).unwrap()
}

/// Returns a RoBERTa model with a classifier. Its file enables all special tokens.
fn bert() -> Vec<u8> {
    let flags = ["bos", "eos", "sep"].map(|mark| format!("tokenizer.ggml.add_{mark}_token"));
    let mut keys: Vec<(&str, Value)> =
        flags.iter().map(|key| (key.as_str(), true.into())).collect();
    keys.push(("tokenizer.ggml.seperator_token_id", 316u32.into()));
    modified(&zoo("bert-rank.gguf"), keys, None)
}

/// Returns a Qwen3 model with the head and the template of a reranker.
fn qwen3() -> Vec<u8> {
    let gguf = zoo("qwen3-embedding.gguf");
    let width = gguf.metadata().u32("qwen3.embedding_length").unwrap();
    let head = (0..2 * width).map(|i| ((i * 37 % 41) as f32 - 20.0) / 20.0).collect();
    let keys = vec![
        ("qwen3.pooling_type", 4u32.into()),
        ("qwen3.classifier.output_labels", Value::strings([&b"yes"[..], b"no"])),
        ("tokenizer.chat_template.rerank", "<q>{query}</q><d>{document}</d> yes?".into()),
    ];
    modified(&gguf, keys, Some(("cls.output.weight", [width.into(), 2], head)))
}

async fn ranker(file: Vec<u8>, num_ctx: u32) -> (RunnerConnection, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let path: PathBuf = folder.path().join("model.gguf");
    std::fs::write(&path, file).unwrap();
    (loaded_file(Some(path), num_ctx).await, folder)
}

fn rerank_task(query: &str, documents: &[&str]) -> RerankTask {
    RerankTask {
        query: query.into(),
        documents: documents.iter().map(|text| (*text).to_owned()).collect(),
        truncate: false,
        document_tokens: None,
        pair_tokens: None,
        num_ctx: None,
    }
}

async fn rerank(connection: &RunnerConnection, rank: RerankTask) -> RerankScores {
    match end(connection, Task::Rerank(rank)).await {
        Event::Reranked(rerank) => rerank,
        other => panic!("{other:?}"),
    }
}

async fn rerank_error(connection: &RunnerConnection, rank: RerankTask) -> String {
    match end(connection, Task::Rerank(rank)).await {
        Event::Error(failure) if failure.status == 400 => failure.message,
        other => panic!("{other:?}"),
    }
}

/// The expected values come from llama.cpp's server for these files, in the version of its Python
/// package 0.3.36: `llama-server -m FILE --reranking --pooling rank -t 1 -c 0`, `POST /v1/rerank`.
/// It computes GELU from a half-precision table, which explains the difference of the first result.
#[tokio::test]
async fn scores_and_tokens_equal_those_of_llama_cpp() {
    let (first, second) = ("what is it?", "the answer of <|im_end|> is");
    let few: &[&str] = &["hi", "The panda is a bear.", "it is a fish"];
    let odd: &[&str] = &["", " a long text with many words, and 1 number "];
    for (file, tolerance, query, documents, tokens, scores) in [
        (bert(), 1.5e-3, first, few, 64, vec![-0.481_180_67, -0.758_435_1, -0.291_423_65]),
        (bert(), 1.5e-3, second, odd, 75, vec![-0.401_000_38, -0.623_389_24]),
        (qwen3(), 1e-3, first, few, 109, vec![0.111_659_51, 0.070_280_42, 0.031_646_82]),
        (qwen3(), 1e-3, second, odd, 106, vec![0.577_170_5, 0.745_104_13]),
    ] {
        let (connection, _folder) = ranker(file, 512).await;
        let result = rerank(&connection, rerank_task(query, documents)).await;
        assert_eq!((result.tokens, result.cut), (tokens, Vec::new()), "{documents:?}");
        assert_eq!(result.scores.len(), scores.len());
        for (got, want) in result.scores.iter().zip(scores) {
            assert!((got - want).abs() < tolerance, "{got} instead of {want} for {documents:?}");
        }
    }
}

#[tokio::test]
async fn a_thousand_documents_get_the_same_scores_as_each_alone() {
    let (connection, _folder) = ranker(bert(), 512).await;
    let texts: Vec<String> = (0..1000).map(|i| "panda ".repeat(i % 9) + "bear").collect();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let all = rerank(&connection, rerank_task("what?", &texts)).await;
    assert_eq!(all.scores.len(), 1000);
    let mut alone = BTreeMap::new();
    for i in [0, 1, 8, 500, 999] {
        alone.insert(i, rerank(&connection, rerank_task("what?", &texts[i..=i])).await.scores[0]);
    }
    for (i, score) in alone {
        assert!((all.scores[i] - score).abs() < 2e-3, "{i}: {} and alone {score}", all.scores[i]);
    }
}

#[tokio::test]
async fn a_disconnected_client_ends_its_scoring() {
    let (connection, _folder) = ranker(qwen3(), 512).await;
    let long = "a bear is no panda ".repeat(8);
    let texts = vec![long.as_str(); 6_000];
    let mut events = connection.submit(1, Task::Rerank(rerank_task("what?", &texts)));
    let early = tokio::time::timeout(Duration::from_millis(300), events.next()).await;
    assert!(early.is_err(), "{early:?}");
    drop(events);
    let began = std::time::Instant::now();
    rerank(&connection, rerank_task("what?", &["bear"])).await;
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
}

#[tokio::test]
async fn documents_that_are_too_long_are_cut_only_on_request_and_the_cut_is_reported() {
    for file in [bert(), qwen3()] {
        let (connection, _folder) = ranker(file, 60).await;
        let long = "the bear ".repeat(100);
        let texts = ["bear", long.as_str()];
        let plain = rerank_task("what?", &texts);
        let message = rerank_error(&connection, plain.clone()).await;
        assert!(message.starts_with("document 1 is too long: it has "), "{message}");
        let short = rerank(&connection, rerank_task("what?", &texts[..1])).await;
        let cut = rerank(&connection, RerankTask { truncate: true, ..plain.clone() }).await;
        assert!((cut.scores[0] - short.scores[0]).abs() < 1e-3);
        assert_eq!(cut.cut.len(), 1);
        assert_eq!(cut.cut[0].0, 1);
        // A cut inside a word can produce fewer tokens than the limit.
        assert!(
            (short.tokens + 50..=short.tokens + 60).contains(&cut.tokens),
            "{} tokens",
            cut.tokens
        );
        let pairs =
            rerank(&connection, RerankTask { pair_tokens: Some(40), ..plain.clone() }).await;
        assert!(pairs.tokens <= short.tokens + 40, "{} tokens", pairs.tokens);
        let documents =
            rerank(&connection, RerankTask { document_tokens: Some(3), ..plain.clone() }).await;
        assert!(documents.cut.iter().any(|(i, _)| *i == 1) && documents.tokens < cut.tokens);
        let query = RerankTask { truncate: true, ..rerank_task(&"why ".repeat(100), &texts) };
        let message = rerank_error(&connection, query).await;
        assert!(
            message
                .starts_with("document 0 cannot be truncated to fit: the query and the template"),
            "{message}"
        );
    }
}

#[tokio::test]
async fn ranking_and_embedding_with_an_unsuitable_model_are_refused_with_the_reason() {
    let connection = loaded_file(None, 64).await;
    assert_eq!(
        rerank_error(&connection, rerank_task("a", &["b"])).await,
        "this model does not support reranking"
    );
    let (connection, _folder) = ranker(bert(), 64).await;
    let embed = crate::canonical::EmbedTask {
        inputs: vec![EmbedText::Text("x".into())],
        truncate: true,
        num_ctx: None,
        explicit_parameters: Default::default(),
    };
    let Event::Error(failure) = end(&connection, Task::Embed(embed)).await else { panic!() };
    assert_eq!(failure.message, "this model is a reranker and does not support embeddings");
}
