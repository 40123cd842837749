//! Tests of tokenizers: properties, vocabularies, and comparison with llama.cpp.

mod common;
mod llama_cpp;
mod pieces;
mod properties;
mod vocabulary;
