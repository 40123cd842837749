//! Olmo 3: ChatML with tools in the system turn and Python calls. The reasoning models do not
//! support tools.

use serde_json::Value as Json;

use super::RenderInput;
use super::json::{COMPACT, SPACED, json};
use crate::PromptError;
use crate::message::{Message, ToolCall};

const SYSTEM: &str = "You are a helpful function-calling AI assistant. ";
const SYSTEM_31: &str = "You are Olmo, a helpful AI assistant built by Ai2. Your date cutoff is December 2024, and \
     your model weights are available at https://huggingface.co/allenai. ";
const NO_FUNCTIONS: &str = "You do not currently have access to any functions. ";
const FUNCTIONS: &str = "You are provided with function signatures within <functions></functions> XML tags. You may \
     call one or more functions to assist with the user query. Output any function calls within \
     <function_calls></function_calls> XML tags. Do not make assumptions about what values to plug into functions.";
const THINKING_SYSTEM_32B: &str = "You are a helpful AI assistant.";

pub(super) fn olmo3(input: &RenderInput<'_>, out: &mut String) -> Result<(), PromptError> {
    render(input, SYSTEM, out);
    Ok(())
}

pub(super) fn olmo31(input: &RenderInput<'_>, out: &mut String) -> Result<(), PromptError> {
    render(input, SYSTEM_31, out);
    Ok(())
}

/// The 7B model of Olmo 3 and the 32B model of Olmo 3.1.
pub(super) fn think(input: &RenderInput<'_>, out: &mut String) -> Result<(), PromptError> {
    render_thinking(input, SYSTEM_31.trim_end(), out);
    Ok(())
}

/// The 32B model of Olmo 3.
pub(super) fn think_32b(input: &RenderInput<'_>, out: &mut String) -> Result<(), PromptError> {
    render_thinking(input, THINKING_SYSTEM_32B, out);
    Ok(())
}

/// The first system message. Others are dropped.
fn system<'a>(input: &RenderInput<'a>) -> Option<&'a str> {
    input.messages.iter().find(|m| m.role == "system").map(|m| m.content.as_str())
}

fn render(input: &RenderInput<'_>, default: &str, out: &mut String) {
    let tools: Vec<Json> = input.tools.iter().map(|tool| tool.json().clone()).collect();
    let tools = if tools.is_empty() { String::new() } else { json(&tools.into(), SPACED) };
    out.push_str("<|im_start|>system\n");
    match system(input) {
        Some(text) if tools.is_empty() => out.push_str(text),
        Some(text) => out.extend([text, "<functions>", &tools, "</functions>"]),
        None => {
            let declared = if tools.is_empty() { NO_FUNCTIONS } else { FUNCTIONS };
            out.extend([default, declared, "<functions>", &tools, "</functions>"]);
        }
    }
    out.push_str("<|im_end|>\n");
    let messages: Vec<&&Message> = input.messages.iter().filter(|m| m.role != "system").collect();
    for (i, message) in messages.iter().enumerate() {
        match message.role.as_str() {
            "user" => out.extend(["<|im_start|>user\n", &message.content, "<|im_end|>\n"]),
            "tool" => out.extend(["<|im_start|>environment\n", &message.content, "<|im_end|>\n"]),
            "assistant" => {
                out.extend(["<|im_start|>assistant\n", &message.content]);
                calls(&message.tool_calls, out);
                let is_open = i + 1 == messages.len() && message.tool_calls.is_empty();
                out.push_str(if is_open { "" } else { "<|im_end|>\n" });
            }
            _ => {}
        }
    }
    let is_prefill =
        |m: &&&Message| m.role == "assistant" && m.tool_calls.is_empty() && !m.content.is_empty();
    if !messages.last().is_some_and(is_prefill) {
        out.push_str("<|im_start|>assistant\n");
    }
}

/// `f(a="x", n=2)`, with arguments sorted by name.
fn calls(calls: &[ToolCall], out: &mut String) {
    if calls.is_empty() {
        return;
    }
    out.push_str("<function_calls>");
    for (i, call) in calls.iter().enumerate() {
        let mut arguments: Vec<_> = call.function.arguments.iter().collect();
        arguments.sort_unstable_by_key(|(name, _)| *name);
        let arguments: Vec<String> = arguments
            .iter()
            .map(|(name, value)| format!("{name}={}", json(value, COMPACT)))
            .collect();
        out.push_str(if i > 0 { "\n" } else { "" });
        out.extend([&call.function.name, "(", &arguments.join(", "), ")"]);
    }
    out.push_str("</function_calls>");
}

fn render_thinking(input: &RenderInput<'_>, default: &str, out: &mut String) {
    out.push_str("<|im_start|>system\n");
    match system(input) {
        Some(text) => out.extend([text, " ", NO_FUNCTIONS, "<functions></functions>"]),
        None => out.push_str(default),
    }
    out.push_str("<|im_end|>\n");
    for message in input.messages.iter().filter(|m| m.role == "user" || m.role == "assistant") {
        out.extend(["<|im_start|>", &message.role, "\n", &message.content, "<|im_end|>\n"]);
    }
    out.push_str("<|im_start|>assistant\n<think>");
}
