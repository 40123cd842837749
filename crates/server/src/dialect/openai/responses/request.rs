//! Requests for responses.

use std::collections::HashMap;

use puna_api::native::{Image, Message, ToolCall, ToolCallFunction};
use puna_api::responses::ResponsesRequest;
use puna_sampler::{Constraint, JsonSchema};
use serde_json::Value;

use super::tools::{self, Form};
use crate::canonical::{ApiError, SchemaLabel};
use crate::dialect::openai::request::image;
use crate::dialect::{grammar_format, hide_unreadable_images};
use crate::options::{RequestOptions, effort};
use crate::paragraphs::append_paragraph;
use crate::request::GenerationRequest;

/// The request of a response, with the conversation that it goes on from. Without any message it only loads the model.
pub(crate) fn to_request(
    request: &ResponsesRequest,
    earlier: &[Message],
) -> Result<GenerationRequest, ApiError> {
    for (field, given) in [
        ("conversation", request.conversation.is_some()),
        ("background", request.background == Some(true)),
    ] {
        if given {
            return Err(ApiError::bad_request(format!("{field} is not supported")));
        }
    }
    if let Some(other) =
        request.truncation.as_deref().filter(|how| !matches!(*how, "auto" | "disabled"))
    {
        return Err(ApiError::bad_request(format!(
            "truncation: there is no way {other:?}: use \"auto\" or \"disabled\""
        )));
    }
    let is_cut = request.truncation.as_deref() == Some("auto");
    let shift = (request.truncation.as_deref() == Some("disabled")).then_some(false);
    let calls = earlier.iter().flat_map(|m| &m.tool_calls);
    let called = calls.map(|call| (call.id.clone(), call.function.name.clone())).collect();
    let mut conversation =
        Conversation { messages: earlier.to_vec(), called, thinking: String::new() };
    let is_instructed = request.instructions.as_ref().is_some_and(|text| !text.is_empty());
    if request.input.as_array().is_some_and(Vec::is_empty) && earlier.is_empty() && !is_instructed {
        return Err(ApiError::bad_request(
            "input must not be empty: give it a text or at least one item",
        ));
    }
    conversation.input(&request.input)?;
    let mut messages = conversation.messages;
    hide_unreadable_images(&mut messages)?;
    if let Some(text) =
        request.instructions.as_ref().filter(|text| !text.is_empty() && !messages.is_empty())
    {
        messages.insert(0, Message::text("system", text));
    }
    let wanted = request.reasoning.as_ref().and_then(|reasoning| reasoning.effort.as_deref());
    let (format, schema_label) = format(&request.text.clone().unwrap_or_default().format)?;
    let mut chat = GenerationRequest {
        parallel_tool_calls: request.parallel_tool_calls.unwrap_or(true),
        format,
        schema_label,
        keep_alive: request.keep_alive,
        options: options(request)?,
        think: effort(wanted.unwrap_or_default())?,
        shift,
        render_only: request.debug_render_only,
        ..GenerationRequest::chat(request.model.clone(), messages, is_cut.then_some(true))
    };
    let choice =
        tools::full_choice(request.tool_choice.clone().unwrap_or_default(), &request.tools);
    chat.set_tools(tools::native(&request.tools)?, choice)?;
    Ok(chat)
}

fn options(request: &ResponsesRequest) -> Result<RequestOptions, ApiError> {
    if request.max_output_tokens.is_some_and(|n| n < 1) {
        return Err(ApiError::bad_request("max_output_tokens must be at least 1"));
    }
    Ok(RequestOptions {
        num_predict: request.max_output_tokens,
        temperature: request.temperature,
        top_p: request.top_p,
        ..RequestOptions::named(request.options.as_ref())
    })
}

/// The constraint of a form of the answer, and what else the client says of its schema.
fn format(format: &Value) -> Result<(Option<Constraint>, SchemaLabel), ApiError> {
    let text = |field: &str| format[field].as_str().map(str::to_owned);
    let constraint = match (format["type"].as_str(), &format["schema"]) {
        (None | Some("text"), _) => None,
        (Some("json_object"), _) => Some(Constraint::Json),
        (Some(kind @ ("regex" | "gbnf" | "lark")), _) => {
            Some(grammar_format(kind, text("pattern"), text("grammar"))?)
        }
        (Some("json_schema"), schema @ Value::Object(_)) => {
            let strict = match &format["strict"] {
                Value::Null => None,
                Value::Bool(strict) => Some(*strict),
                other => {
                    let text = format!("text.format: strict must be true or false, but is {other}");
                    return Err(ApiError::bad_request(text));
                }
            };
            let schema = JsonSchema::from(schema.clone());
            if strict == Some(true) {
                let wrong = |error| ApiError::bad_request(format!("text.format: schema: {error}"));
                schema.check_strict().map_err(wrong)?;
            }
            let label =
                SchemaLabel { name: text("name"), description: text("description"), strict };
            return Ok((Some(Constraint::Schema(schema)), label));
        }
        (Some("json_schema"), _) => {
            return Err(ApiError::bad_request(
                "text.format: type json_schema needs an object in schema",
            ));
        }
        (Some(other), _) => {
            return Err(ApiError::bad_request(format!(
                "text.format: there is no type {other:?}: use text, json_object, json_schema, regex, gbnf or lark"
            )));
        }
    };
    Ok((constraint, SchemaLabel::default()))
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
    fn input(&mut self, input: &Value) -> Result<(), ApiError> {
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
                return Err(ApiError::bad_request(format!(
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

    fn item(&mut self, i: usize, item: &Value) -> Result<(), ApiError> {
        let wrong = |text: String| Err(ApiError::bad_request(format!("input[{i}]: {text}")));
        if !item.is_object() {
            let kind = puna_api::decode::kind(item);
            return wrong(format!(
                "json: cannot unmarshal {kind} into an input item, which is an object"
            ));
        }
        let role = item["role"].as_str().unwrap_or_default();
        let kind = item["type"].as_str().unwrap_or_default();
        if let Some(form) = Form::of_item(kind) {
            if kind.ends_with("_output") {
                return self.result(i, item);
            }
            return self.call(form, item).or_else(wrong);
        }
        match kind {
            "message" => self.message(i, role, item),
            "" if !role.is_empty() => self.message(i, role, item),
            "" => wrong("input item missing required 'type' field".into()),
            "reasoning" => {
                append_paragraph(&mut self.thinking, &thoughts(item));
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

    fn message(&mut self, i: usize, role: &str, item: &Value) -> Result<(), ApiError> {
        let mut message = Message::text(role.to_lowercase(), "");
        content(i, &item["content"], &mut message)?;
        if message.role == "assistant" {
            message.thinking = std::mem::take(&mut self.thinking);
            // What was said beside calls.
            if let Some(last) = self
                .messages
                .last_mut()
                .filter(|m| m.role == "assistant" && !m.tool_calls.is_empty())
            {
                append_paragraph(&mut last.thinking, &message.thinking);
                append_paragraph(&mut last.content, &message.content);
                last.images.append(&mut message.images);
                return Ok(());
            }
        }
        self.messages.push(message);
        Ok(())
    }

    fn call(&mut self, form: Form, item: &Value) -> Result<(), String> {
        let (name, arguments) = form.call(item)?;
        let id = item["call_id"].as_str().or(item["id"].as_str()).unwrap_or_default().to_owned();
        if self.messages.last().is_none_or(|last| last.role != "assistant")
            || !self.thinking.is_empty()
        {
            let thinking = std::mem::take(&mut self.thinking);
            self.messages.push(Message { thinking, ..Message::text("assistant", "") });
        }
        if let Some(last) = self.messages.last_mut() {
            let index = last.tool_calls.len() as i64;
            self.called.insert(id.clone(), name.clone());
            last.tool_calls
                .push(ToolCall { id, function: ToolCallFunction { index, name, arguments } });
        }
        Ok(())
    }

    fn result(&mut self, i: usize, item: &Value) -> Result<(), ApiError> {
        let id = item["call_id"].as_str().or(item["id"].as_str()).unwrap_or_default();
        let tool_name = self.called.get(id).cloned().unwrap_or_default();
        let mut message =
            Message { tool_name, tool_call_id: id.to_owned(), ..Message::text("tool", "") };
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
fn content(i: usize, content: &Value, message: &mut Message) -> Result<(), ApiError> {
    let parts = match content {
        Value::Null => return Ok(()),
        Value::String(text) => {
            message.content.clone_from(text);
            return Ok(());
        }
        Value::Array(parts) => parts,
        other => {
            let kind = puna_api::decode::kind(other);
            return Err(ApiError::bad_request(format!(
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
                Some(url) => message.images.push(image(url)),
                None => {
                    let text = "an image needs its data in image_url: no files are kept here";
                    let reason = format!("input[{i}]: content[{j}]: {text}");
                    message.images.push(Image::Unreadable(reason));
                }
            },
            "input_file" => {
                return Err(ApiError::bad_request("file inputs are not currently supported"));
            }
            other => {
                let text = format!("input[{i}]: content[{j}]: unknown content type: {other}");
                return Err(ApiError::bad_request(text));
            }
        }
    }
    Ok(())
}
