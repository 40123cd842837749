//! Errors and warnings of the configuration.

use std::path::PathBuf;

use super::effective::Source;

/// A setting is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// There is no home folder for the models.
    #[error("cannot find the models directory: set HOME, or OLLAMA_MODELS to the models directory")]
    NoHome,
    /// The configuration file cannot be read.
    #[error("cannot read the configuration file {}: {reason}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        reason: String,
    },
    /// Only one of certificate and key is set.
    #[error("{set} is set ({by}), but {missing} is not: TLS needs both")]
    IncompleteTls {
        /// The setting that is set.
        set: &'static str,
        /// Its source.
        by: Source,
        /// The missing setting.
        missing: &'static str,
    },
    /// A line of the configuration file is invalid.
    #[error("{}, line {line}: {text}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The problem.
        text: String,
    },
    /// A variable has an invalid value for which no default is safe.
    #[error("{variable} {text}")]
    Variable {
        /// Full name of the variable.
        variable: String,
        /// The problem with the value.
        text: String,
    },
    /// A command-line value is invalid.
    #[error("the setting {key} {text}")]
    Flag {
        /// The setting.
        key: &'static str,
        /// The problem with the value.
        text: String,
    },
}

/// A variable with an invalid value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warning {
    /// Full name of the variable.
    pub variable: String,
    /// The problem, the allowed values, and the value used instead.
    pub text: String,
}

impl std::fmt::Display for Warning {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.variable, self.text)
    }
}
