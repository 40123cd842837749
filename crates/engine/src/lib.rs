//! Sequences, paged KV cache with a prefix tree, and the step loop.

#![forbid(unsafe_code)]
