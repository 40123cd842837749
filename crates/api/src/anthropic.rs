//! The Anthropic dialect: messages, the counting of their tokens, and models.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::native::{ToolChoice, is_default};
use crate::{KeepAlive, decode, shape};

/// `POST /v1/messages`, and without `max_tokens` `POST /v1/messages/count_tokens`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct MessagesRequest {
    /// The model's name.
    pub model: String,
    /// Tokens to generate at most.
    pub max_tokens: i64,
    /// The conversation.
    pub messages: Vec<Message>,
    /// The system text, or a list of text blocks.
    #[serde(deserialize_with = "shape::anthropic_system")]
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::AnthropicSystem"))]
    pub system: Value,
    /// Piece by piece or in one object (the default).
    pub stream: bool,
    /// Temperature.
    pub temperature: Option<f64>,
    /// Nucleus.
    pub top_p: Option<f64>,
    /// Number of candidates.
    pub top_k: Option<i64>,
    /// Strings that end the answer.
    pub stop_sequences: Option<Vec<String>>,
    /// Functions that the model may call.
    pub tools: Vec<Tool>,
    /// Which of them it may or must call.
    pub tool_choice: Option<Choice>,
    /// Whether to think.
    pub thinking: Option<Thinking>,
    /// How hard to think, and the form of the answer.
    pub output_config: Option<OutputConfig>,
    /// The form of the answer in its older place.
    pub output_format: Option<OutputFormat>,
    /// Servers of tools: refused unless empty.
    pub mcp_servers: Vec<Value>,
    /// A container to run code in: refused.
    pub container: Option<Value>,
    /// A stored conversation: `create` stores none, and `continue` is a 404, on which clients send all messages.
    pub thread: Option<Thread>,
    /// Native options by name (Puna's addition).
    #[serde(deserialize_with = "shape::options")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<crate::schema::Options>"))]
    pub options: Option<Map<String, Value>>,
    /// How long the model stays afterwards (Puna's addition).
    pub keep_alive: Option<KeepAlive>,
    /// Whether a prompt that is too long may be cut (Puna's addition).
    pub truncate: Option<bool>,
    /// Whether older tokens make room when the context is full (Puna's addition).
    pub shift: Option<bool>,
    /// Answer with the rendered prompt instead of generating.
    #[serde(rename = "_debug_render_only")]
    pub debug_render_only: bool,
}

/// A conversation that the server stores.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "AnthropicThread"))]
#[serde(default)]
pub struct Thread {
    /// `create` or `continue`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The message that a `continue` follows.
    pub previous_message_id: Option<String>,
}

/// One message of a conversation.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "AnthropicMessage"))]
#[serde(default)]
pub struct Message {
    /// `user` or `assistant`.
    pub role: String,
    /// Text or a list of blocks.
    #[serde(deserialize_with = "shape::anthropic_content")]
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::AnthropicContent"))]
    pub content: Value,
}

/// A function that the model may call, or a tool that the API itself defines.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "AnthropicTool"))]
#[serde(default)]
pub struct Tool {
    /// `custom`, nothing, or the name and version of a tool of the API.
    #[serde(rename = "type")]
    pub kind: String,
    /// The function's name.
    pub name: String,
    /// What it does.
    pub description: String,
    /// JSON schema of its arguments.
    #[cfg_attr(feature = "schema", schemars(with = "Map<String, Value>"))]
    pub input_schema: Value,
    /// Whether the arguments of a forced tool call must match the schema exactly.
    pub strict: Option<bool>,
}

/// Which function the model may or must call, and how many of them.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Choice {
    /// Which.
    pub tool: ToolChoice,
    /// One at most.
    pub disable_parallel_tool_use: bool,
}

impl Serialize for Choice {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let kind = match &self.tool {
            ToolChoice::Auto => "auto",
            ToolChoice::None => "none",
            ToolChoice::Required => "any",
            // The dialect has no list of those that may be called.
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
        let value = shape::tool_choice(d)?;
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

/// Whether to think.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "AnthropicThinking"))]
#[serde(default)]
pub struct Thinking {
    /// `enabled`, `disabled`, or `adaptive`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Tokens that the thought may have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget_tokens: Option<i64>,
}

/// How hard to think, and the form of the answer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct OutputConfig {
    /// `low`, `medium`, `high`, `xhigh` or `max`.
    pub effort: String,
    /// The form of the answer.
    pub format: Option<OutputFormat>,
}

/// The form of an answer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct OutputFormat {
    /// `json_schema`; not Anthropic's are `text`, `json_object`, `regex`, `gbnf` and `lark`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Of a `json_schema`: the schema.
    #[cfg_attr(feature = "schema", schemars(with = "Map<String, Value>"))]
    pub schema: Value,
    /// Of a `regex`: the expression (Puna's addition).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pattern: Option<String>,
    /// Of a `gbnf` or `lark`: the grammar (Puna's addition).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grammar: Option<String>,
}

/// Token counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "AnthropicUsage"))]
#[serde(default)]
pub struct Usage {
    /// Prompt tokens that were not found in the cache.
    pub input_tokens: u64,
    /// Prompt tokens that were put into the cache at a price; always 0.
    pub cache_creation_input_tokens: u64,
    /// Prompt tokens that were found in the cache.
    pub cache_read_input_tokens: u64,
    /// Generated tokens.
    pub output_tokens: u64,
    /// Messages that were left out because the conversation was too long (Puna's addition).
    #[serde(skip_serializing_if = "is_default")]
    pub truncated_messages: u64,
    /// Tokens that were cut from the prompt or shifted out of the context (Puna's addition).
    #[serde(skip_serializing_if = "is_default")]
    pub truncated_tokens: u64,
}

/// The answer to `POST /v1/messages`.
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
    /// The model's name as the client wrote it.
    pub model: String,
    /// The answer.
    pub content: Vec<Block>,
    /// `end_turn`, `max_tokens`, `stop_sequence` or `tool_use`.
    pub stop_reason: Option<String>,
    /// The stop sequence that ended the answer.
    pub stop_sequence: Option<String>,
    /// Token counts.
    pub usage: Usage,
    /// The prompt, where it was asked for.
    #[serde(rename = "_debug_info", default, skip_serializing_if = "Option::is_none")]
    pub debug_info: Option<crate::native::DebugInfo>,
}

/// A part of an answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "AnthropicBlock"))]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Block {
    /// What the model thought.
    Thinking {
        /// The thoughts.
        thinking: String,
        /// Always empty.
        signature: String,
    },
    /// Text.
    Text {
        /// The text.
        text: String,
    },
    /// A function that the model wants to be called.
    ToolUse {
        /// The call's id.
        id: String,
        /// The function's name.
        name: String,
        /// Its arguments.
        input: Map<String, Value>,
    },
    /// A function that the server was to call itself.
    ServerToolUse {
        /// The call's id.
        id: String,
        /// The function's name.
        name: String,
        /// Its arguments.
        input: Map<String, Value>,
    },
    /// What came of a search on the web.
    WebSearchToolResult {
        /// The call's id.
        tool_use_id: String,
        /// Results or an error.
        content: Value,
    },
}

/// The answer to `POST /v1/messages/count_tokens`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CountResponse {
    /// Tokens of the prompt.
    pub input_tokens: u64,
}

/// A model of `GET /v1/models`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "AnthropicModel"))]
pub struct Model {
    /// `model`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Its name.
    pub id: String,
    /// The same, for people.
    pub display_name: String,
    /// When it was stored.
    pub created_at: String,
    /// Tokens of the context window of a request without options, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_input_tokens: Option<u64>,
    /// The same, by the name that other servers use (Puna's addition).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context_length: Option<u64>,
}

/// `GET /v1/models` of a client that names an `anthropic-version`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "AnthropicModelList"))]
pub struct ModelList {
    /// The newest first.
    pub data: Vec<Model>,
    /// Whether there are more behind these.
    pub has_more: bool,
    /// The first one's name.
    pub first_id: Option<String>,
    /// The last one's name.
    pub last_id: Option<String>,
}

/// The body of every failed request, and the event that ends a stream that broke.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "AnthropicErrorBody"))]
pub struct ErrorBody {
    /// `error`.
    #[serde(rename = "type")]
    pub kind: String,
    /// What went wrong.
    pub error: ErrorObject,
    /// `req_…`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
}

/// What went wrong.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "AnthropicErrorObject"))]
pub struct ErrorObject {
    /// `invalid_request_error`, `not_found_error`, `overloaded_error`, `api_error` …
    #[serde(rename = "type")]
    pub kind: String,
    /// In words.
    pub message: String,
    /// What programs act on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub details: Option<ErrorDetails>,
}

/// The part of an error that programs act on.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "AnthropicErrorDetails"))]
pub struct ErrorDetails {
    /// `thread_not_found`.
    pub error_code: String,
}

/// The error code of a thread that is not stored: clients send the whole conversation again.
pub const THREAD_NOT_FOUND: &str = "thread_not_found";

impl ErrorBody {
    /// An error of a status.
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

    /// The same with an error code.
    pub fn with_code(mut self, code: &str) -> Self {
        self.error.details = Some(ErrorDetails { error_code: code.to_owned() });
        self
    }
}
