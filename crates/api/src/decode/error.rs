//! What is wrong with a body, in the words of the original.

use serde::de;

use crate::json::SyntaxError;

/// Why a request body is not the request that a route takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DecodeError {
    /// Not JSON.
    Syntax(SyntaxError),
    /// JSON of another type than the field has.
    Type {
        /// Kind of the JSON value that was given.
        got: String,
        /// Type that was expected.
        want: &'static str,
        /// Name of the outermost type.
        root: &'static str,
        /// Field names from the innermost to the outermost.
        path: Vec<String>,
    },
    /// A field's own rule was broken; the text says it all.
    Field(String),
}

impl std::error::Error for DecodeError {}

impl std::fmt::Display for DecodeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Syntax(e) => e.fmt(f),
            Self::Field(text) => f.write_str(text),
            Self::Type { got, want, root, path } if path.is_empty() => {
                let want = if root.is_empty() { want } else { root };
                write!(f, "json: cannot unmarshal {got} into Go value of type {want}")
            }
            Self::Type { got, want, root, path } => {
                let path = path.iter().rev().map(String::as_str).collect::<Vec<_>>().join(".");
                write!(
                    f,
                    "json: cannot unmarshal {got} into Go struct field {root}.{path} of type {want}"
                )
            }
        }
    }
}

impl de::Error for DecodeError {
    fn custom<T: std::fmt::Display>(text: T) -> Self {
        Self::Field(text.to_string())
    }

    /// For those who read JSON of several types: the field is named as where it has only one.
    fn invalid_type(got: de::Unexpected<'_>, want: &dyn de::Expected) -> Self {
        let kind = match got {
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
        match want.to_string().as_str() {
            "string" => Self::Type { got: kind.into(), want: "string", root: "", path: Vec::new() },
            want => Self::Field(format!("invalid type: {got}, expected {want}")),
        }
    }
}
