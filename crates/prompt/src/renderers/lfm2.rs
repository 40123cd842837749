//! LFM2 and its reasoning variant: ChatML, a list of tools behind the system text, Python calls.

use super::RenderInput;
use super::json::{PYTHON, json};
use crate::PromptError;
use crate::message::{Message, ToolCall};

pub(super) fn lfm2(input: &RenderInput<'_>, out: &mut String) -> Result<(), PromptError> {
    render(input, false, out);
    Ok(())
}

/// The reasoning variant writes earlier reasoning only if reasoning is on. The model opens its
/// reasoning itself.
pub(super) fn thinking(input: &RenderInput<'_>, out: &mut String) -> Result<(), PromptError> {
    render(input, true, out);
    Ok(())
}

fn render(input: &RenderInput<'_>, shows_reasoning: bool, out: &mut String) {
    out.push_str("<|startoftext|>");
    let (system, messages) = input.split_system();
    let mut head = system.unwrap_or_default().to_owned();
    if !input.tools.is_empty() {
        let shown = |tool: &super::Tool| match tool.name() {
            "" => json(tool.json(), PYTHON),
            _ => json(tool.function(), PYTHON),
        };
        let tools: Vec<String> = input.tools.iter().map(shown).collect();
        head.push_str(if head.is_empty() { "" } else { "\n" });
        head.extend([
            "List of tools: <|tool_list_start|>[",
            &tools.join(", "),
            "]<|tool_list_end|>",
        ]);
    }
    if !head.is_empty() {
        out.extend(["<|im_start|>system\n", &head, "<|im_end|>\n"]);
    }
    let keeps_thoughts = shows_reasoning && input.thinks(false);
    let last_answer = messages.iter().rposition(|m| m.role == "assistant");
    for (i, message) in messages.iter().enumerate() {
        out.extend(["<|im_start|>", &message.role, "\n"]);
        match message.role.as_str() {
            "assistant" => {
                let text = answer(message, shows_reasoning);
                let past = text
                    .rsplit_once("</think>")
                    .filter(|_| !keeps_thoughts && Some(i) != last_answer);
                out.push_str(past.map_or(&text, |(_, after)| after.trim()));
            }
            "tool" if !message.content.contains("<|tool_response_start|>") => {
                out.extend(["<|tool_response_start|>", &message.content, "<|tool_response_end|>"]);
            }
            _ => out.push_str(&message.content),
        }
        let is_open = message.role == "assistant" && i + 1 == messages.len();
        out.push_str(if is_open { "" } else { "<|im_end|>\n" });
    }
    if input.messages.last().is_none_or(|last| last.role != "assistant") {
        out.push_str("<|im_start|>assistant\n");
    }
}

/// Joins reasoning, calls and content. Parts that the content already contains are not added.
fn answer(message: &Message, shows_reasoning: bool) -> String {
    let mut text = message.content.clone();
    if !message.tool_calls.is_empty() && !text.contains("<|tool_call_start|>") {
        let between = if text.trim().is_empty() { "" } else { "\n" };
        text = format!("{}{between}{text}", calls(&message.tool_calls));
    }
    match message.thinking.as_deref() {
        Some(thought) if shows_reasoning && !thought.is_empty() && !text.contains("</think>") => {
            format!("<think>{thought}</think>{text}")
        }
        _ => text,
    }
}

/// `[f(a="x",n=2)]`, with arguments sorted by name.
fn calls(calls: &[ToolCall]) -> String {
    let one = |call: &ToolCall| {
        let mut arguments: Vec<_> = call.function.arguments.iter().collect();
        arguments.sort_unstable_by_key(|(name, _)| *name);
        let arguments: Vec<String> = arguments
            .iter()
            .map(|(name, value)| format!("{name}={}", json(value, PYTHON)))
            .collect();
        format!("{}({})", call.function.name, arguments.join(","))
    };
    let all: Vec<String> = calls.iter().map(one).collect();
    format!("<|tool_call_start|>[{}]<|tool_call_end|>", all.join(","))
}
