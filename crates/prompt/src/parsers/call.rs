//! What parsers give.

use super::FunctionCall;
use super::early::{Early, Form, News};
use super::tools::Tools;

/// A part of the output, in the order of the text.
#[derive(Debug, Clone, PartialEq)]
pub enum Part {
    /// New text of the thought.
    Thinking(String),
    /// New text of the answer.
    Content(String),
    /// A tool call begins, and is of this tool. Only of parsers that tell of calls early.
    CallBegins(String),
    /// More of the JSON text of the arguments of the call that has begun.
    Arguments(String),
    /// A tool call, whole. One that has begun is this one.
    Call(FunctionCall),
    /// Text that was meant as a call, or broke off in one, and cannot be read. One that has begun is over.
    Malformed {
        /// The text, tags included, or what of it stands behind calls of its list that were given; empty where a call that has
        /// begun is none, and its text may still become something else.
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
    /// It came to another call than the one that it began as.
    #[error("a name or arguments come twice")]
    Changed,
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
    /// The present call, where calls are told of early.
    early: Option<Early>,
    /// The beginning of the last malformed call was told.
    was_told: bool,
}

impl Out {
    /// Tells of calls while their arguments come.
    pub(super) fn tell_early(&mut self) {
        self.early = Some(Early::default());
    }

    /// Whether there were calls.
    pub(super) fn has_calls(&self) -> bool {
        self.calls > 0
    }

    /// Whether calls are told of while their arguments come, and the last malformed one was not.
    pub(super) fn has_not_told(&self) -> bool {
        self.early.is_some() && !self.was_told
    }

    /// Gets ready for the next call; what was told of the present one.
    fn renew(&mut self) -> Option<Early> {
        self.early.as_mut().map(std::mem::take)
    }

    /// The text of the present call as far as it has come.
    pub(super) fn follow(&mut self, form: Form<'_>, text: &str, tools: &Tools) {
        let Some(early) = &mut self.early else { return };
        for news in early.follow(form, text, tools) {
            match (news, self.parts.last_mut()) {
                (News::Begun(name), _) => self.parts.push(Part::CallBegins(name)),
                (News::Arguments(text), Some(Part::Arguments(last))) => last.push_str(&text),
                (News::Arguments(text), _) => self.parts.push(Part::Arguments(text)),
                (News::Given(call), _) => {
                    self.parts.push(Part::Call(FunctionCall { index: self.calls, ..call }));
                    self.calls += 1;
                }
            }
        }
    }

    /// The present call is none; whether its beginning was told.
    pub(super) fn forget(&mut self) -> bool {
        let was_told = self.renew().is_some_and(|early| early.has_told());
        if was_told {
            let error = CallError::Form("a tool's name and a JSON object");
            self.parts.push(Part::Malformed { text: String::new(), error });
        }
        was_told
    }

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

    /// Adds calls with their numbers, or the text that they cannot be read from, behind so many bytes of what was followed.
    pub(super) fn calls(
        &mut self,
        calls: Result<Vec<FunctionCall>, CallError>,
        text: impl FnOnce(usize) -> String,
    ) {
        let told = self.early.as_ref();
        let given = told.map_or(0, Early::given_bytes);
        match calls {
            Ok(calls) if told.is_some_and(|told| !told.is_told_of(&calls)) => {
                self.malformed(text(given), CallError::Changed);
            }
            Ok(calls) => {
                let given = self.renew().map_or(0, |told| told.given());
                for mut call in calls.into_iter().skip(given) {
                    call.index = self.calls;
                    self.calls += 1;
                    self.parts.push(Part::Call(call));
                }
            }
            Err(error) => self.malformed(text(given), error),
        }
    }

    pub(super) fn malformed(&mut self, text: String, error: CallError) {
        let early = self.renew();
        self.was_told = early.as_ref().is_some_and(Early::has_told);
        let told = self.was_told || early.is_some_and(|early| early.given() > 0);
        if told || !text.is_empty() {
            self.parts.push(Part::Malformed { text, error });
        }
    }

    pub(super) fn take(&mut self) -> Vec<Part> {
        std::mem::take(&mut self.parts)
    }
}
