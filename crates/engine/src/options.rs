//! What the caller decides, and what a model will take of memory.

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
use crate::speculate::model::{DraftModel, Drafts, check_companion_tokens, check_tokens, name_of};

/// How a model is to be loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineOptions {
    /// Tokens of a sequence at most; `None` takes the context that the model was trained with.
    pub num_ctx: Option<usize>,
    /// Tokens of a step of the model at most.
    pub num_batch: usize,
    /// Storage of keys.
    pub cache_k: KvType,
    /// Storage of values.
    pub cache_v: KvType,
    /// Sequences that run at once, while more wait; `None` is as many as there are pages for.
    pub max_sequences: Option<usize>,
    /// Pages of the cache ([`PAGE_TOKENS`] tokens each); `None` takes as many as `max_sequences` full contexts need, or one
    /// where their number is open. With fewer, sequences take turns, and no context is longer than all pages together.
    pub cache_pages: Option<usize>,
    /// Of these pages how many there are for layers in which tokens only see what is near, where a model has such: those that
    /// lie behind come back while a sequence goes on. `None` takes what as many sequences see as run at once and a
    /// few that are kept for later ones, or where their number is open what takes as much memory as the pages of all others; and always
    /// what one step sees.
    pub recent_pages: Option<usize>,
    /// Slots for recurrent states, where a model has such: one for each sequence that runs, the others for copies that later
    /// sequences continue. `None` takes a few more than there are sequences, or where their number is open what fits
    /// in half a gigabyte.
    pub states: Option<usize>,
    /// Whether and how to guess ahead, where a job does not say.
    pub speculation: Speculation,
    /// Adapters of the model, which all apply; a draft model goes without.
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

/// Figures of a loaded model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelInfo {
    /// The architecture's name.
    pub architecture: &'static str,
    /// Tokens of a sequence at most.
    pub n_ctx: usize,
    /// Context that the model was trained with.
    pub n_ctx_train: usize,
    /// Features of the hidden state, and of embeddings.
    pub n_embd: usize,
    /// Layers.
    pub n_layer: usize,
    /// Entries of the vocabulary.
    pub n_vocab: usize,
    /// Whether tokens see only what came before.
    pub causal: bool,
    /// Whether it has recurrent states, which cannot be cut back.
    pub recurrent: bool,
    /// The token that answers begin with, where an encoder reads the prompt.
    pub start: Option<u32>,
    /// Whether text can be generated.
    pub can_generate: bool,
    /// How text is made where that is not token by token.
    pub unmasking: Option<Unmasking>,
    /// Whether pairs of texts can be scored.
    pub can_rank: bool,
    /// How token vectors become one.
    pub pooling: Pooling,
    /// Parameters.
    pub parameters: u64,
}

impl ModelInfo {
    /// Those of a model in an engine with these options.
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
            start: shape.start,
            can_generate: shape.has_logits,
            unmasking: shape.unmasking,
            can_rank: model.pooling() == Pooling::Rank && shape.score_labels > 0,
            pooling: model.pooling(),
            parameters: view.gguf().parameter_count(),
        }
    }

    /// Whether a draft model is of use: a recurrent state cannot take back what did not come true, what an encoder has read no draft
    /// model reads, and where nothing is written token by token nothing is guessed.
    pub(crate) fn takes_drafts(&self) -> bool {
        !self.recurrent && self.start.is_none() && self.can_generate && self.causal
    }
}

/// Bytes by purpose.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemoryReport {
    /// Weights, mapped from the file.
    pub weights: u64,
    /// Keys and values, when every page is in use.
    pub cache: u64,
    /// Recurrent states, when every slot is in use.
    pub states: u64,
    /// Intermediate results.
    pub scratch: u64,
    /// All of that for a draft model with an engine of its own; of one that guesses with parts of its model the weights alone.
    pub draft: u64,
}

impl MemoryReport {
    /// All of it.
    pub fn total(&self) -> u64 {
        self.weights + self.cache + self.states + self.scratch + self.draft
    }
}

/// Checks that a file can be loaded with these adapters, or beside its model: its keys, its vocabulary, the names and shapes of its
/// tensors. No weight is read, and no memory is taken for any.
///
/// # Errors
/// What loading it would say.
pub fn check_model(view: &View, adapters: &[Adapter]) -> Result<(), EngineError> {
    if is_companion(view.metadata()) {
        return Ok(check_companion(view)?);
    }
    // First: of what is not known at all, the vocabulary need not be known either.
    check_architecture(view.metadata())?;
    Tokenizer::from_metadata(view.metadata())?;
    Model::load_adapted(view, adapters, LoadOptions::default())?;
    Ok(())
}

/// Checks that a draft model can guess for a model: it can be loaded, its tokens mean what the model's do, and what it reads of the
/// model is there. Where guessing is of no use, a draft model that is a model of its own is left out, whatever it is.
///
/// # Errors
/// As [`check_model`] for the draft model; and [`EngineError::DraftVocabulary`], or [`ModelError::Companion`](puna_models::ModelError::Companion).
pub fn check_draft(model: &View, draft: &View) -> Result<(), EngineError> {
    let (name, tokenizer) = (name_of(model), Tokenizer::from_metadata(model.metadata())?);
    if is_companion(draft.metadata()) {
        check_companion_tokens(draft, &name, &tokenizer)?;
        return Ok(
            Model::load_accompanied(model, &[], LoadOptions::default(), Some(draft)).map(drop)?
        );
    }
    check_model(draft, &[])?;
    let loaded = Model::load(model, LoadOptions::default())?;
    match ModelInfo::of(&loaded, model, &EngineOptions::default()).takes_drafts() {
        true => check_tokens(draft, &name, &tokenizer),
        false => Ok(()),
    }
}

/// What loading a file with these options will take. `backend` is one of the kind that is to run it, for this purpose
/// alone: it compiles the largest step, which takes addresses but no memory, and is given up again.
pub fn plan_memory(
    view: &View,
    backend: Box<dyn Backend>,
    options: &EngineOptions,
) -> Result<MemoryReport, EngineError> {
    ModelExecutor::bare(view, backend, options, None)?.memory(options)
}

/// The same with a draft model, which has a cache for as many and as long sequences, unless it reads that of its model.
pub fn plan_memory_with_draft(
    view: &View,
    backend: Box<dyn Backend>,
    options: &EngineOptions,
    draft: DraftModel,
) -> Result<MemoryReport, EngineError> {
    let companion = draft.is_companion().then_some(&draft.view);
    let mut executor = ModelExecutor::bare(view, backend, options, companion)?;
    diffusion::takes_draft(&executor.info)?;
    let alone = executor.memory(options)?;
    if companion.is_some() {
        return Ok(alone);
    }
    let draft =
        if executor.info.takes_drafts() { Drafts::plan(draft, options)?.total() } else { 0 };
    Ok(MemoryReport { draft, ..alone })
}

/// The context of a sequence: what was asked for, but not more than the model was trained with or the cache holds, nor more than a
/// diffusion model computes in each step. So a sequence that has the cache to itself never runs out of pages.
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

/// The pages that were asked for, else those of as many full sequences as run at once.
pub(crate) fn cache_spec(model: &Model, options: &EngineOptions) -> CacheSpec {
    // One more, so that a sequence that shares all but its last page can still copy one.
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

/// How far a model's layers see that do not see everything.
fn windows(spec: &CacheSpec) -> Windows {
    Windows::new(spec.layers.iter().map(|layer| layer.mask))
}

/// The recent pages that were asked for, else what some sequences see and one step computes; never more than there are pages.
fn recent_pages(spec: &CacheSpec, options: &EngineOptions) -> usize {
    let windows = windows(spec);
    if windows.is_empty() {
        return 0;
    }
    // One more for the page that a sequence copies the beginning of, or is about to fill.
    let each = windows.pages(1) + 1;
    let least = windows.pages(options.num_batch.max(1)) + 1;
    let fit = |bytes: usize| bytes / (each * spec.recent_page_bytes()).max(1);
    let sequences = match options.max_sequences.map(|n| n.max(1)) {
        Some(n) => n + fit(STATE_BYTES).saturating_sub(n).clamp(*COPIES.start(), *COPIES.end()),
        None => {
            let others = spec.pages.saturating_mul(spec.page_bytes());
            fit(STATE_BYTES.max(others)).clamp(*OPEN_STATES.start(), *OPEN_STATES.end())
        }
    };
    let chunk = options.num_batch.div_ceil(PAGE_TOKENS);
    options.recent_pages.unwrap_or(sequences * each + chunk).max(least).min(spec.pages)
}

impl Pages {
    /// Those of a model, all free.
    pub(crate) fn of(model: &Model, options: &EngineOptions) -> Self {
        let spec = cache_spec(model, options);
        let states = state_spec(model, options).slots;
        Self::new(spec.pages).with_states(states).with_recent(windows(&spec), spec.recent_pages)
    }
}

/// Whether a model remembers anything from step to step. Pages of one that only has states hold nothing, but the tree has their
/// tokens.
fn has_pages(model: &Model) -> bool {
    !model.cache_layers().is_empty() || !model.states().is_empty()
}

/// Bytes of states, and of what sequences see of recent pages, where nobody says how many sequences run.
const STATE_BYTES: usize = 512 << 20;
/// Pages that there are for each slot in that case, at least.
const PAGES_A_STATE: usize = 8;
/// Slots in that case.
const OPEN_STATES: std::ops::RangeInclusive<usize> = 4..=64;
/// Slots for copies, where it is said.
const COPIES: std::ops::RangeInclusive<usize> = 2..=16;

/// The slots that were asked for, else some for sequences and copies.
pub(crate) fn state_spec(model: &Model, options: &EngineOptions) -> StateSpec {
    let states = model.states().to_vec();
    let one = StateSpec { states, slots: 1 };
    let fit = STATE_BYTES / one.slot_bytes().max(1);
    let slots = match (options.states, options.max_sequences) {
        (Some(slots), _) => slots.max(1),
        (None, Some(sequences)) => {
            let sequences = sequences.max(1);
            sequences + fit.saturating_sub(sequences).clamp(*COPIES.start(), *COPIES.end())
        }
        (None, None) => {
            // Fewer with a small cache: that is what is given up where memory is scarce.
            let pages = options.cache_pages.unwrap_or(usize::MAX);
            fit.min(pages / PAGES_A_STATE).clamp(*OPEN_STATES.start(), *OPEN_STATES.end())
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
