//! Tools that OpenAI's service runs itself. Puna has none of them.

use puna_api::native::Tool;

/// Types of tools that agents list by habit and do without. They are ignored, and the answer's header names them.
const IGNORED: [&str; 3] = ["web_search", "image_generation", "tool_search"];

/// Whether tools of this type are ignored. Types have versions behind their names.
pub(crate) fn is_ignored(kind: &str) -> bool {
    IGNORED.iter().any(|known| kind.starts_with(known))
}

/// The type of a chat's tool that is ignored.
pub(super) fn ignored_kind(tool: &Tool) -> Option<&str> {
    tool.0["type"].as_str().filter(|kind| is_ignored(kind) && tool.0["function"].is_null())
}
