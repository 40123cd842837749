//! Gemma: pre-norm decoder, embeddings scaled by the square root of their width, GeGLU, tied output
//! matrix.
//! GGUF: `general.architecture = "gemma"`; norm weights are stored as they are applied, with the 1
//! added.

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
        let ffn = b.gated(Glu::Gelu)?;
        Ok(Layer { rope: Some(rope), ..b.pre_norm(ffn)? })
    })?;
    let embd_scale = (hp.n_embd as f32).sqrt();
    Ok(Decoder { embd_scale, ..Decoder::new(w, &hp, norm, layers)? }.into_architecture(&hp))
}
