//! Qwen3.5, Ornith and Qwen3.8: ChatML, tools before the system text, calls in tags. All contents
//! are trimmed.

use std::borrow::Cow;

use super::json::{SPACED, json};
use super::xml::{self, TOOL_INSTRUCTIONS, ValueSyntax};
use super::{RenderInput, is_first_result, is_last_result};
use crate::PromptError;
use crate::message::{Message, Think};

/// Differences between the three formats.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Qwen35Variant {
    /// Reasoning since the last question is written.
    Qwen35,
    /// Every answer has a think block, which may be empty.
    Ornith,
    /// Like Ornith. The only system turn comes first and also states the reasoning effort.
    /// Reasoning is only taken from [`Message::thinking`], not from the content.
    Qwen38,
}

const HIGH_EFFORT_TEXT: &str = "Reasoning effort is set to xhigh. Please think carefully through the task, validate key \
     assumptions, consider plausible alternatives, and prioritize correctness, consistency, and clarity in the final \
     answer.";
const LOW_EFFORT_TEXT: &str = "Reasoning effort is set to low. Keep your thinking brief and focused, moving directly to \
     the conclusion without unnecessary elaboration.";

pub(super) fn qwen35(input: &RenderInput<'_>, out: &mut String) -> Result<(), PromptError> {
    render(input, Qwen35Variant::Qwen35, "", out);
    Ok(())
}

pub(super) fn ornith(input: &RenderInput<'_>, out: &mut String) -> Result<(), PromptError> {
    render(input, Qwen35Variant::Ornith, "", out);
    Ok(())
}

pub(super) fn qwen38(input: &RenderInput<'_>, out: &mut String) -> Result<(), PromptError> {
    let refused = |text: &str| Err(PromptError::Refused(text.to_owned()));
    if input.messages.is_empty() {
        return refused("no messages provided");
    }
    if let Some(message) = input.messages.iter().find(|m| is_instruction(m) && !m.images.is_empty())
    {
        return refused(&format!("{} message cannot contain images", message.role));
    }
    if !input.messages.iter().any(|m| is_question(m)) {
        return refused("no user query found in messages");
    }
    let effort = match input.think {
        None => HIGH_EFFORT_TEXT,
        Some(Think::Switch(_)) => "",
        Some(Think::Level(level)) => match level.as_str() {
            "low" => LOW_EFFORT_TEXT,
            "medium" => "",
            "high" | "max" => HIGH_EFFORT_TEXT,
            other => return refused(&format!("unsupported Qwen3.8 reasoning effort {other:?}")),
        },
    };
    let instructions = instructions(input.messages);
    let mut messages: Vec<&Message> = Vec::with_capacity(input.messages.len() + 1);
    messages.extend(&instructions);
    messages.extend(input.messages.iter().filter(|m| !is_instruction(m)));
    render(&RenderInput { messages: &messages, ..*input }, Qwen35Variant::Qwen38, effort, out);
    Ok(())
}

fn is_instruction(message: &Message) -> bool {
    message.role == "system" || message.role == "developer"
}

/// Returns true for user messages, except those that contain a tool result.
fn is_question(message: &Message) -> bool {
    let text = message.content.trim();
    message.role == "user"
        && !(text.starts_with("<tool_response>") && text.ends_with("</tool_response>"))
}

/// Joins all system and developer messages.
fn instructions(messages: &[&Message]) -> Option<Message> {
    let all: Vec<&Message> = messages.iter().copied().filter(|m| is_instruction(m)).collect();
    let texts: Vec<&str> =
        all.iter().map(|m| m.content.trim()).filter(|text| !text.is_empty()).collect();
    (!all.is_empty()).then(|| Message::new("system", texts.join("\n\n")))
}

fn render(input: &RenderInput<'_>, variant: Qwen35Variant, effort: &str, out: &mut String) {
    let messages = input.messages;
    let thinks = input.thinks(true);
    head(input, variant, effort, out);
    let question =
        messages.iter().rposition(|m| is_question(m)).unwrap_or(messages.len().saturating_sub(1));
    for (i, message) in messages.iter().enumerate() {
        let content = message.content.trim();
        match message.role.as_str() {
            "system" if i == 0 => {}
            "user" | "system" => {
                out.extend(["<|im_start|>", &message.role, "\n", content, "<|im_end|>\n"]);
            }
            "assistant" => {
                let shows_reasoning = variant != Qwen35Variant::Qwen35 || (thinks && i > question);
                answer(message, variant, shows_reasoning, out);
                out.push_str(if i + 1 == messages.len() { "" } else { "<|im_end|>\n" });
            }
            "tool" => {
                out.push_str(if is_first_result(messages, i) { "<|im_start|>user" } else { "" });
                out.extend(["\n<tool_response>\n", content, "\n</tool_response>"]);
                out.push_str(if is_last_result(messages, i) { "<|im_end|>\n" } else { "" });
            }
            role if variant == Qwen35Variant::Qwen38 => {
                out.extend(["<|im_start|>", role, "\n", content, "<|im_end|>\n"]);
            }
            _ => {}
        }
    }
    if messages.last().is_some_and(|last| last.role != "assistant") {
        out.push_str("<|im_start|>assistant\n");
        out.push_str(if thinks { "<think>\n" } else { "<think>\n\n</think>\n\n" });
    }
}

/// Writes the system turn: reasoning effort, tools, system text.
fn head(input: &RenderInput<'_>, variant: Qwen35Variant, effort: &str, out: &mut String) {
    let (system, _) = input.split_system();
    let text = system.unwrap_or_default().trim();
    let mut parts: Vec<Cow<'_, str>> = Vec::new();
    if !effort.is_empty() {
        parts.push(effort.into());
    }
    if !input.tools.is_empty() {
        let mut list =
            String::from("# Tools\n\nYou have access to the following functions:\n\n<tools>");
        for tool in input.tools {
            list.extend(["\n", &json(tool.json(), SPACED)]);
        }
        list.extend(["\n</tools>\n\n", TOOL_INSTRUCTIONS]);
        parts.push(list.into());
    }
    if !text.is_empty() {
        parts.push(text.into());
    }
    if !parts.is_empty() || (system.is_some() && variant != Qwen35Variant::Qwen38) {
        out.extend(["<|im_start|>system\n", &parts.join("\n\n"), "<|im_end|>\n"]);
    }
}

fn answer(message: &Message, variant: Qwen35Variant, shows_reasoning: bool, out: &mut String) {
    let content = message.content.trim();
    let own = message.thinking.as_deref().filter(|text| shows_reasoning && !text.is_empty());
    let (thought, content) = match own {
        Some(thought) => (thought.trim(), content),
        None if variant == Qwen35Variant::Qwen38 => ("", content),
        None => split_reasoning(content),
    };
    out.push_str("<|im_start|>assistant\n");
    if shows_reasoning {
        out.extend(["<think>\n", thought, "\n</think>\n\n"]);
    }
    out.push_str(content);
    for (i, call) in message.tool_calls.iter().enumerate() {
        out.push_str(match (i, content.trim()) {
            (0, "") => "",
            (0, _) => "\n\n",
            _ => "\n",
        });
        xml::call(out, call, ValueSyntax::Go);
    }
}

/// Splits a content into reasoning and the text behind it.
fn split_reasoning(content: &str) -> (&str, &str) {
    match content.split_once("</think>") {
        None => ("", content),
        Some((before, after)) => {
            let thought = before.rsplit_once("<think>").map_or(before, |(_, thought)| thought);
            (thought.trim(), after.trim_start_matches('\n'))
        }
    }
}
