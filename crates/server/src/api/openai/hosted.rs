//! Hosted tools, which OpenAI's service runs itself. Puna provides none of them.

use puna_api::ollama::Tool;

/// Type prefixes of tools that agents list by default but do not require. The server ignores these
/// tools, and a header of the answer names them.
const IGNORED: [&str; 3] = ["web_search", "image_generation", "tool_search"];

/// Whether the server ignores tools of this type. Type names may end with a version.
pub(crate) fn is_ignored(kind: &str) -> bool {
    IGNORED.iter().any(|known| kind.starts_with(known))
}

/// Returns the type of a chat's tool if the server ignores it.
pub(super) fn ignored_kind(tool: &Tool) -> Option<&str> {
    tool.0["type"].as_str().filter(|kind| is_ignored(kind) && tool.0["function"].is_null())
}
