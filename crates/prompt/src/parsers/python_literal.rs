//! Literals in Python syntax.

use serde_json::{Map, Value as Json};

/// Deepest nesting of lists and dicts.
const MAX_NESTING_DEPTH: usize = 64;

/// Parses a Python list or dict.
pub(super) fn literal(text: &str) -> Option<Json> {
    let mut parser = LiteralParser { rest: text.trim() };
    let value = parser.value(0)?;
    parser.rest.is_empty().then_some(value)
}

/// Parses a number; a number without fraction becomes an integer.
pub(super) fn number(text: &str) -> Option<Json> {
    if let Ok(whole) = text.parse::<i64>() {
        return Some(whole.into());
    }
    let number = text.parse::<f64>().ok()?;
    if number.fract() == 0.0 && number.abs() < 9e15 {
        return Some((number as i64).into());
    }
    serde_json::Number::from_f64(number).map(Json::Number)
}

/// Parser of Python literals.
pub(super) struct LiteralParser<'t> {
    /// Remaining text without leading white space.
    pub(super) rest: &'t str,
}

impl<'t> LiteralParser<'t> {
    pub(super) fn value(&mut self, depth: usize) -> Option<Json> {
        match self.rest.chars().next()? {
            quote @ ('"' | '\'') => self.string(quote).map(Json::String),
            '[' | '(' | '{' if depth == MAX_NESTING_DEPTH => None,
            open @ ('[' | '(') => {
                self.eat(open);
                let close = if open == '[' { ']' } else { ')' };
                let mut list = Vec::new();
                while !self.eat(close) {
                    list.push(self.value(depth + 1)?);
                    if !self.eat(',') && !self.rest.starts_with(close) {
                        return None;
                    }
                }
                Some(list.into())
            }
            '{' => {
                self.eat('{');
                let mut object = Map::new();
                while !self.eat('}') {
                    let key = match self.value(depth + 1)? {
                        Json::String(key) => key,
                        other => other.to_string(),
                    };
                    if !self.eat(':') {
                        return None;
                    }
                    let value = self.value(depth + 1)?;
                    object.insert(key, value);
                    if !self.eat(',') && !self.rest.starts_with('}') {
                        return None;
                    }
                }
                Some(object.into())
            }
            _ => {
                let word = self.word(|c| !matches!(c, ',' | ')' | ']' | '}' | ':'));
                let word = word.trim_end();
                match word {
                    "" => None,
                    "True" | "true" => Some(true.into()),
                    "False" | "false" => Some(false.into()),
                    "None" | "null" | "nil" => Some(Json::Null),
                    word => Some(number(word).unwrap_or_else(|| word.into())),
                }
            }
        }
    }

    fn string(&mut self, quote: char) -> Option<String> {
        let mut text = String::new();
        let mut chars = self.rest.char_indices().skip(1);
        while let Some((at, c)) = chars.next() {
            match c {
                '\\' => match chars.next()?.1 {
                    'n' => text.push('\n'),
                    't' => text.push('\t'),
                    'r' => text.push('\r'),
                    'b' => text.push('\u{8}'),
                    'f' => text.push('\u{c}'),
                    'u' => {
                        let escape = escaped(&self.rest[at..]);
                        let skipped = escape.and_then(|(_, length)| chars.nth(length - 3));
                        match escape.zip(skipped) {
                            Some(((c, _), _)) => text.push(c),
                            None => text.extend(['\\', 'u']),
                        }
                    }
                    escaped @ ('\\' | '"' | '\'') => text.push(escaped),
                    other => text.extend(['\\', other]),
                },
                _ if c == quote => {
                    self.rest = self.rest[at + 1..].trim_start();
                    return Some(text);
                }
                _ => text.push(c),
            }
        }
        None
    }

    pub(super) fn word(&mut self, belongs: impl Fn(char) -> bool) -> &'t str {
        let end = self.rest.find(|c| !belongs(c)).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest.trim_start();
        word
    }

    pub(super) fn eat(&mut self, c: char) -> bool {
        match self.rest.strip_prefix(c) {
            Some(rest) => {
                self.rest = rest.trim_start();
                true
            }
            None => false,
        }
    }
}

/// Decodes `\\uXXXX`, or a surrogate pair of two escapes, at the start of a text. Returns the
/// character and the length in bytes.
fn escaped(text: &str) -> Option<(char, usize)> {
    let unit = |from: usize| {
        let digits = text.get(from..from + 6)?.strip_prefix("\\u")?;
        u32::from_str_radix(digits.get(..4)?, 16).ok()
    };
    let first = unit(0)?;
    if let Some(c) = char::from_u32(first) {
        return Some((c, 6));
    }
    let low = unit(6).filter(|low| (0xdc00..0xe000).contains(low) && first < 0xdc00)?;
    char::from_u32(0x10000 + ((first - 0xd800) << 10) + (low - 0xdc00)).map(|c| (c, 12))
}
