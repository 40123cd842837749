//! The OpenAI dialect: chat completions, completions, embeddings and models.

mod chat;
mod completions;
mod embeddings;

use serde::{Deserialize, Serialize};

use crate::ollama::is_default;

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
    /// Prompt tokens, including cached ones.
    pub prompt_tokens: u64,
    /// Generated tokens.
    pub completion_tokens: u64,
    /// Prompt and completion tokens.
    pub total_tokens: u64,
    /// Details of the prompt tokens; absent if none was cached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_tokens_details: Option<PromptTokensDetails>,
    /// Details of the generated tokens; absent if none was reasoning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion_tokens_details: Option<CompletionTokensDetails>,
    /// Messages dropped because the conversation was too long (Puna's addition).
    #[serde(skip_serializing_if = "is_default")]
    pub truncated_messages: u64,
    /// Tokens truncated from the prompt or shifted out of the context (Puna's addition).
    #[serde(skip_serializing_if = "is_default")]
    pub truncated_tokens: u64,
}

/// Details of the prompt tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct PromptTokensDetails {
    /// Tokens that were in the cache.
    pub cached_tokens: u64,
}

/// Details of the generated tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct CompletionTokensDetails {
    /// Reasoning tokens.
    pub reasoning_tokens: u64,
}

/// Model in `GET /v1/models`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "OpenAiModel"))]
pub struct Model {
    /// Name of the model.
    pub id: String,
    /// `model`.
    pub object: String,
    /// When the model was stored, in seconds since 1970.
    pub created: i64,
    /// Namespace of the model.
    pub owned_by: String,
    /// Context length in tokens of a request without options, if known (Puna's addition).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context_length: Option<u64>,
    /// `context_length`, as vLLM names it (Puna's addition).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_model_len: Option<u64>,
    /// Sizes under llama.cpp's names (Puna's addition).
    #[serde(default)]
    pub meta: ModelMeta,
}

/// Sizes of a model in `GET /v1/models`; each is absent if unknown.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "OpenAiModelMeta"))]
#[serde(default)]
pub struct ModelMeta {
    /// Context length in tokens of a request without options.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub n_ctx: Option<u64>,
    /// Context length of the training in tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub n_ctx_train: Option<u64>,
    /// Number of tokens in the vocabulary.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub n_vocab: Option<u64>,
    /// Width of the hidden states.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub n_embd: Option<u64>,
    /// Number of parameters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub n_params: Option<u64>,
    /// Size in the store in bytes.
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
    /// Models, newest first.
    pub data: Vec<Model>,
}

/// Error code for a prompt that is longer than the context.
pub const CONTEXT_LENGTH_EXCEEDED: &str = "context_length_exceeded";

/// Body of an error response.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "OpenAiErrorBody"))]
pub struct ErrorBody {
    /// The error.
    pub error: ErrorObject,
}

/// Error of a request.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "OpenAiErrorObject"))]
pub struct ErrorObject {
    /// Message for people.
    pub message: String,
    /// `invalid_request_error`, `not_found_error` or `api_error`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Always null.
    pub param: Option<String>,
    /// `context_length_exceeded` if the prompt is too long, else null.
    pub code: Option<String>,
    /// Tokens of a prompt that is too long (under llama.cpp's name).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub n_prompt_tokens: Option<u64>,
    /// Context length in tokens, if the prompt is too long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub n_ctx: Option<u64>,
}

impl ErrorBody {
    /// Makes the error for an HTTP status.
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

    /// Adds the lengths of a prompt that is too long, and of the context, in tokens.
    pub fn with_lengths(mut self, tokens: u64, context: u64) -> Self {
        self.error.code = Some(CONTEXT_LENGTH_EXCEEDED.into());
        (self.error.n_prompt_tokens, self.error.n_ctx) = (Some(tokens), Some(context));
        self
    }
}
