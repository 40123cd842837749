//! Calls that consist of a name and pairs of tagged keys and values.

use serde_json::Map;

use super::super::output_part::CallError;
use super::super::pending::{TagMatch, first_tag};
use super::super::tools::Tools;
use super::syntax::{TagText, call, trim_value};
use crate::message::FunctionCall;

/// Opening and closing tags of keys and values.
#[derive(Debug, Clone)]
pub(in super::super) struct Pairs {
    pub(in super::super) key: (TagText, TagText),
    pub(in super::super) value: (TagText, TagText),
    /// Tag behind the name.
    pub(in super::super) separator: Option<TagText>,
    /// Pairs with a missing tag are ignored instead of repaired.
    pub(in super::super) strict: bool,
    /// Values are not on their own lines.
    pub(in super::super) bare: bool,
}

impl Default for Pairs {
    fn default() -> Self {
        Self {
            key: ("<arg_key>".into(), "</arg_key>".into()),
            value: ("<arg_value>".into(), "</arg_value>".into()),
            separator: None,
            strict: false,
            bare: false,
        }
    }
}

impl Pairs {
    pub(super) fn all(&self) -> [&str; 4] {
        [&self.key.0, &self.key.1, &self.value.0, &self.value.1].map(|tag| tag.as_ref())
    }
}

/// Reads a call. Models omit tags: a text at the position of a key or value counts as one.
pub(in super::super) fn read(
    tags: &Pairs,
    text: &str,
    tools: &Tools,
) -> Result<FunctionCall, CallError> {
    let all = tags.all();
    let next = |from| match first_tag(text, from, &all) {
        TagMatch::Tag { at, tag } => Some((at, tag)),
        _ => None,
    };
    let mut found = next(0);
    let mut name = text[..found.map_or(text.len(), |(at, _)| at)].trim();
    if let Some(separator) = &tags.separator {
        name = name.split_once(separator.as_ref()).map_or(name, |(name, _)| name).trim();
    }
    let mut key = None;
    // If the opening tag of the first key is missing, the key follows the name.
    if found.is_some_and(|(_, tag)| tag != 0 && !tags.strict)
        && let Some((first, rest)) = name.split_once(char::is_whitespace)
    {
        (name, key) = (first, Some(rest.trim()));
    }
    if name.is_empty() {
        return Err(CallError::NoName);
    }
    let mut arguments = Map::new();
    let mut set = |key: &str, value: &str| {
        arguments.insert(key.to_owned(), tools.value(name, key, trim_value(value, tags.bare)));
    };
    while let Some((at, tag)) = found {
        let from = at + all[tag].len();
        found = next(from);
        let inside = &text[from..found.map_or(text.len(), |(at, _)| at)];
        let blank = inside.trim().is_empty();
        let closed = found.is_some_and(|(_, next)| next == tag + 1);
        match (tag, key) {
            (0 | 2, _) if tags.strict && !closed => key = None,
            (1 | 3, _) if tags.strict => {}
            (0, _) => key = Some(inside.trim()),
            (2, Some(found)) => {
                set(found, inside);
                key = None;
            }
            (1, Some(found)) if !blank => {
                set(found, inside.trim());
                key = None;
            }
            (3, None) if !blank => key = Some(inside.trim()),
            _ => {}
        }
    }
    Ok(call(name, arguments))
}
