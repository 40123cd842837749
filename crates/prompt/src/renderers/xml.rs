//! Tools and calls in XML tags, the format of Qwen3-Coder and related models.

use std::borrow::Cow;

use serde_json::Value as Json;

use super::json::{COMPACT, PYTHON, json, python_text, text};
use super::tools::{self, Tool};
use crate::message::ToolCall;

/// Instructions for calls, behind the list of tools.
pub(super) const TOOL_INSTRUCTIONS: &str = "\
If you choose to call a function ONLY reply in the following format with NO suffix:

<tool_call>
<function=example_function_name>
<parameter=example_parameter_1>
value_1
</parameter>
<parameter=example_parameter_2>
This is the value for the second parameter
that can span
multiple lines
</parameter>
</function>
</tool_call>

<IMPORTANT>
Reminder:
- Function calls MUST follow the specified format: an inner <function=...></function> block must be nested within <tool_call></tool_call> XML tags
- Required parameters MUST be specified
- You may provide optional reasoning for your function call in natural language BEFORE the function call, but NOT after
- If there is no function call available, answer the question like normal with your current knowledge and do not tell the user about function calls
</IMPORTANT>";

/// How values within tags are written.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ValueSyntax {
    /// As in Go: `true`, `null`, compact JSON.
    Go,
    /// As in Python: `True`, `None`, JSON with spaces. Descriptions are trimmed.
    Python,
}

impl ValueSyntax {
    /// Further schema keys of a property, in the order of writing.
    fn extra_keys(self) -> &'static [&'static str] {
        match self {
            ValueSyntax::Go => &["anyOf", "items", "enum", "properties", "required"],
            ValueSyntax::Python => &["enum", "anyOf", "items", "properties", "required"],
        }
    }

    fn text(self, value: &Json) -> Cow<'_, str> {
        match self {
            ValueSyntax::Go => text(value, COMPACT),
            ValueSyntax::Python => python_text(value),
        }
    }
}

/// Writes the list of tools, and the instructions for calls.
pub(super) fn declare(out: &mut String, tools: &[Tool], values: ValueSyntax) {
    out.push_str("# Tools\n\nYou have access to the following functions:\n\n<tools>");
    for tool in tools {
        out.extend(["\n<function>\n<name>", tool.name(), "</name>"]);
        description(out, tool.description(), values);
        out.push_str("\n<parameters>");
        for (name, property) in tool.properties().into_iter().flatten() {
            out.extend(["\n<parameter>\n<name>", name, "</name>"]);
            match &tools::types(property)[..] {
                [] => {}
                [one] => out.extend(["\n<type>", one, "</type>"]),
                many => out.extend(["\n<type>", &type_list(many, values), "</type>"]),
            }
            description(out, tools::text(property, "description"), values);
            schema_keys(out, property, values.extra_keys(), values);
            out.push_str("\n</parameter>");
        }
        schema_keys(out, tool.parameters(), &["$defs", "items", "required"], values);
        out.push_str("\n</parameters>\n</function>");
    }
    out.extend(["\n</tools>\n\n", TOOL_INSTRUCTIONS]);
}

/// Writes a call, without line breaks around it.
pub(super) fn call(out: &mut String, call: &ToolCall, values: ValueSyntax) {
    out.extend(["<tool_call>\n<function=", &call.function.name, ">\n"]);
    for (name, value) in &call.function.arguments {
        out.extend(["<parameter=", name, ">\n", &values.text(value), "\n</parameter>\n"]);
    }
    out.push_str("</function>\n</tool_call>");
}

fn description(out: &mut String, description: &str, values: ValueSyntax) {
    if !description.is_empty() {
        let description =
            if values == ValueSyntax::Python { description.trim() } else { description };
        out.extend(["\n<description>", description, "</description>"]);
    }
}

/// Writes further schema keys in tags of the same name.
fn schema_keys(out: &mut String, schema: &Json, keys: &[&str], values: ValueSyntax) {
    for key in keys {
        if let Some(value) = schema.get(*key) {
            let mut value = value.clone();
            if values == ValueSyntax::Go {
                value.sort_all_objects();
            }
            out.extend(["\n<", key, ">", &values.text(&value), "</", key, ">"]);
        }
    }
}

fn type_list(types: &[&str], values: ValueSyntax) -> String {
    match values {
        ValueSyntax::Go => json(&types.into(), COMPACT),
        ValueSyntax::Python => json(&types.into(), PYTHON).replace('"', "'"),
    }
}
