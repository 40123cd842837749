//! What a session needs of a server.

use std::ops::ControlFlow;

use puna_api::ClientError;
use puna_api::native::{
    ChatRequest, CreateRequest, Metrics, ShowRequest, ShowResponse, Think, ToolCall,
};

use super::Interrupt;

/// Answers, loads, describes and stores models for a session. Over HTTP each method is one request; names are given as
/// the user wrote them.
pub trait Backend {
    /// Streams the answer to a conversation into `on_event`. Ends early, without an error, when `on_event` breaks or
    /// `interrupt` is raised; waiting for the first event must end by the latter too.
    fn chat(
        &mut self,
        request: ChatRequest,
        interrupt: &Interrupt,
        on_event: &mut dyn FnMut(ChatEvent) -> ControlFlow<()>,
    ) -> Result<(), BackendError>;

    /// Loads a model, so that the first answer comes at once, or fails for what it does not support.
    fn load(
        &mut self,
        model: &str,
        think: Option<Think>,
        interrupt: &Interrupt,
    ) -> Result<(), BackendError>;

    /// What is known about a model.
    fn show(&mut self, request: ShowRequest) -> Result<ShowResponse, BackendError>;

    /// Stores a model made from the session.
    fn create(&mut self, request: CreateRequest) -> Result<(), BackendError>;

    /// The table that `puna list PREFIX` prints.
    fn list_table(&mut self, prefix: Option<&str>) -> Result<String, BackendError>;

    /// The text that `puna show MODEL` prints.
    fn describe(&self, info: &ShowResponse) -> String;
}

/// A part of an answer.
#[derive(Clone, Debug, PartialEq)]
pub enum ChatEvent {
    /// A piece of what the model thinks before it answers.
    Thinking(String),
    /// A piece of the answer.
    Content(String),
    /// A function that the model wants to be called.
    ToolCall(ToolCall),
    /// The figures at the end.
    Done(Metrics),
}

/// Why a request failed, as far as a session tells reasons apart.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    /// There is no such model.
    #[error("{0}")]
    NotFound(String),
    /// The server refused or broke off: its words. The next request may well succeed.
    #[error("{0}")]
    Refused(String),
    /// Ctrl-C.
    #[error("interrupted")]
    Interrupted,
    /// What happened on this side, such as an output that is closed.
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
