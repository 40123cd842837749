//! Whatever the bytes are: a Modelfile or an error, never a panic or endless work.
#![no_main]

#[path = "../bodies/modelfile.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::run(data));
