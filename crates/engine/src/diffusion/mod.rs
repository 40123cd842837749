//! Diffusion models: an answer begins as masks, and each step of the model turns some of them into tokens, those first that are
//! surest of. A token that is there stays; the answer is told in order, as far as it has no masks.
//!
//! Every step computes the whole text anew, as each token sees all others. So there is no cache, and a step is one text's: at such
//! widths company would save little, and an answer's bits do not depend on others.

mod batch;
mod confidence;
mod schedule;
mod sequence;

use puna_models::{Order, Unmasking};
use puna_sampler::Params;

use crate::error::EngineError;
use crate::job::Job;
use crate::options::ModelInfo;
use crate::speculate::Speculation;

pub use batch::DiffusionSequences;
pub use sequence::DiffusionSequence;

/// Tokens of an answer whose length nobody said.
pub const LENGTH: usize = 256;
/// Tokens of a text at most, whatever a file says: each step computes all of them, and memory is planned for them.
pub const CONTEXT: usize = 4096;
/// Steps of an answer at most: more than any text has tokens, so that none is of use beyond.
const STEPS: usize = 1 << 16;
/// Logits of a step at most, a row for each place of a block: 256 MiB.
const LOGITS: usize = 1 << 26;

/// How an answer is to be filled; what is `None` is the model's habit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Diffusion {
    /// Steps for the whole answer; one for each of its tokens if nobody says.
    pub steps: Option<usize>,
    /// Places that are filled before the next ones are begun; 0 is the whole answer.
    pub block_length: Option<usize>,
    /// Which places become tokens first.
    pub algorithm: Option<Order>,
}

/// Places of a block at most, in a model with so many tokens and such a context: their logits are there at once.
pub fn longest_block(n_vocab: usize, n_ctx: usize) -> usize {
    let most = (LOGITS / n_vocab.max(1)).max(1);
    // Steps have room for a power of two of them.
    (1 << most.ilog2()).min(n_ctx.max(1))
}

/// Checks that a job asks for nothing that the model cannot give.
pub fn check(job: &Job, info: &ModelInfo) -> Result<(), EngineError> {
    if info.unmasking.is_none() {
        let architecture = info.architecture;
        return match job.diffusion == Diffusion::default() {
            true => Ok(()),
            false => Err(EngineError::WritesInOrder { architecture }),
        };
    }
    let always = |guesses: Speculation| guesses.always && guesses.is_on();
    let impossible = [
        (job.grammar.is_some(), "an answer of a given form"),
        (job.prompt_logprobs.is_some(), "log-probabilities of the prompt"),
        (job.speculation.is_some_and(always), "guessing ahead (speculate)"),
        (job.sampling.mirostat > 0, "mirostat"),
        (job.sampling.dry_multiplier > 0.0, "DRY (dry_multiplier)"),
        (follows_draws(&job.sampling), "adaptive-p"),
    ];
    if let Some((_, what)) = impossible.into_iter().find(|(asked, _)| *asked) {
        return Err(EngineError::Unmasks { architecture: info.architecture, what });
    }
    if let Some(steps) = job.diffusion.steps.filter(|steps| !(1..=STEPS).contains(steps)) {
        return Err(EngineError::DiffusionSteps { steps, most: STEPS });
    }
    let most = longest_block(info.n_vocab, info.n_ctx);
    match job.diffusion.block_length.filter(|&length| length > most) {
        Some(length) => Err(EngineError::DiffusionBlock { length, most }),
        None => Ok(()),
    }
}

/// Checks that a draft model can guess for a model.
pub fn takes_draft(info: &ModelInfo) -> Result<(), EngineError> {
    let (architecture, what) = (info.architecture, "guessing ahead with a draft model");
    if info.unmasking.is_some() { Err(EngineError::Unmasks { architecture, what }) } else { Ok(()) }
}

/// Whether a sampler goes by what was drawn just before.
fn follows_draws(sampling: &Params) -> bool {
    sampling.adaptive_target >= 0.0 && sampling.samplers.contains(&puna_sampler::Kind::AdaptiveP)
}

/// The blocks of an answer of so many tokens.
fn blocks(job: &Job, unmasking: &Unmasking, length: usize, longest: usize) -> schedule::Blocks {
    let steps = job.diffusion.steps.unwrap_or(length);
    let habit = unmasking.block.map(|each| each.min(longest));
    match job.diffusion.block_length.or(habit).filter(|&each| each > 0) {
        Some(each) => schedule::Blocks::even(length, each, steps),
        None => schedule::Blocks::whole(length, longest, steps),
    }
}
