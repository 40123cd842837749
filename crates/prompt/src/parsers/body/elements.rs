//! Calls written with an element for every argument, named as the argument.

use serde_json::{Map, Value as Json};

use super::super::call::CallError;
use super::super::tools::Tools;
use super::call;
use crate::message::FunctionCall;

const FORM: CallError = CallError::Form("<invoke name=\"NAME\"><KEY>VALUE</KEY></invoke>");

/// Elements in elements are read so deep.
const DEPTH: usize = 64;

/// The name of the elements of a list.
const ITEM: &str = "item";

/// Reads calls; `mark` stands before every tag.
pub(super) fn read(mark: &str, text: &str, tools: &Tools) -> Result<Vec<FunctionCall>, CallError> {
    let open = format!("{mark}<");
    // The inside of every tag, and the text behind it up to the next one.
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
    if calls.is_empty() { Err(FORM) } else { Ok(calls) }
}

/// The inside of a tag, and the text behind it.
type Tag<'t> = (&'t str, &'t str);

/// The list or object in an element whose opening tag stands before `at`, `None` if there is only a text, and where the
/// tag behind its closing one is; nothing for an element that lacks its end.
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
            return (closed == name).then(|| (inner(list, object), at));
        }
        if tag.starts_with("invoke ") || depth == DEPTH {
            return None;
        }
        let (value, behind) = element(tags, at, tag, depth + 1)?;
        at = behind;
        let value = value.unwrap_or_else(|| leaf(inside));
        if tag == ITEM {
            list.push(value);
        } else {
            object.insert(tag.to_owned(), value);
        }
    }
}

/// What elements in an element are.
fn inner(mut list: Vec<Json>, mut object: Map<String, Json>) -> Option<Json> {
    match (list.is_empty(), object.is_empty()) {
        (true, true) => None,
        (false, true) => Some(list.into()),
        // Beside others one of that name is a key as they are.
        _ => {
            if let Some(item) = list.pop() {
                object.insert(ITEM.to_owned(), item);
            }
            Some(object.into())
        }
    }
}

/// A value deep inside, of which no tool says what it is: a number or a truth value where it reads as one.
fn leaf(text: &str) -> Json {
    match serde_json::from_str(text) {
        Ok(value @ (Json::Number(_) | Json::Bool(_) | Json::Null)) => value,
        _ => text.into(),
    }
}
