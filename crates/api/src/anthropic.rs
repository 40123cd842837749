//! Anthropic's dialect: messages, token counts of messages, and models.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::ollama::{ToolChoice, is_default};
use crate::{KeepAlive, decode, json_shape};

/// `POST /v1/messages`, and without `max_tokens` `POST /v1/messages/count_tokens`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct MessagesRequest {
    /// Name of the model.
    pub model: String,
    /// Largest number of generated tokens.
    pub max_tokens: i64,
    /// The conversation.
    pub messages: Vec<Message>,
    /// System prompt, or a list of text blocks.
    #[serde(deserialize_with = "json_shape::anthropic_system")]
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::AnthropicSystem"))]
    pub system: Value,
    /// Stream the answer as events. Default: one object.
    pub stream: bool,
    /// Sampling temperature.
    pub temperature: Option<f64>,
    /// Nucleus sampling: total probability of the candidates.
    pub top_p: Option<f64>,
    /// Number of candidates.
    pub top_k: Option<i64>,
    /// Strings that end the answer.
    pub stop_sequences: Option<Vec<String>>,
    /// Functions that the model may call.
    pub tools: Vec<Tool>,
    /// Which functions the model may or must call.
    pub tool_choice: Option<Choice>,
    /// Whether the model reasons before it answers.
    pub thinking: Option<Thinking>,
    /// Reasoning effort, and format of the answer.
    pub output_config: Option<OutputConfig>,
    /// Format of the answer, in its older place.
    pub output_format: Option<OutputFormat>,
    /// MCP servers: refused unless empty.
    pub mcp_servers: Vec<Value>,
    /// A container to run code in: refused.
    pub container: Option<Value>,
    /// A stored conversation. `create` stores nothing; `continue` is a 404: clients send all
    /// messages.
    pub thread: Option<Thread>,
    /// Native options by name (Puna's addition).
    #[serde(deserialize_with = "json_shape::options")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<crate::schema::Options>"))]
    pub options: Option<Map<String, Value>>,
    /// How long the model stays loaded after the request (Puna's addition).
    pub keep_alive: Option<KeepAlive>,
    /// Whether a prompt that is too long may be truncated (Puna's addition).
    pub truncate: Option<bool>,
    /// Whether the context shifts when it is full: its older half is dropped (Puna's addition).
    pub shift: Option<bool>,
    /// Return the rendered prompt instead of generating.
    #[serde(rename = "_debug_render_only")]
    pub debug_render_only: bool,
    /// Separates the prefix cache further within one client; as in vLLM (Puna's addition).
    pub cache_salt: Option<String>,
}

/// Conversation that the server stores.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "AnthropicThread"))]
#[serde(default)]
pub struct Thread {
    /// `create` or `continue`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The message that `continue` follows.
    pub previous_message_id: Option<String>,
}

/// Message of a conversation.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "AnthropicMessage"))]
#[serde(default)]
pub struct Message {
    /// `user` or `assistant`.
    pub role: String,
    /// Text or a list of blocks.
    #[serde(deserialize_with = "json_shape::anthropic_content")]
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::AnthropicContent"))]
    pub content: Value,
}

/// Function that the model may call, or a tool that the API itself defines.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "AnthropicTool"))]
#[serde(default)]
pub struct Tool {
    /// `custom`, absent, or the name and version of a tool of the API.
    #[serde(rename = "type")]
    pub kind: String,
    /// Name of the function.
    pub name: String,
    /// Purpose of the function.
    pub description: String,
    /// JSON Schema of the arguments.
    #[cfg_attr(feature = "schema", schemars(with = "Map<String, Value>"))]
    pub input_schema: Value,
    /// Whether the arguments of a forced tool call must match the schema exactly.
    pub strict: Option<bool>,
}

/// Which functions the model may or must call, and whether it may call several.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Choice {
    /// The tool choice.
    pub tool: ToolChoice,
    /// At most one call.
    pub disable_parallel_tool_use: bool,
}

impl Serialize for Choice {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let kind = match &self.tool {
            ToolChoice::Auto => "auto",
            ToolChoice::None => "none",
            ToolChoice::Required => "any",
            // The dialect has no list of allowed functions.
            ToolChoice::Allowed { required, .. } => {
                if *required {
                    "any"
                } else {
                    "auto"
                }
            }
            ToolChoice::Named(_) => "tool",
        };
        let mut object = Map::from_iter([("type".to_owned(), Value::from(kind))]);
        if let ToolChoice::Named(name) = &self.tool {
            object.insert("name".into(), name.as_str().into());
        }
        if self.disable_parallel_tool_use {
            object.insert("disable_parallel_tool_use".into(), true.into());
        }
        object.serialize(s)
    }
}

impl<'de> Deserialize<'de> for Choice {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let value = json_shape::tool_choice(d)?;
        let disable_parallel_tool_use = match &value["disable_parallel_tool_use"] {
            Value::Null => false,
            Value::Bool(one) => *one,
            other => {
                let got = decode::kind(other);
                return Err(serde::de::Error::custom(format!(
                    "tool_choice.disable_parallel_tool_use must be true or false, but is of type {got}"
                )));
            }
        };
        let name = value["name"].as_str().filter(|name| !name.is_empty());
        let tool = match (value["type"].as_str(), name) {
            (Some("auto"), _) => ToolChoice::Auto,
            (Some("any"), _) => ToolChoice::Required,
            (Some("none"), _) => ToolChoice::None,
            (Some("tool"), Some(name)) => ToolChoice::Named(name.to_owned()),
            _ => {
                return Err(serde::de::Error::custom(format_args!(
                    "invalid tool_choice: {value} (must be an object of type \"auto\", \"any\", \"none\", or \"tool\" with a name)"
                )));
            }
        };
        Ok(Self { tool, disable_parallel_tool_use })
    }
}

/// Whether the model reasons before it answers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "AnthropicThinking"))]
#[serde(default)]
pub struct Thinking {
    /// `enabled`, `disabled`, or `adaptive`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Largest number of reasoning tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget_tokens: Option<i64>,
}

/// Reasoning effort, and format of the answer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct OutputConfig {
    /// `low`, `medium`, `high`, `xhigh` or `max`.
    pub effort: String,
    /// Format of the answer.
    pub format: Option<OutputFormat>,
}

/// Format of an answer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct OutputFormat {
    /// `json_schema`; not in Anthropic's API: `text`, `json_object`, `regex`, `gbnf` and `lark`.
    #[serde(rename = "type")]
    pub kind: String,
    /// For `json_schema`: the schema.
    #[cfg_attr(feature = "schema", schemars(with = "Map<String, Value>"))]
    pub schema: Value,
    /// For `regex`: the regular expression (Puna's addition).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pattern: Option<String>,
    /// For `gbnf` or `lark`: the grammar (Puna's addition).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grammar: Option<String>,
}

/// Token counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "AnthropicUsage"))]
#[serde(default)]
pub struct Usage {
    /// Prompt tokens that were not in the cache.
    pub input_tokens: u64,
    /// Prompt tokens charged for cache writes; always 0.
    pub cache_creation_input_tokens: u64,
    /// Prompt tokens that were in the cache.
    pub cache_read_input_tokens: u64,
    /// Generated tokens.
    pub output_tokens: u64,
    /// Messages dropped because the conversation was too long (Puna's addition).
    #[serde(skip_serializing_if = "is_default")]
    pub truncated_messages: u64,
    /// Tokens truncated from the prompt or shifted out of the context (Puna's addition).
    #[serde(skip_serializing_if = "is_default")]
    pub truncated_tokens: u64,
}

/// Response of `POST /v1/messages`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MessagesResponse {
    /// `msg_…`.
    pub id: String,
    /// `message`.
    #[serde(rename = "type")]
    pub kind: String,
    /// `assistant`.
    pub role: String,
    /// Name of the model as in the request.
    pub model: String,
    /// Content blocks of the answer.
    pub content: Vec<Block>,
    /// `end_turn`, `max_tokens`, `stop_sequence` or `tool_use`.
    pub stop_reason: Option<String>,
    /// The stop sequence that ended the answer.
    pub stop_sequence: Option<String>,
    /// Token counts.
    pub usage: Usage,
    /// The rendered prompt, if requested.
    #[serde(rename = "_debug_info", default, skip_serializing_if = "Option::is_none")]
    pub debug_info: Option<crate::ollama::DebugInfo>,
}

/// Content block of an answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "AnthropicBlock"))]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Block {
    /// Reasoning of the model.
    Thinking {
        /// Reasoning text.
        thinking: String,
        /// Always empty.
        signature: String,
    },
    /// Text.
    Text {
        /// The text.
        text: String,
    },
    /// Function call of the model.
    ToolUse {
        /// Id of the call.
        id: String,
        /// Name of the function.
        name: String,
        /// Arguments.
        input: Map<String, Value>,
    },
    /// Call of a tool that the service runs itself.
    ServerToolUse {
        /// Id of the call.
        id: String,
        /// Name of the function.
        name: String,
        /// Arguments.
        input: Map<String, Value>,
    },
    /// Result of a web search.
    WebSearchToolResult {
        /// Id of the call.
        tool_use_id: String,
        /// Results or an error.
        content: Value,
    },
}

/// Response of `POST /v1/messages/count_tokens`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CountResponse {
    /// Tokens of the prompt.
    pub input_tokens: u64,
}

/// Model in `GET /v1/models`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "AnthropicModel"))]
pub struct Model {
    /// `model`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Name of the model.
    pub id: String,
    /// Name for people; the same text.
    pub display_name: String,
    /// When the model was stored.
    pub created_at: String,
    /// Context length in tokens of a request without options, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_input_tokens: Option<u64>,
    /// `max_input_tokens`, as other servers name it (Puna's addition).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context_length: Option<u64>,
}

/// Response of `GET /v1/models` for a client that sends `anthropic-version`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "AnthropicModelList"))]
pub struct ModelList {
    /// Models, newest first.
    pub data: Vec<Model>,
    /// Whether there are more models.
    pub has_more: bool,
    /// Name of the first model.
    pub first_id: Option<String>,
    /// Name of the last model.
    pub last_id: Option<String>,
}

/// Body of an error response, and last event of a stream that failed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "AnthropicErrorBody"))]
pub struct ErrorBody {
    /// `error`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The error.
    pub error: ErrorObject,
    /// `req_…`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
}

/// Error of a request.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "AnthropicErrorObject"))]
pub struct ErrorObject {
    /// `invalid_request_error`, `not_found_error`, `overloaded_error`, `api_error` …
    #[serde(rename = "type")]
    pub kind: String,
    /// Message for people.
    pub message: String,
    /// Details for programs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub details: Option<ErrorDetails>,
}

/// Details of an error for programs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "AnthropicErrorDetails"))]
pub struct ErrorDetails {
    /// `thread_not_found`.
    pub error_code: String,
}

/// Error code for a conversation that is not stored. Clients then send the whole conversation
/// again.
pub const THREAD_NOT_FOUND: &str = "thread_not_found";

impl ErrorBody {
    /// Makes the error for an HTTP status.
    pub fn new(status: u16, message: impl Into<String>, request_id: Option<String>) -> Self {
        let kind = match status {
            400 => "invalid_request_error",
            401 => "authentication_error",
            403 => "permission_error",
            404 => "not_found_error",
            413 => "request_too_large",
            429 => "rate_limit_error",
            503 | 529 => "overloaded_error",
            _ => "api_error",
        };
        let error = ErrorObject { kind: kind.into(), message: message.into(), details: None };
        Self { kind: "error".into(), error, request_id }
    }

    /// Adds an error code.
    pub fn with_code(mut self, code: &str) -> Self {
        self.error.details = Some(ErrorDetails { error_code: code.to_owned() });
        self
    }
}
