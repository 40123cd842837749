//! Requests for messages.

use std::collections::HashMap;

use puna_api::anthropic::{Message, MessagesRequest, OutputFormat, Tool};
use puna_api::native::{self, Image, Think, ToolCall, ToolCallFunction};
use puna_sampler::Constraint;
use serde_json::{Map, Value, json as value};

use super::{defined, documents};
use crate::canonical::ApiError;
use crate::dialect::{
    go_type, grammar_format, hide_unreadable_images, read_arguments, repaired_arguments,
};
use crate::image_urls::IMAGE_URLS_OFF;
use crate::options::RequestOptions;
use crate::paragraphs::append_paragraph;
use crate::request::GenerationRequest;

/// The function that stands for the search on the web that the API itself would do.
pub(crate) const SEARCH: &str = "web_search";

/// The request of a message.
pub(crate) fn to_request(request: MessagesRequest) -> Result<GenerationRequest, ApiError> {
    for (field, given) in [
        ("mcp_servers", !request.mcp_servers.is_empty()),
        ("container", request.container.is_some()),
    ] {
        if given {
            return Err(ApiError::bad_request(format!("{field} is not supported")));
        }
    }
    let options = options(&request)?;
    let think = think(&request)?;
    let mut messages: Vec<_> = system(&request.system)?.into_iter().collect();
    let before = messages.len();
    let calls = called(&request.messages);
    for message in &request.messages {
        convert(message, &calls, &mut messages)?;
    }
    if messages.len() == before {
        return Err(ApiError::bad_request("messages is required"));
    }
    hide_unreadable_images(&mut messages)?;
    let config = request.output_config.unwrap_or_default();
    let choice = request.tool_choice.unwrap_or_default();
    let format = config.format.or(request.output_format).map(format).transpose()?.flatten();
    let mut chat = GenerationRequest {
        parallel_tool_calls: !choice.disable_parallel_tool_use,
        format,
        keep_alive: request.keep_alive,
        options,
        think,
        shift: request.shift,
        render_only: request.debug_render_only,
        ..GenerationRequest::chat(request.model, messages, request.truncate)
    };
    chat.set_tools(tools(&request.tools)?, choice.tool)?;
    Ok(chat)
}

/// Only what the client said, so that the model's own values hold otherwise.
fn options(request: &MessagesRequest) -> Result<RequestOptions, ApiError> {
    let budget = request.thinking.as_ref().filter(|thinking| thinking.kind == "enabled");
    let budget = budget.and_then(|thinking| thinking.budget_tokens);
    if budget.is_some_and(|tokens| tokens < 1) {
        return Err(ApiError::bad_request("thinking.budget_tokens must be at least 1"));
    }
    Ok(RequestOptions {
        num_predict: (request.max_tokens > 0).then_some(request.max_tokens),
        temperature: request.temperature,
        top_p: request.top_p,
        top_k: request.top_k,
        stop: request.stop_sequences.clone(),
        think_budget: budget,
        ..RequestOptions::named(request.options.as_ref())
    })
}

fn think(request: &MessagesRequest) -> Result<Option<Think>, ApiError> {
    let effort = request.output_config.as_ref().map_or("", |config| &config.effort).to_lowercase();
    let level = match effort.as_str() {
        "" => None,
        "low" => Some(Think::Low),
        "medium" => Some(Think::Medium),
        "high" | "xhigh" => Some(Think::High),
        "max" => Some(Think::Max),
        _ => {
            let text =
                "output_config.effort: Input should be 'low', 'medium', 'high', 'xhigh' or 'max'";
            return Err(ApiError::bad_request(text));
        }
    };
    match request.thinking.as_ref().map(|thinking| thinking.kind.as_str()) {
        None | Some("adaptive") => Ok(level),
        Some("enabled") => Ok(Some(Think::On)),
        Some("disabled") => Ok(Some(Think::Off)),
        Some("") => {
            Err(ApiError::bad_request("thinking: Unable to extract tag using discriminator 'type'"))
        }
        Some(other) => Err(ApiError::bad_request(format!(
            "thinking: Input tag '{other}' found using 'type' does not match any of the expected tags: 'adaptive', \
             'disabled', 'enabled'"
        ))),
    }
}

/// Fields that ask a model to think.
pub(crate) fn wishes_to_think(request: &MessagesRequest) -> Vec<&'static str> {
    let enabled = request.thinking.as_ref().is_some_and(|thinking| thinking.kind == "enabled");
    let effort = request.output_config.as_ref().is_some_and(|config| !config.effort.is_empty());
    let fields = [("thinking", enabled), ("output_config.effort", effort)];
    fields.into_iter().filter(|(_, asked)| *asked).map(|(field, _)| field).collect()
}

fn format(format: OutputFormat) -> Result<Option<Constraint>, ApiError> {
    match format.schema {
        _ if matches!(format.kind.as_str(), "" | "text") => Ok(None),
        _ if format.kind == "json_object" => Ok(Some(Constraint::Json)),
        _ if matches!(format.kind.as_str(), "regex" | "gbnf" | "lark") => {
            grammar_format(&format.kind, format.pattern, format.grammar).map(Some)
        }
        _ if format.kind != "json_schema" => Err(ApiError::bad_request(format!(
            "the form of the answer: there is no type {:?}: use text, json_object, json_schema, regex, gbnf or lark",
            format.kind
        ))),
        schema @ Value::Object(_) => Ok(Some(Constraint::schema(schema))),
        other => Err(ApiError::bad_request(format!(
            "the form of the answer: schema must be an object, but is of type {}",
            go_type(&other)
        ))),
    }
}

fn tools(tools: &[Tool]) -> Result<Vec<native::Tool>, ApiError> {
    let searches = |tool: &Tool| tool.kind.starts_with(SEARCH);
    let any_searches = tools.iter().any(searches);
    let offered =
        tools.iter().filter(|tool| !any_searches || searches(tool) || tool.name != SEARCH);
    let offered = offered.filter(|tool| !defined::is_left_out(tool));
    offered.map(|tool| if searches(tool) { Ok(search()) } else { function(tool) }).collect()
}

fn function(tool: &Tool) -> Result<native::Tool, ApiError> {
    if tool.name.is_empty() {
        return Err(ApiError::bad_request("a tool has no name"));
    }
    let wrong = |text: String| {
        ApiError::bad_request(format!("invalid input_schema for tool {:?}: {text}", tool.name))
    };
    let known = defined::described(&tool.kind).filter(|_| tool.input_schema.is_null());
    let description =
        known.as_ref().map_or(tool.description.as_str(), |(description, _)| description);
    let schema = match &tool.input_schema {
        Value::Null => {
            known.map_or_else(|| value!({"type": "object", "properties": {}}), |(_, schema)| schema)
        }
        schema @ Value::Object(_) => schema.clone(),
        other => {
            let error = puna_api::decode::kind(other);
            let want = "api.ToolFunctionParameters";
            return Err(wrong(format!(
                "json: cannot unmarshal {error} into Go value of type {want}"
            )));
        }
    };
    let mut function =
        value!({"name": tool.name, "description": description, "parameters": schema});
    if let Some(strict) = tool.strict {
        function["strict"] = strict.into();
    }
    serde_json::from_value(value!({"type": "function", "function": function}))
        .map_err(|e| wrong(e.to_string()))
}

fn search() -> native::Tool {
    let query = value!({"type": "string", "description": "What to search for"});
    let parameters =
        value!({"type": "object", "properties": {"query": query}, "required": ["query"]});
    native::Tool(value!({"type": "function", "function": {
        "name": SEARCH, "description": "Search the web for current information", "parameters": parameters,
    }}))
}

/// How texts of system blocks begin that change with every request and say nothing to the model: with them no prefix of the
/// prompt would be found in the cache.
const VOLATILE: [&str; 1] = ["x-anthropic-billing-header:"];

fn is_volatile(text: &str) -> bool {
    VOLATILE.iter().any(|start| text.starts_with(start))
}

/// The system message: its blocks with a blank line between, but for volatile ones.
fn system(system: &Value) -> Result<Option<native::Message>, ApiError> {
    let text = match system {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Array(blocks) => {
            let text = |block: &Value| match (block["type"].as_str(), block["text"].as_str()) {
                (Some("text"), Some(text)) => Ok(text.to_owned()),
                _ => Err(ApiError::bad_request("system: every block must be of type text")),
            };
            let texts = blocks.iter().map(text).collect::<Result<Vec<_>, _>>()?;
            let lasting: Vec<String> =
                texts.into_iter().filter(|text| !is_volatile(text)).collect();
            lasting.join("\n\n")
        }
        _ => return Err(ApiError::bad_request("system must be a string or a list of text blocks")),
    };
    Ok(Some(text).filter(|text| !text.is_empty()).map(|text| native::Message::text("system", text)))
}

/// What one message is made of.
#[derive(Default)]
struct Parts {
    message: native::Message,
    /// Answers to calls, which are messages of their own.
    results: Vec<native::Message>,
    /// The block before was a text.
    follows_text: bool,
}

/// Appends what a message comes to: itself, and the results of tools in it; before a user's words and after others'.
fn convert(
    message: &Message,
    calls: &HashMap<&str, &str>,
    out: &mut Vec<native::Message>,
) -> Result<(), ApiError> {
    let mut parts = Parts::default();
    parts.message.role = message.role.to_lowercase();
    match &message.content {
        Value::Null => return Err(ApiError::bad_request("unexpected end of JSON input")),
        Value::String(text) => parts.message.content.clone_from(text),
        Value::Array(blocks) => {
            for block in blocks {
                parts.add(block, calls)?;
            }
        }
        other => {
            let text =
                "into Go struct field MessagesRequest.messages of type []anthropic.ContentBlock";
            let kind = puna_api::decode::kind(other);
            return Err(ApiError::bad_request(format!("json: cannot unmarshal {kind} {text}")));
        }
    }
    let user = parts.message.role == "user";
    let itself = Some(parts.message).filter(|message| !message.is_empty());
    match user {
        true => out.extend(parts.results.into_iter().chain(itself)),
        false => out.extend(itself.into_iter().chain(parts.results)),
    }
    Ok(())
}

impl Parts {
    fn add(&mut self, block: &Value, calls: &HashMap<&str, &str>) -> Result<(), ApiError> {
        let text = |field: &str| block[field].as_str().unwrap_or_default();
        let follows_text = std::mem::replace(&mut self.follows_text, text("type") == "text");
        match text("type") {
            // Neighbouring blocks of an answer are pieces of one text, such as those of a cited sentence.
            "text" if follows_text && self.message.role == "assistant" => {
                self.message.content.push_str(text("text"));
            }
            "text" => append_paragraph(&mut self.message.content, text("text")),
            "document" => append_paragraph(&mut self.message.content, &documents::document(block)?),
            "search_result" => {
                append_paragraph(&mut self.message.content, &documents::search_result(block)?)
            }
            "image" => self.message.images.push(image(block, "invalid image source")?),
            "thinking" => append_paragraph(&mut self.message.thinking, text("thinking")),
            // Nobody but the service that wrote it can read it.
            "redacted_thinking" => {}
            kind @ ("tool_use" | "server_tool_use") => self.call(kind, block)?,
            "tool_result" => {
                let mut result =
                    native::Message { role: "tool".into(), ..native::Message::default() };
                result.tool_call_id = text("tool_use_id").to_owned();
                result.tool_name =
                    calls.get(result.tool_call_id.as_str()).copied().unwrap_or_default().to_owned();
                tool_result(&block["content"], &mut result)?;
                if block["is_error"] == true {
                    result.content = failed(&result.content);
                }
                self.results.push(result);
            }
            "web_search_tool_result" => {
                let mut result = native::Message::text("tool", found(&block["content"]));
                result.tool_call_id = text("tool_use_id").to_owned();
                result.tool_name = SEARCH.into();
                self.results.push(result);
            }
            "" => return Err(ApiError::bad_request("a content block has no type")),
            other => {
                return Err(ApiError::bad_request(format!(
                    "content blocks of type {other} are not supported"
                )));
            }
        }
        Ok(())
    }

    fn call(&mut self, kind: &str, block: &Value) -> Result<(), ApiError> {
        let field = |field: &str| {
            let missing =
                || ApiError::bad_request(format!("{kind} block missing required '{field}' field"));
            block[field]
                .as_str()
                .filter(|text| !text.is_empty())
                .map(str::to_owned)
                .ok_or_else(missing)
        };
        let (id, name) = (field("id")?, field("name")?);
        let arguments = match &block["input"] {
            Value::Object(input) => input.clone(),
            Value::Null => Map::new(),
            Value::String(text) => read_arguments(text),
            other => repaired_arguments(&other.to_string()),
        };
        let index = self.message.tool_calls.len() as i64;
        let function = ToolCallFunction { index, name, arguments };
        self.message.tool_calls.push(ToolCall { id, function });
        Ok(())
    }
}

/// Functions by the ids of calls; the last call with an id counts.
fn called(messages: &[Message]) -> HashMap<&str, &str> {
    let blocks = messages.iter().filter_map(|m| m.content.as_array()).flatten();
    let calls =
        blocks.filter(|b| b["type"].as_str().is_some_and(|kind| kind.ends_with("tool_use")));
    calls.filter_map(|call| Some((call["id"].as_str()?, call["name"].as_str()?))).collect()
}

fn tool_result(content: &Value, result: &mut native::Message) -> Result<(), ApiError> {
    match content {
        Value::Null => {}
        Value::String(text) => result.content.clone_from(text),
        Value::Array(blocks) => {
            for block in blocks {
                match block["type"].as_str().unwrap_or_default() {
                    "text" => append_paragraph(
                        &mut result.content,
                        block["text"].as_str().unwrap_or_default(),
                    ),
                    "document" => {
                        append_paragraph(&mut result.content, &documents::document(block)?)
                    }
                    "search_result" => {
                        append_paragraph(&mut result.content, &documents::search_result(block)?)
                    }
                    "image" => {
                        result.images.push(image(block, "invalid tool_result image source")?)
                    }
                    kind => {
                        let text =
                            format!("tool_result: content of type {kind:?} is not supported");
                        return Err(ApiError::bad_request(text));
                    }
                }
            }
        }
        _ => {
            return Err(ApiError::bad_request(
                "tool_result: content must be a string or a list of blocks",
            ));
        }
    }
    Ok(())
}

/// The result of a call that failed, which no template has a mark for.
fn failed(text: &str) -> String {
    match text.trim_start().get(..5).is_some_and(|start| start.eq_ignore_ascii_case("error")) {
        true => text.to_owned(),
        false => format!("Error: {text}").trim_end().to_owned(),
    }
}

/// What a search found, line by line.
fn found(content: &Value) -> String {
    let line = |result: &Value| {
        let text = |field: &str| result[field].as_str().unwrap_or_default();
        format!("- {}: {}\n", text("title"), text("url"))
    };
    match content.as_array() {
        Some(results) => results.iter().map(line).collect(),
        None => format!("error: {}", content["error_code"].as_str().unwrap_or("unavailable")),
    }
}

fn image(block: &Value, missing: &str) -> Result<Image, ApiError> {
    let source = block["source"].as_object().ok_or_else(|| ApiError::bad_request(missing))?;
    let text = |field: &str| source.get(field).and_then(Value::as_str).unwrap_or_default();
    Ok(match text("type") {
        "base64" => match Image::from_base64(text("data")) {
            Image::Unreadable(reason) => {
                Image::Unreadable(format!("invalid base64 image data: {reason}"))
            }
            image => image,
        },
        "url" => Image::Unreadable(format!(
            "invalid image source type: url. Only base64 images are supported: {IMAGE_URLS_OFF}"
        )),
        other => Image::Unreadable(format!(
            "invalid image source type: {other}. Only base64 images are supported."
        )),
    })
}
