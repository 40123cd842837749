//! GLM-4: norms before and after each part, adjacent-pair rotary embedding of half of each head,
//! fused SwiGLU. ChatGLM, its predecessor, has norms only before the parts.
//! GGUF: `general.architecture = "glm4"` and `"chatglm"`.

use puna_graph::*;

use crate::architecture::{LoadOptions, LoadedArchitecture};
use crate::decoder::{self, Decoder, Layer, NormKind};
use crate::error::ModelError;
use crate::hparams::{Hparams, Keys};
use crate::rope::{RopeKeys, Sections};
use crate::weights::Weights;

pub(super) fn load(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<LoadedArchitecture, ModelError> {
    let hp = Hparams::read(keys)?;
    let norm = NormKind::Rms(keys.rms_eps()?);
    let rope =
        RopeKeys::read(keys, hp.key_dim, hp.n_ctx)?.with_sections(keys, Sections::Consecutive)?;
    // The converter reorders the dimensions of models with rotary sections.
    let kind = if rope.sections == Sections::None { RopeKind::Norm } else { RopeKind::Neox };
    let rope = w.rope(rope.table(kind, None));
    let layers = decoder::layers(w, &hp, norm, |b| {
        let ffn = b.gated(Glu::Silu)?;
        Ok(Layer {
            rope: Some(rope),
            post_attn_norm: b.opt_norm("post_attention_norm")?,
            post_ffn_norm: b.opt_norm("post_ffw_norm")?,
            ..b.pre_norm(ffn)?
        })
    })?;
    Ok(Decoder::new(w, &hp, norm, layers)?.into_architecture(&hp))
}
