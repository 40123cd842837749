//! OpenAI's dialect as other servers speak it: vLLM, SGLang, llama.cpp's server, OpenAI itself.

use std::sync::OnceLock;

use puna_api::base64_encode;
use puna_api::native::{Image, Logprob, Message, Think, ToolCall, ToolChoice, TopLogprob};
use puna_prompt::JsonPrefix;
use puna_sampler::Constraint;
use serde_json::{Map, Value, json};
use tokio::sync::mpsc::Sender;

use super::adapt::adapted;
use super::ask::Answer;
use super::lines::error_text;
use super::{cannot, conversation};
use crate::canonical::{
    CallOutcome, Done, Embed, EmbedText, Embedded, Event, Failure, Generate, Input, Piece, Prompt, Reason,
    RunOptions,
};
use crate::ids;
use crate::runner::protocol::CALLS_MAX;

/// Options that have the same name there. `top_k` and those behind it are additions of vLLM, SGLang and llama.cpp; a server
/// that does not know them may say so.
const SAME: [&str; 9] = [
    "temperature",
    "top_p",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "top_k",
    "min_p",
    "typical_p",
    "ignore_eos",
];

/// Options that it has under other names.
const RENAMED: [&str; 4] = ["repeat_penalty", "seed", "stop", "num_predict"];

/// Whether a server with this dialect is told of an option.
pub(crate) fn has_option(name: &str) -> bool {
    SAME.contains(&name) || RENAMED.contains(&name)
}

/// The conversation of a generation as every server accepts it. It is adapted when the first server of this dialect is asked,
/// and once for all of them.
pub(super) struct AdaptedChat<'a> {
    generate: &'a Generate,
    adapted: OnceLock<(Vec<Message>, Vec<String>)>,
}

impl<'a> AdaptedChat<'a> {
    pub(super) fn new(generate: &'a Generate) -> Self {
        Self { generate, adapted: OnceLock::new() }
    }

    /// The messages, and the ways in which they were changed.
    fn get(&self) -> &(Vec<Message>, Vec<String>) {
        self.adapted.get_or_init(|| match &self.generate.input {
            Input::Chat { messages, .. } => adapted(&conversation(self.generate, None, messages)),
            Input::Prompt(_) => Default::default(),
        })
    }

    /// The ways in which the conversation was changed.
    pub(super) fn kinds(&self) -> Vec<String> {
        self.get().1.clone()
    }
}

/// Path and body of a generation.
pub(super) fn generation(given: &AdaptedChat<'_>, model: &str) -> Result<(&'static str, Value), Failure> {
    let generate = given.generate;
    let mut body = json!({"model": model, "stream": true, "stream_options": {"include_usage": true}});
    options(&mut body, &generate.options);
    let prompt = match &generate.input {
        Input::Chat { tools, .. } => {
            let (messages, _) = given.get();
            body["messages"] = chat(messages);
            if messages.last().is_some_and(|last| last.role == "assistant" && last.tool_calls.is_empty()) {
                // As vLLM and SGLang are asked to go on with a message instead of answering it.
                body["add_generation_prompt"] = false.into();
                body["continue_final_message"] = true.into();
            }
            if !tools.is_empty() {
                body["tools"] = json!(tools);
                if generate.tool_choice != ToolChoice::Auto {
                    body["tool_choice"] = json!(generate.tool_choice);
                }
                if !generate.parallel_tool_calls {
                    body["parallel_tool_calls"] = false.into();
                }
            }
            None
        }
        Input::Prompt(prompt) if prompt.raw || !prompt.suffix.is_empty() || prompt.tokens.is_some() => {
            body["prompt"] = match &prompt.tokens {
                Some(tokens) => json!(tokens),
                None => prompt.text.as_str().into(),
            };
            Some(prompt)
        }
        Input::Prompt(Prompt { template: Some(_), .. }) => {
            return Err(cannot("a template cannot be sent along"));
        }
        Input::Prompt(Prompt { context: Some(_), .. }) => {
            return Err(cannot("`context` has tokens of no vocabulary that is here; use /api/chat"));
        }
        Input::Prompt(prompt) => {
            let message = Message { images: prompt.images.clone(), ..Message::text("user", &prompt.text) };
            body["messages"] = chat(&conversation(generate, prompt.system.as_deref(), &[message]));
            None
        }
    };
    form(&mut body, generate)?;
    if let Some(prompt) = prompt {
        if !prompt.suffix.is_empty() {
            body["suffix"] = prompt.suffix.as_str().into();
        }
        if let Some(count) = generate.logprobs {
            body["logprobs"] = count.into();
        }
        return Ok(("/completions", body));
    }
    if let Some(count) = generate.logprobs {
        (body["logprobs"], body["top_logprobs"]) = (true.into(), count.into());
    }
    thinking(&mut body, generate);
    Ok(("/chat/completions", body))
}

/// Whether and how hard to think, and what else the template is told.
fn thinking(body: &mut Value, generate: &Generate) {
    let mut variables = generate.variables.clone();
    match generate.think {
        None => {}
        Some(think @ (Think::On | Think::Off)) => {
            let on = think == Think::On;
            // Templates call the switch one or the other.
            variables.extend(["enable_thinking", "thinking"].map(|name| (name.to_owned(), on.into())));
        }
        Some(level) => body["reasoning_effort"] = level.level().into(),
    }
    if !variables.is_empty() {
        body["chat_template_kwargs"] = variables.into();
    }
}

/// The options that somebody gave; all others are the other server's to choose.
fn options(body: &mut Value, options: &RunOptions) {
    let given = &options.given;
    for name in SAME.into_iter().filter(|name| given.contains_key(*name)) {
        body[name] = given[name].clone();
    }
    let is_given = |name: &str| given.contains_key(name);
    if is_given("repeat_penalty") {
        body["repetition_penalty"] = given["repeat_penalty"].clone();
    }
    if is_given("seed") && options.sampling.seed >= 0 {
        body["seed"] = options.sampling.seed.into();
    }
    if is_given("stop") {
        body["stop"] = json!(options.stop);
    }
    if options.num_predict > 0 {
        body["max_tokens"] = options.num_predict.into();
    }
}

/// The form of the answer, with name and strictness as the client gave them. Servers demand a name.
fn form(body: &mut Value, generate: &Generate) -> Result<(), Failure> {
    body["response_format"] = match &generate.format {
        None => return Ok(()),
        Some(Constraint::Json) => json!({"type": "json_object"}),
        Some(Constraint::Schema(schema)) => {
            let label = &generate.schema_label;
            let name = label.name.as_deref().unwrap_or("answer");
            let mut form = json!({"name": name, "schema": schema});
            if let Some(strict) = label.strict {
                form["strict"] = strict.into();
            }
            if let Some(description) = &label.description {
                form["description"] = description.as_str().into();
            }
            json!({"type": "json_schema", "json_schema": form})
        }
        Some(Constraint::Regex(_) | Constraint::Lark(_) | Constraint::Gbnf(_)) => {
            return Err(cannot(
                "OpenAI's dialect knows JSON and JSON Schema as forms of an answer, no other",
            ));
        }
    };
    Ok(())
}

/// Messages in the form of chats. A call without a name of its own gets one, and the answers to calls are told by it.
fn chat(messages: &[Message]) -> Value {
    let mut open: Vec<(String, String)> = Vec::new();
    let message = |(at, message): (usize, &Message)| {
        let mut out = json!({"role": message.role, "content": content(message)});
        if !message.tool_calls.is_empty() {
            let call = |(i, call): (usize, &ToolCall)| {
                let id = if call.id.is_empty() { format!("call_{at}_{i}") } else { call.id.clone() };
                let arguments = Value::Object(call.function.arguments.clone()).to_string();
                open.push((id.clone(), call.function.name.clone()));
                json!({"id": id, "type": "function", "function": {"name": call.function.name, "arguments": arguments}})
            };
            out["tool_calls"] = message.tool_calls.iter().enumerate().map(call).collect();
        }
        if message.role == "tool" {
            let known = |(id, name): &(String, String)| match message.tool_call_id.is_empty() {
                true => message.tool_name.is_empty() || *name == message.tool_name,
                false => *id == message.tool_call_id,
            };
            let answered = open.iter().position(known).map(|at| open.remove(at).0);
            out["tool_call_id"] = answered.unwrap_or_else(|| message.tool_call_id.clone()).into();
        }
        out
    };
    messages.iter().enumerate().map(message).collect()
}

fn content(message: &Message) -> Value {
    if message.images.is_empty() {
        return message.content.as_str().into();
    }
    let image = |image: &Image| {
        let bytes = image.bytes();
        let kind = match bytes {
            [0xff, 0xd8, ..] => "image/jpeg",
            [b'R', b'I', b'F', b'F', ..] => "image/webp",
            _ => "image/png",
        };
        json!({"type": "image_url", "image_url": {"url": format!("data:{kind};base64,{}", base64_encode(bytes))}})
    };
    let text = json!({"type": "text", "text": message.content});
    let text = (!message.content.is_empty()).then_some(text);
    text.into_iter().chain(message.images.iter().map(image)).collect()
}

/// A call whose arguments are coming.
struct Call {
    /// The number in the events, once the call has begun. It begins when its name is known.
    index: Option<usize>,
    id: String,
    /// The remote server's number of it.
    number: i64,
    /// Empty while it is not known.
    name: String,
    arguments: String,
    /// The part of the arguments that was sent on: as long as they may become JSON.
    json: JsonPrefix,
    sent: usize,
}

/// The parts of an answer that were read so far.
struct Reader<'a> {
    to: &'a Sender<Event>,
    logprobs: bool,
    /// Calls that have not ended, in the order of their starts.
    calls: Vec<Call>,
    /// Calls that have begun.
    begun: usize,
    finish: Option<String>,
    stop: Option<String>,
    usage: Value,
}

/// Reads an answer's stream; returns its end.
pub(super) async fn read(
    mut answer: Answer,
    generate: &Generate,
    to: &Sender<Event>,
) -> Result<Event, Failure> {
    let mut reader = Reader::new(to, generate.logprobs.is_some());
    let mut first = None;
    let mut failed = loop {
        let chunk = match answer.lines.event().await {
            Ok(Some(chunk)) => chunk,
            Ok(None) => break None,
            Err(failure) => break Some(failure),
        };
        first.get_or_insert_with(|| answer.asked.elapsed());
        if let Some(text) = error_text(&chunk) {
            break Some(answer.failure(&text));
        }
        reader.chunk(&chunk).await;
    };
    let reason = match reader.finish.as_deref() {
        _ if failed.is_some() => None,
        None => None,
        Some("length") => Some(Reason::Length),
        Some("content_filter") => Some(Reason::ContentFilter),
        Some("abort" | "error") => {
            failed = Some(answer.failure("it has aborted the answer"));
            None
        }
        Some(_) => Some(Reason::Stop),
    };
    // Also of an answer that fails.
    reader.end_calls(reason).await;
    if let Some(failure) = failed {
        return Err(failure);
    }
    let Some(reason) = reason else {
        return Err(Failure::new(502, "the remote server ended its answer before it was complete"));
    };
    let (whole, first) = (answer.asked.elapsed(), first.unwrap_or_default());
    let count = |pointer: &str| reader.usage.pointer(pointer).and_then(Value::as_u64).unwrap_or(0);
    Ok(Event::Done(Box::new(Done {
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
        let (calls, begun, finish, stop, usage) = (Vec::new(), 0, None, None, Value::Null);
        Self { to, logprobs, calls, begun, finish, stop, usage }
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
        if let Some(text) = thought {
            self.end_complete_calls().await;
            self.send(Event::Thinking(Piece { text, logprobs: Vec::new() })).await;
        }
        let said =
            text(&delta["content"]).or_else(|| text(&delta["refusal"])).or_else(|| text(&choice["text"]));
        let logprobs = if self.logprobs { logprobs(&choice["logprobs"]) } else { Vec::new() };
        if said.is_some() || !logprobs.is_empty() {
            self.end_complete_calls().await;
            self.send(Event::Content(Piece { text: said.unwrap_or_default(), logprobs })).await;
        }
        for (at, part) in delta["tool_calls"].as_array().into_iter().flatten().enumerate() {
            self.call(part, at).await;
        }
        if let Some(finish) = text(&choice["finish_reason"]) {
            self.finish = Some(finish);
            self.stop = text(&choice["stop_reason"]);
        }
    }

    /// A piece of a call: its number and perhaps its id and name come first, then more and more of its arguments. Some
    /// servers repeat id or name, or leave the number out, or send the call whole. Several calls may be open at once.
    async fn call(&mut self, part: &Value, at: usize) {
        let number = part["index"].as_i64().unwrap_or(at as i64);
        let id = part["id"].as_str().filter(|id| !id.is_empty());
        let name = part["function"]["name"].as_str().filter(|name| !name.is_empty());
        let piece = match &part["function"]["arguments"] {
            Value::String(text) => text.clone(),
            Value::Null => String::new(),
            // An object where a text should be.
            other => other.to_string(),
        };
        let open = self.calls.iter().position(|call| call.number == number);
        // Without numbers a new id means a new call.
        let continues =
            |call: &Call| id.is_none_or(|id| id == call.id) || name.is_none() || call.name.is_empty();
        let at = match open {
            Some(at) if continues(&self.calls[at]) => at,
            _ if id.is_none() && name.is_none() && piece.trim().is_empty() => return,
            _ => {
                if let Some(at) = open {
                    let call = self.calls.remove(at);
                    self.end_call(call, Some(Reason::Stop)).await;
                }
                self.end_complete_calls().await;
                let id = id.map_or_else(ids::call, str::to_owned);
                let (name, arguments, json) = (String::new(), String::new(), JsonPrefix::default());
                self.calls.push(Call { index: None, id, number, name, arguments, json, sent: 0 });
                self.calls.len() - 1
            }
        };
        let call = &mut self.calls[at];
        if let Some(id) = id.filter(|_| call.index.is_none()) {
            id.clone_into(&mut call.id);
        }
        if let Some(name) = name.filter(|_| call.name.is_empty()) {
            name.clone_into(&mut call.name);
        }
        call.arguments.push_str(&piece);
        self.send_call(at).await;
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
        let is_complete = |call: &Call| call.json.is_complete() && call.sent == call.arguments.len();
        while let Some(at) = self.calls.iter().position(is_complete) {
            let call = self.calls.remove(at);
            self.end_call(call, Some(Reason::Stop)).await;
        }
    }

    /// Ends all calls with the answer.
    async fn end_calls(&mut self, reason: Option<Reason>) {
        for call in std::mem::take(&mut self.calls) {
            self.end_call(call, reason).await;
        }
    }

    /// Ends a call; `reason` is that of the answer's end, or `None` where the answer broke off. A call that has not begun is
    /// none, and its text is content.
    async fn end_call(&mut self, call: Call, reason: Option<Reason>) {
        let Call { index, name, arguments, .. } = call;
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
            ("", Some(Reason::Stop | Reason::ContentFilter)) => Ok(Map::new()),
            (text, _) => serde_json::from_str(text),
        };
        let outcome = match (read, reason) {
            (Ok(arguments), _) => CallOutcome::Complete(arguments),
            (Err(_), None | Some(Reason::Length)) => CallOutcome::CutOff,
            (Err(error), Some(_)) => {
                tracing::warn!(%error, "the arguments of a remote server's tool call are not a JSON object");
                CallOutcome::Invalid(Some(arguments))
            }
        };
        self.send(Event::CallEnd { index, outcome }).await;
    }
}

/// The text of a message's content: a string, or a list of parts.
fn text_of(value: &Value) -> Option<String> {
    let part = |part: &Value| part["text"].as_str().or_else(|| part["refusal"].as_str()).map(str::to_owned);
    match value {
        Value::Array(parts) => Some(parts.iter().filter_map(part).collect()),
        _ => value.as_str().map(str::to_owned),
    }
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
        let tops = value["top_logprobs"][at].as_object().into_iter().flatten().map(|(token, logprob)| {
            TopLogprob { token: token.clone(), logprob: number(logprob), bytes: token.as_bytes().to_vec() }
        });
        let (logprob, bytes) = (number(&value["token_logprobs"][at]), token.as_bytes().to_vec());
        Logprob { token, logprob, bytes, top_logprobs: tops.collect() }
    };
    tokens.enumerate().map(one).collect()
}

/// Path and body of a request for vectors.
pub(super) fn embedding(embed: &Embed, model: &str) -> Result<(&'static str, Value), Failure> {
    let input = |text: &EmbedText| match text {
        EmbedText::Text(text) => Value::from(text.as_str()),
        EmbedText::Tokens(tokens) => json!(tokens),
    };
    let inputs: Vec<Value> = embed.inputs.iter().map(input).collect();
    Ok(("/embeddings", json!({"model": model, "input": inputs, "encoding_format": "float"})))
}

/// Reads vectors, which may come in any order.
pub(super) async fn vectors(answer: Answer, count: usize) -> Result<Embedded, Failure> {
    let body = answer.lines.whole().await?;
    let mut vectors = vec![Vec::new(); count];
    for (at, one) in body["data"].as_array().into_iter().flatten().enumerate() {
        let at = one["index"].as_u64().map_or(at, |index| index as usize);
        if let (Some(place), Some(numbers)) = (vectors.get_mut(at), one["embedding"].as_array()) {
            *place = numbers.iter().map(|x| x.as_f64().unwrap_or(f64::NAN) as f32).collect();
        }
    }
    let tokens = body["usage"]["prompt_tokens"].as_u64().unwrap_or(0);
    checked(Embedded { vectors, tokens, cut: Vec::new() })
}

/// Refuses vectors that are none.
pub(super) fn checked(embedded: Embedded) -> Result<Embedded, Failure> {
    let is_vector = |vector: &Vec<f32>| !vector.is_empty() && vector.iter().all(|x| x.is_finite());
    match embedded.vectors.iter().all(is_vector) {
        true => Ok(embedded),
        false => Err(Failure::new(502, "the remote server sent no vector for some of the texts")),
    }
}

#[cfg(test)]
mod tests;
