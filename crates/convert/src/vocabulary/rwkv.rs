//! RWKV's vocabulary, `rwkv_vocab_v20230424.txt`: a line for each token except token 0, which ends
//! a text.
//!
//! ```text
//! 1 '\x00' 1          id, text as Python literal, length in bytes
//! 129 b'\x81' 1
//! 261 '\n\n' 2
//! ```

use puna_gguf::{Value, Writer};

use super::token::{CONTROL, MAX_TOKENS, NORMAL, UNUSED};
use crate::error::ConvertError;
use crate::source::ModelFolder;

const FILE: &str = "rwkv_vocab_v20230424.txt";

/// A vocabulary of byte strings.
#[derive(Debug, PartialEq)]
pub(crate) struct RwkvVocabulary {
    tokens: Vec<String>,
    types: Vec<i32>,
    template: Option<String>,
}

impl RwkvVocabulary {
    /// Reads the vocabulary of an embedding with `rows` rows.
    pub(crate) fn read(folder: &ModelFolder<'_>, rows: u64) -> Result<Self, ConvertError> {
        let text = folder.text(FILE)?.ok_or_else(|| ConvertError::FileMissing(FILE.to_owned()))?;
        let bad = |reason| ConvertError::Tokenizer { file: FILE.to_owned(), reason };
        let mut found = parse(&text, rows.min(MAX_TOKENS)).map_err(bad)?;
        let settings = folder.json("tokenizer_config.json")?.unwrap_or_default();
        let template = settings.get("chat_template").and_then(serde_json::Value::as_str);
        found.template = template.map(str::to_owned).or(folder.text("chat_template.jinja")?);
        Ok(found)
    }

    /// Writes the metadata keys.
    pub(crate) fn write(&self, writer: &mut Writer) {
        writer.set("tokenizer.ggml.model", "rwkv");
        writer.set("tokenizer.ggml.tokens", Value::strings(&self.tokens));
        writer.set("tokenizer.ggml.token_type", &self.types[..]);
        // An empty line ends an answer.
        if let Some(end) = self.tokens.iter().position(|token| token == r"\n\n") {
            writer.set("tokenizer.ggml.eot_token_id", end as u32);
        }
        writer.set("tokenizer.ggml.bos_token_id", 0u32).set("tokenizer.ggml.eos_token_id", 0u32);
        if let Some(template) = &self.template {
            writer.set("tokenizer.chat_template", template.as_str());
        }
    }
}

fn parse(text: &str, rows: u64) -> Result<RwkvVocabulary, String> {
    let (mut tokens, mut types) = (vec!["<s>".to_owned()], vec![CONTROL]);
    for (line, at) in text.lines().zip(1..) {
        let bad = |reason: &str| format!("line {at}: {reason}");
        let (number, rest) =
            line.split_once(' ').ok_or_else(|| bad("number and text are missing"))?;
        let (literal, length) =
            rest.rsplit_once(' ').ok_or_else(|| bad("the length is missing"))?;
        let bytes = parse_python_literal(literal.trim())
            .ok_or_else(|| bad("the text is not a Python literal"))?;
        if number.parse() != Ok(tokens.len()) {
            return Err(bad(&format!("expected number {}", tokens.len())));
        }
        if length.trim().parse() != Ok(bytes.len()) {
            return Err(bad(&format!("its text has {} bytes", bytes.len())));
        }
        if tokens.len() as u64 >= rows {
            return Err(bad(&format!("the embedding has {rows} rows")));
        }
        tokens.push(python_escaped(&bytes));
        types.push(NORMAL);
    }
    for id in tokens.len() as u64..rows {
        tokens.push(format!("[PAD{id}]"));
        types.push(UNUSED);
    }
    Ok(RwkvVocabulary { tokens, types, template: None })
}

/// Parses a Python literal of a string or of bytes.
fn parse_python_literal(literal: &str) -> Option<Vec<u8>> {
    let (plain, is_text) = match literal.strip_prefix('b') {
        Some(plain) => (plain, false),
        None => (literal, true),
    };
    let quote = plain.chars().next().filter(|c| matches!(c, '\'' | '"'))?;
    let inside = plain.strip_prefix(quote)?.strip_suffix(quote)?;
    let (mut out, mut chars) = (Vec::new(), inside.chars());
    while let Some(c) = chars.next() {
        if c != '\\' {
            out.extend(c.encode_utf8(&mut [0; 4]).bytes());
            continue;
        }
        let digits = match chars.next()? {
            'n' => {
                out.push(b'\n');
                continue;
            }
            'r' => {
                out.push(b'\r');
                continue;
            }
            't' => {
                out.push(b'\t');
                continue;
            }
            c @ ('\\' | '\'' | '"') => {
                out.push(c as u8);
                continue;
            }
            'x' => 2,
            'u' if is_text => 4,
            'U' if is_text => 8,
            _ => return None,
        };
        let code: String = chars.by_ref().take(digits).collect();
        let code = u32::from_str_radix(&code, 16).ok().filter(|_| code.len() == digits)?;
        match is_text {
            true => out.extend(char::from_u32(code)?.encode_utf8(&mut [0; 4]).bytes()),
            false => out.push(code as u8),
        }
    }
    Some(out)
}

/// Escapes bytes as in a Python literal, without quotes around them.
fn python_escaped(bytes: &[u8]) -> String {
    // Python uses double quotes if the text has only single quotes.
    let quotes = !bytes.contains(&b'\'') || bytes.contains(&b'"');
    let mut out = String::new();
    for &byte in bytes {
        match byte {
            b'\n' => out.push_str(r"\n"),
            b'\r' => out.push_str(r"\r"),
            b'\t' => out.push_str(r"\t"),
            b'\\' => out.push_str(r"\\"),
            b'\'' if quotes => out.push_str(r"\'"),
            b' '..=b'~' => out.push(byte as char),
            _ => out.push_str(&format!("\\x{byte:02x}")),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn python_literals_are_parsed_and_escaped() {
        for (literal, bytes, out) in [
            (r"'\x00'", &[0][..], r"\x00"),
            (r"b'\x81'", &[0x81], r"\x81"),
            (r"'\n\n'", b"\n\n", r"\n\n"),
            (r"'é'", "é".as_bytes(), r"\xc3\xa9"),
            (r"'\x80'", "\u{80}".as_bytes(), r"\xc2\x80"),
            (r#""it's""#, b"it's", "it's"),
            (r#"'it\'s "so"'"#, br#"it's "so""#, r#"it\'s "so""#),
            (r"'\u3000\\'", "\u{3000}\\".as_bytes(), r"\xe3\x80\x80\\"),
        ] {
            let found = parse_python_literal(literal).unwrap_or_else(|| panic!("{literal}"));
            assert_eq!((&found[..], &python_escaped(&found)[..]), (bytes, out), "{literal}");
        }
        for literal in ["", "'", "x", r"'\q'", r"b'\u0041'", r"'\x4'", "'a\"", r"'\ud800'"] {
            assert_eq!(parse_python_literal(literal), None, "{literal}");
        }
    }

    #[test]
    fn inconsistent_lines_are_rejected() {
        let good = parse("1 'a' 1\n2 b'\\xff' 1\n", 4).unwrap();
        assert_eq!(good.tokens, ["<s>", "a", r"\xff", "[PAD3]"]);
        assert_eq!(good.types, [CONTROL, NORMAL, NORMAL, UNUSED]);
        for (text, want) in [
            ("1", "line 1: number and text are missing"),
            ("1 'a'", "the length is missing"),
            ("2 'a' 1", "expected number 1"),
            ("1 'a' 2", "its text has 1 bytes"),
            ("1 a 1", "the text is not a Python literal"),
            ("1 'a' 1\n2 'b' 1\n3 'c' 1\n4 'd' 1\n", "line 4: the embedding has 4 rows"),
        ] {
            let error = parse(text, 4).unwrap_err();
            assert!(error.contains(want), "{error}");
        }
    }
}
