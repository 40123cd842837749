//! StarCoder 2: pre-norm decoder with layer norms, grouped-query attention with split-half rotary
//! embedding, a GELU network without a gate, biases everywhere.
//! GGUF: `general.architecture = "starcoder2"` and `"codeshell"`, and `"pockettts"` for the text
//! part of Pocket TTS, with adjacent-pair rotary embedding.

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
    load_with(keys, w, RopeKind::Neox)
}

pub(super) fn load_pocket(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<LoadedArchitecture, ModelError> {
    load_with(keys, w, RopeKind::Norm)
}

fn load_with(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    kind: RopeKind,
) -> Result<LoadedArchitecture, ModelError> {
    let hp = Hparams::read(keys)?;
    let norm = NormKind::Layer(keys.layer_eps()?);
    let rope = w.rope(RopeKeys::read(keys, hp.key_dim, hp.n_ctx)?.table(kind, None));
    let layers = decoder::layers(w, &hp, norm, |b| {
        let ffn = b.ungated(Activation::GeluTanh)?;
        Ok(Layer { rope: Some(rope), ..b.pre_norm(ffn)? })
    })?;
    Ok(Decoder::new(w, &hp, norm, layers)?.into_architecture(&hp))
}
