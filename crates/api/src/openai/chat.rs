//! Chat completions.

use serde::{Deserialize, Deserializer, Serialize, de};
use serde_json::{Map, Value};

use super::{PromptLogprobs, Usage};
use crate::ollama::{Logprob, Tool, ToolChoice, is_default};
use crate::{KeepAlive, json_shape};

/// `POST /v1/chat/completions`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(transform = crate::schema::with_options))]
#[serde(default)]
pub struct ChatCompletionRequest {
    /// Name of the model.
    pub model: String,
    /// The conversation.
    pub messages: Vec<Message>,
    /// Stream the answer as events. Default: one object.
    pub stream: bool,
    /// Additional content of a stream.
    pub stream_options: Option<StreamOptions>,
    /// Largest number of generated tokens.
    pub max_tokens: Option<i64>,
    /// Newer name of `max_tokens`.
    pub max_completion_tokens: Option<i64>,
    /// Seed of sampling.
    pub seed: Option<i64>,
    /// A string or a list of strings that end the answer.
    #[cfg_attr(feature = "schema", schemars(with = "Option<crate::schema::Stop>"))]
    pub stop: Option<Value>,
    /// Sampling temperature. Default: 1.
    pub temperature: Option<f64>,
    /// Nucleus sampling: total probability of the candidates. Default: 1.
    pub top_p: Option<f64>,
    /// Penalty per occurrence of a token.
    pub frequency_penalty: Option<f64>,
    /// Penalty of tokens that occurred.
    pub presence_penalty: Option<f64>,
    /// Format of the answer: text, a JSON object, or a JSON Schema.
    pub response_format: Option<ResponseFormat>,
    /// Functions that the model may call.
    pub tools: Vec<Tool>,
    /// Which functions the model may or must call.
    pub tool_choice: Option<ToolChoice>,
    /// Whether the model may call several functions at once.
    pub parallel_tool_calls: Option<bool>,
    /// Reasoning effort.
    pub reasoning: Option<Reasoning>,
    /// `reasoning.effort`, in its older place.
    pub reasoning_effort: Option<String>,
    /// Whether the model reasons, as some servers name it.
    pub enable_thinking: Option<bool>,
    /// Whether the model reasons, in Anthropic's form: `{"type": "enabled"}` or
    /// `{"type": "disabled"}`.
    pub thinking: Option<ThinkingSwitch>,
    /// Variables of the template, as for vLLM; `enable_thinking` or `thinking` sets reasoning.
    pub chat_template_kwargs: Option<Map<String, Value>>,
    /// Return log-probabilities.
    pub logprobs: Option<bool>,
    /// Number of alternatives for each log-probability.
    pub top_logprobs: i64,
    /// Return log-probabilities of the prompt's tokens, with this many alternatives, like vLLM.
    pub prompt_logprobs: Option<i64>,
    /// Number of answers.
    pub n: Option<i64>,
    /// Values added to the logits of tokens, by token id.
    #[cfg_attr(
        feature = "schema",
        schemars(with = "Option<std::collections::BTreeMap<String, f64>>")
    )]
    pub logit_bias: Option<Map<String, Value>>,
    /// Native options by name (Puna's addition). Options among the request's fields have priority.
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

/// Message of a conversation.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "OpenAiMessage"))]
#[serde(default)]
pub struct Message {
    /// `system`, `user`, `assistant`, `tool`, `developer`.
    pub role: String,
    /// Text, or a list of parts. May be absent if there are tool calls.
    #[serde(deserialize_with = "json_shape::openai_content")]
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::OpenAiContent"))]
    pub content: Value,
    /// Reasoning of the model.
    pub reasoning: String,
    /// `reasoning`, as other servers name it.
    pub reasoning_content: String,
    /// Why the model refused to answer, instead of the content.
    pub refusal: String,
    /// Function calls of the model.
    pub tool_calls: Vec<ToolCall>,
    /// In a `tool` message: the function that returned the result.
    pub name: String,
    /// In a `tool` message: the id of the call.
    pub tool_call_id: String,
}

/// Function call.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "OpenAiToolCall"))]
#[serde(default)]
pub struct ToolCall {
    /// Id of the call; absent in later pieces of a streamed call.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub id: String,
    /// Index of the call in the answer.
    pub index: i64,
    /// `function` or `custom`; absent if the id is.
    #[serde(rename = "type", skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// The function.
    #[serde(skip_serializing_if = "is_default")]
    pub function: ToolCallFunction,
    /// The custom tool, instead of a function.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub custom: Option<CustomCall>,
}

/// Name and input of a custom tool's call.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct CustomCall {
    /// Name of the tool.
    pub name: String,
    /// Input text of the tool.
    pub input: String,
}

/// Name and arguments of a call.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "OpenAiToolCallFunction"))]
#[serde(default)]
pub struct ToolCallFunction {
    /// Name of the function; absent if the call's id is.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Arguments as JSON text, or the next part. An object becomes its text, null an empty
    /// text.
    #[serde(deserialize_with = "arguments_text")]
    pub arguments: String,
}

fn arguments_text<'de, D: Deserializer<'de>>(d: D) -> Result<String, D::Error> {
    match Value::deserialize(d)? {
        Value::String(text) => Ok(text),
        Value::Null => Ok(String::new()),
        object @ Value::Object(_) => Ok(object.to_string()),
        _ => Err(de::Error::custom("tool call arguments must be JSON text or an object")),
    }
}

/// Whether the model reasons before it answers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct ThinkingSwitch {
    /// `enabled`, `disabled` or `adaptive`.
    #[serde(rename = "type")]
    pub kind: String,
}

/// Additional content of a stream.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct StreamOptions {
    /// Send a last chunk with the token counts.
    pub include_usage: bool,
}

/// Format of the answer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct ResponseFormat {
    /// `text`, `json_object`, `json_schema`; not in OpenAI's API: `regex`, `gbnf` and `lark`.
    #[serde(rename = "type")]
    pub kind: String,
    /// JSON Schema.
    pub json_schema: Option<JsonSchema>,
    /// Regular expression.
    pub pattern: Option<String>,
    /// Grammar.
    pub grammar: Option<String>,
}

/// Named JSON Schema.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct JsonSchema {
    /// Label without effect.
    pub name: String,
    /// Purpose of the schema, without effect.
    pub description: Option<String>,
    /// Schemas are always enforced. `true` also refuses a `oneOf` with overlapping branches.
    pub strict: Option<bool>,
    /// The schema.
    #[cfg_attr(feature = "schema", schemars(with = "Map<String, Value>"))]
    pub schema: Value,
}

/// Reasoning effort.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "OpenAiReasoning"))]
#[serde(default)]
pub struct Reasoning {
    /// `none`, `minimal`, `low`, `medium`, `high`, `xhigh`, `ultra`, `max`.
    pub effort: String,
}

/// Log-probabilities of an answer or of a piece.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ChoiceLogprobs {
    /// Log-probabilities, one for each token.
    pub content: Vec<Logprob>,
}

/// Response of a chat completion.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ChatCompletion {
    /// `chatcmpl-…`.
    pub id: String,
    /// `chat.completion`.
    pub object: String,
    /// When the response was created, in seconds since 1970.
    pub created: i64,
    /// Name of the model as in the request.
    pub model: String,
    /// `fp_ollama`.
    pub system_fingerprint: String,
    /// The answers.
    pub choices: Vec<Choice>,
    /// Token counts; absent if a remote server reports none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// For each prompt token: log-probabilities of it and the most likely tokens, by token id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_logprobs: Option<PromptLogprobs>,
    /// The rendered prompt, if requested.
    #[serde(rename = "_debug_info", default, skip_serializing_if = "Option::is_none")]
    pub debug_info: Option<crate::ollama::DebugInfo>,
}

/// One of the answers.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "OpenAiChoice"))]
pub struct Choice {
    /// Index of the answer.
    pub index: u32,
    /// The message.
    pub message: AnswerMessage,
    /// `stop`, `length` or `tool_calls`.
    pub finish_reason: Option<String>,
    /// Log-probabilities.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<ChoiceLogprobs>,
}

/// Message of an answer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct AnswerMessage {
    /// `assistant`.
    pub role: String,
    /// Text.
    pub content: String,
    /// Reasoning of the model.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reasoning: String,
    /// Function calls of the model.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
}

/// Chunk of a streamed chat completion.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ChatCompletionChunk {
    /// `chatcmpl-…`, the same in all chunks.
    pub id: String,
    /// `chat.completion.chunk`.
    pub object: String,
    /// When the answer started, in seconds since 1970.
    pub created: i64,
    /// Name of the model as in the request.
    pub model: String,
    /// `fp_ollama`.
    pub system_fingerprint: String,
    /// One piece; empty in the chunk with the token counts.
    pub choices: Vec<ChunkChoice>,
    /// Token counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// The rendered prompt, if requested.
    #[serde(rename = "_debug_info", default, skip_serializing_if = "Option::is_none")]
    pub debug_info: Option<crate::ollama::DebugInfo>,
    /// Schema keywords that the answer violates (Puna's addition); in the last chunk of an answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schema_violations: Option<Vec<String>>,
}

/// Piece of an answer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ChunkChoice {
    /// Index of the answer.
    pub index: u32,
    /// New content.
    pub delta: Delta,
    /// Why the answer ended; only in its last chunk.
    pub finish_reason: Option<String>,
    /// Log-probabilities.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<ChoiceLogprobs>,
}

/// New content of a chunk.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Delta {
    /// `assistant`; only in the first chunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// Text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    /// Reasoning of the model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<String>,
    /// Function calls of the model.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
}
