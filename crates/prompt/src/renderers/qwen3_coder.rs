//! Qwen3-Coder: ChatML with tools and calls in tags, without reasoning.

use super::xml::{self, ValueSyntax};
use super::{RenderInput, is_first_result, is_last_result};
use crate::PromptError;
use crate::message::Message;

const SYSTEM: &str =
    "You are Qwen, a helpful AI assistant that can interact with a computer to solve tasks.";

pub(super) fn render(input: &RenderInput<'_>, out: &mut String) -> Result<(), PromptError> {
    // The first system message with text is used. Others are dropped.
    let (system, messages): (Vec<&Message>, Vec<&Message>) =
        input.messages.iter().partition(|m| m.role == "system");
    let system = system.iter().map(|m| m.content.as_str()).find(|text| !text.is_empty());
    if system.is_some() || !input.tools.is_empty() {
        out.extend(["<|im_start|>system\n", system.unwrap_or(SYSTEM)]);
        if !input.tools.is_empty() {
            out.push_str("\n\n");
            xml::declare(out, input.tools, ValueSyntax::Go);
        }
        out.push_str("<|im_end|>\n");
    }
    for (i, message) in messages.iter().enumerate() {
        match message.role.as_str() {
            "assistant" => {
                out.extend(["<|im_start|>assistant\n", &message.content]);
                if !message.tool_calls.is_empty() && !message.content.is_empty() {
                    out.push('\n');
                }
                for call in &message.tool_calls {
                    out.push('\n');
                    xml::call(out, call, ValueSyntax::Go);
                }
                let is_open = i + 1 == messages.len() && message.tool_calls.is_empty();
                out.push_str(if is_open { "" } else { "<|im_end|>\n" });
            }
            "tool" => {
                out.push_str(if is_first_result(&messages, i) { "<|im_start|>user" } else { "" });
                out.extend(["\n<tool_response>\n", &message.content, "\n</tool_response>"]);
                out.push_str(if is_last_result(&messages, i) { "<|im_end|>\n" } else { "" });
            }
            role => out.extend(["<|im_start|>", role, "\n", &message.content, "<|im_end|>\n"]),
        }
    }
    if messages.last().is_some_and(|last| last.role != "assistant") {
        out.push_str("<|im_start|>assistant\n");
    }
    Ok(())
}
