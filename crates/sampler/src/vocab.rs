//! Access to a vocabulary for samplers that need the text of tokens.

use std::borrow::Cow;

/// Vocabulary as the sampler sees it. The engine implements it for its tokenizer.
///
/// Only DRY's breaker strings, `ignore_eos` and the infill sampler use it.
pub trait Vocab: Send + Sync {
    /// Number of tokens; ids are `0..n_tokens()`.
    fn n_tokens(&self) -> usize;

    /// Bytes of a token. Control tokens have none unless `special` is `true`.
    fn piece(&self, id: u32, special: bool) -> Cow<'_, [u8]>;

    /// Tokenizes a text without adding or recognizing special tokens.
    fn tokenize(&self, text: &str) -> Vec<u32>;

    /// Whether a token ends the generation.
    fn is_end(&self, id: u32) -> bool;

    /// The end-of-turn token, or else the end-of-sequence token.
    fn end_of_turn(&self) -> Option<u32>;
}
