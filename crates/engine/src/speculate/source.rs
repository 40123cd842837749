//! Where guesses come from that a text does not hold: one of the kinds of draft models.

use puna_models::{DraftMethod, DraftCache};

use super::blocks::Blocks;
use super::chain::Chain;
use super::model::{DraftRequest, DraftTokens, Drafts};
use crate::error::EngineError;
use crate::executor::ModelExecutor;
use crate::pages::Pages;
use crate::sequence::{JobId, Sequence};

/// A draft model at work.
pub enum Source {
    /// A model of its own.
    Model(Box<Drafts>),
    /// One that guesses token by token with parts of the model that it guesses for.
    Chain(Chain),
    /// One that guesses blocks of tokens with such.
    Blocks(Blocks),
}

/// What a step has computed of a sequence.
#[derive(Debug, Clone, Copy)]
pub struct Computed {
    /// Its tokens before those of the step.
    pub past: usize,
    /// The first of its rows.
    pub first: usize,
    /// Among the rows whose results were wanted that of the token that the next one was drawn from, or will be.
    pub output: Option<usize>,
}

impl Source {
    /// The draft model that was loaded with a model and guesses so.
    pub fn beside(guesses: &DraftMethod) -> Self {
        match guesses {
            DraftMethod::Chain { state_dim: state, cache: sees } => Self::Chain(Chain::new(*state, *sees)),
            DraftMethod::Block(form) => Self::Blocks(Blocks::new(form.clone())),
        }
    }

    /// Tokens that a guess can have at most.
    pub fn most(&self) -> usize {
        match self {
            Self::Model(_) | Self::Chain(_) => usize::MAX,
            Self::Blocks(blocks) => blocks.most(),
        }
    }

    /// Places behind what is computed of a sequence that a step of guesses writes to.
    pub fn ahead(&self) -> usize {
        match self {
            Self::Model(_) => 0,
            // Those of further steps are in the same page: guesses end with it.
            Self::Chain(chain) => usize::from(chain.sees() == DraftCache::Own),
            Self::Blocks(blocks) => blocks.rows(),
        }
    }

    /// Seconds that guessing a token takes; nothing is known at first.
    pub fn token_seconds(&self) -> f64 {
        match self {
            Self::Model(drafts) => drafts.token_seconds(),
            Self::Chain(chain) => chain.token_seconds(),
            Self::Blocks(blocks) => blocks.token_seconds(),
        }
    }

    /// Seconds that it takes before the first token of a guess: to read what it missed of a sequence, beyond the prompt, or for a block.
    pub fn first_seconds(&self, id: JobId, tokens: &[u32]) -> f64 {
        match self {
            Self::Model(drafts) => drafts.missed_seconds(id, tokens),
            Self::Chain(_) => 0.0,
            Self::Blocks(blocks) => blocks.block_seconds(),
        }
    }

    /// Guesses for some sequences, whose model and its pages these are.
    pub fn ask(
        &mut self,
        questions: &[DraftRequest<'_>],
        model: (&mut ModelExecutor, &Pages),
        is_end: impl Fn(u32) -> bool,
    ) -> Result<DraftTokens, EngineError> {
        match self {
            Self::Model(drafts) => drafts.ask(questions, is_end),
            Self::Chain(chain) => chain.ask(questions, model, is_end),
            Self::Blocks(blocks) => blocks.ask(questions, model, is_end),
        }
    }

    /// Takes note of what a step has computed of a sequence, and handed out.
    pub fn computed(&mut self, s: &Sequence, extra_output: &[f32], step: Computed) {
        if let Self::Chain(chain) = self {
            chain.computed(s.id, s.computed, extra_output, step);
        }
    }

    /// Does what is to be done behind a step, before others may find what it computed.
    pub fn follow(
        &mut self,
        sequences: &[Sequence],
        model: (&mut ModelExecutor, &Pages),
    ) -> Result<(), EngineError> {
        match self {
            Self::Model(_) | Self::Blocks(_) => Ok(()),
            Self::Chain(chain) => {
                let found = |id| sequences.iter().find(|s| s.id == id);
                chain.follow(|id| found(id).map(|s| (&s.tokens[..], &s.held)), model)
            }
        }
    }

    /// A sequence ends or starts anew.
    pub fn leave(&mut self, id: JobId, tokens: &[u32]) {
        match self {
            Self::Model(drafts) => drafts.leave(id, tokens),
            Self::Chain(chain) => chain.leave(id),
            Self::Blocks(_) => {}
        }
    }
}
