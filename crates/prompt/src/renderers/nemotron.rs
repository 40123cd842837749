//! Nemotron 3 Nano and 3.5 Nano: ChatML, tools and calls in tags, values as Python prints them.
//!
//! Every answer has a think block, which is empty before the last question. In version 3, `/think`
//! and `/no_think` in system and user texts switch reasoning and are removed.

use super::xml::{self, ValueSyntax};
use super::{RenderInput, is_first_result, is_last_result};
use crate::PromptError;
use crate::message::{Message, Think};

pub(super) fn v3(input: &RenderInput<'_>, out: &mut String) -> Result<(), PromptError> {
    let thinks = switched(input.messages).unwrap_or(input.thinks(true));
    let declared = |text: &str| without_switches(text);
    render(
        input,
        &declared,
        |m| declared(&m.content).trim().to_owned(),
        ("\n</think>\n", thinks),
        out,
    );
    Ok(())
}

pub(super) fn v35(input: &RenderInput<'_>, out: &mut String) -> Result<(), PromptError> {
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

/// `system` creates the leading system text, `declared` the text of system and user messages.
/// `close` ends reasoning.
fn render(
    input: &RenderInput<'_>,
    system: &dyn Fn(&str) -> String,
    declared: impl Fn(&Message) -> String,
    (close, thinks): (&str, bool),
    out: &mut String,
) {
    let (first, messages) = input.split_system();
    let system = first.map(system).unwrap_or_default();
    out.extend(["<|im_start|>system\n", &system]);
    if !input.tools.is_empty() {
        out.push_str(if system.is_empty() { "" } else { "\n\n" });
        xml::declare(out, input.tools, ValueSyntax::Python);
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
                out.push_str(if i > 0 && is_first_result(messages, i) {
                    "<|im_start|>user\n"
                } else {
                    ""
                });
                out.extend(["<tool_response>\n", &message.content, "\n</tool_response>\n"]);
                out.push_str(if is_last_result(messages, i) { "<|im_end|>\n" } else { "" });
            }
            "user" | "system" => {
                out.extend([
                    "<|im_start|>",
                    &message.role,
                    "\n",
                    &declared(message),
                    "<|im_end|>\n",
                ]);
            }
            role => out.extend(["<|im_start|>", role, "\n", &message.content, "<|im_end|>\n"]),
        }
    }
    out.push_str("<|im_start|>assistant\n");
    out.push_str(if thinks { "<think>\n" } else { "<think></think>" });
}

/// Writes an answer with its think block. The block is empty if `is_past` is set.
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
        xml::call(out, call, ValueSyntax::Python);
        out.push('\n');
    }
}

/// The last reasoning switch in the conversation.
fn switched(messages: &[&Message]) -> Option<bool> {
    let declared = messages.iter().rev().filter(|m| m.role == "user" || m.role == "system");
    declared
        .filter_map(|m| {
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
