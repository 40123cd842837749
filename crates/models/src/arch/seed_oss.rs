//! Seed-OSS: pre-norm decoder, grouped-query attention with biases of query, key and value,
//! split-half rotary embedding, SwiGLU.
//! GGUF: `general.architecture = "seed_oss"`; the norm before SwiGLU is stored as
//! `post_attention_norm`.

use puna_graph::*;

use crate::architecture::{LoadOptions, LoadedArchitecture};
use crate::decoder::{self, Decoder, Layer, NormKind};
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
    let norm = NormKind::Rms(keys.rms_eps()?);
    let rope = w.rope(RopeKeys::read(keys, hp.key_dim, hp.n_ctx)?.table(RopeKind::Neox, None));
    let layers = decoder::layers(w, &hp, norm, |b| {
        let ffn = b.gated(Glu::Silu)?;
        Ok(Layer {
            attn_norm: Some(b.norm("attn_norm")?),
            rope: Some(rope),
            ffn_norm: Some(b.norm("post_attention_norm")?),
            ..b.without_norms(ffn)?
        })
    })?;
    Ok(Decoder::new(w, &hp, norm, layers)?.into_architecture(&hp))
}
