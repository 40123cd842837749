//! Cogito: the control tokens of DeepSeek, an own system text, reasoning on request.

use super::RenderInput;
use super::json::{COMPACT, INDENTED, json, object};
use crate::PromptError;
use crate::message::Message;

const SYSTEM: &str = "You are Cogito, an AI assistant created by Deep Cogito, which is an AI research lab based in \
     San Francisco.";

pub(super) fn render(input: &RenderInput<'_>, out: &mut String) -> Result<(), PromptError> {
    let thinks = input.thinks(false);
    let (system, messages) = input.split_system();
    let system = system.filter(|text| !text.is_empty());
    out.push_str("<｜begin▁of▁sentence｜>");
    out.push_str(if thinks { "Enable deep thinking subroutine.\n\n" } else { "" });
    out.push_str(SYSTEM);
    if let Some(system) = system {
        out.extend(["\n\n", system]);
        out.push_str(if thinks { "\n\n" } else { "" });
    }
    if !input.tools.is_empty() {
        out.push_str("\nYou have the following functions available:\n");
        for tool in input.tools {
            out.extend(["```json\n", &json(tool.json(), INDENTED), "\n```\n"]);
        }
    }
    let mut is_open = false;
    for (i, message) in messages.iter().enumerate() {
        match message.role.as_str() {
            "user" => out.extend(["<｜User｜>", &message.content, "<｜Assistant｜>"]),
            "assistant" => answer(message, out),
            "tool" => {
                out.push_str(if super::is_first_result(messages, i) {
                    "<｜tool▁outputs▁begin｜>"
                } else {
                    ""
                });
                out.extend(["<｜tool▁output▁begin｜>", &message.content, "<｜tool▁output▁end｜>"]);
                let is_last = super::is_last_result(messages, i);
                out.push_str(if is_last { "<｜tool▁outputs▁end｜>" } else { "\n" });
            }
            _ => continue,
        }
        is_open = message.role == "user";
    }
    out.push_str(if is_open { "" } else { "<｜Assistant｜>" });
    out.push_str(if thinks { "<think>\n" } else { "" });
    Ok(())
}

fn answer(message: &Message, out: &mut String) {
    out.push_str(&message.content);
    if !message.tool_calls.is_empty() {
        out.push_str("<｜tool▁calls▁begin｜>");
        for (i, call) in message.tool_calls.iter().enumerate() {
            out.push_str(if i > 0 { "\n" } else { "" });
            out.extend(["<｜tool▁call▁begin｜>function<｜tool▁sep｜>", &call.function.name]);
            out.extend([
                "\n```json\n",
                &object(&call.function.arguments, COMPACT),
                "\n```<｜tool▁call▁end｜>",
            ]);
        }
        out.push_str("<｜tool▁calls▁end｜>");
    }
    out.push_str("<｜end▁of▁sentence｜>");
}
