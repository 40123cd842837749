//! Tokenizers of GGUF vocabularies: text to tokens and back, with the ids that llama.cpp gives.
//!
//! A [`Tokenizer`] is read from the metadata of a file and shared between threads:
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let metadata = puna_gguf::Metadata::new();
//! use puna_tokenizer::{Encode, Tokenizer};
//!
//! let tokenizer = Tokenizer::from_metadata(&metadata)?;
//! let ids = tokenizer.encode("Hello world", Encode { add_special: true, parse_special: false });
//! assert_eq!(tokenizer.decode(&ids, false), "Hello world");
//! # Ok(())
//! # }
//! ```
//!
//! Byte-pair encoding (`gpt2`, `gemma4`, `whitespace`) with the pre-tokenizers of llama.cpp, SentencePiece (`llama`, and
//! as unigram model `t5`), WordPiece (`bert`), PLaMo 2's unigram model (`plamo2`), RWKV's greedy matching (`rwkv`) and
//! sequences of nucleotides in other text (`hybriddna`). Time is linear in the text, or n log n in the length of a word, whatever the text is.
//!
//! Deliberate differences from llama.cpp: `</s>` ends generation only where the file makes it a control token or its
//! EOS; the ends that `eos_token_ids` lists count; WordPiece normalises as BERT does; classes of characters are those of Unicode 16; a character outside GPT-2's
//! alphabet in a token prints as itself; PLaMo 2's control tokens are not made of text that users wrote; in
//! unigram models the beginning of a user-defined token is text like any other.

#![forbid(unsafe_code)]

mod bpe;
mod bytes;
mod decode;
mod dna;
mod error;
mod hash;
mod islands;
mod merge;
mod partition;
mod plamo2;
mod pretok;
mod rwkv;
mod special;
mod spm;
#[cfg(test)]
mod testing;
mod tokenizer;
mod trie;
mod ugm;
mod unicode;
mod vocab;
mod wpm;

pub use decode::StreamDecoder;
pub use error::TokenizerError;
pub use tokenizer::{Encode, Fim, Tokenizer};
