//! The OpenAI dialect: chat completions, completions, embeddings and models.

mod chat;
mod completions;
mod embeddings;

use serde::{Deserialize, Serialize};

use crate::native::is_default;

pub use chat::{
    AnswerMessage, ChatCompletion, ChatCompletionChunk, ChatCompletionRequest, Choice,
    ChoiceLogprobs, ChunkChoice, CustomCall, Delta, JsonSchema, Message, Reasoning, ResponseFormat,
    StreamOptions, ThinkingSwitch, ToolCall, ToolCallFunction,
};
pub use completions::{
    Completion, CompletionChoice, CompletionChunk, CompletionLogprobs, CompletionRequest,
    PromptLogprobs,
};
pub use embeddings::{EmbedRequest, Embedding, EmbeddingData, EmbeddingList, EmbeddingUsage};

/// Token counts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "OpenAiUsage"))]
#[serde(default)]
pub struct Usage {
    /// Prompt tokens, those found in the cache included.
    pub prompt_tokens: u64,
    /// Generated tokens.
    pub completion_tokens: u64,
    /// Both.
    pub total_tokens: u64,
    /// Where the prompt's tokens came from; left out when none was in the cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_tokens_details: Option<PromptTokensDetails>,
    /// What the generated tokens were; left out when none was a thought.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion_tokens_details: Option<CompletionTokensDetails>,
    /// Messages that were left out because the conversation was too long (Puna's addition).
    #[serde(skip_serializing_if = "is_default")]
    pub truncated_messages: u64,
    /// Tokens that were cut from the prompt or shifted out of the context (Puna's addition).
    #[serde(skip_serializing_if = "is_default")]
    pub truncated_tokens: u64,
}

/// Where the prompt's tokens came from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct PromptTokensDetails {
    /// Tokens found in the cache.
    pub cached_tokens: u64,
}

/// What the generated tokens were.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct CompletionTokensDetails {
    /// Tokens of thoughts.
    pub reasoning_tokens: u64,
}

/// A model of `GET /v1/models`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "OpenAiModel"))]
pub struct Model {
    /// Its name.
    pub id: String,
    /// `model`.
    pub object: String,
    /// When it was stored, in seconds since 1970.
    pub created: i64,
    /// Its namespace.
    pub owned_by: String,
    /// Tokens of the context window of a request without options, where that is known (Puna's addition).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context_length: Option<u64>,
    /// The same, by vLLM's name (Puna's addition).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_model_len: Option<u64>,
    /// Sizes, by llama.cpp's names (Puna's addition).
    #[serde(default)]
    pub meta: ModelMeta,
}

/// Sizes of a model of `GET /v1/models`, each where it is known.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "OpenAiModelMeta"))]
#[serde(default)]
pub struct ModelMeta {
    /// Tokens of the context window of a request without options.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub n_ctx: Option<u64>,
    /// Tokens of the context that the model was trained for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub n_ctx_train: Option<u64>,
    /// Tokens of its vocabulary.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub n_vocab: Option<u64>,
    /// Width of its hidden states.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub n_embd: Option<u64>,
    /// Number of its parameters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub n_params: Option<u64>,
    /// Bytes that it takes in the store.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
}

/// `GET /v1/models`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "OpenAiModelList"))]
pub struct ModelList {
    /// `list`.
    pub object: String,
    /// The newest first.
    pub data: Vec<Model>,
}

/// The code of an error by a prompt that is longer than the context.
pub const CONTEXT_LENGTH_EXCEEDED: &str = "context_length_exceeded";

/// The body of every failed request.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "OpenAiErrorBody"))]
pub struct ErrorBody {
    /// What went wrong.
    pub error: ErrorObject,
}

/// What went wrong.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "OpenAiErrorObject"))]
pub struct ErrorObject {
    /// In words.
    pub message: String,
    /// `invalid_request_error`, `not_found_error` or `api_error`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The parameter that is wrong; always null.
    pub param: Option<String>,
    /// `context_length_exceeded` for a prompt that is too long, else null.
    pub code: Option<String>,
    /// Tokens of a prompt that is too long (as llama.cpp's server names them).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub n_prompt_tokens: Option<u64>,
    /// Tokens that the context holds, where the prompt is too long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub n_ctx: Option<u64>,
}

impl ErrorBody {
    /// An error of a status.
    pub fn new(status: u16, message: impl Into<String>) -> Self {
        let kind = match status {
            400 => "invalid_request_error",
            404 => "not_found_error",
            _ => "api_error",
        };
        Self {
            error: ErrorObject {
                message: message.into(),
                kind: kind.into(),
                ..ErrorObject::default()
            },
        }
    }

    /// The error of a prompt that is too long: its tokens, and those that the context holds.
    pub fn with_lengths(mut self, tokens: u64, context: u64) -> Self {
        self.error.code = Some(CONTEXT_LENGTH_EXCEEDED.into());
        (self.error.n_prompt_tokens, self.error.n_ctx) = (Some(tokens), Some(context));
        self
    }
}
