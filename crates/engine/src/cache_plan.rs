//! Sizes of a model's caches: context, KV pages, window pages and state slots.

use puna_graph::{CacheSpec, StateSpec};
use puna_models::Model;

use crate::config::EngineOptions;
use crate::diffusion;
use crate::kv::{PAGE_TOKENS, PagePool, Windows};

/// Context size in tokens: the requested one, at most the trained one, the size of the cache, and
/// the limit of diffusion models. A sequence that has the cache to itself therefore never runs out
/// of pages.
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
        window_pages: 0,
    };
    CacheSpec { window_pages: window_pages(&spec, options), ..spec }
}

/// Attention windows of the layers without full attention.
fn windows(spec: &CacheSpec) -> Windows {
    Windows::new(spec.layers.iter().map(|layer| layer.mask))
}

/// Number of window pages: the requested one, else enough for the windows of some sequences and one
/// step; at most all pages.
fn window_pages(spec: &CacheSpec, options: &EngineOptions) -> usize {
    let windows = windows(spec);
    if windows.is_empty() {
        return 0;
    }
    // One more for a page that is copied in part or being filled.
    let each = windows.pages(1) + 1;
    let min = windows.pages(options.num_batch.max(1)) + 1;
    let fit = |bytes: usize| bytes / (each * spec.window_page_bytes()).max(1);
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
    options.window_pages.unwrap_or(sequences * each + chunk).max(min).min(spec.pages)
}

impl PagePool {
    /// Free pages of a model's caches.
    pub(crate) fn of(model: &Model, options: &EngineOptions) -> Self {
        let spec = cache_spec(model, options);
        let states = state_spec(model, options).slots;
        Self::new(spec.pages)
            .with_states(states)
            .with_window_pages(windows(&spec), spec.window_pages)
    }
}

/// Whether a model has a cache. The pages of a purely recurrent model hold no values, but the
/// prefix tree stores their tokens.
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
    use puna_graph::{CacheLayer, KvType, Mask};

    use super::*;

    /// Cache of a model with `layers` layers, of which each `nth` has full attention and the others
    /// a window of 1024 tokens (Gemma 3).
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
        CacheSpec { layers, key_type, value_type, page_tokens, pages, window_pages: 0 }
    }

    /// Cache sizes in megabytes (10⁶ bytes): with all window pages, and with the planned number.
    fn millions(spec: &CacheSpec, max_sequences: Option<usize>) -> [u64; 2] {
        let options = EngineOptions { max_sequences, ..EngineOptions::default() };
        [spec.pages, window_pages(spec, &options)]
            .map(|window_pages| CacheSpec { window_pages, ..spec.clone() }.bytes() / 1_000_000)
    }

    #[test]
    fn window_pages_suffice_for_the_windows_of_some_sequences() {
        let pages = |tokens: usize| tokens / PAGE_TOKENS + 1;
        // Gemma 3 4B and 27B.
        let (small, large) = ((34, 6, (4, 256)), (62, 6, (16, 128)));
        let of = |(layers, nth, heads), tokens, max| {
            millions(&gemma(layers, nth, heads, pages(tokens)), max)
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
    fn the_cache_always_holds_the_pages_of_one_step() {
        let spec = gemma(4, 2, (1, 64), 1000);
        let asked = |pages, num_batch| {
            let options =
                EngineOptions { window_pages: Some(pages), num_batch, ..EngineOptions::default() };
            window_pages(&spec, &options)
        };
        // The window, the rows of the step at any alignment, and a copied page.
        assert_eq!([asked(0, 64), asked(0, 2048), asked(30, 64)], [19, 50, 30]);
        assert_eq!([asked(usize::MAX, 64), asked(0, 1 << 20)], [1000; 2]);
        let plain = CacheSpec { layers: Vec::new(), ..spec };
        assert_eq!(window_pages(&plain, &EngineOptions::default()), 0);
    }
}
