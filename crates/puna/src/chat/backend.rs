//! Interface between a chat session and a server.

use std::ops::ControlFlow;

use puna_api::ClientError;
use puna_api::ollama::{
    ChatRequest, CreateRequest, Metrics, ShowRequest, ShowResponse, Think, ToolCall,
};

use super::Interrupt;

/// Generates answers, and loads, describes and stores models for a session. Over HTTP, each method
/// sends one request. Names are given as the user wrote them.
pub trait Backend {
    /// Streams the answer to a conversation into `on_event`. Returns early, without an error, when
    /// `on_event` breaks or `interrupt` is raised. Raising `interrupt` also ends the wait for the
    /// first event.
    fn chat(
        &mut self,
        request: ChatRequest,
        interrupt: &Interrupt,
        on_event: &mut dyn FnMut(ChatEvent) -> ControlFlow<()>,
    ) -> Result<(), BackendError>;

    /// Loads a model so that the first answer starts at once. Fails if the model does not support
    /// the options.
    fn load(
        &mut self,
        model: &str,
        think: Option<Think>,
        interrupt: &Interrupt,
    ) -> Result<(), BackendError>;

    /// Returns the details of a model.
    fn show(&mut self, request: ShowRequest) -> Result<ShowResponse, BackendError>;

    /// Stores a model created from the session.
    fn create(&mut self, request: CreateRequest) -> Result<(), BackendError>;

    /// Returns the table that `puna list PREFIX` prints.
    fn list_table(&mut self, prefix: Option<&str>) -> Result<String, BackendError>;

    /// Returns the text that `puna show MODEL` prints.
    fn describe(&self, info: &ShowResponse) -> String;
}

/// An event of an answer's stream.
#[derive(Clone, Debug, PartialEq)]
pub enum ChatEvent {
    /// A piece of the model's reasoning.
    Thinking(String),
    /// A piece of the answer.
    Content(String),
    /// A tool call by the model.
    ToolCall(ToolCall),
    /// Token counts and times at the end.
    Done(Metrics),
}

/// Reasons for a failed request that a session distinguishes.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    /// The server has no model of this name.
    #[error("{0}")]
    NotFound(String),
    /// The server refused the request or the connection broke. Holds the message; the next request
    /// may succeed.
    #[error("{0}")]
    Refused(String),
    /// The user pressed Ctrl-C.
    #[error("interrupted")]
    Interrupted,
    /// A local failure, such as a closed output.
    #[error(transparent)]
    Other(#[from] anyhow::Error),
}

impl From<ClientError> for BackendError {
    fn from(error: ClientError) -> Self {
        match error {
            ClientError::Status { status: 404, message } => Self::NotFound(message),
            other => Self::Refused(other.to_string()),
        }
    }
}
