//! What can be wrong with the vocabulary of a file.

use puna_gguf::GgufError;

/// Why a file's tokenizer cannot be used.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// A key is missing or has the wrong type.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// The file says that it has no vocabulary.
    #[error(
        "the file has no vocabulary (`tokenizer.ggml.model` is `{model}`): it cannot take or give text"
    )]
    NoVocabulary {
        /// Value of `tokenizer.ggml.model`.
        model: String,
    },
    /// There are no tokens.
    #[error("`tokenizer.ggml.tokens` is missing or empty")]
    NoTokens,
    /// A kind of tokenizer that this version does not have.
    #[error("unknown tokenizer: '{model}' (`tokenizer.ggml.model`); known are {}", known.join(", "))]
    UnknownModel {
        /// Value of `tokenizer.ggml.model`.
        model: String,
        /// The values that work.
        known: &'static [&'static str],
    },
    /// A pre-tokenizer that this version does not have. Text cut by another one would be worse than none.
    #[error("unknown pre-tokenizer type: '{pre}' (`tokenizer.ggml.pre`); known are {}", known.join(", "))]
    UnknownPreTokenizer {
        /// Value of `tokenizer.ggml.pre`.
        pre: String,
        /// The values that work.
        known: Vec<&'static str>,
    },
    /// BPE cannot work without merges.
    #[error("`tokenizer.ggml.merges` is missing: a `{model}` vocabulary needs it")]
    NoMerges {
        /// Value of `tokenizer.ggml.model`.
        model: String,
    },
    /// PLaMo 2 spells what no token covers in bytes, and this one has no token.
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
    /// The normaliser's tables do not fit in their own bytes.
    #[error(
        "`tokenizer.ggml.precompiled_charsmap` has {size} bytes, too few for the {nodes} bytes of nodes it claims"
    )]
    Charsmap {
        /// Its length in bytes.
        size: usize,
        /// The size of its first part, as it says.
        nodes: usize,
    },
    /// A list that has one entry a token has another length.
    #[error("`{key}` has {found} entries, expected {expected}: one for each token")]
    Length {
        /// The list's key.
        key: &'static str,
        /// Its length.
        found: usize,
        /// The number of tokens.
        expected: usize,
    },
    /// More tokens, merges or text than ids can number.
    #[error("`{key}` is too large: {found}, at most {most} are supported")]
    TooLarge {
        /// The list's key.
        key: &'static str,
        /// What was found.
        found: usize,
        /// The limit.
        most: usize,
    },
}

impl TokenizerError {
    /// A name for programs, in the style of the `gguf_…` codes.
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
