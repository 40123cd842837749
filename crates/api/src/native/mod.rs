//! The native dialect: what Ollama's clients send and read.

mod generate;
mod message;
mod models;
mod rerank;
mod tokens;
mod upkeep;

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

pub use rerank::{
    RerankDocument, RerankMeta, RerankRequest, RerankResponse, RerankResult, RerankText,
    RerankTokens, RerankUsage,
};
pub use tokens::{DetokenizeRequest, DetokenizeResponse, TokenizeRequest, TokenizeResponse};
pub use upkeep::{
    Download, DownloadsResponse, Leftover, PruneRequest, PruneResponse, VerifyRequest,
};

use serde::{Deserialize, Serialize};

/// An error object: the body of every failed native request, and the last line of a stream that broke.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ErrorBody {
    /// What went wrong.
    pub error: String,
    /// Tokens of the prompt, where its length is the reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub n_prompt_tokens: Option<u64>,
    /// Context length, where the prompt's length is the reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub n_ctx: Option<u64>,
}

/// Whether a value is the default of its type and is left out.
pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
