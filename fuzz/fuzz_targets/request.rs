//! Whatever a body is: a request or an error, never a panic, a deep stack or memory beyond measure.
#![no_main]

#[path = "../bodies/request.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::run(data));
