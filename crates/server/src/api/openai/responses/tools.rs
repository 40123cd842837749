//! Tools of the Responses API, including types other than functions. The model is offered a
//! function for each tool that the client runs. The answer sends a call in the format of the
//! original tool.

use std::collections::{HashMap, HashSet};

use puna_api::ollama::{Tool, ToolCall, ToolChoice};
use puna_api::responses::ResponsesRequest;
use serde_json::{Map, Value, json as value};

use crate::api::openai::custom::{
    INPUT, ToolNames, arguments_of, check_strict_type, function_of, input_of,
};
use crate::api::openai::hosted::is_ignored;
use crate::api::read_arguments;
use crate::canonical::ApiError;

/// Name of the function for the client's shell.
const SHELL: &str = "local_shell";

/// Name of a tool. Agents group tools in namespaces.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ToolName {
    /// Namespace of the tool, if any.
    pub(super) namespace: Option<String>,
    /// Name within the namespace.
    pub(super) name: String,
}

impl ToolName {
    /// Returns the tool name for the function name of a call.
    pub(super) fn of(tools: &[Value], name: &str) -> Self {
        let member = members(tools).find(|(namespace, tool)| full_name(namespace, tool) == name);
        match member.and_then(|(namespace, tool)| Some((namespace, tool["name"].as_str()?))) {
            Some((namespace, own)) => {
                Self { namespace: Some(namespace.to_owned()), name: own.to_owned() }
            }
            None => Self { namespace: None, name: name.to_owned() },
        }
    }

    /// Returns the tool name of a call item of the conversation.
    fn of_item(item: &Value) -> Self {
        let text =
            |field: &str| item[field].as_str().filter(|text| !text.is_empty()).map(str::to_owned);
        Self { namespace: text("namespace"), name: text("name").unwrap_or_default() }
    }

    /// Returns the function name, which the model uses.
    fn full(&self) -> String {
        match &self.namespace {
            Some(namespace) => format!("{namespace}.{}", self.name),
            None => self.name.clone(),
        }
    }

    /// Adds the namespace to an item, if there is one.
    pub(super) fn add_namespace(&self, item: &mut Value) {
        if let Some(namespace) = &self.namespace {
            item["namespace"] = namespace.as_str().into();
        }
    }
}

/// Moves the tools of `additional_tools` items from the conversation to the tools of the request.
pub(crate) fn take_additional_tools(request: &mut ResponsesRequest) {
    let Some(items) = request.input.as_array_mut() else { return };
    items.retain_mut(|item| {
        if item["type"] != "additional_tools" {
            return true;
        }
        let tools = item["tools"].as_array_mut().map(std::mem::take).unwrap_or_default();
        request.tools.extend(tools);
        false
    });
}

/// Replaces a name in a tool choice by the full name with its namespace, if exactly one tool has
/// this name.
pub(super) fn resolve_choice(choice: ToolChoice, tools: &[Value]) -> ToolChoice {
    let plain: HashSet<&str> = tools.iter().filter_map(|tool| tool["name"].as_str()).collect();
    // The value is `None` for a name in several namespaces.
    let mut full_names: HashMap<&str, Option<String>> = HashMap::new();
    for (namespace, tool) in members(tools) {
        let full = full_names.entry(tool["name"].as_str().unwrap_or_default());
        full.and_modify(|full| *full = None).or_insert_with(|| Some(full_name(namespace, tool)));
    }
    let full = |name: String| match full_names.get(&*name) {
        Some(Some(full)) if !plain.contains(&*name) => full.clone(),
        _ => name,
    };
    match choice {
        ToolChoice::Named(name) => ToolChoice::Named(full(name)),
        ToolChoice::Allowed { required, names, hosted } => {
            let names = names.into_iter().map(full).collect();
            ToolChoice::Allowed { required, names, hosted }
        }
        other => other,
    }
}

/// Returns the tools in namespaces, each with its namespace.
fn members(tools: &[Value]) -> impl Iterator<Item = (&str, &Value)> {
    tools.iter().filter(|tool| tool["type"] == "namespace").flat_map(|group| {
        let namespace = group["name"].as_str().unwrap_or_default();
        group["tools"].as_array().into_iter().flatten().map(move |tool| (namespace, tool))
    })
}

/// Returns the function name of a tool in a namespace.
fn full_name(namespace: &str, tool: &Value) -> String {
    format!("{namespace}.{}", tool["name"].as_str().unwrap_or_default())
}

/// Format of a tool's calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CallFormat {
    /// JSON arguments.
    Function,
    /// Free text.
    Custom,
    /// A command for the client's shell.
    Shell,
}

impl CallFormat {
    /// Returns the call format of the tool with a function name.
    pub(super) fn of(tools: &[Value], name: &str) -> Self {
        let is_custom = tools.iter().any(|tool| tool["type"] == "custom" && tool["name"] == name)
            || members(tools)
                .any(|(group, tool)| tool["type"] == "custom" && full_name(group, tool) == name);
        match is_custom {
            true => Self::Custom,
            false if name == SHELL && tools.iter().any(|tool| tool["type"] == SHELL) => Self::Shell,
            false => Self::Function,
        }
    }

    /// Returns the call format for the item type of a call or of its result.
    pub(super) fn of_item(kind: &str) -> Option<Self> {
        match kind.strip_suffix("_output").unwrap_or(kind) {
            "function_call" => Some(Self::Function),
            "custom_tool_call" => Some(Self::Custom),
            "local_shell_call" => Some(Self::Shell),
            _ => None,
        }
    }

    /// Returns the prefix of item ids.
    pub(super) fn prefix(self) -> &'static str {
        match self {
            Self::Function => "fc_",
            Self::Custom => "ctc_",
            Self::Shell => "lsh_",
        }
    }

    /// Returns the item of a shell call or of a custom tool call.
    pub(super) fn call_item(self, id: &str, call: &ToolCall, tool: &ToolName) -> Value {
        let ToolCall { id: call_id, function } = call;
        let mut item = match self {
            Self::Shell => value!({
                "id": id, "type": "local_shell_call", "status": "completed", "call_id": call_id,
                "action": shell_action(&function.arguments),
            }),
            Self::Function | Self::Custom => value!({
                "id": id, "type": "custom_tool_call", "status": "completed", "call_id": call_id,
                "name": tool.name, INPUT: input_of(&function.arguments),
            }),
        };
        tool.add_namespace(&mut item);
        item
    }

    /// Returns the function name and the arguments of a call item.
    ///
    /// # Errors
    /// The call lacks its name or its shell command.
    pub(super) fn parse_call(self, item: &Value) -> Result<(String, Map<String, Value>), String> {
        let text = |field: &str| item[field].as_str().unwrap_or_default().to_owned();
        let name = ToolName::of_item(item);
        match self {
            Self::Function | Self::Custom if name.name.is_empty() => {
                Err("a function call needs the field name".into())
            }
            Self::Function => {
                let arguments = match &item["arguments"] {
                    Value::Object(arguments) => arguments.clone(),
                    _ => read_arguments(&text("arguments")),
                };
                Ok((name.full(), arguments))
            }
            Self::Custom => Ok((name.full(), arguments_of(&text(INPUT)))),
            Self::Shell => {
                let action = item["action"].as_object().cloned();
                let mut arguments = action.ok_or("a shell call needs the object action")?;
                arguments.retain(|field, value| field != "type" && !value.is_null());
                Ok((SHELL.to_owned(), arguments))
            }
        }
    }
}

/// Returns the action of a `local_shell_call` item for the arguments that the model wrote.
fn shell_action(arguments: &Map<String, Value>) -> Value {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let command = match arguments.get("command") {
        Some(Value::Array(words)) => words.iter().map(text).collect(),
        // The model wrote a command line although the schema requires a list.
        Some(line) => vec!["sh".to_owned(), "-c".to_owned(), text(line)],
        None => Vec::new(),
    };
    value!({
        "type": "exec", "command": command, "env": {},
        "working_directory": arguments.get("working_directory").filter(|folder| folder.is_string()),
        "timeout_ms": arguments.get("timeout_ms").filter(|time| time.is_u64()),
    })
}

/// Returns the functions for a request's tools.
///
/// # Errors
/// A tool is malformed, not supported, or shares its name with a tool of another type.
pub(super) fn to_functions(tools: &[Value]) -> Result<Vec<Tool>, ApiError> {
    let (mut all, mut names) = (Vec::new(), ToolNames::default());
    for (i, tool) in tools.iter().enumerate() {
        let invalid = |text: String| ApiError::bad_request(format!("tools[{i}]: {text}"));
        let mut add_tool = |tool: &Value, namespace: &str| {
            let is_custom = tool["type"] == "custom";
            let plain_tool = if is_custom { function_of(tool)? } else { tool.clone() };
            let function = function_tool(&plain_tool, namespace)?;
            names.add(i, function.name(), is_custom)?;
            all.push(function);
            Ok(())
        };
        match tool["type"].as_str().unwrap_or_default() {
            "function" | "custom" => add_tool(tool, "").map_err(invalid)?,
            "namespace" => {
                let prefix = tool["name"].as_str().unwrap_or_default();
                let mut members = tool["tools"].as_array().into_iter().flatten();
                members.try_for_each(|member| add_tool(member, prefix)).map_err(invalid)?;
            }
            SHELL => add_tool(&shell_tool(), "").map_err(invalid)?,
            kind if is_ignored(kind) => {}
            kind => return Err(invalid(format!("tools of type {kind:?} are not supported"))),
        }
    }
    Ok(all)
}

/// Returns the field names of the ignored tools of a request.
pub(crate) fn left_out(tools: &[Value]) -> Vec<String> {
    let kinds = tools.iter().filter_map(|tool| tool["type"].as_str());
    kinds.filter(|kind| is_ignored(kind)).map(|kind| format!("tools.{kind}")).collect()
}

/// Converts a function, with its namespace as a prefix of the name.
fn function_tool(tool: &Value, namespace: &str) -> Result<Tool, String> {
    let name =
        tool["name"].as_str().filter(|name| !name.is_empty()).ok_or("a function has no name")?;
    let name = if namespace.is_empty() { name.to_owned() } else { format!("{namespace}.{name}") };
    check_strict_type(&tool["strict"])?;
    let mut function = Map::from_iter([("name".to_owned(), value!(name))]);
    for field in ["description", "parameters", "strict"] {
        if !tool[field].is_null() {
            function.insert(field.into(), tool[field].clone());
        }
    }
    serde_json::from_value(value!({"type": "function", "function": function}))
        .map_err(|e| e.to_string())
}

/// Returns the function for the client's shell.
fn shell_tool() -> Value {
    let properties = value!({
        "command": {"type": "array", "items": {"type": "string"}, "description": "The program and its arguments"},
        "working_directory": {"type": "string", "description": "Where to run it"},
        "timeout_ms": {"type": "integer", "description": "How long it may take"},
    });
    let parameters = value!({"type": "object", "properties": properties, "required": ["command"]});
    value!({"name": SHELL, "description": "Runs a command in the user's shell and returns its output", "parameters": parameters})
}
