//! The events of an answer in the order in which every dialect can send them.
//!
//! A source of [`Event`]s may have several tool calls open at once, and text between their arguments. [`AnswerEvents`] puts
//! these in a row: from the start of a call to its end nothing else comes. Only [`AnswerEvent::CallStart`] has the id of a
//! call, and the type of the id cannot be copied, so an encoder cannot send an id twice.

use std::collections::{HashSet, VecDeque};

use puna_api::native::{PromptLogprob, ToolCall, ToolCallFunction};
use serde_json::{Map, Value};

use crate::canonical::{ApiError, CallOutcome, Event, GenerationSummary, Piece};
use crate::dialect::unparsed_arguments;
use crate::random_ids;

/// An event of an answer.
#[derive(Debug)]
pub(crate) enum AnswerEvent {
    /// The prompt is accepted.
    Started {
        /// Its tokens.
        prompt_tokens: u64,
    },
    /// The prompt is being read.
    Progress {
        /// Prompt tokens that are done.
        done: u64,
        /// Prompt tokens in all.
        total: u64,
    },
    /// Log-probabilities of the prompt's next tokens.
    Prompt(Vec<PromptLogprob>),
    /// A piece of what the model thinks.
    Thinking(Piece),
    /// A piece of the answer.
    Content(Piece),
    /// A tool call begins. Until its [`AnswerEvent::CallEnd`] only [`AnswerEvent::CallArguments`] and
    /// [`AnswerEvent::Progress`] follow.
    CallStart {
        /// The call's number in the answer, from 0 without gaps.
        index: usize,
        /// The call's id. No two calls of an answer have the same.
        id: CallId,
        /// The name of the tool.
        name: String,
    },
    /// The next part of the JSON text of the open call's arguments.
    CallArguments(String),
    /// The open call has ended.
    CallEnd(EndedCall),
    /// The end: the rendered prompt.
    Rendered(String),
    /// The end of a generation.
    Done(Box<GenerationSummary>),
    /// The end, by an error.
    Error(ApiError),
}

/// The id of a tool call, as sent to the client once.
#[derive(Debug)]
pub(crate) struct CallId(String);

impl CallId {
    /// The id's text.
    pub(crate) fn into_string(self) -> String {
        self.0
    }
}

/// A tool call that has ended.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct EndedCall {
    /// The call's number in the answer.
    pub(crate) index: usize,
    /// The name of the tool.
    pub(crate) name: String,
    /// The JSON text of the arguments. For a complete call it is an object, otherwise it may be anything.
    pub(crate) text: String,
    /// The part of the text that came in no [`AnswerEvent::CallArguments`].
    pub(crate) rest: String,
    /// How it ended.
    pub(crate) outcome: CallOutcome,
    /// Whether the client is to handle the call: to run it, or to report to the model that its arguments are not JSON.
    pub(crate) requires_client_action: bool,
}

impl EndedCall {
    /// Whether the arguments are a JSON object.
    pub(crate) fn is_complete(&self) -> bool {
        matches!(self.outcome, CallOutcome::Complete(_))
    }

    /// The arguments as an object: where they are none, their text as [`unparsed_arguments`].
    pub(crate) fn arguments(&self) -> Map<String, Value> {
        match &self.outcome {
            CallOutcome::Complete(arguments) => arguments.clone(),
            _ if self.text.trim().is_empty() => Map::new(),
            CallOutcome::Invalid(_) | CallOutcome::CutOff => {
                serde_json::from_str(&self.text).unwrap_or_else(|_| unparsed_arguments(&self.text))
            }
        }
    }
}

fn is_object(text: &str) -> bool {
    serde_json::from_str::<Map<String, Value>>(text).is_ok()
}

/// A tool call of a whole answer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct CollectedCall {
    /// The call's id.
    pub(crate) id: String,
    /// Everything else.
    pub(crate) call: EndedCall,
}

impl From<CollectedCall> for ToolCall {
    fn from(CollectedCall { id, call }: CollectedCall) -> Self {
        let arguments = call.arguments();
        let function = ToolCallFunction { index: call.index as i64, name: call.name, arguments };
        Self { id, function }
    }
}

/// Puts the events of one answer in a row.
#[derive(Debug, Default)]
pub(crate) struct AnswerEvents {
    open: Option<OpenCall>,
    /// Events that wait until the open call ends.
    waiting: Vec<Event>,
    ready: VecDeque<AnswerEvent>,
    /// Ids that were sent.
    ids: HashSet<String>,
    calls: usize,
}

/// The call whose arguments are being sent.
#[derive(Debug)]
struct OpenCall {
    /// The source's number of it.
    number: usize,
    index: usize,
    name: String,
    /// The text of the arguments that was sent.
    sent: String,
}

impl AnswerEvents {
    /// Takes the source's next event.
    pub(crate) fn push(&mut self, event: Event) {
        if event.is_end() {
            self.close_all();
        }
        self.take(event);
    }

    /// The next event for the client.
    pub(crate) fn pop(&mut self) -> Option<AnswerEvent> {
        self.ready.pop_front()
    }

    fn take(&mut self, event: Event) {
        if self.has_to_wait(&event) {
            return self.wait(event);
        }
        match event {
            Event::Started { prompt_tokens } => {
                self.ready.push_back(AnswerEvent::Started { prompt_tokens })
            }
            Event::Progress { done, total } => {
                self.ready.push_back(AnswerEvent::Progress { done, total })
            }
            Event::Prompt(tokens) => self.ready.push_back(AnswerEvent::Prompt(tokens)),
            Event::Thinking(piece) => self.ready.push_back(AnswerEvent::Thinking(piece)),
            Event::Content(piece) => self.ready.push_back(AnswerEvent::Content(piece)),
            Event::CallStart { index, id, name } => self.start_call(index, id, name),
            Event::CallArguments { text, .. } => self.send_arguments(text),
            Event::CallEnd { outcome, .. } => {
                self.end_call(outcome);
                std::mem::take(&mut self.waiting).into_iter().for_each(|event| self.take(event));
            }
            Event::Rendered(prompt) => self.ready.push_back(AnswerEvent::Rendered(prompt)),
            Event::Done(done) => self.ready.push_back(AnswerEvent::Done(done)),
            Event::Error(failure) => self.ready.push_back(AnswerEvent::Error(failure)),
            // A part of the answer's head, and the ends of other tasks than generations.
            Event::Adapted(_)
            | Event::SchemaUnenforced(_)
            | Event::Embedded(_)
            | Event::Ranked(_)
            | Event::Counted(_)
            | Event::Tokens(_)
            | Event::Text(_) => {}
        }
    }

    fn has_to_wait(&self, event: &Event) -> bool {
        let Some(open) = &self.open else { return false };
        match event {
            Event::CallArguments { index, .. } | Event::CallEnd { index, .. } => {
                *index != open.number
            }
            Event::CallStart { .. } | Event::Thinking(_) | Event::Content(_) => true,
            _ => false,
        }
    }

    /// Keeps an event for later. Parts of the arguments of one call become one.
    fn wait(&mut self, event: Event) {
        if let Event::CallArguments { index, text } = &event {
            for waiting in self.waiting.iter_mut().rev() {
                match waiting {
                    Event::CallArguments { index: of, text: before } if of == index => {
                        return before.push_str(text);
                    }
                    Event::CallStart { index: of, .. } | Event::CallEnd { index: of, .. }
                        if of == index =>
                    {
                        break;
                    }
                    _ => {}
                }
            }
        }
        self.waiting.push(event);
    }

    fn start_call(&mut self, number: usize, id: String, name: String) {
        let mut id = id;
        while id.is_empty() || !self.ids.insert(id.clone()) {
            id = random_ids::tool_call();
        }
        let index = self.calls;
        self.calls += 1;
        self.ready.push_back(AnswerEvent::CallStart { index, id: CallId(id), name: name.clone() });
        self.open = Some(OpenCall { number, index, name, sent: String::new() });
    }

    fn send_arguments(&mut self, text: String) {
        let Some(open) = self.open.as_mut() else { return };
        // Clients take a first part that is white space for invalid JSON.
        let text = if open.sent.is_empty() { text.trim_start().to_owned() } else { text };
        if text.is_empty() {
            return;
        }
        open.sent.push_str(&text);
        self.ready.push_back(AnswerEvent::CallArguments(text));
    }

    fn end_call(&mut self, outcome: CallOutcome) {
        let Some(OpenCall { index, name, sent, .. }) = self.open.take() else { return };
        // The text is parsed here alone, and once.
        let (rest, outcome, requires_client_action) = match outcome {
            CallOutcome::Complete(arguments) if sent.is_empty() => (
                Value::Object(arguments.clone()).to_string(),
                CallOutcome::Complete(arguments),
                true,
            ),
            CallOutcome::Complete(_) if !is_object(&sent) => {
                (String::new(), CallOutcome::Invalid(None), true)
            }
            CallOutcome::Complete(arguments) => {
                (String::new(), CallOutcome::Complete(arguments), true)
            }
            CallOutcome::Invalid(all) => {
                let rest =
                    all.as_deref().and_then(|all| all.trim_start().strip_prefix(sent.as_str()));
                let rest = rest.unwrap_or_default().to_owned();
                let text = format!("{sent}{rest}");
                (rest, CallOutcome::Invalid(all), !text.trim().is_empty() && !is_object(&text))
            }
            CallOutcome::CutOff => (String::new(), CallOutcome::CutOff, false),
        };
        let text = sent + &rest;
        let ended = EndedCall { index, name, text, rest, outcome, requires_client_action };
        self.ready.push_back(AnswerEvent::CallEnd(ended));
    }

    /// Ends the calls that are open, the waiting ones too: nothing comes of them any more.
    fn close_all(&mut self) {
        while self.open.is_some() {
            self.end_call(CallOutcome::CutOff);
            std::mem::take(&mut self.waiting).into_iter().for_each(|event| self.take(event));
        }
    }
}
