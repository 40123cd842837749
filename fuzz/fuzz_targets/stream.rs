//! Any text gives the same parts for every split into pieces, without panics or unbounded work.
#![no_main]

#[path = "../bodies/stream.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::run(data));
