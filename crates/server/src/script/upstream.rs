//! The scripted upstream server: streams the answers of a script in OpenAI's chat dialect.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::http::{Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::{self, Stream};
use serde_json::{Value, json};

use super::{Call, Conversation, MODEL, ScriptAnswer, ScriptFile, Step};
use crate::http::serve::RequestHandler;

/// Maximum bytes of a request.
const MAX_BODY_BYTES: usize = 64 << 20;

/// Characters per streamed piece of text.
const PIECE_CHARS: usize = 12;

/// Bytes of text counted as one token.
const TOKEN_BYTES: usize = 4;

/// The scripted upstream server.
pub(crate) struct ScriptedUpstream {
    script: Arc<ScriptFile>,
    window: u32,
    calls: Arc<AtomicU64>,
}

impl ScriptedUpstream {
    pub(crate) fn new(script: ScriptFile, window: u32) -> Self {
        Self { script: Arc::new(script), window, calls: Arc::default() }
    }
}

impl RequestHandler for ScriptedUpstream {
    fn answer(&self, request: Request) -> BoxFuture<'static, Response> {
        let (script, window, calls) = (self.script.clone(), self.window, self.calls.clone());
        Box::pin(async move {
            match (request.method(), request.uri().path()) {
                (&Method::GET, "/v1/models") => models(window),
                (&Method::POST, "/v1/chat/completions") => {
                    match to_bytes(request.into_body(), MAX_BODY_BYTES).await {
                        Ok(body) => chat(&script, window, &calls, &body),
                        Err(e) => error(StatusCode::PAYLOAD_TOO_LARGE, "too_large", &e.to_string()),
                    }
                }
                (method, path) => {
                    let message = format!("the scripted upstream does not answer {method} {path}");
                    error(StatusCode::NOT_FOUND, "not_found", &message)
                }
            }
        })
    }

    fn reload(&self) {}
}

fn models(window: u32) -> Response {
    let model =
        json!({"id": MODEL, "object": "model", "owned_by": "puna", "max_model_len": window});
    axum::Json(json!({"object": "list", "data": [model]})).into_response()
}

fn error(status: StatusCode, code: &str, message: &str) -> Response {
    let error = json!({"message": message, "type": "invalid_request_error", "code": code});
    (status, axum::Json(json!({"error": error}))).into_response()
}

fn chat(script: &ScriptFile, window: u32, calls: &AtomicU64, body: &[u8]) -> Response {
    let request: Value = match serde_json::from_slice(body) {
        Ok(request) => request,
        Err(e) => return error(StatusCode::BAD_REQUEST, "bad_json", &e.to_string()),
    };
    if request["stream"] != true {
        return error(
            StatusCode::BAD_REQUEST,
            "stream",
            "the scripted upstream supports streams only: set stream to true",
        );
    }
    let conversation = conversation_of(&request);
    let tokens = body.len().div_ceil(TOKEN_BYTES);
    if tokens > window as usize {
        let message = format!(
            "This model's maximum context length is {window} tokens, and the messages have {tokens} tokens."
        );
        return error(StatusCode::BAD_REQUEST, "context_length_exceeded", &message);
    }
    let answer = match script.answer(&conversation) {
        Ok(answer) => answer,
        Err(e) => {
            return error(StatusCode::INTERNAL_SERVER_ERROR, "no_answer", &e.to_string());
        }
    };
    let chunks = chunks_of(&answer, tokens, calls);
    let stream = Body::from_stream(stream_chunks(chunks, Duration::from_millis(answer.pace)));
    ([(header::CONTENT_TYPE, "text/event-stream")], stream).into_response()
}

/// Conversation of a request. Other fields such as tools count as part of the prompt.
fn conversation_of(request: &Value) -> Conversation {
    let messages = request["messages"].as_array().map_or(&[][..], Vec::as_slice);
    let mut prompt = format!("{}\n", request["tools"]);
    let mut last = prompt.len();
    for message in messages {
        last = prompt.len();
        match &message["content"] {
            Value::String(text) => prompt.push_str(text),
            content => prompt.push_str(&content.to_string()),
        }
        prompt.push('\n');
        if !message["tool_calls"].is_null() {
            prompt.push_str(&message["tool_calls"].to_string());
        }
    }
    let assistant_turns = messages.iter().filter(|message| message["role"] == "assistant").count();
    Conversation { prompt, last, assistant_turns }
}

/// Next action of the upstream.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Chunk {
    Data(String),
    Wait(Duration),
    /// Ends the connection in the middle of the answer.
    Cut,
}

/// Chunks of an answer to a prompt of this many tokens.
pub(super) fn chunks_of(
    answer: &ScriptAnswer,
    prompt_tokens: usize,
    calls: &AtomicU64,
) -> VecDeque<Chunk> {
    let chunk = |delta: Value, finish: Option<&str>| {
        let choice = json!({"index": 0, "delta": delta, "finish_reason": finish});
        let chunk = json!({
            "id": "chatcmpl-script", "object": "chat.completion.chunk", "created": 1, "model": MODEL, "choices": [choice],
        });
        Chunk::Data(chunk.to_string())
    };
    let mut all = VecDeque::from([chunk(json!({"role": "assistant", "content": ""}), None)]);
    let mut index = 0;
    for step in &answer.steps {
        match step {
            Step::Text(text) | Step::Raw(text) => {
                all.extend(pieces(text).map(|text| chunk(json!({"content": text}), None)));
            }
            Step::Thinking(text) => {
                all.extend(
                    pieces(text).map(|text| chunk(json!({"reasoning_content": text}), None)),
                );
            }
            Step::Call(call) => {
                all.extend(
                    call_deltas(&[call], &mut index, calls)
                        .into_iter()
                        .map(|delta| chunk(delta, None)),
                );
            }
            Step::Calls(parallel) => {
                let parallel: Vec<&Call> = parallel.iter().collect();
                all.extend(
                    call_deltas(&parallel, &mut index, calls)
                        .into_iter()
                        .map(|delta| chunk(delta, None)),
                );
            }
            Step::Delta(delta) => all.push_back(chunk(delta.clone(), None)),
            Step::Wait(time) => all.push_back(Chunk::Wait(Duration::from_millis(*time))),
            Step::Fail(reason) => {
                let error =
                    json!({"error": {"message": reason, "type": "server_error", "code": 500}});
                all.push_back(Chunk::Data(error.to_string()));
                return all;
            }
            Step::Crash => {
                all.push_back(Chunk::Cut);
                return all;
            }
        }
    }
    let usual = if index > 0 { "tool_calls" } else { "stop" };
    let completion_tokens = all.len();
    all.push_back(chunk(json!({}), Some(answer.finish.as_deref().unwrap_or(usual))));
    if !answer.without_usage {
        let usage = json!({
            "prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens, "total_tokens": prompt_tokens + completion_tokens,
        });
        let last = json!({
            "id": "chatcmpl-script", "object": "chat.completion.chunk", "created": 1, "model": MODEL, "choices": [], "usage": usage,
        });
        all.push_back(Chunk::Data(last.to_string()));
    }
    all.push_back(Chunk::Data("[DONE]".into()));
    all
}

/// Deltas of parallel calls: first the start of each, then their pieces in rotation.
fn call_deltas(parallel: &[&Call], index: &mut usize, calls: &AtomicU64) -> Vec<Value> {
    let first = *index;
    *index += parallel.len();
    let mut deltas = Vec::new();
    let mut arguments: Vec<(usize, VecDeque<String>)> = Vec::new();
    for (number, call) in (first..).zip(parallel) {
        let id = call.id.clone();
        let id = id.unwrap_or_else(|| format!("call_{}", calls.fetch_add(1, Ordering::Relaxed)));
        let function = json!({"name": call.name, "arguments": ""});
        deltas.push(
            json!({"tool_calls": [{"index": number, "id": id, "type": "function", "function": function}]}),
        );
        arguments.push((number, pieces(&call.arguments_text()).collect()));
    }
    while arguments.iter().any(|(_, left)| !left.is_empty()) {
        for (number, left) in &mut arguments {
            if let Some(piece) = left.pop_front() {
                deltas.push(
                    json!({"tool_calls": [{"index": number, "function": {"arguments": piece}}]}),
                );
            }
        }
    }
    deltas
}

fn pieces(text: &str) -> impl Iterator<Item = String> {
    let characters: Vec<char> = text.chars().collect();
    let pieces: Vec<String> =
        characters.chunks(PIECE_CHARS).map(|piece| piece.iter().collect()).collect();
    pieces.into_iter()
}

/// An answer being sent. Logs if the client disconnects early.
struct SendingAnswer {
    chunks: VecDeque<Chunk>,
}

impl Drop for SendingAnswer {
    fn drop(&mut self) {
        if !self.chunks.is_empty() {
            tracing::info!(left = self.chunks.len(), "client of a scripted answer disconnected");
        }
    }
}

/// Streams the chunks of an answer at its pace.
pub(super) fn stream_chunks(
    chunks: VecDeque<Chunk>,
    pace: Duration,
) -> impl Stream<Item = io::Result<Bytes>> + Send {
    stream::unfold(SendingAnswer { chunks }, move |mut sending| async move {
        loop {
            match sending.chunks.pop_front()? {
                Chunk::Wait(time) => tokio::time::sleep(time).await,
                Chunk::Cut => {
                    let cut = io::Error::new(
                        io::ErrorKind::ConnectionAborted,
                        "the script ends the connection",
                    );
                    sending.chunks.clear();
                    return Some((Err(cut), sending));
                }
                Chunk::Data(data) => {
                    tokio::time::sleep(pace).await;
                    return Some((Ok(Bytes::from(format!("data: {data}\n\n"))), sending));
                }
            }
        }
    })
}
