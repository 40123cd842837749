//! Events to responses, whole and in pieces.
//!
//! A response is a row of items: thoughts, messages, calls. At most one is open; it is closed before the next begins.

use std::sync::Arc;

use axum::http::StatusCode;
use axum::response::Response;
use jiff::Timestamp;
use puna_api::native::{DebugInfo, Message, ToolCall, ToolChoice};
use puna_api::responses::ResponsesRequest;
use serde_json::{Value, json as value};

use super::items::{Kind, Told, done, whole};
use super::replay::push;
use super::tools::Form;
use crate::canonical::{Done, Event, Failure, Piece, Reason};
use crate::dialect::waiting::Reading;
use crate::dialect::{Collected, Encoder, Times};
use crate::http::{Owner, Wire, json_plain};
use crate::ids;
use crate::kept::{Kept, Responses};

/// Where a response is to be kept, and the conversation that it answers, without the instructions.
pub(crate) struct Keep {
    pub(crate) owner: Owner,
    pub(crate) responses: Arc<Responses>,
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
    /// The id and the function of a call, else empty.
    call: (String, String),
}

impl ResponseEncoder {
    pub(crate) fn new(request: ResponsesRequest, keep: Option<Keep>) -> Self {
        Self {
            id: ids::new("resp_"),
            created: Timestamp::now().as_second(),
            request,
            stored: keep.is_some(),
            keep,
            started: false,
            sequence: 0,
            output: Vec::new(),
            pieces: Vec::new(),
            open: None,
            said: Message::text("assistant", ""),
            complete: None,
            reading: Reading::default(),
        }
    }

    /// The response as it stands.
    fn response(&self, status: &str, done: Option<&Done>) -> Value {
        let request = &self.request;
        let ended = matches!(status, "completed" | "incomplete");
        // Without a word from the client what does not fit is cut, and the answer says so.
        let is_cut = done.is_some_and(|done| done.dropped_messages + done.dropped_tokens > 0);
        let text = request.text.as_ref().map(|text| &text.format).filter(|format| !format.is_null());
        value!({
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "completed_at": ended.then(|| Timestamp::now().as_second()),
            "status": status,
            "incomplete_details": (status == "incomplete").then(|| value!({"reason": "max_output_tokens"})),
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
            "usage": done.map(usage),
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
        let ToolChoice::Named(name) = choice else { return value!(choice) };
        match Form::of(&self.request.tools, name) {
            Form::Function => value!({"type": "function", "name": name}),
            Form::Custom => value!({"type": "custom", "name": name}),
            Form::Shell => value!({"type": name}),
        }
    }

    /// The answer in one object.
    pub(crate) fn whole(mut self, all: Collected) -> Response {
        if let Some(prompt) = all.rendered {
            return self.rendered(prompt);
        }
        let mut out = Vec::new();
        let piece = |text| Piece { text, logprobs: Vec::new() };
        let events = [Event::Thinking(piece(all.thinking)), Event::Content(piece(all.content))];
        let calls = all.tool_calls.into_iter().map(Event::ToolCall);
        for event in events.into_iter().chain(calls).chain(all.done.map(Event::Done)) {
            self.encode(0, event, all.times, &mut out);
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
        let (id, index) = (ids::new(if kind == Kind::Message { "msg_" } else { "rs_" }), self.output.len());
        self.open_item(kind, index, id, Default::default(), out);
    }

    fn open_item(&mut self, kind: Kind, index: usize, id: String, call: (String, String), out: &mut Vec<u8>) {
        self.send(kind.begun(index, &id, &call), out);
        self.open = Some(Open { kind, id, text: String::new(), pieces: Vec::new(), call });
    }

    fn piece(&mut self, kind: Kind, text: &str, out: &mut Vec<u8>) {
        if kind != Kind::Call {
            self.begin(kind, out);
        }
        let index = self.output.len();
        let Some(open) = self.open.as_mut().filter(|open| open.kind == kind) else { return };
        open.text.push_str(text);
        open.pieces.push(text.len());
        let delta = kind.delta(index, &open.id, text);
        match kind {
            Kind::Reasoning => self.said.thinking.push_str(text),
            Kind::Message => self.said.content.push_str(text),
            Kind::Call => {}
        }
        self.send([delta], out);
    }

    /// Ends the open item, if there is one.
    fn close(&mut self, out: &mut Vec<u8>) {
        let Some(Open { kind, id, text, pieces, call }) = self.open.take() else { return };
        let status = match kind {
            // One that is complete is ended by its own event.
            Kind::Call => "incomplete",
            Kind::Reasoning | Kind::Message => {
                self.send(kind.ended(self.output.len(), &id, &text), out);
                "completed"
            }
        };
        self.item_done(kind.item(&id, status, &call, &text), pieces, out);
    }

    fn item_done(&mut self, item: Value, pieces: Vec<usize>, out: &mut Vec<u8>) {
        self.send([done(self.output.len(), &item)], out);
        self.output.push(item);
        self.pieces.push(pieces);
    }

    fn call(&mut self, call: ToolCall, out: &mut Vec<u8>) {
        match Form::of(&self.request.tools, &call.function.name) {
            Form::Function => self.function(&call, out),
            form => self.other(form, &call, out),
        }
        self.said.tool_calls.push(call);
    }

    fn function(&mut self, call: &ToolCall, out: &mut Vec<u8>) {
        if self.open.as_ref().is_none_or(|open| open.call.0 != call.id) {
            self.begin_call(call.id.clone(), call.function.name.clone(), out);
            self.piece(Kind::Call, &Value::Object(call.function.arguments.clone()).to_string(), out);
        }
        if let Some(Open { kind, id, text, pieces, call }) = self.open.take() {
            self.send(kind.ended(self.output.len(), &id, &text), out);
            self.item_done(kind.item(&id, "completed", &call, &text), pieces, out);
        }
    }

    /// A call of a tool that is no function, which is known only as a whole.
    fn other(&mut self, form: Form, call: &ToolCall, out: &mut Vec<u8>) {
        self.close(out);
        let item = form.item(&ids::new(form.prefix()), call);
        self.send(whole(self.output.len(), &item), out);
        self.item_done(item, Vec::new(), out);
    }

    /// Begins the item of a call, if it is one of a function.
    fn begin_call(&mut self, call_id: String, name: String, out: &mut Vec<u8>) {
        if Form::of(&self.request.tools, &name) != Form::Function {
            return;
        }
        self.close(out);
        self.open_item(Kind::Call, self.output.len(), ids::new("fc_"), (call_id, name), out);
    }

    fn empty_message(&mut self, out: &mut Vec<u8>) {
        self.begin(Kind::Message, out);
        self.close(out);
    }

    fn end(&mut self, done: &Done, out: &mut Vec<u8>) {
        self.close(out);
        if self.output.is_empty() {
            self.empty_message(out);
        }
        let (status, name) = match done.reason {
            Reason::Length => ("incomplete", "response.incomplete"),
            Reason::Stop => ("completed", "response.completed"),
        };
        let mut response = self.response(status, Some(done));
        if let Some(Keep { owner, responses, mut messages }) = self.keep.take() {
            messages.push(std::mem::take(&mut self.said));
            let pieces = std::mem::take(&mut self.pieces);
            let kept = Kept { owner, response: response.clone(), messages, pieces };
            // One that is too large is not there later.
            response["store"] = responses.put(&self.id, kept).into();
        }
        self.send([(name, value!({"response": response}))], out);
        self.complete = Some(response);
    }

    fn fail(&mut self, failure: &Failure, out: &mut Vec<u8>) {
        // It is not kept.
        self.stored = false;
        let mut response = self.response("failed", None);
        response["error"] = value!({"code": "server_error", "message": failure.message});
        self.send([("response.failed", value!({"response": response}))], out);
    }
}

/// Token counts, and what was left out, where something was.
fn usage(done: &Done) -> Value {
    let mut usage = value!({
        "input_tokens": done.prompt_tokens,
        "output_tokens": done.generated_tokens,
        "total_tokens": done.prompt_tokens + done.generated_tokens,
        "input_tokens_details": {"cached_tokens": done.cached_tokens},
        "output_tokens_details": {"reasoning_tokens": done.thought_tokens},
    });
    let left_out = [("truncated_messages", done.dropped_messages), ("truncated_tokens", done.dropped_tokens)];
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
    const WIRE: Wire = Wire::NamedSse;
    const PING: &'static [u8] = b": still there\n\n";

    fn encode(&mut self, _: usize, event: Event, _: Times, out: &mut Vec<u8>) {
        if !matches!(event, Event::Progress { .. }) {
            self.start(out);
        }
        match event {
            Event::Thinking(piece) if !piece.text.is_empty() => self.piece(Kind::Reasoning, &piece.text, out),
            Event::Content(piece) if !piece.text.is_empty() => self.piece(Kind::Message, &piece.text, out),
            Event::CallBegins { id, name, .. } => self.begin_call(id, name, out),
            Event::CallArguments(text) => self.piece(Kind::Call, &text, out),
            Event::ToolCall(call) => self.call(call, out),
            Event::Done(done) => self.end(&done, out),
            Event::Progress { done, total } => self.reading.progress(done, total, out),
            Event::Error(failure) => self.fail(&failure, out),
            _ => {}
        }
    }

    fn rendered(&self, prompt: String) -> Response {
        let debug_info = DebugInfo { rendered_template: prompt, image_count: 0 };
        let mut response = self.response("completed", None);
        response["_debug_info"] = value!(debug_info);
        json_plain(StatusCode::OK, &response)
    }
}
