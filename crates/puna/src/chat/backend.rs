//! What a session needs of a server.

use std::ops::ControlFlow;

use puna_api::native::{ChatRequest, CreateRequest, Metrics, ShowRequest, ShowResponse, Think, ToolCall};

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
    fn load(&mut self, model: &str, think: Option<Think>, interrupt: &Interrupt) -> Result<(), BackendError>;

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
    /// The model cannot think as asked.
    #[error("{0}")]
    Thinking(String),
    /// No model may be called that.
    #[error("{0}")]
    InvalidName(String),
    /// A server behind the server failed; trying again may help.
    #[error("{0}")]
    Upstream(String),
    /// Ctrl-C.
    #[error("interrupted")]
    Interrupted,
    /// Anything else.
    #[error(transparent)]
    Other(#[from] anyhow::Error),
}

impl BackendError {
    /// Sorts an error of a server by its text, as nothing else tells the reasons apart.
    pub fn from_message(message: String) -> Self {
        let has = |text: &str| message.contains(text);
        if has("does not support thinking") || has("invalid think value") {
            Self::Thinking(message)
        } else if has("invalid model name") {
            Self::InvalidName(message)
        } else if has("upstream error") {
            Self::Upstream(message)
        } else if has("not found") {
            Self::NotFound(message)
        } else {
            Self::Other(anyhow::Error::msg(message))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_sorted_by_their_text() {
        let of = |text: &str| BackendError::from_message(text.into());
        assert!(matches!(of("model 'x' not found"), BackendError::NotFound(_)));
        assert!(matches!(of(r#""x" does not support thinking"#), BackendError::Thinking(_)));
        assert!(matches!(of("invalid think value: \"y\""), BackendError::Thinking(_)));
        assert!(matches!(of("400 Bad Request: invalid model name"), BackendError::InvalidName(_)));
        assert!(matches!(of("upstream error: 502"), BackendError::Upstream(_)));
        assert_eq!(of("out of memory").to_string(), "out of memory");
    }
}
