//! Cohere's Command A of 2026: a list of tools in the system turn, even if it is empty; calls and
//! results as JSON.
//!
//! The blanks equal the published template's. The tokenizer adds the beginning-of-sequence token.

use std::collections::HashMap;

use serde_json::{Value as Json, json};

use super::RenderInput;
use super::json::{COMPACT, SPACED, json as json_text, object, string};
use super::tools::Tool;
use crate::PromptError;
use crate::message::{Message, ToolCall};

const SYSTEM: &str = "<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>";
const CHATBOT: &str = "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>";
const TEXT_END: &str = "<|END_TEXT|><|END_OF_TURN_TOKEN|>";

pub(super) fn render(input: &RenderInput<'_>, out: &mut String) -> Result<(), PromptError> {
    let (system, messages) = input.split_system();
    out.extend([SYSTEM, "<|START_TEXT|>"]);
    if let Some(system) = system.filter(|text| !text.is_empty()) {
        out.extend([system, "\n\n\n\n"]);
    }
    tools(input.tools, out);
    out.push_str(TEXT_END);
    let mut numbers = CallNumbers::default();
    let mut results = Vec::new();
    let mut is_open = false;
    for (i, message) in messages.iter().enumerate() {
        let content = &message.content;
        match message.role.as_str() {
            "system" => out.extend([SYSTEM, "<|START_TEXT|>", content, TEXT_END]),
            "user" => {
                out.extend([
                    "<|START_OF_TURN_TOKEN|><|USER_TOKEN|><|START_TEXT|>",
                    content,
                    TEXT_END,
                ]);
            }
            "assistant" | "chatbot" if !message.tool_calls.is_empty() => {
                out.extend([CHATBOT, "\n            \n                "]);
                reasoning(message, out);
                calls(&message.tool_calls, &mut numbers, out);
            }
            "assistant" | "chatbot" => {
                is_open = i + 1 == messages.len();
                out.push_str(CHATBOT);
                reasoning(message, out);
                out.extend(["<|START_TEXT|>", content, if is_open { "" } else { TEXT_END }]);
            }
            "tool" => {
                results.push(result(message, &numbers));
                if super::is_last_result(messages, i) {
                    out.extend([SYSTEM, "<|START_TOOL_RESULT|>[", &results.join(",")]);
                    out.push_str("\n\n]<|END_TOOL_RESULT|><|END_OF_TURN_TOKEN|>");
                    results.clear();
                }
            }
            _ => {}
        }
    }
    if !is_open {
        out.extend([CHATBOT, "<|START_THINKING|>"]);
        out.push_str(if input.thinks(true) { "" } else { "<|END_THINKING|>" });
    }
    Ok(())
}

fn tools(tools: &[Tool], out: &mut String) {
    let one = |tool: &Tool| {
        let (name, description) =
            (string(tool.name(), COMPACT), string(tool.description(), COMPACT));
        let parameters = json_text(tool.parameters(), SPACED);
        format!(
            "\n    {{\"name\": {name}, \"description\": {description}, \"parameters\": {parameters}, \
             \"responses\": null}}"
        )
    };
    let all: Vec<String> = tools.iter().map(one).collect();
    out.extend(["# Available Tools\n```json\n[\n", &all.join(",\n\n"), "\n\n\n]\n```"]);
}

fn reasoning(message: &Message, out: &mut String) {
    if let Some(thought) = message.thinking.as_deref().filter(|text| !text.is_empty()) {
        out.extend(["<|START_THINKING|>", thought, "<|END_THINKING|>"]);
    }
}

/// Sequential numbers of the calls in the prompt, by their ids.
#[derive(Default)]
struct CallNumbers<'m> {
    given: usize,
    by_id: HashMap<&'m str, usize>,
}

fn calls<'m>(calls: &'m [ToolCall], numbers: &mut CallNumbers<'m>, out: &mut String) {
    out.push_str("<|START_ACTION|>[");
    for (i, call) in calls.iter().enumerate() {
        if !call.id.is_empty() {
            numbers.by_id.entry(&call.id).or_insert(numbers.given);
        }
        let number = numbers.given.to_string();
        numbers.given += 1;
        let arguments = object(&call.function.arguments, SPACED);
        out.push_str(if i > 0 { "," } else { "" });
        out.extend([
            "\n\n    {\"tool_call_id\": \"",
            &number,
            "\", \"tool_name\": \"",
            &call.function.name,
        ]);
        out.extend(["\", \"parameters\": ", &arguments, "}"]);
    }
    out.push_str("\n\n]<|END_ACTION|><|END_OF_TURN_TOKEN|>");
}

/// Writes a result with the number of its call, or with its own id if the call is unknown.
fn result(message: &Message, numbers: &CallNumbers<'_>) -> String {
    let id = message.tool_call_id.as_deref().unwrap_or_default();
    let number = numbers.by_id.get(id).map_or_else(|| id.to_owned(), usize::to_string);
    let content: Json = json!({"content": message.content});
    let content = json_text(&content, SPACED);
    format!(
        "\n    {{\n        \"tool_call_id\": \"{number}\",\n        \"results\": {{\n\n            \n            \
         \"0\": {content}\n\n        }},\n        \"is_error\": null\n    }}"
    )
}
