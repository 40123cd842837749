//! Nemotron 3 Nano and 3.5 Nano: ChatML, tools and calls in tags, values as Python prints them.
//!
//! Every answer has a think block, an empty one before the last question. In version 3 `/think` and `/no_think` in
//! what system and user say switch thinking, and are not shown.

use super::xml::{self, Values};
use super::{Input, closes_results, opens_results};
use crate::PromptError;
use crate::message::{Message, Think};

pub(super) fn v3(input: &Input<'_>, out: &mut String) -> Result<(), PromptError> {
    let thinks = switched(input.messages).unwrap_or(input.thinks(true));
    let told = |text: &str| without_switches(text);
    render(input, &told, |m| told(&m.content).trim().to_owned(), ("\n</think>\n", thinks), out);
    Ok(())
}

pub(super) fn v35(input: &Input<'_>, out: &mut String) -> Result<(), PromptError> {
    let is_medium = matches!(input.think, Some(Think::Level(level)) if level == "medium");
    let question = input.messages.iter().rfind(|m| m.role == "user");
    let text = |message: &Message| {
        let is_question = question.is_some_and(|question| std::ptr::eq(*question, message));
        let effort =
            if is_medium && is_question { "\n\n{reasoning effort: efficient}" } else { "" };
        format!("{}{effort}", message.content)
    };
    render(input, &str::to_owned, text, ("</think>", input.thinks(true)), out);
    Ok(())
}

/// `system` makes the text of the leading system message, `told` that of system and user messages; `close` ends thoughts.
fn render(
    input: &Input<'_>,
    system: &dyn Fn(&str) -> String,
    told: impl Fn(&Message) -> String,
    (close, thinks): (&str, bool),
    out: &mut String,
) {
    let (first, messages) = input.split_system();
    let system = first.map(system).unwrap_or_default();
    out.extend(["<|im_start|>system\n", &system]);
    if !input.tools.is_empty() {
        out.push_str(if system.is_empty() { "" } else { "\n\n" });
        xml::declare(out, input.tools, Values::Python);
    }
    out.push_str("<|im_end|>\n");
    let question = messages.iter().rposition(|m| m.role == "user");
    for (i, message) in messages.iter().enumerate() {
        match message.role.as_str() {
            "assistant" => {
                let is_past = question.is_some_and(|question| i < question);
                out.push_str("<|im_start|>assistant\n");
                answer(message, close, is_past, out);
                out.push_str("<|im_end|>\n");
            }
            "tool" => {
                out.push_str(if i > 0 && opens_results(messages, i) {
                    "<|im_start|>user\n"
                } else {
                    ""
                });
                out.extend(["<tool_response>\n", &message.content, "\n</tool_response>\n"]);
                out.push_str(if closes_results(messages, i) { "<|im_end|>\n" } else { "" });
            }
            "user" | "system" => {
                out.extend(["<|im_start|>", &message.role, "\n", &told(message), "<|im_end|>\n"]);
            }
            role => out.extend(["<|im_start|>", role, "\n", &message.content, "<|im_end|>\n"]),
        }
    }
    out.push_str("<|im_start|>assistant\n");
    out.push_str(if thinks { "<think>\n" } else { "<think></think>" });
}

/// An answer with its think block, reduced to an empty one if it `is_past`.
fn answer(message: &Message, close: &str, is_past: bool, out: &mut String) {
    let content = &message.content;
    let text = match message.thinking.as_deref() {
        Some(thought) if !thought.is_empty() => format!("<think>\n{thought}{close}{content}"),
        _ if content.contains("<think>") || content.contains("</think>") => content.clone(),
        _ => format!("<think></think>{content}"),
    };
    let after = text.rsplit_once("</think>").map(|(_, after)| after);
    if message.tool_calls.is_empty() {
        match after.filter(|_| is_past && text.contains("<think>")) {
            Some(after) => out.push_str(format!("<think></think>{after}").trim()),
            None => out.push_str(text.trim()),
        }
        return;
    }
    if !is_past {
        out.push_str(text.trim());
    } else {
        let shown = after.unwrap_or_else(|| text.split("<think>").next().unwrap_or_default());
        out.extend(["<think></think>", shown.trim()]);
    }
    out.push('\n');
    for call in &message.tool_calls {
        xml::call(out, call, Values::Python);
        out.push('\n');
    }
}

/// What the conversation's own switches say in the end.
fn switched(messages: &[&Message]) -> Option<bool> {
    let told = messages.iter().rev().filter(|m| m.role == "user" || m.role == "system");
    told.filter_map(|m| {
        if m.content.replace("</think>", "").contains("/think") {
            Some(true)
        } else {
            m.content.contains("/no_think").then_some(false)
        }
    })
    .next()
}

fn without_switches(text: &str) -> String {
    let pieces: Vec<String> = text
        .split("</think>")
        .map(|piece| piece.replace("/think", "").replace("/no_think", ""))
        .collect();
    pieces.join("</think>")
}
