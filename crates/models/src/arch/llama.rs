//! Llama: pre-norm decoder, grouped-query attention with rotary pairs, SwiGLU or a mixture of experts (Mixtral).
//! GGUF: `general.architecture = "llama"`, `"internlm2"`, `"xverse"` and `"baichuan"`; Mistral, SmolLM and many others publish in this form.

use puna_graph::*;

use crate::decoder::{self, Decoder, Layer, NormKind};
use crate::error::ModelError;
use crate::experts::ExpertShape;
use crate::hparams::{Hparams, Keys};
use crate::model::{LoadOptions, Loaded};
use crate::rope::RopeKeys;
use crate::weights::Weights;

const LAYERS_BAICHUAN_13B: usize = 40;

pub(super) fn load(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<Loaded, ModelError> {
    let (hp, decoder) = decoder(keys, w)?;
    Ok(decoder.loaded(&hp))
}

/// The decoder, for architectures that make something else of it, too.
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

/// Baichuan. The 13B form has positions by ALiBi instead of turns.
pub(super) fn load_baichuan(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    options: LoadOptions,
) -> Result<Loaded, ModelError> {
    if Hparams::read(keys)?.n_layer == LAYERS_BAICHUAN_13B {
        return super::refact::load(keys, w, options);
    }
    load(keys, w, options)
}
