//! Custom tools: tools that take free text. The model is offered a function of one text for each.

use puna_api::native::Tool;
use serde_json::{Map, Value, json};

use crate::canonical::Failure;

/// The argument of such a function.
pub(super) const INPUT: &str = "input";

/// The function that stands for a custom tool with `name`, `description` and `format`. A grammar is a part of its description.
pub(super) fn function_of(tool: &Value) -> Value {
    let mut description = tool["description"].as_str().unwrap_or_default().to_owned();
    let format = &tool["format"];
    // In chats the grammar is an object of its own.
    let grammar = if format["grammar"].is_object() { &format["grammar"] } else { format };
    if let Some(definition) = grammar["definition"].as_str().filter(|_| format["type"] == "grammar") {
        let syntax = grammar["syntax"].as_str().unwrap_or("a");
        description += &format!("\n\nThe text of {INPUT} follows this grammar ({syntax}):\n{definition}");
    }
    let text = json!({"type": "string", "description": "The whole input, as it is"});
    let parameters = json!({"type": "object", "properties": {INPUT: text}, "required": [INPUT]});
    json!({"name": tool["name"], "description": description, "parameters": parameters})
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

/// A chat's tools as functions.
pub(super) fn as_functions(tools: Vec<Tool>) -> Result<Vec<Tool>, Failure> {
    let function = |(at, tool): (usize, Tool)| match tool.0["type"] == "custom" {
        false => Ok(tool),
        true if name_of(&tool).is_none_or(str::is_empty) => {
            Err(Failure::bad_request(format!("tools[{at}]: a custom tool has no name")))
        }
        true => Ok(Tool(json!({"type": "function", "function": function_of(&tool.0["custom"])}))),
    };
    tools.into_iter().enumerate().map(function).collect()
}
