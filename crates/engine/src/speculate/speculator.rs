//! The loop's side of speculation: which sequences get how many guesses in a step, and what came of them.

use std::time::Duration;

use puna_tokenizer::Tokenizer;

use super::economy::{Bounds, Economy, Offer, all_of};
use super::record::Record;
use super::{Guess, Kind, Speculated};
use crate::sequence::{JobId, Sequence};

/// Bounds that the loop sets.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Tokens of a context.
    pub n_ctx: usize,
    /// Rows of a step.
    pub rows: usize,
    /// How long a step should be at most where several wait for it.
    pub target: Duration,
}

/// A step without prompts, after it ran.
#[derive(Debug, Clone, Copy)]
pub struct Ran {
    pub sequences: usize,
    pub rows: usize,
    pub seconds: f64,
    pub came_true: usize,
}

/// Guesses for all sequences.
pub struct Speculator {
    economy: Economy,
    record: Record,
    /// Rows of a step whose results do not depend on each other's company.
    exact_rows: usize,
    pub counts: Speculated,
}

impl Speculator {
    pub fn new(exact_rows: usize) -> Self {
        let (economy, record) = (Economy::default(), Record::of_loop());
        Self { economy, record, exact_rows, counts: Speculated::default() }
    }

    /// Guesses for a step of these sequences, all of which only lack their newest token.
    pub fn guess(
        &mut self,
        company: &mut [&mut Sequence],
        tokenizer: &Tokenizer,
        limits: Limits,
    ) -> Vec<(JobId, Guess)> {
        let n = company.len();
        let rows = limits.rows.min(self.exact_rows);
        if n >= rows {
            return Vec::new();
        }
        let mut offers = Vec::with_capacity(n);
        let mut guesses = Vec::with_capacity(n);
        for s in company.iter_mut() {
            let most = s.guesses_at_most(limits.n_ctx).min(rows - n);
            s.guesser.settle(&s.tokens, &mut self.record);
            let guess = s.guesser.look_up(&s.tokens, most, |token| tokenizer.is_eog(token));
            offers.push(guess.as_ref().map_or_else(Offer::default, |guess| {
                Offer::new(guess.tokens.len(), s.guesser.record.chance(guess.kind, &self.record))
            }));
            guesses.push(guess);
        }
        self.economy.meet(company.iter().fold(n as u64, |all, s| all.wrapping_mul(31).wrapping_add(s.id.0)));
        let bounds = Bounds { rows, target: limits.target };
        let taken = match company.iter().all(|s| s.guesser.speculation.always) {
            true => all_of(&offers, rows),
            false => self.economy.decide(&offers, bounds),
        };
        let mut chosen = Vec::new();
        for ((s, guess), taken) in company.iter_mut().zip(guesses).zip(taken) {
            match guess {
                Some(mut guess) if taken > 0 => {
                    guess.tokens.truncate(taken);
                    chosen.push((s.id, guess));
                }
                Some(guess) => s.guesser.keep(guess, &s.tokens),
                None => {}
            }
        }
        chosen
    }

    /// Takes note of what a step made of a sequence's guess.
    pub fn checked(&mut self, s: &mut Sequence, kind: Kind, guessed: usize, came_true: usize) {
        self.counts.guessed(kind, guessed);
        self.counts.came_true(kind, came_true);
        s.guesser.checked(kind, guessed, came_true, &mut self.record);
    }

    /// Takes note of a step's time.
    pub fn ran(&mut self, ran: Ran) {
        match ran.rows > ran.sequences {
            true => self.economy.checked(ran.sequences, ran.rows, ran.seconds, 0.0, ran.came_true),
            false => self.economy.plain(ran.seconds),
        }
    }
}
