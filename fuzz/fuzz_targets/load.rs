//! Any change of weights, numbers, lists and vocabulary gives an error or a model that runs,
//! without panics, invalid reads, or unbounded work.
#![no_main]

#[path = "../bodies/load.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| drop(body::run(data)));
