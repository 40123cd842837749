//! Properties of all texts and vocabularies.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use crate::common::{PLAIN, SPECIAL, cria, metadata};
use proptest::prelude::*;
use puna_gguf::{Metadata, Value};
use puna_tokenizer::{EncodeOptions, Tokenizer};

static CRIA: LazyLock<Tokenizer> = LazyLock::new(cria);
static SPM: LazyLock<Tokenizer> = LazyLock::new(spm);
static WPM: LazyLock<Tokenizer> = LazyLock::new(wpm);
static UGM: LazyLock<Tokenizer> = LazyLock::new(|| unigram("t5"));
static PLAMO2: LazyLock<Tokenizer> = LazyLock::new(|| unigram("plamo2"));
static RWKV: LazyLock<Tokenizer> = LazyLock::new(|| unigram("rwkv"));

/// A small SentencePiece vocabulary with all bytes.
pub fn spm() -> Tokenizer {
    let words = [
        "▁",
        "▁t",
        "he",
        "▁the",
        "▁▁",
        "▁▁▁▁",
        "a",
        "b",
        "ab",
        "é",
        "日",
        "日本",
        "aa",
        "aaaa",
        "本",
    ];
    let bytes: Vec<String> = (0..=255).map(|byte| format!("<0x{byte:02X}>")).collect();
    let mut tokens = vec!["<unk>", "<s>", "</s>"];
    tokens.extend(bytes.iter().map(String::as_str));
    tokens.extend(words);
    let kind = |at: usize| [2, 3, 3].get(at).copied().unwrap_or(if at < 259 { 6 } else { 1 });
    let mut meta = metadata("llama", &tokens);
    meta.set("tokenizer.ggml.token_type", (0..tokens.len()).map(kind).collect::<Vec<i32>>());
    meta.set(
        "tokenizer.ggml.scores",
        (0..tokens.len()).map(|at| (at * 7 % 13) as f32).collect::<Vec<f32>>(),
    );
    Tokenizer::from_metadata(&meta).unwrap()
}

pub fn wpm() -> Tokenizer {
    let tokens = [
        "[PAD]", "[UNK]", "[CLS]", "[SEP]", "▁a", "a", "▁hello", "lo", "▁日", "▁.", "▁e", "e", "aa",
    ];
    let mut meta = metadata("bert", &tokens);
    let kind = |at: usize| [3, 2, 3, 3].get(at).copied().unwrap_or(1);
    meta.set("tokenizer.ggml.token_type", (0..tokens.len()).map(kind).collect::<Vec<i32>>());
    for (key, id) in [("unknown", 1u32), ("bos", 2), ("seperator", 3)] {
        meta.set(&format!("tokenizer.ggml.{key}_token_id"), id);
    }
    Tokenizer::from_metadata(&meta).unwrap()
}

/// A unigram vocabulary with all bytes for `model`: `t5` or `plamo2`, or RWKV's with escapes.
pub fn unigram(model: &str) -> Tokenizer {
    let words = [
        "▁", "▁t", "he", "▁the", "▁▁", "a", "b", "ab", "é", "日", "日本", "aa", "aaaa", "  ",
        "\n\n",
    ];
    let byte = |byte: u8| match model {
        "rwkv" => format!("\\x{byte:02x}"),
        _ => format!("<0x{byte:02X}>"),
    };
    let bytes: Vec<String> = (0..=255).map(byte).collect();
    let mut tokens = vec!["<pad>", "<s>", "<unk>"];
    tokens.extend(bytes.iter().map(String::as_str));
    tokens.extend(words);
    let plain = if model == "rwkv" { 1 } else { 6 };
    let kind = |at: usize| [3, 3, 2].get(at).copied().unwrap_or(if at < 259 { plain } else { 1 });
    let mut meta = metadata(model, &tokens);
    meta.set("tokenizer.ggml.token_type", (0..tokens.len()).map(kind).collect::<Vec<i32>>());
    meta.set(
        "tokenizer.ggml.scores",
        (0..tokens.len()).map(|at| -((at * 7 % 13) as f32)).collect::<Vec<f32>>(),
    );
    Tokenizer::from_metadata(&meta).unwrap()
}

/// Text of all planes, text that tokenizers treat specially, and mixtures.
fn text() -> impl Strategy<Value = String> {
    let spice = "( |  |\n|\r\n|\t|'s|'LL|the|ab|aaaa|123|1234567|日本|é|e\u{301}|👩‍💻|<\\|im_start\\|>|</s>|\\.\\.\\.|\u{3000})";
    let strings = |pattern: String| proptest::string::string_regex(&pattern).expect("a pattern");
    prop_oneof![
        any::<String>(),
        strings(format!("{spice}{{0,40}}")),
        strings(format!("(.|{spice}){{0,60}}"))
    ]
}

proptest! {
    #[test]
    fn byte_level_bpe_round_trips_every_text(text in text(), parse_special: bool) {
        let ids = CRIA.encode(&text, EncodeOptions { add_special: false, parse_special });
        prop_assert_eq!(CRIA.decode(&ids, true), text);
    }

    #[test]
    fn spm_round_trips_every_text_except_its_space_prefix(text in text()) {
        prop_assert_eq!(SPM.decode(&SPM.encode(&text, PLAIN), true), text.replace('▁', " "));
    }

    #[test]
    fn plamo_2_and_rwkv_round_trip_every_text(text in text()) {
        prop_assert_eq!(RWKV.decode(&RWKV.encode(&text, PLAIN), true), text.clone());
        let marked = format!("\u{feff}{text}");
        prop_assert_eq!(PLAMO2.decode(&PLAMO2.encode(&marked, PLAIN), true), text);
    }

    #[test]
    fn ids_are_below_the_vocabulary_size(text in text()) {
        for tokenizer in [&*CRIA, &*SPM, &*WPM, &*UGM, &*PLAMO2, &*RWKV] {
            let ids = tokenizer.encode(&text, SPECIAL);
            prop_assert!(ids.iter().all(|&id| (id as usize) < tokenizer.vocab_size()));
        }
    }

    #[test]
    fn a_stream_emits_whole_characters_and_the_same_text(text in text()) {
        for tokenizer in [&*CRIA, &*SPM] {
            let ids = tokenizer.encode(&text, PLAIN);
            let mut decoder = tokenizer.decoder().special(true).at_start();
            let mut streamed = String::new();
            for &id in &ids {
                streamed.push_str(&decoder.push(id));
                // The emitted text is a prefix of the whole text.
                prop_assert!(tokenizer.decode(&ids, true).starts_with(&streamed));
            }
            prop_assert_eq!(decoder.finish(), "");
            prop_assert_eq!(streamed, tokenizer.decode(&ids, true));
        }
    }

    #[test]
    fn any_ids_decode_without_panic(ids in proptest::collection::vec(any::<u32>().prop_map(|id| id % 5000), 0..50)) {
        for tokenizer in [&*CRIA, &*SPM, &*WPM] {
            // The modulus makes ids of small vocabularies likely.
            let ids: Vec<u32> = ids.iter().map(|id| id % (tokenizer.vocab_size() as u32 + 1)).collect();
            for special in [false, true] {
                let whole = tokenizer.decode(&ids, special);
                let bytes: Vec<u8> = ids.iter().filter(|&&id| special || !tokenizer.is_control(id) && tokenizer.unk() != Some(id)).flat_map(|&id| tokenizer.piece(id)).copied().collect();
                let plain = String::from_utf8_lossy(&bytes);
                let stripped = plain.strip_prefix(' ').filter(|_| tokenizer.add_space_prefix()).unwrap_or(&plain);
                prop_assert_eq!(&whole, stripped);
                tokenizer.detokenize(&ids, true, special);
            }
        }
    }

    #[test]
    fn a_control_token_separates_the_texts_around_it(left in text(), right in text()) {
        let mark = "<|im_end|>";
        let id = CRIA.token_id(mark).unwrap();
        let encode = |text: &str| CRIA.encode(text, EncodeOptions { add_special: false, parse_special: true });
        let apart = [encode(&left), vec![id], encode(&right)].concat();
        prop_assert_eq!(encode(&format!("{left}{mark}{right}")), apart);
        let plain = CRIA.encode(&format!("{left}{mark}"), PLAIN);
        prop_assert!(!plain.contains(&id));
    }

    #[test]
    fn parts_encode_like_the_whole_text(parts in proptest::collection::vec(text(), 0..6), trusted: bool) {
        for tokenizer in [&*CRIA, &*SPM, &*WPM] {
            let marked: Vec<(&str, bool)> = parts.iter().map(|part| (part.as_str(), trusted)).collect();
            let whole = tokenizer.encode(&parts.concat(), EncodeOptions { add_special: true, parse_special: trusted });
            prop_assert_eq!(tokenizer.encode_parts(&marked, true), whole);
        }
    }

    #[test]
    fn no_vocabulary_panics(
        model in prop_oneof!["gpt2", "llama", "bert", "gemma4", "whitespace", "t5", "plamo2", "rwkv", "hybriddna"],
        pre in proptest::option::of(prop_oneof!["llama-bpe", "gpt-2", "sarvam-moe", "whitespace", "kimi-k2", "[a-z]{3}"]),
        tokens in proptest::collection::hash_set(prop_oneof!["[ab ▁é]{0,4}", ".{0,3}", "<0x[0-9A-F]{2}>"], 1..30),
        merges in proptest::collection::vec("[ab▁é ]{0,5}", 0..20),
        types in proptest::option::of(proptest::collection::vec(-1i32..8, 30)),
        scores in proptest::option::of(proptest::collection::vec(any::<f32>(), 30)),
        special in 0u32..40,
        text in "[ab ▁é\n日]{0,60}",
    ) {
        let tokens: Vec<String> = tokens.into_iter().collect();
        let mut meta = metadata(&model, &tokens.iter().map(String::as_str).collect::<Vec<_>>());
        meta.set("tokenizer.ggml.merges", Value::strings(merges));
        if let Some(pre) = pre {
            meta.set("tokenizer.ggml.pre", pre.as_str());
        }
        if let Some(types) = types {
            meta.set("tokenizer.ggml.token_type", types[..tokens.len()].to_vec());
        }
        if let Some(scores) = scores {
            meta.set("tokenizer.ggml.scores", scores[..tokens.len()].to_vec());
        }
        meta.set("tokenizer.ggml.bos_token_id", special);
        meta.set("tokenizer.ggml.unknown_token_id", special / 2);
        if let Ok(tokenizer) = Tokenizer::from_metadata(&meta) {
            let ids = tokenizer.encode(&text, SPECIAL);
            prop_assert!(ids.iter().all(|&id| (id as usize) < tokens.len()));
            tokenizer.decode(&ids, true);
        }
    }
}

#[test]
fn a_megabyte_of_one_pattern_takes_linear_time() {
    let start = Instant::now();
    for unit in [
        "a",
        " ",
        "\n",
        "7",
        "é",
        "日",
        "\u{301}",
        "▁",
        "<",
        "<|im_start|>",
        "ab ",
        "'s",
        "\u{378}",
    ] {
        let text = unit.repeat(1_000_000 / unit.len());
        for tokenizer in [&*CRIA, &*SPM, &*WPM, &*UGM, &*PLAMO2, &*RWKV] {
            let ids = tokenizer.encode(&text, SPECIAL);
            assert!(ids.len() <= 1_000_003);
        }
    }
    // Seconds on a busy machine. Quadratic time would take an hour.
    assert!(start.elapsed() < Duration::from_secs(300), "{:?}", start.elapsed());
}

/// Runs of one character as tokens, the worst case for splitting special tokens.
#[test]
fn a_megabyte_of_special_tokens_takes_linear_time() {
    let runs: Vec<String> = (1..=40).map(|count| "\n".repeat(count)).collect();
    let mut meta: Metadata =
        metadata("gemma4", &runs.iter().map(String::as_str).collect::<Vec<_>>());
    meta.set("tokenizer.ggml.merges", Value::strings::<&str>([]));
    meta.set("tokenizer.ggml.token_type", vec![4i32; 40]);
    let tokenizer = Tokenizer::from_metadata(&meta).unwrap();
    let start = Instant::now();
    let ids = tokenizer.encode(&"\n".repeat(1_000_003), PLAIN);
    assert_eq!((ids.len(), ids[0], ids.last()), (25_001, 39, Some(&2)));
    assert!(start.elapsed() < Duration::from_secs(60));
}
