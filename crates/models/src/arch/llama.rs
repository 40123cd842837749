//! Llama (Touvron et al., 2023): pre-norm decoder, grouped-query attention with adjacent-pair
//! rotary embedding, SwiGLU or experts (Mixtral).
//!
//! For each layer, with RMS norms: `x += attn_output · attention(rope(attn_q h), rope(attn_k h),
//! attn_v h)` with `h = attn_norm(x)`, then `x += ffn_down · (silu(ffn_gate h) ⊙ ffn_up h)` with
//! `h = ffn_norm(x)`. Logits are `output · output_norm(x)`.
//!
//! GGUF: `general.architecture = "llama"`, `"internlm2"`, `"xverse"` and `"baichuan"`; Mistral,
//! SmolLM and many others use this architecture.

use puna_graph::*;

use crate::decoder::{self, Decoder, Layer, NormKind};
use crate::error::ModelError;
use crate::experts::ExpertShape;
use crate::hparams::{Hparams, Keys};
use crate::model::{LoadOptions, LoadedArchitecture};
use crate::rope::RopeKeys;
use crate::weights::Weights;

const LAYERS_BAICHUAN_13B: usize = 40;

pub(super) fn load(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<LoadedArchitecture, ModelError> {
    let (hp, decoder) = decoder(keys, w)?;
    Ok(decoder.into_architecture(&hp))
}

/// The decoder, also for architectures that wrap it.
pub(super) fn decoder(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
) -> Result<(Hparams, Decoder), ModelError> {
    let hp = Hparams::read(keys)?;
    let norm = NormKind::Rms(keys.rms_eps()?);
    let rope = w.factored_rope(&RopeKeys::read(keys, hp.key_dim, hp.n_ctx)?, RopeKind::Norm)?;
    let scale = keys.opt_f32("attention.scale")?.filter(|&s| s != 0.0);
    let scale = scale.unwrap_or(1.0 / (hp.key_dim as f32).sqrt());
    let experts = keys.opt_count("expert_count")?.unwrap_or(0);
    let layers = decoder::layers(w, &hp, norm, |b| {
        let ffn = match experts {
            0 => b.gated(Glu::Silu)?,
            _ => {
                b.experts(ExpertShape { normalise: true, ..ExpertShape::read(keys, hp.ff(b.i))? })?
            }
        };
        let attention = AttentionSpec { scale, ..hp.attention(b.i) };
        Ok(Layer { rope: Some(rope), attention, ..b.pre_norm(ffn)? })
    })?;
    let decoder = Decoder::new(w, &hp, norm, layers)?;
    Ok((hp, decoder))
}

/// Baichuan. The 13B model has ALiBi instead of rotary embedding.
pub(super) fn load_baichuan(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    options: LoadOptions,
) -> Result<LoadedArchitecture, ModelError> {
    if Hparams::read(keys)?.n_layer == LAYERS_BAICHUAN_13B {
        return super::refact::load(keys, w, options);
    }
    load(keys, w, options)
}
