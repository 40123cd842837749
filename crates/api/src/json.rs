//! Parses JSON text to [`Value`] like Go's decoder, which existing clients were written for.
//!
//! Differences to `serde_json::from_slice`: bytes after the first value are ignored, invalid UTF-8
//! and lone surrogates become U+FFFD, nesting has its own limit, and errors have the texts that
//! clients know.

use serde_json::{Map, Number, Value};

/// Deepest nesting. Deeper text is refused so that the stack cannot overflow. The message to a
/// runner may be nested 128 times, which includes its own objects.
pub const MAX_DEPTH: usize = 100;

/// Largest number of values in a text. A value in memory is many times larger than its text.
pub const MAX_VALUES: usize = 2 << 20;

/// Why a text is not JSON.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SyntaxError {
    /// The text has only white space.
    Empty,
    /// The text stops inside a value.
    UnexpectedEnd,
    /// A byte that is not allowed at its position. The second field names the context.
    Unexpected(u8, &'static str),
    /// The nesting is too deep.
    TooDeep,
    /// More values than [`MAX_VALUES`].
    TooMany,
}

impl std::error::Error for SyntaxError {}

impl std::fmt::Display for SyntaxError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Empty => f.write_str("EOF"),
            Self::UnexpectedEnd => f.write_str("unexpected EOF"),
            Self::TooDeep => {
                write!(
                    f,
                    "exceeded max depth: lists and objects are nested more than {MAX_DEPTH} levels"
                )
            }
            Self::TooMany => write!(f, "the body has more than {MAX_VALUES} JSON values"),
            Self::Unexpected(b, context) => match b {
                b'\'' => write!(f, r"invalid character '\'' {context}"),
                b'\n' => write!(f, r"invalid character '\n' {context}"),
                b'\r' => write!(f, r"invalid character '\r' {context}"),
                b'\t' => write!(f, r"invalid character '\t' {context}"),
                0..0x20 | 0x7f => write!(f, r"invalid character '\x{b:02x}' {context}"),
                _ => write!(f, "invalid character '{}' {context}", char::from(*b)),
            },
        }
    }
}

/// Reads the first JSON value of `text`.
pub fn parse(text: &[u8]) -> Result<Value, SyntaxError> {
    let mut parser = Parser { text, at: 0, values_left: MAX_VALUES };
    parser.skip_space();
    if parser.at == text.len() {
        return Err(SyntaxError::Empty);
    }
    parser.value(0)
}

struct Parser<'a> {
    text: &'a [u8],
    at: usize,
    /// Number of values that may still follow.
    values_left: usize,
}

impl Parser<'_> {
    fn value(&mut self, depth: usize) -> Result<Value, SyntaxError> {
        if depth > MAX_DEPTH {
            return Err(SyntaxError::TooDeep);
        }
        self.values_left = self.values_left.checked_sub(1).ok_or(SyntaxError::TooMany)?;
        match self.peek()? {
            b'{' => self.object(depth),
            b'[' => self.list(depth),
            b'"' => Ok(Value::String(self.string()?)),
            b't' => self.literal(b"true", "in literal true", Value::Bool(true)),
            b'f' => self.literal(b"false", "in literal false", Value::Bool(false)),
            b'n' => self.literal(b"null", "in literal null", Value::Null),
            b'-' | b'0'..=b'9' => self.number(),
            b => Err(SyntaxError::Unexpected(b, "looking for beginning of value")),
        }
    }

    fn object(&mut self, depth: usize) -> Result<Value, SyntaxError> {
        let mut map = Map::new();
        self.at += 1;
        self.skip_space();
        if self.peek()? == b'}' {
            self.at += 1;
            return Ok(Value::Object(map));
        }
        loop {
            self.skip_space();
            match self.peek()? {
                b'"' => {}
                b => {
                    return Err(SyntaxError::Unexpected(
                        b,
                        "looking for beginning of object key string",
                    ));
                }
            }
            let key = self.string()?;
            self.skip_space();
            match self.peek()? {
                b':' => self.at += 1,
                b => return Err(SyntaxError::Unexpected(b, "after object key")),
            }
            self.skip_space();
            let value = self.value(depth + 1)?;
            map.insert(key, value);
            self.skip_space();
            match self.peek()? {
                b',' => self.at += 1,
                b'}' => {
                    self.at += 1;
                    return Ok(Value::Object(map));
                }
                b => return Err(SyntaxError::Unexpected(b, "after object key:value pair")),
            }
        }
    }

    fn list(&mut self, depth: usize) -> Result<Value, SyntaxError> {
        let mut list = Vec::new();
        self.at += 1;
        self.skip_space();
        if self.peek()? == b']' {
            self.at += 1;
            return Ok(Value::Array(list));
        }
        loop {
            self.skip_space();
            list.push(self.value(depth + 1)?);
            self.skip_space();
            match self.peek()? {
                b',' => self.at += 1,
                b']' => {
                    self.at += 1;
                    return Ok(Value::Array(list));
                }
                b => return Err(SyntaxError::Unexpected(b, "after array element")),
            }
        }
    }

    fn string(&mut self) -> Result<String, SyntaxError> {
        self.at += 1;
        let mut bytes = Vec::new();
        loop {
            let run = self.plain_run();
            let length = run.len();
            bytes.extend_from_slice(run);
            self.at += length;
            match self.peek()? {
                b'"' => {
                    self.at += 1;
                    return Ok(match String::from_utf8(bytes) {
                        Ok(text) => text,
                        Err(e) => String::from_utf8_lossy(e.as_bytes()).into_owned(),
                    });
                }
                b'\\' => {
                    self.at += 1;
                    let c = self.escape()?;
                    bytes.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
                }
                b => return Err(SyntaxError::Unexpected(b, "in string literal")),
            }
        }
    }

    /// Bytes up to the next quote, backslash or control character, or to the end of the text.
    fn plain_run(&self) -> &[u8] {
        let rest = &self.text[self.at..];
        let run = &rest[..memchr::memchr2(b'"', b'\\', rest).unwrap_or(rest.len())];
        // This loop has no exit, so the compiler vectorizes it.
        match run.iter().fold(u8::MAX, |min, byte| min.min(*byte)) {
            0..0x20 => &run[..run.iter().position(|byte| *byte < 0x20).unwrap_or(run.len())],
            _ => run,
        }
    }

    /// Parses an escape sequence after the backslash. A lone surrogate becomes U+FFFD.
    fn escape(&mut self) -> Result<char, SyntaxError> {
        let b = self.peek()?;
        self.at += 1;
        Ok(match b {
            b'"' | b'\\' | b'/' => char::from(b),
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => {
                let first = self.hex4()?;
                if (0xd800..0xdc00).contains(&first) && self.text[self.at..].starts_with(b"\\u") {
                    let before_second = self.at;
                    self.at += 2;
                    let second = self.hex4()?;
                    if (0xdc00..0xe000).contains(&second) {
                        let code = 0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00);
                        return Ok(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER));
                    }
                    self.at = before_second;
                }
                char::from_u32(first).unwrap_or(char::REPLACEMENT_CHARACTER)
            }
            b => return Err(SyntaxError::Unexpected(b, "in string escape code")),
        })
    }

    fn hex4(&mut self) -> Result<u32, SyntaxError> {
        let mut code = 0;
        for _ in 0..4 {
            let b = self.peek()?;
            let digit = char::from(b).to_digit(16);
            code = code * 16
                + digit.ok_or(SyntaxError::Unexpected(b, r"in \u hexadecimal character escape"))?;
            self.at += 1;
        }
        Ok(code)
    }

    fn number(&mut self) -> Result<Value, SyntaxError> {
        let start = self.at;
        if self.text[self.at] == b'-' {
            self.at += 1;
        }
        match self.peek()? {
            b'0' => self.at += 1,
            b'1'..=b'9' => self.digits(),
            b => return Err(SyntaxError::Unexpected(b, "in numeric literal")),
        }
        if self.text.get(self.at) == Some(&b'.') {
            self.at += 1;
            self.some_digits("after decimal point in numeric literal")?;
        }
        if let Some(b'e' | b'E') = self.text.get(self.at) {
            self.at += 1;
            if let Some(b'+' | b'-') = self.text.get(self.at) {
                self.at += 1;
            }
            self.some_digits("in exponent of numeric literal")?;
        }
        let text = String::from_utf8_lossy(&self.text[start..self.at]);
        let number = if let Ok(n) = text.parse::<u64>() {
            Some(Number::from(n))
        } else if let Ok(n) = text.parse::<i64>() {
            Some(Number::from(n))
        } else {
            // Numbers beyond the range of `f64` become the largest number, which every limit
            // refuses.
            let x = text.parse::<f64>().unwrap_or(0.0).clamp(f64::MIN, f64::MAX);
            Number::from_f64(x)
        };
        Ok(number.map_or(Value::Null, Value::Number))
    }

    fn some_digits(&mut self, context: &'static str) -> Result<(), SyntaxError> {
        match self.peek()? {
            b'0'..=b'9' => self.digits(),
            b => return Err(SyntaxError::Unexpected(b, context)),
        }
        Ok(())
    }

    fn digits(&mut self) {
        while let Some(b'0'..=b'9') = self.text.get(self.at) {
            self.at += 1;
        }
    }

    fn literal(
        &mut self,
        word: &[u8],
        context: &'static str,
        value: Value,
    ) -> Result<Value, SyntaxError> {
        for &want in word {
            match self.peek()? {
                b if b == want => self.at += 1,
                b => return Err(SyntaxError::Unexpected(b, context)),
            }
        }
        Ok(value)
    }

    fn skip_space(&mut self) {
        while let Some(b' ' | b'\t' | b'\r' | b'\n') = self.text.get(self.at) {
            self.at += 1;
        }
    }

    fn peek(&self) -> Result<u8, SyntaxError> {
        self.text.get(self.at).copied().ok_or(SyntaxError::UnexpectedEnd)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn error(text: &str) -> String {
        parse(text.as_bytes()).unwrap_err().to_string()
    }

    #[test]
    fn values_of_all_types_are_parsed() {
        let text =
            r#" {"a":[1,-2,1.5e1,true,false,null],"b":{"c":"x\n\u00e9\ud83d\ude00"}} trailing"#;
        let want = json!({"a":[1,-2,15.0,true,false,null],"b":{"c":"x\né😀"}});
        assert_eq!(parse(text.as_bytes()).unwrap(), want);
    }

    #[test]
    fn the_last_of_repeated_keys_wins() {
        assert_eq!(parse(br#"{"m":"first","m":"second"}"#).unwrap(), json!({"m":"second"}));
    }

    #[test]
    fn invalid_utf8_and_surrogates_become_replacement_characters() {
        assert_eq!(parse(br#""\ud800""#).unwrap(), json!("\u{fffd}"));
        assert_eq!(parse(br#""\ud800\u0041""#).unwrap(), json!("\u{fffd}A"));
        assert_eq!(parse(b"\"\xff\"").unwrap(), json!("\u{fffd}"));
    }

    #[test]
    fn errors_have_the_messages_of_go() {
        assert_eq!(error(" \n"), "EOF");
        assert_eq!(error(r#"{"model":"smol","#), "unexpected EOF");
        assert_eq!(
            error("{bad"),
            "invalid character 'b' looking for beginning of object key string"
        );
        assert_eq!(
            error("{'a':1}"),
            r"invalid character '\'' looking for beginning of object key string"
        );
        assert_eq!(
            error(r#"{"a":1 /* c */}"#),
            "invalid character '/' after object key:value pair"
        );
        assert_eq!(error("\u{1f}"), r"invalid character '\x1f' looking for beginning of value");
        assert_eq!(
            parse(b"\xef\xbb\xbf{}").unwrap_err().to_string(),
            "invalid character 'ï' looking for beginning of value"
        );
        assert_eq!(error("[1 2]"), "invalid character '2' after array element");
        assert_eq!(error("nul"), "unexpected EOF");
        assert_eq!(error("-x"), "invalid character 'x' in numeric literal");
    }

    #[test]
    fn long_strings_end_at_the_first_special_byte() {
        let plain = "é".repeat(1000);
        let parsed = parse(format!(r#"["{plain}\"{plain}", "{plain}"]"#).as_bytes()).unwrap();
        assert_eq!(parsed, json!([format!("{plain}\"{plain}"), plain]));
        for byte in ['\u{1f}', '\0', '\n'] {
            // The control character comes before the end of the string, and before an escape.
            for end in ["\"", "\\u0041\"", ""] {
                let error = error(&format!("\"{plain}{byte}{plain}{end}"));
                assert!(error.ends_with("in string literal"), "{error}");
            }
        }
        assert_eq!(error(&format!("\"{plain}")), "unexpected EOF");
        assert_eq!(parse(b"\"\x7f\"").unwrap(), json!("\u{7f}"));
    }

    #[test]
    fn deep_nesting_is_refused() {
        let text = "[".repeat(1_000_000);
        assert_eq!(
            error(&text),
            "exceeded max depth: lists and objects are nested more than 100 levels"
        );
    }

    #[test]
    fn numbers_out_of_range_stay_finite() {
        assert_eq!(parse(b"1e999").unwrap().as_f64(), Some(f64::MAX));
        assert_eq!(
            parse(b"123456789012345678901234567890").unwrap().as_f64(),
            Some(1.2345678901234568e29)
        );
    }
}
