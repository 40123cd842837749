//! Diffusion language models: the decoder of another family whose tokens see what lies before and behind them, and whose logits
//! say what masked tokens are. Dream is a Qwen2, LLaDA a Llama, its mixture and RND1 are Qwen3's.
//! GGUF: `general.architecture = "dream"`, `"llada"`, `"llada-moe"` and `"rnd1"`.

use crate::decoder::Decoder;
use crate::error::ModelError;
use crate::experts::ExpertShape;
use crate::hparams::{Hparams, Keys};
use crate::model::{LoadOptions, Loaded, Order, Unmasking};
use crate::weights::Weights;

const MASK: &str = "tokenizer.ggml.mask_token_id";
const SHIFT: &str = "diffusion.shift_logits";

/// Whether models of an architecture make texts of masks.
pub fn fills_masks(architecture: &str) -> bool {
    ["dream", "llada", "llada-moe", "rnd1"].contains(&architecture)
}

/// Places that LLaDA's authors fill together.
const BLOCK: usize = 32;

pub(super) fn load_dream(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<Loaded, ModelError> {
    loaded(keys, super::qwen2::decoder(keys, w, keys.rms_eps()?)?, None, Order::Entropy)
}

pub(super) fn load_llada(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<Loaded, ModelError> {
    loaded(keys, super::llama::decoder(keys, w)?, Some(BLOCK), Order::Confidence)
}

pub(super) fn load_llada_moe(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<Loaded, ModelError> {
    let shape = experts(keys)?;
    let of = super::qwen3::decoder(keys, w, |b| b.experts(shape))?;
    loaded(keys, of, Some(BLOCK), Order::Confidence)
}

pub(super) fn load_rnd1(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<Loaded, ModelError> {
    let shape = ExpertShape { normalise: true, ..experts(keys)? };
    loaded(keys, super::qwen3::decoder(keys, w, |b| b.experts(shape))?, None, Order::Entropy)
}

/// Experts of the width that the key says, or of their share of a dense part's.
fn experts(keys: &Keys<'_>) -> Result<ExpertShape, ModelError> {
    let shape = ExpertShape::read(keys, 0)?;
    let hidden = match keys.opt_count("expert_feed_forward_length")?.filter(|&hidden| hidden > 0) {
        Some(hidden) => hidden,
        None => keys.count("feed_forward_length")? / shape.used,
    };
    Ok(ExpertShape { hidden, ..shape })
}

/// A decoder as a diffusion model that was published with these habits.
fn loaded(
    keys: &Keys<'_>,
    (hp, decoder): (Hparams, Decoder),
    block: Option<usize>,
    order: Order,
) -> Result<Loaded, ModelError> {
    let mask = keys.meta().u32(MASK)?;
    if mask as usize >= hp.n_vocab {
        let reason = "the vocabulary has no such token";
        return Err(ModelError::KeyValue { key: MASK.into(), value: mask.to_string(), reason });
    }
    let is_shifted = keys.meta().opt_bool(SHIFT)?.unwrap_or(true);
    Ok(decoder.unmasking(&hp, Unmasking { mask, is_shifted, block, order }))
}
