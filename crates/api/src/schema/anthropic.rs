//! Messages of Anthropic's dialect.

use schemars::JsonSchema;
use serde_json::{Map, Value};

/// Text or a list of blocks.
#[derive(JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
pub enum AnthropicContent {
    Text(String),
    Blocks(Vec<AnthropicPart>),
}

/// A block of a message.
#[derive(JsonSchema)]
pub struct AnthropicPart {
    /// `text`, `image`, `document`, `search_result`, `thinking`, `redacted_thinking`, `tool_use`, `tool_result`, `server_tool_use` or `web_search_tool_result`.
    r#type: String,
    /// Of a `text`: the text.
    text: Option<String>,
    /// Of an `image` or a `document`: what is in it; of a `search_result`: where it was found.
    source: Option<AnthropicOrigin>,
    /// Of a `document` or a `search_result`: its title, for the model.
    title: Option<String>,
    /// Of a `document`: what it is about, for the model.
    context: Option<String>,
    /// Of a `thinking`: the thoughts.
    thinking: Option<String>,
    /// Of a `tool_use`: the call's id.
    id: Option<String>,
    /// Of a `tool_use`: the function's name.
    name: Option<String>,
    /// Of a `tool_use`: the arguments.
    input: Option<Map<String, Value>>,
    /// Of a `tool_result`: the id of the call that it answers.
    tool_use_id: Option<String>,
    /// Of a `tool_result`: text, or a list of blocks of type `text`, `image`, `document` or `search_result`; of a `search_result`: blocks of type `text`.
    content: Option<AnthropicResult>,
    /// Of a `tool_result`: whether the call failed, which the model is told.
    is_error: Option<bool>,
}

/// What came of a call.
#[derive(JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
enum AnthropicResult {
    Text(String),
    Blocks(Vec<AnthropicResultPart>),
    Error(AnthropicSearchError),
}

/// A block of a result.
#[derive(JsonSchema)]
struct AnthropicResultPart {
    /// `text`, `image`, `document` or `search_result`; of a search on the web `web_search_result`.
    r#type: String,
    /// Of a `text`: the text.
    text: Option<String>,
    /// Of an `image` or a `document`: what is in it; of a `search_result`: where it was found.
    source: Option<AnthropicOrigin>,
    /// Its title, for the model.
    title: Option<String>,
    /// Of a `document`: what it is about, for the model.
    context: Option<String>,
    /// Of a `search_result`: blocks of type `text`.
    content: Option<Vec<AnthropicSystemPart>>,
    /// Of a search: the page's address.
    url: Option<String>,
}

/// A search that failed.
#[derive(JsonSchema)]
struct AnthropicSearchError {
    /// `web_search_tool_result_error`.
    r#type: String,
    /// Why.
    error_code: String,
}

/// What is in something, or where it was found.
#[derive(JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
enum AnthropicOrigin {
    Bytes(AnthropicSource),
    Place(String),
}

/// What is in an image or a document.
#[derive(JsonSchema)]
pub struct AnthropicSource {
    /// `base64`, of a document also `text` or `content`, of an image also `url`, where the server allows that.
    r#type: String,
    /// Of a document in base64: `text/plain`, or another kind of text.
    media_type: Option<String>,
    /// The bytes in base64, or the text.
    data: Option<String>,
    /// The image's address.
    url: Option<String>,
    /// Of a `content`: text, or a list of text blocks.
    content: Option<AnthropicSystem>,
}

/// A system text, or a list of text blocks.
#[derive(JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
pub enum AnthropicSystem {
    Text(String),
    Blocks(Vec<AnthropicSystemPart>),
}

/// A block of a system text.
#[derive(JsonSchema)]
pub struct AnthropicSystemPart {
    /// `text`.
    r#type: String,
    /// The text.
    text: String,
}

/// An event of a message: besides its type the fields that Anthropic documents for it.
#[derive(JsonSchema)]
pub struct MessageEvent {
    /// `message_start`, `ping`, `content_block_start`, `content_block_delta`, `content_block_stop`, `message_delta`, `message_stop` or `error`.
    r#type: String,
    /// Checked keywords that the answer does not keep to (Puna's addition); in the last event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    schema_violations: Option<Vec<String>>,
}
