//! Forced tool calls: builds a grammar that allows only calls of the requested tools.

mod argument_list;
mod schemas;

use puna_api::ollama::{Tool, ToolChoice};
use puna_prompt::{ArgumentsFormat, CallFormat, OutputParser, OutputPart, ValueKind};
use puna_sampler::{Constraint, JsonSchema, MAX_CONSTRAINT_BYTES, lark_json};
use serde_json::{Value, json};

use crate::canonical::{ApiError, GenerateTask, Input};

/// Tool of a forced call.
#[derive(Debug, Clone)]
pub(super) struct ForcedTool<'t> {
    tool: &'t Tool,
    /// Schema of the arguments, which is always an object.
    pub(super) schema: JsonSchema,
}

impl<'t> ForcedTool<'t> {
    /// Creates a forced tool with the schema of its parameters.
    ///
    /// # Errors
    /// The parameters are not the schema of an object, or `strict` is set and they use keywords
    /// that cannot be enforced.
    pub(super) fn new(tool: &'t Tool) -> Result<Self, ApiError> {
        let schema = parameters(tool).map_err(|e| unsupported_parameters(tool, &e))?;
        Ok(Self { tool, schema })
    }

    pub(super) fn name(&self) -> &'t str {
        self.tool.name()
    }
}

/// Builds the constraint of an answer that calls one of the tools, or several if `several` is set.
/// `tags` are the control tokens that a call may contain, with their texts.
pub(super) fn constraint(
    form: &CallFormat,
    tools: &[ForcedTool<'_>],
    several: bool,
    tags: &[(String, u32)],
) -> Result<Constraint, ApiError> {
    let mut lark =
        String::from(if several { "start: call (/[ \\n]+/? call)*\n" } else { "start: call\n" });
    let names: Vec<String> = (0..tools.len()).map(|i| format!("c{i}")).collect();
    lark += &format!("call: {}\n", names.join(" | "));
    for (i, tool) in tools.iter().enumerate() {
        let before = format!("{}{}", form.before, tool.name());
        match &form.arguments {
            ArgumentsFormat::Object { between, after } => {
                let arguments = lark_json(&tool.schema)
                    .map_err(|e| unsupported_parameters(tool.tool, &e.to_string()))?;
                let (before, after) = (literal(&(before + between), tags), literal(after, tags));
                lark += &format!("c{i}: {before} a{i} {after}\na{i}: {arguments}\n");
            }
            ArgumentsFormat::List(list_format) => {
                let schema =
                    tool.schema.enforceable().map_err(|e| unsupported_parameters(tool.tool, &e))?;
                let rules = argument_list::rules(&format!("a{i}"), i, list_format, schema, tags);
                lark += &format!("c{i}: {} a{i}\n", literal(&before, tags));
                lark += &rules.map_err(|e| unsupported_parameters(tool.tool, &e))?;
            }
        }
    }
    Ok(Constraint::Lark(lark))
}

/// Returns the schema of a call's arguments, always with the type `object`.
fn parameters(tool: &Tool) -> Result<JsonSchema, String> {
    let mut schema = match tool.0.pointer("/function/parameters") {
        None | Some(Value::Null | Value::Bool(true)) => json!({}),
        Some(Value::Object(map)) => Value::Object(map.clone()),
        Some(_) => return Err("they must be a JSON Schema of an object".into()),
    };
    // Check the size before the schema is processed.
    let bytes = schema.to_string().len();
    if bytes > MAX_CONSTRAINT_BYTES {
        return Err(format!("they have {bytes} bytes, at most {MAX_CONSTRAINT_BYTES} are allowed"));
    }
    let is_object = match &schema["type"] {
        Value::Null => true,
        Value::String(name) => name == "object",
        Value::Array(names) => names.iter().any(|name| name == "object"),
        _ => false,
    };
    if !is_object {
        return Err(format!("their type is {}, but must be object", schema["type"]));
    }
    // A schema with a reference has the type of its target, and may not allow a type of its own.
    if schema.get("$ref").is_none() {
        schema["type"] = json!("object");
    }
    let schema = JsonSchema::from(schema);
    if tool.0.pointer("/function/strict") == Some(&Value::Bool(true)) {
        schema.check_strict()?;
    }
    Ok(schema)
}

fn unsupported_parameters(tool: &Tool, reason: &str) -> ApiError {
    let reason = reason.strip_prefix("invalid JSON schema in format: ").unwrap_or(reason);
    let name = tool.name();
    ApiError::bad_request(format!(
        "tools: a call of {name:?} cannot be forced with these parameters: {reason}"
    ))
}

/// Returns an error that names the tool without a grammar: the first of `candidates` with rejected
/// parameters, alone or in the call format.
pub(super) fn rejected_tool_error(
    form: &CallFormat,
    candidates: &[ForcedTool<'_>],
    error: &str,
    refused: impl Fn(&Constraint) -> Option<String>,
) -> ApiError {
    for tool in candidates {
        let alone = std::slice::from_ref(tool);
        let alone = || constraint(form, alone, false, &[]).ok().and_then(|alone| refused(&alone));
        if let Some(reason) = refused(&Constraint::Schema(tool.schema.clone())).or_else(alone) {
            return unsupported_parameters(tool.tool, &reason);
        }
    }
    ApiError::bad_request(format!("tools: calls of these tools cannot be forced: {error}"))
}

/// Rejects tools without a name.
pub(super) fn check_tools_named(tools: &[Tool]) -> Result<(), ApiError> {
    match tools.iter().position(|tool| tool.name().is_empty()) {
        Some(i) => Err(ApiError::bad_request(format!("tools[{i}] has no name"))),
        None => Ok(()),
    }
}

/// Rejects names of tools and arguments that the parser does not read back from a call.
pub(super) fn check_names(
    form: &CallFormat,
    tools: &[ForcedTool<'_>],
    parser: impl Fn() -> Option<OutputParser>,
) -> Result<(), ApiError> {
    let is_plain =
        |name: &str| name.chars().all(|c| c.is_ascii_alphanumeric() || "_-.".contains(c));
    let reads = |tool: &str, rest: &str, argument: Option<&str>| {
        let Some(mut parser) = parser() else { return false };
        let mut parts = parser.push(&format!("{}{tool}{rest}", form.before));
        parts.extend(parser.finish());
        parts.iter().any(|part| match part {
            OutputPart::Call(call) => {
                call.name == tool && call.arguments.keys().map(String::as_str).eq(argument)
            }
            _ => false,
        })
    };
    let refused = |what: &str, name: &str| {
        ApiError::bad_request(format!(
            "tools: {what} {name:?} cannot be written in this model's call format: use letters, digits, _ and -"
        ))
    };
    for tool in tools {
        let none = match &form.arguments {
            ArgumentsFormat::Object { between, after } => format!("{between}{{}}{after}"),
            ArgumentsFormat::List(list_format) => list_format.empty.clone(),
        };
        if !is_plain(tool.name()) && !reads(tool.name(), &none, None) {
            return Err(refused("the name", tool.name()));
        }
        let (ArgumentsFormat::List(list_format), Ok(schema)) =
            (&form.arguments, tool.schema.enforceable())
        else {
            continue;
        };
        for name in argument_list::argument_names(schema)
            .iter()
            .filter(|name| !is_plain(name) || name.is_empty())
        {
            if !reads(tool.name(), &list_format.write(&[(name, ValueKind::Text, "x")]), Some(name))
            {
                return Err(refused("the argument name", name));
            }
        }
    }
    Ok(())
}

/// Returns the tools that a task forces the model to call.
///
/// # Errors
/// As [`ForcedTool::new`].
pub(super) fn forced_tools(task: &GenerateTask) -> Result<Vec<ForcedTool<'_>>, ApiError> {
    let Input::Chat { tools, .. } = &task.input else { return Ok(Vec::new()) };
    let is_forced = |tool: &&Tool| match &task.tool_choice {
        // A task with allowed tools contains only these tools.
        ToolChoice::Auto | ToolChoice::None | ToolChoice::Allowed { .. } => false,
        ToolChoice::Required => true,
        ToolChoice::Named(name) => tool.name() == name,
    };
    tools.iter().filter(is_forced).map(ForcedTool::new).collect()
}

/// Escapes a text for a regular expression in Lark.
fn regex(text: &str) -> String {
    text.chars().map(|c| format!("\\x{{{:x}}}", u32::from(c))).collect()
}

/// Writes a text in Lark: control tokens by number, the rest quoted.
fn literal(text: &str, tags: &[(String, u32)]) -> String {
    let mut parts = Vec::new();
    let mut rest = text;
    let quote = |text: &str| Value::String(text.to_owned()).to_string();
    while !rest.is_empty() {
        let found =
            tags.iter().filter_map(|(tag, id)| Some((rest.find(tag.as_str())?, tag, id))).min();
        let Some((at, tag, id)) = found else {
            parts.push(quote(rest));
            break;
        };
        if at > 0 {
            parts.push(quote(&rest[..at]));
        }
        parts.push(format!("<[{id}]>"));
        rest = &rest[at + tag.len()..];
    }
    parts.join(" ")
}

#[cfg(test)]
mod tests;
