//! Errors of request bodies, with Ollama's messages.

use serde::de;

use crate::json::SyntaxError;

/// Why a request body could not be decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DecodeError {
    /// The body is not JSON.
    Syntax(SyntaxError),
    /// A field has the wrong JSON type.
    Type {
        /// JSON type of the value.
        actual: String,
        /// Type that was expected.
        expected: &'static str,
        /// Name of the outermost type.
        root: &'static str,
        /// Field names from the innermost to the outermost.
        path: Vec<String>,
    },
    /// A field's own rule was violated; the text is the whole message.
    Field(String),
}

impl std::error::Error for DecodeError {}

impl std::fmt::Display for DecodeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Syntax(e) => e.fmt(f),
            Self::Field(text) => f.write_str(text),
            Self::Type { actual, expected, root, path } if path.is_empty() => {
                let expected = if root.is_empty() { expected } else { root };
                write!(f, "json: cannot unmarshal {actual} into Go value of type {expected}")
            }
            Self::Type { actual, expected, root, path } => {
                let path = path.iter().rev().map(String::as_str).collect::<Vec<_>>().join(".");
                write!(
                    f,
                    "json: cannot unmarshal {actual} into Go struct field {root}.{path} of type {expected}"
                )
            }
        }
    }
}

impl de::Error for DecodeError {
    fn custom<T: std::fmt::Display>(text: T) -> Self {
        Self::Field(text.to_string())
    }

    /// Types that accept several JSON types use this error. It names the field like the error of a
    /// type that accepts one.
    fn invalid_type(actual: de::Unexpected<'_>, expected: &dyn de::Expected) -> Self {
        let kind = match actual {
            de::Unexpected::Unit => "null",
            de::Unexpected::Bool(_) => "bool",
            de::Unexpected::Signed(_) | de::Unexpected::Unsigned(_) | de::Unexpected::Float(_) => {
                "number"
            }
            de::Unexpected::Str(_) => "string",
            de::Unexpected::Seq => "array",
            de::Unexpected::Map => "object",
            _ => "",
        };
        match expected.to_string().as_str() {
            "string" => {
                Self::Type { actual: kind.into(), expected: "string", root: "", path: Vec::new() }
            }
            expected => Self::Field(format!("invalid type: {actual}, expected {expected}")),
        }
    }
}
