//! Encodes events as the answers of `POST /api/generate` and `POST /api/chat`.

use axum::http::StatusCode;
use axum::response::Response;
use jiff::Timestamp;
use puna_api::ollama::{ChatResponse, DebugInfo, GenerateResponse, Message, ToolCall};
use serde::Serialize;

use crate::api::answer_events::{CallId, EndedCall};
use crate::api::{
    AnswerEncoder, AnswerEvent, CollectedCall, CollectedResponse, Times, metrics, push_between,
};
use crate::canonical::GenerationSummary;
use crate::http::{StreamFormat, error_body, json};

/// Returns the current time in the format of answers (RFC 3339, UTC).
pub(crate) fn now() -> String {
    Timestamp::now().to_string()
}

/// Appends the JSON text of an object and a line feed.
pub(crate) fn push_line(object: &impl Serialize, out: &mut Vec<u8>) {
    push_between("", object, "\n", out);
}

/// Encodes the answer to `POST /api/generate`.
pub(crate) struct GenerateEncoder {
    model: String,
    /// Whether the final object lists the tokens of the context.
    with_context: bool,
    /// Whether the last line of a stream lists the schema violations of the answer.
    with_violations: bool,
    /// Id of the open tool call.
    open_call: Option<CallId>,
}

impl GenerateEncoder {
    /// Creates an encoder for a model. With `with_context`, the final object lists the tokens of
    /// the context.
    pub(crate) fn new(model: String, with_context: bool) -> Self {
        Self { model, with_context, with_violations: false, open_call: None }
    }

    /// Sets whether the last line of a stream lists the schema violations of the answer.
    pub(crate) fn with_schema_violations(mut self, wanted: bool) -> Self {
        self.with_violations = wanted;
        self
    }

    /// Returns an object with the model and the time only.
    fn object(&self) -> GenerateResponse {
        GenerateResponse {
            model: self.model.clone(),
            created_at: now(),
            ..GenerateResponse::default()
        }
    }

    /// Returns the final object: finish reason, metrics and context.
    fn end(&self, done: GenerationSummary, times: Times) -> GenerateResponse {
        GenerateResponse {
            done: true,
            done_reason: done.reason.as_str().into(),
            metrics: metrics(&done, times),
            context: self.with_context.then_some(done.context),
            ..self.object()
        }
    }

    /// Returns the answer as one object.
    pub(crate) fn whole(&self, all: CollectedResponse) -> Response {
        if let Some(prompt) = all.rendered {
            return self.rendered(prompt);
        }
        let end = match all.done {
            Some(done) => self.end(*done, all.times),
            None => self.object(),
        };
        let (response, thinking, logprobs) = (all.content, all.thinking, all.logprobs);
        let tool_calls = all.tool_calls.into_iter().map(ToolCall::from).collect();
        let prompt_logprobs = all.prompt_logprobs;
        let answer =
            GenerateResponse { response, thinking, logprobs, tool_calls, prompt_logprobs, ..end };
        json(StatusCode::OK, &answer)
    }

    /// Returns the answer to a request that generates no text, for example to load a model.
    pub(crate) fn empty(&self, reason: &str) -> Response {
        json(
            StatusCode::OK,
            &GenerateResponse { done: true, done_reason: reason.into(), ..self.object() },
        )
    }
}

impl AnswerEncoder for GenerateEncoder {
    const STREAM_FORMAT: StreamFormat = StreamFormat::Ndjson;

    fn encode(&mut self, _: usize, event: AnswerEvent, times: Times, out: &mut Vec<u8>) {
        let line = match event {
            AnswerEvent::Prompt(prompt_logprobs) => {
                GenerateResponse { prompt_logprobs, ..self.object() }
            }
            AnswerEvent::Thinking(piece) => {
                GenerateResponse { thinking: piece.text, logprobs: piece.logprobs, ..self.object() }
            }
            AnswerEvent::Content(piece) => {
                GenerateResponse { response: piece.text, logprobs: piece.logprobs, ..self.object() }
            }
            AnswerEvent::CallStart { id, .. } => return self.open_call = Some(id),
            AnswerEvent::CallEnd(call) => GenerateResponse {
                tool_calls: vec![to_tool_call(&mut self.open_call, call)],
                ..self.object()
            },
            AnswerEvent::Done(mut done) => {
                let schema_violations =
                    done.schema_violations.take().filter(|_| self.with_violations);
                GenerateResponse { schema_violations, ..self.end(*done, times) }
            }
            AnswerEvent::Error(failure) => return push_line(&error_body(&failure), out),
            _ => return,
        };
        push_line(&line, out);
    }

    fn rendered(&self, prompt: String) -> Response {
        let debug_info = Some(DebugInfo { rendered_template: prompt, image_count: 0 });
        json(StatusCode::OK, &GenerateResponse { debug_info, ..self.object() })
    }
}

/// Encodes the answer to `POST /api/chat`.
pub(crate) struct ChatEncoder {
    model: String,
    /// Whether the last line of a stream lists the schema violations of the answer.
    with_violations: bool,
    /// Id of the open tool call.
    open_call: Option<CallId>,
}

/// Converts an ended call. This dialect sends each call as one object.
fn to_tool_call(open: &mut Option<CallId>, call: EndedCall) -> ToolCall {
    let id = open.take().map(CallId::into_string).unwrap_or_default();
    CollectedCall { id, call }.into()
}

impl ChatEncoder {
    pub(crate) fn new(model: String) -> Self {
        Self { model, with_violations: false, open_call: None }
    }

    /// Sets whether the last line of a stream lists the schema violations of the answer.
    pub(crate) fn with_schema_violations(mut self, wanted: bool) -> Self {
        self.with_violations = wanted;
        self
    }

    /// Returns an object with the model, the time and an empty message.
    fn object(&self) -> ChatResponse {
        let message = Message::text("assistant", "");
        ChatResponse {
            model: self.model.clone(),
            created_at: now(),
            message,
            ..ChatResponse::default()
        }
    }

    /// Returns the final object: finish reason and metrics.
    fn end(&self, done: &GenerationSummary, times: Times) -> ChatResponse {
        let (done_reason, metrics) = (done.reason.as_str().into(), metrics(done, times));
        ChatResponse { done: true, done_reason, metrics, ..self.object() }
    }

    /// Returns the answer as one object.
    pub(crate) fn whole(&self, all: CollectedResponse) -> Response {
        if let Some(prompt) = all.rendered {
            return self.rendered(prompt);
        }
        let mut answer = match all.done {
            Some(done) => self.end(&done, all.times),
            None => self.object(),
        };
        answer.message.content = all.content;
        answer.message.thinking = all.thinking;
        answer.message.tool_calls = all.tool_calls.into_iter().map(ToolCall::from).collect();
        answer.logprobs = all.logprobs;
        answer.prompt_logprobs = all.prompt_logprobs;
        json(StatusCode::OK, &answer)
    }

    /// Returns the answer to a request that generates no text, for example to load a model.
    pub(crate) fn empty(&self, reason: &str) -> Response {
        json(
            StatusCode::OK,
            &ChatResponse { done: true, done_reason: reason.into(), ..self.object() },
        )
    }
}

impl AnswerEncoder for ChatEncoder {
    const STREAM_FORMAT: StreamFormat = StreamFormat::Ndjson;

    fn encode(&mut self, _: usize, event: AnswerEvent, times: Times, out: &mut Vec<u8>) {
        let mut line = self.object();
        match event {
            AnswerEvent::Prompt(tokens) => line.prompt_logprobs = tokens,
            AnswerEvent::Thinking(piece) => {
                line.message.thinking = piece.text;
                line.logprobs = piece.logprobs;
            }
            AnswerEvent::Content(piece) => {
                line.message.content = piece.text;
                line.logprobs = piece.logprobs;
            }
            AnswerEvent::CallStart { id, .. } => return self.open_call = Some(id),
            AnswerEvent::CallEnd(call) => {
                line.message.tool_calls = vec![to_tool_call(&mut self.open_call, call)]
            }
            AnswerEvent::Done(done) => {
                line = self.end(&done, times);
                line.schema_violations = done.schema_violations.filter(|_| self.with_violations);
            }
            AnswerEvent::Error(failure) => return push_line(&error_body(&failure), out),
            _ => return,
        }
        // Unlike `/api/generate`, `/api/chat` omits lines without content.
        let has_logprobs = !line.logprobs.is_empty() || !line.prompt_logprobs.is_empty();
        if line.done || !line.message.is_empty() || has_logprobs {
            push_line(&line, out);
        }
    }

    fn rendered(&self, prompt: String) -> Response {
        let debug_info = Some(DebugInfo { rendered_template: prompt, image_count: 0 });
        json(
            StatusCode::OK,
            &ChatResponse { debug_info, message: Message::default(), ..self.object() },
        )
    }
}
