//! Any template gives a prompt or an error, without panics, stack overflows, or unbounded work.
#![no_main]

#[path = "../bodies/template.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::run(data));
