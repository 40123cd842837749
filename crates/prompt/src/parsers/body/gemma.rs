//! Calls of the Gemma models: like JSON, with bare keys and special quotes.

use serde_json::{Map, Value as Json};

use super::super::output_part::CallError;
use super::super::python_literal::number;
use super::super::tools::Tools;
use super::syntax::{TagText, call};
use crate::message::FunctionCall;

/// Deepest nesting of lists and objects.
const MAX_NESTING_DEPTH: usize = 64;

/// `call:f{a:<quote>x<quote>,n:2}`.
#[derive(Debug, Clone)]
pub(in super::super) struct Gemma {
    /// Text before and behind a string.
    pub(in super::super) quote: TagText,
}

impl Gemma {
    /// Reads a call and repairs frequent errors of models: other quotes, a missing closing quote or
    /// brace, strings without quotes.
    pub(super) fn read(&self, text: &str, tools: &Tools) -> Result<FunctionCall, CallError> {
        let format = || CallError::Syntax("call:NAME{KEY:VALUE,…}");
        let (name, inside) = text
            .trim()
            .strip_prefix("call:")
            .and_then(|text| text.split_once('{'))
            .ok_or_else(format)?;
        let name = name.trim();
        let is_text = |key: &str| tools.is_text(name, key);
        let mut parser = Parser { quote: &self.quote, rest: inside.trim_start() };
        let arguments = parser.object(0, &is_text).ok_or_else(format)?;
        Ok(call(name, arguments))
    }
}

struct Parser<'t> {
    quote: &'t str,
    /// Remaining text without leading white space.
    rest: &'t str,
}

impl<'t> Parser<'t> {
    /// Reads an object behind its opening brace. The closing brace may be missing at the end of the
    /// text.
    fn object(
        &mut self,
        depth: usize,
        is_text: &dyn Fn(&str) -> bool,
    ) -> Option<Map<String, Json>> {
        let mut object = Map::new();
        while !self.eat("}") && !self.rest.is_empty() {
            let key = match self.quoted() {
                Some(key) => key,
                None => {
                    let end = self.rest.find([':', ',', '}'])?;
                    let key = self.rest[..end].trim_end();
                    self.advance(end);
                    key
                }
            };
            if !self.eat(":") {
                return None;
            }
            let value = if is_text(key) { self.text() } else { self.value(depth)? };
            object.insert(key.to_owned(), value);
            self.eat(",");
        }
        Some(object)
    }

    fn value(&mut self, depth: usize) -> Option<Json> {
        if let Some(text) = self.quoted() {
            return Some(text.into());
        }
        if depth == MAX_NESTING_DEPTH {
            return None;
        }
        if self.eat("{") {
            return self.object(depth + 1, &|_| false).map(Json::Object);
        }
        if self.eat("[") {
            let mut list = Vec::new();
            while !self.eat("]") {
                if self.rest.is_empty() {
                    return None;
                }
                list.push(self.value(depth + 1)?);
                self.eat(",");
            }
            return Some(list.into());
        }
        let end = self.rest.find([',', '}', ']']).unwrap_or(self.rest.len());
        let word = self.rest[..end].trim_end();
        self.advance(end);
        // An unexpected bracket would otherwise loop forever.
        if word.is_empty() {
            return None;
        }
        Some(match word {
            "true" => true.into(),
            "false" => false.into(),
            "null" | "None" => Json::Null,
            word => number(word).unwrap_or_else(|| word.into()),
        })
    }

    /// Reads a string value. Without quotes, it extends to the next key or the end.
    fn text(&mut self) -> Json {
        if let Some(text) = self.quoted() {
            return text.into();
        }
        let mut end = self.rest.len();
        for (at, _) in self.rest.match_indices(',') {
            let key = self.rest[at + 1..].trim_start();
            let word = key.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(0);
            if word > 0 && key[word..].starts_with(':') {
                end = at;
                break;
            }
        }
        let whole = &self.rest[..end];
        let text = if end == self.rest.len() {
            whole.trim_end().strip_suffix('}').unwrap_or(whole)
        } else {
            whole
        };
        let word = text.trim();
        self.advance(text.len());
        if word == "null" { Json::Null } else { word.into() }
    }

    /// Reads a string in the model's quotes or in ordinary ones. An unclosed string extends to the
    /// last brace.
    fn quoted(&mut self) -> Option<&'t str> {
        let own = self.quote;
        let quote = [own, "'", "\""].into_iter().find(|quote| self.rest.starts_with(quote))?;
        let inside = &self.rest[quote.len()..];
        match inside.find(quote) {
            Some(end) => {
                self.rest = inside[end + quote.len()..].trim_start();
                Some(&inside[..end])
            }
            None if quote == own => {
                let text = inside.trim_end();
                let text = text.strip_suffix('}').unwrap_or(text);
                self.rest = inside[text.len()..].trim_start();
                Some(text)
            }
            None => None,
        }
    }

    fn eat(&mut self, tag_prefix: &str) -> bool {
        match self.rest.strip_prefix(tag_prefix) {
            Some(rest) => {
                self.rest = rest.trim_start();
                true
            }
            None => false,
        }
    }

    fn advance(&mut self, bytes: usize) {
        self.rest = self.rest[bytes..].trim_start();
    }
}
