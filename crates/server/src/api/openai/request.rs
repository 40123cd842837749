//! Converts chat completion requests to the canonical request.

use std::collections::HashMap;

use puna_api::ollama::{self, Image, Think, ToolCallFunction};
use puna_api::openai::{
    ChatCompletionRequest, JsonSchema, Message, ResponseFormat, ThinkingSwitch, ToolCall,
};
use puna_sampler::Constraint;
use serde_json::Value;

use super::custom::{arguments_of, as_functions};
use super::{reject_in_stream, stop_texts};
use crate::api::generation_request::GenerationRequest;
use crate::api::image_urls::{IMAGE_URLS_OFF, is_http_url};
use crate::api::{
    go_type, grammar_format, hide_unreadable_images, logprobs, prompt_logprobs, read_arguments,
};
use crate::canonical::{ApiError, SchemaLabel};
use crate::options::{RequestOptions, effort};

/// Converts a request of `POST /v1/chat/completions`.
pub(crate) fn to_request(request: ChatCompletionRequest) -> Result<GenerationRequest, ApiError> {
    if request.messages.is_empty() {
        return Err(ApiError::bad_request("[] is too short - 'messages'"));
    }
    let mut messages = messages(&request.messages)?;
    hide_unreadable_images(&mut messages)?;
    let options = options(&request)?;
    let top_logprobs = request.top_logprobs;
    let logprobs = logprobs(request.logprobs.unwrap_or(false), top_logprobs)?;
    if logprobs.is_none() && top_logprobs > 0 {
        return Err(ApiError::bad_request("top_logprobs needs logprobs: true"));
    }
    let (format, schema_label) = match request.response_format {
        Some(wanted) => format(wanted)?,
        None => Default::default(),
    };
    let mut chat = GenerationRequest {
        format,
        schema_label,
        options,
        parallel_tool_calls: request.parallel_tool_calls.unwrap_or(true),
        keep_alive: request.keep_alive,
        think: match think(request.reasoning.map(|r| r.effort), request.reasoning_effort)? {
            Some(level) => Some(level),
            None => switch(request.thinking.as_ref(), request.enable_thinking),
        },
        variables: request.chat_template_kwargs.unwrap_or_default(),
        shift: request.shift,
        logprobs,
        prompt_logprobs: prompt_logprobs(reject_in_stream(
            request.prompt_logprobs,
            request.stream,
        )?)?,
        render_only: request.debug_render_only,
        cache_salt: request.cache_salt,
        ..GenerationRequest::chat(request.model, messages, request.truncate)
    };
    chat.set_tools(as_functions(request.tools)?, request.tool_choice.unwrap_or_default())?;
    Ok(chat)
}

/// Returns the constraint of `response_format`, and the name, description and strictness of its
/// schema.
fn format(format: ResponseFormat) -> Result<(Option<Constraint>, SchemaLabel), ApiError> {
    let constraint = match format.kind.trim().to_lowercase().as_str() {
        "" | "text" => None,
        "json_object" => Some(Constraint::Json),
        kind @ ("regex" | "gbnf" | "lark") => {
            Some(grammar_format(kind, format.pattern, format.grammar)?)
        }
        "json_schema" => return json_schema(format.json_schema),
        other => {
            return Err(ApiError::bad_request(format!(
                "response_format: unknown type {other:?}: use text, json_object, json_schema, regex, gbnf or lark"
            )));
        }
    };
    Ok((constraint, SchemaLabel::default()))
}

/// Returns the constraint of the type `json_schema`. Every keyword of a strict schema must be
/// enforceable during decoding.
fn json_schema(given: Option<JsonSchema>) -> Result<(Option<Constraint>, SchemaLabel), ApiError> {
    let missing = "response_format: type json_schema needs the field json_schema.schema";
    let Some(JsonSchema { name, description, strict, schema }) = given else {
        return Err(ApiError::bad_request(missing));
    };
    match &schema {
        Value::Object(_) => {}
        Value::Null => return Err(ApiError::bad_request(missing)),
        other => {
            return Err(ApiError::bad_request(format!(
                "response_format: json_schema.schema must be an object, but is of type {}",
                go_type(other)
            )));
        }
    }
    let schema = puna_sampler::JsonSchema::from(schema);
    if strict == Some(true) {
        let invalid = |error| format!("response_format: json_schema.schema: {error}");
        schema.check_strict().map_err(|error| ApiError::bad_request(invalid(error)))?;
    }
    let name = Some(name).filter(|name| !name.is_empty());
    Ok((Some(Constraint::Schema(schema)), SchemaLabel { name, description, strict }))
}

/// Returns the thinking level from `reasoning.effort`, or else from `reasoning_effort`.
pub(super) fn think(
    newer: Option<String>,
    older: Option<String>,
) -> Result<Option<Think>, ApiError> {
    effort(&newer.filter(|e| !e.is_empty()).or(older).unwrap_or_default())
}

/// Returns the names of the request fields that ask for thinking.
pub(crate) fn wishes_to_think(request: &ChatCompletionRequest) -> Vec<&'static str> {
    let is_on = |switch: &ThinkingSwitch| switch.kind == "enabled";
    let fields = [
        ("reasoning", request.reasoning.is_some()),
        ("reasoning_effort", request.reasoning_effort.is_some()),
        ("thinking", request.thinking.as_ref().is_some_and(is_on)),
        ("enable_thinking", request.enable_thinking == Some(true)),
    ];
    fields.into_iter().filter(|(_, is_asked)| *is_asked).map(|(field, _)| field).collect()
}

/// Returns the thinking mode from `thinking` or `enable_thinking`, which clients of other servers
/// send.
fn switch(thinking: Option<&ThinkingSwitch>, enabled: Option<bool>) -> Option<Think> {
    let on = match thinking.map(|switch| switch.kind.as_str()) {
        Some("enabled") => Some(true),
        Some("disabled") => Some(false),
        _ => enabled,
    };
    on.map(|on| if on { Think::On } else { Think::Off })
}

fn options(request: &ChatCompletionRequest) -> Result<RequestOptions, ApiError> {
    // The newer name takes precedence.
    let limits = [
        ("max_completion_tokens", request.max_completion_tokens),
        ("max_tokens", request.max_tokens),
    ];
    let limit = limits.into_iter().find_map(|(name, n)| Some((name, n?)));
    // For other servers, a negative limit means no limit.
    if let Some((name, 0)) = limit {
        return Err(ApiError::bad_request(format!("{name} must be at least 1")));
    }
    Ok(RequestOptions {
        num_predict: limit.map(|(_, n)| n),
        seed: request.seed,
        stop: stop_texts(request.stop.as_ref())?,
        temperature: request.temperature,
        top_p: request.top_p,
        frequency_penalty: request.frequency_penalty,
        presence_penalty: request.presence_penalty,
        logit_bias: request.logit_bias.clone().filter(|bias| !bias.is_empty()),
        ..RequestOptions::named(request.options.as_ref())
    })
}

/// Converts the messages. A tool result without a name gets the name of its call.
fn messages(messages: &[Message]) -> Result<Vec<ollama::Message>, ApiError> {
    let mut all = Vec::with_capacity(messages.len());
    // The last call with an id wins.
    let calls = messages.iter().flat_map(|m| &m.tool_calls);
    let name = |call: &ToolCall| match &call.custom {
        Some(custom) if call.kind != "function" && !custom.name.is_empty() => custom.name.clone(),
        _ => call.function.name.clone(),
    };
    let function_names: HashMap<_, _> = calls.map(|call| (call.id.as_str(), name(call))).collect();
    for (at, message) in messages.iter().enumerate() {
        let mut native = ollama::Message {
            role: message.role.clone(),
            thinking: [&message.reasoning, &message.reasoning_content]
                .into_iter()
                .find(|thoughts| !thoughts.is_empty())
                .cloned()
                .unwrap_or_default(),
            tool_calls: tool_calls(at, &message.tool_calls)?,
            tool_call_id: message.tool_call_id.clone(),
            tool_name: message.name.clone(),
            ..ollama::Message::default()
        };
        if native.tool_name.is_empty() && message.role == "tool" {
            native.tool_name =
                function_names.get(message.tool_call_id.as_str()).cloned().unwrap_or_default();
        }
        match &message.content {
            Value::String(text) => native.content.clone_from(text),
            Value::Array(parts) => content_parts(parts, &mut native)?,
            // A message with only thinking or a refusal has no content.
            Value::Null if message.role == "assistant" => {
                native.content.clone_from(&message.refusal)
            }
            Value::Null if !message.tool_calls.is_empty() => {}
            other => {
                let text = format!("invalid message content type: {}", go_type(other));
                return Err(ApiError::bad_request(text));
            }
        }
        all.push(native);
    }
    Ok(all)
}

/// Converts the calls of the message at index `message`.
fn tool_calls(message: usize, calls: &[ToolCall]) -> Result<Vec<ollama::ToolCall>, ApiError> {
    let invalid = |at: usize, text: String| {
        ApiError::bad_request(format!("messages[{message}].tool_calls[{at}]: {text}"))
    };
    let call = |(at, call)| tool_call(call).map_err(|text| invalid(at, text));
    calls.iter().enumerate().map(call).collect()
}

/// Converts a call of a function or a custom tool.
fn tool_call(call: &ToolCall) -> Result<ollama::ToolCall, String> {
    let (name, arguments) = match (call.kind.as_str(), &call.custom) {
        ("" | "custom", Some(custom)) if !custom.name.is_empty() => {
            (custom.name.clone(), arguments_of(&custom.input))
        }
        ("custom", _) => {
            return Err("a call of type custom needs the object custom with a name".into());
        }
        ("" | "function", _) if is_default(&call.function) => {
            return Err("a call of type function needs the object function".into());
        }
        ("" | "function", _) => {
            (call.function.name.clone(), read_arguments(&call.function.arguments))
        }
        (other, _) => return Err(format!("unknown type {other:?}: use function or custom")),
    };
    let function = ToolCallFunction { index: call.index, name, arguments };
    Ok(ollama::ToolCall { id: call.id.clone(), function })
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Whether a conversation has audio. The canonical request lists audio among the images.
pub(crate) fn has_sound(messages: &[Message]) -> bool {
    let parts = messages.iter().filter_map(|message| message.content.as_array()).flatten();
    parts.into_iter().any(|part| part["type"] == "input_audio")
}

/// Joins text parts by blank lines and adds images and audio in order.
fn content_parts(parts: &[Value], message: &mut ollama::Message) -> Result<(), ApiError> {
    let invalid = || ApiError::bad_request("invalid message format");
    let mut texts = Vec::new();
    for part in parts {
        match part["type"].as_str().ok_or_else(invalid)? {
            kind @ ("text" | "refusal") => texts.push(part[kind].as_str().ok_or_else(invalid)?),
            "image_url" => {
                let url = part["image_url"]["url"]
                    .as_str()
                    .or(part["image_url"].as_str())
                    .ok_or_else(invalid)?;
                message.images.push(image(url));
            }
            "input_audio" => message.images.push(audio(&part["input_audio"])?),
            _ => return Err(invalid()),
        }
    }
    message.content = texts.join("\n\n");
    Ok(())
}

/// Decodes the image of an `image_url`. Errors become [`Image::Unreadable`].
pub(crate) fn image(url: &str) -> Image {
    if is_http_url(url) {
        let text = "image URLs are not currently supported, please use base64 encoded data instead";
        return Image::Unreadable(format!("{text}: {IMAGE_URLS_OFF}"));
    }
    let kinds = ["image/jpeg", "image/jpg", "image/png", "image/webp", ""];
    let data = kinds.iter().find_map(|kind| url.strip_prefix(&format!("data:{kind};base64,")));
    let bytes = data.and_then(|data| puna_api::base64_decode(data).ok());
    bytes.map_or_else(|| Image::Unreadable("invalid image input".into()), Image::Bytes)
}

/// Decodes the audio of an `input_audio` part. Invalid base64 becomes [`Image::Unreadable`].
fn audio(part: &Value) -> Result<Image, ApiError> {
    if !part.is_object() {
        return Err(ApiError::bad_request("invalid input_audio format"));
    }
    let data = part["data"].as_str().filter(|d| !d.is_empty());
    let data =
        data.ok_or_else(|| ApiError::bad_request("invalid input_audio format: missing data"))?;
    Ok(match Image::from_base64(data) {
        Image::Unreadable(reason) => {
            Image::Unreadable(format!("invalid input_audio base64 data: {reason}"))
        }
        sound => sound,
    })
}
