//! Calls written as a name and pairs of tagged keys and values.

use serde_json::Map;

use super::super::call::CallError;
use super::super::pending::{Found, first_tag};
use super::super::tools::Tools;
use super::{Text, call, value_in};
use crate::message::FunctionCall;

/// Opening and closing tags of keys and values.
#[derive(Debug, Clone)]
pub(in super::super) struct Pairs {
    pub(in super::super) key: (Text, Text),
    pub(in super::super) value: (Text, Text),
    /// The tag after the name, where there is one.
    pub(in super::super) separator: Option<Text>,
    /// Nothing is repaired: pairs that lack a tag are left out.
    pub(in super::super) strict: bool,
    /// Values stand between their tags as they are, not on lines of their own.
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

/// Models leave out tags: what stands where a key or a value is due counts as one.
pub(in super::super) fn read(
    tags: &Pairs,
    text: &str,
    tools: &Tools,
) -> Result<FunctionCall, CallError> {
    let all = tags.all();
    let next = |from| match first_tag(text, from, &all) {
        Found::Tag { at, tag } => Some((at, tag)),
        _ => None,
    };
    let mut found = next(0);
    let mut name = text[..found.map_or(text.len(), |(at, _)| at)].trim();
    if let Some(separator) = &tags.separator {
        name = name.split_once(separator.as_ref()).map_or(name, |(name, _)| name).trim();
    }
    let mut key = None;
    // With the first key's opening tag left out, its text stands behind the name.
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
        arguments.insert(key.to_owned(), tools.value(name, key, value_in(value, tags.bare)));
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
            (2, Some(known)) => {
                set(known, inside);
                key = None;
            }
            (1, Some(known)) if !blank => {
                set(known, inside.trim());
                key = None;
            }
            (3, None) if !blank => key = Some(inside.trim()),
            _ => {}
        }
    }
    Ok(call(name, arguments))
}
