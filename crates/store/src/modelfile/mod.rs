//! Modelfiles: the text from which a model is created, and which `show --modelfile` prints.

pub(crate) mod params;
mod parse;
mod print;

use std::fmt;

pub use params::{check_ranges, format_parameters, parse_parameter};

/// A Modelfile, its instructions in order.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Modelfile {
    /// What it says.
    pub instructions: Vec<Instruction>,
}

/// One instruction.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)] // the instructions of the language
pub enum Instruction {
    From(String),
    License(String),
    Template(String),
    System(String),
    Adapter(String),
    Draft(String),
    Renderer(String),
    Parser(String),
    Requires(String),
    Parameter { name: String, value: String },
    Message { role: String, content: String },
}

/// What is wrong with a Modelfile.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // the message of a variant is its documentation, the fields are what it prints
pub enum ModelfileError {
    #[error("(line {line}): {problem}")]
    Line { line: usize, problem: LineProblem },
    #[error("unexpected EOF{}", if text.is_empty() { String::new() } else { format!(": {text}") })]
    UnexpectedEnd { text: String },
    #[error("no FROM line")]
    NoFrom,
    #[error("unknown parameter '{0}'")]
    UnknownParameter(String),
    #[error("invalid {kind} value [{value}]")]
    ParameterValue { kind: &'static str, value: String },
    #[error("parameter '{name}' must be {want}, but is {value}")]
    ParameterRange { name: &'static str, want: &'static str, value: String },
}

/// What is wrong on a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LineProblem {
    /// No such instruction.
    Command,
    /// No such role.
    Role,
}

impl fmt::Display for LineProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LineProblem::Command => {
                "command must be one of \"from\", \"license\", \"template\", \"system\", \"adapter\", \"draft\", \
                 \"renderer\", \"parser\", \"parameter\", \"message\", or \"requires\""
            }
            LineProblem::Role => "message role must be one of \"system\", \"user\", or \"assistant\"",
        })
    }
}
