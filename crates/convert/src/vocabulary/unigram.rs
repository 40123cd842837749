//! Unigram vocabularies of `tokenizer.json`, which XLM-R and embedding models derived from it have:
//! tokens with scores, and normalization of texts.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use puna_gguf::escape_for_message;
use serde_json::Value as JsonValue;

use super::token::{NORMAL, Token, UNKNOWN};

/// Normalization of texts.
#[derive(Debug, Default, PartialEq)]
pub(super) struct NormalizerSettings {
    /// Whether a space is added before the text.
    pub(super) has_prefix: bool,
    /// Whether consecutive spaces become one.
    pub(super) merges_spaces: bool,
    /// Precompiled character map in SentencePiece's format.
    pub(super) charsmap: Option<Vec<u8>>,
}

/// Reads the tokens of an embedding with `rows` rows, and the normalization.
pub(super) fn read(
    json: &JsonValue,
    rows: usize,
) -> Result<(Vec<Option<Token>>, NormalizerSettings), String> {
    let model = json.get("model").ok_or("`model` is missing")?;
    let vocab =
        model.get("vocab").and_then(JsonValue::as_array).ok_or("`model.vocab` is not a list")?;
    if vocab.len() > rows {
        return Err(format!("it has {} tokens, but the embedding has {rows} rows", vocab.len()));
    }
    let unknown = model.get("unk_id").and_then(JsonValue::as_u64);
    let mut tokens: Vec<Option<Token>> = vec![None; rows];
    for (id, (entry, slot)) in vocab.iter().zip(&mut tokens).enumerate() {
        let (text, score) =
            (entry.get(0).and_then(JsonValue::as_str), entry.get(1).and_then(JsonValue::as_f64));
        let (Some(text), Some(score)) = (text, score) else {
            return Err(format!("entry {id} of `model.vocab` is not a text with its score"));
        };
        let kind = if unknown == Some(id as u64) { UNKNOWN } else { NORMAL };
        *slot = Some(Token { text: text.to_owned(), kind, score: score as f32 });
    }
    if model.get("byte_fallback").and_then(JsonValue::as_bool) == Some(true) {
        return Err("a Unigram vocabulary with byte fallback needs the file tokenizer.model".into());
    }
    let mut found = NormalizerSettings::default();
    for step in steps(json.get("normalizer"), "normalizers") {
        apply_normalizer(step, &mut found)?;
    }
    for step in steps(json.get("pre_tokenizer"), "pretokenizers") {
        match kind(step) {
            "Metaspace" => found.has_prefix = has_prefix(step),
            "WhitespaceSplit" => found.merges_spaces = true,
            other => {
                return Err(format!(
                    "its pre-tokenizer {} is not supported",
                    escape_for_message(other)
                ));
            }
        }
    }
    Ok((tokens, found))
}

fn apply_normalizer(step: &JsonValue, found: &mut NormalizerSettings) -> Result<(), String> {
    match kind(step) {
        "Precompiled" => {
            let text = step.get("precompiled_charsmap").and_then(JsonValue::as_str);
            let bytes = text.and_then(|text| STANDARD.decode(text).ok());
            found.charsmap = Some(bytes.ok_or("`precompiled_charsmap` is not base64")?);
        }
        // Consecutive spaces become one.
        "Replace" if step.pointer("/pattern/Regex").is_some_and(|regex| regex == " {2,}") => {
            found.merges_spaces = true;
        }
        // Merging consecutive spaces also removes spaces around the text.
        "Strip" => {}
        other => {
            return Err(format!("its normalizer {} is not supported", escape_for_message(other)));
        }
    }
    Ok(())
}

/// The steps of a sequence, or the single step.
fn steps<'a>(value: Option<&'a JsonValue>, list: &str) -> Vec<&'a JsonValue> {
    let Some(value) = value.filter(|value| !value.is_null()) else { return Vec::new() };
    match value.get(list).and_then(JsonValue::as_array) {
        Some(list) => list.iter().collect(),
        None => vec![value],
    }
}

fn kind(step: &JsonValue) -> &str {
    step.get("type").and_then(JsonValue::as_str).unwrap_or_default()
}

/// Newer files have `prepend_scheme`, older ones a boolean.
fn has_prefix(step: &JsonValue) -> bool {
    match step.get("prepend_scheme").and_then(JsonValue::as_str) {
        Some(scheme) => scheme != "never",
        None => step.get("add_prefix_space").and_then(JsonValue::as_bool).unwrap_or(true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn tokenizer(edit: impl Fn(&mut JsonValue)) -> JsonValue {
        let mut json = json!({
            "normalizer": {"type": "Sequence", "normalizers": [
                {"type": "Precompiled", "precompiled_charsmap": "AQID"},
                {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}]},
            "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always"},
            "model": {"type": "Unigram", "unk_id": 1, "vocab": [["<s>", 0.0], ["<unk>", 0.0], ["▁a", -2.5]]},
        });
        edit(&mut json);
        json
    }

    #[test]
    fn tokens_and_normalization_are_read() {
        let (tokens, unigram) = read(&tokenizer(|_| {}), 4).unwrap();
        let found = NormalizerSettings {
            has_prefix: true,
            merges_spaces: true,
            charsmap: Some(vec![1, 2, 3]),
        };
        assert_eq!(unigram, found);
        let of = |text: &str, kind, score| Some(Token { text: text.into(), kind, score });
        assert_eq!(
            tokens,
            [of("<s>", NORMAL, 0.0), of("<unk>", UNKNOWN, 0.0), of("▁a", NORMAL, -2.5), None]
        );
        let old = tokenizer(|json| {
            json["normalizer"] = json!({"type": "Precompiled", "precompiled_charsmap": "AQID"});
            json["pre_tokenizer"] = json!({"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"},
                {"type": "Metaspace", "replacement": "▁", "add_prefix_space": true}]});
        });
        assert_eq!(read(&old, 3).unwrap().1, found);
    }

    #[test]
    fn unsupported_content_is_rejected() {
        type Edit = fn(&mut JsonValue);
        let cases: [(Edit, &str); 6] = [
            (
                |json| json["model"]["vocab"] = json!([["a"]]),
                "entry 0 of `model.vocab` is not a text",
            ),
            (|json| json["model"]["vocab"] = json!({"a": 0}), "is not a list"),
            (|json| json["model"]["byte_fallback"] = json!(true), "needs the file tokenizer.model"),
            (
                |json| json["normalizer"] = json!({"type": "NFKC"}),
                "its normalizer NFKC is not supported",
            ),
            (
                |json| json["pre_tokenizer"] = json!({"type": "Punctuation"}),
                "its pre-tokenizer Punctuation is not supported",
            ),
            (
                |json| json["normalizer"]["normalizers"][0]["precompiled_charsmap"] = json!("?"),
                "not base64",
            ),
        ];
        for (edit, want) in cases {
            let error = read(&tokenizer(edit), 4).unwrap_err();
            assert!(error.contains(want), "{want}: {error}");
        }
        assert!(
            read(&tokenizer(|_| {}), 2)
                .unwrap_err()
                .contains("3 tokens, but the embedding has 2 rows")
        );
    }
}
