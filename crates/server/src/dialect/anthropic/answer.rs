//! Events to messages, whole and in pieces.
//!
//! A streamed message is a row of blocks of which at most one is open: thoughts, text, or a call.

use axum::http::StatusCode;
use axum::response::Response;
use puna_api::anthropic::{Block, MessagesResponse, Usage};
use puna_api::native::{DebugInfo, ToolCall};
use serde_json::{Map, Value, json as value};

use super::SEARCH;
use crate::canonical::{CallOutcome, FinishReason, GenerationSummary};
use crate::dialect::answer_events::{CallId, EndedCall};
use crate::dialect::waiting::Reading;
use crate::dialect::{AnswerEvent, Collected, CollectedCall, Encoder, Times, push_named};
use crate::http::{StreamFormat, anthropic_error, json_plain};
use crate::random_ids;

/// The signature of thoughts. Clients send thoughts back only if they have one; it is not read.
const SIGNATURE: &str = "cHVuYQ==";

/// Encodes the answer to `POST /v1/messages`.
pub(crate) struct MessagesEncoder {
    id: String,
    model: String,
    /// The sequences that the request named: only they are told when they end the answer.
    stop: Vec<String>,
    /// The server was to search the web itself.
    searches: bool,
    started: bool,
    /// Blocks that were begun.
    blocks: usize,
    open: Option<Open>,
    /// There was a call that the client can run.
    called: bool,
    /// A call was cut off.
    was_cut_off: bool,
    reading: Reading,
}

/// A block that is still open.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Open {
    Thinking,
    Text,
    Call,
    /// A search on the web, which is sent once it is complete.
    Search,
}

impl MessagesEncoder {
    pub(crate) fn new(model: String, stop: Vec<String>, searches: bool) -> Self {
        let id = random_ids::hex("msg_");
        let (started, called, was_cut_off, reading) = (false, false, false, Reading::default());
        Self {
            id,
            model,
            stop,
            searches,
            started,
            blocks: 0,
            open: None,
            called,
            was_cut_off,
            reading,
        }
    }

    fn message(&self) -> MessagesResponse {
        MessagesResponse {
            id: self.id.clone(),
            kind: "message".into(),
            role: "assistant".into(),
            model: self.model.clone(),
            ..MessagesResponse::default()
        }
    }

    /// Why an answer ended, and the sequence that ended it.
    fn end_reason(&self, done: &GenerationSummary, called: bool) -> (&'static str, Option<String>) {
        let stop = done.stop.as_ref().filter(|stop| self.stop.contains(stop));
        match (done.reason, stop) {
            (FinishReason::ContentFilter, _) => ("refusal", None),
            _ if called => ("tool_use", None),
            (FinishReason::Length, _) => ("max_tokens", None),
            (FinishReason::Stop, Some(stop)) => ("stop_sequence", Some(stop.clone())),
            (FinishReason::Stop, None) => ("end_turn", None),
        }
    }

    /// The blocks of a call.
    fn call(&self, call: CollectedCall) -> Vec<Block> {
        let ToolCall { id, function } = call.into();
        match self.searches && function.name == SEARCH {
            true => failed_search(function.arguments).into(),
            false => vec![Block::ToolUse { id, name: function.name, input: function.arguments }],
        }
    }

    /// The answer in one object.
    pub(crate) fn whole(&self, all: Collected) -> Response {
        if let Some(prompt) = all.rendered {
            return self.rendered(prompt);
        }
        let mut content = Vec::new();
        if !all.thinking.is_empty() {
            content.push(Block::Thinking { thinking: all.thinking, signature: SIGNATURE.into() });
        }
        if !all.content.is_empty() {
            content.push(Block::Text { text: all.content });
        }
        let was_cut_off = all.tool_calls.iter().any(|one| one.call.outcome == CallOutcome::CutOff);
        let is_handled = all.tool_calls.iter().any(|one| one.call.requires_client_action);
        content.extend(all.tool_calls.into_iter().flat_map(|call| self.call(call)));
        let is_to_run = |block: &Block| matches!(block, Block::ToolUse { .. });
        let called = is_handled && !was_cut_off && content.iter().any(is_to_run);
        let mut answer = MessagesResponse { content, ..self.message() };
        if let Some(done) = all.done {
            let (reason, stop_sequence) = self.end_reason(&done, called);
            answer = MessagesResponse {
                stop_reason: Some(reason.into()),
                stop_sequence,
                usage: usage(&done),
                ..answer
            };
        }
        json_plain(StatusCode::OK, &answer)
    }

    fn start(&mut self, prompt_tokens: u64, out: &mut Vec<u8>) {
        self.started = true;
        // What of it is in the cache is not known yet.
        let usage = Usage { input_tokens: prompt_tokens, ..Usage::default() };
        let message = MessagesResponse { usage, ..self.message() };
        push_named("message_start", &value!({"type": "message_start", "message": message}), out);
        out.extend_from_slice(Self::PING);
    }

    fn begin(&mut self, block: Value, out: &mut Vec<u8>) {
        self.close(out);
        let index = self.blocks;
        let event = value!({"type": "content_block_start", "index": index, "content_block": block});
        push_named("content_block_start", &event, out);
        self.blocks += 1;
    }

    fn delta(&self, delta: Value, out: &mut Vec<u8>) {
        let event =
            value!({"type": "content_block_delta", "index": self.blocks - 1, "delta": delta});
        push_named("content_block_delta", &event, out);
    }

    fn stop(&self, out: &mut Vec<u8>) {
        let event = value!({"type": "content_block_stop", "index": self.blocks - 1});
        push_named("content_block_stop", &event, out);
    }

    /// Ends the open block, if there is one.
    fn close(&mut self, out: &mut Vec<u8>) {
        let open = self.open.take();
        if open == Some(Open::Thinking) {
            self.delta(value!({"type": "signature_delta", "signature": SIGNATURE}), out);
        }
        if open.is_some() {
            self.stop(out);
        }
    }

    fn thinking(&mut self, text: &str, out: &mut Vec<u8>) {
        if self.open != Some(Open::Thinking) {
            self.begin(value!({"type": "thinking", "thinking": "", "signature": ""}), out);
            self.open = Some(Open::Thinking);
        }
        self.delta(value!({"type": "thinking_delta", "thinking": text}), out);
    }

    fn text(&mut self, text: &str, out: &mut Vec<u8>) {
        if self.open != Some(Open::Text) {
            self.begin(value!({"type": "text", "text": ""}), out);
            self.open = Some(Open::Text);
        }
        self.delta(value!({"type": "text_delta", "text": text}), out);
    }

    /// Begins the block of a call.
    fn begin_call(&mut self, id: CallId, name: String, out: &mut Vec<u8>) {
        if self.searches && name == SEARCH {
            self.close(out);
            self.open = Some(Open::Search);
            return;
        }
        let id = id.into_string();
        self.begin(value!({"type": "tool_use", "id": id, "name": name, "input": Map::new()}), out);
        self.open = Some(Open::Call);
    }

    /// Ends the block of a call. A part of arguments that is not JSON is left out: SDKs parse what they have so far.
    fn end_call(&mut self, call: &EndedCall, out: &mut Vec<u8>) {
        if self.open == Some(Open::Search) {
            self.open = None;
            return self.search(call.arguments(), out);
        }
        let is_whole = call.text == call.rest;
        let rest = match call.is_complete() {
            true => call.rest.clone(),
            false if is_whole && call.requires_client_action => {
                Value::Object(call.arguments()).to_string()
            }
            false => String::new(),
        };
        if !rest.is_empty() {
            self.delta(value!({"type": "input_json_delta", "partial_json": rest}), out);
        }
        self.called |= call.is_complete() || is_whole && call.requires_client_action;
        self.was_cut_off |= call.outcome == CallOutcome::CutOff;
        self.close(out);
    }

    /// A search on the web that the server should have done.
    fn search(&mut self, arguments: Map<String, Value>, out: &mut Vec<u8>) {
        let [call, result] = failed_search(arguments);
        let Block::ServerToolUse { id, name, input } = call else { return };
        self.begin(
            value!({"type": "server_tool_use", "id": id, "name": name, "input": Map::new()}),
            out,
        );
        let arguments = Value::Object(input).to_string();
        self.delta(value!({"type": "input_json_delta", "partial_json": arguments}), out);
        self.stop(out);
        self.begin(value!(result), out);
        self.stop(out);
    }

    fn end(&mut self, done: &GenerationSummary, out: &mut Vec<u8>) {
        self.close(out);
        let (stop_reason, stop_sequence) = self.end_reason(done, self.called && !self.was_cut_off);
        let delta = value!({"stop_reason": stop_reason, "stop_sequence": stop_sequence});
        let event = value!({"type": "message_delta", "delta": delta, "usage": usage(done)});
        push_named("message_delta", &event, out);
        let mut stop = value!({"type": "message_stop"});
        if let Some(violations) = &done.schema_violations {
            stop["schema_violations"] = value!(violations);
        }
        push_named("message_stop", &stop, out);
    }
}

/// A search on the web that the server should have done, and its failure.
fn failed_search(arguments: Map<String, Value>) -> [Block; 2] {
    let id = random_ids::hex("srvtoolu_");
    let content = value!({"type": "web_search_tool_result_error", "error_code": "unavailable"});
    [
        Block::ServerToolUse { id: id.clone(), name: SEARCH.into(), input: arguments },
        Block::WebSearchToolResult { tool_use_id: id, content },
    ]
}

fn usage(done: &GenerationSummary) -> Usage {
    Usage {
        input_tokens: done.prompt_tokens.saturating_sub(done.cached_tokens),
        cache_read_input_tokens: done.cached_tokens,
        output_tokens: done.generated_tokens,
        truncated_messages: done.dropped_messages,
        truncated_tokens: done.dropped_tokens,
        ..Usage::default()
    }
}

impl Encoder for MessagesEncoder {
    const WIRE: StreamFormat = StreamFormat::NamedSse;
    const PING: &'static [u8] = b"event: ping\ndata: {\"type\":\"ping\"}\n\n";

    fn wait(&mut self, phase: &str, out: &mut Vec<u8>) {
        out.extend_from_slice(format!(": {phase}\n\n").as_bytes());
        self.ping(out);
    }

    fn encode(&mut self, _: usize, event: AnswerEvent, _: Times, out: &mut Vec<u8>) {
        if !self.started {
            match &event {
                AnswerEvent::Started { prompt_tokens } => return self.start(*prompt_tokens, out),
                AnswerEvent::Done(done) => self.start(done.prompt_tokens, out),
                AnswerEvent::Thinking(_)
                | AnswerEvent::Content(_)
                | AnswerEvent::CallStart { .. } => self.start(0, out),
                _ => {}
            }
        }
        match event {
            AnswerEvent::Thinking(piece) if !piece.text.is_empty() => {
                self.thinking(&piece.text, out)
            }
            AnswerEvent::Content(piece) if !piece.text.is_empty() => self.text(&piece.text, out),
            AnswerEvent::CallStart { id, name, .. } => self.begin_call(id, name, out),
            AnswerEvent::CallArguments(text) if self.open == Some(Open::Call) => {
                self.delta(value!({"type": "input_json_delta", "partial_json": text}), out);
            }
            AnswerEvent::CallEnd(call) => self.end_call(&call, out),
            AnswerEvent::Done(done) => self.end(&done, out),
            AnswerEvent::Progress { done, total } => self.reading.progress(done, total, out),
            AnswerEvent::Error(failure) => {
                self.close(out);
                push_named("error", &anthropic_error(&failure, None), out);
            }
            _ => {}
        }
    }

    fn rendered(&self, prompt: String) -> Response {
        let debug_info = Some(DebugInfo { rendered_template: prompt, image_count: 0 });
        json_plain(StatusCode::OK, &MessagesResponse { debug_info, ..self.message() })
    }
}
