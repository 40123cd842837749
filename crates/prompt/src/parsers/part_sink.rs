//! Collects the parts of the output.

use super::call_stream::{CallStream, CallUpdate, StreamedFormat};
use super::output_part::{CallError, OutputPart};
use super::tools::Tools;
use crate::message::FunctionCall;

/// Collected parts of the output, and the state of the streamed call.
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

    /// Adds a malformed call. A call without text is only reported if it was partly sent.
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
