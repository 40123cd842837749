//! Speculative decoding: one step verifies several draft tokens of a sequence.
//!
//! A step reads all weights, however few rows it has. Verifying a few draft tokens therefore takes
//! little more time than computing one token. Draft tokens come from the text itself, which often
//! repeats, or from a small draft model.
//!
//! Draft tokens become further rows of the sequence's step. The sequence's own sampler then draws
//! from the rows in order, and accepts draft tokens as long as each draw equals the draft token.
//! The first draw that differs is kept as well, since its row saw accepted tokens only. The rows
//! behind it are not counted as computed, and the next step overwrites them.
//!
//! The answer equals that of plain decoding: the same draws, random numbers, penalties, stop
//! strings and log-probabilities. It is bit-identical as long as a step has at most
//! [`puna_graph::Backend::max_bit_exact_rows`] rows, which bounds every step with drafts.
//!
//! - [`lookup`]: drafts from the sequence's own text.
//! - [`model`]: drafts of a separate draft model. [`chain`] and [`blocks`]: drafts of a companion
//!   draft model, which uses parts of its target model. [`draft_source`]: one of these three.
//! - [`acceptance_rate`]: how often draft tokens are accepted.
//! - [`cost_model`]: how many draft tokens to verify.
//! - [`sequence_speculation`]: state of one sequence. [`speculator`]: state of the engine loop.

pub mod acceptance_rate;
pub mod blocks;
pub mod chain;
pub mod cost_model;
pub mod draft_source;
pub mod lookup;
pub mod model;
pub mod rolling_median;
pub mod sequence_speculation;
pub mod speculator;
#[cfg(test)]
mod tests;

/// Settings of speculative decoding. No setting changes an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Speculation {
    /// Draft the tokens that followed an earlier occurrence of the newest tokens (prompt lookup).
    pub lookup: bool,
    /// Use the draft model, if one is loaded and the lookup finds nothing better.
    pub draft: bool,
    /// Largest number of draft tokens in a step; `None` leaves it to the cost model.
    pub max_tokens: Option<usize>,
    /// Verify every draft regardless of its cost, for measurements and tests.
    pub always: bool,
}

impl Speculation {
    /// All sources, limited by the cost model.
    pub const AUTO: Self = Self { lookup: true, draft: true, max_tokens: None, always: false };
    /// No drafts.
    pub const OFF: Self = Self { lookup: false, draft: false, max_tokens: None, always: false };
    /// Prompt lookup only.
    pub const LOOKUP: Self = Self { draft: false, ..Self::AUTO };

    /// Whether any source is enabled.
    pub fn is_on(&self) -> bool {
        (self.lookup || self.draft) && self.max_tokens != Some(0)
    }
}

impl Default for Speculation {
    fn default() -> Self {
        Self::AUTO
    }
}

/// Draft tokens of one sequence, and their source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Draft {
    pub tokens: Vec<u32>,
    pub kind: DraftKind,
}

/// Source of a draft. Each has its own acceptance rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DraftKind {
    /// Lookup with a match of two or three tokens.
    Short,
    /// Lookup with a match of four to seven tokens.
    Medium,
    /// Lookup with a match of eight or more tokens.
    Long,
    /// Draft model.
    Model,
}

impl DraftKind {
    /// Number of kinds.
    pub const COUNT: usize = 4;

    /// The kind of a lookup with a match of `tokens` tokens.
    pub fn of_match(tokens: usize) -> Self {
        match tokens {
            0..4 => Self::Short,
            4..8 => Self::Medium,
            _ => Self::Long,
        }
    }
}

/// Drafts the continuation of one text.
pub trait Drafter: Send {
    /// Drafts at most `max_tokens` tokens after `tokens`. Between two calls `tokens` only
    /// grows, unless [`Drafter::reset`] is called.
    fn draft(&mut self, tokens: &[u32], max_tokens: usize) -> Option<Draft>;

    /// Discards the index, since earlier tokens have changed.
    fn reset(&mut self);
}

/// Counts of one source.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DraftCounts {
    /// Draft tokens that were verified.
    pub drafted: u64,
    /// Draft tokens that were accepted.
    pub accepted: u64,
}

/// Draft counts by source.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DraftStats {
    /// Prompt lookup.
    pub lookup: DraftCounts,
    /// Draft model.
    pub model: DraftCounts,
    /// Steps that verified drafts.
    pub steps: u64,
}

impl DraftStats {
    /// Counts a draft of `tokens` tokens that a step verifies.
    pub(crate) fn add_draft(&mut self, kind: DraftKind, tokens: usize) {
        self.of(kind).drafted += tokens as u64;
        self.steps += 1;
    }

    /// Counts accepted tokens.
    pub(crate) fn add_accepted(&mut self, kind: DraftKind, tokens: usize) {
        self.of(kind).accepted += tokens as u64;
    }

    fn of(&mut self, kind: DraftKind) -> &mut DraftCounts {
        if kind == DraftKind::Model { &mut self.model } else { &mut self.lookup }
    }

    /// Counts of both sources.
    pub fn total(&self) -> DraftCounts {
        DraftCounts {
            drafted: self.lookup.drafted + self.model.drafted,
            accepted: self.lookup.accepted + self.model.accepted,
        }
    }
}
