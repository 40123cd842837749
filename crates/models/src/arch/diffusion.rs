//! Diffusion language models: decoders of other families with bidirectional attention. The logits
//! predict masked tokens. Dream is a Qwen2, LLaDA a Llama, LLaDA MoE and RND1 are a Qwen3 MoE.
//! GGUF: `general.architecture = "dream"`, `"llada"`, `"llada-moe"` and `"rnd1"`.

use puna_graph::{Glu, RopeKind};

use crate::architecture::{LoadOptions, LoadedArchitecture, UnmaskOrder, Unmasking};
use crate::decoder::{self, Decoder, Layer, NormKind};
use crate::error::ModelError;
use crate::experts::ExpertShape;
use crate::hparams::{Hparams, Keys};
use crate::rope::RopeKeys;
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
    let hp = Hparams::read(keys)?;
    let norm = NormKind::Rms(keys.rms_eps()?);
    let rope = w.factored_rope(&RopeKeys::read(keys, hp.key_dim, hp.n_ctx)?, RopeKind::Norm)?;
    let layers = decoder::layers(w, &hp, norm, |b| {
        let ffn = b.gated(Glu::Silu)?;
        Ok(Layer { rope: Some(rope), attention: hp.attention(b.i), ..b.pre_norm(ffn)? })
    })?;
    let decoder = Decoder::new(w, &hp, norm, layers)?;
    load_diffusion(keys, (hp, decoder), Some(LLADA_BLOCK), UnmaskOrder::Confidence)
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
    let shape = ExpertShape { normalize: true, ..experts(keys)? };
    load_diffusion(
        keys,
        super::qwen3::decoder(keys, w, |b| b.experts(shape))?,
        None,
        UnmaskOrder::Entropy,
    )
}

/// Shape of the experts. Their hidden dimension has a key; the default is the dense width divided
/// by the experts per token.
fn experts(keys: &Keys<'_>) -> Result<ExpertShape, ModelError> {
    let shape = ExpertShape::read(keys, 0)?;
    let hidden = match keys.opt_count("expert_feed_forward_length")?.filter(|&hidden| hidden > 0) {
        Some(hidden) => hidden,
        None => keys.count("feed_forward_length")? / shape.top_k,
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
