//! Generation, chat and embeddings.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{Image, Message, Think, Tool, ToolCall, ToolChoice, is_default};
use crate::{KeepAlive, shape};

/// `POST /api/generate`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct GenerateRequest {
    /// The model's name.
    pub model: String,
    /// What to continue or to answer; empty only loads the model.
    pub prompt: String,
    /// What comes after the text to fill in.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub suffix: String,
    /// Replaces the model's system text.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub system: String,
    /// Replaces the model's template.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub template: String,
    /// Tokens of an earlier answer, to go on from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context: Option<Vec<i64>>,
    /// Piece by piece (the default) or in one object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream: Option<bool>,
    /// The prompt is the model's input as it stands.
    #[serde(skip_serializing_if = "is_default")]
    pub raw: bool,
    /// `"json"` or a JSON schema.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<crate::schema::Format>"))]
    pub format: Option<Value>,
    /// How long the model stays afterwards.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep_alive: Option<KeepAlive>,
    /// Images or sound, put before the prompt.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub images: Vec<Image>,
    /// Parameters by name.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(deserialize_with = "shape::options")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<crate::schema::Options>"))]
    pub options: Option<Map<String, Value>>,
    /// Whether and how hard to think.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub think: Option<Think>,
    /// Whether a prompt that is too long may be cut.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub truncate: Option<bool>,
    /// Whether older tokens make room when the context is full.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shift: Option<bool>,
    /// Report log-probabilities.
    #[serde(skip_serializing_if = "is_default")]
    pub logprobs: bool,
    /// With this many alternatives each.
    #[serde(skip_serializing_if = "is_default")]
    pub top_logprobs: i64,
    /// Report the log-probabilities of the prompt's tokens, with this many alternatives each (Puna's addition).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_logprobs: Option<i64>,
    /// Answer with the rendered prompt instead of generating.
    #[serde(rename = "_debug_render_only", skip_serializing_if = "is_default")]
    pub debug_render_only: bool,
    /// Whether the last line of a stream has `schema_violations` (Puna's addition).
    #[serde(skip_serializing_if = "is_default")]
    pub return_adapted: bool,
}

/// `POST /api/chat`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct ChatRequest {
    /// The model's name.
    pub model: String,
    /// The conversation; empty only loads the model.
    pub messages: Vec<Message>,
    /// Functions that the model may call.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<Tool>,
    /// Which of them it may or must call (Puna's addition).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_choice: Option<ToolChoice>,
    /// Whether it may call several at once, as it may unless told otherwise (Puna's addition).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parallel_tool_calls: Option<bool>,
    /// Piece by piece (the default) or in one object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream: Option<bool>,
    /// `"json"` or a JSON schema.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<crate::schema::Format>"))]
    pub format: Option<Value>,
    /// How long the model stays afterwards.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep_alive: Option<KeepAlive>,
    /// Parameters by name.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(deserialize_with = "shape::options")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<crate::schema::Options>"))]
    pub options: Option<Map<String, Value>>,
    /// Whether and how hard to think.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub think: Option<Think>,
    /// Variables of the chat template; `enable_thinking` or `thinking` is whether to think (Puna's addition).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chat_template_kwargs: Option<Map<String, Value>>,
    /// Whether old messages may be dropped when the conversation is too long.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub truncate: Option<bool>,
    /// Whether older tokens make room when the context is full.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shift: Option<bool>,
    /// Report log-probabilities.
    #[serde(skip_serializing_if = "is_default")]
    pub logprobs: bool,
    /// With this many alternatives each.
    #[serde(skip_serializing_if = "is_default")]
    pub top_logprobs: i64,
    /// Report the log-probabilities of the prompt's tokens, with this many alternatives each (Puna's addition).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_logprobs: Option<i64>,
    /// Answer with the rendered prompt instead of generating.
    #[serde(rename = "_debug_render_only", skip_serializing_if = "is_default")]
    pub debug_render_only: bool,
    /// Whether the last line of a stream has `schema_violations` (Puna's addition).
    #[serde(skip_serializing_if = "is_default")]
    pub return_adapted: bool,
}

/// Figures of a finished request; times in nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Metrics {
    /// From the request's arrival to its end.
    #[serde(skip_serializing_if = "is_default")]
    pub total_duration: u64,
    /// From the request's arrival until the model was ready.
    #[serde(skip_serializing_if = "is_default")]
    pub load_duration: u64,
    /// Prompt tokens, those found in the cache included.
    #[serde(skip_serializing_if = "is_default")]
    pub prompt_eval_count: u64,
    /// Prompt tokens that were found in the cache (Puna's addition).
    #[serde(skip_serializing_if = "is_default")]
    pub prompt_eval_cached_count: u64,
    /// Time spent on the other prompt tokens.
    #[serde(skip_serializing_if = "is_default")]
    pub prompt_eval_duration: u64,
    /// Generated tokens, the end token included.
    #[serde(skip_serializing_if = "is_default")]
    pub eval_count: u64,
    /// Time spent generating them.
    #[serde(skip_serializing_if = "is_default")]
    pub eval_duration: u64,
    /// Tokens that were guessed from the text and checked (Puna's addition).
    #[serde(skip_serializing_if = "is_default")]
    pub ngram_draft_count: u64,
    /// Those of them that came true (Puna's addition).
    #[serde(skip_serializing_if = "is_default")]
    pub ngram_accepted_count: u64,
    /// Tokens that the draft model guessed and that were checked (Puna's addition).
    #[serde(skip_serializing_if = "is_default")]
    pub model_draft_count: u64,
    /// Those of them that came true (Puna's addition).
    #[serde(skip_serializing_if = "is_default")]
    pub model_accepted_count: u64,
    /// Messages that were left out because the conversation was too long (Puna's addition).
    #[serde(skip_serializing_if = "is_default")]
    pub truncated_messages: u64,
    /// Tokens that were cut from the prompt or shifted out of the context (Puna's addition).
    #[serde(skip_serializing_if = "is_default")]
    pub truncated_tokens: u64,
}

/// The prompt that a request comes to.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DebugInfo {
    /// The rendered text.
    pub rendered_template: String,
    /// Images in it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub image_count: u64,
}

/// A token and its log-probability (natural, over the whole vocabulary, before temperature).
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TopLogprob {
    /// The token's text.
    pub token: String,
    /// Its log-probability.
    pub logprob: f32,
    /// The text's bytes.
    #[serde(default)]
    pub bytes: Vec<u8>,
}

/// A generated token, its log-probability and its alternatives.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Logprob {
    /// The token's text.
    pub token: String,
    /// Its log-probability.
    pub logprob: f32,
    /// The text's bytes.
    #[serde(default)]
    pub bytes: Vec<u8>,
    /// The likeliest tokens at this place.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub top_logprobs: Vec<TopLogprob>,
}

/// A token of the prompt, and how likely it is behind those before it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PromptLogprob {
    /// The token's text.
    pub token: String,
    /// Its number.
    pub id: u32,
    /// Its log-probability; `null` for the first, of which nothing is known.
    pub logprob: Option<f32>,
    /// Its place among all tokens by likelihood, from 1; 0 for the first.
    pub rank: u32,
    /// The text's bytes.
    #[serde(default)]
    pub bytes: Vec<u8>,
    /// The likeliest tokens at this place.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub top_logprobs: Vec<PromptTopLogprob>,
}

/// A likely token at some place of the prompt.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PromptTopLogprob {
    /// The token's text.
    pub token: String,
    /// Its number.
    pub id: u32,
    /// Its log-probability.
    pub logprob: f32,
}

/// A piece or the end of a generated text.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct GenerateResponse {
    /// The model's name as the client wrote it.
    pub model: String,
    /// When this object was made (RFC 3339).
    pub created_at: String,
    /// Text.
    pub response: String,
    /// What the model thinks.
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
    /// Figures; only in the last object.
    #[serde(flatten)]
    pub metrics: Metrics,
    /// Calls that a model's own parser found.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
    /// The prompt, where it was asked for.
    #[serde(rename = "_debug_info", skip_serializing_if = "Option::is_none")]
    pub debug_info: Option<DebugInfo>,
    /// Log-probabilities of this piece.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub logprobs: Vec<Logprob>,
    /// Log-probabilities of the next tokens of the prompt; of all, where the answer is one object.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub prompt_logprobs: Vec<PromptLogprob>,
    /// Checked keywords that the answer does not keep to (Puna's addition); in the last line of a stream.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schema_violations: Option<Vec<String>>,
}

/// A piece or the end of an answer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct ChatResponse {
    /// The model's name as the client wrote it.
    pub model: String,
    /// When this object was made (RFC 3339).
    pub created_at: String,
    /// The piece.
    pub message: Message,
    /// Whether this is the last object.
    pub done: bool,
    /// `stop`, `length`, `load` or `unload`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub done_reason: String,
    /// The prompt, where it was asked for.
    #[serde(rename = "_debug_info", skip_serializing_if = "Option::is_none")]
    pub debug_info: Option<DebugInfo>,
    /// Log-probabilities of this piece.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub logprobs: Vec<Logprob>,
    /// Log-probabilities of the next tokens of the prompt; of all, where the answer is one object.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub prompt_logprobs: Vec<PromptLogprob>,
    /// Figures; only in the last object.
    #[serde(flatten)]
    pub metrics: Metrics,
    /// Checked keywords that the answer does not keep to (Puna's addition); in the last line of a stream.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schema_violations: Option<Vec<String>>,
}

/// `POST /api/embed`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct EmbedRequest {
    /// The model's name.
    pub model: String,
    /// A text or several.
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::Texts"))]
    pub input: Value,
    /// Whether what is too long may be cut at its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub truncate: Option<bool>,
    /// Leading components that are kept, and normalised anew.
    #[serde(skip_serializing_if = "is_default")]
    pub dimensions: i64,
    /// How long the model stays afterwards.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep_alive: Option<KeepAlive>,
    /// Parameters by name.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(deserialize_with = "shape::options")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<crate::schema::Options>"))]
    pub options: Option<Map<String, Value>>,
}

/// Texts to embed: one, or a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EmbedInput(pub Vec<String>);

impl EmbedInput {
    /// A string or a list of strings; nothing and `""` are an empty list.
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

/// The answer to `POST /api/embed`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct EmbedResponse {
    /// The model's name as the client wrote it.
    pub model: String,
    /// A vector of norm 1 for each input.
    pub embeddings: Vec<Vec<f32>>,
    /// From the request's arrival to its end, in nanoseconds.
    #[serde(skip_serializing_if = "is_default")]
    pub total_duration: u64,
    /// From the request's arrival until the model was ready, in nanoseconds.
    #[serde(skip_serializing_if = "is_default")]
    pub load_duration: u64,
    /// Tokens of all inputs, special ones included.
    #[serde(skip_serializing_if = "is_default")]
    pub prompt_eval_count: u64,
    /// Inputs that were cut because they were too long (Puna's addition).
    #[serde(skip_serializing_if = "is_default")]
    pub truncated_inputs: u64,
    /// Tokens that were cut off them (Puna's addition).
    #[serde(skip_serializing_if = "is_default")]
    pub truncated_tokens: u64,
}

/// `POST /api/embeddings`, the older form.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct EmbeddingsRequest {
    /// The model's name.
    pub model: String,
    /// The text.
    pub prompt: String,
    /// How long the model stays afterwards.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep_alive: Option<KeepAlive>,
    /// Parameters by name.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(deserialize_with = "shape::options")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<crate::schema::Options>"))]
    pub options: Option<Map<String, Value>>,
}

/// The answer to `POST /api/embeddings`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct EmbeddingsResponse {
    /// The vector as the model's pooling gives it.
    pub embedding: Vec<f64>,
}
