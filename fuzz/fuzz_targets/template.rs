//! Whatever the template is: a prompt or an error, never a panic, a deep stack or endless work.
#![no_main]

#[path = "../bodies/template.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::run(data));
