//! Events to chat completions, whole and in pieces.

use axum::http::StatusCode;
use axum::response::Response;
use jiff::Timestamp;
use puna_api::native::{DebugInfo, Logprob};
use puna_api::openai::{
    AnswerMessage, ChatCompletion, ChatCompletionChunk, Choice, ChoiceLogprobs, ChunkChoice, Delta, ToolCall,
    ToolCallFunction, Usage,
};

use super::{DONE, add_usage, finish_reason, push_event, push_failure, wire_call, wire_prompt};
use crate::canonical::{Done, Event, Piece};
use crate::dialect::waiting::Reading;
use crate::dialect::{Collected, Encoder, Times};
use crate::http::{Wire, json_plain, stream};
use crate::ids;

/// Encodes the answer to `POST /v1/chat/completions`.
pub(crate) struct ChatEncoder {
    id: String,
    created: i64,
    model: String,
    include_usage: bool,
    choices: Vec<State>,
    usage: Usage,
    /// Tokens of the prompt that were found in the cache.
    cached: Option<u64>,
    ended: usize,
    reading: Reading,
}

/// How far one of the answers is.
#[derive(Debug, Clone, Default)]
struct State {
    started: bool,
    /// A call is complete.
    called: bool,
    /// The call whose arguments come: its id and its number.
    open: Option<(String, usize)>,
}

impl ChatEncoder {
    pub(crate) fn new(model: String, include_usage: bool, answers: usize) -> Self {
        let (id, created) = (ids::new("chatcmpl-"), Timestamp::now().as_second());
        let choices = vec![State::default(); answers];
        let (usage, reading) = (Usage::default(), Reading::default());
        Self { id, created, model, include_usage, choices, usage, cached: None, ended: 0, reading }
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

    fn delta(&mut self, from: usize, mut delta: Delta, logprobs: Vec<Logprob>, out: &mut Vec<u8>) {
        delta.role = (!self.choices[from].started).then(|| "assistant".into());
        self.choices[from].started = true;
        let logprobs = wire_logprobs(logprobs);
        let choice = ChunkChoice { index: from as u32, delta, logprobs, ..ChunkChoice::default() };
        push_event(&self.chunk(vec![choice]), out);
    }

    /// A call, or its beginning.
    fn call(&mut self, from: usize, call: ToolCall, out: &mut Vec<u8>) {
        let (content, tool_calls) = (Some(String::new()), vec![call]);
        self.delta(from, Delta { content, tool_calls, ..Delta::default() }, Vec::new(), out);
    }

    fn end(&mut self, from: usize, done: &Done, out: &mut Vec<u8>) {
        if !self.choices[from].started {
            self.delta(from, Delta { content: Some(String::new()), ..Delta::default() }, Vec::new(), out);
        }
        let finish_reason = Some(finish_reason(done, self.choices[from].called));
        let choice = ChunkChoice { index: from as u32, finish_reason, ..ChunkChoice::default() };
        push_event(&self.chunk(vec![choice]), out);
        add_usage(&mut self.usage, done, &mut self.cached);
        self.ended += 1;
        if self.ended < self.choices.len() {
            return;
        }
        if self.include_usage {
            let chunk = ChatCompletionChunk { usage: Some(self.usage.clone()), ..self.chunk(Vec::new()) };
            push_event(&chunk, out);
        }
        out.extend_from_slice(DONE);
    }

    /// The answers in one object.
    pub(crate) fn whole(&self, answers: Vec<Collected>) -> Response {
        let (mut usage, mut cached) = (Usage::default(), None);
        for done in answers.iter().filter_map(|answer| answer.done.as_deref()) {
            add_usage(&mut usage, done, &mut cached);
        }
        let prompt_logprobs = answers.first().and_then(|answer| wire_prompt(&answer.prompt_logprobs));
        let rendered = answers.first().and_then(|answer| answer.rendered.clone());
        let answer = ChatCompletion {
            id: self.id.clone(),
            object: "chat.completion".into(),
            created: self.created,
            model: self.model.clone(),
            system_fingerprint: "fp_ollama".into(),
            usage,
            prompt_logprobs,
            debug_info: rendered.map(|prompt| DebugInfo { rendered_template: prompt, image_count: 0 }),
            choices: answers.into_iter().zip(0..).map(choice).collect(),
        };
        json_plain(StatusCode::OK, &answer)
    }
}

fn choice((answer, index): (Collected, u32)) -> Choice {
    // Where only the prompt was asked for, nobody has answered.
    let role = if answer.rendered.is_none() { "assistant" } else { "" };
    let called = !answer.tool_calls.is_empty();
    Choice {
        index,
        finish_reason: answer.done.as_deref().map(|done| finish_reason(done, called)),
        message: AnswerMessage {
            role: role.into(),
            content: answer.content,
            reasoning: answer.thinking,
            tool_calls: answer.tool_calls.into_iter().map(wire_call).collect(),
        },
        logprobs: wire_logprobs(answer.logprobs),
    }
}

fn wire_logprobs(logprobs: Vec<Logprob>) -> Option<ChoiceLogprobs> {
    (!logprobs.is_empty()).then_some(ChoiceLogprobs { content: logprobs })
}

impl Encoder for ChatEncoder {
    const WIRE: Wire = Wire::Sse;

    fn encode(&mut self, from: usize, event: Event, _: Times, out: &mut Vec<u8>) {
        let empty = |piece: &Piece| piece.text.is_empty() && piece.logprobs.is_empty();
        match event {
            Event::Thinking(piece) | Event::Content(piece) if empty(&piece) => {}
            Event::Thinking(Piece { text, logprobs }) => {
                let delta = Delta { content: Some(String::new()), reasoning: Some(text), ..Delta::default() };
                self.delta(from, delta, logprobs, out);
            }
            Event::Content(Piece { text, logprobs }) => {
                // A call that was open has broken off: this is its text.
                self.choices[from].open = None;
                self.delta(from, Delta { content: Some(text), ..Delta::default() }, logprobs, out);
            }
            Event::CallBegins { id, index, name } => {
                self.choices[from].open = Some((id.clone(), index));
                let function = ToolCallFunction { name, arguments: String::new() };
                self.call(from, ToolCall { id, index: index as i64, kind: "function".into(), function }, out);
            }
            Event::CallArguments(arguments) => {
                let Some((_, index)) = self.choices[from].open else { return };
                let function = ToolCallFunction { arguments, ..ToolCallFunction::default() };
                let call = ToolCall { index: index as i64, function, ..ToolCall::default() };
                let delta = Delta { tool_calls: vec![call], ..Delta::default() };
                self.delta(from, delta, Vec::new(), out);
            }
            Event::ToolCall(call) => {
                self.choices[from].called = true;
                match self.choices[from].open.take() {
                    // All of it was sent.
                    Some((id, _)) if id == call.id => {}
                    _ => self.call(from, wire_call(call), out),
                }
            }
            Event::Done(done) => self.end(from, &done, out),
            Event::Progress { done, total } if from == 0 => self.reading.progress(done, total, out),
            Event::Error(failure) => push_failure(failure, out),
            _ => {}
        }
    }

    fn rendered(&self, prompt: String) -> Response {
        let delta =
            Delta { role: Some("assistant".into()), content: Some(String::new()), ..Delta::default() };
        let debug_info = Some(DebugInfo { rendered_template: prompt, image_count: 0 });
        let chunk = self.chunk(vec![ChunkChoice { delta, ..ChunkChoice::default() }]);
        let mut out = Vec::new();
        push_event(&ChatCompletionChunk { debug_info, ..chunk }, &mut out);
        stream(Wire::Sse, futures_util::stream::iter([Ok(out.into())]))
    }
}
