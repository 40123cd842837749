//! Vocabulary files of a folder.

use puna_gguf::Gguf;
use serde_json::{Map, Value, json};

use super::fixtures::Folder;

const DEEPSEEK_LETTERS: &str = r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+";
const DEEPSEEK_MARKS: &str = r"\s?[!-/:-~！-／：-～‘-‟　-。]+";

fn steps_of(steps: Vec<Value>) -> Value {
    json!({"type": "Sequence", "pretokenizers": steps})
}

/// Pre-tokenizers of vocabularies with `ignore_merges`.
const WHOLE_WORDS: [&str; 4] = ["llama-bpe", "pixtral", "falcon-h1", "lfm2"];

/// WordPiece tokens; folders mark the inside of words with `##`.
fn put_wordpiece(tokens: &[String], kinds: &[i32], folder: &mut Folder) {
    let source = |(text, kind): (&String, &i32)| match text.strip_prefix('▁') {
        Some(start) => start.to_owned(),
        None if *kind == 3 => text.clone(),
        None => format!("##{text}"),
    };
    let lines: Vec<String> = tokens.iter().zip(kinds).map(source).collect();
    folder.put("vocab.txt", lines.join("\n"));
}

/// Merges of characters with byte fallback.
fn put_character_merges(gguf: &Gguf, tokens: &[String], kinds: &[i32], folder: &mut Folder) {
    let merges = gguf.metadata().strings("tokenizer.ggml.merges").unwrap().unwrap();
    let merges: Vec<_> = merges.map(|merge| String::from_utf8(merge.to_vec()).unwrap()).collect();
    let vocab: Map<String, Value> =
        tokens.iter().enumerate().map(|(id, text)| (text.clone(), id.into())).collect();
    let added: Vec<Value> = (tokens.iter().zip(kinds).enumerate())
        .filter(|(_, (_, kind))| matches!(kind, 3 | 4))
        .map(|(id, (text, _))| json!({"id": id, "content": text, "special": true}))
        .collect();
    let model = json!({"type": "BPE", "vocab": vocab, "merges": merges, "byte_fallback": true, "unk_token": "<unk>"});
    folder.put("tokenizer.json", json!({"added_tokens": added, "model": model}).to_string());
}

/// The regular expressions behind the names of pre-tokenizers.
pub(super) fn steps(pre: &str) -> Value {
    let words = |digits: &str| {
        format!(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        )
    };
    let split = |text: String| {
        json!({"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": text}, "behavior": "Isolated", "invert": false},
            {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}]})
    };
    match pre {
        "llama-bpe" => split(words(r"\p{N}{1,3}")),
        "qwen2" => split(words(r"\p{N}")),
        "gpt-4o" => split(r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+".to_owned()),
        "tekken" => split(r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+".to_owned()),
        "bailingmoe2" => split(r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+".to_owned()),
        "bloom" => split(r" ?[^(\s|[.,!?…。，、।۔،])]+".to_owned()),
        "falcon" => steps_of(vec![json!({"type": "Punctuation", "behavior": "Contiguous"}), steps("gpt-2"), split("[0-9][0-9][0-9]".to_owned())]),
        "hunyuan-dense" => steps_of(vec![split(r"\p{N}{1,3}".to_owned()), split("[一-龥\u{3040}-ゟ゠-ヿ]+".to_owned()),
            split(r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##.to_owned())]),
        "deepseek-llm" => steps_of([r"[\r\n]", DEEPSEEK_LETTERS, DEEPSEEK_MARKS, r"\s+$", "[一-龥ࠀ-一가-퟿]+"].map(|text| split(text.to_owned()))
            .into_iter().chain([json!({"type": "Digits", "individual_digits": true})]).collect()),
        // The original expression is unknown; the test does not compare the name.
        "afmoe" => steps("qwen2"),
        "smaug-bpe" | "glm4" | "chatglm-bpe" => steps("llama-bpe"),
        "stablelm2" | "hunyuan" | "kimi-k2" => steps("qwen2"),
        "pixtral" | "falcon-h1" | "lfm2" => steps("llama-bpe"),
        "modern-bert" | "roberta-bpe" => steps("gpt-2"),
        "deepseek-v3" => steps("hunyuan-dense"),
        "qwen35" => split(r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+".to_owned()),
        "llama4" | "minimax-m2" => steps("gpt-4o"),
        "refact" | "command-r" | "starcoder" => json!({"type": "Sequence", "pretokenizers": [
            {"type": "Digits", "individual_digits": true}, steps("gpt-2")]}),
        "seed-coder" => split(r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+".to_owned()),
        "gpt-2" | "olmo" | "exaone4" => json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true}),
        other => panic!("{other}"),
    }
}

pub(super) fn put_vocabulary(gguf: &Gguf, folder: &mut Folder) {
    let meta = gguf.metadata();
    let tokens: Vec<String> = meta
        .strings("tokenizer.ggml.tokens")
        .unwrap()
        .unwrap()
        .map(|token| String::from_utf8(token.to_vec()).unwrap())
        .collect();
    let kinds = meta.i32s("tokenizer.ggml.token_type").unwrap().unwrap();
    let flag = |task: &str| meta.opt_bool(&format!("tokenizer.ggml.add_{task}_token")).unwrap();
    let settings = json!({"add_bos_token": flag("bos"), "add_eos_token": flag("eos"),
        "chat_template": meta.opt_str("tokenizer.chat_template").unwrap()});
    folder.put("tokenizer_config.json", settings.to_string());
    match meta.str("tokenizer.ggml.model").unwrap() {
        "bert" => return put_wordpiece(&tokens, &kinds, folder),
        "gemma4" => return put_character_merges(gguf, &tokens, &kinds, folder),
        _ => {}
    }
    if let Some(scores) = meta.f32s("tokenizer.ggml.scores").unwrap() {
        let mut file = Vec::new();
        let mut field = |number: u8, bytes: &[u8]| {
            file.extend([number << 3 | 2, bytes.len() as u8]);
            file.extend_from_slice(bytes);
        };
        for ((text, kind), score) in tokens.iter().zip(&kinds).zip(scores) {
            let text = [&[0x0a, text.len() as u8], text.as_bytes()].concat();
            field(1, &[&text[..], &[0x15], &score.to_le_bytes(), &[0x18, *kind as u8]].concat());
        }
        let has_prefix = meta.opt_bool("tokenizer.ggml.add_space_prefix").unwrap().unwrap_or(true);
        field(3, &[0x18, has_prefix.into()]);
        folder.put("tokenizer.model", file);
        return;
    }
    let merges = meta.strings("tokenizer.ggml.merges").unwrap().unwrap();
    let merges: Vec<_> = merges.map(|merge| String::from_utf8(merge.to_vec()).unwrap()).collect();
    let (mut vocab, mut added) = (Map::new(), Vec::new());
    for (id, (text, kind)) in tokens.iter().zip(&kinds).enumerate() {
        match kind {
            1 => drop(vocab.insert(text.clone(), id.into())),
            5 => {}
            kind => added.push(
                json!({"id": id, "content": text, "special": *kind == 3, "normalized": false}),
            ),
        }
    }
    let pre = meta.str("tokenizer.ggml.pre").unwrap();
    let model = json!({"type": "BPE", "vocab": vocab, "merges": merges, "ignore_merges": WHOLE_WORDS.contains(&pre)});
    let json = json!({"added_tokens": added, "pre_tokenizer": steps(pre), "model": model});
    folder.put("tokenizer.json", json.to_string());
}
