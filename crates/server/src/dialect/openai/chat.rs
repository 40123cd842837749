//! Events to chat completions, whole and in pieces.

use axum::http::StatusCode;
use axum::response::Response;
use jiff::Timestamp;
use puna_api::native::{DebugInfo, Logprob};
use puna_api::openai::{
    AnswerMessage, ChatCompletion, ChatCompletionChunk, Choice, ChoiceLogprobs, ChunkChoice, Delta,
    ToolCall, ToolCallFunction, Usage,
};

use super::{DONE, add_usage, finish_reason, push_event, push_failure, wire_call, wire_prompt};
use crate::canonical::{GenerationSummary, Piece};
use crate::dialect::answer_events::{CallId, EndedCall};
use crate::dialect::waiting::Reading;
use crate::dialect::{AnswerEvent, Collected, CollectedCall, Encoder, Times};
use crate::http::{StreamFormat, json_plain, stream};
use crate::random_ids;

/// Encodes the answer to `POST /v1/chat/completions`.
pub(crate) struct ChatEncoder {
    id: String,
    created: i64,
    model: String,
    include_usage: bool,
    /// The names of the request's custom tools.
    custom_names: Vec<String>,
    choices: Vec<State>,
    usage: Option<Usage>,
    /// Tokens of the prompt that were found in the cache.
    cached: Option<u64>,
    ended: usize,
    reading: Reading,
}

/// How far one of the answers is.
#[derive(Debug, Default)]
struct State {
    started: bool,
    /// There was a call that the client is to handle.
    called: bool,
    /// The number of the call whose arguments come.
    open: usize,
    /// Id and tool of a call of which nothing was sent yet: a call that comes whole is sent in one piece.
    unsent: Option<(CallId, String)>,
}

impl ChatEncoder {
    pub(crate) fn new(model: String, include_usage: bool, answers: usize) -> Self {
        let (id, created) = (random_ids::alphanumeric("chatcmpl-"), Timestamp::now().as_second());
        let choices = (0..answers).map(|_| State::default()).collect();
        let (usage, reading) = (None, Reading::default());
        let custom_names = Vec::new();
        Self {
            id,
            created,
            model,
            include_usage,
            custom_names,
            choices,
            usage,
            cached: None,
            ended: 0,
            reading,
        }
    }

    /// Sends calls of these tools in the form of custom tools.
    pub(crate) fn with_custom_tools(mut self, names: Vec<String>) -> Self {
        self.custom_names = names;
        self
    }

    fn chunk(&self, choices: Vec<ChunkChoice>) -> ChatCompletionChunk {
        ChatCompletionChunk {
            id: self.id.clone(),
            object: "chat.completion.chunk".into(),
            created: self.created,
            model: self.model.clone(),
            system_fingerprint: "fp_ollama".into(),
            choices,
            ..ChatCompletionChunk::default()
        }
    }

    /// Sends the roles of several choices in the order of their indices. OpenAI's SDK requires that the first chunk of each
    /// choice comes in this order.
    fn send_roles(&mut self, out: &mut Vec<u8>) {
        for index in 0..self.choices.len() {
            self.choices[index].started = true;
            let delta = Delta {
                role: Some("assistant".into()),
                content: Some(String::new()),
                ..Delta::default()
            };
            let choice = ChunkChoice { index: index as u32, delta, ..ChunkChoice::default() };
            push_event(&self.chunk(vec![choice]), out);
        }
    }

    fn delta(&mut self, from: usize, mut delta: Delta, logprobs: Vec<Logprob>, out: &mut Vec<u8>) {
        if self.choices.len() > 1 && !self.choices[from].started {
            self.send_roles(out);
        }
        delta.role = (!self.choices[from].started).then(|| "assistant".into());
        self.choices[from].started = true;
        let logprobs = wire_logprobs(logprobs);
        let choice = ChunkChoice { index: from as u32, delta, logprobs, ..ChunkChoice::default() };
        push_event(&self.chunk(vec![choice]), out);
    }

    /// Sends the start of the open call, unless that was sent.
    fn start_call(&mut self, from: usize, arguments: String, out: &mut Vec<u8>) {
        let Some((id, name)) = self.choices[from].unsent.take() else { return };
        let (id, index) = (id.into_string(), self.choices[from].open as i64);
        let function = ToolCallFunction { name, arguments };
        let call = ToolCall { id, index, kind: "function".into(), function, custom: None };
        let (content, tool_calls) = (Some(String::new()), vec![call]);
        self.delta(from, Delta { content, tool_calls, ..Delta::default() }, Vec::new(), out);
    }

    /// Whether the open call is one of a custom tool, of which nothing was sent yet.
    fn is_custom(&self, from: usize) -> bool {
        let open = self.choices[from].unsent.as_ref();
        open.is_some_and(|(_, name)| self.custom_names.contains(name))
    }

    /// Sends a call of a custom tool in one piece.
    fn custom_call(&mut self, from: usize, call: EndedCall, out: &mut Vec<u8>) {
        let Some((id, _)) = self.choices[from].unsent.take() else { return };
        let call = wire_call(CollectedCall { id: id.into_string(), call }, &self.custom_names);
        let (content, tool_calls) = (Some(String::new()), vec![call]);
        self.delta(from, Delta { content, tool_calls, ..Delta::default() }, Vec::new(), out);
    }

    /// A part of the text of the open call's arguments.
    fn arguments(&mut self, from: usize, arguments: String, out: &mut Vec<u8>) {
        if arguments.is_empty() {
            return;
        }
        let function = ToolCallFunction { arguments, ..ToolCallFunction::default() };
        let call =
            ToolCall { index: self.choices[from].open as i64, function, ..ToolCall::default() };
        self.delta(from, Delta { tool_calls: vec![call], ..Delta::default() }, Vec::new(), out);
    }

    fn end(&mut self, from: usize, done: &GenerationSummary, out: &mut Vec<u8>) {
        if self.choices.len() > 1 && !self.choices[from].started {
            self.send_roles(out);
        }
        if !self.choices[from].started {
            self.delta(
                from,
                Delta { content: Some(String::new()), ..Delta::default() },
                Vec::new(),
                out,
            );
        }
        let finish_reason = Some(finish_reason(done, self.choices[from].called));
        let choice = ChunkChoice { index: from as u32, finish_reason, ..ChunkChoice::default() };
        let schema_violations = done.schema_violations.clone();
        push_event(&ChatCompletionChunk { schema_violations, ..self.chunk(vec![choice]) }, out);
        add_usage(&mut self.usage, done, &mut self.cached);
        self.ended += 1;
        if self.ended < self.choices.len() {
            return;
        }
        if self.include_usage && self.usage.is_some() {
            let chunk = ChatCompletionChunk { usage: self.usage.take(), ..self.chunk(Vec::new()) };
            push_event(&chunk, out);
        }
        out.extend_from_slice(DONE);
    }

    /// The answers in one object.
    pub(crate) fn whole(&self, answers: Vec<Collected>) -> Response {
        let (mut usage, mut cached) = (None, None);
        for done in answers.iter().filter_map(|answer| answer.done.as_deref()) {
            add_usage(&mut usage, done, &mut cached);
        }
        let prompt_logprobs =
            answers.first().and_then(|answer| wire_prompt(&answer.prompt_logprobs));
        let rendered = answers.first().and_then(|answer| answer.rendered.clone());
        let answer = ChatCompletion {
            id: self.id.clone(),
            object: "chat.completion".into(),
            created: self.created,
            model: self.model.clone(),
            system_fingerprint: "fp_ollama".into(),
            // Where only the prompt was asked for, no token was counted.
            usage: usage.or_else(|| rendered.is_some().then(Usage::default)),
            prompt_logprobs,
            debug_info: rendered
                .map(|prompt| DebugInfo { rendered_template: prompt, image_count: 0 }),
            choices: answers.into_iter().zip(0..).map(|answer| self.choice(answer)).collect(),
        };
        json_plain(StatusCode::OK, &answer)
    }

    /// One of the answers.
    fn choice(&self, (answer, index): (Collected, u32)) -> Choice {
        // Where only the prompt was asked for, nobody has answered.
        let role = if answer.rendered.is_none() { "assistant" } else { "" };
        let called = answer.tool_calls.iter().any(|one| one.call.requires_client_action);
        Choice {
            index,
            finish_reason: answer.done.as_deref().map(|done| finish_reason(done, called)),
            message: AnswerMessage {
                role: role.into(),
                content: answer.content,
                reasoning: answer.thinking,
                tool_calls: answer
                    .tool_calls
                    .into_iter()
                    .map(|call| wire_call(call, &self.custom_names))
                    .collect(),
            },
            logprobs: wire_logprobs(answer.logprobs),
        }
    }
}

fn wire_logprobs(logprobs: Vec<Logprob>) -> Option<ChoiceLogprobs> {
    (!logprobs.is_empty()).then_some(ChoiceLogprobs { content: logprobs })
}

impl Encoder for ChatEncoder {
    const WIRE: StreamFormat = StreamFormat::Sse;

    fn encode(&mut self, from: usize, event: AnswerEvent, _: Times, out: &mut Vec<u8>) {
        let empty = |piece: &Piece| piece.text.is_empty() && piece.logprobs.is_empty();
        match event {
            AnswerEvent::Thinking(piece) | AnswerEvent::Content(piece) if empty(&piece) => {}
            AnswerEvent::Thinking(Piece { text, logprobs }) => {
                let delta = Delta {
                    content: Some(String::new()),
                    reasoning: Some(text),
                    ..Delta::default()
                };
                self.delta(from, delta, logprobs, out);
            }
            AnswerEvent::Content(Piece { text, logprobs }) => {
                self.delta(from, Delta { content: Some(text), ..Delta::default() }, logprobs, out);
            }
            AnswerEvent::CallStart { id, index, name } => {
                (self.choices[from].open, self.choices[from].unsent) = (index, Some((id, name)));
            }
            // The input of a custom tool is known at the end.
            AnswerEvent::CallArguments(_) if self.is_custom(from) => {}
            AnswerEvent::CallArguments(text) => {
                self.start_call(from, String::new(), out);
                self.arguments(from, text, out);
            }
            AnswerEvent::CallEnd(call) => {
                self.choices[from].called |= call.requires_client_action;
                if self.is_custom(from) {
                    return self.custom_call(from, call, out);
                }
                match self.choices[from].unsent.is_some() {
                    true => self.start_call(from, call.rest, out),
                    false => self.arguments(from, call.rest, out),
                }
            }
            AnswerEvent::Done(done) => self.end(from, &done, out),
            AnswerEvent::Progress { done, total } if from == 0 => {
                self.reading.progress(done, total, out)
            }
            AnswerEvent::Error(failure) => push_failure(failure, out),
            _ => {}
        }
    }

    fn rendered(&self, prompt: String) -> Response {
        let delta = Delta {
            role: Some("assistant".into()),
            content: Some(String::new()),
            ..Delta::default()
        };
        let debug_info = Some(DebugInfo { rendered_template: prompt, image_count: 0 });
        let chunk = self.chunk(vec![ChunkChoice { delta, ..ChunkChoice::default() }]);
        let mut out = Vec::new();
        push_event(&ChatCompletionChunk { debug_info, ..chunk }, &mut out);
        stream(StreamFormat::Sse, futures_util::stream::iter([Ok(out.into())]))
    }
}
