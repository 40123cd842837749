//! Texts encoded in pieces have the tokens of the whole text, and a flag cancels an encoding.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use puna_gguf::{Metadata, Value};
use puna_tokenizer::{EncodeCancelled, Tokenizer};

use crate::common::{PLAIN, SPECIAL, cria, metadata};
use crate::properties::{spm, unigram, wpm};

/// A tokenizer that takes any text as one piece, and the same with small pieces.
struct Vocabulary {
    name: String,
    whole: Tokenizer,
    in_pieces: Vec<Tokenizer>,
}

/// Sizes of pieces in bytes.
const PIECE_BYTES: [usize; 5] = [1, 40, 100, 333, 2000];

fn vocabulary(name: &str, tokenizer: impl Fn() -> Tokenizer) -> Vocabulary {
    let with = |bytes| tokenizer().with_piece_bytes(bytes).expect("it is not shared");
    Vocabulary { name: name.into(), whole: with(1 << 30), in_pieces: PIECE_BYTES.map(with).into() }
}

/// Vocabularies of each family.
static VOCABULARIES: LazyLock<Vec<Vocabulary>> = LazyLock::new(|| {
    let mut vocabularies = vec![
        vocabulary("cria", cria),
        vocabulary("spm", spm),
        vocabulary("wpm", wpm),
        vocabulary("wpm with accents", || wpm_options(false)),
        vocabulary("wpm without accents", || wpm_options(true)),
        vocabulary("ugm", || unigram("t5")),
        vocabulary("ugm with merged spaces", merged_spaces),
        vocabulary("plamo2", || unigram("plamo2")),
        vocabulary("rwkv", || unigram("rwkv")),
        vocabulary("gemma4", || characters("gemma4", "gemma4")),
        vocabulary("sarvam", || characters("gpt2", "sarvam-moe")),
        vocabulary("whitespace", || characters("whitespace", "whitespace")),
        vocabulary("hybriddna", dna),
        vocabulary("stripping", stripping),
    ];
    let models = [
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        "gemma-3-270m-q4_k_m.gguf",
        "vocab/ggml-vocab-gemma-4.gguf",
        "vocab/ggml-vocab-phi-3.gguf",
        "vocab/ggml-vocab-nomic-bert-moe.gguf",
    ];
    for name in models {
        if let Some(path) = crate::common::model(name) {
            vocabularies.push(vocabulary(name, || crate::common::open(path.clone())));
        }
    }
    vocabularies
});

const MERGES: [&str; 9] = ["a b", "a a", "aa aa", "b a", "▁ a", "▁ ▁", "▁▁ ▁▁", "ab aa", "日 本"];

/// A vocabulary that merges characters, with all bytes and runs of line ends.
fn characters(model: &str, pre: &str) -> Tokenizer {
    let words = [
        "a",
        "b",
        "ab",
        "aa",
        "aaaa",
        "ba",
        "▁",
        "▁a",
        "▁▁",
        "▁▁▁▁",
        "abaa",
        "日",
        "日本",
        "本",
        "\n",
        "\n\n",
        "\n\n\n\n",
        "<s>",
    ];
    let bytes: Vec<String> = (0..=255).map(|byte| format!("<0x{byte:02X}>")).collect();
    let tokens: Vec<&str> = bytes.iter().map(String::as_str).chain(words).collect();
    let kind = |at: usize| match tokens[at] {
        "<s>" => 3,
        "\n\n" => 4,
        _ => 1,
    };
    let mut meta = metadata(model, &tokens);
    meta.set("tokenizer.ggml.pre", pre);
    meta.set("tokenizer.ggml.merges", Value::strings(MERGES));
    meta.set("tokenizer.ggml.normalizer.lowercase", true);
    meta.set("tokenizer.ggml.token_type", (0..tokens.len()).map(kind).collect::<Vec<i32>>());
    read(&meta)
}

fn read(meta: &Metadata) -> Tokenizer {
    Tokenizer::from_metadata(meta).expect("a good vocabulary")
}

fn dna() -> Tokenizer {
    let tokens = [
        "a",
        "b",
        "ab",
        "aa",
        "aaaa",
        "A",
        "C",
        "<dna>",
        "</dna>",
        "<oov>",
        "ACACAA\u{e000}",
        "CCCCCC\u{e000}",
    ];
    let mut meta = metadata("hybriddna", &tokens);
    meta.set("tokenizer.ggml.pre", "gpt-2");
    meta.set("tokenizer.ggml.merges", Value::strings(["a b", "a a", "aa aa"]));
    read(&meta)
}

/// A vocabulary of byte pairs with control tokens that take white space.
fn stripping() -> Tokenizer {
    let tokens = ["a", "b", "ab", "Ġ", "ĠĠ", "<|im_start|>", "<mask>", "</s>", "\n"];
    let mut meta = metadata("gpt2", &tokens);
    meta.set("general.name", "phi-3");
    meta.set("tokenizer.ggml.pre", "gpt-2");
    meta.set("tokenizer.ggml.merges", Value::strings(["a b", "Ġ Ġ"]));
    meta.set("tokenizer.ggml.token_type", vec![1, 1, 1, 1, 1, 3, 3, 3, 4]);
    read(&meta)
}

fn wpm_options(strip_accents: bool) -> Tokenizer {
    let tokens = [
        "[PAD]", "[UNK]", "[CLS]", "[SEP]", "▁a", "a", "▁the", "he", "▁日", "▁.", "▁e", "e", "aa",
        "t", "b", "ab", "é", "\u{302e}", "1", "2", "3",
    ];
    let mut meta = metadata("bert", &tokens);
    meta.set("tokenizer.ggml.normalizer.strip_accents", strip_accents);
    for (key, id) in [("unknown", 1u32), ("bos", 2), ("seperator", 3)] {
        meta.set(&format!("tokenizer.ggml.{key}_token_id"), id);
    }
    read(&meta)
}

fn merged_spaces() -> Tokenizer {
    let tokens = ["<pad>", "<s>", "<unk>", "▁", "▁t", "he", "▁the", "a", "aa", "aaa", "▁a", "b"];
    let mut meta = metadata("t5", &tokens);
    let kind = |at: usize| [3, 3, 2].get(at).copied().unwrap_or(1);
    meta.set("tokenizer.ggml.token_type", (0..tokens.len()).map(kind).collect::<Vec<i32>>());
    // Sums of these are rounded.
    let score = |at: usize| -0.1 * (at * 7 % 13) as f32 - 0.7;
    meta.set("tokenizer.ggml.scores", (0..tokens.len()).map(score).collect::<Vec<f32>>());
    meta.set("tokenizer.ggml.remove_extra_whitespaces", true);
    meta.set("tokenizer.ggml.unknown_token_id", 2u32);
    read(&meta)
}

/// Long runs of a few units, with other text in between.
fn text() -> impl Strategy<Value = String> {
    let unit = prop_oneof![
        "[ab]",
        "[aé日]",
        "[ \n\t]",
        "(ab|ba|aa)",
        "(日本|本)",
        "[0-9]",
        ".",
        "(\u{301}|\u{302e}|\u{34f}|é)",
        "( the|the|'s|\\.|<dna>|</dna>|C|cac)",
        "(<\\|im_start\\|>|<s>|</s>|<mask>|  )"
    ];
    let run = (proptest::collection::vec(unit, 1..4), 1usize..300)
        .prop_map(|(units, count)| units.concat().repeat(count / units.len()));
    let any = prop_oneof![any::<String>(), "[ab ]{0,300}", "[a ▁日\n]{0,80}"];
    proptest::collection::vec(prop_oneof![run, any], 0..6).prop_map(|parts| parts.concat())
}

fn check(text: &str) {
    for Vocabulary { name, whole, in_pieces } in VOCABULARIES.iter() {
        for options in [PLAIN, SPECIAL] {
            let want = whole.encode(text, options);
            for (tokenizer, bytes) in in_pieces.iter().zip(PIECE_BYTES) {
                let found = tokenizer.encode(text, options);
                assert!(found == want, "{name}, pieces of {bytes}: {text:?}\n{found:?}\n{want:?}");
            }
        }
        let want = whole.controls_in(text);
        assert!(
            in_pieces.iter().all(|pieces| pieces.controls_in(text) == want),
            "{name}: {text:?}"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]
    #[test]
    fn pieces_have_the_tokens_of_the_whole_text(text in text()) {
        check(&text);
    }
}

#[test]
fn long_runs_in_pieces_have_the_tokens_of_the_whole_text() {
    let units = [
        "a",
        " ",
        "\n",
        "7",
        "é",
        "日",
        "日本",
        "\u{301}",
        "\u{302e}\u{301}",
        "▁",
        "<",
        "<|im_start|>",
        "ab ",
        "aab",
        "'s",
        "\u{378}",
        "the",
        " the",
        "C",
    ];
    for unit in units {
        for count in [1000, 1001, 2003] {
            check(&unit.repeat(count));
            check(&format!("<dna> x{}y ", unit.repeat(count)));
        }
    }
}

/// Texts that were the slowest, or keep a tokenizer in one loop.
const SLOW_UNITS: [&str; 12] =
    ["a", " ", "\n", "7", "日", "\u{301}", "▁", "<|im_start|>", "ab ", "\u{378}", "<dna>", "aA"];

#[test]
fn a_cancelled_encoding_ends_at_once() {
    for unit in SLOW_UNITS {
        let text = unit.repeat((16 << 20) / unit.len());
        for Vocabulary { name, whole, .. } in VOCABULARIES.iter() {
            let cancelled = AtomicBool::new(true);
            let start = Instant::now();
            assert_eq!(whole.try_encode(&text, SPECIAL, &cancelled), Err(EncodeCancelled));
            assert_eq!(whole.try_controls_in(&text, &cancelled), Err(EncodeCancelled));
            assert!(
                start.elapsed() < Duration::from_millis(250),
                "{name} {unit:?}: {:?}",
                start.elapsed()
            );
        }
    }
}

#[test]
fn an_encoding_ends_soon_after_it_is_cancelled() {
    // Milliseconds on an idle machine, where a whole text takes seconds. The bound leaves room for
    // a busy one.
    let mut delays = Vec::new();
    for unit in SLOW_UNITS {
        let text = unit.repeat((8 << 20) / unit.len());
        for tokenizer in [cria(), spm(), wpm(), unigram("t5"), unigram("plamo2"), unigram("rwkv")] {
            let cancelled = AtomicBool::new(false);
            std::thread::scope(|scope| {
                let (cancelled, text) = (&cancelled, &text);
                let encoding = scope.spawn(move || {
                    let result = tokenizer.try_encode(text, SPECIAL, cancelled);
                    (result, Instant::now())
                });
                std::thread::sleep(Duration::from_millis(10));
                cancelled.store(true, Ordering::Relaxed);
                let asked = Instant::now();
                if let Ok((Err(EncodeCancelled), ended)) = encoding.join() {
                    delays.push(ended.saturating_duration_since(asked));
                }
            });
        }
    }
    delays.sort();
    assert!(delays.len() > 30, "{}", delays.len());
    let median = delays[delays.len() / 2];
    assert!(median < Duration::from_millis(250), "{delays:?}");
}
