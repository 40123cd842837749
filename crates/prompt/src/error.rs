//! The one error of this crate.

use crate::limits::Bound;

/// Why a template could not be read or a prompt not be made. Lines count from 1.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PromptError {
    /// A Go template that does not parse. The text is the one that Go's `text/template` gives.
    #[error("template: :{line}: {message}")]
    GoSyntax {
        /// Line of the offending token.
        line: usize,
        /// What Go would say.
        message: String,
    },
    /// A Go template that failed while it ran.
    #[error("template: :{line}:{column}: executing {template:?} at <{node}>: {message}")]
    GoRender {
        /// Name of the `define` that was running; empty for the main template.
        template: String,
        /// Line of the failing node.
        line: usize,
        /// Byte column of the failing node, from 0 as in Go.
        column: usize,
        /// The failing node as source text.
        node: String,
        /// What Go would say.
        message: String,
    },
    /// A Jinja template that does not parse.
    #[error("chat template, line {line}: {message}")]
    JinjaSyntax {
        /// Line of the offending token.
        line: usize,
        /// What Jinja2 would say.
        message: String,
    },
    /// A Jinja template that failed while it ran.
    #[error("chat template, line {line}: {message}")]
    JinjaRender {
        /// Line of the failing statement.
        line: usize,
        /// What Jinja2 would say.
        message: String,
    },
    /// The Jinja template itself refused the conversation with `raise_exception`.
    #[error("the chat template refuses this conversation (line {line}): {message}")]
    Raised {
        /// Line of the call.
        line: usize,
        /// The template's own words.
        message: String,
    },
    /// A template did more than any honest template does, and was stopped.
    #[error("template stopped at line {line}: {bound}")]
    Limit {
        /// Line that was running; 0 if the source was refused as a whole.
        line: usize,
        /// Which bound was reached.
        bound: Bound,
    },
    /// There is no built-in renderer of this name.
    #[error("unknown renderer {0:?}")]
    UnknownRenderer(String),
    /// A built-in renderer refused the conversation; the text says why, in the words of Ollama.
    #[error("{0}")]
    Refused(String),
    /// The template refuses a message of the conversation.
    #[error("messages[{index}]: {error}")]
    Message {
        /// The place of the message in the conversation, from 0.
        index: usize,
        /// Why.
        error: Box<PromptError>,
    },
    /// The template writes nothing of messages with this role.
    #[error(
        "the role {role:?} is unknown to this model's template: use system, user, assistant or tool"
    )]
    UnknownRole {
        /// The role.
        role: String,
    },
    /// The result of a call that is not in the conversation.
    #[error("{}", result_without_call(id))]
    ResultWithoutCall {
        /// The id of the call that the result names; may be empty.
        id: String,
    },
    /// `suffix` was given, but the template has no place for it.
    #[error("this template has no place for a suffix (no fill-in-the-middle support)")]
    NoInsert,
    /// The token counter that the caller gave failed.
    #[error("counting the tokens of the prompt: {0}")]
    Count(String),
}

fn result_without_call(id: &str) -> String {
    let call = if id.is_empty() { "a call".to_owned() } else { format!("the call {id:?}") };
    format!(
        "this is the result of {call} that no assistant message before it makes: send that message too, or leave the result out"
    )
}

impl PromptError {
    /// The same error with the place of its message counted from a later message on; without a place for an earlier one.
    pub fn behind(self, before: usize) -> Self {
        match self {
            Self::Message { index, error } if index >= before => {
                Self::Message { index: index - before, error }
            }
            Self::Message { error, .. } => *error,
            other => other,
        }
    }

    /// Whether the template refuses a conversation that it may accept in another form.
    pub(crate) fn is_refusal(&self) -> bool {
        matches!(
            self,
            Self::Raised { .. }
                | Self::Refused(_)
                | Self::JinjaRender { .. }
                | Self::GoRender { .. }
        )
    }
}
