//! Tokenizers of GGUF vocabularies: text to tokens and back, with the same ids as llama.cpp.
//!
//! A [`Tokenizer`] is read from the metadata of a file and shared between threads:
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let metadata = puna_gguf::Metadata::new();
//! use puna_tokenizer::{EncodeOptions, Tokenizer};
//!
//! let tokenizer = Tokenizer::from_metadata(&metadata)?;
//! let options = EncodeOptions { add_special: true, parse_special: false };
//! let ids = tokenizer.encode("Hello world", options);
//! assert_eq!(tokenizer.decode(&ids, false), "Hello world");
//! # Ok(())
//! # }
//! ```
//!
//! Supported models: byte-pair encoding (`gpt2`, `gemma4`, `whitespace`) with llama.cpp's
//! pre-tokenizers, SentencePiece (`llama`, and as unigram model `t5`), WordPiece (`bert`), PLaMo
//! 2's unigram model (`plamo2`), RWKV's greedy matching (`rwkv`), and nucleotide sequences within
//! text (`hybriddna`). Encoding takes time linear in the text, or n log n in the length of a word,
//! for any text. Besides the tokens, it needs memory for a piece of the text. A flag may cancel it
//! ([`Tokenizer::try_encode`]).
//!
//! Deliberate differences from llama.cpp:
//!
//! - `</s>` ends generation only if the file makes it a control token or its EOS.
//! - Tokens in `eos_token_ids` end generation.
//! - WordPiece normalizes like BERT.
//! - Character classes come from Unicode 16.
//! - In tokens, a character outside of GPT-2's alphabet prints as itself.
//! - Text of users never becomes a control token of PLaMo 2.
//! - In unigram models, the start of a user-defined token is ordinary text.

#![forbid(unsafe_code)]

mod bpe;
mod bytes;
mod control;
mod decode;
mod dna;
mod encoding;
mod error;
mod hash;
mod lattice;
mod long_word;
mod merge;
mod partition;
mod plamo2;
mod pre_tokenizer;
#[cfg(test)]
mod random_text;
mod rwkv;
mod segments;
mod special_tokens;
mod spm;
mod tokenizer;
mod trie;
mod ugm;
mod unicode;
mod vocab;
mod wpm;

pub use control::{ENCODING_BYTES, EncodeCancelled};
pub use decode::StreamDecoder;
pub use encoding::EncodeOptions;
pub use error::TokenizerError;
pub use tokenizer::{FimTokens, Tokenizer};
