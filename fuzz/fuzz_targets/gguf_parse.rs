//! Whatever the bytes are: a GGUF file or an error, never a panic, a wild read or memory in proportion to a claim.
#![no_main]

#[path = "../bodies/gguf_parse.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::run(data));
