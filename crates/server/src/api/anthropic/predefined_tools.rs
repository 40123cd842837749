//! Tools that Anthropic's API defines by name and version. The model is offered a function with a
//! description and a schema for each tool that the client runs. Tools that Anthropic's service runs
//! are ignored.

use puna_api::anthropic::Tool;
use serde_json::{Value, json as value};

/// Type prefixes of ignored tools, which only the service can run. Web search is not among them:
/// the model is offered it, and each call fails.
const IGNORED: [&str; 5] =
    ["advisor_", "code_execution_", "mcp_toolset", "tool_search_tool_", "web_fetch_"];

/// Whether the model is not offered the tool because only the service can run it.
pub(super) fn is_ignored(tool: &Tool) -> bool {
    IGNORED.iter().any(|kind| tool.kind.starts_with(kind))
}

/// Returns the field names of the ignored tools of a request.
pub(crate) fn left_out(tools: &[Tool]) -> Vec<String> {
    tools
        .iter()
        .filter(|tool| is_ignored(tool))
        .map(|tool| format!("tools.{}", tool.kind))
        .collect()
}

/// Returns the description and the argument schema of a tool that the client runs.
pub(super) fn definition(kind: &str) -> Option<(&'static str, Value)> {
    let text = |description: &str| value!({"type": "string", "description": description});
    let range = value!({
        "type": "array", "items": {"type": "integer"}, "description": "With view: the first and the last line",
    });
    let edits = |commands: &[&str]| {
        value!({
            "command": {"type": "string", "enum": commands},
            "path": text("The file or folder"),
            "file_text": text("With create: the content of the file"),
            "old_str": text("With str_replace: the text to replace, which must occur exactly once"),
            "new_str": text("With str_replace: the new text"),
            "insert_line": {"type": "integer", "description": "With insert: the line after which to insert, 0 for the beginning"},
            "insert_text": text("With insert: the text to insert"),
            "view_range": range,
        })
    };
    let object = |properties: Value, required: &[&str]| value!({"type": "object", "properties": properties, "required": required});
    let commands = ["view", "create", "str_replace", "insert"];
    match kind.rsplit_once('_')?.0 {
        "bash" => {
            let restart = value!({"type": "boolean", "description": "Restart the shell instead"});
            let properties = value!({"command": text("The command to run"), "restart": restart});
            Some(("Runs a command in a shell that keeps its state", object(properties, &[])))
        }
        "text_editor" => Some((
            "Views, creates and edits text files",
            object(edits(&commands), &["command", "path"]),
        )),
        "memory" => {
            let mut properties = edits(&[commands.as_slice(), &["delete", "rename"]].concat());
            properties["old_path"] = text("With rename: the current name");
            properties["new_path"] = text("With rename: the new name");
            Some((
                "Keeps notes in files under /memories for later",
                object(properties, &["command"]),
            ))
        }
        _ => None,
    }
}
