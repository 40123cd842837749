//! The native dialect: Ollama's API.

mod generate;
mod maintenance;
mod message;
mod models;
mod rerank;
mod tokens;

pub use generate::{
    ChatRequest, ChatResponse, DebugInfo, EmbedInput, EmbedRequest, EmbedResponse,
    EmbeddingsRequest, EmbeddingsResponse, GenerateRequest, GenerateResponse, Logprob, Metrics,
    PromptLogprob, PromptTopLogprob, TopLogprob,
};
pub use message::{Image, Message, Think, Tool, ToolCall, ToolCallFunction, ToolChoice};
pub use models::{
    CopyRequest, CreateRequest, DeleteRequest, DeleteResponse, License, ListResponse, ModelDetails,
    ModelSummary, ProcessResponse, Progress, PullRequest, RunnerManifest, RunningModel,
    ShowRequest, ShowResponse, TensorInfo, VersionResponse,
};

pub use maintenance::{
    Download, DownloadsResponse, Leftover, PruneRequest, PruneResponse, VerifyRequest,
};
pub use rerank::{
    RerankDocument, RerankMeta, RerankRequest, RerankResponse, RerankResult, RerankText,
    RerankTokens, RerankUsage,
};
pub use tokens::{DetokenizeRequest, DetokenizeResponse, TokenizeRequest, TokenizeResponse};

use serde::{Deserialize, Serialize};

/// Body of an error response, and last line of a stream that failed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ErrorBody {
    /// Message of the error.
    pub error: String,
    /// Tokens of the prompt, if it is too long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub n_prompt_tokens: Option<u64>,
    /// Context length in tokens, if the prompt is too long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub n_ctx: Option<u64>,
}

/// Whether a value is its type's default, so that JSON omits it.
pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
