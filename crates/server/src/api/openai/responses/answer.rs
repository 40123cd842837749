//! Encodes events as a response, whole or streamed.
//!
//! A response is a sequence of items: reasoning, messages, calls. At most one is open; the encoder
//! closes it before the next begins.

use std::sync::Arc;

use axum::http::StatusCode;
use axum::response::Response;
use jiff::Timestamp;
use puna_api::ollama::{DebugInfo, Message, ToolCall, ToolCallFunction, ToolChoice};
use puna_api::openai::CONTEXT_LENGTH_EXCEEDED;
use puna_api::responses::ResponsesRequest;
use serde_json::{Value, json as value};

use super::items::{CallHead, ItemKind, NamedEvent, done_event, whole_item_events};
use super::replay::push_numbered_event;
use super::tools::{CallFormat, ToolName};
use crate::api::answer_events::EndedCall;
use crate::api::openai::responses::{ResponseStore, StoredResponse};
use crate::api::paragraphs::append_paragraph;
use crate::api::progress::PromptProgress;
use crate::api::{AnswerEncoder, AnswerEvent, CollectedCall, CollectedResponse, Times};
use crate::canonical::{ApiError, CallOutcome, FinishReason, GenerationSummary, Piece};
use crate::http::{Owner, StreamFormat, json_plain};
use crate::util::random_ids;

/// Storage of a response: the owner, the store, and the conversation that it answers, without the
/// instructions.
pub(crate) struct Keep {
    pub(crate) owner: Owner,
    /// Number of the client whose share of the store the response uses.
    pub(crate) client: u64,
    pub(crate) responses: Arc<ResponseStore>,
    pub(crate) messages: Vec<Message>,
}

/// Encodes the answer to `POST /v1/responses`.
pub(crate) struct ResponseEncoder {
    id: String,
    created: i64,
    request: ResponsesRequest,
    keep: Option<Keep>,
    is_stored: bool,
    started: bool,
    /// Sequence number of the next event.
    next_sequence_number: u64,
    /// Sequence numbers of heartbeat events.
    heartbeats: Vec<u64>,
    /// Complete items.
    output: Vec<Value>,
    /// Byte lengths of the streamed pieces of each complete item.
    pieces: Vec<Vec<usize>>,
    open: Option<OpenItem>,
    /// The assistant's message in total, for requests that continue the stored response.
    message: Message,
    /// The response, after it is complete.
    complete_response: Option<Value>,
    prompt_progress: PromptProgress,
}

/// The open item.
struct OpenItem {
    kind: ItemKind,
    id: String,
    text: String,
    /// Byte lengths of the pieces so far.
    pieces: Vec<usize>,
    call: CallHead,
    /// Function name of a call.
    function_name: String,
}

impl ResponseEncoder {
    /// Creates an encoder. With `keep`, the completed response is stored.
    pub(crate) fn new(request: ResponsesRequest, keep: Option<Keep>) -> Self {
        Self {
            id: random_ids::alphanumeric("resp_"),
            created: Timestamp::now().as_second(),
            request,
            is_stored: keep.is_some(),
            keep,
            started: false,
            next_sequence_number: 0,
            heartbeats: Vec::new(),
            output: Vec::new(),
            pieces: Vec::new(),
            open: None,
            message: Message::text("assistant", ""),
            complete_response: None,
            prompt_progress: PromptProgress::default(),
        }
    }

    /// Returns the current state of the response.
    fn response(&self, status: &str, done: Option<&GenerationSummary>) -> Value {
        let request = &self.request;
        let ended = matches!(status, "completed" | "incomplete");
        // By default, the server truncates a prompt that does not fit, and the answer reports this.
        let is_cut = done.is_some_and(|done| done.dropped_messages + done.dropped_tokens > 0);
        let text =
            request.text.as_ref().map(|text| &text.format).filter(|format| !format.is_null());
        value!({
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "completed_at": ended.then(|| Timestamp::now().as_second()),
            "status": status,
            "incomplete_details": (status == "incomplete").then(|| value!({"reason": match done {
                Some(GenerationSummary { reason: FinishReason::ContentFilter, .. }) => "content_filter",
                _ => "max_output_tokens",
            }})),
            "model": request.model,
            "previous_response_id": request.previous_response_id,
            "instructions": request.instructions,
            "output": self.output,
            "error": null,
            "tools": request.tools.iter().map(tool).collect::<Vec<_>>(),
            "tool_choice": request.tool_choice.as_ref().map_or("auto".into(), |choice| self.choice(choice)),
            "truncation": request.truncation.as_deref().unwrap_or(if is_cut { "auto" } else { "disabled" }),
            "parallel_tool_calls": request.parallel_tool_calls.unwrap_or(true),
            "text": {"format": text.cloned().unwrap_or_else(|| value!({"type": "text"}))},
            "top_p": request.top_p.unwrap_or(1.0),
            "presence_penalty": 0,
            "frequency_penalty": 0,
            "top_logprobs": 0,
            "temperature": request.temperature.unwrap_or(1.0),
            "reasoning": request.reasoning,
            "usage": done.filter(|done| done.has_usage).map(usage),
            "max_output_tokens": request.max_output_tokens,
            "max_tool_calls": null,
            "store": self.is_stored,
            "background": false,
            "service_tier": "default",
            "metadata": request.metadata.clone().unwrap_or_default(),
            "safety_identifier": null,
            "prompt_cache_key": null,
        })
    }

    /// Returns a tool choice in this dialect's format.
    fn choice(&self, choice: &ToolChoice) -> Value {
        let name = match choice {
            ToolChoice::Named(name) => name,
            ToolChoice::Allowed { required, names, hosted } => {
                let named = names.iter().map(|name| self.choice(&ToolChoice::Named(name.clone())));
                let hosted = hosted.iter().map(|kind| value!({"type": kind}));
                let tools: Vec<_> = named.chain(hosted).collect();
                let mode = if *required { "required" } else { "auto" };
                return value!({"type": "allowed_tools", "mode": mode, "tools": tools});
            }
            other => return value!(other),
        };
        let tool = ToolName::of(&self.request.tools, name);
        let mut choice = match CallFormat::of(&self.request.tools, name) {
            CallFormat::Function => value!({"type": "function", "name": tool.name}),
            CallFormat::Custom => value!({"type": "custom", "name": tool.name}),
            CallFormat::Shell => value!({"type": name}),
        };
        tool.add_namespace(&mut choice);
        choice
    }

    /// Returns the answer as one object.
    pub(crate) fn whole(mut self, all: CollectedResponse) -> Response {
        if let Some(prompt) = all.rendered {
            return self.rendered(prompt);
        }
        let mut out = Vec::new();
        let piece = |text| Piece { text, logprobs: Vec::new() };
        let texts =
            [AnswerEvent::Thinking(piece(all.thinking)), AnswerEvent::Content(piece(all.content))];
        texts.into_iter().for_each(|event| self.encode(0, event, all.times, &mut out));
        for CollectedCall { id, call } in all.tool_calls {
            self.start_call(id, call.name.clone(), &mut out);
            self.end_call(&EndedCall { rest: call.text.clone(), ..call }, &mut out);
        }
        if let Some(done) = all.done {
            self.encode(0, AnswerEvent::Done(done), all.times, &mut out);
        }
        let response =
            self.complete_response.take().unwrap_or_else(|| self.response("failed", None));
        json_plain(StatusCode::OK, &response)
    }

    /// Returns the answer to a request that generates no text, for example to load a model.
    pub(crate) fn empty(mut self) -> Response {
        // An empty response cannot be continued.
        self.is_stored = false;
        self.empty_message(&mut Vec::new());
        let mut response = self.response("completed", None);
        response["usage"] = value!({
            "input_tokens": 0, "output_tokens": 0, "total_tokens": 0,
            "input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0},
        });
        json_plain(StatusCode::OK, &response)
    }

    /// Appends events with consecutive sequence numbers.
    fn send(&mut self, events: impl IntoIterator<Item = NamedEvent>, out: &mut Vec<u8>) {
        for event in events {
            push_numbered_event(event, self.next_sequence_number, out);
            self.next_sequence_number += 1;
        }
    }

    /// Sends the events at the start of a response, once.
    fn start(&mut self, out: &mut Vec<u8>) {
        if self.started {
            return;
        }
        self.started = true;
        let response = self.response("in_progress", None);
        for name in ["response.created", "response.in_progress"] {
            self.send([(name, value!({"response": response}))], out);
        }
    }

    /// Begins an item of a type, unless an item of this type is open.
    fn start_item(&mut self, kind: ItemKind, out: &mut Vec<u8>) {
        if self.open.as_ref().is_some_and(|open| open.kind == kind) {
            return;
        }
        self.close(out);
        let id = random_ids::alphanumeric(if kind == ItemKind::Message { "msg_" } else { "rs_" });
        self.open_item(kind, id, CallHead::default(), String::new(), out);
    }

    /// Sends the start of an item and makes it the open item.
    fn open_item(
        &mut self,
        kind: ItemKind,
        id: String,
        call: CallHead,
        function_name: String,
        out: &mut Vec<u8>,
    ) {
        self.send(kind.start_events(self.output.len(), &id, &call), out);
        self.open = Some(OpenItem {
            kind,
            id,
            text: String::new(),
            pieces: Vec::new(),
            call,
            function_name,
        });
    }

    /// Adds text to the open item and sends it. Text of calls other than functions is not sent
    /// before their end.
    fn add_piece(&mut self, kind: ItemKind, text: &str, out: &mut Vec<u8>) {
        if kind != ItemKind::Call {
            self.start_item(kind, out);
        }
        let index = self.output.len();
        let Some(open) = self.open.as_mut().filter(|open| open.kind == kind) else { return };
        let is_first = open.text.is_empty();
        open.text.push_str(text);
        open.pieces.push(text.len());
        if kind == ItemKind::Call
            && CallFormat::of(&self.request.tools, &open.function_name) != CallFormat::Function
        {
            return;
        }
        let delta = kind.delta_event(index, &open.id, text);
        let message_text = match kind {
            ItemKind::Reasoning => Some(&mut self.message.thinking),
            ItemKind::Message => Some(&mut self.message.content),
            ItemKind::Call => None,
        };
        match message_text {
            // The first piece starts a paragraph, as items do that a client sends back.
            Some(message_text) if is_first => append_paragraph(message_text, text),
            Some(message_text) => message_text.push_str(text),
            None => {}
        }
        self.send([delta], out);
    }

    /// Ends the open item, if there is one.
    fn close(&mut self, out: &mut Vec<u8>) {
        self.close_as("completed", out);
    }

    /// Ends the open item with a status.
    fn close_as(&mut self, status: &str, out: &mut Vec<u8>) {
        let Some(OpenItem { kind, id, text, pieces, call, .. }) = self.open.take() else { return };
        self.send(kind.end_events(self.output.len(), &id, &text), out);
        self.finish_item(kind.item(&id, status, &call, &text), pieces, out);
    }

    /// Sends the last event of an item and adds the item to the output.
    fn finish_item(&mut self, item: Value, pieces: Vec<usize>, out: &mut Vec<u8>) {
        self.send([done_event(self.output.len(), &item)], out);
        self.output.push(item);
        self.pieces.push(pieces);
    }

    /// Begins the item of a call. Calls of other tools than functions are sent after they are
    /// complete.
    fn start_call(&mut self, call_id: String, name: String, out: &mut Vec<u8>) {
        self.close(out);
        let call = CallHead { id: call_id, tool: ToolName::of(&self.request.tools, &name) };
        let format = CallFormat::of(&self.request.tools, &name);
        let (kind, id) = (ItemKind::Call, random_ids::alphanumeric(format.prefix()));
        match format {
            CallFormat::Function => self.open_item(kind, id, call, name, out),
            _ => {
                let (text, pieces) = (String::new(), Vec::new());
                self.open = Some(OpenItem { kind, id, text, pieces, call, function_name: name });
            }
        }
    }

    /// Ends the item of the open call. The status is `incomplete` if some arguments are unknown.
    fn end_call(&mut self, call: &EndedCall, out: &mut Vec<u8>) {
        if !call.rest.is_empty() {
            self.add_piece(ItemKind::Call, &call.rest, out);
        }
        let Some(OpenItem { kind, id, text, pieces, call: head, function_name }) = self.open.take()
        else {
            return;
        };
        let function = ToolCallFunction {
            index: call.index as i64,
            name: function_name.clone(),
            arguments: call.arguments(),
        };
        let whole_call = ToolCall { id: head.id.clone(), function };
        let status = match call.outcome {
            CallOutcome::CutOff | CallOutcome::Invalid(None) => "incomplete",
            CallOutcome::Complete(_) | CallOutcome::Invalid(Some(_)) => "completed",
        };
        match CallFormat::of(&self.request.tools, &function_name) {
            CallFormat::Function => {
                if status == "completed" {
                    self.send(kind.end_events(self.output.len(), &id, &text), out);
                }
                self.finish_item(kind.item(&id, status, &head, &text), pieces, out);
            }
            format => {
                let mut item = format.call_item(&id, &whole_call, &head.tool);
                item["status"] = status.into();
                self.send(whole_item_events(self.output.len(), &item), out);
                self.finish_item(item, Vec::new(), out);
            }
        }
        self.message.tool_calls.push(whole_call);
    }

    fn empty_message(&mut self, out: &mut Vec<u8>) {
        self.start_item(ItemKind::Message, out);
        self.close(out);
    }

    /// Ends the response and stores it, if requested.
    fn end(&mut self, done: &GenerationSummary, out: &mut Vec<u8>) {
        let (status, name) = match done.reason {
            FinishReason::Length | FinishReason::ContentFilter => {
                ("incomplete", "response.incomplete")
            }
            FinishReason::Stop => ("completed", "response.completed"),
        };
        if self.open.is_none() && self.output.is_empty() {
            self.start_item(ItemKind::Message, out);
        }
        self.close_as(status, out);
        let mut response = self.response(status, Some(done));
        if let Some(Keep { owner, client, responses, mut messages }) = self.keep.take() {
            messages.push(std::mem::take(&mut self.message));
            let pieces = std::mem::take(&mut self.pieces);
            let heartbeats = std::mem::take(&mut self.heartbeats);
            let stored_response = StoredResponse {
                owner,
                client,
                response: response.clone(),
                messages,
                pieces,
                heartbeats,
            };
            // The store rejects a response that is too large.
            response["store"] = responses.put(&self.id, stored_response).into();
        }
        let mut event = value!({"response": response});
        if let Some(violations) = &done.schema_violations {
            event["schema_violations"] = value!(violations);
        }
        self.send([(name, event)], out);
        self.complete_response = Some(response);
    }

    /// Ends the response with an error.
    fn fail(&mut self, failure: &ApiError, out: &mut Vec<u8>) {
        self.close_as("incomplete", out);
        // The server does not store failed responses.
        self.is_stored = false;
        let mut response = self.response("failed", None);
        let code = if failure.exceeds_context() { CONTEXT_LENGTH_EXCEEDED } else { "server_error" };
        response["error"] = value!({"code": code, "message": failure.message});
        if let Some((tokens, context)) = failure.lengths {
            (response["error"]["n_prompt_tokens"], response["error"]["n_ctx"]) =
                (tokens.into(), context.into());
        }
        self.send([("response.failed", value!({"response": response}))], out);
    }
}

/// Returns the token counts, and the counts of truncated messages and tokens if not zero.
fn usage(done: &GenerationSummary) -> Value {
    let mut usage = value!({
        "input_tokens": done.prompt_tokens,
        "output_tokens": done.generated_tokens,
        "total_tokens": done.prompt_tokens + done.generated_tokens,
        "input_tokens_details": {"cached_tokens": done.cached_tokens},
        "output_tokens_details": {"reasoning_tokens": done.thought_tokens},
    });
    let left_out =
        [("truncated_messages", done.dropped_messages), ("truncated_tokens", done.dropped_tokens)];
    for (name, count) in left_out.into_iter().filter(|(_, count)| *count > 0) {
        usage[name] = count.into();
    }
    usage
}

/// Returns a tool as answers repeat it, with null for missing fields.
fn tool(tool: &Value) -> Value {
    if tool["type"] != "function" {
        return tool.clone();
    }
    value!({
        "type": "function", "name": tool["name"], "description": tool["description"],
        "strict": tool["strict"], "parameters": tool["parameters"],
    })
}

impl AnswerEncoder for ResponseEncoder {
    const STREAM_FORMAT: StreamFormat = StreamFormat::NamedSse;
    fn announce_phase(&mut self, phase: &str, out: &mut Vec<u8>) {
        out.extend_from_slice(format!(": {phase}\n\n").as_bytes());
        self.ping(out);
    }

    /// Repeats the `response.in_progress` event, because some clients count only events as signs of
    /// life.
    fn ping(&mut self, out: &mut Vec<u8>) {
        if !self.started {
            return self.start(out);
        }
        self.heartbeats.push(self.next_sequence_number);
        let mut response = self.response("in_progress", None);
        response["output"] = value!([]);
        self.send([("response.in_progress", value!({"response": response}))], out);
    }

    fn encode(&mut self, _: usize, event: AnswerEvent, _: Times, out: &mut Vec<u8>) {
        if !matches!(event, AnswerEvent::Progress { .. }) {
            self.start(out);
        }
        match event {
            AnswerEvent::Thinking(piece) if !piece.text.is_empty() => {
                self.add_piece(ItemKind::Reasoning, &piece.text, out)
            }
            AnswerEvent::Content(piece) if !piece.text.is_empty() => {
                self.add_piece(ItemKind::Message, &piece.text, out)
            }
            AnswerEvent::CallStart { id, name, .. } => self.start_call(id.into_string(), name, out),
            AnswerEvent::CallArguments(text) => self.add_piece(ItemKind::Call, &text, out),
            AnswerEvent::CallEnd(call) => self.end_call(&call, out),
            AnswerEvent::Done(done) => self.end(&done, out),
            AnswerEvent::Progress { done, total } => self.prompt_progress.report(done, total, out),
            AnswerEvent::Error(failure) => self.fail(&failure, out),
            _ => {}
        }
    }

    /// Clients look in the stream for the error code of a prompt that is too long.
    fn fails_in_stream(&self, failure: &ApiError) -> bool {
        failure.exceeds_context()
    }

    fn rendered(&self, prompt: String) -> Response {
        let debug_info = DebugInfo { rendered_template: prompt, image_count: 0 };
        let mut response = self.response("completed", None);
        response["_debug_info"] = value!(debug_info);
        json_plain(StatusCode::OK, &response)
    }
}
