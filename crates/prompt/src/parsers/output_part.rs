//! Parts of the output that parsers return.

use crate::message::FunctionCall;

/// A part of the output, in the order of the text.
#[derive(Debug, Clone, PartialEq)]
pub enum OutputPart {
    /// New text of the reasoning.
    Thinking(String),
    /// New text of the answer.
    Content(String),
    /// A call of this tool starts. Only with call streaming.
    CallStart(String),
    /// More JSON text of the arguments of the started call.
    CallArguments(String),
    /// A complete tool call. It completes the started call, if there is one.
    Call(FunctionCall),
    /// Text of a call that is invalid or incomplete. It ends the started call, if there is one.
    Malformed {
        /// The text with its tags. In a list, the text behind the calls that are already complete.
        /// Empty if the started call turned out to be no call, and its text may still be
        /// classified.
        text: String,
        /// Reason.
        error: CallError,
    },
}

/// Error of reading a tool call.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// The text is not JSON.
    #[error("failed to parse JSON: {0}")]
    Json(String),
    /// The call names no function.
    #[error("empty function name")]
    NoName,
    /// The called function is not declared.
    #[error("tool '{0}' not found")]
    Undeclared(String),
    /// A required argument is missing.
    #[error("incomplete tool call: required argument {argument:?} is missing for tool {tool:?}")]
    Missing {
        /// Name of the tool.
        tool: String,
        /// Name of the argument.
        argument: String,
    },
    /// The recipient of the message differs from the called function.
    #[error("recipient {recipient:?} does not match the call of {name:?}")]
    Recipient {
        /// Recipient of the message.
        recipient: String,
        /// Name of the called function.
        name: String,
    },
    /// The call does not have the syntax of the model's calls.
    #[error("invalid call syntax: expected {0}")]
    Syntax(&'static str),
    /// The complete call differs from the streamed one.
    #[error("the call has two names or two sets of arguments")]
    Changed,
    /// The text ends inside a call.
    #[error("the call is incomplete")]
    Unclosed,
    /// The text ends inside a tag.
    #[error("the tag is incomplete")]
    TagCutOff,
}
