//! Tokenizers: properties, vocabularies, and against the tokens of llama.cpp.

mod common;
mod llama_cpp;
mod properties;
mod vocabulary;
