//! Speculation: guesses at the next tokens of a sequence, which one step checks together.
//!
//! A step reads the weights once, however few its rows are. So a sequence that could say what its next tokens are would get
//! them all for little more than the time of one. It cannot say, but it can guess: texts repeat themselves, and a small
//! model often agrees with a large one. The guessed tokens become further rows of the sequence's step; then the
//! sequence's own sampler draws from the rows in order, as it would have done one step at a time, and goes on as long as
//! what it draws is what was guessed. The first token that differs is kept, too: it was drawn from a row that saw only
//! true tokens. Rows behind it are forgotten by not counting them as computed; the next step writes over them.
//!
//! So the answer is that of plain decoding: the same draws, random numbers, penalties, stop strings and
//! log-probabilities. To the last bit it is as long as the backend computes a row in company as it does alone, and no
//! step with guesses has more rows than [`puna_graph::Backend::max_bit_exact_rows`].
//!
//! - [`lookup`]: guesses from the sequence's own text; [`model`]: those of a small model; [`chain`] and [`blocks`]: those of a
//!   draft model that computes with parts of its model; [`source`]: any of these;
//! - [`record`]: how often guesses came true;
//! - [`economy`]: how many guesses pay;
//! - [`guesser`]: the state of a sequence; [`speculator`]: that of the loop.

pub mod blocks;
pub mod chain;
pub mod cost_model;
#[cfg(test)]
mod exact;
pub mod guesser;
pub mod lookup;
pub mod model;
pub mod record;
pub mod rolling_median;
pub mod source;
pub mod speculator;
#[cfg(test)]
mod tests;

/// Whether and how to guess ahead. No setting changes an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Speculation {
    /// Look for the newest tokens in the text before them, and guess what followed there.
    pub lookup: bool,
    /// Ask the draft model, where one is loaded and the text holds nothing alike.
    pub draft: bool,
    /// Guesses a step at most; `None` leaves it to what pays.
    pub most: Option<usize>,
    /// Guess whenever there is something to guess, whether it pays or not: for measuring and testing.
    pub always: bool,
}

impl Speculation {
    /// Whatever there is, where it pays.
    pub const AUTO: Self = Self { lookup: true, draft: true, most: None, always: false };
    /// No guesses.
    pub const OFF: Self = Self { lookup: false, draft: false, most: None, always: false };
    /// The text alone, without a draft model.
    pub const LOOKUP: Self = Self { draft: false, ..Self::AUTO };

    /// Whether any guess can be made.
    pub fn is_on(&self) -> bool {
        (self.lookup || self.draft) && self.most != Some(0)
    }
}

impl Default for Speculation {
    fn default() -> Self {
        Self::AUTO
    }
}

/// Tokens that may come next, and what makes them likely.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Guess {
    pub tokens: Vec<u32>,
    pub kind: Kind,
}

/// How a guess was made. Each kind has its own record of success.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Two or three tokens were found in the text before.
    Short,
    /// Four to seven.
    Medium,
    /// Eight and more.
    Long,
    /// The draft model's opinion.
    Model,
}

impl Kind {
    /// Number of kinds.
    pub const COUNT: usize = 4;

    /// The kind of a guess after this many equal tokens.
    pub fn of_match(tokens: usize) -> Self {
        match tokens {
            0..4 => Self::Short,
            4..8 => Self::Medium,
            _ => Self::Long,
        }
    }
}

/// Guesses how a text goes on.
pub trait Drafter: Send {
    /// At most `most` tokens that may follow `tokens`. Between two calls tokens are only added, unless
    /// [`Drafter::forget`] is called.
    fn draft(&mut self, tokens: &[u32], most: usize) -> Option<Guess>;

    /// The text has changed at its beginning.
    fn forget(&mut self);
}

/// Guesses of one source.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Drafted {
    /// Tokens that were guessed and checked.
    pub drafted: u64,
    /// Those of them that the sampler drew as well.
    pub accepted: u64,
}

/// Guesses by source.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Speculated {
    /// From the sequence's own text.
    pub lookup: Drafted,
    /// From the draft model.
    pub model: Drafted,
    /// Steps that checked guesses.
    pub steps: u64,
}

impl Speculated {
    /// Counts a guess that is checked now.
    pub(crate) fn guessed(&mut self, kind: Kind, tokens: usize) {
        self.of(kind).drafted += tokens as u64;
        self.steps += 1;
    }

    /// Counts tokens of it that came true.
    pub(crate) fn accepted(&mut self, kind: Kind, tokens: usize) {
        self.of(kind).accepted += tokens as u64;
    }

    fn of(&mut self, kind: Kind) -> &mut Drafted {
        if kind == Kind::Model { &mut self.model } else { &mut self.lookup }
    }

    /// Both sources together.
    pub fn all(&self) -> Drafted {
        Drafted {
            drafted: self.lookup.drafted + self.model.drafted,
            accepted: self.lookup.accepted + self.model.accepted,
        }
    }
}
