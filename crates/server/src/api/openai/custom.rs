//! Custom tools, which take free text. The model is offered a function with one text argument for
//! each.

use std::collections::HashMap;

use puna_api::ollama::Tool;
use serde_json::{Map, Value, json};

use super::hosted::ignored_kind;
use crate::canonical::ApiError;
use crate::http::record_ignored_field;

/// Name of the text argument of the function for a custom tool.
pub(super) const INPUT: &str = "input";

/// Returns the function for a custom tool with `name`, `description` and `format`. The description
/// includes the grammar.
///
/// # Errors
/// The name is missing or the format is invalid.
pub(super) fn function_of(tool: &Value) -> Result<Value, String> {
    if tool["name"].as_str().is_none_or(str::is_empty) {
        return Err("a custom tool has no name".into());
    }
    let mut description = tool["description"].as_str().unwrap_or_default().to_owned();
    if let Some((syntax, definition)) = grammar(&tool["format"])? {
        description +=
            &format!("\n\nThe text of {INPUT} follows this grammar ({syntax}):\n{definition}");
    }
    let text = json!({"type": "string", "description": "The complete input"});
    let parameters = json!({"type": "object", "properties": {INPUT: text}, "required": [INPUT]});
    Ok(json!({"name": tool["name"], "description": description, "parameters": parameters}))
}

/// Returns the syntax and the definition of the grammar of a custom tool, if it has one.
fn grammar(format: &Value) -> Result<Option<(&str, &str)>, String> {
    let kind = match format {
        Value::Null => return Ok(None),
        Value::Object(_) => &format["type"],
        other => return Err(format!("format must be an object, but is {other}")),
    };
    match kind.as_str() {
        Some("text") => return Ok(None),
        Some("grammar") => {}
        _ => return Err(format!("format: unknown type {kind}: use text or grammar")),
    }
    // Chat completions nest the grammar in an object; responses do not.
    let grammar = format.get("grammar").unwrap_or(format);
    let definition = grammar["definition"].as_str().filter(|text| !text.is_empty());
    let definition = definition.ok_or("format: a grammar needs the field definition")?;
    match &grammar["syntax"] {
        Value::Null => Ok(Some(("a", definition))),
        Value::String(syntax) if matches!(syntax.as_str(), "lark" | "regex") => {
            Ok(Some((syntax, definition)))
        }
        other => Err(format!("format: unknown syntax {other}: use lark or regex")),
    }
}

/// Rejects a `strict` that is not a boolean.
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
    /// Adds the name of the tool at an index.
    ///
    /// # Errors
    /// A custom tool and a function share the name, so a call would be ambiguous.
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

/// Returns the input of a call. If the model wrote other arguments, the input is their JSON text.
pub(super) fn input_of(arguments: &Map<String, Value>) -> String {
    match arguments.get(INPUT) {
        Some(Value::String(text)) => text.clone(),
        _ => Value::Object(arguments.clone()).to_string(),
    }
}

/// Returns the arguments of a call with this input.
pub(super) fn arguments_of(input: &str) -> Map<String, Value> {
    Map::from_iter([(INPUT.to_owned(), input.into())])
}

/// Returns the name of a custom tool of a chat, or `None` for other tools.
pub(crate) fn name_of(tool: &Tool) -> Option<&str> {
    tool.0["custom"]["name"].as_str().filter(|_| tool.0["type"] == "custom")
}

/// Converts the tools of a chat to functions. Tools that only OpenAI's service can run are left
/// out.
pub(super) fn as_functions(tools: Vec<Tool>) -> Result<Vec<Tool>, ApiError> {
    let (mut all, mut names) = (Vec::with_capacity(tools.len()), ToolNames::default());
    for (at, tool) in tools.into_iter().enumerate() {
        if let Some(kind) = ignored_kind(&tool) {
            record_ignored_field(format!("tools.{kind}"));
            continue;
        }
        let invalid = |text: String| ApiError::bad_request(format!("tools[{at}]: {text}"));
        let is_custom = tool.0["type"] == "custom";
        let function = match is_custom {
            true => {
                let function = function_of(&tool.0["custom"]).map_err(invalid)?;
                Tool(json!({"type": "function", "function": function}))
            }
            false => tool,
        };
        check_strict_type(&function.0["function"]["strict"]).map_err(invalid)?;
        names.add(at, function.name(), is_custom).map_err(invalid)?;
        all.push(function);
    }
    Ok(all)
}
