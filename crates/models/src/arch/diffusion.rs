//! Diffusion language models: decoders of other families with bidirectional attention, whose logits
//! predict masked tokens. Dream is a Qwen2, LLaDA a Llama, LLaDA MoE and RND1 are a Qwen3 MoE.
//! GGUF: `general.architecture = "dream"`, `"llada"`, `"llada-moe"` and `"rnd1"`.

use crate::decoder::Decoder;
use crate::error::ModelError;
use crate::experts::ExpertShape;
use crate::hparams::{Hparams, Keys};
use crate::model::{LoadOptions, LoadedArchitecture, UnmaskOrder, Unmasking};
use crate::weights::Weights;

const MASK_KEY: &str = "tokenizer.ggml.mask_token_id";
const SHIFT_KEY: &str = "diffusion.shift_logits";

/// Whether an architecture is a diffusion language model.
pub fn is_diffusion(architecture: &str) -> bool {
    ["dream", "llada", "llada-moe", "rnd1"].contains(&architecture)
}

/// Block size of LLaDA as published.
const LLADA_BLOCK: usize = 32;

pub(super) fn load_dream(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<LoadedArchitecture, ModelError> {
    load_diffusion(
        keys,
        super::qwen2::decoder(keys, w, keys.rms_eps()?)?,
        None,
        UnmaskOrder::Entropy,
    )
}

pub(super) fn load_llada(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<LoadedArchitecture, ModelError> {
    load_diffusion(
        keys,
        super::llama::decoder(keys, w)?,
        Some(LLADA_BLOCK),
        UnmaskOrder::Confidence,
    )
}

pub(super) fn load_llada_moe(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<LoadedArchitecture, ModelError> {
    let shape = experts(keys)?;
    let of = super::qwen3::decoder(keys, w, |b| b.experts(shape))?;
    load_diffusion(keys, of, Some(LLADA_BLOCK), UnmaskOrder::Confidence)
}

pub(super) fn load_rnd1(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<LoadedArchitecture, ModelError> {
    let shape = ExpertShape { normalise: true, ..experts(keys)? };
    load_diffusion(
        keys,
        super::qwen3::decoder(keys, w, |b| b.experts(shape))?,
        None,
        UnmaskOrder::Entropy,
    )
}

/// Experts whose hidden dimension comes from its key, or is the dense width divided by the experts
/// per token.
fn experts(keys: &Keys<'_>) -> Result<ExpertShape, ModelError> {
    let shape = ExpertShape::read(keys, 0)?;
    let hidden = match keys.opt_count("expert_feed_forward_length")?.filter(|&hidden| hidden > 0) {
        Some(hidden) => hidden,
        None => keys.count("feed_forward_length")? / shape.used,
    };
    Ok(ExpertShape { hidden, ..shape })
}

/// Diffusion model with the published block size and order.
fn load_diffusion(
    keys: &Keys<'_>,
    (hp, decoder): (Hparams, Decoder),
    block: Option<usize>,
    order: UnmaskOrder,
) -> Result<LoadedArchitecture, ModelError> {
    let mask = keys.meta().u32(MASK_KEY)?;
    if mask as usize >= hp.n_vocab {
        let reason = "the vocabulary has no such token";
        return Err(ModelError::KeyValue { key: MASK_KEY.into(), value: mask.to_string(), reason });
    }
    let is_shifted = keys.meta().opt_bool(SHIFT_KEY)?.unwrap_or(true);
    Ok(decoder.into_diffusion(&hp, Unmasking { mask, is_shifted, block, order }))
}
