//! Modelfiles: the recipes from which models are created, and which `show --modelfile` prints.

pub(crate) mod params;
mod parse;
mod print;

use std::fmt;

pub use params::{check_ranges, format_parameters, parse_parameter};

/// A Modelfile.
#[derive(Debug, Clone, Default)]
pub struct Modelfile {
    /// The instructions, in order.
    pub instructions: Vec<Instruction>,
    /// The line of each instruction, from 1; empty if the Modelfile was not parsed from a text.
    pub lines: Vec<usize>,
}

/// Line numbers do not count.
impl PartialEq for Modelfile {
    fn eq(&self, other: &Self) -> bool {
        self.instructions == other.instructions
    }
}

/// Names of the instructions.
pub(crate) const KEYWORDS: [&str; 11] = [
    "FROM",
    "LICENSE",
    "TEMPLATE",
    "SYSTEM",
    "ADAPTER",
    "DRAFT",
    "RENDERER",
    "PARSER",
    "PARAMETER",
    "MESSAGE",
    "REQUIRES",
];

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

/// An error in a Modelfile.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // the message of a variant is its documentation, the fields are what it prints
pub enum ModelfileError {
    #[error("(line {line}): {problem}")]
    Line { line: usize, problem: LineProblem },
    #[error("unexpected EOF{} (line {line}: {wanted})", if text.is_empty() { String::new() } else { format!(": {text}") })]
    UnexpectedEnd { line: usize, text: String, wanted: ExpectedInput },
    #[error(
        "no FROM line: name the source of the model, such as `FROM llama3.2` or `FROM ./model.gguf`"
    )]
    NoFrom,
    #[error("unknown parameter '{0}'")]
    UnknownParameter(String),
    #[error("invalid {kind} value [{value}]")]
    ParameterValue { kind: &'static str, value: String },
    #[error("parameter '{name}' must be {want}, but is {value}")]
    ParameterRange { name: &'static str, want: &'static str, value: String },
}

/// An error on a line of a Modelfile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LineProblem {
    /// The instruction does not exist.
    UnknownInstruction {
        /// The word in the text.
        found: String,
        /// The most similar instruction.
        suggestion: Option<&'static str>,
    },
    /// The role does not exist.
    UnknownRole {
        /// The word in the text.
        found: String,
    },
    /// The instruction has no value on its line.
    MissingValue(ExpectedInput),
}

/// Text that the parser expected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExpectedInput {
    /// The value of the instruction with this name.
    Value(&'static str),
    /// The end of a quoted text.
    ClosingQuotes,
}

impl fmt::Display for ExpectedInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ExpectedInput::Value("PARAMETER") => {
                f.write_str("PARAMETER needs a name and a value, such as `PARAMETER num_ctx 4096`")
            }
            ExpectedInput::Value("MESSAGE") => {
                f.write_str("MESSAGE needs a role and a text, such as `MESSAGE user Hello`")
            }
            ExpectedInput::Value(name) => {
                write!(f, "{name} needs a value on the same line")
            }
            ExpectedInput::ClosingQuotes => f.write_str("the quotes are not closed"),
        }
    }
}

impl fmt::Display for LineProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LineProblem::UnknownInstruction { found, suggestion } => {
                f.write_str(
                    "command must be one of \"from\", \"license\", \"template\", \"system\", \"adapter\", \"draft\", \
                     \"renderer\", \"parser\", \"parameter\", \"message\", or \"requires\"",
                )?;
                write!(f, ", not \"{found}\"")?;
                suggestion.map_or(Ok(()), |suggestion| write!(f, ": did you mean {suggestion}?"))
            }
            LineProblem::UnknownRole { found } => write!(
                f,
                "message role must be one of \"system\", \"user\", or \"assistant\", not \"{found}\""
            ),
            LineProblem::MissingValue(wanted) => wanted.fmt(f),
        }
    }
}
