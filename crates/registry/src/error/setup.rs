//! Errors of preparations for requests.

use std::path::PathBuf;

/// Why connections cannot be set up.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
// The message of a variant documents it and its fields.
#[allow(missing_docs)]
pub enum SetupProblem {
    #[error(
        "{address:?} is not the address of a registry: use HOST, HOST:PORT or a URL such as https://registry.example.com:5000"
    )]
    Address { address: String },
    #[error("cannot read the certificates {}: {reason}", .path.display())]
    Certificates { path: PathBuf, reason: String },
    #[error("no certificates in {}", .path.display())]
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
    #[error("cannot get random numbers from the system")]
    NoRandomNumbers,
    #[error("cannot search for mirrors: {reason}")]
    Discovery { reason: String },
    #[error("cannot announce the mirror: {reason}")]
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
