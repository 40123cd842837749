//! Encodes events as a message, whole or streamed.
//!
//! A streamed message is a sequence of content blocks (thinking, text, tool calls), of which at
//! most one is open.

use axum::http::StatusCode;
use axum::response::Response;
use puna_api::anthropic::{Block, MessagesResponse, Usage};
use puna_api::ollama::{DebugInfo, ToolCall};
use serde_json::{Map, Value, json as value};

use super::SEARCH;
use crate::api::answer_events::{CallId, EndedCall};
use crate::api::progress::PromptProgress;
use crate::api::{AnswerEncoder, AnswerEvent, CollectedCall, CollectedResponse, Times, push_named};
use crate::canonical::{CallOutcome, FinishReason, GenerationSummary};
use crate::http::{StreamFormat, anthropic_error, json_plain};
use crate::util::random_ids;

/// Signature of thinking blocks. Clients send thinking back only with a signature; the server does
/// not read it.
const SIGNATURE: &str = "cHVuYQ==";

/// Encodes the answer to `POST /v1/messages`.
pub(crate) struct MessagesEncoder {
    id: String,
    model: String,
    /// Stop sequences of the request. The answer names only these as the reason of its end.
    stop: Vec<String>,
    /// Whether the request has the web-search tool, which the server should run itself.
    has_web_search: bool,
    started: bool,
    /// Number of blocks started so far.
    block_count: usize,
    open: Option<OpenBlock>,
    /// Whether the answer has a call that the client can run.
    has_client_call: bool,
    /// Whether a call was cut off.
    was_cut_off: bool,
    prompt_progress: PromptProgress,
}

/// Type of the open block.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OpenBlock {
    Thinking,
    Text,
    Call,
    /// A web search, sent after its arguments are complete.
    Search,
}

impl MessagesEncoder {
    /// Creates an encoder. `stop` has the stop sequences of the request.
    pub(crate) fn new(model: String, stop: Vec<String>, has_web_search: bool) -> Self {
        let id = random_ids::hex("msg_");
        let (started, has_client_call, was_cut_off, prompt_progress) =
            (false, false, false, PromptProgress::default());
        Self {
            id,
            model,
            stop,
            has_web_search,
            started,
            block_count: 0,
            open: None,
            has_client_call,
            was_cut_off,
            prompt_progress,
        }
    }

    /// Returns a message without content.
    fn message(&self) -> MessagesResponse {
        MessagesResponse {
            id: self.id.clone(),
            kind: "message".into(),
            role: "assistant".into(),
            model: self.model.clone(),
            ..MessagesResponse::default()
        }
    }

    /// Returns the stop reason and the stop sequence that matched.
    fn end_reason(
        &self,
        done: &GenerationSummary,
        has_client_call: bool,
    ) -> (&'static str, Option<String>) {
        let stop = done.stop.as_ref().filter(|stop| self.stop.contains(stop));
        match (done.reason, stop) {
            (FinishReason::ContentFilter, _) => ("refusal", None),
            _ if has_client_call => ("tool_use", None),
            (FinishReason::Length, _) => ("max_tokens", None),
            (FinishReason::Stop, Some(stop)) => ("stop_sequence", Some(stop.clone())),
            (FinishReason::Stop, None) => ("end_turn", None),
        }
    }

    /// Returns the blocks of a call.
    fn call_blocks(&self, call: CollectedCall) -> Vec<Block> {
        let ToolCall { id, function } = call.into();
        match self.has_web_search && function.name == SEARCH {
            true => failed_search(function.arguments).into(),
            false => vec![Block::ToolUse { id, name: function.name, input: function.arguments }],
        }
    }

    /// Returns the answer as one object.
    pub(crate) fn whole(&self, collected: CollectedResponse) -> Response {
        if let Some(prompt) = collected.rendered {
            return self.rendered(prompt);
        }
        let mut content = Vec::new();
        if !collected.thinking.is_empty() {
            content.push(Block::Thinking {
                thinking: collected.thinking,
                signature: SIGNATURE.into(),
            });
        }
        if !collected.content.is_empty() {
            content.push(Block::Text { text: collected.content });
        }
        let was_cut_off = collected
            .tool_calls
            .iter()
            .any(|tool_call| tool_call.call.outcome == CallOutcome::CutOff);
        let requires_client =
            collected.tool_calls.iter().any(|tool_call| tool_call.call.requires_client_action);
        content.extend(collected.tool_calls.into_iter().flat_map(|call| self.call_blocks(call)));
        let is_to_run = |block: &Block| matches!(block, Block::ToolUse { .. });
        let has_client_call = requires_client && !was_cut_off && content.iter().any(is_to_run);
        let mut answer = MessagesResponse { content, ..self.message() };
        if let Some(done) = collected.done {
            let (reason, stop_sequence) = self.end_reason(&done, has_client_call);
            answer = MessagesResponse {
                stop_reason: Some(reason.into()),
                stop_sequence,
                usage: usage(&done),
                ..answer
            };
        }
        json_plain(StatusCode::OK, &answer)
    }

    /// Sends `message_start` and a ping.
    fn start_message(&mut self, prompt_tokens: u64, out: &mut Vec<u8>) {
        self.started = true;
        // The share of cached tokens is not known yet.
        let usage = Usage { input_tokens: prompt_tokens, ..Usage::default() };
        let message = MessagesResponse { usage, ..self.message() };
        push_named("message_start", &value!({"type": "message_start", "message": message}), out);
        out.extend_from_slice(Self::PING);
    }

    /// Closes the open block and starts another.
    fn start_block(&mut self, block: Value, out: &mut Vec<u8>) {
        self.close_block(out);
        let index = self.block_count;
        let event = value!({"type": "content_block_start", "index": index, "content_block": block});
        push_named("content_block_start", &event, out);
        self.block_count += 1;
    }

    /// Sends a part of the newest block.
    fn send_delta(&self, delta: Value, out: &mut Vec<u8>) {
        let event =
            value!({"type": "content_block_delta", "index": self.block_count - 1, "delta": delta});
        push_named("content_block_delta", &event, out);
    }

    /// Sends the end of the newest block.
    fn stop_block(&self, out: &mut Vec<u8>) {
        let event = value!({"type": "content_block_stop", "index": self.block_count - 1});
        push_named("content_block_stop", &event, out);
    }

    /// Ends the open block, if there is one.
    fn close_block(&mut self, out: &mut Vec<u8>) {
        let open = self.open.take();
        if open == Some(OpenBlock::Thinking) {
            self.send_delta(value!({"type": "signature_delta", "signature": SIGNATURE}), out);
        }
        if open.is_some() {
            self.stop_block(out);
        }
    }

    /// Sends thinking, in a new block unless a thinking block is open.
    fn send_thinking(&mut self, text: &str, out: &mut Vec<u8>) {
        if self.open != Some(OpenBlock::Thinking) {
            self.start_block(value!({"type": "thinking", "thinking": "", "signature": ""}), out);
            self.open = Some(OpenBlock::Thinking);
        }
        self.send_delta(value!({"type": "thinking_delta", "thinking": text}), out);
    }

    /// Sends text, in a new block unless a text block is open.
    fn send_text(&mut self, text: &str, out: &mut Vec<u8>) {
        if self.open != Some(OpenBlock::Text) {
            self.start_block(value!({"type": "text", "text": ""}), out);
            self.open = Some(OpenBlock::Text);
        }
        self.send_delta(value!({"type": "text_delta", "text": text}), out);
    }

    /// Starts the block of a call.
    fn start_call(&mut self, id: CallId, name: String, out: &mut Vec<u8>) {
        if self.has_web_search && name == SEARCH {
            self.close_block(out);
            self.open = Some(OpenBlock::Search);
            return;
        }
        let id = id.into_string();
        self.start_block(
            value!({"type": "tool_use", "id": id, "name": name, "input": Map::new()}),
            out,
        );
        self.open = Some(OpenBlock::Call);
    }

    /// Ends the block of a call. Invalid JSON that is not sent yet is left out because SDKs parse
    /// the partial arguments.
    fn end_call(&mut self, call: &EndedCall, out: &mut Vec<u8>) {
        if self.open == Some(OpenBlock::Search) {
            self.open = None;
            return self.send_failed_search(call.arguments(), out);
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
            self.send_delta(value!({"type": "input_json_delta", "partial_json": rest}), out);
        }
        self.has_client_call |= call.is_complete() || is_whole && call.requires_client_action;
        self.was_cut_off |= call.outcome == CallOutcome::CutOff;
        self.close_block(out);
    }

    /// Sends a web search that the server cannot run, with its error.
    fn send_failed_search(&mut self, arguments: Map<String, Value>, out: &mut Vec<u8>) {
        let [call, result] = failed_search(arguments);
        let Block::ServerToolUse { id, name, input } = call else { return };
        self.start_block(
            value!({"type": "server_tool_use", "id": id, "name": name, "input": Map::new()}),
            out,
        );
        let arguments = Value::Object(input).to_string();
        self.send_delta(value!({"type": "input_json_delta", "partial_json": arguments}), out);
        self.stop_block(out);
        self.start_block(value!(result), out);
        self.stop_block(out);
    }

    /// Sends `message_delta` and `message_stop`.
    fn end_message(&mut self, done: &GenerationSummary, out: &mut Vec<u8>) {
        self.close_block(out);
        let (stop_reason, stop_sequence) =
            self.end_reason(done, self.has_client_call && !self.was_cut_off);
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

/// Returns the blocks of a web search that the server cannot run: the call and its error.
fn failed_search(arguments: Map<String, Value>) -> [Block; 2] {
    let id = random_ids::hex("srvtoolu_");
    let content = value!({"type": "web_search_tool_result_error", "error_code": "unavailable"});
    [
        Block::ServerToolUse { id: id.clone(), name: SEARCH.into(), input: arguments },
        Block::WebSearchToolResult { tool_use_id: id, content },
    ]
}

/// Returns the token counts. As in Anthropic's API, `input_tokens` excludes cached tokens.
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

impl AnswerEncoder for MessagesEncoder {
    const STREAM_FORMAT: StreamFormat = StreamFormat::NamedSse;
    const PING: &'static [u8] = b"event: ping\ndata: {\"type\":\"ping\"}\n\n";

    fn announce_phase(&mut self, phase: &str, out: &mut Vec<u8>) {
        out.extend_from_slice(format!(": {phase}\n\n").as_bytes());
        self.ping(out);
    }

    fn encode(&mut self, _: usize, event: AnswerEvent, _: Times, out: &mut Vec<u8>) {
        if !self.started {
            match &event {
                AnswerEvent::Started { prompt_tokens } => {
                    return self.start_message(*prompt_tokens, out);
                }
                AnswerEvent::Done(done) => self.start_message(done.prompt_tokens, out),
                AnswerEvent::Thinking(_)
                | AnswerEvent::Content(_)
                | AnswerEvent::CallStart { .. } => self.start_message(0, out),
                _ => {}
            }
        }
        match event {
            AnswerEvent::Thinking(piece) if !piece.text.is_empty() => {
                self.send_thinking(&piece.text, out)
            }
            AnswerEvent::Content(piece) if !piece.text.is_empty() => {
                self.send_text(&piece.text, out)
            }
            AnswerEvent::CallStart { id, name, .. } => self.start_call(id, name, out),
            AnswerEvent::CallArguments(text) if self.open == Some(OpenBlock::Call) => {
                self.send_delta(value!({"type": "input_json_delta", "partial_json": text}), out);
            }
            AnswerEvent::CallEnd(call) => self.end_call(&call, out),
            AnswerEvent::Done(done) => self.end_message(&done, out),
            AnswerEvent::Progress { done, total } => self.prompt_progress.report(done, total, out),
            AnswerEvent::Error(failure) => {
                self.close_block(out);
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
