//! Settings in effect and the sources of their values, for `puna config`. The precedence of the
//! sources is in `reader`.

use std::fmt;
use std::path::PathBuf;

/// Source of a setting's value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// The default.
    Default,
    /// A line of the configuration file.
    File(PathBuf, usize),
    /// An environment variable, with its full name.
    Variable(String),
    /// The command line.
    Flag,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File(path, line) => write!(f, "{}, line {line}", path.display()),
            Self::Variable(name) => f.write_str(name),
            Self::Flag => f.write_str("command line"),
        }
    }
}

/// A setting in effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// Its key.
    pub key: &'static str,
    /// Value as the configuration file would hold it; `None` is automatic or unset.
    pub value: Option<String>,
    /// Source of the value.
    pub source: Source,
    /// Whether the setting has a value that is not shown.
    pub hidden: bool,
}

impl Setting {
    /// Whether the value overrides one of the file.
    pub(super) fn overrides_file(&self) -> bool {
        matches!(self.source, Source::Variable(_) | Source::Flag)
    }
}

/// Quotes a text as TOML.
pub fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

/// Shows a value in an error message, in quotes and with JSON's escapes.
pub fn shown_text(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
