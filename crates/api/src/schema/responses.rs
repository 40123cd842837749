//! Input, tools and responses of OpenAI's Responses API.

use schemars::JsonSchema;
use serde_json::{Map, Value};

use crate::ollama::is_default;

/// A text, or a list of messages, calls and their results.
#[derive(JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
pub enum ResponsesInput {
    Text(String),
    Items(Vec<ResponsesItem>),
}

/// Item of the input: a message, a call, a result or reasoning.
#[derive(JsonSchema)]
pub struct ResponsesItem {
    /// `message` (the default), `function_call`, `custom_tool_call`, `local_shell_call`, these with
    /// the suffix `_output`, `reasoning`, `item_reference`, `additional_tools`; `web_search_call`
    /// and `image_generation_call` have no effect.
    r#type: Option<String>,
    /// For `item_reference`: the id of an item of a stored response.
    id: Option<String>,
    /// For `message`: `system`, `developer`, `user` or `assistant`.
    role: Option<String>,
    /// For `message`: text, or a list of parts.
    content: Option<ResponsesContent>,
    /// For calls and outputs: the id of the call.
    call_id: Option<String>,
    /// For `function_call` or a `custom_tool_call`: the name of the function.
    name: Option<String>,
    /// For `function_call`: the arguments as JSON text.
    arguments: Option<String>,
    /// For `custom_tool_call`: the input text.
    input: Option<String>,
    /// For `local_shell_call`: `command` and its settings.
    action: Option<Map<String, Value>>,
    /// For outputs: text, or a list of parts.
    output: Option<ResponsesContent>,
    /// For `reasoning`: the reasoning.
    summary: Option<Vec<ResponsesSummary>>,
    /// For `reasoning`: the reasoning, if `content` and `summary` have none.
    encrypted_content: Option<String>,
    /// For calls: the namespace of the tool, if any.
    namespace: Option<String>,
    /// Of `additional_tools`: further tools.
    tools: Option<Vec<ResponsesTool>>,
}

/// Text, or a list of parts.
#[derive(JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
enum ResponsesContent {
    Text(String),
    Parts(Vec<ResponsesPart>),
}

/// Part of a message or of a result.
#[derive(JsonSchema)]
pub struct ResponsesPart {
    /// `input_text`, `output_text`, `text`, `refusal` or `input_image`; `input_file` is refused.
    r#type: String,
    /// For text parts: the text.
    text: Option<String>,
    /// For `refusal`: its text.
    refusal: Option<String>,
    /// For `input_image`: `data:image/png;base64,…`.
    image_url: Option<String>,
}

/// Part of the reasoning.
#[derive(JsonSchema)]
pub struct ResponsesSummary {
    /// The text.
    text: String,
}

/// Function that the model may call, or a namespace of functions.
#[derive(JsonSchema)]
pub struct ResponsesTool {
    /// `function`, `namespace`, `custom` or `local_shell`. `web_search`, `image_generation` and
    /// `tool_search` are ignored; other tools of the service are errors.
    r#type: String,
    /// Name of the function, or of the namespace, which prefixes the names of its functions.
    name: Option<String>,
    /// Purpose of the function.
    description: Option<String>,
    /// JSON Schema of the arguments.
    parameters: Option<Map<String, Value>>,
    /// Passed to the template; `true` also refuses a forced call with overlapping `oneOf` branches.
    strict: Option<bool>,
    /// For `custom`: format of the input text; a grammar becomes part of the description.
    format: Option<Map<String, Value>>,
    /// For `namespace`: its functions.
    tools: Option<Vec<ResponsesFunction>>,
}

/// Function of a namespace.
#[derive(JsonSchema)]
pub struct ResponsesFunction {
    /// `function` (the default) or `custom`.
    r#type: Option<String>,
    /// Name of the function.
    name: String,
    /// Purpose of the function.
    description: Option<String>,
    /// JSON Schema of the arguments.
    parameters: Option<Map<String, Value>>,
    /// Passed to the template; `true` also refuses a forced call with overlapping `oneOf` branches.
    strict: Option<bool>,
    /// For `custom`: format of the input text.
    format: Option<Map<String, Value>>,
}

/// Format of a response.
#[derive(JsonSchema)]
pub struct ResponsesFormat {
    /// `text`, `json_object` or `json_schema`; not in OpenAI's API: `regex`, `gbnf` and `lark`.
    r#type: Option<String>,
    /// Label, repeated in the response.
    name: Option<String>,
    /// Repeated in the response.
    description: Option<String>,
    /// For `json_schema`: the schema.
    schema: Option<Map<String, Value>>,
    /// Repeated in the response. `true` also refuses a `oneOf` with overlapping branches.
    strict: Option<bool>,
    /// For `regex`: the expression (Puna's addition).
    pattern: Option<String>,
    /// For `gbnf` or `lark`: the grammar (Puna's addition).
    grammar: Option<String>,
}

/// Response of OpenAI's Responses API: the result, and most of the request.
#[derive(JsonSchema)]
pub struct Response {
    /// `resp_…`.
    id: String,
    /// `response`.
    object: String,
    /// When the response was started, in seconds since 1970.
    created_at: i64,
    /// When the response was completed.
    completed_at: Option<i64>,
    /// `completed`, `incomplete`, `failed` or `in_progress`.
    status: String,
    /// Why the response is incomplete: `{"reason": "max_output_tokens"}`.
    incomplete_details: Option<Map<String, Value>>,
    /// The error: `code` and `message`.
    error: Option<Map<String, Value>>,
    /// Name of the model as in the request.
    model: String,
    /// Items in order: `reasoning`, `message`, `function_call`, `custom_tool_call`,
    /// `local_shell_call`.
    output: Vec<ResponseItem>,
    /// Token counts.
    usage: Option<ResponseUsage>,
    /// Id of the response that this response continues.
    previous_response_id: Option<String>,
    /// Whether the response is stored.
    store: bool,
    /// The rendered prompt, if requested.
    #[serde(rename = "_debug_info", default, skip_serializing_if = "Option::is_none")]
    debug_info: Option<crate::ollama::DebugInfo>,
}

/// Item of a response.
#[derive(JsonSchema)]
pub struct ResponseItem {
    /// Id of the item.
    id: String,
    /// `reasoning`, `message`, `function_call`, `custom_tool_call` or `local_shell_call`.
    r#type: String,
    /// For `message`: parts of type `output_text`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    content: Option<Vec<Value>>,
    /// For calls: the id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    call_id: Option<String>,
    /// For `function_call` or a `custom_tool_call`: the name of the function.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    /// For `function_call`: the arguments as JSON text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    arguments: Option<String>,
    /// For `custom_tool_call`: the input text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    input: Option<String>,
    /// For `local_shell_call`: the command to run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    action: Option<Map<String, Value>>,
    /// For `reasoning`: the reasoning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    summary: Option<Vec<Value>>,
}

/// Token counts of a response.
#[derive(JsonSchema)]
pub struct ResponseUsage {
    /// Prompt tokens, including cached ones.
    input_tokens: u64,
    /// Generated tokens.
    output_tokens: u64,
    /// Input and output tokens.
    total_tokens: u64,
    /// `cached_tokens`.
    input_tokens_details: Map<String, Value>,
    /// `reasoning_tokens`.
    output_tokens_details: Map<String, Value>,
    /// Messages dropped because the conversation was too long (Puna's addition).
    #[serde(default, skip_serializing_if = "is_default")]
    truncated_messages: u64,
    /// Tokens truncated from the input or shifted out of the context (Puna's addition).
    #[serde(default, skip_serializing_if = "is_default")]
    truncated_tokens: u64,
}

/// Event of a response, with further fields that OpenAI documents for its type.
#[derive(JsonSchema)]
pub struct ResponseEvent {
    /// `response.created`, `response.output_text.delta`, `response.completed`, `response.failed` …
    r#type: String,
    /// Index of the event, from 0.
    sequence_number: u64,
    /// Schema keywords that the answer violates (Puna's addition); in the last event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    schema_violations: Option<Vec<String>>,
}
