//! Errors of preparations for requests.

use std::path::PathBuf;

/// Why connections cannot be set up.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
// The message of a variant documents it and its fields.
#[allow(missing_docs)]
pub enum SetupProblem {
    #[error("{address:?} is no address of a registry")]
    Address { address: String },
    #[error("the certificates {}: {reason}", .path.display())]
    Certificates { path: PathBuf, reason: String },
    #[error("the certificates {}: there are none in it", .path.display())]
    NoCertificates { path: PathBuf },
    #[error("{reason}")]
    Tls { reason: String },
    #[error("{reason}")]
    Client { reason: String },
    #[error("{reason}")]
    Header { reason: String },
    #[error("{reason}")]
    Json { reason: String },
    /// A task was cancelled or panicked.
    #[error("{reason}")]
    Task { reason: String },
    #[error("no random numbers")]
    NoRandomNumbers,
    #[error("mirrors cannot be looked for: {reason}")]
    Discovery { reason: String },
    #[error("the mirror cannot be announced: {reason}")]
    Announcement { reason: String },
}

impl From<serde_json::Error> for SetupProblem {
    fn from(error: serde_json::Error) -> Self {
        Self::Json { reason: error.to_string() }
    }
}

impl From<tokio::task::JoinError> for SetupProblem {
    fn from(error: tokio::task::JoinError) -> Self {
        Self::Task { reason: error.to_string() }
    }
}
