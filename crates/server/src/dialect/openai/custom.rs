//! Custom tools: tools that take free text. The model is offered a function of one text for each.

use std::collections::HashMap;

use puna_api::native::Tool;
use serde_json::{Map, Value, json};

use super::hosted::ignored_kind;
use crate::canonical::ApiError;
use crate::http::note_ignored;

/// The argument of such a function.
pub(super) const INPUT: &str = "input";

/// The function that stands for a custom tool with `name`, `description` and `format`. A grammar is a part of its description.
pub(super) fn function_of(tool: &Value) -> Result<Value, String> {
    if tool["name"].as_str().is_none_or(str::is_empty) {
        return Err("a custom tool has no name".into());
    }
    let mut description = tool["description"].as_str().unwrap_or_default().to_owned();
    if let Some((syntax, definition)) = grammar(&tool["format"])? {
        description +=
            &format!("\n\nThe text of {INPUT} follows this grammar ({syntax}):\n{definition}");
    }
    let text = json!({"type": "string", "description": "The whole input, as it is"});
    let parameters = json!({"type": "object", "properties": {INPUT: text}, "required": [INPUT]});
    Ok(json!({"name": tool["name"], "description": description, "parameters": parameters}))
}

/// Syntax and definition of the grammar of a custom tool's text, if it has one.
fn grammar(format: &Value) -> Result<Option<(&str, &str)>, String> {
    let kind = match format {
        Value::Null => return Ok(None),
        Value::Object(_) => &format["type"],
        other => return Err(format!("format must be an object, but is {other}")),
    };
    match kind.as_str() {
        Some("text") => return Ok(None),
        Some("grammar") => {}
        _ => return Err(format!("format: there is no type {kind}: use text or grammar")),
    }
    // In chats the grammar is an object of its own.
    let grammar = format.get("grammar").unwrap_or(format);
    let definition = grammar["definition"].as_str().filter(|text| !text.is_empty());
    let definition = definition.ok_or("format: a grammar needs its text in definition")?;
    match &grammar["syntax"] {
        Value::Null => Ok(Some(("a", definition))),
        Value::String(syntax) if matches!(syntax.as_str(), "lark" | "regex") => {
            Ok(Some((syntax, definition)))
        }
        other => Err(format!("format: there is no syntax {other}: use lark or regex")),
    }
}

/// Refuses a `strict` that is neither true nor false.
pub(super) fn check_strict_type(strict: &Value) -> Result<(), String> {
    match strict {
        Value::Null | Value::Bool(_) => Ok(()),
        other => Err(format!("strict must be true or false, but is {other}")),
    }
}

/// The names of a request's tools.
#[derive(Debug, Default)]
pub(super) struct ToolNames(HashMap<String, (usize, bool)>);

impl ToolNames {
    /// Adds the name of the tool at a position.
    ///
    /// # Errors
    /// A custom tool and a function have this name: a call could be of either.
    pub(super) fn add(&mut self, at: usize, name: &str, is_custom: bool) -> Result<(), String> {
        let (first, other) = *self.0.entry(name.to_owned()).or_insert((at, is_custom));
        if other == is_custom {
            return Ok(());
        }
        Err(format!(
            "the custom tool and the function at tools[{first}] and tools[{at}] have the same name {name:?}: rename one"
        ))
    }
}

/// The input of a call, however the model wrote it.
pub(super) fn input_of(arguments: &Map<String, Value>) -> String {
    match arguments.get(INPUT) {
        Some(Value::String(text)) => text.clone(),
        _ => Value::Object(arguments.clone()).to_string(),
    }
}

/// The arguments of a call with this input.
pub(super) fn arguments_of(input: &str) -> Map<String, Value> {
    Map::from_iter([(INPUT.to_owned(), input.into())])
}

/// The name of a custom tool of a chat; `None` for other tools.
pub(crate) fn name_of(tool: &Tool) -> Option<&str> {
    tool.0["custom"]["name"].as_str().filter(|_| tool.0["type"] == "custom")
}

/// A chat's tools as functions, without those that are ignored.
pub(super) fn as_functions(tools: Vec<Tool>) -> Result<Vec<Tool>, ApiError> {
    let (mut all, mut names) = (Vec::with_capacity(tools.len()), ToolNames::default());
    for (at, tool) in tools.into_iter().enumerate() {
        if let Some(kind) = ignored_kind(&tool) {
            note_ignored(format!("tools.{kind}"));
            continue;
        }
        let wrong = |text: String| ApiError::bad_request(format!("tools[{at}]: {text}"));
        let is_custom = tool.0["type"] == "custom";
        let function = match is_custom {
            true => {
                let function = function_of(&tool.0["custom"]).map_err(wrong)?;
                Tool(json!({"type": "function", "function": function}))
            }
            false => tool,
        };
        check_strict_type(&function.0["function"]["strict"]).map_err(wrong)?;
        names.add(at, function.name(), is_custom).map_err(wrong)?;
        all.push(function);
    }
    Ok(all)
}
