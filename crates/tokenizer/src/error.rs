//! Errors of vocabularies.

use puna_gguf::GgufError;

/// Why a file's tokenizer cannot be used.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// A key is missing or has the wrong type.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// The file has no vocabulary.
    #[error(
        "the file has no vocabulary (`tokenizer.ggml.model` is `{model}`), so it cannot process text"
    )]
    NoVocabulary {
        /// Value of `tokenizer.ggml.model`.
        model: String,
    },
    /// The list of tokens is missing or empty.
    #[error("`tokenizer.ggml.tokens` is missing or empty")]
    NoTokens,
    /// The tokenizer model is not supported.
    #[error("unknown tokenizer: '{model}' (`tokenizer.ggml.model`); supported: {}", known.join(", "))]
    UnknownModel {
        /// Value of `tokenizer.ggml.model`.
        model: String,
        /// Supported values.
        known: &'static [&'static str],
    },
    /// The pre-tokenizer is not supported. Another one would split text wrongly, which is worse
    /// than an error.
    #[error("unknown pre-tokenizer type: '{pre}' (`tokenizer.ggml.pre`); supported: {}", known.join(", "))]
    UnknownPreTokenizer {
        /// Value of `tokenizer.ggml.pre`.
        pre: String,
        /// Supported values.
        known: Vec<&'static str>,
    },
    /// BPE requires merges.
    #[error("`tokenizer.ggml.merges` is missing: a `{model}` vocabulary needs it")]
    NoMerges {
        /// Value of `tokenizer.ggml.model`.
        model: String,
    },
    /// PLaMo 2 falls back to bytes, and this byte has no token.
    #[error("the token <0x{byte:02X}> is missing: a `plamo2` vocabulary needs one for each byte")]
    NoByteToken {
        /// The byte.
        byte: u8,
    },
    /// Two tokens have the same text.
    #[error("tokens {first} and {second} of `tokenizer.ggml.tokens` have the same text {text:?}")]
    DuplicateToken {
        /// The lower id.
        first: u32,
        /// The higher id.
        second: u32,
        /// Their text, shortened.
        text: String,
    },
    /// The tables of the normalizer exceed its data.
    #[error(
        "`tokenizer.ggml.precompiled_charsmap` has {size} bytes, too few for its declared {nodes} bytes of nodes"
    )]
    Charsmap {
        /// Length of the data in bytes.
        size: usize,
        /// Length of the node table that the data declares.
        nodes: usize,
    },
    /// A list with one entry per token has a wrong length.
    #[error("`{key}` has {found} entries, expected {expected}, one for each token")]
    Length {
        /// Key of the list.
        key: &'static str,
        /// Length of the list.
        found: usize,
        /// Number of tokens.
        expected: usize,
    },
    /// There are more tokens, merges or bytes of text than supported.
    #[error("`{key}` is too large: {found}, supported are at most {max}")]
    TooLarge {
        /// Key of the list.
        key: &'static str,
        /// Actual number.
        found: usize,
        /// The limit.
        max: usize,
    },
}

impl TokenizerError {
    /// Error code for programs, in the style of the `gguf_…` codes.
    pub fn code(&self) -> &'static str {
        match self {
            TokenizerError::Gguf(error) => error.code(),
            TokenizerError::NoVocabulary { .. } => "tokenizer_no_vocabulary",
            TokenizerError::UnknownModel { .. } => "tokenizer_unknown_model",
            TokenizerError::UnknownPreTokenizer { .. } => "tokenizer_unknown_pre",
            TokenizerError::NoMerges { .. } => "gguf_vocab_no_merges",
            TokenizerError::DuplicateToken { .. } => "gguf_vocab_duplicate_token",
            TokenizerError::NoTokens
            | TokenizerError::Charsmap { .. }
            | TokenizerError::NoByteToken { .. }
            | TokenizerError::Length { .. }
            | TokenizerError::TooLarge { .. } => "gguf_vocab_inconsistent",
        }
    }
}
