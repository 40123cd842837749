//! Vocabulary metadata and its effects.

use crate::common::{PLAIN, SPECIAL, cria, metadata};
use puna_gguf::{Metadata, Value};
use puna_tokenizer::{EncodeOptions, StreamDecoder, Tokenizer, TokenizerError};

fn read(meta: &Metadata) -> Tokenizer {
    Tokenizer::from_metadata(meta).unwrap_or_else(|error| panic!("{error}"))
}

fn error(meta: &Metadata) -> TokenizerError {
    Tokenizer::from_metadata(meta).expect_err("an error")
}

/// A BPE vocabulary of these tokens without merges. `types` as in the file.
fn bpe(tokens: &[&str], types: &[i32]) -> Metadata {
    let mut meta = metadata("gpt2", tokens);
    meta.set("tokenizer.ggml.pre", "gpt-2");
    meta.set("tokenizer.ggml.merges", Value::strings::<&str>([]));
    meta.set("tokenizer.ggml.token_type", types.to_vec());
    meta
}

#[test]
fn an_unknown_pre_tokenizer_is_named_with_the_known_ones() {
    let mut meta = bpe(&["a"], &[1]);
    meta.set("tokenizer.ggml.pre", "llama-9");
    let error = error(&meta);
    assert_eq!(error.code(), "tokenizer_unknown_pre");
    let text = error.to_string();
    assert!(text.starts_with("unknown pre-tokenizer type: 'llama-9'"), "{text}");
    assert!(
        ["llama-bpe", "qwen2", "smollm", "deepseek-v3", "gpt-4o"]
            .iter()
            .all(|name| text.contains(name)),
        "{text}"
    );
}

#[test]
fn arbitrary_names_are_safe_in_errors() {
    for (key, start) in
        [("pre", "unknown pre-tokenizer type: '"), ("model", "unknown tokenizer: '")]
    {
        let mut meta = bpe(&["a"], &[1]);
        let name = format!("\x1b[2J{}", "y".repeat(100_000));
        meta.set(&format!("tokenizer.ggml.{key}"), name.as_str());
        let text = error(&meta).to_string();
        assert!(text.starts_with(&format!("{start}\\u{{1b}}[2Jyyy")), "{text:.200}");
        assert!(text.len() < 2000, "{}", text.len());
    }
}

#[test]
fn a_bpe_file_without_a_pre_tokenizer_gets_the_default_one() {
    let mut meta = bpe(&["a"], &[1]);
    meta.remove("tokenizer.ggml.pre");
    assert_eq!(read(&meta).pre(), None);
    // SPM and WPM files have other names here, which are ignored.
    let mut meta = metadata("llama", &["a", "b", "c"]);
    meta.set("tokenizer.ggml.pre", "whatever");
    assert_eq!(read(&meta).pre(), Some("whatever"));
}

#[test]
fn vocabulary_errors_name_the_cause() {
    let code = |meta: &Metadata| error(meta).code();
    assert_eq!(code(&Metadata::new()), "gguf_key_missing");
    assert_eq!(code(&metadata("none", &["a"])), "tokenizer_no_vocabulary");
    assert_eq!(
        error(&metadata("magic", &["a"])).to_string(),
        "unknown tokenizer: 'magic' (`tokenizer.ggml.model`); supported: bert, gemma4, gpt2, hybriddna, llama, \
         plamo2, rwkv, t5, whitespace"
    );
    assert_eq!(code(&metadata("llama", &[])), "gguf_vocab_inconsistent");
    assert_eq!(code(&metadata("gpt2", &["a"])), "gguf_vocab_no_merges");
    let twice = error(&metadata("llama", &["a", "b", "a"]));
    assert_eq!(twice.code(), "gguf_vocab_duplicate_token");
    assert_eq!(
        twice.to_string(),
        "tokens 0 and 2 of `tokenizer.ggml.tokens` have the same text \"a\""
    );
    let mut meta = metadata("llama", &["a", "b"]);
    meta.set("tokenizer.ggml.scores", vec![1.0f32]);
    assert_eq!(
        error(&meta).to_string(),
        "`tokenizer.ggml.scores` has 1 entries, expected 2, one for each token"
    );
    let mut meta = metadata("llama", &["a", "b"]);
    meta.set("tokenizer.ggml.token_type", vec![1i32; 3]);
    assert_eq!(code(&meta), "gguf_vocab_inconsistent");
    let mut meta = metadata("llama", &["a"]);
    meta.set("tokenizer.ggml.tokens", 7u32);
    assert_eq!(code(&meta), "gguf_key_type");
}

#[test]
fn special_ids_beyond_the_vocabulary_are_ignored() {
    let mut meta = metadata("llama", &["a", "b", "c"]);
    meta.set("tokenizer.ggml.bos_token_id", 3u32);
    meta.set("tokenizer.ggml.padding_token_id", -1i32);
    meta.set("tokenizer.ggml.eos_token_id", 0u64);
    let tokenizer = read(&meta);
    assert_eq!((tokenizer.bos(), tokenizer.eos(), tokenizer.pad()), (Some(1), Some(0), None));
    // BPE's default ids are 11.
    assert_eq!(read(&bpe(&["a"], &[1])).bos(), None);
}

#[test]
fn scores_may_be_integers_and_empty_texts_get_a_name() {
    let mut meta = metadata("llama", &["<unk>", "<s>", "</s>", "", "a", "b", "ab", "ba"]);
    meta.set("tokenizer.ggml.scores", vec![0i32, 0, 0, 0, 0, 0, 1, 2]);
    meta.set("tokenizer.ggml.add_space_prefix", false);
    let tokenizer = read(&meta);
    assert_eq!(tokenizer.token_id("[EMPTY_3]"), Some(3));
    assert_eq!(tokenizer.encode("aba", PLAIN), [4, 7]);
}

#[test]
fn end_tokens_follow_texts_and_exceptions() {
    let ends = |tokens: &[&str], types: &[i32]| read(&bpe(tokens, types)).eog().to_vec();
    assert_eq!(ends(&["a", "<|im_end|>", "<|endoftext|>", "<|eom_id|>"], &[1, 3, 3, 3]), [1, 2, 3]);
    // A normal `</s>` is HTML. As a control token it ends generation.
    assert_eq!(ends(&["</s>", "<eos>"], &[4, 3]), [1]);
    assert_eq!(ends(&["</s>", "<eos>"], &[3, 3]), [0, 1]);
    // In Harmony, `<|end|>` ends a message, not the answer.
    assert_eq!(ends(&["<|end|>", "<|return|>", "<|call|>"], &[3, 3, 3]), [1, 2]);
    assert_eq!(ends(&["<|end|>", "<|return|>", "x"], &[3, 3, 1]), [0, 1]);
    assert_eq!(ends(&["</s>", "<|tool_response>"], &[3, 3]), [1]);
    let mut meta = bpe(&["a", "b", "c"], &[1, 1, 1]);
    meta.set("tokenizer.ggml.eos_token_ids", vec![2i32, 0, -1, 3]);
    assert_eq!(read(&meta).eog(), [0, 2]);
    let mut meta = bpe(&["a", "b", "c", "<fim_pad>"], &[1, 1, 1, 1]);
    meta.set("tokenizer.ggml.eos_token_id", 1u32);
    meta.set("tokenizer.ggml.eot_token_id", 2u32);
    let tokenizer = read(&meta);
    assert_eq!((tokenizer.eog(), tokenizer.eot()), (&[1, 2, 3][..], Some(2)));
    assert!(tokenizer.is_eog(3) && !tokenizer.is_eog(0) && tokenizer.is_control(3));
    assert_eq!(tokenizer.fim().pad, Some(3));
}

#[test]
fn harmony_markup_is_visible_and_older_fim_keys_take_precedence() {
    let mut meta = bpe(&["<|channel|>", "<|start|>", "a", "b"], &[3, 3, 1, 1]);
    meta.set("tokenizer.ggml.fim_pre_token_id", 2u32);
    meta.set("tokenizer.ggml.prefix_token_id", 3u32);
    let tokenizer = read(&meta);
    assert_eq!(tokenizer.decode(&[0, 2, 1], false), "<|channel|>a<|start|>");
    assert_eq!(tokenizer.fim().pre, Some(3));
}

#[test]
fn user_defined_tokens_are_always_parsed_and_control_tokens_on_demand() {
    let tokenizer = read(&bpe(&["a", "<u>", "<c>", "<", "u", "c", ">"], &[1, 4, 3, 1, 1, 1, 1]));
    let encode = |parse_special| {
        tokenizer.encode("a<u><c>", EncodeOptions { add_special: false, parse_special })
    };
    assert_eq!(encode(false), [0, 1, 3, 5, 6]);
    assert_eq!(encode(true), [0, 1, 2]);
    assert_eq!(tokenizer.decode(&encode(true), false), "a<u>");
    assert_eq!(tokenizer.decode(&encode(true), true), "a<u><c>");
}

#[test]
fn parts_merge_across_borders_and_only_trusted_parts_contain_control_tokens() {
    let mut meta =
        bpe(&["a", "b", "ab", "<c>", "<", "c", ">", "<u>", "u"], &[1, 1, 1, 3, 1, 1, 1, 4, 1]);
    meta.set("tokenizer.ggml.merges", Value::strings(["a b"]));
    let tokenizer = read(&meta);
    let encode = |parts: &[(&str, bool)]| tokenizer.encode_parts(parts, false);
    assert_eq!(encode(&[("<c>a", true), ("b<c>", false), ("<c>", true)]), [3, 2, 4, 5, 6, 3]);
    // A token across the border to user text is not parsed. A token across the border of trusted
    // parts is.
    assert_eq!(encode(&[("<", true), ("c>", false)]), [4, 5, 6]);
    assert_eq!(encode(&[("<", false), ("c>", true)]), [4, 5, 6]);
    assert_eq!(encode(&[("<", true), ("", false), ("c>", true)]), [3]);
    assert_eq!(encode(&[("<u", false), (">", true)]), [7]);
    assert_eq!(encode(&[]), [0; 0]);
}

#[test]
fn markup_tokens_are_parsed_in_trusted_parts_only() {
    let texts = ["<|start|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>", "<u>", "a"];
    let letters = ["<", "|", ">", "s", "t", "r", "m", "e", "g", "n", "d", "c", "l", "u"];
    let texts: Vec<&str> = texts.into_iter().chain(letters).collect();
    let types = [3, 3, 3, 3, 3, 4].into_iter().chain([1; 15]).collect::<Vec<i32>>();
    let tokenizer = read(&bpe(&texts, &types));
    // As in llama.cpp, Harmony's markup is visible and parsed everywhere.
    let plain = tokenizer.encode("<|start|><|call|>", PLAIN);
    assert_eq!(plain[0], 0);
    let text = "a<|start|>a<u><|call|><|message|>";
    let found = tokenizer.controls_in(text);
    assert_eq!(
        found.iter().map(|at| &text[at.clone()]).collect::<Vec<_>>(),
        ["<|start|>", "<|call|>", "<|message|>"]
    );
    let trusted = tokenizer.encode_parts(&[(text, true)], false);
    assert_eq!(trusted, [6, 0, 6, 5, 3, 1]);
    let written = tokenizer.encode_parts(&[(text, false)], false);
    assert!(
        written.contains(&5) && [0, 1, 3].iter().all(|mark| !written.contains(mark)),
        "{written:?}"
    );
    assert_eq!(tokenizer.controls_in("a|>"), []);
}

#[test]
fn a_merge_result_that_is_not_a_token_falls_back_to_bytes() {
    let mut meta = bpe(&["a", "b", "c", "abc"], &[1; 4]);
    meta.set("tokenizer.ggml.merges", Value::strings(["a b", "ab c"]));
    assert_eq!(read(&meta).encode("abcab", PLAIN), [3, 0, 1]);
    // Of equal merges only the first counts, and a merge without a space is ignored.
    meta.set("tokenizer.ggml.merges", Value::strings(["ab", "b c", "a b", "b c", "a bc"]));
    assert_eq!(read(&meta).encode("abc", PLAIN), [3]);
}

#[test]
fn spm_prefixes_each_text_with_a_space_and_strips_the_first() {
    let mut meta = metadata("llama", &["<unk>", "<s>", "</s>", "▁a", "a", "▁", "b"]);
    meta.set("tokenizer.ggml.token_type", vec![2i32, 3, 3, 1, 1, 1, 1]);
    let tokenizer = read(&meta);
    let ids = tokenizer.encode("a<s>a", SPECIAL);
    assert_eq!(ids, [1, 3, 1, 3]);
    assert_eq!(tokenizer.decode(&ids, false), "a a");
    assert_eq!(tokenizer.decode(&ids, true), "<s> a<s> a");
    assert_eq!(tokenizer.detokenize(&ids, true, true), " a<s> a");
    // A continuation of a prompt keeps its space.
    assert_eq!(tokenizer.decoder().push(3), " a");
    assert_eq!(tokenizer.decoder().at_start().push(3), "a");
    let mut decoder = tokenizer.decoder().at_start();
    assert_eq!([decoder.push(1), decoder.push(4), decoder.push(3)], ["", "a", " a"]);
}

#[test]
fn a_prompt_has_one_bos_token() {
    let mut meta = metadata("llama", &["<unk>", "<s>", "</s>", "▁a", "a", "▁", "x"]);
    meta.set("tokenizer.ggml.token_type", vec![2i32, 3, 3, 1, 1, 1, 1]);
    let adds = read(&meta);
    assert_eq!(adds.encode("<s>a", SPECIAL), [1, 1, 3]);
    for (text, leading) in [("a", ""), ("<s>a", ""), ("<s>a", "<s>"), ("xa", "x"), ("a", "x")] {
        assert_eq!(adds.encode_prompt(text, leading), [1, 3], "{text} {leading}");
    }
    assert_eq!(adds.encode_prompt("", ""), [1]);
    assert_eq!(adds.encode_prompt_parts(&[("x", true), ("a", false)], "x"), [1, 3]);
    // An untrusted BOS text is text.
    assert_eq!(adds.encode_prompt_parts(&[("xa", false)], "x"), [1, 5, 6, 4]);
    meta.set("tokenizer.ggml.add_bos_token", false);
    let plain = read(&meta);
    assert_eq!(plain.encode_prompt("<s>a", "<s>"), [1, 3]);
    assert_eq!(plain.encode_prompt("<s><s>a", ""), [1, 1, 3]);
}

#[test]
fn a_stream_holds_back_incomplete_characters_and_replaces_invalid_ones() {
    let tokens: Vec<String> = (0..=255).map(|byte| format!("<0x{byte:02X}>")).collect();
    let mut meta = metadata("llama", &tokens.iter().map(String::as_str).collect::<Vec<_>>());
    meta.set("tokenizer.ggml.token_type", vec![6i32; 256]);
    let mut decoder = read(&meta).decoder();
    let pushed: Vec<String> = "é😀".bytes().map(|byte| decoder.push(byte.into())).collect();
    assert_eq!(pushed, ["", "é", "", "", "", "😀"]);
    assert_eq!([decoder.push(0xF0), decoder.push(0x9F), decoder.push(0x41)], ["", "", "\u{FFFD}A"]);
    assert_eq!([decoder.push(0xFF), decoder.push(0xE6)], ["\u{FFFD}", ""]);
    assert_eq!(decoder.held(), [0xE6]);
    assert_eq!([decoder.finish(), decoder.finish()], ["\u{FFFD}", ""]);
}

#[test]
fn whitespace_vocabularies_drop_white_space() {
    let mut meta = metadata("whitespace", &["ab", "a", "b", "A"]);
    meta.set("tokenizer.ggml.pre", "whitespace");
    meta.set("tokenizer.ggml.merges", Value::strings(["a b"]));
    assert_eq!(read(&meta).encode(" ab \n a\u{3000}A", PLAIN), [0, 1, 3]);
    meta.set("tokenizer.ggml.normalizer.lowercase", true);
    assert_eq!(read(&meta).encode("AB", PLAIN), [0]);
}

#[test]
fn wordpiece_takes_longest_pieces_or_marks_the_word_unknown() {
    let tokens =
        ["[UNK]", "[CLS]", "[SEP]", "▁un", "▁u", "aff", "able", "a", "▁.", "▁ha", "▁中", "▁ḥ"];
    let mut meta = metadata("bert", &tokens);
    for (key, id) in [("unknown", 0u32), ("bos", 1), ("seperator", 2)] {
        meta.set(&format!("tokenizer.ggml.{key}_token_id"), id);
    }
    let tokenizer = read(&meta);
    assert_eq!(tokenizer.encode("unaffable. UNaffx", SPECIAL), [1, 3, 5, 6, 8, 0, 2]);
    assert_eq!(tokenizer.encode("h\u{e4}中", PLAIN), [9, 10]);
    assert_eq!(tokenizer.encode("un\u{ad}\u{0}\u{fffd}aff\u{b}able", PLAIN), [3, 5, 6]);
    assert_eq!((tokenizer.cls(), tokenizer.sep()), (Some(1), Some(2)));
    meta.set("tokenizer.ggml.normalizer.strip_accents", false);
    assert_eq!(read(&meta).encode("\u{1e24}", PLAIN), [11]);
    meta.set("tokenizer.ggml.normalizer.lowercase", false);
    assert_eq!(read(&meta).encode("\u{1e24} \u{1e25}", PLAIN), [0, 11]);
}

#[test]
fn cria_parses_chat_ml() {
    let tokenizer = cria();
    assert_eq!((tokenizer.model(), tokenizer.vocab_size()), ("gpt2", 4096));
    let end = tokenizer.token_id("<|im_end|>").expect("a turn's end");
    assert!(tokenizer.is_eog(end) && tokenizer.is_control(end));
    let ids = tokenizer.encode(
        "<|im_start|>user\nHi<|im_end|>",
        EncodeOptions { add_special: false, parse_special: true },
    );
    assert_eq!(
        (ids.first().copied(), ids.last().copied()),
        (tokenizer.token_id("<|im_start|>"), Some(end))
    );
    assert_eq!(tokenizer.decode(&ids, false), "user\nHi");
}

#[test]
fn original_patterns_are_optional() {
    let tokens = ["Ã", "ī", "Ġ", "©", "Ãī", "Ã©", "Ã©Ãī"];
    let mut meta = bpe(&tokens, &[1; 7]);
    meta.set("tokenizer.ggml.pre", "gpt-4o");
    meta.set("tokenizer.ggml.merges", Value::strings(["Ã ī", "Ã ©", "Ã© Ãī"]));
    assert_eq!(read(&meta).encode("éÉ", PLAIN), [6]);
    let original = Tokenizer::with_original_patterns(&meta).expect("a good vocabulary");
    assert_eq!(original.encode("éÉ", PLAIN), [5, 4]);
}

/// A unigram vocabulary. Scores are in tenths.
fn unigram(tokens: &[(&str, i32, i32)]) -> Metadata {
    let mut meta = metadata("t5", &tokens.iter().map(|t| t.0).collect::<Vec<_>>());
    meta.set("tokenizer.ggml.token_type", tokens.iter().map(|t| t.1).collect::<Vec<i32>>());
    meta.set(
        "tokenizer.ggml.scores",
        tokens.iter().map(|t| t.2 as f32 / 10.0).collect::<Vec<f32>>(),
    );
    meta.set("tokenizer.ggml.add_space_prefix", true);
    meta
}

#[test]
fn unigram_tokens_have_the_greatest_sum_of_scores() {
    let tokens = [
        ("<pad>", 3, 0),
        ("</s>", 3, 0),
        ("<unk>", 2, 0),
        ("▁", 1, -20),
        ("▁a", 1, -30),
        ("a", 1, -25),
        ("ab", 1, -26),
        ("b", 1, -10),
        ("[x]", 4, -90),
    ];
    let mut meta = unigram(&tokens);
    let encode = |meta: &Metadata, text| read(meta).encode(text, SPECIAL);
    // "▁a" + "b" = -4.0 beats "▁" + "ab" = -4.6; of "aab", "▁a" + "ab" = -5.6.
    assert_eq!(encode(&meta, "ab"), [4, 7, 1]);
    assert_eq!(encode(&meta, "aab"), [4, 6, 1]);
    assert_eq!(encode(&meta, "a  b"), [4, 3, 3, 7, 1]);
    assert_eq!(encode(&meta, "azzéb[x]"), [4, 2, 7, 8, 1]);
    assert_eq!(encode(&meta, ""), [1]);
    meta.set("tokenizer.ggml.remove_extra_whitespaces", true);
    assert_eq!(encode(&meta, "  a  b "), [4, 3, 7, 1]);
    assert_eq!(read(&meta).decode(&[4, 3, 7], false), "a b");
}

#[test]
fn inconsistent_charsmaps_are_refused_and_random_ones_are_harmless() {
    let mut meta =
        unigram(&[("<pad>", 3, 0), ("</s>", 3, 0), ("<unk>", 2, 0), ("▁", 1, 0), ("a", 1, 0)]);
    for bytes in [&[][..], &[1u8, 0, 0], &[4, 0, 0, 0], &[255, 255, 255, 255, 0]] {
        meta.set("tokenizer.ggml.precompiled_charsmap", bytes.to_vec());
        assert_eq!(error(&meta).code(), "gguf_vocab_inconsistent", "{bytes:?}");
    }
    // Nodes with all bits set point anywhere.
    for node in [u32::MAX, 0x61, 0x161, 1 << 8 | 1 << 10 | 0x61, 0x3FF] {
        let nodes = std::iter::repeat_n(node, 256).flat_map(u32::to_le_bytes);
        meta.set(
            "tokenizer.ggml.precompiled_charsmap",
            1024u32.to_le_bytes().into_iter().chain(nodes).chain(*b"b\0").collect::<Vec<u8>>(),
        );
        assert_eq!(read(&meta).encode("a", PLAIN).len(), 2);
    }
}

#[test]
fn rwkv_takes_the_longest_token_of_bytes() {
    let mut meta =
        metadata("rwkv", &["<s>", r"\x00", r"\n", "a", "ab", r"\xe4\xb8", r"\xad", "abcd"]);
    meta.set("tokenizer.ggml.unknown_token_id", 1u32);
    let tokenizer = read(&meta);
    assert_eq!(tokenizer.encode("ababc\n中", SPECIAL), [4, 4, 1, 2, 5, 6]);
    assert_eq!(tokenizer.decode(&[4, 2, 5, 6], false), "ab\n中");
}

#[test]
fn control_tokens_are_hidden_unless_marked_visible() {
    let tokenizer = cria();
    let ids = tokenizer.encode("<|im_start|>a<|endoftext|><think>", SPECIAL);
    let shown = tokenizer.token_id("<|endoftext|>").into_iter().collect::<Vec<_>>();
    let text =
        |mut decoder: StreamDecoder| ids.iter().map(|id| decoder.push(*id)).collect::<String>();
    assert_eq!(text(tokenizer.decoder()), "a<think>");
    assert_eq!(text(tokenizer.decoder().with_visible_tokens(&shown)), "a<|endoftext|><think>");
}

/// A PLaMo 2 vocabulary of the bytes and these tokens.
fn plamo2(tokens: &[(&str, f32)]) -> Metadata {
    let bytes: Vec<String> = (0..=255).map(|byte| format!("<0x{byte:02X}>")).collect();
    let texts =
        ["<unk>", "<s>", "</s>", "<pad>"].into_iter().chain(bytes.iter().map(String::as_str));
    let texts: Vec<&str> = texts.chain(tokens.iter().map(|token| token.0)).collect();
    let kind = |at: usize| [2, 3, 3, 3].get(at).copied().unwrap_or(if at < 260 { 6 } else { 1 });
    let mut meta = metadata("plamo2", &texts);
    meta.set("tokenizer.ggml.token_type", (0..texts.len()).map(kind).collect::<Vec<i32>>());
    let scores: Vec<f32> =
        [0.0; 260].into_iter().chain(tokens.iter().map(|token| token.1)).collect();
    meta.set("tokenizer.ggml.scores", scores);
    meta
}

#[test]
fn plamo_2_maximizes_scores_and_falls_back_to_bytes() {
    let tokens =
        [("a", -4.0), ("b", -4.0), ("ab", -5.0), ("ba", -2.0), ("aba", -8.0), ("no", -2000.0)];
    let tokenizer = read(&plamo2(&tokens));
    let byte = |byte: u8| u32::from(byte) + 4;
    let encode = |text| tokenizer.encode(text, SPECIAL);
    assert_eq!(encode("ab"), [262]);
    // "a" and "ba" are the cheapest.
    assert_eq!(encode("aba"), [260, 263]);
    assert_eq!(encode("\u{feff}aé"), [260, byte(0xC3), byte(0xA9)]);
    assert_eq!(encode("no"), [byte(b'n'), byte(b'o')]);
    // Text of users stays text, whatever the score of control tokens. Control tokens in template
    // text are parsed.
    assert_eq!(tokenizer.encode("<s>", PLAIN), [byte(b'<'), byte(b's'), byte(b'>')]);
    assert_eq!(encode("<s>ab"), [1, 262]);
    assert_eq!(tokenizer.decode(&encode("aé ▁ab"), false), "aé ▁ab");
    // Of equal sums, the split with the longer first token wins.
    assert_eq!(read(&plamo2(&[("a", -1.0), ("b", -1.0), ("ab", -2.0)])).encode("ab", PLAIN), [262]);
}

#[test]
fn plamo_2_requires_all_byte_tokens() {
    let mut meta = metadata("plamo2", &["a", "<0x00>"]);
    assert_eq!(
        error(&meta).to_string(),
        "the token <0x01> is missing: a `plamo2` vocabulary needs one for each byte"
    );
    meta = plamo2(&[]);
    assert_eq!(read(&meta).encode("a", PLAIN), [u32::from(b'a') + 4]);
}

#[test]
fn six_nucleotides_form_a_token_printed_without_its_suffix() {
    let tokens =
        ["a", "b", "A", "C", "<dna>", "</dna>", "<oov>", "ACACAA\u{e000}", "CCCCCC\u{e000}"];
    let mut meta = bpe(&tokens, &[1; 9]);
    meta.set("tokenizer.ggml.model", "hybriddna");
    let tokenizer = read(&meta);
    let ids = tokenizer.encode("ab<dna>ccccccACac</dna>A<dna>N", PLAIN);
    assert_eq!(ids, [0, 1, 4, 8, 7, 5, 2, 4, 6]);
    assert_eq!(tokenizer.decode(&ids, false), "ab<dna>CCCCCCACACAA</dna>A<dna><oov>");
    // Without sequence markers it is plain byte-pair encoding.
    let mut meta = bpe(&["a", "b"], &[1; 2]);
    meta.set("tokenizer.ggml.model", "hybriddna");
    assert_eq!(read(&meta).encode("ab", PLAIN), [0, 1]);
}
