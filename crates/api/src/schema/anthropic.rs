//! Message content and events of Anthropic's dialect.

use schemars::JsonSchema;
use serde_json::{Map, Value};

/// Text, or a list of blocks.
#[derive(JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
pub enum AnthropicContent {
    Text(String),
    Blocks(Vec<AnthropicPart>),
}

/// Block of a message.
#[derive(JsonSchema)]
pub struct AnthropicPart {
    /// `text`, `image`, `document`, `search_result`, `thinking`, `redacted_thinking`, `tool_use`,
    /// `tool_result`, `server_tool_use` or `web_search_tool_result`.
    r#type: String,
    /// For `text`: the text.
    text: Option<String>,
    /// For `image` or a `document`: its data; for `search_result`: its source.
    source: Option<AnthropicOrigin>,
    /// For `document` or a `search_result`: its title for the model.
    title: Option<String>,
    /// For `document`: its context for the model.
    context: Option<String>,
    /// For `thinking`: the reasoning.
    thinking: Option<String>,
    /// For `tool_use`: the id of the call.
    id: Option<String>,
    /// For `tool_use`: the name of the function.
    name: Option<String>,
    /// For `tool_use`: the arguments.
    input: Option<Map<String, Value>>,
    /// For `tool_result`: the id of the call.
    tool_use_id: Option<String>,
    /// For `tool_result`: text, or blocks of type `text`, `image`, `document` or `search_result`;
    /// of a `search_result`: blocks of type `text`.
    content: Option<AnthropicResult>,
    /// For `tool_result`: whether the call failed; the model reads it.
    is_error: Option<bool>,
}

/// Result of a call.
#[derive(JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
enum AnthropicResult {
    Text(String),
    Blocks(Vec<AnthropicResultPart>),
    Error(AnthropicSearchError),
}

/// Block of a result.
#[derive(JsonSchema)]
struct AnthropicResultPart {
    /// `text`, `image`, `document` or `search_result`; of a web search `web_search_result`.
    r#type: String,
    /// For `text`: the text.
    text: Option<String>,
    /// For `image` or a `document`: its data; for `search_result`: its source.
    source: Option<AnthropicOrigin>,
    /// Title for the model.
    title: Option<String>,
    /// For `document`: its context for the model.
    context: Option<String>,
    /// For `search_result`: blocks of type `text`.
    content: Option<Vec<AnthropicSystemPart>>,
    /// For web search results: URL of the page.
    url: Option<String>,
}

/// Failed web search.
#[derive(JsonSchema)]
struct AnthropicSearchError {
    /// `web_search_tool_result_error`.
    r#type: String,
    /// Error code.
    error_code: String,
}

/// Data of a block, or its source.
#[derive(JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
enum AnthropicOrigin {
    Bytes(AnthropicSource),
    Place(String),
}

/// Data of an image or a document.
#[derive(JsonSchema)]
pub struct AnthropicSource {
    /// `base64`; for documents also `text` or `content`; for images also `url` if the server allows
    /// it.
    r#type: String,
    /// For documents in base64: `text/plain`, or another text type.
    media_type: Option<String>,
    /// Bytes in base64, or the text.
    data: Option<String>,
    /// URL of the image.
    url: Option<String>,
    /// For `content`: text, or a list of text blocks.
    content: Option<AnthropicSystem>,
}

/// System prompt, or a list of text blocks.
#[derive(JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
pub enum AnthropicSystem {
    Text(String),
    Blocks(Vec<AnthropicSystemPart>),
}

/// Block of a system prompt.
#[derive(JsonSchema)]
pub struct AnthropicSystemPart {
    /// `text`.
    r#type: String,
    /// The text.
    text: String,
}

/// Event of a message, with further fields that Anthropic documents for its type.
#[derive(JsonSchema)]
pub struct MessageEvent {
    /// `message_start`, `ping`, `content_block_start`, `content_block_delta`, `content_block_stop`,
    /// `message_delta`, `message_stop` or `error`.
    r#type: String,
    /// Schema keywords that the answer violates (Puna's addition); in the last event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    schema_violations: Option<Vec<String>>,
}
