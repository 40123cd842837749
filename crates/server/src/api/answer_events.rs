//! Ordering of the events of an answer, so that every dialect can send them.
//!
//! A source of [`Event`]s may have several tool calls open at once, and text between their
//! arguments. [`EventSequencer`] serializes the calls: between the start and the end of a call, it
//! emits no other content. Only [`AnswerEvent::CallStart`] has the id of a call. The id type has no
//! `Clone`, so an encoder cannot send an id twice.

use std::collections::{HashSet, VecDeque};

use puna_api::ollama::{PromptLogprob, ToolCall, ToolCallFunction};
use serde_json::{Map, Value};

use crate::api::unparsed_arguments;
use crate::canonical::{ApiError, CallOutcome, Event, GenerationSummary, Piece};
use crate::util::random_ids;

/// An event of an answer.
#[derive(Debug)]
pub(crate) enum AnswerEvent {
    /// The engine accepted the prompt.
    Started {
        /// Token count of the prompt.
        prompt_tokens: u64,
    },
    /// Progress of prompt processing.
    Progress {
        /// Number of processed prompt tokens.
        done: u64,
        /// Total number of prompt tokens.
        total: u64,
    },
    /// Log-probabilities of the next tokens of the prompt.
    Prompt(Vec<PromptLogprob>),
    /// A piece of the model's thinking.
    Thinking(Piece),
    /// A piece of the answer.
    Content(Piece),
    /// A tool call begins. Until its [`AnswerEvent::CallEnd`] only [`AnswerEvent::CallArguments`]
    /// and [`AnswerEvent::Progress`] follow.
    CallStart {
        /// Index of the call in the answer, from 0 without gaps.
        index: usize,
        /// Id of the call, unique within the answer.
        id: CallId,
        /// Name of the tool.
        name: String,
    },
    /// Next part of the JSON text of the open call's arguments.
    CallArguments(String),
    /// End of the open call.
    CallEnd(EndedCall),
    /// The rendered prompt. It is the last event.
    Rendered(String),
    /// End of a generation. It is the last event.
    Done(Box<GenerationSummary>),
    /// An error. It is the last event.
    Error(ApiError),
}

/// Id of a tool call. The client receives it once.
#[derive(Debug)]
pub(crate) struct CallId(String);

impl CallId {
    /// Returns the text of the id.
    pub(crate) fn into_string(self) -> String {
        self.0
    }
}

/// A tool call that has ended.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct EndedCall {
    /// Index of the call in the answer.
    pub(crate) index: usize,
    /// Name of the tool.
    pub(crate) name: String,
    /// Text of the arguments. It is a JSON object if the call is complete; otherwise it may be any
    /// text.
    pub(crate) text: String,
    /// Part of the text that no [`AnswerEvent::CallArguments`] contained.
    pub(crate) rest: String,
    /// Outcome of the call.
    pub(crate) outcome: CallOutcome,
    /// Whether the client must handle the call: run it, or report to the model that its arguments
    /// are not JSON.
    pub(crate) requires_client_action: bool,
}

impl EndedCall {
    /// Whether the arguments are a JSON object.
    pub(crate) fn is_complete(&self) -> bool {
        matches!(self.outcome, CallOutcome::Complete(_))
    }

    /// Returns the arguments as an object. Other text becomes [`unparsed_arguments`].
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

/// A tool call of a collected answer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct CollectedCall {
    /// Id of the call.
    pub(crate) id: String,
    /// All other data of the call.
    pub(crate) call: EndedCall,
}

impl From<CollectedCall> for ToolCall {
    fn from(CollectedCall { id, call }: CollectedCall) -> Self {
        let arguments = call.arguments();
        let function = ToolCallFunction { index: call.index as i64, name: call.name, arguments };
        Self { id, function }
    }
}

/// Serializes the tool calls of one answer.
#[derive(Debug, Default)]
pub(crate) struct EventSequencer {
    open: Option<OpenCall>,
    /// Deferred events: they follow the end of the open call.
    deferred: Vec<Event>,
    ready: VecDeque<AnswerEvent>,
    /// Ids of the calls so far.
    used_ids: HashSet<String>,
    call_count: usize,
}

/// The open call. Its arguments are being sent.
#[derive(Debug)]
struct OpenCall {
    /// Index of the call in the events of the source.
    source_index: usize,
    index: usize,
    name: String,
    /// Text of the arguments sent so far.
    sent: String,
}

impl EventSequencer {
    /// Accepts the next event of the source. The last event first ends all open calls as cut off.
    pub(crate) fn push(&mut self, event: Event) {
        if event.is_end() {
            self.close_all();
        }
        self.process(event);
    }

    /// Returns the next event for the client, if one is ready.
    pub(crate) fn pop(&mut self) -> Option<AnswerEvent> {
        self.ready.pop_front()
    }

    /// Converts an event, or defers it while another call is open.
    fn process(&mut self, event: Event) {
        if self.must_defer(&event) {
            return self.defer(event);
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
                std::mem::take(&mut self.deferred)
                    .into_iter()
                    .for_each(|event| self.process(event));
            }
            Event::Rendered(prompt) => self.ready.push_back(AnswerEvent::Rendered(prompt)),
            Event::Done(done) => self.ready.push_back(AnswerEvent::Done(done)),
            Event::Error(failure) => self.ready.push_back(AnswerEvent::Error(failure)),
            // The first two belong to the HTTP headers; the others end tasks that are not
            // generations.
            Event::Adapted(_)
            | Event::SchemaUnenforced(_)
            | Event::Embedded(_)
            | Event::Reranked(_)
            | Event::Counted(_)
            | Event::Tokens(_)
            | Event::Text(_) => {}
        }
    }

    /// Whether the event must follow the end of the open call. Events about progress and the end of
    /// the answer never wait.
    fn must_defer(&self, event: &Event) -> bool {
        let Some(open) = &self.open else { return false };
        match event {
            Event::CallArguments { index, .. } | Event::CallEnd { index, .. } => {
                *index != open.source_index
            }
            Event::CallStart { .. } | Event::Thinking(_) | Event::Content(_) => true,
            _ => false,
        }
    }

    /// Defers an event. Consecutive parts of the arguments of one call are joined.
    fn defer(&mut self, event: Event) {
        if let Event::CallArguments { index, text } = &event {
            for deferred in self.deferred.iter_mut().rev() {
                match deferred {
                    Event::CallArguments { index: other, text: deferred_text }
                        if other == index =>
                    {
                        return deferred_text.push_str(text);
                    }
                    Event::CallStart { index: other, .. } | Event::CallEnd { index: other, .. }
                        if other == index =>
                    {
                        break;
                    }
                    _ => {}
                }
            }
        }
        self.deferred.push(event);
    }

    /// Starts a call. An empty or repeated id is replaced by a random one.
    fn start_call(&mut self, source_index: usize, id: String, name: String) {
        let mut id = id;
        while id.is_empty() || !self.used_ids.insert(id.clone()) {
            id = random_ids::tool_call();
        }
        let index = self.call_count;
        self.call_count += 1;
        self.ready.push_back(AnswerEvent::CallStart { index, id: CallId(id), name: name.clone() });
        self.open = Some(OpenCall { source_index, index, name, sent: String::new() });
    }

    /// Emits a part of the arguments of the open call. The first part has no leading white space.
    fn send_arguments(&mut self, text: String) {
        let Some(open) = self.open.as_mut() else { return };
        // Clients treat a first part of only white space as invalid JSON.
        let text = if open.sent.is_empty() { text.trim_start().to_owned() } else { text };
        if text.is_empty() {
            return;
        }
        open.sent.push_str(&text);
        self.ready.push_back(AnswerEvent::CallArguments(text));
    }

    /// Ends the open call and checks that its arguments are a JSON object.
    fn end_call(&mut self, outcome: CallOutcome) {
        let Some(OpenCall { index, name, sent, .. }) = self.open.take() else { return };
        // This function alone parses the text, once per call.
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

    /// Ends all open and deferred calls as cut off, because no further events arrive.
    fn close_all(&mut self) {
        while self.open.is_some() {
            self.end_call(CallOutcome::CutOff);
            std::mem::take(&mut self.deferred).into_iter().for_each(|event| self.process(event));
        }
    }
}
