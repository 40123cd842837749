//! Jais: a GPT-2 with SwiGLU and ALiBi. Scores are divided by the head dimension instead of its
//! square root.
//! GGUF: `general.architecture = "jais"`.

use puna_graph::*;

use crate::architecture::{LoadOptions, LoadedArchitecture};
use crate::decoder::{self, Decoder, Layer, NormKind};
use crate::error::ModelError;
use crate::hparams::{Hparams, Keys};
use crate::weights::Weights;

pub(super) fn load(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<LoadedArchitecture, ModelError> {
    let hp = Hparams::read(keys)?;
    let norm = NormKind::Layer(keys.layer_eps()?);
    let (alibi, scale) = (keys.factor("attention.max_alibi_bias")?, 1.0 / hp.key_dim as f32);
    let layers = decoder::layers(w, &hp, norm, |b| {
        let ffn = b.gated(Glu::Silu)?;
        Ok(Layer {
            attention: AttentionSpec { alibi, scale, ..hp.attention(b.i) },
            ..b.pre_norm(ffn)?
        })
    })?;
    Ok(Decoder::new(w, &hp, norm, layers)?.into_architecture(&hp))
}
