//! Any bytes give a GGUF file or an error, without panics, invalid reads, or allocations of a
//! claimed size.
#![no_main]

#[path = "../bodies/gguf_parse.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::run(data));
