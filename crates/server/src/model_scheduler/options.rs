//! Load options, and when a request needs a model to be loaded again.

use serde::{Deserialize, Serialize};

use crate::options::speculate::DraftModelSpec;

/// Contexts in tokens that are tried in order when a load runs out of memory.
const REDUCED_CONTEXTS: [u32; 2] = [32768, 4096];

/// Minimum reduced context in tokens. Less would truncate conversations of ordinary length.
const MIN_CONTEXT: u32 = 4096;

/// Options that are fixed when a model is loaded.
///
/// A request's own context limit is not among them. `num_ctx` is the context that the runner
/// reserves memory for: the model's full training context, or as much as memory allows.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadOptions {
    /// Maximum tokens of one conversation.
    pub num_ctx: u32,
    /// KV cache size in tokens of all conversations and cached prefixes; at least `num_ctx`.
    pub cache: u32,
    /// Maximum prompt tokens per step; `None` is automatic.
    pub num_batch: Option<u32>,
    /// Threads; 0 is automatic.
    pub num_thread: u32,
    /// Maximum concurrent conversations; `None` is limited by memory only.
    pub parallel: Option<u32>,
    /// Whether answers are independent of other requests in the batch.
    pub deterministic: bool,
    /// The draft model.
    pub draft: Option<DraftModelSpec>,
}

impl LoadOptions {
    /// Whether a model loaded with `self` must be loaded again for a request with `wanted`. Context
    /// sizes do not count, because they are as large as memory allows.
    pub fn needs_reload(&self, wanted: &Self) -> bool {
        self.num_batch != wanted.num_batch
            || self.num_thread != wanted.num_thread
            || self.deterministic != wanted.deterministic
            // A loaded draft model that the request does not want does no harm.
            || (wanted.draft.is_some() && wanted.draft != self.draft)
    }

    /// Whether the context is longer than most conversations need.
    pub fn has_long_context(&self) -> bool {
        self.num_ctx > REDUCED_CONTEXTS[0]
    }

    /// Reduces memory by one step: drops an optional draft model, else halves the cache beyond one
    /// conversation, else halves the context. Returns whether that was possible.
    pub fn reduce(&mut self) -> bool {
        if self.draft.as_ref().is_some_and(|draft| draft.optional) {
            self.draft = None;
        } else if self.cache > self.num_ctx {
            self.cache = (self.cache / 2).max(self.num_ctx);
        } else if self.num_ctx > MIN_CONTEXT {
            self.halve_context();
        } else {
            return false;
        }
        true
    }

    /// Halves the context.
    pub fn halve_context(&mut self) {
        self.num_ctx = (self.num_ctx.next_power_of_two() / 2).max(MIN_CONTEXT).min(self.num_ctx);
        self.cache = self.num_ctx;
    }

    /// Reduces memory strongly after a load ran out of memory. Returns whether that was possible.
    pub fn reduce_once(&mut self) -> bool {
        let before = self.clone();
        self.draft = self.draft.take().filter(|draft| !draft.optional);
        if let Some(smaller) = REDUCED_CONTEXTS.into_iter().find(|smaller| *smaller < self.num_ctx)
        {
            self.num_ctx = smaller;
        }
        self.cache = self.num_ctx;
        *self != before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loaded() -> LoadOptions {
        LoadOptions { num_ctx: 2048, cache: 2048, parallel: Some(1), ..LoadOptions::default() }
    }

    #[test]
    fn other_context_sizes_need_no_reload() {
        assert!(!loaded().needs_reload(&LoadOptions {
            num_ctx: 262144,
            cache: 262144,
            ..loaded()
        }));
        assert!(!loaded().needs_reload(&LoadOptions { num_ctx: 1024, cache: 1024, ..loaded() }));
    }

    #[test]
    fn other_batches_threads_and_determinism_need_a_reload() {
        assert!(loaded().needs_reload(&LoadOptions { num_batch: Some(512), ..loaded() }));
        assert!(loaded().needs_reload(&LoadOptions { num_thread: 2, ..loaded() }));
        assert!(loaded().needs_reload(&LoadOptions { deterministic: true, ..loaded() }));
    }

    #[test]
    fn a_draft_model_is_loaded_on_request_and_dropped_first() {
        let draft = |name: &str, optional| {
            Some(DraftModelSpec { name: name.into(), weights: None, optional })
        };
        let with = LoadOptions { draft: draft("a", true), ..loaded() };
        assert!(loaded().needs_reload(&with) && !with.needs_reload(&loaded()));
        assert!(with.needs_reload(&LoadOptions { draft: draft("b", true), ..loaded() }));
        let mut reduced = LoadOptions { num_ctx: 8192, cache: 8192, ..with };
        assert!(reduced.reduce());
        assert_eq!((reduced.draft, reduced.num_ctx), (None, 8192));
        let mut asked = LoadOptions { draft: draft("a", false), ..loaded() };
        assert!(!asked.reduce() && asked.draft.is_some());
    }

    /// Context and cache sizes after each reduction.
    fn steps(num_ctx: u32, cache: u32) -> Vec<(u32, u32)> {
        let mut options = LoadOptions { num_ctx, cache, ..loaded() };
        let steps =
            std::iter::from_fn(|| options.reduce().then_some((options.num_ctx, options.cache)));
        steps.collect()
    }

    #[test]
    fn cache_beyond_one_conversation_is_reduced_before_its_context() {
        let expected = [(8192, 8192), (4096, 4096)];
        assert_eq!(steps(8192, 16384), expected);
        assert_eq!(steps(2048, 16384), [(2048, 8192), (2048, 4096), (2048, 2048)]);
    }

    #[test]
    fn contexts_are_halved_down_to_4096() {
        let expected = [65536, 32768, 16384, 8192, 4096].map(|n| (n, n));
        assert_eq!(steps(131072, 131072), expected);
        assert_eq!(steps(40960, 40960)[0], (32768, 32768));
        assert_eq!(steps(5000, 5000), [(4096, 4096)]);
    }

    #[test]
    fn a_failed_load_reduces_the_context_to_32768_or_4096() {
        let reduced = |num_ctx| {
            let mut options = LoadOptions { num_ctx, cache: num_ctx.max(16384), ..loaded() };
            options.reduce_once().then_some((options.num_ctx, options.cache))
        };
        assert_eq!(reduced(131072), Some((32768, 32768)));
        assert_eq!(reduced(32768), Some((4096, 4096)));
        assert_eq!(reduced(2048), Some((2048, 2048)));
        let mut min = LoadOptions { num_ctx: 2048, cache: 2048, ..loaded() };
        assert!(!min.reduce_once());
    }
}
