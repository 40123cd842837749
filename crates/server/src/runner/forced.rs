//! A call that the request demands: the form of the answer is that of the call.

use puna_api::native::{Tool, ToolChoice};
use puna_prompt::{CallForm, OutputParser, Part};
use puna_sampler::{Constraint, lark_json};
use serde_json::{Value, json};

use crate::canonical::Failure;

/// The constraint of an answer that is a call of one of some tools, or of several. Arguments that the model writes in another
/// form than JSON are left to it. `tags` are control tokens that may stand in a call, with their texts.
pub(super) fn constraint(
    form: &CallForm,
    tools: &[&Tool],
    several: bool,
    tags: &[(String, u32)],
) -> Result<Constraint, Failure> {
    let mut lark = String::from(if several { "start: call (/[ \\n]+/? call)*\n" } else { "start: call\n" });
    let names: Vec<String> = (0..tools.len()).map(|i| format!("c{i}")).collect();
    lark += &format!("call: {}\n", names.join(" | "));
    for (i, tool) in tools.iter().enumerate() {
        let before = literal(&format!("{}{}{}", form.before, tool.name(), form.between), tags);
        let Some(after) = &form.after else {
            let others: String = tags.iter().map(|(_, id)| format!(" | <[{id}]>")).collect();
            lark += &format!("c{i}: {before} (/(?s:.)+/{others})*\n");
            continue;
        };
        let arguments = parameters(tool).map_err(|e| unfit(tool, &e))?;
        let arguments = lark_json(&arguments).map_err(|e| unfit(tool, &e.to_string()))?;
        let after = literal(after, tags);
        lark += &format!("c{i}: {before} a{i} {after}\na{i}: {arguments}\n");
    }
    Ok(Constraint::Lark(lark))
}

/// The schema of a call's arguments: those of a tool, and an object in any case.
fn parameters(tool: &Tool) -> Result<Value, String> {
    let mut schema = match tool.0.pointer("/function/parameters") {
        None | Some(Value::Null | Value::Bool(true)) => json!({}),
        Some(Value::Object(map)) => Value::Object(map.clone()),
        Some(_) => return Err("a JSON Schema of an object was expected".into()),
    };
    let is_object = match &schema["type"] {
        Value::Null => true,
        Value::String(name) => name == "object",
        Value::Array(names) => names.iter().any(|name| name == "object"),
        _ => false,
    };
    if !is_object {
        return Err(format!("their type is {}, but arguments are always an object", schema["type"]));
    }
    // A reference says it by itself, and may not allow it beside it.
    if schema.get("$ref").is_none() {
        schema["type"] = json!("object");
    }
    Ok(schema)
}

fn unfit(tool: &Tool, reason: &str) -> Failure {
    let reason = reason.strip_prefix("invalid JSON schema in format: ").unwrap_or(reason);
    let name = tool.name();
    Failure::bad_request(format!(
        "tools: a call of {name:?} cannot be demanded with these parameters: {reason}"
    ))
}

/// Names the tool for which there is no grammar: the first of `suspects` whose parameters alone are refused.
pub(super) fn blame(
    suspects: &[&Tool],
    error: &str,
    refused: impl Fn(&Constraint) -> Option<String>,
) -> Failure {
    for tool in suspects {
        if let Ok(schema) = parameters(tool)
            && let Some(reason) = refused(&Constraint::Schema(schema))
        {
            return unfit(tool, &reason);
        }
    }
    Failure::bad_request(format!("tools: calls of these tools cannot be demanded: {error}"))
}

/// Refuses tools that nobody could call.
pub(super) fn check_named(tools: &[Tool]) -> Result<(), Failure> {
    match tools.iter().position(|tool| tool.name().is_empty()) {
        Some(i) => Err(Failure::bad_request(format!("tools[{i}] has no name, by which it would be called"))),
        None => Ok(()),
    }
}

/// Refuses names that would not be read in a call as they are written.
pub(super) fn check_names(
    form: &CallForm,
    tools: &[&Tool],
    parser: impl Fn() -> Option<OutputParser>,
) -> Result<(), Failure> {
    let is_plain = |name: &str| name.chars().all(|c| c.is_ascii_alphanumeric() || "_-.".contains(c));
    for name in tools.iter().map(|tool| tool.name()).filter(|name| !is_plain(name)) {
        let call = format!("{}{name}{}{{}}", form.before, form.between);
        let parts = form.after.as_ref().zip(parser()).map(|(after, mut parser)| {
            let mut parts = parser.push(&(call + after));
            parts.extend(parser.finish());
            parts
        });
        let is_read = |part: &Part| matches!(part, Part::Call(call) if call.name == name);
        if !parts.is_some_and(|parts| parts.iter().any(is_read)) {
            return Err(Failure::bad_request(format!(
                "tools: calls of this model cannot carry the name {name:?}; use letters, digits, _ and -"
            )));
        }
    }
    Ok(())
}

/// The tools that a choice demands one of.
pub(super) fn demanded<'t>(choice: &ToolChoice, tools: &'t [Tool]) -> Vec<&'t Tool> {
    match choice {
        ToolChoice::Auto | ToolChoice::None => Vec::new(),
        ToolChoice::Required => tools.iter().collect(),
        ToolChoice::Named(name) => tools.iter().filter(|tool| tool.name() == name).collect(),
    }
}

/// A text as Lark has it: control tokens by number, the rest quoted.
fn literal(text: &str, tags: &[(String, u32)]) -> String {
    let mut parts = Vec::new();
    let mut rest = text;
    let quote = |text: &str| Value::String(text.to_owned()).to_string();
    while !rest.is_empty() {
        let found = tags.iter().filter_map(|(tag, id)| Some((rest.find(tag.as_str())?, tag, id))).min();
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
