//! Completions of a prompt.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{Reasoning, StreamOptions, Usage};
use crate::native::Think;
use crate::{KeepAlive, shape};

/// `POST /v1/completions`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(transform = crate::schema::with_options))]
#[serde(default)]
pub struct CompletionRequest {
    /// The model's name.
    pub model: String,
    /// What to answer or to continue: a text, a list of texts, tokens, or a list of lists of tokens.
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::TextsOrTokens"))]
    pub prompt: Value,
    /// What comes after the text to fill in.
    pub suffix: String,
    /// Tokens to generate at most.
    pub max_tokens: Option<i64>,
    /// Seed of the draws.
    pub seed: Option<i64>,
    /// Temperature; 1 unless given.
    pub temperature: Option<f64>,
    /// Nucleus; 1 unless given.
    pub top_p: Option<f64>,
    /// Penalty by number of occurrences; 0 unless given.
    pub frequency_penalty: Option<f64>,
    /// Penalty of occurrence; 0 unless given.
    pub presence_penalty: Option<f64>,
    /// A string or a list of strings that end the answer.
    #[cfg_attr(feature = "schema", schemars(with = "Option<crate::schema::Stop>"))]
    pub stop: Option<Value>,
    /// Report log-probabilities, with this many alternatives each.
    pub logprobs: Option<i64>,
    /// Report the log-probabilities of the prompt's tokens, with this many alternatives each, as vLLM does.
    pub prompt_logprobs: Option<i64>,
    /// Piece by piece or in one object (the default).
    pub stream: bool,
    /// What a stream holds besides the answer.
    pub stream_options: Option<StreamOptions>,
    /// Number of answers.
    pub n: Option<i64>,
    /// Number of answers of which the best ones are returned.
    pub best_of: Option<i64>,
    /// Repeat the prompt before the answer.
    pub echo: Option<bool>,
    /// Whether and how hard to think (Puna's addition).
    pub think: Option<Think>,
    /// How hard to think, as for chats (Puna's addition).
    pub reasoning: Option<Reasoning>,
    /// The same in its older place; `none` is not at all (Puna's addition).
    pub reasoning_effort: Option<String>,
    /// What is added to the logits of tokens, by their number.
    #[cfg_attr(
        feature = "schema",
        schemars(with = "Option<std::collections::BTreeMap<String, f64>>")
    )]
    pub logit_bias: Option<Map<String, Value>>,
    /// Native options by name (Puna's addition). They may stand beside it, too, and then come first.
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

/// The answer to a completion.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Completion {
    /// `cmpl-…`.
    pub id: String,
    /// `text_completion`.
    pub object: String,
    /// When, in seconds since 1970.
    pub created: i64,
    /// The model's name as the client wrote it.
    pub model: String,
    /// `fp_ollama`.
    pub system_fingerprint: String,
    /// The answers.
    pub choices: Vec<CompletionChoice>,
    /// Token counts; absent where a remote server reports none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
}

/// A chunk of a streamed completion.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CompletionChunk {
    /// `cmpl-…`, the same in all chunks.
    pub id: String,
    /// `text_completion`.
    pub object: String,
    /// When, in seconds since 1970.
    pub created: i64,
    /// One piece; none in the chunk with the token counts.
    pub choices: Vec<CompletionChoice>,
    /// The model's name as the client wrote it.
    pub model: String,
    /// `fp_ollama`.
    pub system_fingerprint: String,
    /// Token counts; zeros in all chunks but the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
}

/// One text.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CompletionChoice {
    /// The text.
    pub text: String,
    /// What the model thought before it; its tokens count as the answer's do (Puna's addition).
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reasoning: String,
    /// Its number.
    pub index: u32,
    /// Log-probabilities, where they were asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<CompletionLogprobs>,
    /// `stop` or `length`.
    pub finish_reason: Option<String>,
    /// For each token of the prompt, what it and the likeliest tokens in its place have, by number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_logprobs: Option<PromptLogprobs>,
}

/// Log-probabilities of a prompt in vLLM's form: by the numbers of tokens; nothing for the first.
pub type PromptLogprobs = Vec<Option<Map<String, Value>>>;

/// Log-probabilities of a text, token by token.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CompletionLogprobs {
    /// Texts of the tokens.
    pub tokens: Vec<String>,
    /// Their log-probabilities; nothing is known of a prompt's first.
    pub token_logprobs: Vec<Option<f32>>,
    /// The likeliest tokens in their place, and how likely.
    pub top_logprobs: Vec<Option<Map<String, Value>>>,
    /// The character of the answer at which each begins.
    pub text_offset: Vec<usize>,
}
