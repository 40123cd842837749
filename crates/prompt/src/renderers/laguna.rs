//! Laguna, and its first version Poolside: turns in tags, arguments as pairs of `<arg_key>` and
//! `<arg_value>`.

use super::RenderInput;
use super::json::{SPACED, json, text};
use super::tools::Tool;
use crate::PromptError;
use crate::message::Message;

const SYSTEM: &str = "You are a helpful, conversationally-fluent assistant made by Poolside. You are here to be \
     helpful to users through natural language conversations.";
const THINKING_INSTRUCTIONS: &str =
    "Wrap your thinking in '<think>', '</think>' tags, followed by a function call. ";
const TOOL_INSTRUCTIONS: &str = "For each function call, return an unescaped XML-like object with function name and \
     arguments within '<tool_call>' and '</tool_call>' tags, like here:\n";
const EXAMPLE: &str = "<tool_call>function-name\n<arg_key>argument-key</arg_key>\n\
     <arg_value>value-of-argument-key</arg_value>\n</tool_call>";

/// Laguna: each part has its own line, and the system turn explains calls.
pub(super) fn laguna(input: &RenderInput<'_>, out: &mut String) -> Result<(), PromptError> {
    let thinks = input.thinks(false);
    let (system, messages) = input.split_system();
    let system = system.unwrap_or(SYSTEM).trim_end();
    out.push_str("〈|EOS|〉");
    if !system.is_empty() || !input.tools.is_empty() {
        out.push_str("<system>\n");
        out.extend([if system.is_empty() { "" } else { "\n" }, system]);
        if !input.tools.is_empty() {
            out.push_str("\n\n");
            tools(input.tools, out);
            out.extend([
                "\n\n",
                if thinks { THINKING_INSTRUCTIONS } else { "" },
                TOOL_INSTRUCTIONS,
            ]);
            out.extend([
                if thinks { "<think> your thoughts here </think>\n" } else { "" },
                EXAMPLE,
            ]);
        }
        out.push_str("\n</system>\n");
    }
    for (i, message) in messages.iter().enumerate() {
        match message.role.as_str() {
            "assistant" => {
                let is_written = answer(message, out);
                out.push_str(if is_written && i + 1 == messages.len() {
                    ""
                } else {
                    "</assistant>\n"
                });
            }
            "user" => out.extend(["<user>\n", &message.content, "\n</user>\n"]),
            "tool" => out.extend(["<tool_response>\n", &message.content, "\n</tool_response>\n"]),
            "system" => out.extend(["<system>\n", &message.content, "\n</system>\n"]),
            _ => {}
        }
    }
    if input.messages.last().is_none_or(|last| last.role != "assistant") {
        out.extend(["<assistant>\n", if thinks { "<think>" } else { "</think>" }]);
    }
    Ok(())
}

/// Poolside: no line breaks. Earlier reasoning is written only if reasoning is on, and every answer
/// is closed.
pub(super) fn poolside(input: &RenderInput<'_>, out: &mut String) -> Result<(), PromptError> {
    let thinks = input.thinks(false);
    let (system, messages) = input.split_system();
    let system = system.unwrap_or(SYSTEM).trim_end();
    out.push_str("〈|EOS|〉");
    if !system.is_empty() || !input.tools.is_empty() || thinks {
        out.extend(["<system>", system]);
        if !input.tools.is_empty() {
            out.push_str(if system.is_empty() { "" } else { "\n\n" });
            tools(input.tools, out);
        }
        out.push_str("</system>\n");
    }
    for message in messages {
        match message.role.as_str() {
            "assistant" => {
                let thought = message.thinking.as_deref().unwrap_or_default();
                out.push_str("<assistant>");
                if thinks {
                    out.extend(["<think>", thought]);
                }
                out.extend(["</think>", &message.content]);
                calls(message, "", out);
                out.push_str("</assistant>\n");
            }
            "user" => out.extend(["<user>", &message.content, "</user>\n"]),
            "tool" => out.extend(["<tool_response>", &message.content, "</tool_response>\n"]),
            "system" => out.extend(["<system>", &message.content, "</system>\n"]),
            _ => {}
        }
    }
    out.extend(["<assistant>", if thinks { "<think>" } else { "</think>" }]);
    Ok(())
}

fn tools(tools: &[Tool], out: &mut String) {
    out.push_str(
        "### Tools\n\nYou may call functions to assist with the user query.\nAll available function signatures are \
         listed below:\n<available_tools>\n",
    );
    for tool in tools {
        out.extend([&json(tool.json(), SPACED), "\n"]);
    }
    out.push_str("</available_tools>");
}

/// Writes an answer of Laguna without its end. Returns true if it is not empty.
fn answer(message: &Message, out: &mut String) -> bool {
    let given = message.thinking.as_deref().unwrap_or_default();
    let (thought, content) = split_reasoning(&message.content, given);
    let (thought, content) = (thought.trim(), content.trim());
    out.push_str("<assistant>\n");
    if !thought.is_empty() {
        out.extend(["<think>\n", thought, "\n"]);
    }
    out.push_str("</think>\n");
    if !content.is_empty() {
        out.extend([content, "\n"]);
    }
    calls(message, "\n", out);
    !(thought.is_empty() && content.is_empty() && message.tool_calls.is_empty())
}

/// Separates reasoning in the content, used if the message has none of its own, from the text
/// behind the last think tag.
fn split_reasoning<'m>(content: &'m str, given: &'m str) -> (&'m str, &'m str) {
    let (Some((first, _)), Some((_, after))) =
        (content.split_once("</think>"), content.rsplit_once("</think>"))
    else {
        return (given, content);
    };
    let own = first.rsplit_once("<think>").map_or(first, |(_, thought)| thought);
    (if given.is_empty() { own } else { given }, after)
}

fn calls(message: &Message, end: &str, out: &mut String) {
    for call in &message.tool_calls {
        out.extend(["<tool_call>", &call.function.name, end]);
        for (name, value) in &call.function.arguments {
            out.extend(["<arg_key>", name, "</arg_key>", end]);
            out.extend(["<arg_value>", &text(value, SPACED), "</arg_value>", end]);
        }
        out.extend(["</tool_call>", end]);
    }
}
