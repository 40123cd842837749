//! OpenAI's dialect.

use axum::http::StatusCode;
use axum::response::Response;
use jiff::Timestamp;
use puna_api::native::{self, ChatRequest, DebugInfo, Image, Logprob, Think, ToolCallFunction};
use puna_api::openai::{
    AnswerMessage, ChatCompletion, ChatCompletionChunk, ChatCompletionRequest, Choice, ChoiceLogprobs,
    ChunkChoice, Delta, ErrorBody, Message, PromptTokensDetails, ResponseFormat, ToolCall,
    ToolCallFunction as WireFunction, Usage,
};
use serde::Serialize;
use serde_json::{Map, Value, json as value};

use super::{Collected, Encoder, Times, go_type};
use crate::canonical::{Done, Event, Failure, Piece};
use crate::http::{Wire, json_plain, stream};
use crate::options::effort;
use crate::routes::random_id;

/// The native request that a chat completion comes to.
pub(crate) fn to_native(request: ChatCompletionRequest) -> Result<ChatRequest, Failure> {
    if request.messages.is_empty() {
        return Err(Failure::bad_request("[] is too short - 'messages'"));
    }
    check_count("n", request.n)?;
    let messages = messages(&request.messages)?;
    let options = options(&request)?;
    Ok(ChatRequest {
        model: request.model,
        messages,
        tools: request.tools,
        tool_choice: request.tool_choice,
        parallel_tool_calls: request.parallel_tool_calls,
        stream: Some(request.stream),
        format: request.response_format.map(format).transpose()?.flatten(),
        keep_alive: request.keep_alive,
        options: Some(options),
        think: think(request.reasoning.map(|r| r.effort), request.reasoning_effort)?,
        truncate: None,
        shift: None,
        logprobs: request.logprobs.unwrap_or(false),
        top_logprobs: request.top_logprobs,
        debug_render_only: request.debug_render_only,
    })
}

/// Refuses more answers than one.
pub(super) fn check_count(field: &str, count: Option<i64>) -> Result<(), Failure> {
    match count {
        None | Some(1) => Ok(()),
        Some(2..) => Err(Failure::bad_request(format!(
            "{field} greater than 1 is not supported yet: send the request several times"
        ))),
        Some(n) => Err(Failure::bad_request(format!("{field} must be at least 1, but is {n}"))),
    }
}

fn format(format: ResponseFormat) -> Result<Option<Value>, Failure> {
    match format.kind.trim().to_lowercase().as_str() {
        "json_object" => Ok(Some(value!("json"))),
        kind @ ("regex" | "gbnf" | "lark") => {
            let (pattern, grammar) = (format.pattern, format.grammar);
            Ok(Some(value!({ "type": kind, "pattern": pattern, "grammar": grammar })))
        }
        "json_schema" => match format.json_schema.map(|s| s.schema) {
            Some(schema @ Value::Object(_)) => Ok(Some(schema)),
            None | Some(Value::Null) => Err(Failure::bad_request(
                "response_format: type json_schema needs the schema in json_schema.schema",
            )),
            Some(other) => Err(Failure::bad_request(format!(
                "response_format: json_schema.schema must be an object, but is of type {}",
                go_type(&other)
            ))),
        },
        _ => Ok(None),
    }
}

fn think(newer: Option<String>, older: Option<String>) -> Result<Option<Think>, Failure> {
    effort(&newer.filter(|e| !e.is_empty()).or(older).unwrap_or_default())
}

/// Options by their native names; fields of the dialect win over the `options` object.
fn options(request: &ChatCompletionRequest) -> Result<Map<String, Value>, Failure> {
    let mut options = request.options.clone().unwrap_or_default();
    let mut set = |name: &str, value: Value| drop(options.insert(name.to_owned(), value));
    match &request.stop {
        Some(Value::String(stop)) => set("stop", value!([stop])),
        Some(Value::Array(list)) => set("stop", list.iter().filter(|s| s.is_string()).cloned().collect()),
        _ => {}
    }
    let limit = request.max_tokens.or(request.max_completion_tokens);
    if limit.is_some_and(|n| n < 1) {
        return Err(Failure::bad_request("max_tokens must be at least 1"));
    }
    let integers = [("num_predict", limit), ("seed", request.seed), ("top_k", request.top_k)];
    for (name, n) in integers.into_iter().filter_map(|(name, n)| Some((name, n?))) {
        set(name, n.into());
    }
    let floats = [
        ("frequency_penalty", request.frequency_penalty),
        ("presence_penalty", request.presence_penalty),
        ("min_p", request.min_p),
        ("temperature", request.temperature),
        ("top_p", request.top_p),
    ];
    for (name, x) in floats.into_iter().filter_map(|(name, x)| Some((name, x?))) {
        set(name, x.into());
    }
    if let Some(bias) = request.logit_bias.as_ref().filter(|bias| !bias.is_empty()) {
        set("logit_bias", bias.clone().into());
    }
    // Without a word from the client these are 1, whatever the model says.
    for name in ["temperature", "top_p"] {
        options.entry(name).or_insert(value!(1.0));
    }
    Ok(options)
}

fn messages(messages: &[Message]) -> Result<Vec<native::Message>, Failure> {
    let mut all = Vec::with_capacity(messages.len());
    for message in messages {
        let mut native = native::Message {
            role: message.role.clone(),
            thinking: message.reasoning.clone(),
            tool_calls: tool_calls(&message.tool_calls)?,
            tool_call_id: message.tool_call_id.clone(),
            tool_name: message.name.clone(),
            ..native::Message::default()
        };
        if native.tool_name.is_empty() && message.role == "tool" {
            native.tool_name = called_function(messages, &message.tool_call_id);
        }
        match &message.content {
            Value::String(text) => native.content.clone_from(text),
            Value::Array(parts) => content_parts(parts, &mut native)?,
            Value::Null if !message.tool_calls.is_empty() => {}
            other => {
                let text = format!("invalid message content type: {}", go_type(other));
                return Err(Failure::bad_request(text));
            }
        }
        all.push(native);
    }
    Ok(all)
}

/// The function of a call, by the call's id; the last one with it counts.
fn called_function(messages: &[Message], id: &str) -> String {
    let mut calls = messages.iter().flat_map(|m| &m.tool_calls).rev();
    calls.find(|call| call.id == id).map(|call| call.function.name.clone()).unwrap_or_default()
}

fn tool_calls(calls: &[ToolCall]) -> Result<Vec<native::ToolCall>, Failure> {
    let one = |call: &ToolCall| {
        let arguments = serde_json::from_str::<Map<String, Value>>(&call.function.arguments);
        let arguments = arguments.map_err(|_| Failure::bad_request("invalid tool call arguments"))?;
        let function = ToolCallFunction { index: call.index, name: call.function.name.clone(), arguments };
        Ok(native::ToolCall { id: call.id.clone(), function })
    };
    calls.iter().map(one).collect()
}

/// Text parts joined by a blank line, images and sounds in their order.
fn content_parts(parts: &[Value], message: &mut native::Message) -> Result<(), Failure> {
    let wrong = || Failure::bad_request("invalid message format");
    let mut texts = Vec::new();
    for part in parts {
        match part["type"].as_str().ok_or_else(wrong)? {
            "text" => texts.push(part["text"].as_str().ok_or_else(wrong)?),
            "image_url" => {
                let url =
                    part["image_url"]["url"].as_str().or(part["image_url"].as_str()).ok_or_else(wrong)?;
                message.images.push(image(url)?);
            }
            "input_audio" => message.images.push(audio(&part["input_audio"])?),
            _ => return Err(wrong()),
        }
    }
    message.content = texts.join("\n\n");
    Ok(())
}

fn image(url: &str) -> Result<Image, Failure> {
    if url.starts_with("http://") || url.starts_with("https://") {
        let text = "image URLs are not currently supported, please use base64 encoded data instead";
        return Err(Failure::bad_request(text));
    }
    let kinds = ["image/jpeg", "image/jpg", "image/png", "image/webp", ""];
    let data = kinds.iter().find_map(|kind| url.strip_prefix(&format!("data:{kind};base64,")));
    let bytes = data.and_then(|data| puna_api::base64_decode(data).ok());
    bytes.map(Image).ok_or_else(|| Failure::bad_request("invalid image input"))
}

fn audio(part: &Value) -> Result<Image, Failure> {
    if !part.is_object() {
        return Err(Failure::bad_request("invalid input_audio format"));
    }
    let data = part["data"].as_str().filter(|d| !d.is_empty());
    let data = data.ok_or_else(|| Failure::bad_request("invalid input_audio format: missing data"))?;
    puna_api::base64_decode(data).map(Image).map_err(|at| {
        Failure::bad_request(format!(
            "invalid input_audio base64 data: illegal base64 data at input byte {at}"
        ))
    })
}

pub(super) fn usage(done: &Done) -> Usage {
    let cached_tokens = done.cached_tokens;
    Usage {
        prompt_tokens: done.prompt_tokens,
        completion_tokens: done.generated_tokens,
        total_tokens: done.prompt_tokens + done.generated_tokens,
        prompt_tokens_details: (cached_tokens > 0).then_some(PromptTokensDetails { cached_tokens }),
        truncated_messages: done.dropped_messages,
        truncated_tokens: done.dropped_tokens,
    }
}

fn wire_call(call: native::ToolCall) -> ToolCall {
    let arguments = Value::Object(call.function.arguments).to_string();
    let function = WireFunction { name: call.function.name, arguments };
    ToolCall { id: call.id, index: call.function.index, kind: "function".into(), function }
}

fn wire_logprobs(logprobs: Vec<Logprob>) -> Option<ChoiceLogprobs> {
    (!logprobs.is_empty()).then_some(ChoiceLogprobs { content: logprobs })
}

fn finish_reason(done: &Done, called: bool) -> String {
    match done.reason.as_str() {
        "stop" if called => "tool_calls".into(),
        reason => reason.into(),
    }
}

/// Encodes the answer to `POST /v1/chat/completions`.
pub(crate) struct ChatEncoder {
    id: String,
    created: i64,
    model: String,
    include_usage: bool,
    /// A chunk was sent.
    started: bool,
    called: bool,
}

impl ChatEncoder {
    pub(crate) fn new(model: String, include_usage: bool) -> Self {
        let (id, created) = (random_id("chatcmpl-"), Timestamp::now().as_second());
        Self { id, created, model, include_usage, started: false, called: false }
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

    fn delta(&mut self, mut delta: Delta, logprobs: Vec<Logprob>, out: &mut Vec<u8>) {
        delta.role = (!self.started).then(|| "assistant".into());
        self.started = true;
        let choice = ChunkChoice { delta, logprobs: wire_logprobs(logprobs), ..ChunkChoice::default() };
        push_event(&self.chunk(vec![choice]), out);
    }

    fn end(&mut self, done: &Done, out: &mut Vec<u8>) {
        if !self.started {
            self.delta(Delta { content: Some(String::new()), ..Delta::default() }, Vec::new(), out);
        }
        let finish_reason = Some(finish_reason(done, self.called));
        let choice = ChunkChoice { finish_reason, ..ChunkChoice::default() };
        push_event(&self.chunk(vec![choice]), out);
        if self.include_usage {
            let chunk = ChatCompletionChunk { usage: Some(usage(done)), ..self.chunk(Vec::new()) };
            push_event(&chunk, out);
        }
        out.extend_from_slice(b"data: [DONE]\n\n");
    }

    /// The answer in one object.
    pub(crate) fn whole(&self, all: Collected) -> Response {
        let done = all.done.as_deref();
        // Where only the prompt was asked for, nobody has answered.
        let role = if all.rendered.is_none() { "assistant" } else { "" };
        let called = !all.tool_calls.is_empty();
        let answer = ChatCompletion {
            id: self.id.clone(),
            object: "chat.completion".into(),
            created: self.created,
            model: self.model.clone(),
            system_fingerprint: "fp_ollama".into(),
            usage: done.map(usage).unwrap_or_default(),
            debug_info: all.rendered.map(|prompt| DebugInfo { rendered_template: prompt, image_count: 0 }),
            choices: vec![Choice {
                index: 0,
                finish_reason: done.map(|done| finish_reason(done, called)),
                message: AnswerMessage {
                    role: role.into(),
                    content: all.content,
                    reasoning: all.thinking,
                    tool_calls: all.tool_calls.into_iter().map(wire_call).collect(),
                },
                logprobs: wire_logprobs(all.logprobs),
            }],
        };
        json_plain(StatusCode::OK, &answer)
    }
}

impl Encoder for ChatEncoder {
    const WIRE: Wire = Wire::Sse;

    fn encode(&mut self, _: usize, event: Event, _: Times, out: &mut Vec<u8>) {
        let empty = |piece: &Piece| piece.text.is_empty() && piece.logprobs.is_empty();
        match event {
            Event::Thinking(piece) | Event::Content(piece) if empty(&piece) => {}
            Event::Thinking(Piece { text, logprobs }) => {
                let delta = Delta { content: Some(String::new()), reasoning: Some(text), ..Delta::default() };
                self.delta(delta, logprobs, out);
            }
            Event::Content(Piece { text, logprobs }) => {
                self.delta(Delta { content: Some(text), ..Delta::default() }, logprobs, out);
            }
            Event::ToolCall(call) => {
                self.called = true;
                let (content, tool_calls) = (Some(String::new()), vec![wire_call(call)]);
                self.delta(Delta { content, tool_calls, ..Delta::default() }, Vec::new(), out);
            }
            Event::Done(done) => self.end(&done, out),
            Event::Error(failure) => push_event(&ErrorBody::new(failure.status, failure.message), out),
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

/// Appends a server-sent event.
pub(super) fn push_event(object: &impl Serialize, out: &mut Vec<u8>) {
    let before = out.len();
    out.extend_from_slice(b"data: ");
    match serde_json::to_writer(&mut *out, object) {
        Ok(()) => out.extend_from_slice(b"\n\n"),
        Err(error) => {
            tracing::error!(%error, "an event could not be written");
            out.truncate(before);
        }
    }
}
