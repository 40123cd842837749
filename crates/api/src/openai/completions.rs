//! Text completions.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{Reasoning, StreamOptions, Usage};
use crate::ollama::Think;
use crate::{KeepAlive, json_shape};

/// `POST /v1/completions`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(transform = crate::schema::with_options))]
#[serde(default)]
pub struct CompletionRequest {
    /// Name of the model.
    pub model: String,
    /// Prompt: a text, a list of texts, token ids, or a list of lists of token ids.
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::TextsOrTokens"))]
    pub prompt: Value,
    /// Text after the gap, for fill-in-the-middle.
    pub suffix: String,
    /// Largest number of generated tokens.
    pub max_tokens: Option<i64>,
    /// Seed of sampling.
    pub seed: Option<i64>,
    /// Sampling temperature. Default: 1.
    pub temperature: Option<f64>,
    /// Nucleus sampling: total probability of the candidates. Default: 1.
    pub top_p: Option<f64>,
    /// Penalty per occurrence of a token. Default: 0.
    pub frequency_penalty: Option<f64>,
    /// Penalty of tokens that occurred. Default: 0.
    pub presence_penalty: Option<f64>,
    /// A string or a list of strings that end the answer.
    #[cfg_attr(feature = "schema", schemars(with = "Option<crate::schema::Stop>"))]
    pub stop: Option<Value>,
    /// Return log-probabilities, with this many alternatives.
    pub logprobs: Option<i64>,
    /// Return log-probabilities of the prompt's tokens, with this many alternatives, like vLLM.
    pub prompt_logprobs: Option<i64>,
    /// Stream the answer as events. Default: one object.
    pub stream: bool,
    /// Additional content of a stream.
    pub stream_options: Option<StreamOptions>,
    /// Number of answers.
    pub n: Option<i64>,
    /// Number of generated answers, of which the best `n` are returned.
    pub best_of: Option<i64>,
    /// Repeat the prompt before the answer.
    pub echo: Option<bool>,
    /// Whether the model reasons, and with which effort (Puna's addition).
    pub think: Option<Think>,
    /// Reasoning effort, as in chat completions (Puna's addition).
    pub reasoning: Option<Reasoning>,
    /// `reasoning.effort`, in its older place; `none` turns reasoning off (Puna's addition).
    pub reasoning_effort: Option<String>,
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

/// Response of a completion.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Completion {
    /// `cmpl-…`.
    pub id: String,
    /// `text_completion`.
    pub object: String,
    /// When the response was created, in seconds since 1970.
    pub created: i64,
    /// Name of the model as in the request.
    pub model: String,
    /// `fp_ollama`.
    pub system_fingerprint: String,
    /// The answers.
    pub choices: Vec<CompletionChoice>,
    /// Token counts; absent if a remote server reports none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
}

/// Chunk of a streamed completion.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CompletionChunk {
    /// `cmpl-…`, the same in all chunks.
    pub id: String,
    /// `text_completion`.
    pub object: String,
    /// When the response was created, in seconds since 1970.
    pub created: i64,
    /// One piece; empty in the chunk with the token counts.
    pub choices: Vec<CompletionChoice>,
    /// Name of the model as in the request.
    pub model: String,
    /// `fp_ollama`.
    pub system_fingerprint: String,
    /// Token counts; zeros in all chunks but the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
}

/// One of the texts.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CompletionChoice {
    /// The text.
    pub text: String,
    /// Reasoning before the text; its tokens count like those of the text (Puna's addition).
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reasoning: String,
    /// Index of the completion.
    pub index: u32,
    /// Log-probabilities, if requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<CompletionLogprobs>,
    /// `stop` or `length`.
    pub finish_reason: Option<String>,
    /// For each token of the prompt, what it and the likeliest tokens in its place have, by number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_logprobs: Option<PromptLogprobs>,
}

/// Log-probabilities of a prompt in vLLM's form: by token id; null for the first token.
pub type PromptLogprobs = Vec<Option<Map<String, Value>>>;

/// Log-probabilities of a text, one entry for each token.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CompletionLogprobs {
    /// Texts of the tokens.
    pub tokens: Vec<String>,
    /// Log-probabilities; null for the first token of a prompt.
    pub token_logprobs: Vec<Option<f32>>,
    /// Most likely tokens at each position, with their log-probabilities.
    pub top_logprobs: Vec<Option<Map<String, Value>>>,
    /// Character offset of each token in the answer.
    pub text_offset: Vec<usize>,
}
