//! StableLM: layer norms with biases, partial rotary embedding, SwiGLU. The 12B model has SwiGLU in
//! parallel with attention behind one norm, and norms of each query and key head.
//! GGUF: `general.architecture = "stablelm"`, and `"orion"`, which rotates whole heads.

use puna_graph::*;

use crate::architecture::{LoadOptions, LoadedArchitecture};
use crate::decoder::{self, Decoder, Layer, NormKind, QkNorm};
use crate::error::ModelError;
use crate::hparams::{Hparams, Keys};
use crate::rope::RopeKeys;
use crate::weights::Weights;

pub(super) fn load(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<LoadedArchitecture, ModelError> {
    let hp = Hparams::read(keys)?;
    let norm = NormKind::Layer(keys.layer_eps()?);
    let rope = w.rope(RopeKeys::read(keys, hp.key_dim, hp.n_ctx)?.table(RopeKind::Neox, None));
    let layers = decoder::layers(w, &hp, norm, |b| {
        let ffn = b.gated(Glu::Silu)?;
        let ffn_norm = b.opt_norm("ffn_norm")?;
        let has_qk_norm = b.has("attn_q_norm.weight");
        Ok(Layer {
            attn_norm: Some(b.norm("attn_norm")?),
            qk_norm: if has_qk_norm {
                QkNorm::BeforeRope(b.per_head_norms()?)
            } else {
                QkNorm::None
            },
            rope: Some(rope),
            parallel: ffn_norm.is_none(),
            ffn_norm,
            ..b.without_norms(ffn)?
        })
    })?;
    Ok(Decoder::new(w, &hp, norm, layers)?.into_architecture(&hp))
}
