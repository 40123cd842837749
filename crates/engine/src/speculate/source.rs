//! Where guesses come from that a text does not hold: one of two kinds of draft models.

use super::companion::Companion;
use super::model::{Answers, Drafts, Question};
use crate::error::EngineError;
use crate::pages::Pages;
use crate::sequence::{JobId, Sequence};
use crate::stepper::Stepper;

/// A draft model at work.
pub enum Source {
    /// A model of its own.
    Model(Box<Drafts>),
    /// One that guesses with parts of the model that it guesses for.
    Companion(Companion),
}

impl Source {
    /// Seconds that guessing a token takes; nothing is known at first.
    pub fn token_seconds(&self) -> f64 {
        match self {
            Self::Model(drafts) => drafts.token_seconds(),
            Self::Companion(companion) => companion.token_seconds(),
        }
    }

    /// Seconds that it takes to read what it missed of a sequence, beyond the prompt.
    pub fn missed_seconds(&self, id: JobId, tokens: &[u32]) -> f64 {
        match self {
            Self::Model(drafts) => drafts.missed_seconds(id, tokens),
            Self::Companion(_) => 0.0,
        }
    }

    /// Guesses for some sequences, whose model and its pages these are.
    pub fn ask(
        &mut self,
        questions: &[Question<'_>],
        model: (&mut Stepper, &Pages),
        is_end: impl Fn(u32) -> bool,
    ) -> Result<Answers, EngineError> {
        match self {
            Self::Model(drafts) => drafts.ask(questions, is_end),
            Self::Companion(companion) => companion.ask(questions, model, is_end),
        }
    }

    /// A step has computed a sequence up to the token that the next one was drawn from; `row` says which of the rows that the step
    /// has handed out is that token's.
    pub fn computed(&mut self, s: &Sequence, handed_out: &[f32], row: usize) {
        if let Self::Companion(companion) = self {
            companion.computed(s.id, s.computed, handed_out, row);
        }
    }

    /// A sequence ends or starts anew.
    pub fn leave(&mut self, id: JobId, tokens: &[u32]) {
        match self {
            Self::Model(drafts) => drafts.leave(id, tokens),
            Self::Companion(companion) => companion.leave(id),
        }
    }
}
