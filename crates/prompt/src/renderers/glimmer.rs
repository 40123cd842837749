//! Glimmer: messages with headers (reasoning goes to `assistant to=self`), calls in `atem:` tags, a
//! reasoning strength.

use std::collections::HashMap;

use indexmap::IndexSet;

use super::RenderInput;
use super::json::{PYTHON, json, string, text};
use super::tools::Tool;
use crate::PromptError;
use crate::limits::{MAX_TEXT_BYTES, TemplateLimit};
use crate::message::{Message, Think, ToolCall};

const BEFORE_TOOLS: &str = "\
In this environment you have access to a set of tools you can use to answer the user's question.

You can invoke a function by writing a \"<atem:function_calls>\" block like the following:
<atem:function_calls>
<atem:invoke name=\"$FUNCTION_NAME\">
<atem:parameter name=\"$PARAMETER_NAME\">$PARAMETER_VALUE</atem:parameter>
...
</atem:invoke>
</atem:function_calls>

String and scalar parameters should be specified as is, while lists and objects should use JSON format. Note that \
spaces for string values are not stripped. The output is not expected to be valid XML and is parsed with regular \
expressions.
Here are the functions available in JSONSchema format:
// Tool metadata
";

const AFTER_TOOLS: &str = "

Here's an example of how to call a function in the tool set:
(If the tool namespace is not specified, invoke the function directly as `example_function_name` rather than \
`example_tool_name.example_function_name`)

to=example_tool_name.example_function_name

<atem:function_calls>
<atem:invoke name=\"example_tool_name.example_function_name\">
<atem:parameter name=\"example_parameter_1\">value_1</atem:parameter>
<atem:parameter name=\"example_parameter_2\">This is the value for the second parameter
that can span
\"multiple\" lines
</atem:parameter>
</atem:invoke>
</atem:function_calls>";

pub(super) fn render(input: &RenderInput<'_>, out: &mut String) -> Result<(), PromptError> {
    let messages = input.messages;
    out.push_str("<|begin_of_text|>");
    if messages.iter().all(|m| m.role != "system") {
        default_system(input, out);
    }
    let calls = messages.iter().flat_map(|m| &m.tool_calls);
    let names: HashMap<&str, &str> =
        calls.map(|call| (call.id.as_str(), call.function.name.as_str())).collect();
    for (i, message) in messages.iter().enumerate() {
        match message.role.as_str() {
            "system" => system(input, &message.content, out),
            "user" => out.extend(["<|start|>user<|message|>", &message.content, "<|eot|>"]),
            "tool" => {
                let id = message.tool_call_id.as_deref().unwrap_or_default();
                let named = message.tool_name.as_deref().filter(|name| !name.is_empty());
                let name = named.unwrap_or_else(|| {
                    names.get(id).copied().filter(|_| !id.is_empty()).unwrap_or(id)
                });
                out.extend([
                    "<|start|>tool ",
                    name,
                    "<|message|><tool_output name=\"",
                    name,
                    "\">\n",
                ]);
                out.extend([&message.content, "\n</tool_output><|eot|>"]);
            }
            "assistant" => {
                let goes_on = messages.get(i + 1).is_some_and(|next| next.role == "assistant");
                answer(message, goes_on, out);
            }
            _ => {}
        }
        // Each system message repeats all tools.
        if out.len() > MAX_TEXT_BYTES {
            return Err(PromptError::Limit { line: 0, limit: TemplateLimit::Text });
        }
    }
    out.push_str("<|start|>assistant");
    Ok(())
}

fn strength<'a>(input: &RenderInput<'a>) -> &'a str {
    match input.think {
        Some(Think::Switch(false)) => "none",
        Some(Think::Level(level)) => level,
        Some(Think::Switch(true)) | None => "high",
    }
}

fn default_system(input: &RenderInput<'_>, out: &mut String) {
    out.push_str(
        "<|start|>system<|message|>You are a helpful AI assistant.\nKnowledge cutoff: 2026-01-04.",
    );
    let today = input.now.date().to_string();
    out.extend(["\nCurrent date: ", &today, ".\n\nReasoning strength: ", strength(input), "."]);
    tools(input.tools, out);
}

/// Writes the reasoning strength, unless the system text contains it in the only recognized
/// spelling.
fn system(input: &RenderInput<'_>, text: &str, out: &mut String) {
    let mut text = text.to_owned();
    for (effort, strength) in [
        ("Reasoning effort", "Reasoning strength"),
        ("Reasoning Effort", "Reasoning Strength"),
        ("reasoning effort", "reasoning strength"),
        ("REASONING EFFORT", "REASONING STRENGTH"),
    ] {
        text = text.replace(effort, strength);
    }
    out.extend(["<|start|>system<|message|>", &text]);
    if !text.to_lowercase().contains("reasoning strength") {
        out.extend(["\n\nReasoning strength: ", strength(input), "."]);
    }
    tools(input.tools, out);
}

/// Writes the tools with their namespaces, and the possible recipients of messages.
fn tools(tools: &[Tool], out: &mut String) {
    let spaces = tools.iter().map(|tool| tool.name().split('.').next().unwrap_or_default());
    let spaces: IndexSet<&str> = spaces.collect();
    if !tools.is_empty() {
        out.extend(["\n\n", BEFORE_TOOLS]);
        for space in &spaces {
            out.extend(["{\"name\": ", &string(space, PYTHON), ", \"description\": \"\"}\n"]);
        }
        out.push_str("// Function schemas");
        for tool in tools {
            out.extend(["\n{\"name\": ", &string(tool.name(), PYTHON), ", \"description\": "]);
            out.extend([&string(tool.description(), PYTHON), ", \"parameters\": "]);
            out.extend([&json(tool.parameters(), PYTHON), "}"]);
        }
        out.push_str(AFTER_TOOLS);
    }
    out.push_str("\n\n# Valid recipients: \"self\"");
    for space in &spaces {
        out.extend([", \"", space, ".*\""]);
    }
    out.push_str(", \"user\".<|eot|>");
}

/// Writes an answer: reasoning, then calls or the content. If the next message continues the
/// answer, its calls do not end the turn.
fn answer(message: &Message, goes_on: bool, out: &mut String) {
    let thought = message.thinking.as_deref().unwrap_or_default();
    if !thought.is_empty() {
        out.extend(["<|start|>assistant to=self<|message|>", thought, "<|eom|>"]);
    }
    for (i, made) in message.tool_calls.iter().enumerate() {
        call(made, out);
        let ends_turn = i + 1 == message.tool_calls.len() && !goes_on;
        out.push_str(if ends_turn { "<|eot|>" } else { "<|eom|>" });
    }
    if message.tool_calls.is_empty() && (thought.is_empty() || !message.content.is_empty()) {
        out.extend(["<|start|>assistant to=user<|message|>", &message.content, "<|eot|>"]);
    }
}

fn call(call: &ToolCall, out: &mut String) {
    let name = &call.function.name;
    out.extend([
        "<|start|>assistant to=",
        name,
        "<|message|><atem:function_calls>\n<atem:invoke name=\"",
        name,
    ]);
    out.push_str("\">\n");
    for (name, value) in &call.function.arguments {
        out.extend([
            "<atem:parameter name=\"",
            name,
            "\">",
            &text(value, PYTHON),
            "</atem:parameter>\n",
        ]);
    }
    out.push_str("</atem:invoke>\n</atem:function_calls>");
}
