//! What a loaded model depends on, and when another request needs it loaded anew.

use serde::{Deserialize, Serialize};

use crate::speculate::Draft;

/// Contexts to which one is reduced when memory did not suffice after all, in order.
const REDUCED_CONTEXTS: [u32; 2] = [32768, 4096];

/// Contexts are not made smaller than this: with less, conversations are cut that nobody would call long.
const LEAST_CONTEXT: u32 = 4096;

/// Options that are fixed when a model is loaded.
///
/// The context is none of them as far as requests go: what a request names is a limit of its own. Here it is what the
/// runner is to have room for, which is all that the model was trained with, or as much as memory has.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadOptions {
    /// Tokens of one conversation at most.
    pub num_ctx: u32,
    /// Tokens of all conversations together, and of what is kept of earlier ones; at least `num_ctx`.
    pub cache: u32,
    /// Prompt tokens a step; `None` is automatic.
    pub num_batch: Option<u32>,
    /// Threads; 0 is automatic.
    pub num_thread: u32,
    /// Conversations at once; `None` is as many as there is room for.
    pub parallel: Option<u32>,
    /// Whether answers do not depend on what else is computed.
    pub deterministic: bool,
    /// A small model that guesses ahead.
    pub draft: Option<Draft>,
}

impl LoadOptions {
    /// Whether a model that was loaded with `self` must be loaded anew for a request with `wanted`. Room for contexts does
    /// not count: it is as much as could be had.
    pub fn needs_reload(&self, wanted: &Self) -> bool {
        self.num_batch != wanted.num_batch
            || self.num_thread != wanted.num_thread
            || self.deterministic != wanted.deterministic
            // One that nobody wants does no harm.
            || (wanted.draft.is_some() && wanted.draft != self.draft)
    }

    /// Whether there is room for contexts longer than most conversations.
    pub fn is_generous(&self) -> bool {
        self.num_ctx > REDUCED_CONTEXTS[0]
    }

    /// Takes less memory: first without a draft model that nobody asked for, then with less room beside one conversation,
    /// then with half of the context. Returns whether that was possible.
    pub fn reduce(&mut self) -> bool {
        if self.draft.as_ref().is_some_and(|draft| draft.optional) {
            self.draft = None;
        } else if self.cache > self.num_ctx {
            self.cache = (self.cache / 2).max(self.num_ctx);
        } else if self.num_ctx > LEAST_CONTEXT {
            self.halve_context();
        } else {
            return false;
        }
        true
    }

    /// Has room for half of the context.
    pub fn halve_context(&mut self) {
        self.num_ctx = (self.num_ctx.next_power_of_two() / 2).max(LEAST_CONTEXT).min(self.num_ctx);
        self.cache = self.num_ctx;
    }

    /// Takes much less memory, as what was planned did not suffice. Returns whether that was possible.
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
    fn room_for_contexts_is_no_reason_to_load_anew() {
        assert!(!loaded().needs_reload(&LoadOptions {
            num_ctx: 262144,
            cache: 262144,
            ..loaded()
        }));
        assert!(!loaded().needs_reload(&LoadOptions { num_ctx: 1024, cache: 1024, ..loaded() }));
    }

    #[test]
    fn batches_threads_and_determinism_count() {
        assert!(loaded().needs_reload(&LoadOptions { num_batch: Some(512), ..loaded() }));
        assert!(loaded().needs_reload(&LoadOptions { num_thread: 2, ..loaded() }));
        assert!(loaded().needs_reload(&LoadOptions { deterministic: true, ..loaded() }));
    }

    #[test]
    fn a_draft_model_is_loaded_when_wanted_kept_when_not_and_given_up_first() {
        let draft =
            |name: &str, optional| Some(Draft { name: name.into(), weights: None, optional });
        let with = LoadOptions { draft: draft("a", true), ..loaded() };
        assert!(loaded().needs_reload(&with) && !with.needs_reload(&loaded()));
        assert!(with.needs_reload(&LoadOptions { draft: draft("b", true), ..loaded() }));
        let mut reduced = LoadOptions { num_ctx: 8192, cache: 8192, ..with };
        assert!(reduced.reduce());
        assert_eq!((reduced.draft, reduced.num_ctx), (None, 8192));
        let mut asked = LoadOptions { draft: draft("a", false), ..loaded() };
        assert!(!asked.reduce() && asked.draft.is_some());
    }

    /// Contexts and tokens of all conversations as they are reduced.
    fn steps(num_ctx: u32, cache: u32) -> Vec<(u32, u32)> {
        let mut options = LoadOptions { num_ctx, cache, ..loaded() };
        let steps =
            std::iter::from_fn(|| options.reduce().then_some((options.num_ctx, options.cache)));
        steps.collect()
    }

    #[test]
    fn room_beside_one_conversation_is_given_up_before_its_context() {
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
    fn what_did_not_suffice_is_reduced_to_32768_or_4096_at_once() {
        let reduced = |num_ctx| {
            let mut options = LoadOptions { num_ctx, cache: num_ctx.max(16384), ..loaded() };
            options.reduce_once().then_some((options.num_ctx, options.cache))
        };
        assert_eq!(reduced(131072), Some((32768, 32768)));
        assert_eq!(reduced(32768), Some((4096, 4096)));
        assert_eq!(reduced(2048), Some((2048, 2048)));
        let mut least = LoadOptions { num_ctx: 2048, cache: 2048, ..loaded() };
        assert!(!least.reduce_once());
    }
}
