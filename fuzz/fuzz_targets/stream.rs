//! Whatever a model writes: the same parts however its text is cut, never a panic or endless work.
#![no_main]

#[path = "../bodies/stream.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::run(data));
