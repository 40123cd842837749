//! Compares with llama.cpp's ids: on its vocabulary test files, with expectations from the original
//! tokenizers, and on ids that `oracle/llama.py` recorded for vocabularies of `tests/data/zoo` and
//! artificial ones.

use crate::common::{PLAIN, SPECIAL, check_hashes, fixture, metadata, model, open, repository};
use puna_gguf::Value;
use puna_tokenizer::{EncodeOptions, Tokenizer};

/// Compares each text of `X.gguf.inp` with the ids of `X.gguf.out`.
fn check(name: &str, texts: usize) {
    let Some(path) = model(&format!("vocab/ggml-vocab-{name}.gguf")) else { return };
    let beside = |suffix: &str| {
        std::fs::read_to_string(path.with_extension(format!("gguf.{suffix}"))).expect("readable")
    };
    let (inputs, outputs) = (beside("inp"), beside("out"));
    let mut inputs: Vec<&str> = inputs.split("\n__ggml_vocab_test__\n").collect();
    let outputs: Vec<&str> = outputs.lines().collect();
    inputs.truncate(outputs.len());
    assert_eq!((inputs.len(), outputs.len()), (texts, texts));
    let tokenizer = open(path.clone());
    for (input, output) in inputs.into_iter().zip(outputs) {
        let want: Vec<u32> =
            output.split_whitespace().map(|id| id.parse().expect("an id")).collect();
        assert_eq!(tokenizer.encode(input, PLAIN), want, "{name} on {input:?}");
    }
}

macro_rules! vocabularies {
    ($($test:ident: $name:literal, $texts:literal;)*) => {
        $(#[test]
        fn $test() {
            check($name, $texts);
        })*
    };
}

vocabularies! {
    bert_bge_gives_the_expected_ids: "bert-bge", 46;
    command_r_gives_the_expected_ids: "command-r", 46;
    deepseek_coder_gives_the_expected_ids: "deepseek-coder", 46;
    deepseek_llm_gives_the_expected_ids: "deepseek-llm", 46;
    falcon_gives_the_expected_ids: "falcon", 46;
    gemma_4_gives_the_expected_ids: "gemma-4", 46;
    gpt_2_gives_the_expected_ids: "gpt-2", 46;
    llama_bpe_gives_the_expected_ids: "llama-bpe", 46;
    llama_spm_gives_the_expected_ids: "llama-spm", 46;
    mpt_gives_the_expected_ids: "mpt", 46;
    phi_3_gives_the_expected_ids: "phi-3", 46;
    qwen2_gives_the_expected_ids: "qwen2", 46;
    qwen35_gives_the_expected_ids: "qwen35", 50;
    refact_gives_the_expected_ids: "refact", 46;
    starcoder_gives_the_expected_ids: "starcoder", 46;
}

#[test]
fn spm_parses_control_tokens_only_on_request() {
    let Some(path) = model("vocab/ggml-vocab-llama-spm.gguf") else { return };
    let tokenizer = open(path);
    let encode = |text, parse_special| {
        tokenizer.encode(text, EncodeOptions { add_special: true, parse_special })
    };
    assert_eq!(encode("", true), [1]);
    assert_eq!(encode(" ", true), [1, 259]);
    assert_eq!(encode("a<s> b", true), [1, 263, 1, 29871, 289]);
    assert_eq!(encode("a<s> b", false), [1, 263, 29966, 29879, 29958, 289]);
    assert_eq!(encode("x </s>  y", true), [1, 921, 29871, 2, 259, 343]);
}

#[test]
fn wpm_adds_cls_and_sep_and_parses_the_mask_token() {
    let Some(path) = model("vocab/ggml-vocab-bert-bge.gguf") else { return };
    let ids = open(path).encode("Héllo wörld [MASK] supercalifragilistic", SPECIAL);
    assert_eq!(ids, [101, 7592, 2088, 103, 3565, 9289, 10128, 29181, 24411, 4588, 102]);
}

#[test]
fn end_tokens_are_recognized_by_text() {
    let ends = |name: &str| {
        model(&format!("vocab/ggml-vocab-{name}.gguf")).map(|path| open(path).eog().to_vec())
    };
    // llama.cpp adds 2, the `</s>` of Llama 2, which is ordinary text in Phi 3.
    assert!(ends("phi-3").is_none_or(|ids| ids == [32000, 32007]));
    assert!(ends("llama-bpe").is_none_or(|ids| ids == [128001, 128009]));
    assert!(ends("llama-spm").is_none_or(|ids| ids == [2]));
}

#[test]
fn unigram_models_normalize_and_find_the_best_tokens() {
    let Some(path) = model("vocab/ggml-vocab-nomic-bert-moe.gguf") else { return };
    let tokenizer = open(path);
    let encode = |text| tokenizer.encode(text, SPECIAL);
    assert_eq!(encode("Hello  world"), [0, 35378, 8999, 2]);
    assert_eq!(encode("ｆｕｌｌ width ①"), [0, 4393, 6, 146984, 106, 2]);
    assert_eq!(encode(" a <mask> b"), [0, 10, 250001, 876, 2]);
}

#[test]
fn the_vocabularies_of_the_zoo_give_the_recorded_ids() {
    let fixture = fixture("llama-cpp.json");
    let hashes = fixture["hashes"].as_object().expect("hashes by file");
    assert_eq!(hashes.len(), 8);
    for (name, hashes) in hashes {
        let texts = if name == "bert-mean" { "wordpiece_texts" } else { "texts" };
        let tokenizer = open(repository(&format!("tests/data/zoo/{name}.gguf")));
        check_hashes(name, &tokenizer, SPECIAL, &fixture[texts], hashes);
    }
}

#[test]
fn made_up_vocabularies_of_rare_models_give_the_recorded_ids() {
    let fixture = fixture("llama-cpp.json");
    let vocabularies = fixture["vocabularies"].as_object().expect("vocabularies by model");
    assert_eq!(vocabularies.len(), 4);
    for (name, vocabulary) in vocabularies {
        let list = |key: &str| vocabulary[key].as_array().into_iter().flatten();
        let strings = |key: &str| list(key).map(|v| v.as_str().expect("text")).collect::<Vec<_>>();
        let mut meta = metadata(name, &strings("tokens"));
        let types: Vec<i32> = list("types").map(|v| v.as_i64().expect("a number") as i32).collect();
        meta.set("tokenizer.ggml.token_type", types);
        let scores: Vec<f32> =
            list("scores").map(|v| v.as_f64().expect("a number") as f32).collect();
        if !scores.is_empty() {
            meta.set("tokenizer.ggml.scores", scores);
        }
        meta.set("tokenizer.ggml.merges", Value::strings(strings("merges")));
        meta.set("tokenizer.ggml.pre", vocabulary["pre"].as_str().unwrap_or("default"));
        let tokenizer =
            Tokenizer::from_metadata(&meta).unwrap_or_else(|error| panic!("{name}: {error}"));
        let texts = if name == "hybriddna" { "dna_texts" } else { "texts" };
        check_hashes(name, &tokenizer, SPECIAL, &fixture[texts], &vocabulary["hashes"]);
    }
}
