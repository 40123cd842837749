//! Any body gives a request or an error, without panics, stack overflows, or unbounded memory.
#![no_main]

#[path = "../bodies/request.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::run(data));
