//! WordPiece vocabulary of BERT. GGUF marks the start of a word with `▁`; folders mark the inside
//! of a word with `##`.

use puna_gguf::{Value as MetadataValue, Writer, escape_for_message};
use serde_json::Value;

use super::token::{CONTROL, MAX_TOKENS, NORMAL, UNUSED, USER_DEFINED};
use crate::error::ConvertError;
use crate::source::ModelFolder;

/// A WordPiece vocabulary.
#[derive(Debug, PartialEq)]
pub(crate) struct WordPiece {
    pub(crate) tokens: Vec<String>,
    pub(crate) types: Vec<i32>,
    pub(crate) lowercase: bool,
    pub(crate) strip_accents: bool,
    /// Ids of `cls`, `seperator`, `unknown`, `padding` and `mask` tokens.
    pub(crate) special: Vec<(&'static str, u32)>,
}

/// Special tokens: key in the GGUF file, key in `tokenizer_config.json`, default text.
const SPECIAL: [(&str, &str, &str); 5] = [
    ("cls", "cls_token", "[CLS]"),
    ("seperator", "sep_token", "[SEP]"),
    ("unknown", "unk_token", "[UNK]"),
    ("padding", "pad_token", "[PAD]"),
    ("mask", "mask_token", "[MASK]"),
];

impl WordPiece {
    /// Reads `tokenizer.json`, else `vocab.txt`, and the settings of `tokenizer_config.json`. Ids
    /// below `rows`, the number of rows of the embedding, that no token has are filled.
    pub(crate) fn read(folder: &ModelFolder<'_>, rows: u32) -> Result<Self, ConvertError> {
        let config = folder.json("tokenizer_config.json")?.unwrap_or_default();
        let mut pieces: Vec<Option<(String, i32)>> = vec![None; rows as usize];
        let json = folder.json("tokenizer.json")?;
        let file = if json.is_some() { "tokenizer.json" } else { "vocab.txt" };
        let bad = |reason: String| ConvertError::Tokenizer { file: file.to_owned(), reason };
        let mut normalizer = None;
        match &json {
            Some(json) => {
                read_json(json, &mut pieces).map_err(bad)?;
                normalizer = json
                    .get("normalizer")
                    .filter(|n| n.get("type").is_some_and(|t| t == "BertNormalizer"));
            }
            None => {
                let text = folder.text("vocab.txt")?;
                let text = text.ok_or_else(|| {
                    ConvertError::FileMissing("tokenizer.json or vocab.txt".into())
                })?;
                for (id, piece) in text.lines().enumerate() {
                    insert_piece(&mut pieces, id as u64, piece.trim_end_matches('\r'), NORMAL)
                        .map_err(bad)?;
                }
            }
        }
        let special = find_special_tokens(&config, &mut pieces);
        let lowercase = normalizer.and_then(|n| n.get("lowercase")).or(config.get("do_lower_case"));
        let lowercase = lowercase.and_then(Value::as_bool).unwrap_or(true);
        let strip = normalizer.and_then(|n| n.get("strip_accents")).or(config.get("strip_accents"));
        // By default, accents are stripped if text is lowercased.
        let strip_accents = strip.and_then(Value::as_bool).unwrap_or(lowercase);
        let (mut tokens, mut types) = (Vec::new(), Vec::new());
        for (id, piece) in pieces.into_iter().enumerate() {
            let (text, kind) = piece.unwrap_or_else(|| (format!("[PAD{id}]"), UNUSED));
            tokens.push(if kind == CONTROL { text } else { gguf_spelling(&text) });
            types.push(kind);
        }
        Ok(Self { tokens, types, lowercase, strip_accents, special })
    }

    /// Writes the metadata keys.
    pub(crate) fn write(&self, writer: &mut Writer) {
        writer
            .set("tokenizer.ggml.model", "bert")
            .set("tokenizer.ggml.pre", "default")
            .set("tokenizer.ggml.tokens", MetadataValue::strings(&self.tokens))
            .set("tokenizer.ggml.token_type", &self.types[..])
            .set("tokenizer.ggml.normalizer.lowercase", self.lowercase)
            .set("tokenizer.ggml.normalizer.strip_accents", self.strip_accents);
        for (key, id) in &self.special {
            writer.set(&format!("tokenizer.ggml.{key}_token_id"), *id);
        }
    }
}

/// `##ing` becomes `ing`, and `word` becomes `▁word`.
fn gguf_spelling(piece: &str) -> String {
    match piece.strip_prefix("##") {
        Some(inside) => inside.to_owned(),
        None => format!("▁{piece}"),
    }
}

fn insert_piece(
    pieces: &mut [Option<(String, i32)>],
    id: u64,
    text: &str,
    kind: i32,
) -> Result<(), String> {
    if id >= MAX_TOKENS {
        return Err(format!(
            "token {} has the id {id}, which is too large",
            escape_for_message(text)
        ));
    }
    let Some(slot) = pieces.get_mut(id as usize) else {
        return Err(format!(
            "token {} has the id {id}, but the embedding has {} rows",
            escape_for_message(text),
            pieces.len()
        ));
    };
    *slot = Some((text.to_owned(), kind));
    Ok(())
}

fn read_json(json: &Value, pieces: &mut [Option<(String, i32)>]) -> Result<(), String> {
    let model = json.get("model").ok_or("`model` is missing")?;
    let kind = model.get("type").and_then(Value::as_str).unwrap_or("WordPiece");
    if kind != "WordPiece" {
        return Err(format!(
            "a vocabulary of type {}, expected WordPiece",
            escape_for_message(kind)
        ));
    }
    let vocab =
        model.get("vocab").and_then(Value::as_object).ok_or("`model.vocab` is not an object")?;
    for (text, id) in vocab {
        let id = id
            .as_u64()
            .ok_or_else(|| format!("the id of {} is not a number", escape_for_message(text)))?;
        insert_piece(pieces, id, text, NORMAL)?;
    }
    for added in json.get("added_tokens").and_then(Value::as_array).into_iter().flatten() {
        let text = added.get("content").and_then(Value::as_str);
        if let (Some(text), Some(id)) = (text, added.get("id").and_then(Value::as_u64)) {
            let is_special = added.get("special").and_then(Value::as_bool) == Some(true);
            insert_piece(pieces, id, text, if is_special { CONTROL } else { USER_DEFINED })?;
        }
    }
    Ok(())
}

/// Finds the special tokens and marks them as control tokens, because `vocab.txt` has no types.
fn find_special_tokens(
    config: &Value,
    pieces: &mut [Option<(String, i32)>],
) -> Vec<(&'static str, u32)> {
    let mut found = Vec::new();
    for (key, config_key, default) in SPECIAL {
        let stated = config.get(config_key);
        let text = stated
            .and_then(|s| s.as_str().or_else(|| s.get("content")?.as_str()))
            .unwrap_or(default);
        let at =
            pieces.iter().position(|piece| piece.as_ref().is_some_and(|(piece, _)| piece == text));
        if let Some(id) = at {
            if let Some((_, kind)) = &mut pieces[id] {
                *kind = CONTROL;
            }
            found.push((key, id as u32));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::FolderFile;

    fn read(files: &[(&str, &str)], rows: u32) -> Result<WordPiece, String> {
        let dir = tempfile::tempdir().unwrap();
        let files: Vec<_> = files
            .iter()
            .map(|(name, text)| {
                std::fs::write(dir.path().join(name), text).unwrap();
                FolderFile { name: (*name).into(), path: dir.path().join(name) }
            })
            .collect();
        WordPiece::read(&ModelFolder::new(&files), rows).map_err(|e| e.to_string())
    }

    #[test]
    fn tokenizer_json_and_vocab_txt_give_the_same_vocabulary() {
        let json = r###"{"added_tokens":[{"id":0,"content":"[PAD]","special":true},{"id":1,"content":"[UNK]","special":true}],
            "normalizer":{"type":"BertNormalizer","lowercase":true,"strip_accents":null},
            "model":{"type":"WordPiece","vocab":{"[PAD]":0,"[UNK]":1,"a":2,"##b":3}}}"###;
        let from_json = read(&[("tokenizer.json", json)], 5).unwrap();
        let from_text = read(&[("vocab.txt", "[PAD]\n[UNK]\r\na\n##b\n")], 5).unwrap();
        assert_eq!(from_json, from_text);
        assert_eq!(from_json.tokens, ["[PAD]", "[UNK]", "▁a", "b", "▁[PAD4]"]);
        assert_eq!(from_json.types, [3, 3, 1, 1, 5]);
        assert_eq!(from_json.special, [("unknown", 1), ("padding", 0)]);
        assert!(from_json.lowercase && from_json.strip_accents);
    }

    #[test]
    fn lowercasing_follows_the_configuration() {
        let config = r#"{"do_lower_case":false,"cls_token":{"content":"<c>"}}"#;
        let read =
            read(&[("vocab.txt", "a\n<c>\n"), ("tokenizer_config.json", config)], 2).unwrap();
        assert!(!read.lowercase && !read.strip_accents);
        assert_eq!(read.special, [("cls", 1)]);
    }

    #[test]
    fn unsuitable_vocabularies_are_rejected() {
        let bpe = r#"{"model":{"type":"BPE","vocab":{}}}"#;
        let huge_id = r#"{"model":{"vocab":{"a":18446744073709551615}}}"#;
        assert!(read(&[("tokenizer.json", bpe)], 1).unwrap_err().contains("type BPE"));
        assert!(read(&[("tokenizer.json", huge_id)], 1).unwrap_err().contains("has the id"));
        assert!(read(&[("vocab.txt", "a\nb")], 1).unwrap_err().contains("has 1 rows"));
        assert!(read(&[], 1).unwrap_err().contains("tokenizer.json or vocab.txt is missing"));
    }
}
