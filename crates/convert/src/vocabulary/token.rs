//! Tokens of a vocabulary and their types.

// Token types of `tokenizer.ggml.token_type`.

/// A token of text.
pub(super) const NORMAL: i32 = 1;
/// The token for unknown text.
pub(super) const UNKNOWN: i32 = 2;
/// A token that text does not contain, such as the end of the text.
pub(super) const CONTROL: i32 = 3;
/// A token that is split off from text first.
pub(super) const USER_DEFINED: i32 = 4;
/// An entry without a token.
pub(super) const UNUSED: i32 = 5;
/// A token for one byte.
pub(super) const BYTE: i32 = 6;

/// Largest number of tokens.
pub(super) const MAX_TOKENS: u64 = 1 << 24;

/// A token of a vocabulary.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Token {
    pub(super) text: String,
    pub(super) kind: i32,
    pub(super) score: f32,
}
