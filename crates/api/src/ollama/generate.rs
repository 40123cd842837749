//! Text generation, chat and embeddings.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{Image, Message, Think, Tool, ToolCall, ToolChoice, is_default};
use crate::{KeepAlive, json_shape};

/// `POST /api/generate`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct GenerateRequest {
    /// Name of the model.
    pub model: String,
    /// Prompt. An empty one only loads the model.
    pub prompt: String,
    /// Text after the gap, for fill-in-the-middle.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub suffix: String,
    /// Replaces the model's system prompt.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub system: String,
    /// Replaces the model's template.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub template: String,
    /// Tokens of an earlier answer, to continue from it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context: Option<Vec<i64>>,
    /// Stream the answer (the default), or return one object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream: Option<bool>,
    /// Use the prompt as the model's input without a template.
    #[serde(skip_serializing_if = "is_default")]
    pub raw: bool,
    /// `"json"` or a JSON schema.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<crate::schema::Format>"))]
    pub format: Option<Value>,
    /// How long the model stays loaded after the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep_alive: Option<KeepAlive>,
    /// Images or audio, placed before the prompt.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub images: Vec<Image>,
    /// Options by name.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(deserialize_with = "json_shape::options")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<crate::schema::Options>"))]
    pub options: Option<Map<String, Value>>,
    /// Whether the model reasons, and with which effort.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub think: Option<Think>,
    /// Whether a prompt that is too long may be truncated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub truncate: Option<bool>,
    /// Whether the context shifts when it is full: its older half is dropped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shift: Option<bool>,
    /// Return log-probabilities.
    #[serde(skip_serializing_if = "is_default")]
    pub logprobs: bool,
    /// Number of alternatives for each log-probability.
    #[serde(skip_serializing_if = "is_default")]
    pub top_logprobs: i64,
    /// Return log-probabilities of the prompt, with this many alternatives (Puna's addition).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_logprobs: Option<i64>,
    /// Return the rendered prompt instead of generating.
    #[serde(rename = "_debug_render_only", skip_serializing_if = "is_default")]
    pub debug_render_only: bool,
    /// Separates the prefix cache further within one client; as in vLLM (Puna's addition).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_salt: Option<String>,
    /// Whether the last line of a stream has `schema_violations` (Puna's addition).
    #[serde(skip_serializing_if = "is_default")]
    pub return_adapted: bool,
}

/// `POST /api/chat`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct ChatRequest {
    /// Name of the model.
    pub model: String,
    /// The conversation. An empty one only loads the model.
    pub messages: Vec<Message>,
    /// Functions that the model may call.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<Tool>,
    /// Which functions the model may or must call (Puna's addition).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_choice: Option<ToolChoice>,
    /// Whether the model may call several functions at once. Default: true (Puna's addition).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parallel_tool_calls: Option<bool>,
    /// Stream the answer (the default), or return one object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream: Option<bool>,
    /// `"json"` or a JSON schema.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<crate::schema::Format>"))]
    pub format: Option<Value>,
    /// How long the model stays loaded after the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep_alive: Option<KeepAlive>,
    /// Options by name.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(deserialize_with = "json_shape::options")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<crate::schema::Options>"))]
    pub options: Option<Map<String, Value>>,
    /// Whether the model reasons, and with which effort.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub think: Option<Think>,
    /// Variables of the template; `enable_thinking` or `thinking` sets `think` (Puna's addition).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chat_template_kwargs: Option<Map<String, Value>>,
    /// Whether old messages may be dropped when the conversation is too long.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub truncate: Option<bool>,
    /// Whether the context shifts when it is full: its older half is dropped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shift: Option<bool>,
    /// Return log-probabilities.
    #[serde(skip_serializing_if = "is_default")]
    pub logprobs: bool,
    /// Number of alternatives for each log-probability.
    #[serde(skip_serializing_if = "is_default")]
    pub top_logprobs: i64,
    /// Return log-probabilities of the prompt, with this many alternatives (Puna's addition).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_logprobs: Option<i64>,
    /// Return the rendered prompt instead of generating.
    #[serde(rename = "_debug_render_only", skip_serializing_if = "is_default")]
    pub debug_render_only: bool,
    /// Separates the prefix cache further within one client; as in vLLM (Puna's addition).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_salt: Option<String>,
    /// Whether the last line of a stream has `schema_violations` (Puna's addition).
    #[serde(skip_serializing_if = "is_default")]
    pub return_adapted: bool,
}

/// Metrics of a finished request. Times are in nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Metrics {
    /// Time from the arrival of the request to its end.
    #[serde(skip_serializing_if = "is_default")]
    pub total_duration: u64,
    /// Time from the arrival of the request until the model was ready.
    #[serde(skip_serializing_if = "is_default")]
    pub load_duration: u64,
    /// Prompt tokens, including cached ones.
    #[serde(skip_serializing_if = "is_default")]
    pub prompt_eval_count: u64,
    /// Prompt tokens that were in the cache (Puna's addition).
    #[serde(skip_serializing_if = "is_default")]
    pub prompt_eval_cached_count: u64,
    /// Time to compute the other prompt tokens.
    #[serde(skip_serializing_if = "is_default")]
    pub prompt_eval_duration: u64,
    /// Generated tokens, including the end token.
    #[serde(skip_serializing_if = "is_default")]
    pub eval_count: u64,
    /// Time to generate these tokens.
    #[serde(skip_serializing_if = "is_default")]
    pub eval_duration: u64,
    /// N-gram draft tokens that were verified (Puna's addition).
    #[serde(skip_serializing_if = "is_default")]
    pub ngram_draft_count: u64,
    /// N-gram draft tokens that were accepted (Puna's addition).
    #[serde(skip_serializing_if = "is_default")]
    pub ngram_accepted_count: u64,
    /// Tokens of the draft model that were verified (Puna's addition).
    #[serde(skip_serializing_if = "is_default")]
    pub model_draft_count: u64,
    /// Tokens of the draft model that were accepted (Puna's addition).
    #[serde(skip_serializing_if = "is_default")]
    pub model_accepted_count: u64,
    /// Messages dropped because the conversation was too long (Puna's addition).
    #[serde(skip_serializing_if = "is_default")]
    pub truncated_messages: u64,
    /// Tokens truncated from the prompt or shifted out of the context (Puna's addition).
    #[serde(skip_serializing_if = "is_default")]
    pub truncated_tokens: u64,
}

/// Rendered prompt of a request.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DebugInfo {
    /// The rendered text.
    pub rendered_template: String,
    /// Number of images in the prompt.
    #[serde(default, skip_serializing_if = "is_default")]
    pub image_count: u64,
}

/// Token and its log-probability (natural, over the whole vocabulary, before temperature).
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TopLogprob {
    /// Text of the token.
    pub token: String,
    /// Log-probability.
    pub logprob: f32,
    /// Bytes of the text.
    #[serde(default)]
    pub bytes: Vec<u8>,
}

/// Generated token with its log-probability and alternatives.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Logprob {
    /// Text of the token.
    pub token: String,
    /// Log-probability.
    pub logprob: f32,
    /// Bytes of the text.
    #[serde(default)]
    pub bytes: Vec<u8>,
    /// Most likely tokens at this position.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub top_logprobs: Vec<TopLogprob>,
}

/// Token of the prompt with its log-probability after the preceding tokens.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PromptLogprob {
    /// Text of the token.
    pub token: String,
    /// Id of the token.
    pub id: u32,
    /// Log-probability; `null` for the first token.
    pub logprob: Option<f32>,
    /// Rank among all tokens by probability, from 1; 0 for the first token.
    pub rank: u32,
    /// Bytes of the text.
    #[serde(default)]
    pub bytes: Vec<u8>,
    /// Most likely tokens at this position.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub top_logprobs: Vec<PromptTopLogprob>,
}

/// Likely token at a position of the prompt.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PromptTopLogprob {
    /// Text of the token.
    pub token: String,
    /// Id of the token.
    pub id: u32,
    /// Log-probability.
    pub logprob: f32,
}

/// Piece or end of a generated text.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct GenerateResponse {
    /// Name of the model as in the request.
    pub model: String,
    /// When the object was created (RFC 3339).
    pub created_at: String,
    /// Text.
    pub response: String,
    /// Reasoning of the model.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub thinking: String,
    /// Whether this is the last object.
    pub done: bool,
    /// `stop`, `length`, `load` or `unload`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub done_reason: String,
    /// Tokens of prompt and answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context: Option<Vec<u32>>,
    /// Metrics; only in the last object.
    #[serde(flatten)]
    pub metrics: Metrics,
    /// Function calls that the model's output parser found.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
    /// The rendered prompt, if requested.
    #[serde(rename = "_debug_info", skip_serializing_if = "Option::is_none")]
    pub debug_info: Option<DebugInfo>,
    /// Log-probabilities of this piece.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub logprobs: Vec<Logprob>,
    /// Log-probabilities of the next prompt tokens; of all if the answer is one object.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub prompt_logprobs: Vec<PromptLogprob>,
    /// Schema keywords that the answer violates (Puna's addition); in the last line of a stream.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schema_violations: Option<Vec<String>>,
}

/// Piece or end of an answer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct ChatResponse {
    /// Name of the model as in the request.
    pub model: String,
    /// When the object was created (RFC 3339).
    pub created_at: String,
    /// Piece of the message.
    pub message: Message,
    /// Whether this is the last object.
    pub done: bool,
    /// `stop`, `length`, `load` or `unload`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub done_reason: String,
    /// The rendered prompt, if requested.
    #[serde(rename = "_debug_info", skip_serializing_if = "Option::is_none")]
    pub debug_info: Option<DebugInfo>,
    /// Log-probabilities of this piece.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub logprobs: Vec<Logprob>,
    /// Log-probabilities of the next prompt tokens; of all if the answer is one object.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub prompt_logprobs: Vec<PromptLogprob>,
    /// Metrics; only in the last object.
    #[serde(flatten)]
    pub metrics: Metrics,
    /// Schema keywords that the answer violates (Puna's addition); in the last line of a stream.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schema_violations: Option<Vec<String>>,
}

/// `POST /api/embed`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct EmbedRequest {
    /// Name of the model.
    pub model: String,
    /// A text, or a list of texts.
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::Texts"))]
    pub input: Value,
    /// Whether an input that is too long may be truncated at its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub truncate: Option<bool>,
    /// Number of leading components to keep; the result is normalized again.
    #[serde(skip_serializing_if = "is_default")]
    pub dimensions: i64,
    /// How long the model stays loaded after the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep_alive: Option<KeepAlive>,
    /// Options by name.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(deserialize_with = "json_shape::options")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<crate::schema::Options>"))]
    pub options: Option<Map<String, Value>>,
}

/// Texts to embed: one, or a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EmbedInput(pub Vec<String>);

impl EmbedInput {
    /// Reads a string or a list of strings. An absent value and `""` give an empty list.
    pub fn from_value(value: &Value) -> Option<Self> {
        match value {
            Value::Null => Some(Self(Vec::new())),
            Value::String(s) if s.is_empty() => Some(Self(Vec::new())),
            Value::String(s) => Some(Self(vec![s.clone()])),
            Value::Array(list) => {
                list.iter().map(|v| v.as_str().map(str::to_owned)).collect::<Option<_>>().map(Self)
            }
            _ => None,
        }
    }
}

/// Response of `POST /api/embed`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct EmbedResponse {
    /// Name of the model as in the request.
    pub model: String,
    /// A vector of norm 1 for each input.
    pub embeddings: Vec<Vec<f32>>,
    /// Time from the arrival of the request to its end, in nanoseconds.
    #[serde(skip_serializing_if = "is_default")]
    pub total_duration: u64,
    /// Time from the arrival of the request until the model was ready, in nanoseconds.
    #[serde(skip_serializing_if = "is_default")]
    pub load_duration: u64,
    /// Tokens of all inputs, including special tokens.
    #[serde(skip_serializing_if = "is_default")]
    pub prompt_eval_count: u64,
    /// Inputs that were truncated (Puna's addition).
    #[serde(skip_serializing_if = "is_default")]
    pub truncated_inputs: u64,
    /// Tokens that were truncated from the inputs (Puna's addition).
    #[serde(skip_serializing_if = "is_default")]
    pub truncated_tokens: u64,
}

/// `POST /api/embeddings`, the older API.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct EmbeddingsRequest {
    /// Name of the model.
    pub model: String,
    /// Text to embed.
    pub prompt: String,
    /// How long the model stays loaded after the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep_alive: Option<KeepAlive>,
    /// Options by name.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(deserialize_with = "json_shape::options")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<crate::schema::Options>"))]
    pub options: Option<Map<String, Value>>,
}

/// Response of `POST /api/embeddings`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct EmbeddingsResponse {
    /// The vector as pooled by the model, not normalized.
    pub embedding: Vec<f64>,
}
