//! DeepSeek V3.1: all system texts come first; of earlier reasoning, only the closing tag is
//! written.

use super::RenderInput;
use super::json::{COMPACT, json, object};
use super::tools::Tool;
use crate::PromptError;
use crate::message::Message;

const TOOL_INSTRUCTIONS: &str = "\nIMPORTANT: ALWAYS adhere to this exact format for tool use:\n\
     <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>tool_call_name<｜tool▁sep｜>tool_call_arguments<｜tool▁call▁end｜>\
     {{additional_tool_calls}}<｜tool▁calls▁end｜>\n\nWhere:\n\n\
     - `tool_call_name` must be an exact match to one of the available tools\n\
     - `tool_call_arguments` must be valid JSON that strictly follows the tool's Parameters Schema\n\
     - For multiple tool calls, chain them directly without separators or spaces\n";

pub(super) fn render(input: &RenderInput<'_>, out: &mut String) -> Result<(), PromptError> {
    let thinks = input.thinks(false);
    let systems = input.messages.iter().filter(|m| m.role == "system");
    let systems: Vec<&str> = systems.map(|m| m.content.as_str()).collect();
    out.extend(["<｜begin▁of▁sentence｜>", &systems.join("\n\n")]);
    tools(input.tools, out);
    let question = input.messages.iter().rposition(|m| m.role == "user");
    // Roles of the last message that is not a system message.
    let (mut after_user, mut after_result) = (false, false);
    for (i, message) in input.messages.iter().enumerate() {
        match message.role.as_str() {
            "user" => out.extend(["<｜User｜>", &message.content]),
            "assistant" => {
                let is_current = question.is_none_or(|question| i > question);
                let thought = message.thinking.as_deref().is_some_and(|text| !text.is_empty());
                let shows = thinks && is_current && thought && message.tool_calls.is_empty();
                if after_user {
                    out.extend(["<｜Assistant｜>", if shows { "<think>" } else { "</think>" }]);
                }
                answer(message, after_result, out);
            }
            "tool" => {
                out.extend(["<｜tool▁output▁begin｜>", &message.content, "<｜tool▁output▁end｜>"])
            }
            _ => continue,
        }
        (after_user, after_result) = (message.role == "user", message.role == "tool");
    }
    if after_user {
        out.extend(["<｜Assistant｜>", if thinks { "<think>" } else { "</think>" }]);
    }
    Ok(())
}

fn tools(tools: &[Tool], out: &mut String) {
    if tools.is_empty() {
        return;
    }
    out.push_str("\n\n## Tools\nYou have access to the following tools:\n");
    for tool in tools {
        out.extend(["\n### ", tool.name(), "\nDescription: ", tool.description()]);
        out.extend(["\n\nParameters: ", &json(tool.parameters(), COMPACT), "\n"]);
    }
    out.push_str(TOOL_INSTRUCTIONS);
}

fn answer(message: &Message, after_result: bool, out: &mut String) {
    let content = &message.content;
    if !message.tool_calls.is_empty() {
        out.extend([content, "<｜tool▁calls▁begin｜>"]);
        for call in &message.tool_calls {
            let arguments = object(&call.function.arguments, COMPACT);
            out.extend([
                "<｜tool▁call▁begin｜>",
                &call.function.name,
                "<｜tool▁sep｜>",
                &arguments,
            ]);
            out.push_str("<｜tool▁call▁end｜>");
        }
        out.push_str("<｜tool▁calls▁end｜>");
    } else if after_result {
        out.push_str(content);
    } else {
        out.push_str(content.split_once("</think>").map_or(content, |(_, answer)| answer));
    }
    out.push_str("<｜end▁of▁sentence｜>");
}
