//! Vocabulary of a decoder: tokens with types, merges or scores, from `tokenizer.json`,
//! `tokenizer.model` or other files.

use std::collections::HashMap;

use puna_gguf::{Value, Writer, escape_for_message};
use serde_json::Value as JsonValue;

use super::special_tokens::SpecialTokens;
use super::tiktoken::{self, TiktokenVocabulary};
use super::token::{BYTE, CONTROL, MAX_TOKENS, NORMAL, Token, UNKNOWN, UNUSED, USER_DEFINED};
use super::unigram::{self, NormalizerSettings};
use super::{plamo, pretokenizer, sentencepiece};
use crate::error::ConvertError;
use crate::family::{Family, VocabularyKind};
use crate::source::{Config, ModelFolder};

/// Scores of added tokens and of unused ids, in vocabularies with scores.
const ADDED_SCORE: f32 = -1000.0;
const UNUSED_SCORE: f32 = -10000.0;

/// Gemma 4's tokens around reasoning and tool calls. Output parsers must see them, so they are not
/// control tokens.
const GEMMA4_VISIBLE: [&str; 7] = [
    "<|channel>",
    "<channel|>",
    "<|tool_call>",
    "<tool_call|>",
    "<|tool_response>",
    "<tool_response|>",
    "<|\"|>",
];

/// Tokens, tokenizer model and special tokens.
pub(crate) struct Vocabulary {
    tokens: Vec<Token>,
    model: TokenizerModel,
    special: SpecialTokens,
}

/// Tokenizer model and its data.
enum TokenizerModel {
    /// Byte-level byte-pair encoding: a pre-tokenizer and ranked merges.
    ByteBpe { pre: &'static str, merges: Vec<String> },
    /// SentencePiece byte-pair encoding: neighbours are joined to the token of the highest score.
    ScoredBpe { has_prefix: bool },
    /// Unigram: the segmentation with the highest sum of scores.
    Unigram(NormalizerSettings),
    /// PLaMo's model, which also maximizes the sum of scores.
    Plamo,
    /// Byte-pair encoding that starts from characters, with ranked merges.
    CharacterBpe { merges: Vec<String> },
}

impl Vocabulary {
    /// Reads the vocabulary of an embedding with `rows` rows.
    pub(crate) fn read(
        folder: &ModelFolder<'_>,
        config: &Config,
        omits_space_prefix: bool,
        rows: u64,
    ) -> Result<Self, ConvertError> {
        Self::read_as(folder, config, VocabularyKind::Standard, (omits_space_prefix, None), rows)
    }

    /// Like [`Vocabulary::read`], for a kind of vocabulary and with the name of the pre-tokenizer
    /// of tiktoken files.
    pub(crate) fn read_as(
        folder: &ModelFolder<'_>,
        config: &Config,
        vocabulary_kind: VocabularyKind,
        (omits_space_prefix, tiktoken_pretokenizer): (bool, Option<&'static str>),
        rows: u64,
    ) -> Result<Self, ConvertError> {
        let json = folder.json("tokenizer.json")?;
        let settings = folder.json("tokenizer_config.json")?.unwrap_or_default();
        let rows = usize::try_from(rows.min(MAX_TOKENS)).unwrap_or(usize::MAX);
        let (mut tokens, model) =
            read_tokens(folder, json.as_ref(), vocabulary_kind, tiktoken_pretokenizer, rows)?;
        let has_scores =
            matches!(model, TokenizerModel::ScoredBpe { .. } | TokenizerModel::CharacterBpe { .. });
        for (id, text, special) in added_tokens(folder, json.as_ref(), &settings)? {
            add_token(&mut tokens, id, text, special, has_scores);
        }
        if vocabulary_kind == VocabularyKind::Gemma4 {
            for token in
                tokens.iter_mut().flatten().filter(|token| GEMMA4_VISIBLE.contains(&&*token.text))
            {
                token.kind = USER_DEFINED;
            }
        }
        let all_tokens: Vec<Token> = tokens
            .into_iter()
            .enumerate()
            .map(|(id, token)| {
                let unused =
                    || Token { text: format!("[PAD{id}]"), kind: UNUSED, score: UNUSED_SCORE };
                token.unwrap_or_else(unused)
            })
            .collect();
        let special = SpecialTokens::read(folder, config, json.as_ref(), settings, &all_tokens)?;
        let model = match model {
            TokenizerModel::ScoredBpe { has_prefix } => {
                TokenizerModel::ScoredBpe { has_prefix: has_prefix && !omits_space_prefix }
            }
            other => other,
        };
        Ok(Self { tokens: all_tokens, model, special })
    }

    /// Applies what the family defines: name of the pre-tokenizer, end token, special tokens.
    pub(crate) fn with_family(mut self, family: &Family, config: &Config) -> Self {
        if let TokenizerModel::ByteBpe { pre, .. } = &mut self.model {
            *pre = (family.pretokenizer)(pre);
        }
        let end = family.eos_key.and_then(|key| config.value(key)?.as_u64());
        if let Some(id) = end
            .and_then(|id| u32::try_from(id).ok())
            .filter(|&id| (id as usize) < self.tokens.len())
        {
            self.special.set_eos(id);
        }
        for (key, text) in family.extra_special_tokens {
            let found = self.tokens.iter().position(|token| token.text == *text);
            if let Some(id) = found.and_then(|id| u32::try_from(id).ok()) {
                self.special.add(key, id);
            }
        }
        self
    }

    /// Writes the metadata keys.
    pub(crate) fn write(&self, architecture: &str, writer: &mut Writer) {
        let tokens = Value::strings(self.tokens.iter().map(|token| &token.text));
        let kinds: Vec<i32> = self.tokens.iter().map(|token| token.kind).collect();
        match &self.model {
            TokenizerModel::ByteBpe { pre, merges } => {
                writer.set("tokenizer.ggml.model", "gpt2").set("tokenizer.ggml.pre", *pre);
                writer.set("tokenizer.ggml.tokens", tokens).set("tokenizer.ggml.token_type", kinds);
                writer.set("tokenizer.ggml.merges", Value::strings(merges));
            }
            TokenizerModel::ScoredBpe { has_prefix } => {
                let scores: Vec<f32> = self.tokens.iter().map(|token| token.score).collect();
                writer.set("tokenizer.ggml.model", "llama").set("tokenizer.ggml.pre", "default");
                writer.set("tokenizer.ggml.tokens", tokens).set("tokenizer.ggml.scores", scores);
                writer.set("tokenizer.ggml.token_type", kinds);
                writer.set("tokenizer.ggml.add_space_prefix", *has_prefix);
            }
            TokenizerModel::Plamo => {
                let scores: Vec<f32> = self.tokens.iter().map(|token| token.score).collect();
                writer.set("tokenizer.ggml.model", "plamo2").set("tokenizer.ggml.pre", "default");
                writer.set("tokenizer.ggml.tokens", tokens).set("tokenizer.ggml.scores", scores);
                writer.set("tokenizer.ggml.token_type", kinds);
                writer.set("tokenizer.ggml.add_space_prefix", false);
            }
            TokenizerModel::Unigram(unigram) => {
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
            TokenizerModel::CharacterBpe { merges } => {
                let scores: Vec<f32> = self.tokens.iter().map(|token| token.score).collect();
                writer.set("tokenizer.ggml.model", "gemma4").set("tokenizer.ggml.tokens", tokens);
                writer.set("tokenizer.ggml.scores", scores).set("tokenizer.ggml.token_type", kinds);
                writer.set("tokenizer.ggml.merges", Value::strings(merges));
                writer.set("tokenizer.ggml.add_space_prefix", false);
            }
        }
        self.special.write(writer);
        if matches!(self.model, TokenizerModel::CharacterBpe { .. }) {
            writer.set("tokenizer.ggml.add_bos_token", true);
        }
        // Vocabularies of Granite and SmolLM add no first token, although their settings say so.
        if architecture == "llama" && self.tokens.len() == 49152 {
            writer.set("tokenizer.ggml.add_bos_token", false);
        }
        // Code Llama's infill tokens are not marked in any of its files.
        if architecture == "llama" && self.tokens.len() == 32016 {
            for (key, id) in
                [("prefix", 32007u32), ("suffix", 32008), ("middle", 32009), ("eot", 32010)]
            {
                writer.set(&format!("tokenizer.ggml.{key}_token_id"), id);
            }
        }
    }
}

/// Reads the tokens of an embedding with `rows` rows by id, and the tokenizer model, from the file
/// that the folder has for the kind of vocabulary.
fn read_tokens(
    folder: &ModelFolder<'_>,
    json: Option<&JsonValue>,
    vocabulary_kind: VocabularyKind,
    tiktoken_pretokenizer: Option<&'static str>,
    rows: usize,
) -> Result<(Vec<Option<Token>>, TokenizerModel), ConvertError> {
    let has_other = json.is_some() || tiktoken_pretokenizer.is_some();
    if let Some(file) = sentencepiece_file(folder, vocabulary_kind, has_other)? {
        let (tokens, found) = sentencepiece::read(folder, file, rows)?;
        let is_unigram = vocabulary_kind == VocabularyKind::Encoder && found.is_unigram;
        let model = match is_unigram {
            true => TokenizerModel::Unigram(found.normalizer),
            false => TokenizerModel::ScoredBpe { has_prefix: found.normalizer.has_prefix },
        };
        return Ok((tokens, model));
    }
    if vocabulary_kind == VocabularyKind::Standard && json.is_none() {
        if folder.has(plamo::FILE) {
            return Ok((plamo::read(folder, rows)?, TokenizerModel::Plamo));
        }
        if let Some(TiktokenVocabulary { tokens, merges, pre }) =
            tiktoken::read(folder, tiktoken_pretokenizer, rows)?
        {
            return Ok((tokens, TokenizerModel::ByteBpe { pre, merges }));
        }
    }
    let json =
        json.ok_or_else(|| ConvertError::FileMissing("tokenizer.json or tokenizer.model".into()))?;
    from_json(json, vocabulary_kind, rows)
        .map_err(|reason| ConvertError::Tokenizer { file: "tokenizer.json".to_owned(), reason })
}

/// The SentencePiece file to read. Returns `None` if there is none, or if another file is
/// preferred.
fn sentencepiece_file(
    folder: &ModelFolder<'_>,
    vocabulary_kind: VocabularyKind,
    has_other: bool,
) -> Result<Option<&'static str>, ConvertError> {
    let file = ["tokenizer.model", "spiece.model"].into_iter().find(|file| folder.has(file));
    let file = match vocabulary_kind {
        VocabularyKind::Standard => file.filter(|file| *file == "tokenizer.model"),
        VocabularyKind::Encoder => file.filter(|_| !has_other),
        _ => None,
    };
    // Some folders have a tiktoken vocabulary under this name.
    let Some(name) = file else { return Ok(None) };
    let start = folder.first_bytes(name, 4096)?.unwrap_or_default();
    match tiktoken::is_tiktoken(&start) {
        false => Ok(file),
        true if has_other => Ok(None),
        true => {
            let reason = "a tiktoken vocabulary has no pre-tokenizer: add the model's tokenizer.json to the folder";
            Err(ConvertError::Tokenizer { file: name.to_owned(), reason: reason.to_owned() })
        }
    }
}

fn add_token(tokens: &mut [Option<Token>], id: u64, text: String, special: bool, has_scores: bool) {
    // The model cannot produce ids beyond its embedding.
    let Some(slot) = usize::try_from(id).ok().and_then(|id| tokens.get_mut(id)) else { return };
    // The unknown token and byte tokens keep their type.
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

/// Added tokens that are control tokens, although some files mark them as text.
fn looks_special(text: &str) -> bool {
    let within = |start: &str, end: &str| text.starts_with(start) && text.ends_with(end);
    matches!(text, "<pad>" | "<mask>" | "<2mass>" | "[@BOS@]")
        || within("<|", "|>")
        || within("<｜", "｜>")
        || within("<unused", ">")
}

/// Id, text, and whether it is a control token.
type AddedToken = (u64, String, bool);

/// Added tokens from all files that list them.
fn added_tokens(
    folder: &ModelFolder<'_>,
    json: Option<&JsonValue>,
    settings: &JsonValue,
) -> Result<Vec<AddedToken>, ConvertError> {
    let mut found: Vec<AddedToken> = Vec::new();
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

/// Reads tokens by id and the tokenizer model from `tokenizer.json`.
fn from_json(
    json: &JsonValue,
    vocabulary_kind: VocabularyKind,
    rows: usize,
) -> Result<(Vec<Option<Token>>, TokenizerModel), String> {
    let model = json.get("model").ok_or("`model` is missing")?;
    // Older files omit the type.
    let kind = model.get("type").and_then(JsonValue::as_str).unwrap_or("BPE");
    if kind == "Unigram" {
        let (tokens, unigram) = unigram::read(json, rows)?;
        return Ok((tokens, TokenizerModel::Unigram(unigram)));
    }
    if kind != "BPE" {
        let kind = escape_for_message(kind);
        return Err(format!("a vocabulary of type {kind} needs the file tokenizer.model"));
    }
    let vocab = model
        .get("vocab")
        .and_then(JsonValue::as_object)
        .ok_or("`model.vocab` is not an object")?;
    let mut tokens: Vec<Option<Token>> = vec![None; rows];
    for (text, id) in vocab {
        let shown = || escape_for_message(text);
        let id = id.as_u64().ok_or_else(|| format!("the id of {} is not a number", shown()))?;
        let Some(slot) = usize::try_from(id).ok().and_then(|id| tokens.get_mut(id)) else {
            return Err(format!(
                "token {} has the id {id}, but the embedding has {rows} rows",
                shown()
            ));
        };
        *slot = Some(Token { text: text.clone(), kind: NORMAL, score: 0.0 });
    }
    let merges = parse_merges(model.get("merges"))?;
    let has_byte_fallback = model.get("byte_fallback").and_then(JsonValue::as_bool) == Some(true);
    if vocabulary_kind == VocabularyKind::Gemma4 {
        for token in tokens.iter_mut().flatten() {
            token.kind = if is_byte(&token.text) { BYTE } else { NORMAL };
            token.score = ADDED_SCORE;
        }
        let merges = merges
            .iter()
            .map(|(left, right)| format!("{} {}", escape_spaces(left), escape_spaces(right)));
        return Ok((tokens, TokenizerModel::CharacterBpe { merges: merges.collect() }));
    }
    if has_byte_fallback {
        score_by_merge_rank(
            &mut tokens,
            &merges,
            model.get("unk_token").and_then(JsonValue::as_str),
        );
        let has_prefix = pretokenizer::adds_space_prefix(json);
        return Ok((tokens, TokenizerModel::ScoredBpe { has_prefix }));
    }
    let merges = merges
        .iter()
        .map(|(left, right)| format!("{} {}", escape_spaces(left), escape_spaces(right)))
        .collect();
    Ok((tokens, TokenizerModel::ByteBpe { pre: pretokenizer::name_of(json)?, merges }))
}

/// Replaces spaces in a part of a merge, because a space separates the parts.
fn escape_spaces(part: &str) -> String {
    part.replace(' ', "Ġ")
}

/// Parses merges, which are pairs or strings with a space.
fn parse_merges(list: Option<&JsonValue>) -> Result<Vec<(String, String)>, String> {
    let list = list.and_then(JsonValue::as_array).ok_or("`model.merges` is not a list")?;
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
            pair(entry).ok_or_else(|| "`model.merges` has an entry that is not a pair".into())
        })
        .collect()
}

/// Whether the token stands for one byte.
fn is_byte(text: &str) -> bool {
    text.len() == 6 && text.starts_with("<0x") && text.ends_with('>')
}

/// Assigns scores so that the highest score is the merge of the lowest rank.
fn score_by_merge_rank(
    tokens: &mut [Option<Token>],
    merges: &[(String, String)],
    unknown: Option<&str>,
) {
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
        // A token that no merge produces must never be joined.
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
        let (tokens, model) = from_json(&json, VocabularyKind::Standard, 8).unwrap();
        let tokens: Vec<_> = tokens.into_iter().map(|t| t.map(|t| (t.kind, t.score))).collect();
        assert_eq!(tokens[0], Some((UNKNOWN, -1e6)));
        assert_eq!(tokens[1], Some((BYTE, 0.0)));
        assert_eq!(
            (tokens[4], tokens[5], tokens[7]),
            (Some((NORMAL, -1.0)), Some((NORMAL, -2.0)), None)
        );
        assert!(matches!(model, TokenizerModel::ScoredBpe { has_prefix: false }));
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
            add_token(&mut tokens, id, text.to_owned(), special, true);
        }
        let found: Vec<_> = tokens.into_iter().flatten().map(|t| (t.text, t.kind)).collect();
        let want = [("<unk>", UNKNOWN), ("<|end|>", CONTROL), ("  ", USER_DEFINED), ("x", CONTROL)];
        assert_eq!(found, want.map(|(text, kind)| (text.to_owned(), kind)));
    }

    #[test]
    fn unsuitable_vocabularies_are_rejected() {
        for (json, want) in [
            (json!({"model": {"type": "WordLevel"}}), "needs the file tokenizer.model"),
            (json!({"model": {"type": "BPE", "vocab": {"a": 5}, "merges": []}}), "has the id 5"),
            (json!({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a"]}}), "not a pair"),
            (json!({}), "`model` is missing"),
        ] {
            let error = from_json(&json, VocabularyKind::Standard, 3).map(|_| ()).unwrap_err();
            assert!(error.contains(want), "{error}");
        }
    }
}
