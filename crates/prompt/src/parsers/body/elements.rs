//! Calls with an XML element for each argument; the element has the name of the argument.

use serde_json::{Map, Value as Json};

use super::super::output_part::CallError;
use super::super::tools::Tools;
use super::syntax::call;
use crate::message::FunctionCall;

const SYNTAX_ERROR: CallError =
    CallError::Syntax("<invoke name=\"NAME\"><KEY>VALUE</KEY></invoke>");

/// Deepest nesting of elements.
const MAX_NESTING_DEPTH: usize = 64;

/// Name of list elements.
const ITEM_TAG: &str = "item";

/// Reads calls. `tag_prefix` precedes every tag.
pub(super) fn read(
    tag_prefix: &str,
    text: &str,
    tools: &Tools,
) -> Result<Vec<FunctionCall>, CallError> {
    let open = format!("{tag_prefix}<");
    // The content of every tag, and the text between it and the next tag.
    let tags: Vec<Tag<'_>> =
        text.split(open.as_str()).skip(1).filter_map(|part| part.split_once('>')).collect();
    let mut calls: Vec<FunctionCall> = Vec::new();
    let mut at = 0;
    while let Some((tag, inside)) = tags.get(at).copied() {
        at += 1;
        if let Some(name) =
            tag.strip_prefix("invoke name=\"").and_then(|rest| rest.strip_suffix('"'))
        {
            calls.push(call(name, Map::new()));
            continue;
        }
        let Some(current) = calls.last_mut().filter(|_| !tag.starts_with('/')) else { continue };
        let Some((value, behind)) = element(&tags, at, tag, 0) else { continue };
        at = behind;
        let value = match value {
            None if inside.is_empty() => tools.empty_value(&current.name, tag),
            value => value,
        };
        let value = value.unwrap_or_else(|| tools.value(&current.name, tag, inside));
        current.arguments.insert(tag.to_owned(), value);
    }
    if calls.is_empty() { Err(SYNTAX_ERROR) } else { Ok(calls) }
}

/// The content of a tag, and the text behind the tag.
type Tag<'t> = (&'t str, &'t str);

/// Reads the element `name` with content from tag `at` on. Returns its list or object, or `None`
/// for plain text, and the index of the tag behind its closing tag. An element without closing tag
/// is `None`.
fn element(
    tags: &[Tag<'_>],
    mut at: usize,
    name: &str,
    depth: usize,
) -> Option<(Option<Json>, usize)> {
    let (mut list, mut object) = (Vec::new(), Map::new());
    loop {
        let (tag, inside) = *tags.get(at)?;
        at += 1;
        if let Some(closed) = tag.strip_prefix('/') {
            return (closed == name).then(|| (composite_value(list, object), at));
        }
        if tag.starts_with("invoke ") || depth == MAX_NESTING_DEPTH {
            return None;
        }
        let (value, behind) = element(tags, at, tag, depth + 1)?;
        at = behind;
        let value = value.unwrap_or_else(|| parse_leaf(inside));
        if tag == ITEM_TAG {
            list.push(value);
        } else {
            object.insert(tag.to_owned(), value);
        }
    }
}

/// The value of an element that contains elements.
fn composite_value(mut list: Vec<Json>, mut object: Map<String, Json>) -> Option<Json> {
    match (list.is_empty(), object.is_empty()) {
        (true, true) => None,
        (false, true) => Some(list.into()),
        // Beside other elements, `item` is an ordinary key.
        _ => {
            if let Some(item) = list.pop() {
                object.insert(ITEM_TAG.to_owned(), item);
            }
            Some(object.into())
        }
    }
}

/// A nested value without a declared type: a number, boolean or null if it parses as one.
fn parse_leaf(text: &str) -> Json {
    match serde_json::from_str(text) {
        Ok(value @ (Json::Number(_) | Json::Bool(_) | Json::Null)) => value,
        _ => text.into(),
    }
}
