//! Results of probing a Jinja template.

use std::sync::OnceLock;

use crate::parsers::DetectedCalls;

/// Results of probing a template. Each probe runs when its result is first needed.
#[derive(Debug, Clone, Default)]
pub(crate) struct ProbeResults {
    /// The template writes the text of a system message.
    pub(crate) writes_system: OnceLock<bool>,
    /// The template expects call arguments as JSON text.
    pub(crate) wants_text_arguments: OnceLock<bool>,
    /// The template expects contents as `[{"type": "text", "text": …}]`.
    pub(crate) wants_parts: OnceLock<bool>,
    /// The tool call format of the template.
    pub(crate) call_format: OnceLock<DetectedCalls>,
}
