//! What parsers give.

use super::FunctionCall;

/// A part of the output, in the order of the text.
#[derive(Debug, Clone, PartialEq)]
pub enum Part {
    /// New text of the thought.
    Thinking(String),
    /// New text of the answer.
    Content(String),
    /// A tool call.
    Call(FunctionCall),
    /// Text that was meant as a call, or broke off in one, and cannot be read.
    Malformed {
        /// The text, tags included.
        text: String,
        /// Why.
        error: CallError,
    },
}

/// Why a tool call cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// Its JSON is none.
    #[error("failed to parse JSON: {0}")]
    Json(String),
    /// It names no function.
    #[error("empty function name")]
    NoName,
    /// It names a function that was not offered.
    #[error("tool '{0}' not found")]
    Undeclared(String),
    /// An argument is not there that has to be.
    #[error("incomplete tool call: required argument {argument:?} is missing for tool {tool:?}")]
    Missing {
        /// The tool.
        tool: String,
        /// The argument.
        argument: String,
    },
    /// The message is for another function than the call in it.
    #[error("recipient {recipient:?} does not match the call of {name:?}")]
    Recipient {
        /// Whom the message is for.
        recipient: String,
        /// What is called.
        name: String,
    },
    /// It is written otherwise than the model's calls are.
    #[error("a call has the form {0}")]
    Form(&'static str),
    /// The text ends before the call does.
    #[error("the text ends inside of the call")]
    Unclosed,
    /// The text ends in what may have become a tag.
    #[error("the text ends inside of a tag")]
    TagCutOff,
}

/// Collects parts.
#[derive(Debug, Clone, Default)]
pub(super) struct Out {
    parts: Vec<Part>,
    calls: usize,
}

impl Out {
    pub(super) fn content(&mut self, text: &str) {
        match self.parts.last_mut() {
            _ if text.is_empty() => {}
            Some(Part::Content(last)) => last.push_str(text),
            _ => self.parts.push(Part::Content(text.to_owned())),
        }
    }

    pub(super) fn thinking(&mut self, text: &str) {
        match self.parts.last_mut() {
            _ if text.is_empty() => {}
            Some(Part::Thinking(last)) => last.push_str(text),
            _ => self.parts.push(Part::Thinking(text.to_owned())),
        }
    }

    /// Adds calls with their numbers, or the text that they cannot be read from.
    pub(super) fn calls(
        &mut self,
        calls: Result<Vec<FunctionCall>, CallError>,
        text: impl FnOnce() -> String,
    ) {
        match calls {
            Ok(calls) => {
                for mut call in calls {
                    call.index = self.calls;
                    self.calls += 1;
                    self.parts.push(Part::Call(call));
                }
            }
            Err(error) => self.malformed(text(), error),
        }
    }

    pub(super) fn malformed(&mut self, text: String, error: CallError) {
        if !text.is_empty() {
            self.parts.push(Part::Malformed { text, error });
        }
    }

    pub(super) fn take(&mut self) -> Vec<Part> {
        std::mem::take(&mut self.parts)
    }
}
