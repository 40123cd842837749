//! Calls as JSON objects.

use serde_json::{Map, Value as Json};

use super::super::output_part::CallError;
use super::super::tools::Tools;
use super::syntax::call;
use crate::message::FunctionCall;

const SYNTAX_ERROR: CallError = CallError::Syntax("{\"name\": \"f\", \"arguments\": {…}}");

/// Reads a sequence of objects or lists of objects.
pub(super) fn read(text: &str, tools: &Tools) -> Result<Vec<FunctionCall>, CallError> {
    let mut calls = Vec::new();
    for value in serde_json::Deserializer::from_str(text).into_iter::<Json>() {
        match value.map_err(|e| CallError::Json(e.to_string()))? {
            Json::Array(all) => {
                for one in all {
                    calls.push(object_call(one, tools)?);
                }
            }
            one => calls.push(object_call(one, tools)?),
        }
    }
    if calls.is_empty() { Err(SYNTAX_ERROR) } else { Ok(calls) }
}

/// Reads a call of the form `{"name", "arguments"}`. Variants: the keys `tool_name` and
/// `parameters`, a surrounding `function` object, and `{"f": {…}}` if `f` is a declared tool.
pub(in super::super) fn object_call(value: Json, tools: &Tools) -> Result<FunctionCall, CallError> {
    let Json::Object(mut object) = value else { return Err(SYNTAX_ERROR) };
    if let Some(Json::Object(_)) = object.get("function") {
        let composite_value = object.remove("function").unwrap_or_default();
        return object_call(composite_value, tools);
    }
    if object.len() == 1
        && let Some((name, Json::Object(_))) = object.iter().next()
        && tools.has(name)
    {
        let name = name.clone();
        let given = object.remove(&name).unwrap_or_default();
        return Ok(call(name, arguments(given)?));
    }
    let name = ["name", "tool_name", "function"].iter().find_map(|key| object.get(*key)?.as_str());
    let name = name.unwrap_or_default().to_owned();
    if name.is_empty() {
        return Err(CallError::NoName);
    }
    let given = ["arguments", "parameters"].iter().find_map(|key| object.remove(*key));
    Ok(call(name, arguments(given.unwrap_or_default())?))
}

/// Reads arguments from an object, from the JSON text of an object, or from null.
pub(in super::super) fn arguments(value: Json) -> Result<Map<String, Json>, CallError> {
    match value {
        Json::Object(object) => Ok(object),
        Json::Null => Ok(Map::new()),
        Json::String(text) if text.trim().is_empty() => Ok(Map::new()),
        Json::String(text) => {
            serde_json::from_str(&text).map_err(|e| CallError::Json(e.to_string()))
        }
        _ => Err(SYNTAX_ERROR),
    }
}
