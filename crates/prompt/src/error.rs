//! The error type of this crate.

use crate::limits::TemplateLimit;

/// Error of parsing a template or rendering a prompt. Lines count from 1.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PromptError {
    /// A Go template does not parse. The text equals that of Go's `text/template`.
    #[error("template: :{line}: {message}")]
    GoSyntax {
        /// Line of the offending token.
        line: usize,
        /// Message as in Go.
        message: String,
    },
    /// A Go template failed at run time.
    #[error("template: :{line}:{column}: executing {template:?} at <{node}>: {message}")]
    GoRender {
        /// Name of the `define` block in execution; empty for the main template.
        template: String,
        /// Line of the failing node.
        line: usize,
        /// Byte column of the failing node, from 0 as in Go.
        column: usize,
        /// The failing node as source text.
        node: String,
        /// Message as in Go.
        message: String,
    },
    /// A Jinja template does not parse.
    #[error("chat template, line {line}: {message}")]
    JinjaSyntax {
        /// Line of the offending token.
        line: usize,
        /// Message as in Jinja2.
        message: String,
    },
    /// A Jinja template failed at run time.
    #[error("chat template, line {line}: {message}")]
    JinjaRender {
        /// Line of the failing statement.
        line: usize,
        /// Message as in Jinja2.
        message: String,
    },
    /// The Jinja template refused the conversation with `raise_exception`.
    #[error("the chat template refuses this conversation (line {line}): {message}")]
    Raised {
        /// Line of the call.
        line: usize,
        /// Argument of `raise_exception`.
        message: String,
    },
    /// A template exceeded a resource limit.
    #[error("template stopped at line {line}: {limit}")]
    Limit {
        /// Line in execution; 0 if the source itself was refused.
        line: usize,
        /// The exceeded limit.
        limit: TemplateLimit,
    },
    /// No built-in renderer has this name.
    #[error("unknown renderer {0:?}")]
    UnknownRenderer(String),
    /// A built-in renderer refused the conversation. The text is that of Ollama.
    #[error("{0}")]
    Refused(String),
    /// The template refuses one message of the conversation.
    #[error("messages[{index}]: {error}")]
    Message {
        /// Index of the message in the conversation, from 0.
        index: usize,
        /// Reason of the refusal.
        error: Box<PromptError>,
    },
    /// The template writes nothing for messages of this role.
    #[error("unknown role {role:?}: use system, user, assistant or tool")]
    UnknownRole {
        /// The unknown role.
        role: String,
    },
    /// The conversation contains a tool result without its call.
    #[error("{}", result_without_call(id))]
    ResultWithoutCall {
        /// Id of the missing call; may be empty.
        id: String,
    },
    /// The request has a `suffix`, but the template does not support fill-in-the-middle.
    #[error("this template does not support a suffix (fill-in-the-middle)")]
    NoInsert,
    /// The caller's token counter failed.
    #[error("cannot count the tokens of the prompt: {0}")]
    Count(String),
}

fn result_without_call(id: &str) -> String {
    let call = if id.is_empty() { "call".to_owned() } else { format!("call {id:?}") };
    format!(
        "this result has no {call} in an earlier assistant message: send that message, or leave out the result"
    )
}

impl PromptError {
    /// Shifts the message index of the error by `count` leading messages. An error in one of these
    /// messages loses its index.
    pub fn without_leading_messages(self, count: usize) -> Self {
        match self {
            Self::Message { index, error } if index >= count => {
                Self::Message { index: index - count, error }
            }
            Self::Message { error, .. } => *error,
            other => other,
        }
    }

    /// Returns true if the template may accept an adapted form of the conversation.
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
