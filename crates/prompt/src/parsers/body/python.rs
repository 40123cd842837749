//! Calls in Python syntax: `f(a="x", n=2)`.

use serde_json::{Map, Value as Json};

use super::super::output_part::CallError;
use super::super::tools::number;
use super::call;
use crate::message::FunctionCall;

/// Deepest nesting of lists and dicts.
const MAX_NESTING_DEPTH: usize = 64;

const SYNTAX_ERROR: CallError = CallError::Syntax("NAME(KEY=VALUE, …)");

/// Reads calls in brackets, or one after the other.
pub(in super::super) fn read(text: &str) -> Result<Vec<FunctionCall>, CallError> {
    let text = text.trim();
    let text = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')).unwrap_or(text);
    let mut parser = Parser { rest: text.trim() };
    let mut calls = Vec::new();
    while !parser.rest.is_empty() {
        calls.push(parser.call().ok_or(SYNTAX_ERROR)?);
        let separated = parser.eat(',');
        if !separated && !parser.rest.is_empty() && !parser.rest.starts_with(is_name) {
            return Err(SYNTAX_ERROR);
        }
    }
    if calls.is_empty() { Err(SYNTAX_ERROR) } else { Ok(calls) }
}

/// Parses a Python list or dict.
pub(in super::super) fn literal(text: &str) -> Option<Json> {
    let mut parser = Parser { rest: text.trim() };
    let value = parser.value(0)?;
    parser.rest.is_empty().then_some(value)
}

fn is_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

struct Parser<'t> {
    /// Remaining text without leading white space.
    rest: &'t str,
}

impl<'t> Parser<'t> {
    fn call(&mut self) -> Option<FunctionCall> {
        let name = self.word(|c| is_name(c) || c == '.' || c == '-');
        if name.is_empty() || !self.eat('(') {
            return None;
        }
        let mut arguments = Map::new();
        while !self.eat(')') {
            let key = self.word(is_name);
            if key.is_empty() || !self.eat('=') {
                return None;
            }
            let value = self.value(0)?;
            arguments.insert(key.to_owned(), value);
            if !self.eat(',') && !self.rest.starts_with(')') {
                return None;
            }
        }
        Some(call(name, arguments))
    }

    fn value(&mut self, depth: usize) -> Option<Json> {
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

    fn word(&mut self, belongs: impl Fn(char) -> bool) -> &'t str {
        let end = self.rest.find(|c| !belongs(c)).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest.trim_start();
        word
    }

    fn eat(&mut self, c: char) -> bool {
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
