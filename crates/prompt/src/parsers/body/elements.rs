//! Calls written with an element for every argument, named as the argument.

use serde_json::Map;

use super::super::call::CallError;
use super::super::tools::Tools;
use super::call;
use crate::message::FunctionCall;

const FORM: CallError = CallError::Form("<invoke name=\"NAME\"><KEY>VALUE</KEY></invoke>");

/// Reads calls; `mark` stands before every tag.
pub(super) fn read(mark: &str, text: &str, tools: &Tools) -> Result<Vec<FunctionCall>, CallError> {
    let open = format!("{mark}<");
    // The inside of every tag, and the text behind it up to the next one.
    let mut tags = text.split(open.as_str()).skip(1).filter_map(|part| part.split_once('>')).peekable();
    let mut calls: Vec<FunctionCall> = Vec::new();
    while let Some((tag, inside)) = tags.next() {
        if let Some(name) = tag.strip_prefix("invoke name=\"").and_then(|rest| rest.strip_suffix('"')) {
            calls.push(call(name, Map::new()));
            continue;
        }
        let closes = tags.peek().is_some_and(|(next, _)| next.strip_prefix('/') == Some(tag));
        if let Some(current) = calls.last_mut().filter(|_| closes) {
            let value = tools.value(&current.name, tag, inside);
            current.arguments.insert(tag.to_owned(), value);
        }
    }
    if calls.is_empty() { Err(FORM) } else { Ok(calls) }
}
