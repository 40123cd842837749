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
    /// Of a `text`: the text.
    text: Option<String>,
    /// Of an `image` or a `document`: its data; of a `search_result`: its source.
    source: Option<AnthropicOrigin>,
    /// Of a `document` or a `search_result`: its title for the model.
    title: Option<String>,
    /// Of a `document`: its context for the model.
    context: Option<String>,
    /// Of a `thinking`: the reasoning.
    thinking: Option<String>,
    /// Of a `tool_use`: the id of the call.
    id: Option<String>,
    /// Of a `tool_use`: the name of the function.
    name: Option<String>,
    /// Of a `tool_use`: the arguments.
    input: Option<Map<String, Value>>,
    /// Of a `tool_result`: the id of the call.
    tool_use_id: Option<String>,
    /// Of a `tool_result`: text, or blocks of type `text`, `image`, `document` or `search_result`;
    /// of a `search_result`: blocks of type `text`.
    content: Option<AnthropicResult>,
    /// Of a `tool_result`: whether the call failed, which the model reads.
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
    /// Of a `text`: the text.
    text: Option<String>,
    /// Of an `image` or a `document`: its data; of a `search_result`: its source.
    source: Option<AnthropicOrigin>,
    /// Title for the model.
    title: Option<String>,
    /// Of a `document`: its context for the model.
    context: Option<String>,
    /// Of a `search_result`: blocks of type `text`.
    content: Option<Vec<AnthropicSystemPart>>,
    /// Of a web search: URL of the page.
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
    /// Of a document in base64: `text/plain`, or another text type.
    media_type: Option<String>,
    /// Bytes in base64, or the text.
    data: Option<String>,
    /// URL of the image.
    url: Option<String>,
    /// Of a `content`: text, or a list of text blocks.
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
