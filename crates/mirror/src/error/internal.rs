//! Failures of the registry itself.

use std::any::Any;

use puna_registry::RegistryError;
use puna_store::ModelName;

/// What failed. Clients see only that something did; the log shows the message.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[allow(missing_docs)] // the message of a variant is its documentation
pub enum InternalError {
    #[error("cannot get random numbers from the system")]
    NoRandomNumbers,
    #[error("a task panicked: {message}")]
    Panic { message: String },
    #[error("a task panicked: the log has the message")]
    LoggedPanic,
    /// A task was cancelled or panicked.
    #[error("{reason}")]
    Task { reason: String },
    /// A value cannot be written as JSON.
    #[error("{reason}")]
    Json { reason: String },
    #[error("stopped sending a blob: {reason}")]
    BlobNotVerified { reason: String },
    #[error("cannot read a blob: {reason}")]
    BlobUnreadable { reason: String },
    #[error("merging the files of {0} was cancelled")]
    AssemblyGivenUp(Box<ModelName>),
    /// A fetch failed because of files or settings of this machine.
    #[error("{0}")]
    FetchConfiguration(Box<RegistryError>),
}

impl InternalError {
    /// Converts the panic of a task.
    pub(crate) fn from_panic(panic: &(dyn Any + Send)) -> Self {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or(panic.downcast_ref::<&str>().copied());
        Self::Panic { message: text.unwrap_or("no message").to_owned() }
    }
}

impl From<serde_json::Error> for InternalError {
    fn from(error: serde_json::Error) -> Self {
        Self::Json { reason: error.to_string() }
    }
}

impl From<tokio::task::JoinError> for InternalError {
    fn from(error: tokio::task::JoinError) -> Self {
        Self::Task { reason: error.to_string() }
    }
}
