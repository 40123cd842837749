//! Tokenizers of GGUF vocabularies: BPE, SPM, WPM; pre-tokenizers; streaming detokenizer.

#![forbid(unsafe_code)]

mod pretok;
#[cfg(test)]
mod testing;
mod unicode;
