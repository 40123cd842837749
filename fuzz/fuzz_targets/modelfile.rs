//! Any bytes give a Modelfile or an error, without panics or unbounded work.
#![no_main]

#[path = "../bodies/modelfile.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::run(data));
