//! FunctionGemma: Gemma's turns, tool declarations in a developer turn, strings between `<escape>`
//! marks.

use serde_json::Value as Json;

use super::json::{number, text};
use super::tools::{Tool, text as text_of, texts, types};
use super::{RenderInput, json};
use crate::PromptError;
use crate::message::{Message, ToolCall};

const TOOLS_INTRO: &str = "You can do function calling with the following functions:";

pub(super) fn render(input: &RenderInput<'_>, out: &mut String) -> Result<(), PromptError> {
    out.push_str("<bos>");
    let (system, messages) = match input.messages.split_first() {
        Some((first, rest)) if first.role == "system" || first.role == "developer" => {
            (first.content.as_str(), rest)
        }
        _ => ("", input.messages),
    };
    head(system, input.tools, out);
    // Calls that still lack results, and the number of results written.
    let (mut calls, mut shown): (&[ToolCall], usize) = (&[], 0);
    let mut after_result = false;
    for (i, message) in messages.iter().enumerate() {
        let content = message.content.trim();
        match message.role.as_str() {
            "tool" => {
                let after_calls = i > 0 && is_call(messages[i - 1]);
                out.push_str(if after_calls { "" } else { "<start_function_response>" });
                let name = calls.get(shown).map_or("", |call| call.function.name.as_str());
                shown += 1;
                out.extend(["response:", name, "{<escape>", &message.content]);
                out.push_str("<escape>}<end_function_response>");
            }
            role => {
                // A user or assistant message behind a result continues its turn.
                if !after_result || !matches!(role, "assistant" | "user") {
                    let role = if role == "assistant" { "model" } else { role };
                    out.extend(["<start_of_turn>", role, "\n"]);
                }
                out.push_str(content);
                let mut end = "<end_of_turn>\n";
                if is_call(message) {
                    (calls, shown) = (&message.tool_calls, 0);
                    calls.iter().for_each(|made| call(made, out));
                    let has_results = messages.get(i + 1).is_some_and(|next| next.role == "tool");
                    end = if has_results { "<start_function_response>" } else { end };
                }
                out.push_str(end);
            }
        }
        after_result = message.role == "tool";
    }
    out.push_str(if after_result { "" } else { "<start_of_turn>model\n" });
    Ok(())
}

fn is_call(message: &Message) -> bool {
    message.role == "assistant" && !message.tool_calls.is_empty()
}

fn head(system: &str, tools: &[Tool], out: &mut String) {
    if system.is_empty() && tools.is_empty() {
        return;
    }
    out.extend(["<start_of_turn>developer\n", system.trim()]);
    if !tools.is_empty() {
        out.push_str(if system.is_empty() { "" } else { "\n" });
        out.push_str(if system.trim() == TOOLS_INTRO { "" } else { TOOLS_INTRO });
    }
    tools.iter().for_each(|tool| declare(tool, out));
    out.push_str("<end_of_turn>\n");
}

fn declare(tool: &Tool, out: &mut String) {
    out.extend(["<start_function_declaration>declaration:", tool.name(), "{description:<escape>"]);
    out.extend([tool.description(), "<escape>"]);
    let parameters = tool.parameters();
    let kind = text_of(parameters, "type");
    if tool.properties().is_some() || !kind.is_empty() {
        let mut parts = Vec::new();
        if let Some(properties) = tool.properties().filter(|p| !p.is_empty()) {
            let mut properties: Vec<_> = properties.iter().collect();
            properties.sort_unstable_by_key(|(name, _)| *name);
            let all: Vec<String> =
                properties.iter().map(|(name, schema)| property(name, schema)).collect();
            parts.push(format!("properties:{{{}}}", all.join(",")));
        }
        let required: Vec<String> = texts(parameters, "required").map(escaped).collect();
        if !required.is_empty() {
            parts.push(format!("required:[{}]", required.join(",")));
        }
        if !kind.is_empty() {
            parts.push(format!("type:{}", escaped(&kind.to_uppercase())));
        }
        out.extend([",parameters:{", &parts.join(","), "}"]);
    }
    out.push_str("}<end_function_declaration>");
}

fn property(name: &str, schema: &Json) -> String {
    let description = escaped(text_of(schema, "description"));
    let kind = types(schema).first().map(|kind| format!(",type:{}", escaped(&kind.to_uppercase())));
    format!("{name}:{{description:{description}{}}}", kind.unwrap_or_default())
}

fn call(call: &ToolCall, out: &mut String) {
    let mut arguments: Vec<_> = call.function.arguments.iter().collect();
    arguments.sort_unstable_by_key(|(name, _)| *name);
    let arguments: Vec<String> =
        arguments.iter().map(|(name, value)| format!("{name}:{}", literal(value))).collect();
    out.extend(["<start_function_call>call:", &call.function.name, "{", &arguments.join(",")]);
    out.push_str("}<end_function_call>");
}

fn escaped(text: &str) -> String {
    format!("<escape>{text}<escape>")
}

/// Writes a value with bare keys and with marks around strings.
fn literal(value: &Json) -> String {
    match value {
        Json::Null => "<nil>".into(),
        Json::String(text) => escaped(text),
        Json::Number(n) => number(n),
        Json::Array(items) => {
            format!("[{}]", items.iter().map(literal).collect::<Vec<_>>().join(","))
        }
        Json::Object(map) => {
            let all: Vec<String> =
                map.iter().map(|(key, value)| format!("{key}:{}", literal(value))).collect();
            format!("{{{}}}", all.join(","))
        }
        Json::Bool(_) => text(value, json::COMPACT).into_owned(),
    }
}
