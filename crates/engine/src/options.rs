//! Options of an engine, facts of a loaded model, and memory planning.

use puna_gguf::View;
use puna_graph::{Backend, CacheSpec, KvType, StateSpec};
use puna_models::{
    Adapter, LoadOptions, Model, Pooling, Unmasking, check_architecture, check_companion,
    is_companion,
};
use puna_tokenizer::Tokenizer;

use crate::diffusion;
use crate::error::EngineError;
use crate::executor::ModelExecutor;
use crate::pages::{PAGE_TOKENS, Pages, Windows};
use crate::speculate::Speculation;
use crate::speculate::model::{
    DraftModel, ModelDrafter, check_companion_vocabulary, check_vocabulary, model_name,
};

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
    /// Number of KV pages of [`PAGE_TOKENS`] tokens. `None` is enough for `max_sequences` full contexts, or for one if that
    /// is `None`. With fewer pages, sequences are preempted. No context is longer than all pages together.
    pub cache_pages: Option<usize>,
    /// Number of window pages, for layers with sliding-window attention; pages behind the window are released. `None` is
    /// enough for the windows of `max_sequences` and a few cached sequences, or takes as much memory as all full pages
    /// if that is `None`; never less than one step needs.
    pub recent_pages: Option<usize>,
    /// Number of state slots of a recurrent model: one for each running sequence, the others for state checkpoints in the
    /// prefix tree. `None` is `max_sequences` and a few more, or what fits in 512 MiB if that is `None`.
    pub states: Option<usize>,
    /// Speculative decoding of requests without own settings.
    pub speculation: Speculation,
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
            recent_pages: None,
            states: None,
            speculation: Speculation::AUTO,
            adapters: Vec::new(),
        }
    }
}

/// Facts of a loaded model.
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
    pub can_rank: bool,
    /// Pooling of hidden states to an embedding.
    pub pooling: Pooling,
    /// Number of parameters.
    pub parameters: u64,
}

impl ModelInfo {
    /// Facts of a model in an engine with these options.
    pub(crate) fn of(model: &Model, view: &View, options: &EngineOptions) -> Self {
        let shape = model.shape();
        Self {
            architecture: model.architecture(),
            n_ctx: context(model, options),
            n_ctx_train: shape.n_ctx,
            n_embd: shape.n_embd,
            n_layer: shape.n_layer,
            n_vocab: shape.n_vocab,
            causal: shape.causal,
            recurrent: !model.states().is_empty(),
            start: shape.start_token,
            can_generate: shape.has_logits,
            unmasking: shape.unmasking,
            can_rank: model.pooling() == Pooling::Rank && shape.score_labels > 0,
            pooling: model.pooling(),
            parameters: view.gguf().parameter_count(),
        }
    }

    /// Whether the model can verify drafts. Recurrent states cannot roll back rejected tokens, draft models do not read the
    /// input of an encoder, and diffusion models do not generate token by token.
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

/// Checks that a file can be loaded with these adapters, or as a companion draft model: its metadata, vocabulary, and tensor
/// names and shapes. Reads no weights.
///
/// # Errors
///
/// The error that loading the file would return.
pub fn check_model(view: &View, adapters: &[Adapter]) -> Result<(), EngineError> {
    if is_companion(view.metadata()) {
        return Ok(check_companion(view)?);
    }
    // Checked first, so that an unknown architecture is not reported as an unknown vocabulary.
    check_architecture(view.metadata())?;
    Tokenizer::from_metadata(view.metadata())?;
    Model::load_with_adapters(view, adapters, LoadOptions::default())?;
    Ok(())
}

/// Checks that a draft model fits its target model: it can be loaded, has the same vocabulary, and a companion finds the tensors
/// of the target that it uses. For a target that cannot verify drafts, any separate model passes, since it is ignored.
///
/// # Errors
///
/// As [`check_model`] for the draft model; and [`EngineError::DraftVocabulary`], or [`ModelError::Companion`](puna_models::ModelError::Companion).
pub fn check_draft(model: &View, draft: &View) -> Result<(), EngineError> {
    let (name, tokenizer) = (model_name(model), Tokenizer::from_metadata(model.metadata())?);
    if is_companion(draft.metadata()) {
        check_companion_vocabulary(draft, &name, &tokenizer)?;
        return Ok(
            Model::load_with_draft(model, &[], LoadOptions::default(), Some(draft)).map(drop)?
        );
    }
    check_model(draft, &[])?;
    let loaded = Model::load(model, LoadOptions::default())?;
    match ModelInfo::of(&loaded, model, &EngineOptions::default()).takes_drafts() {
        true => check_vocabulary(draft, &name, &tokenizer),
        false => Ok(()),
    }
}

/// Memory that a model takes with these options. `backend` is a fresh backend of the kind that will run the model: it compiles
/// the largest step, which reserves addresses but no memory, and is dropped.
pub fn plan_memory(
    view: &View,
    backend: Box<dyn Backend>,
    options: &EngineOptions,
) -> Result<MemoryReport, EngineError> {
    ModelExecutor::bare(view, backend, options, None)?.memory(options)
}

/// Like [`plan_memory`], with a draft model. A separate draft model has a KV cache for as many and as long sequences.
pub fn plan_memory_with_draft(
    view: &View,
    backend: Box<dyn Backend>,
    options: &EngineOptions,
    draft: DraftModel,
) -> Result<MemoryReport, EngineError> {
    let companion = draft.is_companion().then_some(&draft.view);
    let mut executor = ModelExecutor::bare(view, backend, options, companion)?;
    diffusion::check_draft_support(&executor.info)?;
    let alone = executor.memory(options)?;
    if companion.is_some() {
        return Ok(alone);
    }
    let draft =
        if executor.info.takes_drafts() { ModelDrafter::plan(draft, options)?.total() } else { 0 };
    Ok(MemoryReport { draft, ..alone })
}

/// Context size in tokens: the requested one, at most the trained one, the size of the cache, and the limit of diffusion models.
/// A sequence that has the cache to itself therefore never runs out of pages.
pub(crate) fn context(model: &Model, options: &EngineOptions) -> usize {
    let trained = match model.shape().unmasking {
        Some(_) => model.shape().n_ctx.min(diffusion::CONTEXT),
        None => model.shape().n_ctx,
    };
    let wanted = options.num_ctx.map_or(trained, |n| n.clamp(1, trained.max(1)));
    match options.cache_pages {
        Some(pages) if has_pages(model) => wanted.min(pages.max(1).saturating_mul(PAGE_TOKENS)),
        _ => wanted,
    }
}

/// KV cache with the requested pages, else with enough for full contexts of all running sequences.
pub(crate) fn cache_spec(model: &Model, options: &EngineOptions) -> CacheSpec {
    // One more page, so that a sequence that shares all pages but its last can copy one.
    let sequences = options.max_sequences.map_or(1, |n| n.max(1));
    let full = || context(model, options).div_ceil(PAGE_TOKENS) * sequences + 1;
    let pages = options.cache_pages.map_or_else(full, |pages| pages.max(1));
    let spec = CacheSpec {
        layers: model.cache_layers().to_vec(),
        key_type: options.cache_k,
        value_type: options.cache_v,
        page_tokens: PAGE_TOKENS,
        pages: if has_pages(model) { pages } else { 0 },
        recent_pages: 0,
    };
    CacheSpec { recent_pages: recent_pages(&spec, options), ..spec }
}

/// Attention windows of the layers without full attention.
fn windows(spec: &CacheSpec) -> Windows {
    Windows::new(spec.layers.iter().map(|layer| layer.mask))
}

/// Number of window pages: the requested one, else enough for the windows of some sequences and one step; at most all pages.
fn recent_pages(spec: &CacheSpec, options: &EngineOptions) -> usize {
    let windows = windows(spec);
    if windows.is_empty() {
        return 0;
    }
    // One more for a page that is copied in part or being filled.
    let each = windows.pages(1) + 1;
    let least = windows.pages(options.num_batch.max(1)) + 1;
    let fit = |bytes: usize| bytes / (each * spec.recent_page_bytes()).max(1);
    let sequences = match options.max_sequences.map(|n| n.max(1)) {
        Some(n) => {
            n + fit(OPEN_STATE_BYTES)
                .saturating_sub(n)
                .clamp(*CHECKPOINT_SLOTS.start(), *CHECKPOINT_SLOTS.end())
        }
        None => {
            let others = spec.pages.saturating_mul(spec.page_bytes());
            fit(OPEN_STATE_BYTES.max(others)).clamp(*OPEN_SLOTS.start(), *OPEN_SLOTS.end())
        }
    };
    let chunk = options.num_batch.div_ceil(PAGE_TOKENS);
    options.recent_pages.unwrap_or(sequences * each + chunk).max(least).min(spec.pages)
}

impl Pages {
    /// Free pages of a model's caches.
    pub(crate) fn of(model: &Model, options: &EngineOptions) -> Self {
        let spec = cache_spec(model, options);
        let states = state_spec(model, options).slots;
        Self::new(spec.pages).with_states(states).with_recent(windows(&spec), spec.recent_pages)
    }
}

/// Whether a model has a cache. The pages of a purely recurrent model hold no values, but the prefix tree stores their tokens.
fn has_pages(model: &Model) -> bool {
    !model.cache_layers().is_empty() || !model.states().is_empty()
}

/// Bytes of state slots, and of window pages, if the number of sequences is open.
const OPEN_STATE_BYTES: usize = 512 << 20;
/// Least number of pages per state slot in that case.
const MIN_PAGES_PER_SLOT: usize = 8;
/// Bounds of the number of state slots in that case.
const OPEN_SLOTS: std::ops::RangeInclusive<usize> = 4..=64;
/// Bounds of the number of slots for checkpoints if the number of sequences is given.
const CHECKPOINT_SLOTS: std::ops::RangeInclusive<usize> = 2..=16;

/// State slots: the requested number, else enough for sequences and checkpoints.
pub(crate) fn state_spec(model: &Model, options: &EngineOptions) -> StateSpec {
    let states = model.states().to_vec();
    let one = StateSpec { states, slots: 1 };
    let fit = OPEN_STATE_BYTES / one.slot_bytes().max(1);
    let slots = match (options.states, options.max_sequences) {
        (Some(slots), _) => slots.max(1),
        (None, Some(sequences)) => {
            let sequences = sequences.max(1);
            sequences
                + fit
                    .saturating_sub(sequences)
                    .clamp(*CHECKPOINT_SLOTS.start(), *CHECKPOINT_SLOTS.end())
        }
        (None, None) => {
            // Fewer with a small cache, which indicates scarce memory.
            let pages = options.cache_pages.unwrap_or(usize::MAX);
            fit.min(pages / MIN_PAGES_PER_SLOT).clamp(*OPEN_SLOTS.start(), *OPEN_SLOTS.end())
        }
    };
    StateSpec { slots: if one.states.is_empty() { 0 } else { slots }, ..one }
}

#[cfg(test)]
mod tests {
    use puna_graph::{CacheLayer, Mask};

    use super::*;

    /// A model of so many layers of which each `nth` sees everything and the others 1024 tokens (Gemma 3), with a cache of so many
    /// pages.
    fn gemma(
        layers: usize,
        nth: usize,
        (kv_heads, dim): (usize, usize),
        pages: usize,
    ) -> CacheSpec {
        let layer = |i: usize| {
            let mask = if (i + 1).is_multiple_of(nth) { Mask::Causal } else { Mask::Window(1024) };
            CacheLayer { kv_heads, key_dim: dim, value_dim: dim, values_in_keys: false, mask }
        };
        let (layers, page_tokens) = ((0..layers).map(layer).collect(), PAGE_TOKENS);
        let (key_type, value_type) = (KvType::F16, KvType::F16);
        CacheSpec { layers, key_type, value_type, page_tokens, pages, recent_pages: 0 }
    }

    /// Millions of bytes of cache, with all pages and with those that are planned.
    fn millions(spec: &CacheSpec, max_sequences: Option<usize>) -> [u64; 2] {
        let options = EngineOptions { max_sequences, ..EngineOptions::default() };
        [spec.pages, recent_pages(spec, &options)]
            .map(|recent_pages| CacheSpec { recent_pages, ..spec.clone() }.bytes() / 1_000_000)
    }

    #[test]
    fn layers_with_windows_take_what_some_sequences_see() {
        let pages = |tokens: usize| tokens / PAGE_TOKENS + 1;
        // Gemma 3 4B and 27B.
        let (small, large) = ((34, 6, (4, 256)), (62, 6, (16, 128)));
        let of = |(layers, nth, heads), tokens, most| {
            millions(&gemma(layers, nth, heads, pages(tokens)), most)
        };
        assert_eq!(of(small, 1 << 15, Some(1)), [4572, 1166]);
        assert_eq!(of(small, 1 << 17, Some(1)), [18262, 3179]);
        assert_eq!(of(small, 1 << 17, None), [18262, 5346]);
        assert_eq!(of(large, 1 << 15, None), [16675, 5497]);
        assert_eq!(of(large, 1 << 17, None), [66604, 21320]);
        // Less than a window saves nothing.
        let short = of(small, 1024, Some(1));
        assert_eq!(short[0], short[1]);
    }

    #[test]
    fn there_are_always_the_pages_of_one_step() {
        let spec = gemma(4, 2, (1, 64), 1000);
        let asked = |recent, num_batch| {
            let options =
                EngineOptions { recent_pages: Some(recent), num_batch, ..EngineOptions::default() };
            recent_pages(&spec, &options)
        };
        // 1024 tokens and those of the step, wherever they begin, and one that is copied.
        assert_eq!([asked(0, 64), asked(0, 2048), asked(30, 64)], [19, 50, 30]);
        assert_eq!([asked(usize::MAX, 64), asked(0, 1 << 20)], [1000; 2]);
        let plain = CacheSpec { layers: Vec::new(), ..spec };
        assert_eq!(recent_pages(&plain, &EngineOptions::default()), 0);
    }
}
