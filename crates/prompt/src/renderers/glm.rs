//! GLM-4.7 and GLM-OCR: role tokens without end tokens, arguments as pairs of `<arg_key>` and
//! `<arg_value>`.

use super::json::{COMPACT, SPACED, json, text};
use super::tools::Tool;
use super::{RenderInput, is_first_result};
use crate::PromptError;
use crate::message::{Message, ToolCall};

/// GLM-4.7: keeps the reasoning of earlier turns.
pub(super) fn glm47(input: &RenderInput<'_>, out: &mut String) -> Result<(), PromptError> {
    head(input.tools, out);
    for (i, message) in input.messages.iter().enumerate() {
        match message.role.as_str() {
            "user" => out.extend(["<|user|>", &message.content]),
            "system" => out.extend(["<|system|>", &message.content]),
            "assistant" => {
                out.push_str("<|assistant|>");
                match reasoning(message) {
                    "" => out.push_str("</think>"),
                    thought => out.extend(["<think>", thought, "</think>"]),
                }
                out.push_str(&message.content);
                message.tool_calls.iter().for_each(|made| call(made, out));
            }
            "tool" => {
                out.push_str(if is_first_result(input.messages, i) {
                    "<|observation|>"
                } else {
                    ""
                });
                out.extend(["<tool_response>", &message.content, "</tool_response>"]);
            }
            _ => {}
        }
    }
    out.extend(["<|assistant|>", if input.thinks(true) { "<think>" } else { "</think>" }]);
    Ok(())
}

/// GLM-OCR: line breaks around all parts. A word in the user's text switches reasoning off.
pub(super) fn ocr(input: &RenderInput<'_>, out: &mut String) -> Result<(), PromptError> {
    let is_off = !input.thinks(true);
    head(input.tools, out);
    for (i, message) in input.messages.iter().enumerate() {
        match message.role.as_str() {
            "user" => {
                out.extend(["<|user|>\n", &message.content]);
                let says_so = message.content.ends_with("/nothink");
                out.push_str(if is_off && !says_so { "/nothink" } else { "" });
            }
            "system" => out.extend(["<|system|>\n", &message.content, "\n"]),
            "assistant" => {
                out.extend(["<|assistant|>\n<think>", reasoning(message).trim(), "</think>"]);
                if !message.content.is_empty() {
                    out.extend(["\n", message.content.trim()]);
                }
                for made in &message.tool_calls {
                    out.push('\n');
                    call(made, out);
                }
                out.push('\n');
            }
            "tool" => {
                out.push_str(if is_first_result(input.messages, i) {
                    "<|observation|>"
                } else {
                    ""
                });
                out.extend(["\n<tool_response>\n", &message.content, "\n</tool_response>\n"]);
            }
            _ => {}
        }
    }
    out.extend(["<|assistant|>\n", if is_off { "<think></think>\n" } else { "" }]);
    Ok(())
}

fn head(tools: &[Tool], out: &mut String) {
    out.push_str("[gMASK]<sop>");
    if tools.is_empty() {
        return;
    }
    out.push_str(
        "<|system|>\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided \
         with function signatures within <tools></tools> XML tags:\n<tools>\n",
    );
    for tool in tools {
        out.extend([&json(tool.json(), SPACED), "\n"]);
    }
    out.push_str(
        "</tools>\n\nFor each function call, output the function name and arguments within the following XML format:\n\
         <tool_call>{function-name}<arg_key>{arg-key-1}</arg_key><arg_value>{arg-value-1}</arg_value>\
         <arg_key>{arg-key-2}</arg_key><arg_value>{arg-value-2}</arg_value>...</tool_call>",
    );
}

fn reasoning(message: &Message) -> &str {
    message.thinking.as_deref().unwrap_or_default()
}

fn call(call: &ToolCall, out: &mut String) {
    out.extend(["<tool_call>", &call.function.name]);
    for (name, value) in &call.function.arguments {
        out.extend([
            "<arg_key>",
            name,
            "</arg_key><arg_value>",
            &text(value, COMPACT),
            "</arg_value>",
        ]);
    }
    out.push_str("</tool_call>");
}
