//! What a loaded model depends on, and when another request needs it loaded anew.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::speculate::Draft;

/// Contexts to which an automatic one is reduced when memory does not suffice, in order.
pub const REDUCED_CONTEXTS: [u32; 2] = [32768, 4096];

/// Options that are fixed when a model is loaded.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadOptions {
    /// Tokens of one conversation at most.
    pub num_ctx: u32,
    /// Nobody asked for that number.
    pub num_ctx_auto: bool,
    /// Tokens the model was trained for; 0 if unknown.
    pub num_ctx_train: u32,
    /// Prompt tokens a step; `None` is automatic.
    pub num_batch: Option<u32>,
    /// Layers on graphics cards; negative is automatic.
    pub num_gpu: i32,
    /// The graphics card to use.
    pub main_gpu: Option<i32>,
    /// Whether to map the file; `None` is automatic (it is).
    pub use_mmap: Option<bool>,
    /// Threads; 0 is automatic.
    pub num_thread: u32,
    /// Conversations at once.
    pub parallel: u32,
    /// Nobody asked for that number.
    pub parallel_auto: bool,
    /// Adapters to apply.
    pub adapters: Vec<PathBuf>,
    /// Whether answers do not depend on what else is computed.
    pub deterministic: bool,
    /// A small model that guesses ahead.
    pub draft: Option<Draft>,
}

impl LoadOptions {
    /// Whether a model that was loaded with `self` must be loaded anew for a request with `wanted`.
    pub fn needs_reload(&self, wanted: &Self) -> bool {
        let cut = |n: u32| if wanted.num_ctx_train > 0 { n.min(wanted.num_ctx_train) } else { n };
        let context = cut(wanted.num_ctx) != cut(self.num_ctx) && !(self.num_ctx_auto && wanted.num_ctx_auto);
        let gpu = wanted.num_gpu >= 0 && wanted.num_gpu != self.num_gpu;
        context
            || gpu
            || self.num_batch != wanted.num_batch
            || self.main_gpu != wanted.main_gpu
            || self.use_mmap.unwrap_or(true) != wanted.use_mmap.unwrap_or(true)
            || self.num_thread != wanted.num_thread
            || self.adapters != wanted.adapters
            || self.deterministic != wanted.deterministic
            // One that nobody wants does no harm.
            || (wanted.draft.is_some() && wanted.draft != self.draft)
    }

    /// Takes less memory, as far as its size is automatic: first without a draft model that nobody asked for, then one
    /// conversation at a time, then the next smaller context. Returns whether that was possible.
    pub fn reduce(&mut self) -> bool {
        if self.draft.as_ref().is_some_and(|draft| draft.optional) {
            self.draft = None;
            return true;
        }
        if self.parallel_auto && self.parallel > 1 {
            self.parallel = 1;
            return true;
        }
        let present =
            if self.num_ctx_train > 0 { self.num_ctx.min(self.num_ctx_train) } else { self.num_ctx };
        match REDUCED_CONTEXTS.into_iter().find(|smaller| *smaller < present) {
            Some(smaller) if self.num_ctx_auto => {
                self.num_ctx = smaller;
                true
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loaded() -> LoadOptions {
        LoadOptions { num_ctx: 2048, num_ctx_train: 2048, num_gpu: -1, parallel: 1, ..LoadOptions::default() }
    }

    #[test]
    fn a_context_is_compared_after_it_is_cut_to_the_trained_one() {
        let run = loaded();
        assert!(!run.needs_reload(&LoadOptions { num_ctx: 262144, ..loaded() }));
        assert!(run.needs_reload(&LoadOptions { num_ctx: 1024, ..loaded() }));
    }

    #[test]
    fn two_automatic_contexts_are_equal_and_an_explicit_one_is_not() {
        let run = LoadOptions { num_ctx: 131072, num_ctx_train: 0, num_ctx_auto: true, ..loaded() };
        let auto = LoadOptions { num_ctx: 262144, ..run.clone() };
        assert!(!run.needs_reload(&auto));
        assert!(run.needs_reload(&LoadOptions { num_ctx_auto: false, ..auto }));
    }

    #[test]
    fn automatic_numbers_of_layers_are_ignored_and_given_ones_are_not() {
        assert!(loaded().needs_reload(&LoadOptions { num_gpu: 99, ..loaded() }));
        assert!(!loaded().needs_reload(&LoadOptions { num_gpu: -1, ..loaded() }));
        let run = LoadOptions { num_gpu: 99, ..loaded() };
        assert!(!run.needs_reload(&loaded()));
    }

    #[test]
    fn batches_threads_mapping_and_adapters_count() {
        assert!(loaded().needs_reload(&LoadOptions { num_batch: Some(512), ..loaded() }));
        assert!(loaded().needs_reload(&LoadOptions { num_thread: 2, ..loaded() }));
        assert!(loaded().needs_reload(&LoadOptions { deterministic: true, ..loaded() }));
        assert!(loaded().needs_reload(&LoadOptions { use_mmap: Some(false), ..loaded() }));
        assert!(!loaded().needs_reload(&LoadOptions { use_mmap: Some(true), ..loaded() }));
        assert!(loaded().needs_reload(&LoadOptions { adapters: vec!["a".into()], ..loaded() }));
    }

    #[test]
    fn a_draft_model_is_loaded_when_wanted_kept_when_not_and_given_up_first() {
        let draft = |name: &str, optional| Some(Draft { name: name.into(), weights: None, optional });
        let with = LoadOptions { draft: draft("a", true), ..loaded() };
        assert!(loaded().needs_reload(&with) && !with.needs_reload(&loaded()));
        assert!(with.needs_reload(&LoadOptions { draft: draft("b", true), ..loaded() }));
        let mut reduced = LoadOptions { num_ctx: 8192, num_ctx_auto: true, num_ctx_train: 0, ..with };
        assert!(reduced.reduce());
        assert_eq!((reduced.draft, reduced.num_ctx), (None, 8192));
        let mut asked = LoadOptions { draft: draft("a", false), ..loaded() };
        assert!(!asked.reduce() && asked.draft.is_some());
    }

    #[test]
    fn conversations_at_once_are_given_up_before_context() {
        let mut options =
            LoadOptions { num_ctx: 8192, num_ctx_auto: true, parallel: 4, parallel_auto: true, ..loaded() };
        options.num_ctx_train = 0;
        assert!(options.reduce());
        assert_eq!((options.parallel, options.num_ctx), (1, 8192));
        assert!(options.reduce());
        assert_eq!(options.num_ctx, 4096);
    }

    #[test]
    fn only_automatic_contexts_shrink_and_never_below_4096() {
        let mut options =
            LoadOptions { num_ctx: 262144, num_ctx_train: 131072, num_ctx_auto: true, ..loaded() };
        assert!(options.reduce());
        assert_eq!(options.num_ctx, 32768);
        assert!(options.reduce());
        assert_eq!(options.num_ctx, 4096);
        assert!(!options.reduce());
        let mut explicit = LoadOptions { num_ctx: 262144, num_ctx_train: 0, ..loaded() };
        assert!(!explicit.reduce());
    }
}
