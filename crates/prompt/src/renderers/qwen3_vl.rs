//! Qwen3-VL, instruct and thinking variants: ChatML, tools and calls as JSON in tags.

use super::json::{SPACED, json, object};
use super::{RenderInput, is_first_result, is_last_result};
use crate::PromptError;
use crate::message::{Message, ToolCall};

pub(super) fn instruct(input: &RenderInput<'_>, out: &mut String) -> Result<(), PromptError> {
    render(input, input.thinks(false), out)
}

pub(super) fn thinking(input: &RenderInput<'_>, out: &mut String) -> Result<(), PromptError> {
    render(input, input.thinks(true), out)
}

fn render(input: &RenderInput<'_>, thinks: bool, out: &mut String) -> Result<(), PromptError> {
    let messages = input.messages;
    let (system, _) = input.split_system();
    if !input.tools.is_empty() {
        tools(input, system, out);
    } else if let Some(system) = system {
        out.extend(["<|im_start|>system\n", system, "<|im_end|>\n"]);
    }
    // User messages that contain a tool result are not questions.
    let is_question = |m: &&Message| {
        let is_result =
            m.content.starts_with("<tool_response>") && m.content.ends_with("</tool_response>");
        m.role == "user" && !is_result
    };
    let question =
        messages.iter().rposition(is_question).unwrap_or(messages.len().saturating_sub(1));
    for (i, message) in messages.iter().enumerate() {
        let is_last = i + 1 == messages.len();
        match message.role.as_str() {
            "system" if i == 0 => {}
            "user" | "system" => {
                out.extend(["<|im_start|>", &message.role, "\n", &message.content, "<|im_end|>\n"]);
            }
            "assistant" => {
                out.push_str("<|im_start|>assistant\n");
                let thought = message.thinking.as_deref().unwrap_or_default();
                if thinks && i > question && (is_last || !thought.is_empty()) {
                    out.extend(["<think>\n", thought.trim_matches('\n')]);
                    if !message.content.is_empty() {
                        out.extend(["\n</think>\n\n", message.content.trim_start_matches('\n')]);
                    }
                } else {
                    out.push_str(&message.content);
                }
                calls(&message.tool_calls, !message.content.is_empty(), out);
                out.push_str(if is_last { "" } else { "<|im_end|>\n" });
            }
            "tool" => {
                out.push_str(if is_first_result(messages, i) { "<|im_start|>user" } else { "" });
                out.extend(["\n<tool_response>\n", &message.content, "\n</tool_response>"]);
                out.push_str(if is_last_result(messages, i) { "<|im_end|>\n" } else { "" });
            }
            _ => {}
        }
    }
    if messages.last().is_some_and(|last| last.role != "assistant") {
        out.push_str("<|im_start|>assistant\n");
        out.push_str(if thinks { "<think>\n" } else { "" });
    }
    Ok(())
}

fn tools(input: &RenderInput<'_>, system: Option<&str>, out: &mut String) {
    out.push_str("<|im_start|>system\n");
    if let Some(system) = system {
        out.extend([system, "\n\n"]);
    }
    out.push_str(
        "# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided with \
         function signatures within <tools></tools> XML tags:\n<tools>",
    );
    for tool in input.tools {
        out.extend(["\n", &json(tool.json(), SPACED)]);
    }
    out.push_str(
        "\n</tools>\n\nFor each function call, return a json object with function name and arguments within \
         <tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": <function-name>, \"arguments\": \
         <args-json-object>}\n</tool_call><|im_end|>\n",
    );
}

fn calls(calls: &[ToolCall], has_content: bool, out: &mut String) {
    for (i, call) in calls.iter().enumerate() {
        out.push_str(if i > 0 || has_content { "\n" } else { "" });
        let arguments = object(&call.function.arguments, SPACED);
        let name = &call.function.name;
        out.extend([
            "<tool_call>\n{\"name\": \"",
            name,
            "\", \"arguments\": ",
            &arguments,
            "}\n</tool_call>",
        ]);
    }
}
