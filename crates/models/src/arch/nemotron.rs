//! Nemotron: pre-norm decoder with layer norms, partial rotary embedding, a squared-ReLU network
//! without a gate.
//! GGUF: `general.architecture = "nemotron"`; norm weights are stored as they are applied, with the
//! 1 added.

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
    let norm = NormKind::Layer(keys.layer_eps()?);
    let rope = w.rope(RopeKeys::read(keys, hp.key_dim, hp.n_ctx)?.table(RopeKind::Neox, None));
    let layers = decoder::layers(w, &hp, norm, |b| {
        let ffn = b.ungated(Activation::ReluSquared)?;
        Ok(Layer { rope: Some(rope), ..b.pre_norm(ffn)? })
    })?;
    Ok(Decoder::new(w, &hp, norm, layers)?.into_architecture(&hp))
}
