//! Statistics of the engine loop.

use crate::speculate::DraftStats;

/// Snapshot of the engine loop.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Running sequences.
    pub running: usize,
    /// Waiting requests.
    pub waiting: usize,
    /// KV pages.
    pub pages: usize,
    /// KV pages in use by running sequences and the prefix tree.
    pub pages_in_use: usize,
    /// KV pages of running sequences; shared pages count once.
    pub pages_pinned: usize,
    /// Window pages.
    pub window_pages: usize,
    /// Window pages in use.
    pub window_pages_in_use: usize,
    /// Window pages of running sequences; shared pages count once.
    pub window_pages_pinned: usize,
    /// Preemptions since the start.
    pub preempted: u64,
    /// Iterations of the loop since the start. If the count stands still while there are requests,
    /// a step hangs. The loop also iterates while all sinks are slow.
    pub rounds: u64,
    /// Steps since the start.
    pub steps: u64,
    /// Prompt tokens computed since the start.
    pub prompt_tokens: u64,
    /// Tokens generated since the start.
    pub generated_tokens: u64,
    /// Draft tokens and accepted draft tokens since the start.
    pub draft_stats: DraftStats,
    /// Bytes of intermediate results.
    pub scratch_bytes: u64,
}
