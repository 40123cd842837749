//! Styles of argument values.

/// How the values of arguments are written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ValueStyle {
    /// Strings as bare text, other values as JSON.
    Bare,
    /// All values as JSON.
    Json,
    /// Like JSON with bare keys, and with this quote around strings.
    Quoted(String),
}
