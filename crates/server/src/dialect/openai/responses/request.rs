//! Requests for responses to native ones.

use std::collections::HashMap;

use puna_api::native::{ChatRequest, Message, ToolCall, ToolCallFunction};
use puna_api::responses::ResponsesRequest;
use puna_sampler::check_one_of;
use serde_json::{Map, Value, json as value};

use super::tools::{self, Form};
use crate::canonical::Failure;
use crate::dialect::openai::request::image;
use crate::options::effort;

/// The native request that a request for a response comes to, with the conversation that it goes on from. Without any
/// message it only loads the model.
pub(crate) fn to_native(request: &ResponsesRequest, earlier: &[Message]) -> Result<ChatRequest, Failure> {
    for (field, given) in
        [("conversation", request.conversation.is_some()), ("background", request.background == Some(true))]
    {
        if given {
            return Err(Failure::bad_request(format!("{field} is not supported")));
        }
    }
    if let Some(other) = request.truncation.as_deref().filter(|how| !matches!(*how, "auto" | "disabled")) {
        return Err(Failure::bad_request(format!(
            "truncation: there is no way {other:?}: use \"auto\" or \"disabled\""
        )));
    }
    let is_cut = request.truncation.as_deref() == Some("auto");
    let shift = (request.truncation.as_deref() == Some("disabled")).then_some(false);
    let calls = earlier.iter().flat_map(|m| &m.tool_calls);
    let called = calls.map(|call| (call.id.clone(), call.function.name.clone())).collect();
    let mut conversation = Conversation { messages: earlier.to_vec(), called, thinking: String::new() };
    conversation.input(&request.input)?;
    let mut messages = conversation.messages;
    if let Some(text) = request.instructions.as_ref().filter(|text| !text.is_empty() && !messages.is_empty())
    {
        messages.insert(0, Message::text("system", text));
    }
    let wanted = request.reasoning.as_ref().and_then(|reasoning| reasoning.effort.as_deref());
    Ok(ChatRequest {
        model: request.model.clone(),
        messages,
        tools: tools::native(&request.tools)?,
        tool_choice: tools::full_choice(request.tool_choice.clone(), &request.tools),
        parallel_tool_calls: request.parallel_tool_calls,
        stream: Some(request.stream),
        format: format(&request.text.clone().unwrap_or_default().format)?,
        keep_alive: request.keep_alive,
        options: Some(options(request)?),
        think: effort(wanted.unwrap_or_default())?,
        truncate: is_cut.then_some(true),
        shift,
        debug_render_only: request.debug_render_only,
        ..ChatRequest::default()
    })
}

fn options(request: &ResponsesRequest) -> Result<Map<String, Value>, Failure> {
    let mut options = request.options.clone().unwrap_or_default();
    if request.max_output_tokens.is_some_and(|n| n < 1) {
        return Err(Failure::bad_request("max_output_tokens must be at least 1"));
    }
    let given = [
        ("num_predict", request.max_output_tokens.map(Value::from)),
        ("temperature", request.temperature.map(Value::from)),
        ("top_p", request.top_p.map(Value::from)),
    ];
    for (name, value) in given.into_iter().filter_map(|(name, value)| Some((name, value?))) {
        options.insert(name.into(), value);
    }
    Ok(options)
}

fn format(format: &Value) -> Result<Option<Value>, Failure> {
    match (format["type"].as_str(), &format["schema"]) {
        (Some("json_object"), _) => Ok(Some(value!("json"))),
        (Some("regex" | "gbnf" | "lark"), _) => Ok(Some(format.clone())),
        (Some("json_schema"), schema @ Value::Object(_)) => {
            if format["strict"] == true {
                let wrong = |error| Failure::bad_request(format!("text.format: schema: {error}"));
                check_one_of(schema).map_err(wrong)?;
            }
            Ok(Some(schema.clone()))
        }
        (Some("json_schema"), _) => {
            Err(Failure::bad_request("text.format: type json_schema needs an object in schema"))
        }
        (None | Some("text"), _) => Ok(None),
        (Some(other), _) => Err(Failure::bad_request(format!(
            "text.format: there is no type {other:?}: use text, json_object, json_schema, regex, gbnf or lark"
        ))),
    }
}

/// A conversation as its items come.
struct Conversation {
    messages: Vec<Message>,
    /// Functions by the ids of calls; the last call with an id counts.
    called: HashMap<String, String>,
    /// Thoughts that belong to the assistant's next message.
    thinking: String,
}

impl Conversation {
    fn input(&mut self, input: &Value) -> Result<(), Failure> {
        match input {
            Value::Null => {}
            Value::String(text) if text.is_empty() => {}
            Value::String(text) => self.messages.push(Message::text("user", text)),
            Value::Array(items) => {
                for (i, item) in items.iter().enumerate() {
                    self.item(i, item)?;
                }
            }
            other => {
                let kind = puna_api::decode::kind(other);
                return Err(Failure::bad_request(format!(
                    "input must be a string or array: json: cannot unmarshal {kind} into Go value of type []json.RawMessage"
                )));
            }
        }
        if !self.thinking.is_empty() {
            let thinking = std::mem::take(&mut self.thinking);
            self.messages.push(Message { thinking, ..Message::text("assistant", "") });
        }
        Ok(())
    }

    fn item(&mut self, i: usize, item: &Value) -> Result<(), Failure> {
        let wrong = |text: String| Err(Failure::bad_request(format!("input[{i}]: {text}")));
        if !item.is_object() {
            let kind = puna_api::decode::kind(item);
            return wrong(format!("json: cannot unmarshal {kind} into an input item, which is an object"));
        }
        let role = item["role"].as_str().unwrap_or_default();
        let kind = item["type"].as_str().unwrap_or_default();
        if let Some(form) = Form::of_item(kind) {
            if kind.ends_with("_output") {
                return self.result(i, item);
            }
            self.call(form, item);
            return Ok(());
        }
        match kind {
            "message" => self.message(i, role, item),
            "" if !role.is_empty() => self.message(i, role, item),
            "" => wrong("input item missing required 'type' field".into()),
            "reasoning" => {
                self.thinking = thoughts(item);
                Ok(())
            }
            // What they brought was for the model that asked.
            "web_search_call" | "image_generation_call" => Ok(()),
            "item_reference" => {
                let id = item["id"].as_str().unwrap_or_default();
                wrong(format!(
                    "item {id:?} not found: its response was not stored, or has made room for newer ones"
                ))
            }
            other => wrong(format!("unknown input item type: {other:?}")),
        }
    }

    fn message(&mut self, i: usize, role: &str, item: &Value) -> Result<(), Failure> {
        let mut message = Message::text(role.to_lowercase(), "");
        content(i, &item["content"], &mut message)?;
        if message.role == "assistant" {
            message.thinking = std::mem::take(&mut self.thinking);
            // What was said beside calls.
            if let Some(last) =
                self.messages.last_mut().filter(|m| m.role == "assistant" && !m.tool_calls.is_empty())
            {
                last.thinking.push_str(&message.thinking);
                last.content.push_str(&message.content);
                last.images.append(&mut message.images);
                return Ok(());
            }
        }
        self.messages.push(message);
        Ok(())
    }

    fn call(&mut self, form: Form, item: &Value) {
        let (name, arguments) = form.call(item);
        let id = item["call_id"].as_str().or(item["id"].as_str()).unwrap_or_default().to_owned();
        if self.messages.last().is_none_or(|last| last.role != "assistant") || !self.thinking.is_empty() {
            let thinking = std::mem::take(&mut self.thinking);
            self.messages.push(Message { thinking, ..Message::text("assistant", "") });
        }
        if let Some(last) = self.messages.last_mut() {
            let index = last.tool_calls.len() as i64;
            self.called.insert(id.clone(), name.clone());
            last.tool_calls.push(ToolCall { id, function: ToolCallFunction { index, name, arguments } });
        }
    }

    fn result(&mut self, i: usize, item: &Value) -> Result<(), Failure> {
        let id = item["call_id"].as_str().or(item["id"].as_str()).unwrap_or_default();
        let tool_name = self.called.get(id).cloned().unwrap_or_default();
        let mut message = Message { tool_name, tool_call_id: id.to_owned(), ..Message::text("tool", "") };
        content(i, &item["output"], &mut message)?;
        self.messages.push(message);
        Ok(())
    }
}

/// Thoughts in plain text where there are any: what another server has encrypted is of no use here.
fn thoughts(item: &Value) -> String {
    let texts = |field: &str| -> String {
        let parts = item[field].as_array().into_iter().flatten();
        parts.filter_map(|part| part["text"].as_str()).collect()
    };
    let plain = [texts("content"), texts("summary")].into_iter().find(|text| !text.is_empty());
    plain.unwrap_or_else(|| item["encrypted_content"].as_str().unwrap_or_default().to_owned())
}

/// Text or a list of parts, into a message.
fn content(i: usize, content: &Value, message: &mut Message) -> Result<(), Failure> {
    let parts = match content {
        Value::Null => return Ok(()),
        Value::String(text) => {
            message.content.clone_from(text);
            return Ok(());
        }
        Value::Array(parts) => parts,
        other => {
            let kind = puna_api::decode::kind(other);
            return Err(Failure::bad_request(format!(
                "input[{i}]: content must be a string or array, not a {kind}"
            )));
        }
    };
    for (j, part) in parts.iter().enumerate() {
        let text = |field: &str| part[field].as_str().unwrap_or_default();
        match text("type") {
            "input_text" | "output_text" | "text" => message.content.push_str(text("text")),
            "refusal" => message.content.push_str(text("refusal")),
            "input_image" => match part["image_url"].as_str() {
                Some(url) => message.images.push(image(url)?),
                None => {
                    let text = "an image needs its data in image_url: no files are kept here";
                    return Err(Failure::bad_request(format!("input[{i}]: content[{j}]: {text}")));
                }
            },
            "input_file" => return Err(Failure::bad_request("file inputs are not currently supported")),
            other => {
                let text = format!("input[{i}]: content[{j}]: unknown content type: {other}");
                return Err(Failure::bad_request(text));
            }
        }
    }
    Ok(())
}
