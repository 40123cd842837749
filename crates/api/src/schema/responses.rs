//! OpenAI's responses.

use schemars::JsonSchema;
use serde_json::{Map, Value};

use crate::native::is_default;

/// A text, or a list of messages, calls and their results.
#[derive(JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
pub enum ResponsesInput {
    Text(String),
    Items(Vec<ResponsesItem>),
}

/// Something that was said, called or thought.
#[derive(JsonSchema)]
pub struct ResponsesItem {
    /// `message` (also where it is missing), `function_call`, `custom_tool_call`, `local_shell_call`, these with `_output` behind, `reasoning`, `item_reference`, `additional_tools`, or `web_search_call` and `image_generation_call`, which say nothing to the model.
    r#type: Option<String>,
    /// Of an `item_reference`: the id of an item of a response that is kept.
    id: Option<String>,
    /// Of a `message`: `system`, `developer`, `user` or `assistant`.
    role: Option<String>,
    /// Of a `message`: text or a list of parts.
    content: Option<ResponsesContent>,
    /// Of a call or its output: the call's id.
    call_id: Option<String>,
    /// Of a `function_call` or a `custom_tool_call`: the function's name.
    name: Option<String>,
    /// Of a `function_call`: the arguments as JSON text.
    arguments: Option<String>,
    /// Of a `custom_tool_call`: the text.
    input: Option<String>,
    /// Of a `local_shell_call`: `command` and what else belongs to it.
    action: Option<Map<String, Value>>,
    /// Of an output: text or a list of parts.
    output: Option<ResponsesContent>,
    /// Of a `reasoning`: the thoughts.
    summary: Option<Vec<ResponsesSummary>>,
    /// Of a `reasoning`: the thoughts, where there are none in `content` or `summary`.
    encrypted_content: Option<String>,
    /// Of a call: the namespace of the tool, if it is in one.
    namespace: Option<String>,
    /// Of `additional_tools`: more tools.
    tools: Option<Vec<ResponsesTool>>,
}

/// Text or a list of parts.
#[derive(JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
enum ResponsesContent {
    Text(String),
    Parts(Vec<ResponsesPart>),
}

/// A part of a message or a result.
#[derive(JsonSchema)]
pub struct ResponsesPart {
    /// `input_text`, `output_text`, `text`, `refusal` or `input_image`; `input_file` is refused.
    r#type: String,
    /// Of a text: the text.
    text: Option<String>,
    /// Of a `refusal`: its text.
    refusal: Option<String>,
    /// Of an `input_image`: `data:image/png;base64,…`.
    image_url: Option<String>,
}

/// A part of what was thought.
#[derive(JsonSchema)]
pub struct ResponsesSummary {
    /// The text.
    text: String,
}

/// A function that the model may call, or a group of them.
#[derive(JsonSchema)]
pub struct ResponsesTool {
    /// `function`, `namespace`, `custom` or `local_shell`; `web_search`, `image_generation` and `tool_search` are left out, other tools of the service refused.
    r#type: String,
    /// The function's name, or that of the group, which comes before the names of its functions.
    name: Option<String>,
    /// What it does.
    description: Option<String>,
    /// JSON Schema of its arguments.
    parameters: Option<Map<String, Value>>,
    /// Handed to the template; `true` also refuses to demand a call with a `oneOf` whose branches a text may fit at once.
    strict: Option<bool>,
    /// Of a `custom`: the form of its text; a grammar becomes part of the description.
    format: Option<Map<String, Value>>,
    /// Of a `namespace`: its functions.
    tools: Option<Vec<ResponsesFunction>>,
}

/// A function of a group.
#[derive(JsonSchema)]
pub struct ResponsesFunction {
    /// `function` (also where it is missing) or `custom`.
    r#type: Option<String>,
    /// Its name.
    name: String,
    /// What it does.
    description: Option<String>,
    /// JSON Schema of its arguments.
    parameters: Option<Map<String, Value>>,
    /// Handed to the template; `true` also refuses to demand a call with a `oneOf` whose branches a text may fit at once.
    strict: Option<bool>,
    /// Of a `custom`: the form of its text.
    format: Option<Map<String, Value>>,
}

/// The form of a response.
#[derive(JsonSchema)]
pub struct ResponsesFormat {
    /// `text`, `json_object` or `json_schema`; not OpenAI's are `regex`, `gbnf` and `lark`.
    r#type: Option<String>,
    /// A label, repeated in the answer.
    name: Option<String>,
    /// Repeated in the answer.
    description: Option<String>,
    /// Of a `json_schema`: the schema.
    schema: Option<Map<String, Value>>,
    /// Repeated in the answer: a schema is always kept; `true` also refuses a `oneOf` whose branches a text may fit at once.
    strict: Option<bool>,
    /// Of a `regex`: the expression (Puna's addition).
    pattern: Option<String>,
    /// Of a `gbnf` or `lark`: the grammar (Puna's addition).
    grammar: Option<String>,
}

/// A response of OpenAI's newer dialect: what came of a request, and most of the request.
#[derive(JsonSchema)]
pub struct Response {
    /// `resp_…`.
    id: String,
    /// `response`.
    object: String,
    /// When it was begun, in seconds since 1970.
    created_at: i64,
    /// When it was done.
    completed_at: Option<i64>,
    /// `completed`, `incomplete`, `failed` or `in_progress`.
    status: String,
    /// Why it is incomplete: `{"reason": "max_output_tokens"}`.
    incomplete_details: Option<Map<String, Value>>,
    /// What went wrong: `code` and `message`.
    error: Option<Map<String, Value>>,
    /// The model's name as the client wrote it.
    model: String,
    /// Thoughts (`reasoning`), messages (`message`) and calls (`function_call`, `custom_tool_call`, `local_shell_call`) in their order.
    output: Vec<ResponseItem>,
    /// Token counts.
    usage: Option<ResponseUsage>,
    /// The response that this one goes on from.
    previous_response_id: Option<String>,
    /// Whether it is kept.
    store: bool,
    /// The prompt, where it was asked for.
    #[serde(rename = "_debug_info", default, skip_serializing_if = "Option::is_none")]
    debug_info: Option<crate::native::DebugInfo>,
}

/// A part of a response.
#[derive(JsonSchema)]
pub struct ResponseItem {
    /// Its id.
    id: String,
    /// `reasoning`, `message`, `function_call`, `custom_tool_call` or `local_shell_call`.
    r#type: String,
    /// Of a `message`: parts of type `output_text`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    content: Option<Vec<Value>>,
    /// Of a call: its id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    call_id: Option<String>,
    /// Of a `function_call` or a `custom_tool_call`: the function's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    /// Of a `function_call`: arguments as JSON text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    arguments: Option<String>,
    /// Of a `custom_tool_call`: the text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    input: Option<String>,
    /// Of a `local_shell_call`: what to run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    action: Option<Map<String, Value>>,
    /// Of a `reasoning`: the thoughts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    summary: Option<Vec<Value>>,
}

/// Token counts of a response.
#[derive(JsonSchema)]
pub struct ResponseUsage {
    /// Prompt tokens, those found in the cache included.
    input_tokens: u64,
    /// Generated tokens.
    output_tokens: u64,
    /// Both.
    total_tokens: u64,
    /// `cached_tokens`.
    input_tokens_details: Map<String, Value>,
    /// `reasoning_tokens`.
    output_tokens_details: Map<String, Value>,
    /// Messages that were left out because the conversation was too long (Puna's addition).
    #[serde(default, skip_serializing_if = "is_default")]
    truncated_messages: u64,
    /// Tokens that were cut from the input or shifted out of the context (Puna's addition).
    #[serde(default, skip_serializing_if = "is_default")]
    truncated_tokens: u64,
}

/// An event of a response: besides these fields those that OpenAI documents for its type.
#[derive(JsonSchema)]
pub struct ResponseEvent {
    /// `response.created`, `response.output_text.delta`, `response.completed`, `response.failed` …
    r#type: String,
    /// Its number, from 0.
    sequence_number: u64,
    /// Checked keywords that the answer does not keep to (Puna's addition); in the last event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    schema_violations: Option<Vec<String>>,
}
