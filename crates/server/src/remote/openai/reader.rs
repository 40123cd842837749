//! Reads the streamed response of an OpenAI-compatible server.

use puna_api::ollama::{Logprob, TopLogprob};
use puna_prompt::JsonPrefix;
use serde_json::{Map, Value, json};
use tokio::sync::mpsc::Sender;

use crate::canonical::{
    ApiError, CallOutcome, Event, FinishReason, GenerateTask, GenerationSummary, Piece,
};
use crate::remote::remote_error::RemoteError;
use crate::remote::upstream::RemoteResponse;
use crate::runner::protocol::MAX_CALLS;
use crate::util::random_ids;

/// A tool call with arguments that are still arriving.
struct OpenCall {
    /// Index of the call in the events. It is `None` until the call begins, which is when its name
    /// is known.
    index: Option<usize>,
    id: String,
    /// Whether the remote server sent the id.
    has_own_id: bool,
    /// Number of the call in the remote server's stream.
    number: i64,
    /// Function name; empty until it is known.
    name: String,
    arguments: String,
    /// Parser of the arguments that were sent; only a prefix of valid JSON is sent.
    json: JsonPrefix,
    sent: usize,
}

impl OpenCall {
    /// Whether a part continues this call, or begins another call with the same number.
    fn is_continued_by(&self, part: &CallPart) -> bool {
        let is_named_again = part.name.is_some() && !self.name.is_empty();
        let has_other_name = is_named_again && part.name.as_ref() != Some(&self.name);
        let has_more_arguments = is_named_again && part.has_arguments() && self.json.is_complete();
        match part.id.as_ref().filter(|_| self.has_own_id) {
            Some(id) if *id != self.id => !is_named_again,
            Some(_) if self.json.is_complete() => {
                !has_other_name && (!has_more_arguments || self.has_arguments_of(part))
            }
            Some(_) => true,
            // Without ids, a name marks the start of a call.
            None => !has_other_name && !has_more_arguments,
        }
    }

    fn has_arguments_of(&self, part: &CallPart) -> bool {
        self.arguments.trim() == part.arguments.trim()
    }
}

/// A part of a tool call in a chunk of the stream.
struct CallPart {
    /// Index in the chunk, if the server sent one.
    index: Option<i64>,
    /// Position of the part in the chunk.
    position: i64,
    id: Option<String>,
    name: Option<String>,
    arguments: String,
}

impl CallPart {
    fn new(part: &Value, position: usize) -> Self {
        let text =
            |value: &Value| value.as_str().filter(|text| !text.is_empty()).map(str::to_owned);
        let arguments = match &part["function"]["arguments"] {
            Value::String(text) => text.clone(),
            Value::Null => String::new(),
            // Some servers send an object instead of a string.
            other => other.to_string(),
        };
        let index = part["index"].as_i64().or_else(|| part["index"].as_str()?.parse().ok());
        let (id, name) = (text(&part["id"]), text(&part["function"]["name"]));
        Self { index, position: position as i64, id, name, arguments }
    }

    /// Number of the call that the part belongs to.
    fn number(&self) -> i64 {
        self.index.unwrap_or(self.position)
    }

    fn has_arguments(&self) -> bool {
        !self.arguments.trim().is_empty()
    }
}

/// A call that ended before the response did. Some servers send it a second time.
struct PastCall {
    number: i64,
    id: String,
    name: String,
    arguments: String,
    /// Whether the server has begun to send the call a second time.
    is_repeated: bool,
}

impl PastCall {
    /// Whether a part repeats the call.
    fn is_repeated_by(&self, part: &CallPart) -> bool {
        if self.number != part.number() {
            return false;
        }
        let Some(id) = &part.id else { return part.name.is_none() && self.is_repeated };
        let has_same_name = part.name.as_ref().is_none_or(|name| *name == self.name);
        *id == self.id && has_same_name && self.arguments.trim().starts_with(part.arguments.trim())
    }
}

/// State of reading a response.
struct Reader<'a> {
    to: &'a Sender<Event>,
    /// Whether an event was sent since [`Reader::take_output`].
    has_output: bool,
    logprobs: bool,
    /// Calls that have not ended, in the order of their starts.
    calls: Vec<OpenCall>,
    /// Ended calls with ids that the server sent.
    past_calls: Vec<PastCall>,
    /// Number of calls that have begun.
    begun: usize,
    finish_reason: Option<String>,
    stop: Option<String>,
    usage: Value,
}

/// Reads a response's stream, sends its events and returns the last event.
pub(in crate::remote) async fn read(
    mut answer: RemoteResponse,
    generate: &GenerateTask,
    to: &Sender<Event>,
) -> Result<Event, ApiError> {
    let mut reader = Reader::new(to, generate.logprobs.is_some());
    let mut first = None;
    let mut failed = loop {
        let chunk = match answer.lines.next_event().await {
            Ok(Some(chunk)) => chunk,
            Ok(None) => break None,
            Err(failure) => break Some(failure),
        };
        first.get_or_insert_with(|| answer.sent_at.elapsed());
        if let Some(error) = RemoteError::of(&chunk) {
            break Some(answer.failure(&error));
        }
        reader.chunk(&chunk).await;
        if reader.take_output() {
            answer.lines.record_output();
        }
    };
    let reason = match reader.finish_reason.as_deref() {
        _ if failed.is_some() => None,
        None => None,
        Some("length") => Some(FinishReason::Length),
        Some("content_filter") => Some(FinishReason::ContentFilter),
        Some("abort" | "error") => {
            failed =
                Some(answer.failure(&RemoteError::of_text("it aborted the answer".to_owned())));
            None
        }
        Some(_) => Some(FinishReason::Stop),
    };
    // Calls also end when the response fails.
    reader.end_calls(reason).await;
    if let Some(failure) = failed {
        return Err(failure);
    }
    let Some(reason) = reason else {
        return Err(ApiError::new(502, "the remote server sent an incomplete answer"));
    };
    let (whole, first) = (answer.sent_at.elapsed(), first.unwrap_or_default());
    let count = |pointer: &str| reader.usage.pointer(pointer).and_then(Value::as_u64).unwrap_or(0);
    Ok(Event::Done(Box::new(GenerationSummary {
        reason,
        stop: reader.stop,
        has_usage: reader.usage.is_object(),
        prompt_tokens: count("/prompt_tokens"),
        cached_tokens: count("/prompt_tokens_details/cached_tokens"),
        prefill: first,
        generated_tokens: count("/completion_tokens"),
        thought_tokens: count("/completion_tokens_details/reasoning_tokens"),
        decode: whole.saturating_sub(first),
        draft_counts: Default::default(),
        dropped_messages: 0,
        dropped_tokens: 0,
        context: Vec::new(),
        schema_violations: None,
    })))
}

impl<'a> Reader<'a> {
    fn new(to: &'a Sender<Event>, logprobs: bool) -> Self {
        let (calls, past_calls) = (Vec::new(), Vec::new());
        let (begun, finish_reason, stop, usage) = (0, None, None, Value::Null);
        Self {
            to,
            has_output: false,
            logprobs,
            calls,
            past_calls,
            begun,
            finish_reason,
            stop,
            usage,
        }
    }

    /// Whether an event was sent since the last call.
    fn take_output(&mut self) -> bool {
        std::mem::take(&mut self.has_output)
    }

    async fn send(&mut self, event: Event) {
        self.has_output = true;
        // Sending fails only if the receiver is gone; then the task is about to be dropped.
        let _ = self.to.send(event).await;
    }

    async fn chunk(&mut self, chunk: &Value) {
        if chunk["usage"].is_object() {
            self.usage = chunk["usage"].clone();
        }
        let choice = &chunk["choices"][0];
        if choice.is_null() {
            return;
        }
        // A server that does not stream sends whole messages.
        let delta = if choice["delta"].is_object() { &choice["delta"] } else { &choice["message"] };
        let text = |value: &Value| text_of(value).filter(|text| !text.is_empty());
        let thought = text(&delta["reasoning_content"]).or_else(|| text(&delta["reasoning"]));
        let thought = thought.or_else(|| thought_in(&delta["content"]));
        if let Some(text) = thought {
            self.end_complete_calls().await;
            self.send(Event::Thinking(Piece { text, logprobs: Vec::new() })).await;
        }
        let content = text(&delta["content"])
            .or_else(|| text(&delta["refusal"]))
            .or_else(|| text(&choice["text"]));
        let logprobs = if self.logprobs { logprobs(&choice["logprobs"]) } else { Vec::new() };
        if content.is_some() || !logprobs.is_empty() {
            self.end_complete_calls().await;
            self.send(Event::Content(Piece { text: content.unwrap_or_default(), logprobs })).await;
        }
        for (at, part) in delta["tool_calls"].as_array().into_iter().flatten().enumerate() {
            self.call(CallPart::new(part, at)).await;
        }
        if delta["function_call"].is_object() {
            // Older form of a tool call, from before there were parallel calls.
            self.call(CallPart::new(&json!({"function": delta["function_call"]}), 0)).await;
        }
        if let Some(finish_reason) = text(&choice["finish_reason"]) {
            self.finish_reason = Some(finish_reason);
            self.stop = text(&choice["stop_reason"]);
        }
    }

    /// Reads a part of a call. The first part has the number and usually id and name; later parts
    /// add arguments. Some servers repeat id or name, omit the number, or send the whole call at
    /// once. Several calls may be open at once.
    async fn call(&mut self, part: CallPart) {
        let open = self.open_call(&part);
        let at = match open {
            Some(at) if self.calls[at].is_continued_by(&part) => at,
            None if self.is_repetition(&part) => return,
            _ if part.id.is_none() && part.name.is_none() && !part.has_arguments() => return,
            _ => {
                if let Some(at) = open {
                    let call = self.calls.remove(at);
                    self.end_call(call, Some(FinishReason::Stop)).await;
                }
                self.end_complete_calls().await;
                self.begin_call(&part)
            }
        };
        let call = &mut self.calls[at];
        if part.name.is_some() && call.json.is_complete() && call.has_arguments_of(&part) {
            // The server sends the whole call a second time.
            return;
        }
        if let Some(id) = part.id.filter(|_| call.index.is_none()) {
            (call.id, call.has_own_id) = (id, true);
        }
        if let Some(name) = part.name.filter(|_| call.name.is_empty()) {
            call.name = name;
        }
        call.arguments.push_str(&part.arguments);
        self.send_call(at).await;
    }

    /// Finds the open call that has a part's number. For a part without an index, the open call
    /// with its id comes first.
    fn open_call(&self, part: &CallPart) -> Option<usize> {
        let of_id =
            |id: &String| self.calls.iter().position(|call| call.has_own_id && call.id == *id);
        let of_id = part.id.as_ref().filter(|_| part.index.is_none()).and_then(of_id);
        of_id.or_else(|| self.calls.iter().position(|call| call.number == part.number()))
    }

    /// Whether a part repeats a call that has ended.
    fn is_repetition(&mut self, part: &CallPart) -> bool {
        let past = self.past_calls.iter_mut().find(|past| past.is_repeated_by(part));
        past.map(|past| past.is_repeated = true).is_some()
    }

    /// Adds the call of a part to the open calls and returns its index there.
    fn begin_call(&mut self, part: &CallPart) -> usize {
        let id = part.id.clone().unwrap_or_else(random_ids::tool_call);
        let (name, arguments, json) = (String::new(), String::new(), JsonPrefix::default());
        let (has_own_id, number) = (part.id.is_some(), part.number());
        self.past_calls
            .iter_mut()
            .filter(|past| past.number == number)
            .for_each(|past| past.is_repeated = false);
        self.calls.push(OpenCall {
            index: None,
            id,
            has_own_id,
            number,
            name,
            arguments,
            json,
            sent: 0,
        });
        self.calls.len() - 1
    }

    /// Sends the new arguments of a call once its name is known, as long as they are a prefix of
    /// JSON.
    async fn send_call(&mut self, at: usize) {
        let call = &mut self.calls[at];
        let mut events = Vec::new();
        let index = match call.index {
            Some(index) => index,
            None if call.name.is_empty() || self.begun >= MAX_CALLS => return,
            None => {
                let index = self.begun;
                self.begun += 1;
                call.index = Some(index);
                let (id, name) = (call.id.clone(), call.name.clone());
                events.push(Event::CallStart { index, id, name });
                index
            }
        };
        let new_text = &call.arguments[call.sent..];
        let good = call.json.push(new_text);
        if good > 0 {
            events.push(Event::CallArguments { index, text: new_text[..good].to_owned() });
        }
        call.sent += good;
        for event in events {
            self.send(event).await;
        }
    }

    /// Ends the complete calls before the next event of another kind.
    async fn end_complete_calls(&mut self) {
        let is_complete =
            |call: &OpenCall| call.json.is_complete() && call.sent == call.arguments.len();
        while let Some(at) = self.calls.iter().position(is_complete) {
            let call = self.calls.remove(at);
            self.end_call(call, Some(FinishReason::Stop)).await;
        }
    }

    /// Ends all calls at the end of the response.
    async fn end_calls(&mut self, reason: Option<FinishReason>) {
        for call in std::mem::take(&mut self.calls) {
            self.end_call(call, reason).await;
        }
    }

    /// Ends a call. `reason` is the finish reason of the response, or `None` if the response was
    /// interrupted. The text of a call that has not begun is sent as content.
    async fn end_call(&mut self, call: OpenCall, reason: Option<FinishReason>) {
        let OpenCall { index, id, has_own_id, number, name, arguments, .. } = call;
        let Some(index) = index else {
            let error = match name.as_str() {
                "" => "it has no name".to_owned(),
                _ => format!("there are more than {MAX_CALLS}"),
            };
            tracing::warn!(%error, "cannot read a tool call of a remote server; its text is passed on");
            let text = format!("{{\"name\":{},\"arguments\":{arguments}}}", Value::from(name));
            return self.send(Event::Content(Piece { text, logprobs: Vec::new() })).await;
        };
        let read = match (arguments.trim(), reason) {
            ("" | "null", Some(FinishReason::Stop)) => Ok(Map::new()),
            (text, _) => serde_json::from_str(text),
        };
        let outcome = match (read, reason) {
            (Ok(arguments), _) => CallOutcome::Complete(arguments),
            (Err(_), None | Some(FinishReason::Length | FinishReason::ContentFilter)) => {
                CallOutcome::CutOff
            }
            (Err(error), Some(_)) => {
                tracing::warn!(%error, "arguments of a remote server's tool call are not a JSON object");
                CallOutcome::Invalid(Some(arguments.clone()))
            }
        };
        if has_own_id {
            self.past_calls.push(PastCall { number, id, name, arguments, is_repeated: false });
        }
        self.send(Event::CallEnd { index, outcome }).await;
    }
}

/// Returns the text of a message's content: a string, or a list of parts.
fn text_of(value: &Value) -> Option<String> {
    let part = |part: &Value| {
        part["text"].as_str().or_else(|| part["refusal"].as_str()).map(str::to_owned)
    };
    match value {
        Value::Array(parts) => Some(parts.iter().filter_map(part).collect()),
        _ => value.as_str().map(str::to_owned),
    }
}

/// Returns the reasoning parts in a message's content, as Mistral sends them.
fn thought_in(content: &Value) -> Option<String> {
    let parts = content.as_array()?.iter().filter(|part| part["type"] == "thinking");
    let text: String = parts.filter_map(|part| text_of(&part["thinking"])).collect();
    Some(text).filter(|text| !text.is_empty())
}

/// Reads log-probabilities in the form of chats or in that of completions.
fn logprobs(value: &Value) -> Vec<Logprob> {
    let number = |value: &Value| value.as_f64().unwrap_or(f64::from(f32::MIN)) as f32;
    let bytes = |entry: &Value, token: &str| match entry["bytes"].as_array() {
        Some(bytes) => bytes.iter().filter_map(|byte| u8::try_from(byte.as_u64()?).ok()).collect(),
        None => token.as_bytes().to_vec(),
    };
    let top = |entry: &Value| {
        let token = entry["token"].as_str().unwrap_or_default().to_owned();
        TopLogprob { logprob: number(&entry["logprob"]), bytes: bytes(entry, &token), token }
    };
    if let Some(content) = value["content"].as_array() {
        let one = |entry: &Value| {
            let TopLogprob { token, logprob, bytes } = top(entry);
            let tops = entry["top_logprobs"].as_array().into_iter().flatten().map(top).collect();
            Logprob { token, logprob, bytes, top_logprobs: tops }
        };
        return content.iter().map(one).collect();
    }
    let tokens = value["tokens"].as_array().into_iter().flatten();
    let one = |(at, token): (usize, &Value)| {
        let token = token.as_str().unwrap_or_default().to_owned();
        let tops =
            value["top_logprobs"][at].as_object().into_iter().flatten().map(|(token, logprob)| {
                TopLogprob {
                    token: token.clone(),
                    logprob: number(logprob),
                    bytes: token.as_bytes().to_vec(),
                }
            });
        let (logprob, bytes) = (number(&value["token_logprobs"][at]), token.as_bytes().to_vec());
        Logprob { token, logprob, bytes, top_logprobs: tops.collect() }
    };
    tokens.enumerate().map(one).collect()
}

#[cfg(test)]
mod tests;
