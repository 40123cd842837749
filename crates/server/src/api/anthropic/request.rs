//! Converts Messages API requests to the canonical request.

use std::collections::HashMap;

use puna_api::anthropic::{Message, MessagesRequest, OutputFormat, Tool};
use puna_api::ollama::{self, Image, Think, ToolCall, ToolCallFunction};
use puna_sampler::Constraint;
use serde_json::{Map, Value, json as value};

use super::{documents, predefined_tools};
use crate::api::generation_request::GenerationRequest;
use crate::api::image_urls::IMAGE_URLS_OFF;
use crate::api::paragraphs::append_paragraph;
use crate::api::{
    go_type, grammar_format, hide_unreadable_images, read_arguments, repaired_arguments,
};
use crate::canonical::ApiError;
use crate::options::RequestOptions;

/// Name of the function for Anthropic's web search, which the service would run itself.
pub(crate) const SEARCH: &str = "web_search";

/// Converts a request of `POST /v1/messages`.
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
    let calls = function_names(&request.messages);
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
        cache_salt: request.cache_salt,
        ..GenerationRequest::chat(request.model, messages, request.truncate)
    };
    chat.set_tools(tools(&request.tools)?, choice.tool)?;
    Ok(chat)
}

/// Sets only the options that the client sent. The model's own values apply to the others.
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

/// Returns the thinking mode. `thinking` takes precedence over `output_config.effort`.
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

/// Returns the names of the request fields that ask for thinking.
pub(crate) fn wishes_to_think(request: &MessagesRequest) -> Vec<&'static str> {
    let enabled = request.thinking.as_ref().is_some_and(|thinking| thinking.kind == "enabled");
    let effort = request.output_config.as_ref().is_some_and(|config| !config.effort.is_empty());
    let fields = [("thinking", enabled), ("output_config.effort", effort)];
    fields.into_iter().filter(|(_, asked)| *asked).map(|(field, _)| field).collect()
}

/// Returns the constraint of an output format.
fn format(format: OutputFormat) -> Result<Option<Constraint>, ApiError> {
    match format.schema {
        _ if matches!(format.kind.as_str(), "" | "text") => Ok(None),
        _ if format.kind == "json_object" => Ok(Some(Constraint::Json)),
        _ if matches!(format.kind.as_str(), "regex" | "gbnf" | "lark") => {
            grammar_format(&format.kind, format.pattern, format.grammar).map(Some)
        }
        _ if format.kind != "json_schema" => Err(ApiError::bad_request(format!(
            "output format: unknown type {:?}: use text, json_object, json_schema, regex, gbnf or lark",
            format.kind
        ))),
        schema @ Value::Object(_) => Ok(Some(Constraint::schema(schema))),
        other => Err(ApiError::bad_request(format!(
            "output format: schema must be an object, but is of type {}",
            go_type(&other)
        ))),
    }
}

/// Converts the tools. Web search hides a client function of the same name, and ignored tools are
/// left out.
fn tools(tools: &[Tool]) -> Result<Vec<ollama::Tool>, ApiError> {
    let searches = |tool: &Tool| tool.kind.starts_with(SEARCH);
    let any_searches = tools.iter().any(searches);
    let offered =
        tools.iter().filter(|tool| !any_searches || searches(tool) || tool.name != SEARCH);
    let offered = offered.filter(|tool| !predefined_tools::is_ignored(tool));
    offered
        .map(|tool| if searches(tool) { Ok(search_tool()) } else { function_tool(tool) })
        .collect()
}

/// Converts a tool of the client. Predefined tools without a schema get the predefined one.
fn function_tool(tool: &Tool) -> Result<ollama::Tool, ApiError> {
    let is_known = matches!(tool.kind.as_str(), "" | "custom" | "function")
        || predefined_tools::definition(&tool.kind).is_some();
    if !is_known && tool.input_schema.is_null() {
        let kind = &tool.kind;
        return Err(ApiError::bad_request(format!(
            "tools: tools of type {kind:?} are not supported: send an input_schema, or leave it out"
        )));
    }
    if tool.name.is_empty() {
        return Err(ApiError::bad_request("a tool has no name"));
    }
    let invalid = |text: String| {
        ApiError::bad_request(format!("invalid input_schema for tool {:?}: {text}", tool.name))
    };
    let definition =
        predefined_tools::definition(&tool.kind).filter(|_| tool.input_schema.is_null());
    let description =
        definition.as_ref().map_or(tool.description.as_str(), |(description, _)| description);
    let schema = match &tool.input_schema {
        Value::Null => definition
            .map_or_else(|| value!({"type": "object", "properties": {}}), |(_, schema)| schema),
        schema @ Value::Object(_) => schema.clone(),
        other => {
            let error = puna_api::decode::kind(other);
            let want = "api.ToolFunctionParameters";
            return Err(invalid(format!(
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
        .map_err(|e| invalid(e.to_string()))
}

/// Returns the function for Anthropic's web search.
fn search_tool() -> ollama::Tool {
    let query = value!({"type": "string", "description": "What to search for"});
    let parameters =
        value!({"type": "object", "properties": {"query": query}, "required": ["query"]});
    ollama::Tool(value!({"type": "function", "function": {
        "name": SEARCH, "description": "Search the web for current information", "parameters": parameters,
    }}))
}

/// Prefixes of volatile system blocks. These blocks change with every request and carry no
/// information for the model. In the prompt, they would prevent every match in the prefix cache.
const VOLATILE_PREFIXES: [&str; 1] = ["x-anthropic-billing-header:"];

fn is_volatile(text: &str) -> bool {
    VOLATILE_PREFIXES.iter().any(|start| text.starts_with(start))
}

/// Returns the system message: its blocks joined by blank lines, without volatile blocks.
fn system(system: &Value) -> Result<Option<ollama::Message>, ApiError> {
    let text = match system {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Array(blocks) => {
            let text = |block: &Value| match (block["type"].as_str(), block["text"].as_str()) {
                (Some("text"), Some(text)) => Ok(text.to_owned()),
                _ => Err(ApiError::bad_request("system: every block must be of type text")),
            };
            let texts = blocks.iter().map(text).collect::<Result<Vec<_>, _>>()?;
            let stable_texts: Vec<String> =
                texts.into_iter().filter(|text| !is_volatile(text)).collect();
            stable_texts.join("\n\n")
        }
        _ => return Err(ApiError::bad_request("system must be a string or a list of text blocks")),
    };
    Ok(Some(text).filter(|text| !text.is_empty()).map(|text| ollama::Message::text("system", text)))
}

/// Builder of the canonical messages for one message.
#[derive(Default)]
struct MessageBuilder {
    message: ollama::Message,
    /// Results of tool calls, which become separate messages.
    results: Vec<ollama::Message>,
    /// Whether the previous block was text.
    follows_text: bool,
}

/// Appends the canonical messages of one message. Tool results come before a user's own content and
/// after the content of other roles.
fn convert(
    message: &Message,
    calls: &HashMap<&str, &str>,
    out: &mut Vec<ollama::Message>,
) -> Result<(), ApiError> {
    let mut builder = MessageBuilder::default();
    builder.message.role = message.role.to_lowercase();
    match &message.content {
        Value::Null => return Err(ApiError::bad_request("unexpected end of JSON input")),
        Value::String(text) => builder.message.content.clone_from(text),
        Value::Array(blocks) => {
            for block in blocks {
                builder.add(block, calls)?;
            }
        }
        other => {
            let text =
                "into Go struct field MessagesRequest.messages of type []anthropic.ContentBlock";
            let kind = puna_api::decode::kind(other);
            return Err(ApiError::bad_request(format!("json: cannot unmarshal {kind} {text}")));
        }
    }
    let is_user = builder.message.role == "user";
    let own_message = Some(builder.message).filter(|message| !message.is_empty());
    match is_user {
        true => out.extend(builder.results.into_iter().chain(own_message)),
        false => out.extend(own_message.into_iter().chain(builder.results)),
    }
    Ok(())
}

impl MessageBuilder {
    /// Adds a content block of the message.
    fn add(&mut self, block: &Value, calls: &HashMap<&str, &str>) -> Result<(), ApiError> {
        let text = |field: &str| block[field].as_str().unwrap_or_default();
        let follows_text = std::mem::replace(&mut self.follows_text, text("type") == "text");
        match text("type") {
            // Adjacent text blocks of an answer are pieces of one text, for example of a cited
            // sentence.
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
            // Only the service that wrote this block can decrypt it.
            "redacted_thinking" => {}
            kind @ ("tool_use" | "server_tool_use") => self.add_call(kind, block)?,
            "tool_result" => {
                let mut result =
                    ollama::Message { role: "tool".into(), ..ollama::Message::default() };
                result.tool_call_id = text("tool_use_id").to_owned();
                result.tool_name =
                    calls.get(result.tool_call_id.as_str()).copied().unwrap_or_default().to_owned();
                tool_result(&block["content"], &mut result)?;
                if block["is_error"] == true {
                    result.content = error_text(&result.content);
                }
                self.results.push(result);
            }
            "web_search_tool_result" => {
                let mut result =
                    ollama::Message::text("tool", search_results_text(&block["content"]));
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

    /// Adds a tool call of the message.
    fn add_call(&mut self, kind: &str, block: &Value) -> Result<(), ApiError> {
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

/// Maps ids of calls to function names. The last call with an id wins.
fn function_names(messages: &[Message]) -> HashMap<&str, &str> {
    let blocks = messages.iter().filter_map(|m| m.content.as_array()).flatten();
    let calls =
        blocks.filter(|b| b["type"].as_str().is_some_and(|kind| kind.ends_with("tool_use")));
    calls.filter_map(|call| Some((call["id"].as_str()?, call["name"].as_str()?))).collect()
}

/// Adds the content of a tool result to `result`.
fn tool_result(content: &Value, result: &mut ollama::Message) -> Result<(), ApiError> {
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

/// Marks the text of a failed call as an error, because chat templates have no field for failures.
fn error_text(text: &str) -> String {
    match text.trim_start().get(..5).is_some_and(|start| start.eq_ignore_ascii_case("error")) {
        true => text.to_owned(),
        false => format!("Error: {text}").trim_end().to_owned(),
    }
}

/// Returns the results of a web search, one line each.
fn search_results_text(content: &Value) -> String {
    let line = |result: &Value| {
        let text = |field: &str| result[field].as_str().unwrap_or_default();
        format!("- {}: {}\n", text("title"), text("url"))
    };
    match content.as_array() {
        Some(results) => results.iter().map(line).collect(),
        None => format!("error: {}", content["error_code"].as_str().unwrap_or("unavailable")),
    }
}

/// Decodes the image of a block. Unsupported sources become [`Image::Unreadable`]; a missing source
/// is an error.
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
