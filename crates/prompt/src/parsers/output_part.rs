//! Parts of the output that parsers return.

use super::FunctionCall;
use super::call_stream::{CallStream, CallUpdate, StreamedFormat};
use super::tools::Tools;

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
    #[error("a call has the form {0}")]
    Syntax(&'static str),
    /// The complete call differs from the streamed one.
    #[error("a name or arguments come twice")]
    Changed,
    /// The text ends inside a call.
    #[error("the text ends inside of the call")]
    Unclosed,
    /// The text ends inside a tag.
    #[error("the text ends inside of a tag")]
    TagCutOff,
}

/// Collects the parts of the output.
#[derive(Debug, Clone, Default)]
pub(super) struct PartSink {
    parts: Vec<OutputPart>,
    calls: usize,
    /// The current call, with call streaming.
    stream: Option<CallStream>,
    /// The last malformed call had been streamed.
    was_streamed: bool,
}

impl PartSink {
    /// Streams calls while their arguments arrive.
    pub(super) fn enable_call_streaming(&mut self) {
        self.stream = Some(CallStream::default());
    }

    /// Returns true if there were calls.
    pub(super) fn has_calls(&self) -> bool {
        self.calls > 0
    }

    /// Returns true if calls are streamed, but the last malformed call was not.
    pub(super) fn last_malformed_was_not_streamed(&self) -> bool {
        self.stream.is_some() && !self.was_streamed
    }

    /// Prepares for the next call. Returns the state of the current one.
    fn reset_stream(&mut self) -> Option<CallStream> {
        self.stream.as_mut().map(std::mem::take)
    }

    /// Streams the current call; `text` is its text so far.
    pub(super) fn stream_call(&mut self, format: StreamedFormat<'_>, text: &str, tools: &Tools) {
        let Some(stream) = &mut self.stream else { return };
        for update in stream.advance(format, text, tools) {
            match (update, self.parts.last_mut()) {
                (CallUpdate::Started(name), _) => self.parts.push(OutputPart::CallStart(name)),
                (CallUpdate::Arguments(text), Some(OutputPart::CallArguments(last))) => {
                    last.push_str(&text)
                }
                (CallUpdate::Arguments(text), _) => {
                    self.parts.push(OutputPart::CallArguments(text))
                }
                (CallUpdate::Complete(call), _) => {
                    self.parts.push(OutputPart::Call(FunctionCall { index: self.calls, ..call }));
                    self.calls += 1;
                }
            }
        }
    }

    /// The current text turned out to be no call. Returns true if a call had been started.
    pub(super) fn abandon_call(&mut self) -> bool {
        let was_streamed = self.reset_stream().is_some_and(|stream| stream.is_open());
        if was_streamed {
            let error = CallError::Syntax("a tool's name and a JSON object");
            self.parts.push(OutputPart::Malformed { text: String::new(), error });
        }
        was_streamed
    }

    /// Adds text of the answer.
    pub(super) fn content(&mut self, text: &str) {
        match self.parts.last_mut() {
            _ if text.is_empty() => {}
            Some(OutputPart::Content(last)) => last.push_str(text),
            _ => self.parts.push(OutputPart::Content(text.to_owned())),
        }
    }

    /// Adds text of the reasoning.
    pub(super) fn thinking(&mut self, text: &str) {
        match self.parts.last_mut() {
            _ if text.is_empty() => {}
            Some(OutputPart::Thinking(last)) => last.push_str(text),
            _ => self.parts.push(OutputPart::Thinking(text.to_owned())),
        }
    }

    /// Adds calls with their indices. On an error, adds the malformed text: `text` gets the length
    /// of the calls that were already sent, in bytes.
    pub(super) fn calls(
        &mut self,
        calls: Result<Vec<FunctionCall>, CallError>,
        text: impl FnOnce(usize) -> String,
    ) {
        let stream = self.stream.as_ref();
        let completed = stream.map_or(0, CallStream::completed_bytes);
        match calls {
            Ok(calls) if stream.is_some_and(|stream| !stream.matches(&calls)) => {
                self.malformed(text(completed), CallError::Changed);
            }
            Ok(calls) => {
                let completed = self.reset_stream().map_or(0, |stream| stream.completed());
                for mut call in calls.into_iter().skip(completed) {
                    call.index = self.calls;
                    self.calls += 1;
                    self.parts.push(OutputPart::Call(call));
                }
            }
            Err(error) => self.malformed(text(completed), error),
        }
    }

    /// Adds a malformed call. A call without text is only reported if parts of it were sent.
    pub(super) fn malformed(&mut self, text: String, error: CallError) {
        let stream = self.reset_stream();
        self.was_streamed = stream.as_ref().is_some_and(CallStream::is_open);
        let was_sent = self.was_streamed || stream.is_some_and(|stream| stream.completed() > 0);
        if was_sent || !text.is_empty() {
            self.parts.push(OutputPart::Malformed { text, error });
        }
    }

    /// Removes and returns the collected parts.
    pub(super) fn take_parts(&mut self) -> Vec<OutputPart> {
        std::mem::take(&mut self.parts)
    }
}
