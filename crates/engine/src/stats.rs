//! What the loop is doing, for those who watch.

use crate::speculate::Speculated;

/// A snapshot of the loop.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Sequences that take part in steps.
    pub running: usize,
    /// Jobs that wait.
    pub waiting: usize,
    /// Pages of the cache.
    pub pages: usize,
    /// Pages that hold something, for running sequences or for later ones.
    pub pages_in_use: usize,
    /// Pages of running sequences, shared ones counted once.
    pub pages_held: usize,
    /// Pages of layers that only see what is near, where a model has such.
    pub recent_pages: usize,
    /// Those of them that hold something.
    pub recent_pages_in_use: usize,
    /// Those that running sequences use, shared ones counted once.
    pub recent_pages_held: usize,
    /// How often a running sequence was sent back to the queue for want of pages, since the start.
    pub preempted: u64,
    /// Rounds of the loop since the start. While there are jobs, a count that stands still means a step that hangs; the
    /// loop goes round also while all listeners are slow.
    pub rounds: u64,
    /// Steps since the start.
    pub steps: u64,
    /// Prompt tokens computed since the start.
    pub prompt_tokens: u64,
    /// Tokens generated since the start.
    pub generated_tokens: u64,
    /// Tokens guessed ahead since the start, and those of them that came true.
    pub speculated: Speculated,
    /// Bytes of intermediate results.
    pub scratch_bytes: u64,
}
