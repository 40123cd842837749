//! Detected tool call formats.

/// Tool call format that probing a template has detected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum DetectedCalls {
    /// The format of this name in `KNOWN_FORMATS` of `format_detection`.
    Known(&'static str),
    /// Text before a call in an unknown format, or a bracket.
    Tag(String),
}
