//! Tools and calls in tags, as Qwen's coder and its descendants have them.

use std::borrow::Cow;

use serde_json::Value as Json;

use super::json::{COMPACT, PYTHON, json, python_text, text};
use super::tools::{self, Tool};
use crate::message::ToolCall;

/// What the models are told about calls, behind the list of tools.
pub(super) const HOW_TO_CALL: &str = "\
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

/// How values within the tags are written.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Values {
    /// As Go writes them: `true`, `null`, compact JSON.
    Go,
    /// As Python does: `True`, `None`, JSON with blanks; descriptions are trimmed.
    Python,
}

impl Values {
    /// What else is told of a property, in this order.
    fn extra_keys(self) -> &'static [&'static str] {
        match self {
            Values::Go => &["anyOf", "items", "enum", "properties", "required"],
            Values::Python => &["enum", "anyOf", "items", "properties", "required"],
        }
    }

    fn text(self, value: &Json) -> Cow<'_, str> {
        match self {
            Values::Go => text(value, COMPACT),
            Values::Python => python_text(value),
        }
    }
}

/// A list of tools with what to do with them.
pub(super) fn declare(out: &mut String, tools: &[Tool], values: Values) {
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
            extras(out, property, values.extra_keys(), values);
            out.push_str("\n</parameter>");
        }
        extras(out, tool.parameters(), &["$defs", "items", "required"], values);
        out.push_str("\n</parameters>\n</function>");
    }
    out.extend(["\n</tools>\n\n", HOW_TO_CALL]);
}

/// A call, without line ends around it.
pub(super) fn call(out: &mut String, call: &ToolCall, values: Values) {
    out.extend(["<tool_call>\n<function=", &call.function.name, ">\n"]);
    for (name, value) in &call.function.arguments {
        out.extend(["<parameter=", name, ">\n", &values.text(value), "\n</parameter>\n"]);
    }
    out.push_str("</function>\n</tool_call>");
}

fn description(out: &mut String, description: &str, values: Values) {
    if !description.is_empty() {
        let description = if values == Values::Python { description.trim() } else { description };
        out.extend(["\n<description>", description, "</description>"]);
    }
}

/// Whatever else a schema says, in tags of the keys' names.
fn extras(out: &mut String, schema: &Json, keys: &[&str], values: Values) {
    for key in keys {
        if let Some(value) = schema.get(*key) {
            let mut value = value.clone();
            if values == Values::Go {
                value.sort_all_objects();
            }
            out.extend(["\n<", key, ">", &values.text(&value), "</", key, ">"]);
        }
    }
}

fn type_list(types: &[&str], values: Values) -> String {
    match values {
        Values::Go => json(&types.into(), COMPACT),
        Values::Python => json(&types.into(), PYTHON).replace('"', "'"),
    }
}
