//! Modelfiles: the text from which a model is created, and which `show --modelfile` prints.

pub(crate) mod params;
mod parse;
mod print;

use std::fmt;

pub use params::{check_ranges, format_parameters, parse_parameter};

/// A Modelfile, its instructions in order.
#[derive(Debug, Clone, Default)]
pub struct Modelfile {
    /// What it says.
    pub instructions: Vec<Instruction>,
    /// The line on which each begins, from 1; empty for one that was not read from a text.
    pub lines: Vec<usize>,
}

/// Two texts that say the same are the same Modelfile.
impl PartialEq for Modelfile {
    fn eq(&self, other: &Self) -> bool {
        self.instructions == other.instructions
    }
}

/// The names of the instructions.
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

/// What is wrong with a Modelfile.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // the message of a variant is its documentation, the fields are what it prints
pub enum ModelfileError {
    #[error("(line {line}): {problem}")]
    Line { line: usize, problem: LineProblem },
    #[error("unexpected EOF{} (line {line}: {wanted})", if text.is_empty() { String::new() } else { format!(": {text}") })]
    UnexpectedEnd { line: usize, text: String, wanted: Wanted },
    #[error(
        "no FROM line: a Modelfile names what the model is made from, such as `FROM llama3.2` or `FROM ./model.gguf`"
    )]
    NoFrom,
    #[error("unknown parameter '{0}'")]
    UnknownParameter(String),
    #[error("invalid {kind} value [{value}]")]
    ParameterValue { kind: &'static str, value: String },
    #[error("parameter '{name}' must be {want}, but is {value}")]
    ParameterRange { name: &'static str, want: &'static str, value: String },
}

/// What is wrong on a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LineProblem {
    /// No such instruction.
    Command {
        /// What stands there.
        found: String,
        /// What may be meant.
        meant: Option<&'static str>,
    },
    /// No such role.
    Role {
        /// What stands there.
        found: String,
    },
    /// An instruction with nothing behind it.
    Bare(Wanted),
}

/// What should have come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// What the instruction of this name needs.
    Value(&'static str),
    /// The end of a text in quotes.
    Quotes,
}

impl fmt::Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Wanted::Value("PARAMETER") => {
                f.write_str("PARAMETER needs a name and a value, such as `PARAMETER num_ctx 4096`")
            }
            Wanted::Value("MESSAGE") => {
                f.write_str("MESSAGE needs a role and a text, such as `MESSAGE user Hello`")
            }
            Wanted::Value(name) => write!(f, "{name} needs a value behind it on the same line"),
            Wanted::Quotes => f.write_str("the quotes that open there are not closed"),
        }
    }
}

impl fmt::Display for LineProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LineProblem::Command { found, meant } => {
                f.write_str(
                    "command must be one of \"from\", \"license\", \"template\", \"system\", \"adapter\", \"draft\", \
                     \"renderer\", \"parser\", \"parameter\", \"message\", or \"requires\"",
                )?;
                write!(f, ", and \"{found}\" is none of them")?;
                meant.map_or(Ok(()), |meant| write!(f, ": did you mean {meant}?"))
            }
            LineProblem::Role { found } => write!(
                f,
                "message role must be one of \"system\", \"user\", or \"assistant\", and \"{found}\" is none of them"
            ),
            LineProblem::Bare(wanted) => wanted.fmt(f),
        }
    }
}
