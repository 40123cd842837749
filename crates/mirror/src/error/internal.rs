//! Failures of the registry itself.

use std::any::Any;

use puna_registry::RegistryError;
use puna_store::ModelName;

/// What failed. Clients see only that something did; the log shows the message.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[allow(missing_docs)] // the message of a variant is its documentation
pub enum InternalError {
    #[error("the system gives no random numbers")]
    NoRandomNumbers,
    #[error("it panicked: {message}")]
    Panic { message: String },
    #[error("a panic, which the log has")]
    LoggedPanic,
    /// A task was cancelled or panicked.
    #[error("{reason}")]
    Task { reason: String },
    /// A value cannot be written as JSON.
    #[error("{reason}")]
    Json { reason: String },
    #[error("a blob is given out no further: {reason}")]
    BlobNotVerified { reason: String },
    #[error("a blob cannot be read: {reason}")]
    BlobUnreadable { reason: String },
    #[error("making {0} was given up")]
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
        Self::Panic { message: text.unwrap_or("without a message").to_owned() }
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
