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

use super::tools::Form;
use crate::canonical::{Done, Event, Failure, Piece, Reason};
use crate::dialect::waiting::Reading;
use crate::dialect::{Collected, Encoder, Times, push_named};
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
    /// The id and the function of a call, else empty.
    call: (String, String),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Reasoning,
    Message,
    Call,
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

    fn send(&mut self, kind: &str, mut event: Value, out: &mut Vec<u8>) {
        event["type"] = kind.into();
        event["sequence_number"] = self.sequence.into();
        self.sequence += 1;
        push_named(kind, &event, out);
    }

    fn start(&mut self, out: &mut Vec<u8>) {
        if self.started {
            return;
        }
        self.started = true;
        let response = self.response("in_progress", None);
        self.send("response.created", value!({"response": response}), out);
        self.send("response.in_progress", value!({"response": response}), out);
    }

    /// Begins an item of a kind, unless one of it is open.
    fn begin(&mut self, kind: Kind, out: &mut Vec<u8>) {
        if self.open.as_ref().is_some_and(|open| open.kind == kind) {
            return;
        }
        self.close(out);
        let (id, index) = (ids::new(if kind == Kind::Message { "msg_" } else { "rs_" }), self.output.len());
        let item = match kind {
            Kind::Message => message(&id, "in_progress", None),
            _ => value!({"id": id, "type": "reasoning", "summary": []}),
        };
        self.send("response.output_item.added", value!({"output_index": index, "item": item}), out);
        let (name, place, part) = match kind {
            Kind::Message => ("response.content_part.added", "content_index", part("")),
            _ => ("response.reasoning_summary_part.added", "summary_index", summary("")),
        };
        let mut event = value!({"item_id": id, "output_index": index, "part": part});
        event[place] = 0.into();
        self.send(name, event, out);
        self.open = Some(Open { kind, id, text: String::new(), call: Default::default() });
    }

    fn piece(&mut self, kind: Kind, text: &str, out: &mut Vec<u8>) {
        if kind != Kind::Call {
            self.begin(kind, out);
        }
        let index = self.output.len();
        let Some(open) = self.open.as_mut().filter(|open| open.kind == kind) else { return };
        open.text.push_str(text);
        let id = open.id.clone();
        match kind {
            Kind::Reasoning => {
                self.said.thinking.push_str(text);
                let event = value!({"item_id": id, "output_index": index, "summary_index": 0, "delta": text});
                self.send("response.reasoning_summary_text.delta", event, out);
            }
            Kind::Message => {
                self.said.content.push_str(text);
                let event = value!({
                    "item_id": id, "output_index": index, "content_index": 0, "delta": text, "logprobs": [],
                });
                self.send("response.output_text.delta", event, out);
            }
            Kind::Call => {
                let delta = value!({"item_id": id, "output_index": index, "delta": text});
                self.send("response.function_call_arguments.delta", delta, out);
            }
        }
    }

    /// Ends the open item, if there is one.
    fn close(&mut self, out: &mut Vec<u8>) {
        let Some(Open { kind, id, text, call }) = self.open.take() else { return };
        let index = self.output.len();
        let item = match kind {
            Kind::Reasoning => {
                let event = value!({"item_id": id, "output_index": index, "summary_index": 0, "text": text});
                self.send("response.reasoning_summary_text.done", event, out);
                let part = summary(&text);
                let event = value!({"item_id": id, "output_index": index, "summary_index": 0, "part": part});
                self.send("response.reasoning_summary_part.done", event, out);
                value!({"id": id, "type": "reasoning", "summary": [part], "encrypted_content": text})
            }
            Kind::Message => {
                let place = |field: &str, value: Value| {
                    let mut event = value!({"item_id": id, "output_index": index, "content_index": 0});
                    event[field] = value;
                    event
                };
                let mut done = place("text", value!(text));
                done["logprobs"] = value!([]);
                self.send("response.output_text.done", done, out);
                self.send("response.content_part.done", place("part", part(&text)), out);
                message(&id, "completed", Some(&text))
            }
            // One that is complete is ended by its own event.
            Kind::Call => function_call(&id, "incomplete", &call, &text),
        };
        self.item_done(item, out);
    }

    fn item_done(&mut self, item: Value, out: &mut Vec<u8>) {
        let index = self.output.len();
        self.send("response.output_item.done", value!({"output_index": index, "item": item}), out);
        self.output.push(item);
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
        if let Some(Open { id, text, call, .. }) = self.open.take() {
            let index = self.output.len();
            let done = value!({"item_id": id, "output_index": index, "arguments": text});
            self.send("response.function_call_arguments.done", done, out);
            self.item_done(function_call(&id, "completed", &call, &text), out);
        }
    }

    /// A call of a tool that is no function, which is known only as a whole.
    fn other(&mut self, form: Form, call: &ToolCall, out: &mut Vec<u8>) {
        self.close(out);
        let (id, index) = (ids::new(form.prefix()), self.output.len());
        let complete = form.item(&id, call);
        let text = complete.get("input").cloned();
        let mut begun = complete.clone();
        begun["status"] = "in_progress".into();
        if text.is_some() {
            begun["input"] = "".into();
        }
        self.send("response.output_item.added", value!({"output_index": index, "item": begun}), out);
        if let Some(text) = text {
            let delta = value!({"item_id": id, "output_index": index, "delta": text});
            self.send("response.custom_tool_call_input.delta", delta, out);
            let done = value!({"item_id": id, "output_index": index, "input": text});
            self.send("response.custom_tool_call_input.done", done, out);
        }
        self.item_done(complete, out);
    }

    /// Begins the item of a call, if it is one of a function.
    fn begin_call(&mut self, call_id: String, name: String, out: &mut Vec<u8>) {
        if Form::of(&self.request.tools, &name) != Form::Function {
            return;
        }
        self.close(out);
        let (id, index, call) = (ids::new("fc_"), self.output.len(), (call_id, name));
        let item = function_call(&id, "in_progress", &call, "");
        self.send("response.output_item.added", value!({"output_index": index, "item": item}), out);
        self.open = Some(Open { kind: Kind::Call, id, text: String::new(), call });
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
        let status = match done.reason {
            Reason::Length => "incomplete",
            Reason::Stop => "completed",
        };
        let mut response = self.response(status, Some(done));
        if let Some(Keep { owner, responses, mut messages }) = self.keep.take() {
            messages.push(std::mem::take(&mut self.said));
            let kept = Kept { owner, response: response.clone(), messages };
            // One that is too large is not there later.
            response["store"] = responses.put(&self.id, kept).into();
        }
        self.send(&format!("response.{status}"), value!({"response": response}), out);
        self.complete = Some(response);
    }

    fn fail(&mut self, failure: &Failure, out: &mut Vec<u8>) {
        // It is not kept.
        self.stored = false;
        let mut response = self.response("failed", None);
        response["error"] = value!({"code": "server_error", "message": failure.message});
        self.send("response.failed", value!({"response": response}), out);
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

fn message(id: &str, status: &str, text: Option<&str>) -> Value {
    let content: Vec<_> = text.map(part).into_iter().collect();
    value!({"id": id, "type": "message", "status": status, "role": "assistant", "content": content})
}

/// The item of a call, with the call's own id and its function.
fn function_call(id: &str, status: &str, (call_id, name): &(String, String), arguments: &str) -> Value {
    value!({
        "id": id, "type": "function_call", "status": status, "call_id": call_id, "name": name, "arguments": arguments,
    })
}

fn part(text: &str) -> Value {
    value!({"type": "output_text", "text": text, "annotations": [], "logprobs": []})
}

fn summary(text: &str) -> Value {
    value!({"type": "summary_text", "text": text})
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
