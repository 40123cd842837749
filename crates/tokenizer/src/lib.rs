//! Tokenizers of GGUF vocabularies: BPE, SPM, WPM; pre-tokenizers; streaming detokenizer.

#![forbid(unsafe_code)]
