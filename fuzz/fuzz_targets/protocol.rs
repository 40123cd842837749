//! Any bytes as messages between server and runner give errors, without panics, unbounded memory,
//! or requests that never end.
#![no_main]

use puna_server::runner::hostile_messages;

libfuzzer_sys::fuzz_target!(|data: &[u8]| hostile_messages::play(data));
