//! The vocabulary of a decoder: tokens with their kinds, merges or scores, from `tokenizer.model` or `tokenizer.json`.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;

use puna_gguf::{Value, Writer};
use serde_json::Value as JsonValue;

use super::config::Json;
use super::families::{Family, Words};
use super::ranks::{self, Ranks};
use super::special::Special;
use super::unigram::{self, Unigram};
use super::{Folder, ImportError, plamo, pretokenizer, sentencepiece};
use crate::error::StoreError;

pub(super) const NORMAL: i32 = 1;
pub(super) const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;
pub(super) const BYTE: i32 = 6;
pub(super) const UNKNOWN: i32 = 2;

/// No vocabulary has more tokens.
const LIMIT: u64 = 1 << 24;
/// The score of tokens that were added to a vocabulary with scores, and of those that stand for nothing.
const ADDED_SCORE: f32 = -1000.0;
const UNUSED_SCORE: f32 = -10000.0;

/// Tokens of Gemma 4 around thoughts and calls, which whoever reads an answer must see.
const GEMMA4_SHOWN: [&str; 7] = [
    "<|channel>",
    "<channel|>",
    "<|tool_call>",
    "<tool_call|>",
    "<|tool_response>",
    "<tool_response|>",
    "<|\"|>",
];

/// A token.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Token {
    pub(super) text: String,
    pub(super) kind: i32,
    pub(super) score: f32,
}

/// A vocabulary.
pub(super) struct Vocabulary {
    tokens: Vec<Token>,
    form: Form,
    special: Special,
}

/// How texts are cut into tokens.
enum Form {
    /// Pairs of neighbours are joined in the order of a list, within words that an expression finds.
    Merges { pre: &'static str, merges: Vec<String> },
    /// Neighbours are joined to the token of the best score.
    Scores { has_prefix: bool },
    /// Of all ways to cut a text, the one whose scores have the greatest sum.
    Unigram(Unigram),
    /// PLaMo's, where scores of the pieces of a text have the greatest sum, too.
    Plamo,
    /// Pairs of neighbours are joined in the order of a list, from characters on.
    Characters { merges: Vec<String> },
}

impl Vocabulary {
    /// Reads the vocabulary of an embedding of so many rows.
    pub(super) fn read(
        folder: &Folder<'_>,
        config: &Json,
        bare_start: bool,
        rows: u64,
    ) -> Result<Self, StoreError> {
        Self::read_as(folder, config, Words::Usual, (bare_start, None), rows)
    }

    /// The same, of a family with such a kind of vocabulary, and with a name for how ranks cut texts.
    pub(super) fn read_as(
        folder: &Folder<'_>,
        config: &Json,
        words: Words,
        (bare_start, named): (bool, Option<&'static str>),
        rows: u64,
    ) -> Result<Self, StoreError> {
        let json = folder.json("tokenizer.json")?;
        let settings = folder.json("tokenizer_config.json")?.unwrap_or_default();
        let bad =
            |reason: String| ImportError::Tokenizer { file: "tokenizer.json".to_owned(), reason };
        let rows = usize::try_from(rows.min(LIMIT)).unwrap_or(usize::MAX);
        let (mut tokens, form) =
            if let Some(file) = pieces(folder, words, json.is_some() || named.is_some())? {
                let (tokens, found) = sentencepiece::read(folder, file, rows)?;
                let is_unigram = words == Words::Encoder && found.is_unigram;
                let form = match is_unigram {
                    true => Form::Unigram(found.normalizer),
                    false => Form::Scores { has_prefix: found.normalizer.has_prefix },
                };
                (tokens, form)
            } else if words == Words::Usual && json.is_none() && folder.has(plamo::FILE) {
                (plamo::read(folder, rows)?, Form::Plamo)
            } else if words == Words::Usual
                && json.is_none()
                && let Some(Ranks { tokens, merges, pre }) = ranks::read(folder, named, rows)?
            {
                (tokens, Form::Merges { pre, merges })
            } else {
                let json = json.as_ref();
                let json = json.ok_or_else(|| {
                    ImportError::FileMissing("tokenizer.json or tokenizer.model".into())
                })?;
                from_json(json, words, rows).map_err(bad)?
            };
        let has_scores = matches!(form, Form::Scores { .. } | Form::Characters { .. });
        for (id, text, special) in added(folder, json.as_ref(), &settings)? {
            add(&mut tokens, id, text, special, has_scores);
        }
        if words == Words::Gemma4 {
            for token in
                tokens.iter_mut().flatten().filter(|token| GEMMA4_SHOWN.contains(&&*token.text))
            {
                token.kind = USER_DEFINED;
            }
        }
        let filled: Vec<Token> = tokens
            .into_iter()
            .enumerate()
            .map(|(id, token)| {
                let unused =
                    || Token { text: format!("[PAD{id}]"), kind: UNUSED, score: UNUSED_SCORE };
                token.unwrap_or_else(unused)
            })
            .collect();
        let special = Special::read(folder, config, json.as_ref(), settings, &filled)?;
        let form = match form {
            Form::Scores { has_prefix } => Form::Scores { has_prefix: has_prefix && !bare_start },
            other => other,
        };
        Ok(Self { tokens: filled, form, special })
    }

    /// With what is known of a family: the name of its pre-tokenizer, tokens that end an answer.
    pub(super) fn of(mut self, family: &Family, config: &Json) -> Self {
        if let Form::Merges { pre, .. } = &mut self.form {
            *pre = (family.pre)(pre);
        }
        let end = family.end_key.and_then(|key| config.value(key)?.as_u64());
        if let Some(id) = end
            .and_then(|id| u32::try_from(id).ok())
            .filter(|&id| (id as usize) < self.tokens.len())
        {
            self.special.end_with(id);
        }
        for (key, text) in family.ends {
            let found = self.tokens.iter().position(|token| token.text == *text);
            if let Some(id) = found.and_then(|id| u32::try_from(id).ok()) {
                self.special.add(key, id);
            }
        }
        self
    }

    /// Writes the keys.
    pub(super) fn write(&self, architecture: &str, writer: &mut Writer) {
        let tokens = Value::strings(self.tokens.iter().map(|token| &token.text));
        let kinds: Vec<i32> = self.tokens.iter().map(|token| token.kind).collect();
        match &self.form {
            Form::Merges { pre, merges } => {
                writer.set("tokenizer.ggml.model", "gpt2").set("tokenizer.ggml.pre", *pre);
                writer.set("tokenizer.ggml.tokens", tokens).set("tokenizer.ggml.token_type", kinds);
                writer.set("tokenizer.ggml.merges", Value::strings(merges));
            }
            Form::Scores { has_prefix } => {
                let scores: Vec<f32> = self.tokens.iter().map(|token| token.score).collect();
                writer.set("tokenizer.ggml.model", "llama").set("tokenizer.ggml.pre", "default");
                writer.set("tokenizer.ggml.tokens", tokens).set("tokenizer.ggml.scores", scores);
                writer.set("tokenizer.ggml.token_type", kinds);
                writer.set("tokenizer.ggml.add_space_prefix", *has_prefix);
            }
            Form::Plamo => {
                let scores: Vec<f32> = self.tokens.iter().map(|token| token.score).collect();
                writer.set("tokenizer.ggml.model", "plamo2").set("tokenizer.ggml.pre", "default");
                writer.set("tokenizer.ggml.tokens", tokens).set("tokenizer.ggml.scores", scores);
                writer.set("tokenizer.ggml.token_type", kinds);
                writer.set("tokenizer.ggml.add_space_prefix", false);
            }
            Form::Unigram(unigram) => {
                let scores: Vec<f32> = self.tokens.iter().map(|token| token.score).collect();
                writer.set("tokenizer.ggml.model", "t5").set("tokenizer.ggml.pre", "default");
                writer.set("tokenizer.ggml.tokens", tokens).set("tokenizer.ggml.scores", scores);
                writer.set("tokenizer.ggml.token_type", kinds);
                writer.set("tokenizer.ggml.add_space_prefix", unigram.has_prefix);
                writer.set("tokenizer.ggml.remove_extra_whitespaces", unigram.merges_spaces);
                if let Some(charsmap) = &unigram.charsmap {
                    writer.set("tokenizer.ggml.precompiled_charsmap", &charsmap[..]);
                }
            }
            Form::Characters { merges } => {
                let scores: Vec<f32> = self.tokens.iter().map(|token| token.score).collect();
                writer.set("tokenizer.ggml.model", "gemma4").set("tokenizer.ggml.tokens", tokens);
                writer.set("tokenizer.ggml.scores", scores).set("tokenizer.ggml.token_type", kinds);
                writer.set("tokenizer.ggml.merges", Value::strings(merges));
                writer.set("tokenizer.ggml.add_space_prefix", false);
            }
        }
        self.special.write(writer);
        if matches!(self.form, Form::Characters { .. }) {
            writer.set("tokenizer.ggml.add_bos_token", true);
        }
        // Granite's and SmolLM's vocabulary begins with nothing, whatever its files say.
        if architecture == "llama" && self.tokens.len() == 49152 {
            writer.set("tokenizer.ggml.add_bos_token", false);
        }
        // Code Llama's places in the middle of a text are in none of its files.
        if architecture == "llama" && self.tokens.len() == 32016 {
            for (key, id) in
                [("prefix", 32007u32), ("suffix", 32008), ("middle", 32009), ("eot", 32010)]
            {
                writer.set(&format!("tokenizer.ggml.{key}_token_id"), id);
            }
        }
    }
}

/// The file of SentencePiece that a vocabulary of such a kind is read from, which may be none where there is another way to read it.
fn pieces(
    folder: &Folder<'_>,
    words: Words,
    has_other: bool,
) -> Result<Option<&'static str>, StoreError> {
    let file = ["tokenizer.model", "spiece.model"].into_iter().find(|file| folder.has(file));
    let file = match words {
        Words::Usual => file.filter(|file| *file == "tokenizer.model"),
        Words::Encoder => file.filter(|_| !has_other),
        _ => None,
    };
    // Some folders have tiktoken's form under this name.
    let Some(path) = file.and_then(|file| folder.path(file)) else { return Ok(None) };
    let mut start = Vec::new();
    let read = File::open(path).and_then(|file| file.take(4096).read_to_end(&mut start));
    read.map_err(|e| StoreError::io("read", path, &e))?;
    match ranks::is_of(&start) {
        false => Ok(file),
        true if has_other => Ok(None),
        true => {
            let reason = "a vocabulary of tiktoken, which does not say how texts are cut: the model's tokenizer.json is needed";
            let (file, reason) = (file.unwrap_or_default().to_owned(), reason.to_owned());
            Err(ImportError::Tokenizer { file, reason }.into())
        }
    }
}

fn add(tokens: &mut [Option<Token>], id: u64, text: String, special: bool, has_scores: bool) {
    // Beyond the embedding stand tokens that the model never sees.
    let Some(slot) = usize::try_from(id).ok().and_then(|id| tokens.get_mut(id)) else { return };
    // Unknown and single bytes keep their kind under their own name.
    if slot.as_ref().is_some_and(|old| matches!(old.kind, BYTE | UNKNOWN) && old.text == text) {
        return;
    }
    let score = if has_scores { ADDED_SCORE } else { 0.0 };
    *slot = Some(if special || looks_special(&text) {
        Token { text, kind: CONTROL, score }
    } else {
        Token { text: text.replace('▁', " "), kind: USER_DEFINED, score }
    });
}

/// Added tokens that are marked as text in some files, and never are.
fn looks_special(text: &str) -> bool {
    let within = |start: &str, end: &str| text.starts_with(start) && text.ends_with(end);
    matches!(text, "<pad>" | "<mask>" | "<2mass>" | "[@BOS@]")
        || within("<|", "|>")
        || within("<｜", "｜>")
        || within("<unused", ">")
}

/// Id, text, and whether it is no text.
type Added = (u64, String, bool);

/// Tokens that stand beside the vocabulary, in all places where they are listed.
fn added(
    folder: &Folder<'_>,
    json: Option<&JsonValue>,
    settings: &JsonValue,
) -> Result<Vec<Added>, StoreError> {
    let mut found: Vec<Added> = Vec::new();
    if let Some(JsonValue::Object(list)) = folder.json("added_tokens.json")? {
        found.extend(list.into_iter().filter_map(|(text, id)| Some((id.as_u64()?, text, false))));
    }
    let entry = |id: Option<u64>, token: &JsonValue| {
        let text = token.get("content").and_then(JsonValue::as_str)?;
        let special = token.get("special").and_then(JsonValue::as_bool).unwrap_or(false);
        Some((id?, text.to_owned(), special))
    };
    let settings = settings.get("added_tokens_decoder").and_then(JsonValue::as_object);
    found.extend(
        settings.into_iter().flatten().filter_map(|(id, token)| entry(id.parse().ok(), token)),
    );
    let json = json.and_then(|json| json.get("added_tokens")).and_then(JsonValue::as_array);
    let number = |token: &JsonValue| token.get("id").and_then(JsonValue::as_u64);
    found.extend(json.into_iter().flatten().filter_map(|token| entry(number(token), token)));
    Ok(found)
}

/// Tokens by their ids, and what else a vocabulary of merges says.
fn from_json(
    json: &JsonValue,
    words: Words,
    rows: usize,
) -> Result<(Vec<Option<Token>>, Form), String> {
    let model = json.get("model").ok_or("`model` is missing")?;
    // Old files do not say it.
    let kind = model.get("type").and_then(JsonValue::as_str).unwrap_or("BPE");
    if kind == "Unigram" {
        let (tokens, unigram) = unigram::read(json, rows)?;
        return Ok((tokens, Form::Unigram(unigram)));
    }
    if kind != "BPE" {
        let kind = crate::name::shown(kind);
        return Err(format!("a vocabulary of type {kind} needs a tokenizer.model beside it"));
    }
    let vocab =
        model.get("vocab").and_then(JsonValue::as_object).ok_or("`model.vocab` is no object")?;
    let mut tokens: Vec<Option<Token>> = vec![None; rows];
    for (text, id) in vocab {
        let shown = || crate::name::shown(text);
        let id = id.as_u64().ok_or_else(|| format!("the id of {} is no number", shown()))?;
        let Some(slot) = usize::try_from(id).ok().and_then(|id| tokens.get_mut(id)) else {
            return Err(format!(
                "token {} has the id {id}, but the embedding has {rows} rows",
                shown()
            ));
        };
        *slot = Some(Token { text: text.clone(), kind: NORMAL, score: 0.0 });
    }
    let merges = merges(model.get("merges"))?;
    let falls_back = model.get("byte_fallback").and_then(JsonValue::as_bool) == Some(true);
    if words == Words::Gemma4 {
        for token in tokens.iter_mut().flatten() {
            token.kind = if is_byte(&token.text) { BYTE } else { NORMAL };
            token.score = ADDED_SCORE;
        }
        let merges =
            merges.iter().map(|(left, right)| format!("{} {}", escaped(left), escaped(right)));
        return Ok((tokens, Form::Characters { merges: merges.collect() }));
    }
    if falls_back {
        score(&mut tokens, &merges, model.get("unk_token").and_then(JsonValue::as_str));
        let has_prefix = pretokenizer::has_prefix(json);
        return Ok((tokens, Form::Scores { has_prefix }));
    }
    let merges = merges
        .iter()
        .map(|(left, right)| format!("{} {}", escaped(left), escaped(right)))
        .collect();
    Ok((tokens, Form::Merges { pre: pretokenizer::of(json)?, merges }))
}

/// A blank within a part would be taken for the one between parts.
fn escaped(part: &str) -> String {
    part.replace(' ', "Ġ")
}

/// Pairs, in either of the two ways in which they are written.
fn merges(list: Option<&JsonValue>) -> Result<Vec<(String, String)>, String> {
    let list = list.and_then(JsonValue::as_array).ok_or("`model.merges` is no list")?;
    let pair = |entry: &JsonValue| match entry {
        JsonValue::String(text) => text.split_once(' ').map(|(a, b)| (a.to_owned(), b.to_owned())),
        JsonValue::Array(pair) => match &pair[..] {
            [JsonValue::String(a), JsonValue::String(b)] => Some((a.clone(), b.clone())),
            _ => None,
        },
        _ => None,
    };
    list.iter()
        .map(|entry| {
            pair(entry).ok_or_else(|| "`model.merges` has an entry that is no pair".into())
        })
        .collect()
}

/// Whether a token stands for a byte.
fn is_byte(text: &str) -> bool {
    text.len() == 6 && text.starts_with("<0x") && text.ends_with('>')
}

/// Scores that make the best neighbours those which the list of merges joins first.
fn score(tokens: &mut [Option<Token>], merges: &[(String, String)], unknown: Option<&str>) {
    let mut rank: HashMap<String, usize> = HashMap::with_capacity(merges.len());
    for (at, (left, right)) in merges.iter().enumerate() {
        rank.entry(format!("{left}{right}")).or_insert(at + 1);
    }
    for token in tokens.iter_mut().flatten() {
        let is_byte = is_byte(&token.text);
        token.kind = match () {
            () if Some(token.text.as_str()) == unknown => UNKNOWN,
            () if is_byte => BYTE,
            () => NORMAL,
        };
        // What no merge makes is not joined, whatever its score.
        token.score =
            rank.get(&token.text).map_or(if is_byte { 0.0 } else { -1e6 }, |&at| -(at as f32));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn scores_follow_the_order_of_merges() {
        let json = json!({"model": {"type": "BPE", "byte_fallback": true, "unk_token": "<unk>",
            "vocab": {"<unk>": 0, "<0x0A>": 1, "a": 2, "b": 3, "ab": 4, "▁ab": 5, "▁": 6},
            "merges": ["a b", ["▁", "ab"]]}});
        let (tokens, form) = from_json(&json, Words::Usual, 8).unwrap();
        let tokens: Vec<_> = tokens.into_iter().map(|t| t.map(|t| (t.kind, t.score))).collect();
        assert_eq!(tokens[0], Some((UNKNOWN, -1e6)));
        assert_eq!(tokens[1], Some((BYTE, 0.0)));
        assert_eq!(
            (tokens[4], tokens[5], tokens[7]),
            (Some((NORMAL, -1.0)), Some((NORMAL, -2.0)), None)
        );
        assert!(matches!(form, Form::Scores { has_prefix: false }));
    }

    #[test]
    fn added_tokens_are_text_or_control() {
        let mut tokens =
            vec![Some(Token { text: "<unk>".into(), kind: UNKNOWN, score: 0.0 }), None, None, None];
        for (id, text, special) in [
            (0, "<unk>", true),
            (1, "<|end|>", false),
            (2, "▁▁", false),
            (3, "x", true),
            (9, "y", true),
        ] {
            add(&mut tokens, id, text.to_owned(), special, true);
        }
        let found: Vec<_> = tokens.into_iter().flatten().map(|t| (t.text, t.kind)).collect();
        let want = [("<unk>", UNKNOWN), ("<|end|>", CONTROL), ("  ", USER_DEFINED), ("x", CONTROL)];
        assert_eq!(found, want.map(|(text, kind)| (text.to_owned(), kind)));
    }

    #[test]
    fn vocabularies_that_do_not_fit_are_refused() {
        for (json, want) in [
            (json!({"model": {"type": "WordLevel"}}), "needs a tokenizer.model"),
            (json!({"model": {"type": "BPE", "vocab": {"a": 5}, "merges": []}}), "has the id 5"),
            (json!({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a"]}}), "no pair"),
            (json!({}), "`model` is missing"),
        ] {
            let error = from_json(&json, Words::Usual, 3).map(|_| ()).unwrap_err();
            assert!(error.contains(want), "{error}");
        }
    }
}
