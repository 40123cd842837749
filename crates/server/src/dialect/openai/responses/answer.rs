//! Events to responses, whole and in pieces.
//!
//! A response is a row of items: thoughts, messages, calls. At most one is open; it is closed before the next begins.

use std::sync::Arc;

use axum::http::StatusCode;
use axum::response::Response;
use jiff::Timestamp;
use puna_api::native::{DebugInfo, Message, ToolCall, ToolCallFunction, ToolChoice};
use puna_api::openai::CONTEXT_LENGTH_EXCEEDED;
use puna_api::responses::ResponsesRequest;
use serde_json::{Value, json as value};

use super::items::{CallHead, Kind, Told, done, whole};
use super::replay::push;
use super::tools::{Form, ToolName};
use crate::canonical::{ApiError, CallOutcome, FinishReason, GenerationSummary, Piece};
use crate::dialect::answer_events::EndedCall;
use crate::dialect::waiting::Reading;
use crate::dialect::{AnswerEvent, Collected, CollectedCall, Encoder, Times};
use crate::http::{Owner, StreamFormat, json_plain};
use crate::paragraphs::append_paragraph;
use crate::random_ids;
use crate::response_store::{ResponseStore, StoredResponse};

/// Where a response is to be kept, and the conversation that it answers, without the instructions.
pub(crate) struct Keep {
    pub(crate) owner: Owner,
    pub(crate) responses: Arc<ResponseStore>,
    pub(crate) messages: Vec<Message>,
}

/// Encodes the answer to `POST /v1/responses`.
pub(crate) struct ResponseEncoder {
    id: String,
    created: i64,
    request: ResponsesRequest,
    keep: Option<Keep>,
    stored: bool,
    started: bool,
    /// The number of the next event.
    sequence: u64,
    /// The numbers of events that were only signs of life.
    heartbeats: Vec<u64>,
    /// Items that are complete.
    output: Vec<Value>,
    /// The bytes of the pieces in which each came.
    pieces: Vec<Vec<usize>>,
    open: Option<Open>,
    /// What the model said in all, for those who go on from here.
    said: Message,
    /// The response, once it is complete.
    complete: Option<Value>,
    reading: Reading,
}

/// An item that is still open.
struct Open {
    kind: Kind,
    id: String,
    text: String,
    /// The bytes of its pieces.
    pieces: Vec<usize>,
    call: CallHead,
    /// The name by which the model calls the tool of a call.
    called: String,
}

impl ResponseEncoder {
    pub(crate) fn new(request: ResponsesRequest, keep: Option<Keep>) -> Self {
        Self {
            id: random_ids::alphanumeric("resp_"),
            created: Timestamp::now().as_second(),
            request,
            stored: keep.is_some(),
            keep,
            started: false,
            sequence: 0,
            heartbeats: Vec::new(),
            output: Vec::new(),
            pieces: Vec::new(),
            open: None,
            said: Message::text("assistant", ""),
            complete: None,
            reading: Reading::default(),
        }
    }

    /// The response as it stands.
    fn response(&self, status: &str, done: Option<&GenerationSummary>) -> Value {
        let request = &self.request;
        let ended = matches!(status, "completed" | "incomplete");
        // Without a word from the client what does not fit is cut, and the answer says so.
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
            "store": self.stored,
            "background": false,
            "service_tier": "default",
            "metadata": request.metadata.clone().unwrap_or_default(),
            "safety_identifier": null,
            "prompt_cache_key": null,
        })
    }

    /// A choice of tools in this dialect's form.
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
        let mut choice = match Form::of(&self.request.tools, name) {
            Form::Function => value!({"type": "function", "name": tool.name}),
            Form::Custom => value!({"type": "custom", "name": tool.name}),
            Form::Shell => value!({"type": name}),
        };
        tool.add_namespace(&mut choice);
        choice
    }

    /// The answer in one object.
    pub(crate) fn whole(mut self, all: Collected) -> Response {
        if let Some(prompt) = all.rendered {
            return self.rendered(prompt);
        }
        let mut out = Vec::new();
        let piece = |text| Piece { text, logprobs: Vec::new() };
        let texts =
            [AnswerEvent::Thinking(piece(all.thinking)), AnswerEvent::Content(piece(all.content))];
        texts.into_iter().for_each(|event| self.encode(0, event, all.times, &mut out));
        for CollectedCall { id, call } in all.tool_calls {
            self.begin_call(id, call.name.clone(), &mut out);
            self.end_call(&EndedCall { rest: call.text.clone(), ..call }, &mut out);
        }
        if let Some(done) = all.done {
            self.encode(0, AnswerEvent::Done(done), all.times, &mut out);
        }
        let response = self.complete.take().unwrap_or_else(|| self.response("failed", None));
        json_plain(StatusCode::OK, &response)
    }

    /// The answer where nothing was to be generated.
    pub(crate) fn empty(mut self) -> Response {
        // There is nothing in it to go on from.
        self.stored = false;
        self.empty_message(&mut Vec::new());
        let mut response = self.response("completed", None);
        response["usage"] = value!({
            "input_tokens": 0, "output_tokens": 0, "total_tokens": 0,
            "input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0},
        });
        json_plain(StatusCode::OK, &response)
    }

    fn send(&mut self, told: impl IntoIterator<Item = Told>, out: &mut Vec<u8>) {
        for told in told {
            push(told, self.sequence, out);
            self.sequence += 1;
        }
    }

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

    /// Begins an item of a kind, unless one of it is open.
    fn begin(&mut self, kind: Kind, out: &mut Vec<u8>) {
        if self.open.as_ref().is_some_and(|open| open.kind == kind) {
            return;
        }
        self.close(out);
        let id = random_ids::alphanumeric(if kind == Kind::Message { "msg_" } else { "rs_" });
        self.open_item(kind, id, CallHead::default(), String::new(), out);
    }

    fn open_item(
        &mut self,
        kind: Kind,
        id: String,
        call: CallHead,
        called: String,
        out: &mut Vec<u8>,
    ) {
        self.send(kind.begun(self.output.len(), &id, &call), out);
        self.open = Some(Open { kind, id, text: String::new(), pieces: Vec::new(), call, called });
    }

    fn piece(&mut self, kind: Kind, text: &str, out: &mut Vec<u8>) {
        if kind != Kind::Call {
            self.begin(kind, out);
        }
        let index = self.output.len();
        let Some(open) = self.open.as_mut().filter(|open| open.kind == kind) else { return };
        let is_first = open.text.is_empty();
        open.text.push_str(text);
        open.pieces.push(text.len());
        if kind == Kind::Call && Form::of(&self.request.tools, &open.called) != Form::Function {
            return;
        }
        let delta = kind.delta(index, &open.id, text);
        let said = match kind {
            Kind::Reasoning => Some(&mut self.said.thinking),
            Kind::Message => Some(&mut self.said.content),
            Kind::Call => None,
        };
        match said {
            // As the items are read that a client sends back.
            Some(said) if is_first => append_paragraph(said, text),
            Some(said) => said.push_str(text),
            None => {}
        }
        self.send([delta], out);
    }

    /// Ends the open item, if there is one.
    fn close(&mut self, out: &mut Vec<u8>) {
        self.close_as("completed", out);
    }

    fn close_as(&mut self, status: &str, out: &mut Vec<u8>) {
        let Some(Open { kind, id, text, pieces, call, .. }) = self.open.take() else { return };
        self.send(kind.ended(self.output.len(), &id, &text), out);
        self.item_done(kind.item(&id, status, &call, &text), pieces, out);
    }

    fn item_done(&mut self, item: Value, pieces: Vec<usize>, out: &mut Vec<u8>) {
        self.send([done(self.output.len(), &item)], out);
        self.output.push(item);
        self.pieces.push(pieces);
    }

    /// Begins the item of a call. Calls of tools that are no functions are sent once they are complete.
    fn begin_call(&mut self, call_id: String, name: String, out: &mut Vec<u8>) {
        self.close(out);
        let call = CallHead { id: call_id, tool: ToolName::of(&self.request.tools, &name) };
        let form = Form::of(&self.request.tools, &name);
        let (kind, id) = (Kind::Call, random_ids::alphanumeric(form.prefix()));
        match form {
            Form::Function => self.open_item(kind, id, call, name, out),
            _ => {
                let (text, pieces) = (String::new(), Vec::new());
                self.open = Some(Open { kind, id, text, pieces, call, called: name });
            }
        }
    }

    /// Ends the item of the open call. The item of a call whose arguments are not all known is incomplete.
    fn end_call(&mut self, call: &EndedCall, out: &mut Vec<u8>) {
        if !call.rest.is_empty() {
            self.piece(Kind::Call, &call.rest, out);
        }
        let Some(Open { kind, id, text, pieces, call: head, called }) = self.open.take() else {
            return;
        };
        let function = ToolCallFunction {
            index: call.index as i64,
            name: called.clone(),
            arguments: call.arguments(),
        };
        let whole_call = ToolCall { id: head.id.clone(), function };
        let status = match call.outcome {
            CallOutcome::CutOff | CallOutcome::Invalid(None) => "incomplete",
            CallOutcome::Complete(_) | CallOutcome::Invalid(Some(_)) => "completed",
        };
        match Form::of(&self.request.tools, &called) {
            Form::Function => {
                if status == "completed" {
                    self.send(kind.ended(self.output.len(), &id, &text), out);
                }
                self.item_done(kind.item(&id, status, &head, &text), pieces, out);
            }
            form => {
                let mut item = form.item(&id, &whole_call, &head.tool);
                item["status"] = status.into();
                self.send(whole(self.output.len(), &item), out);
                self.item_done(item, Vec::new(), out);
            }
        }
        self.said.tool_calls.push(whole_call);
    }

    fn empty_message(&mut self, out: &mut Vec<u8>) {
        self.begin(Kind::Message, out);
        self.close(out);
    }

    fn end(&mut self, done: &GenerationSummary, out: &mut Vec<u8>) {
        let (status, name) = match done.reason {
            FinishReason::Length | FinishReason::ContentFilter => {
                ("incomplete", "response.incomplete")
            }
            FinishReason::Stop => ("completed", "response.completed"),
        };
        if self.open.is_none() && self.output.is_empty() {
            self.begin(Kind::Message, out);
        }
        self.close_as(status, out);
        let mut response = self.response(status, Some(done));
        if let Some(Keep { owner, responses, mut messages }) = self.keep.take() {
            messages.push(std::mem::take(&mut self.said));
            let pieces = std::mem::take(&mut self.pieces);
            let heartbeats = std::mem::take(&mut self.heartbeats);
            let kept =
                StoredResponse { owner, response: response.clone(), messages, pieces, heartbeats };
            // One that is too large is not there later.
            response["store"] = responses.put(&self.id, kept).into();
        }
        let mut event = value!({"response": response});
        if let Some(violations) = &done.schema_violations {
            event["schema_violations"] = value!(violations);
        }
        self.send([(name, event)], out);
        self.complete = Some(response);
    }

    fn fail(&mut self, failure: &ApiError, out: &mut Vec<u8>) {
        self.close_as("incomplete", out);
        // It is not kept.
        self.stored = false;
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

/// Token counts, and what was left out, where something was.
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

/// A tool as answers repeat it: what was not said is null.
fn tool(tool: &Value) -> Value {
    if tool["type"] != "function" {
        return tool.clone();
    }
    value!({
        "type": "function", "name": tool["name"], "description": tool["description"],
        "strict": tool["strict"], "parameters": tool["parameters"],
    })
}

impl Encoder for ResponseEncoder {
    const WIRE: StreamFormat = StreamFormat::NamedSse;
    fn wait(&mut self, phase: &str, out: &mut Vec<u8>) {
        out.extend_from_slice(format!(": {phase}\n\n").as_bytes());
        self.ping(out);
    }

    /// An event once more, since some clients count events only as signs of life.
    fn ping(&mut self, out: &mut Vec<u8>) {
        if !self.started {
            return self.start(out);
        }
        self.heartbeats.push(self.sequence);
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
                self.piece(Kind::Reasoning, &piece.text, out)
            }
            AnswerEvent::Content(piece) if !piece.text.is_empty() => {
                self.piece(Kind::Message, &piece.text, out)
            }
            AnswerEvent::CallStart { id, name, .. } => self.begin_call(id.into_string(), name, out),
            AnswerEvent::CallArguments(text) => self.piece(Kind::Call, &text, out),
            AnswerEvent::CallEnd(call) => self.end_call(&call, out),
            AnswerEvent::Done(done) => self.end(&done, out),
            AnswerEvent::Progress { done, total } => self.reading.progress(done, total, out),
            AnswerEvent::Error(failure) => self.fail(&failure, out),
            _ => {}
        }
    }

    /// Clients look for the code of a prompt that is too long in the stream.
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
