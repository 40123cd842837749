//! Diffusion models: an answer begins as mask tokens, and each denoising step unmasks the positions
//! with the highest confidence. An unmasked token stays. Tokens are emitted in order, up to the
//! first mask.
//!
//! Every step computes the whole text, since attention is bidirectional. There is therefore no KV
//! cache, and a step computes one request: steps are large enough that batching would gain little,
//! and the bits of an answer do not depend on other requests.

mod batch;
mod confidence;
mod schedule;
mod sequence;

use puna_models::Unmasking;
use puna_sampler::Params;

use crate::config::ModelInfo;
use crate::error::EngineError;
use crate::request::{Diffusion, Request};
use crate::speculate::Speculation;

pub use batch::DiffusionSequences;
pub use sequence::DiffusionSequence;

/// Default answer length in tokens.
pub const LENGTH: usize = 256;
/// Largest context in tokens, since each step computes all of them and their memory is planned.
pub const CONTEXT: usize = 4096;
/// Largest number of steps of an answer, above the number of tokens of any text.
const STEPS: usize = 1 << 16;
/// Largest number of logits of a step, with a row for each position of a block: 256 MiB.
const LOGITS: usize = 1 << 26;

/// Longest block of a model with this vocabulary and context size, bounded by the logits of a step.
pub fn longest_block(n_vocab: usize, n_ctx: usize) -> usize {
    let max = (LOGITS / n_vocab.max(1)).max(1);
    // Steps have room for a power of two of rows.
    (1 << max.ilog2()).min(n_ctx.max(1))
}

/// Checks that the model supports the options of a request.
pub fn check(request: &Request, info: &ModelInfo) -> Result<(), EngineError> {
    if info.unmasking.is_none() {
        let architecture = info.architecture;
        return match request.diffusion == Diffusion::default() {
            true => Ok(()),
            false => Err(EngineError::NotADiffusionModel { architecture }),
        };
    }
    let always = |speculation: Speculation| speculation.always && speculation.is_on();
    let impossible = [
        (request.grammar.is_some(), "constrained output (format, response_format)"),
        (request.prompt_logprobs.is_some(), "log-probabilities of the prompt (prompt_logprobs)"),
        (request.speculation.is_some_and(always), "speculative decoding (speculate)"),
        (request.sampling.mirostat > 0, "mirostat"),
        (request.sampling.dry_multiplier > 0.0, "DRY (dry_multiplier)"),
        (depends_on_previous_tokens(&request.sampling), "adaptive-p"),
    ];
    if let Some((_, what)) = impossible.into_iter().find(|(asked, _)| *asked) {
        return Err(EngineError::UnsupportedByDiffusion { architecture: info.architecture, what });
    }
    if let Some(steps) = request.diffusion.steps.filter(|steps| !(1..=STEPS).contains(steps)) {
        return Err(EngineError::DiffusionSteps { steps, max: STEPS });
    }
    let max = longest_block(info.n_vocab, info.n_ctx);
    match request.diffusion.block_length.filter(|&length| length > max) {
        Some(length) => Err(EngineError::DiffusionBlock { length, max }),
        None => Ok(()),
    }
}

/// Checks that a draft model can be used, which diffusion models do not support.
pub fn check_draft_support(info: &ModelInfo) -> Result<(), EngineError> {
    let (architecture, what) = (info.architecture, "a draft model");
    if info.unmasking.is_some() {
        Err(EngineError::UnsupportedByDiffusion { architecture, what })
    } else {
        Ok(())
    }
}

/// Whether a sampler depends on the previously sampled tokens.
fn depends_on_previous_tokens(sampling: &Params) -> bool {
    sampling.adaptive_target >= 0.0
        && sampling.samplers.contains(&puna_sampler::SamplerKind::AdaptiveP)
}

/// Blocks of an answer of `length` tokens.
fn blocks(
    request: &Request,
    unmasking: &Unmasking,
    length: usize,
    longest: usize,
) -> schedule::Blocks {
    let steps = request.diffusion.steps.unwrap_or(length);
    let habit = unmasking.block.map(|each| each.min(longest));
    match request.diffusion.block_length.or(habit).filter(|&each| each > 0) {
        Some(each) => schedule::Blocks::even(length, each, steps),
        None => schedule::Blocks::whole(length, longest, steps),
    }
}
