//! PLaMo's vocabulary, `tokenizer.jsonl`: each line is a list of text, score and type of a token.

use serde_json::Value;

use super::token::{BYTE, CONTROL, NORMAL, Token, UNKNOWN};
use crate::error::ConvertError;
use crate::source::ModelFolder;

pub(super) const FILE: &str = "tokenizer.jsonl";

/// Reads the tokens of an embedding with `rows` rows.
pub(super) fn read(
    folder: &ModelFolder<'_>,
    rows: usize,
) -> Result<Vec<Option<Token>>, ConvertError> {
    let text = folder.text(FILE)?.ok_or_else(|| ConvertError::FileMissing(FILE.to_owned()))?;
    let mut tokens = vec![None; rows];
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    for (slot, (number, line)) in tokens.iter_mut().zip(lines) {
        let bad = || {
            let reason = format!("line {} is not a list of a text and a score", number + 1);
            ConvertError::Tokenizer { file: FILE.to_owned(), reason }
        };
        *slot = Some(parse_token(line).ok_or_else(bad)?);
    }
    Ok(tokens)
}

fn parse_token(line: &str) -> Option<Token> {
    let entry: Value = serde_json::from_str(line).ok()?;
    let (text, score) = (entry.get(0)?.as_str()?, entry.get(1)?.as_f64()? as f32);
    let kind = match entry.get(2).and_then(Value::as_str) {
        Some("UNKNOWN") => UNKNOWN,
        Some("CONTROL") => CONTROL,
        Some("BYTE") => BYTE,
        _ if text.starts_with("<|plamo:") && text.ends_with("|>") => CONTROL,
        _ => NORMAL,
    };
    Some(Token { text: text.to_owned(), kind, score })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_parsed_to_tokens() {
        let of = |line: &str| parse_token(line).map(|token| (token.text, token.kind, token.score));
        let found = |text: &str, kind, score| Some((text.to_owned(), kind, score));
        assert_eq!(
            of(r#"["<|plamo:unk|>", 0.0, "UNKNOWN", "", 0, 0, 0]"#),
            found("<|plamo:unk|>", UNKNOWN, 0.0)
        );
        assert_eq!(of(r#"["<|plamo:op|>", 0.0, "NORMAL"]"#), found("<|plamo:op|>", CONTROL, 0.0));
        assert_eq!(of(r#"["<0x0A>", 0, "BYTE"]"#), found("<0x0A>", BYTE, 0.0));
        assert_eq!(of(r#"["ab", -1.5]"#), found("ab", NORMAL, -1.5));
        assert_eq!((of(r#"{"a": 1}"#), of("[1, 2]"), of(r#"["a"]"#)), (None, None, None));
    }
}
