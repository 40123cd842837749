//! Converts Responses API requests to the canonical request.

use std::collections::HashMap;

use puna_api::ollama::{Image, Message, ToolCall, ToolCallFunction};
use puna_api::responses::ResponsesRequest;
use puna_sampler::{Constraint, JsonSchema};
use serde_json::Value;

use super::tools::{self, CallFormat};
use crate::api::generation_request::GenerationRequest;
use crate::api::openai::request::image;
use crate::api::paragraphs::append_paragraph;
use crate::api::{grammar_format, hide_unreadable_images};
use crate::canonical::{ApiError, SchemaLabel};
use crate::options::{RequestOptions, effort};

/// Limits of `metadata`, those of OpenAI.
const MAX_METADATA_PAIRS: usize = 16;
/// Characters of a key of `metadata`.
const MAX_METADATA_KEY: usize = 64;
/// Characters of a value of `metadata`.
const MAX_METADATA_VALUE: usize = 512;
/// Maximum number of tools.
const MAX_TOOLS: usize = 2048;
/// Maximum size of all tools, as JSON.
const MAX_TOOL_BYTES: usize = 1 << 20;

/// Converts a request of `POST /v1/responses` after the `earlier` messages of its conversation. A
/// request without any message only loads the model.
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
            "truncation: unknown value {other:?}: use \"auto\" or \"disabled\""
        )));
    }
    check_echoed_fields(request)?;
    let truncates = request.truncation.as_deref() == Some("auto");
    let shift = (request.truncation.as_deref() == Some("disabled")).then_some(false);
    let calls = earlier.iter().flat_map(|m| &m.tool_calls);
    let function_names = calls.map(|call| (call.id.clone(), call.function.name.clone())).collect();
    let mut conversation =
        ConversationBuilder { messages: earlier.to_vec(), function_names, thinking: String::new() };
    let has_instructions = request.instructions.as_ref().is_some_and(|text| !text.is_empty());
    if (request.input.is_null() || request.input.as_array().is_some_and(Vec::is_empty))
        && earlier.is_empty()
        && !has_instructions
    {
        return Err(ApiError::bad_request(
            "input must not be empty: send a text or at least one item",
        ));
    }
    conversation.add_input(&request.input)?;
    let mut messages = conversation.messages;
    hide_unreadable_images(&mut messages)?;
    if let Some(text) =
        request.instructions.as_ref().filter(|text| !text.is_empty() && !messages.is_empty())
    {
        messages.insert(0, Message::text("system", text));
    }
    let effort_name = request.reasoning.as_ref().and_then(|reasoning| reasoning.effort.as_deref());
    let (format, schema_label) = format(&request.text.clone().unwrap_or_default().format)?;
    let mut chat = GenerationRequest {
        parallel_tool_calls: request.parallel_tool_calls.unwrap_or(true),
        format,
        schema_label,
        keep_alive: request.keep_alive,
        options: options(request)?,
        think: effort(effort_name.unwrap_or_default())?,
        shift,
        render_only: request.debug_render_only,
        cache_salt: request.cache_salt.clone(),
        ..GenerationRequest::chat(request.model.clone(), messages, truncates.then_some(true))
    };
    let choice =
        tools::resolve_choice(request.tool_choice.clone().unwrap_or_default(), &request.tools);
    chat.set_tools(tools::to_functions(&request.tools)?, choice)?;
    Ok(chat)
}

/// Checks the size of the fields that each event of the answer repeats.
fn check_echoed_fields(request: &ResponsesRequest) -> Result<(), ApiError> {
    let metadata = request.metadata.iter().flatten();
    let is_long = |(key, value): (&String, &Value)| {
        key.chars().count() > MAX_METADATA_KEY
            || value.as_str().map_or_else(|| value.to_string().len(), |text| text.chars().count())
                > MAX_METADATA_VALUE
    };
    if request.metadata.as_ref().is_some_and(|all| all.len() > MAX_METADATA_PAIRS)
        || metadata.into_iter().any(is_long)
    {
        return Err(ApiError::bad_request(format!(
            "metadata: use at most {MAX_METADATA_PAIRS} pairs, with keys of {MAX_METADATA_KEY} and texts of {MAX_METADATA_VALUE} characters"
        )));
    }
    let bytes: usize = request.tools.iter().map(|tool| tool.to_string().len()).sum();
    match request.tools.len() > MAX_TOOLS || bytes > MAX_TOOL_BYTES {
        true => Err(ApiError::bad_request(format!(
            "tools: {} tools with {bytes} bytes; use at most {MAX_TOOLS} tools with {MAX_TOOL_BYTES} bytes together",
            request.tools.len()
        ))),
        false => Ok(()),
    }
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

/// Returns the constraint of `text.format`, and the name, description and strictness of its schema.
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
                let invalid =
                    |error| ApiError::bad_request(format!("text.format: schema: {error}"));
                schema.check_strict().map_err(invalid)?;
            }
            let label =
                SchemaLabel { name: text("name"), description: text("description"), strict };
            return Ok((Some(Constraint::Schema(schema)), label));
        }
        (Some("json_schema"), _) => {
            return Err(ApiError::bad_request(
                "text.format: type json_schema needs the object schema",
            ));
        }
        (Some(other), _) => {
            return Err(ApiError::bad_request(format!(
                "text.format: unknown type {other:?}: use text, json_object, json_schema, regex, gbnf or lark"
            )));
        }
    };
    Ok((constraint, SchemaLabel::default()))
}

/// Builder of the messages from the input items.
struct ConversationBuilder {
    messages: Vec<Message>,
    /// Maps ids of calls to function names. The last call with an id wins.
    function_names: HashMap<String, String>,
    /// Thinking for the assistant's next message.
    thinking: String,
}

impl ConversationBuilder {
    /// Adds the field `input`: a text or a list of items.
    fn add_input(&mut self, input: &Value) -> Result<(), ApiError> {
        match input {
            Value::Null => {}
            Value::String(text) if text.is_empty() => {}
            Value::String(text) => self.messages.push(Message::text("user", text)),
            Value::Array(items) => {
                for (i, item) in items.iter().enumerate() {
                    self.add_item(i, item)?;
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

    /// Adds the input item at index `i`.
    fn add_item(&mut self, i: usize, item: &Value) -> Result<(), ApiError> {
        let invalid = |text: String| Err(ApiError::bad_request(format!("input[{i}]: {text}")));
        if !item.is_object() {
            let kind = puna_api::decode::kind(item);
            return invalid(format!(
                "json: cannot unmarshal {kind} into an input item, which is an object"
            ));
        }
        let role = item["role"].as_str().unwrap_or_default();
        let kind = item["type"].as_str().unwrap_or_default();
        if let Some(format) = CallFormat::of_item(kind) {
            if kind.ends_with("_output") {
                return self.add_result(i, item);
            }
            return self.add_call(format, item).or_else(invalid);
        }
        match kind {
            "message" => self.add_message(i, role, item),
            "" if !role.is_empty() => self.add_message(i, role, item),
            "" => invalid("input item missing required 'type' field".into()),
            "reasoning" => {
                append_paragraph(&mut self.thinking, &reasoning_text(item));
                Ok(())
            }
            // The model that made these calls has already used their results.
            "web_search_call" | "image_generation_call" => Ok(()),
            "item_reference" => {
                let id = item["id"].as_str().unwrap_or_default();
                invalid(format!(
                    "item {id:?} not found: its response was not stored, or was evicted"
                ))
            }
            other => invalid(format!("unknown input item type: {other:?}")),
        }
    }

    /// Adds a message item. An assistant message after calls is merged into the message of the
    /// calls.
    fn add_message(&mut self, i: usize, role: &str, item: &Value) -> Result<(), ApiError> {
        let mut message = Message::text(role.to_lowercase(), "");
        add_content(i, &item["content"], &mut message)?;
        if message.role == "assistant" {
            message.thinking = std::mem::take(&mut self.thinking);
            // Joins text next to calls with the message of the calls.
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

    /// Adds a call to the last message if it is an assistant message. Otherwise, or after new
    /// thinking, the call starts an assistant message.
    fn add_call(&mut self, format: CallFormat, item: &Value) -> Result<(), String> {
        let (name, arguments) = format.parse_call(item)?;
        let id = item["call_id"].as_str().or(item["id"].as_str()).unwrap_or_default().to_owned();
        if self.messages.last().is_none_or(|last| last.role != "assistant")
            || !self.thinking.is_empty()
        {
            let thinking = std::mem::take(&mut self.thinking);
            self.messages.push(Message { thinking, ..Message::text("assistant", "") });
        }
        if let Some(last) = self.messages.last_mut() {
            let index = last.tool_calls.len() as i64;
            self.function_names.insert(id.clone(), name.clone());
            last.tool_calls
                .push(ToolCall { id, function: ToolCallFunction { index, name, arguments } });
        }
        Ok(())
    }

    /// Adds the result of a call as a tool message.
    fn add_result(&mut self, i: usize, item: &Value) -> Result<(), ApiError> {
        let id = item["call_id"].as_str().or(item["id"].as_str()).unwrap_or_default();
        let tool_name = self.function_names.get(id).cloned().unwrap_or_default();
        let mut message =
            Message { tool_name, tool_call_id: id.to_owned(), ..Message::text("tool", "") };
        add_content(i, &item["output"], &mut message)?;
        self.messages.push(message);
        Ok(())
    }
}

/// Returns the plain text of a reasoning item. `encrypted_content` is the fallback: Puna's own
/// items have plain text there, and the text of another server cannot be decrypted.
fn reasoning_text(item: &Value) -> String {
    let texts = |field: &str| -> String {
        let parts = item[field].as_array().into_iter().flatten();
        parts.filter_map(|part| part["text"].as_str()).collect()
    };
    let plain = [texts("content"), texts("summary")].into_iter().find(|text| !text.is_empty());
    plain.unwrap_or_else(|| item["encrypted_content"].as_str().unwrap_or_default().to_owned())
}

/// Adds a text or a list of content parts to a message.
fn add_content(i: usize, content: &Value, message: &mut Message) -> Result<(), ApiError> {
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
                    let text = "an image needs its data in image_url: file ids are not supported";
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
