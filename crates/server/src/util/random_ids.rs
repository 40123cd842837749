//! Random identifiers of responses, tool calls and requests.

use std::hash::{BuildHasher, RandomState};

/// A prefix and 24 random letters and digits.
pub(crate) fn alphanumeric(prefix: &str) -> String {
    random(prefix, b"0123456789abcdefghijklmnopqrstuvwxyz", 24)
}

/// A prefix and 24 random hexadecimal digits.
pub(crate) fn hex(prefix: &str) -> String {
    random(prefix, b"0123456789abcdef", 24)
}

/// `call_` and eight random letters and digits.
pub(crate) fn tool_call() -> String {
    random("call_", b"0123456789abcdefghijklmnopqrstuvwxyz", 8)
}

fn random(prefix: &str, letters: &[u8], count: usize) -> String {
    let base = letters.len() as u64;
    let mut id = prefix.to_owned();
    while id.len() < prefix.len() + count {
        // The standard library seeds its hashers from the operating system's random numbers.
        let mut bits = RandomState::new().hash_one(id.as_str());
        for _ in 0..(prefix.len() + count - id.len()).min(12) {
            id.push(char::from(letters[(bits % base) as usize]));
            bits /= base;
        }
    }
    id
}
