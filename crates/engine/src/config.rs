//! Options of an engine, facts of a loaded model, and its memory by purpose.

use puna_gguf::View;
use puna_graph::KvType;
use puna_models::{Adapter, Model, Pooling, Unmasking};

use crate::speculate::Speculation;

/// Options for loading a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineOptions {
    /// Context size in tokens; `None` is the size that the model was trained with.
    pub num_ctx: Option<usize>,
    /// Largest number of tokens in a step.
    pub num_batch: usize,
    /// Storage type of keys.
    pub cache_k: KvType,
    /// Storage type of values.
    pub cache_v: KvType,
    /// Largest number of running sequences; further ones wait. `None` is limited by the pages only.
    pub max_sequences: Option<usize>,
    /// Number of KV pages of [`PAGE_TOKENS`](crate::PAGE_TOKENS) tokens. `None` is enough for
    /// `max_sequences` full contexts, or for one if that is `None`. With fewer pages, sequences are
    /// preempted. No context is longer than all pages together.
    pub cache_pages: Option<usize>,
    /// Number of window pages, for layers with sliding-window attention; pages behind the window
    /// are released. `None` is enough for the windows of `max_sequences` and a few cached
    /// sequences, or takes as much memory as all full pages if that is `None`; never less than one
    /// step needs.
    pub window_pages: Option<usize>,
    /// Number of state slots of a recurrent model: one for each running sequence, the others for
    /// state checkpoints in the prefix tree. `None` is `max_sequences` and a few more, or what fits
    /// in 512 MiB if that is `None`.
    pub states: Option<usize>,
    /// Speculative decoding of requests without own settings.
    pub speculation: Speculation,
    /// Largest number of bytes of the rows of media that stay in memory for later requests.
    pub media_cache_bytes: usize,
    /// LoRA adapters, which all apply to the model but not to a draft model.
    pub adapters: Vec<Adapter>,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            num_ctx: None,
            num_batch: 512,
            cache_k: KvType::F16,
            cache_v: KvType::F16,
            max_sequences: Some(4),
            cache_pages: None,
            window_pages: None,
            states: None,
            speculation: Speculation::AUTO,
            media_cache_bytes: 256 << 20,
            adapters: Vec::new(),
        }
    }
}

/// Properties of a loaded model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelInfo {
    /// Name of the architecture.
    pub architecture: &'static str,
    /// Context size in tokens.
    pub n_ctx: usize,
    /// Context size that the model was trained with, in tokens.
    pub n_ctx_train: usize,
    /// Features of hidden states and embeddings.
    pub n_embd: usize,
    /// Number of layers.
    pub n_layer: usize,
    /// Size of the vocabulary.
    pub n_vocab: usize,
    /// Whether attention is causal.
    pub causal: bool,
    /// Whether the model has recurrent states, which cannot be rolled back.
    pub recurrent: bool,
    /// Start token of the decoder in an encoder–decoder model.
    pub start: Option<u32>,
    /// Whether the model generates text.
    pub can_generate: bool,
    /// How a diffusion model unmasks; `None` for autoregressive models.
    pub unmasking: Option<Unmasking>,
    /// Whether the model scores query–document pairs (reranking).
    pub can_rerank: bool,
    /// Pooling of hidden states to an embedding.
    pub pooling: Pooling,
    /// Number of parameters.
    pub parameters: u64,
}

impl ModelInfo {
    /// Properties of a model in an engine with context size `n_ctx`.
    pub(crate) fn of(model: &Model, view: &View, n_ctx: usize) -> Self {
        let shape = model.shape();
        Self {
            architecture: model.architecture(),
            n_ctx,
            n_ctx_train: shape.n_ctx,
            n_embd: shape.n_embd,
            n_layer: shape.n_layer,
            n_vocab: shape.n_vocab,
            causal: shape.causal,
            recurrent: !model.states().is_empty(),
            start: shape.start_token,
            can_generate: shape.has_logits,
            unmasking: shape.unmasking,
            can_rerank: model.pooling() == Pooling::Rank && shape.score_labels > 0,
            pooling: model.pooling(),
            parameters: view.gguf().parameter_count(),
        }
    }

    /// Whether the model can verify drafts. Recurrent states cannot roll back rejected tokens,
    /// draft models do not read the input of an encoder, and diffusion models do not generate token
    /// by token.
    pub(crate) fn takes_drafts(&self) -> bool {
        !self.recurrent && self.start.is_none() && self.can_generate && self.causal
    }
}

/// Memory in bytes by purpose.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemoryReport {
    /// Weights, mapped from the file.
    pub weights: u64,
    /// KV cache with all pages in use.
    pub cache: u64,
    /// Recurrent states with all slots in use.
    pub states: u64,
    /// Intermediate results.
    pub scratch: u64,
    /// Total of a separate draft model; only the weights of a companion.
    pub draft: u64,
}

impl MemoryReport {
    /// Sum of all purposes.
    pub fn total(&self) -> u64 {
        self.weights + self.cache + self.states + self.scratch + self.draft
    }
}
