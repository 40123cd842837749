//! What some samplers need to know about tokens.

use std::borrow::Cow;

/// The vocabulary as the sampler sees it: implemented over a tokenizer.
///
/// Only DRY's breaker strings, `ignore_eos` and the infill sampler use it.
pub trait Vocab: Send + Sync {
    /// Number of tokens; ids are `0..n_tokens()`.
    fn n_tokens(&self) -> usize;

    /// Bytes that a token stands for; with `special` false, control tokens have none.
    fn piece(&self, id: u32, special: bool) -> Cow<'_, [u8]>;

    /// Ids of a text, without adding or recognizing special tokens.
    fn tokenize(&self, text: &str) -> Vec<u32>;

    /// Whether a token ends the generation.
    fn is_end(&self, id: u32) -> bool;

    /// The end-of-turn token, or the end-of-sequence token where there is none.
    fn end_of_turn(&self) -> Option<u32>;
}
