//! EXAONE 3 and the first Qwen: a Llama with split-half rotary embedding. Qwen has fused
//! projections with biases, and its files store twice the hidden dimension of SwiGLU.
//! GGUF: `general.architecture = "exaone"`, `"qwen"`, and `"pangu-embedded"` for openPangu.

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
    load_with(keys, w, Hparams::read(keys)?)
}

pub(super) fn load_qwen(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<LoadedArchitecture, ModelError> {
    let mut hp = Hparams::read(keys)?;
    hp.ff.iter_mut().for_each(|ff| *ff /= 2);
    load_with(keys, w, hp)
}

fn load_with(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    hp: Hparams,
) -> Result<LoadedArchitecture, ModelError> {
    let norm = NormKind::Rms(keys.rms_eps()?);
    let rope = w.factored_rope(&RopeKeys::read(keys, hp.key_dim, hp.n_ctx)?, RopeKind::Neox)?;
    let layers = decoder::layers(w, &hp, norm, |b| {
        let ffn = b.gated(Glu::Silu)?;
        Ok(Layer { rope: Some(rope), ..b.pre_norm(ffn)? })
    })?;
    Ok(Decoder::new(w, &hp, norm, layers)?.into_architecture(&hp))
}
