//! Reads the answer of a server with OpenAI's dialect.

use puna_api::native::{Logprob, TopLogprob};
use puna_prompt::JsonPrefix;
use serde_json::{Map, Value, json};
use tokio::sync::mpsc::Sender;

use crate::canonical::{
    ApiError, CallOutcome, Event, FinishReason, Generate, GenerationSummary, Piece,
};
use crate::random_ids;
use crate::remote::ask::Answer;
use crate::remote::remote_error::RemoteError;
use crate::runner::protocol::CALLS_MAX;

/// A call whose arguments are coming.
struct Call {
    /// The number in the events, once the call has begun. It begins when its name is known.
    index: Option<usize>,
    id: String,
    /// Whether the remote server sent the id.
    has_own_id: bool,
    /// The remote server's number of it.
    number: i64,
    /// Empty while it is not known.
    name: String,
    arguments: String,
    /// The part of the arguments that was sent on: as long as they may become JSON.
    json: JsonPrefix,
    sent: usize,
}

impl Call {
    /// Whether a part continues this call instead of beginning another with the same number.
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
            // Without ids, names tell where calls begin.
            None => !has_other_name && !has_more_arguments,
        }
    }

    fn has_arguments_of(&self, part: &CallPart) -> bool {
        self.arguments.trim() == part.arguments.trim()
    }
}

/// A part of a call in a chunk of the stream.
struct CallPart {
    /// The index in the chunk, if the server sent one.
    index: Option<i64>,
    /// The position of the part in the chunk.
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
            // An object where a text should be.
            other => other.to_string(),
        };
        let index = part["index"].as_i64().or_else(|| part["index"].as_str()?.parse().ok());
        let (id, name) = (text(&part["id"]), text(&part["function"]["name"]));
        Self { index, position: position as i64, id, name, arguments }
    }

    /// The number of the part's call.
    fn number(&self) -> i64 {
        self.index.unwrap_or(self.position)
    }

    fn has_arguments(&self) -> bool {
        !self.arguments.trim().is_empty()
    }
}

/// A call that ended before the answer did. Some servers send such a call once more.
struct PastCall {
    number: i64,
    id: String,
    name: String,
    arguments: String,
    /// The server has begun to send the call once more.
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

/// The parts of an answer that were read so far.
struct Reader<'a> {
    to: &'a Sender<Event>,
    logprobs: bool,
    /// Calls that have not ended, in the order of their starts.
    calls: Vec<Call>,
    /// Calls with ids of the server's own that have ended.
    past_calls: Vec<PastCall>,
    /// Calls that have begun.
    begun: usize,
    finish: Option<String>,
    stop: Option<String>,
    usage: Value,
}

/// Reads an answer's stream; returns its end.
pub(in crate::remote) async fn read(
    mut answer: Answer,
    generate: &Generate,
    to: &Sender<Event>,
) -> Result<Event, ApiError> {
    let mut reader = Reader::new(to, generate.logprobs.is_some());
    let mut first = None;
    let mut failed = loop {
        let chunk = match answer.lines.event().await {
            Ok(Some(chunk)) => chunk,
            Ok(None) => break None,
            Err(failure) => break Some(failure),
        };
        first.get_or_insert_with(|| answer.asked.elapsed());
        if let Some(error) = RemoteError::of(&chunk) {
            break Some(answer.failure(&error));
        }
        reader.chunk(&chunk).await;
    };
    let reason = match reader.finish.as_deref() {
        _ if failed.is_some() => None,
        None => None,
        Some("length") => Some(FinishReason::Length),
        Some("content_filter") => Some(FinishReason::ContentFilter),
        Some("abort" | "error") => {
            failed =
                Some(answer.failure(&RemoteError::of_text("it has aborted the answer".to_owned())));
            None
        }
        Some(_) => Some(FinishReason::Stop),
    };
    // Also of an answer that fails.
    reader.end_calls(reason).await;
    if let Some(failure) = failed {
        return Err(failure);
    }
    let Some(reason) = reason else {
        return Err(ApiError::new(
            502,
            "the remote server ended its answer before it was complete",
        ));
    };
    let (whole, first) = (answer.asked.elapsed(), first.unwrap_or_default());
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
        guesses: Default::default(),
        dropped_messages: 0,
        dropped_tokens: 0,
        context: Vec::new(),
        schema_violations: None,
    })))
}

impl<'a> Reader<'a> {
    fn new(to: &'a Sender<Event>, logprobs: bool) -> Self {
        let (calls, past_calls) = (Vec::new(), Vec::new());
        let (begun, finish, stop, usage) = (0, None, None, Value::Null);
        Self { to, logprobs, calls, past_calls, begun, finish, stop, usage }
    }

    async fn send(&self, event: Event) {
        // Nobody listens any more: the whole task is about to be dropped.
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
        let said = text(&delta["content"])
            .or_else(|| text(&delta["refusal"]))
            .or_else(|| text(&choice["text"]));
        let logprobs = if self.logprobs { logprobs(&choice["logprobs"]) } else { Vec::new() };
        if said.is_some() || !logprobs.is_empty() {
            self.end_complete_calls().await;
            self.send(Event::Content(Piece { text: said.unwrap_or_default(), logprobs })).await;
        }
        for (at, part) in delta["tool_calls"].as_array().into_iter().flatten().enumerate() {
            self.call(CallPart::new(part, at)).await;
        }
        if delta["function_call"].is_object() {
            // The form of calls before there were several.
            self.call(CallPart::new(&json!({"function": delta["function_call"]}), 0)).await;
        }
        if let Some(finish) = text(&choice["finish_reason"]) {
            self.finish = Some(finish);
            self.stop = text(&choice["stop_reason"]);
        }
    }

    /// Reads a part of a call: its number and perhaps its id and name come first, then more and more of its arguments. Some
    /// servers repeat id or name, or leave the number out, or send the call whole. Several calls may be open at once.
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
            // The server sends the whole call once more.
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

    /// The open call of a part's number. Without a number, the open call of its id comes first.
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

    /// Adds the call of a part to the open calls; returns its place there.
    fn begin_call(&mut self, part: &CallPart) -> usize {
        let id = part.id.clone().unwrap_or_else(random_ids::tool_call);
        let (name, arguments, json) = (String::new(), String::new(), JsonPrefix::default());
        let (has_own_id, number) = (part.id.is_some(), part.number());
        self.past_calls
            .iter_mut()
            .filter(|past| past.number == number)
            .for_each(|past| past.is_repeated = false);
        self.calls.push(Call {
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

    /// Sends a call as far as it has come, once its name is known: more of its arguments, as long as they may become JSON.
    async fn send_call(&mut self, at: usize) {
        let call = &mut self.calls[at];
        let mut events = Vec::new();
        let index = match call.index {
            Some(index) => index,
            None if call.name.is_empty() || self.begun >= CALLS_MAX => return,
            None => {
                let index = self.begun;
                self.begun += 1;
                call.index = Some(index);
                let (id, name) = (call.id.clone(), call.name.clone());
                events.push(Event::CallStart { index, id, name });
                index
            }
        };
        let more = &call.arguments[call.sent..];
        let good = call.json.push(more);
        if good > 0 {
            events.push(Event::CallArguments { index, text: more[..good].to_owned() });
        }
        call.sent += good;
        for event in events {
            self.send(event).await;
        }
    }

    /// Ends the calls that are complete, before something else comes.
    async fn end_complete_calls(&mut self) {
        let is_complete =
            |call: &Call| call.json.is_complete() && call.sent == call.arguments.len();
        while let Some(at) = self.calls.iter().position(is_complete) {
            let call = self.calls.remove(at);
            self.end_call(call, Some(FinishReason::Stop)).await;
        }
    }

    /// Ends all calls with the answer.
    async fn end_calls(&mut self, reason: Option<FinishReason>) {
        for call in std::mem::take(&mut self.calls) {
            self.end_call(call, reason).await;
        }
    }

    /// Ends a call; `reason` is that of the answer's end, or `None` where the answer broke off. A call that has not begun is
    /// none, and its text is content.
    async fn end_call(&mut self, call: Call, reason: Option<FinishReason>) {
        let Call { index, id, has_own_id, number, name, arguments, .. } = call;
        let Some(index) = index else {
            let error = match name.as_str() {
                "" => "it has no name".to_owned(),
                _ => format!("there are more than {CALLS_MAX}"),
            };
            tracing::warn!(%error, "a remote server's tool call cannot be read; its text is passed on");
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
                tracing::warn!(%error, "the arguments of a remote server's tool call are not a JSON object");
                CallOutcome::Invalid(Some(arguments.clone()))
            }
        };
        if has_own_id {
            self.past_calls.push(PastCall { number, id, name, arguments, is_repeated: false });
        }
        self.send(Event::CallEnd { index, outcome }).await;
    }
}

/// The text of a message's content: a string, or a list of parts.
fn text_of(value: &Value) -> Option<String> {
    let part = |part: &Value| {
        part["text"].as_str().or_else(|| part["refusal"].as_str()).map(str::to_owned)
    };
    match value {
        Value::Array(parts) => Some(parts.iter().filter_map(part).collect()),
        _ => value.as_str().map(str::to_owned),
    }
}

/// The thoughts in a message's content, as Mistral sends them.
fn thought_in(content: &Value) -> Option<String> {
    let parts = content.as_array()?.iter().filter(|part| part["type"] == "thinking");
    let text: String = parts.filter_map(|part| text_of(&part["thinking"])).collect();
    Some(text).filter(|text| !text.is_empty())
}

/// Log-probabilities of a chat's tokens, or of a completion's.
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
