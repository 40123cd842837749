//! StarCoder 2: pre-norm decoder with layer norms, grouped-query attention with rotary halves, a GELU pair, biases everywhere.
//! GGUF: `general.architecture = "starcoder2"` and `"codeshell"`, and `"pockettts"`, the part of Pocket TTS that reads text, whose rotary
//! pairs are neighbours.

use puna_graph::*;

use crate::decoder::{self, Decoder, Layer, NormKind};
use crate::error::ModelError;
use crate::hparams::{Hparams, Keys};
use crate::model::{LoadOptions, Loaded};
use crate::rope::RopeKeys;
use crate::weights::Weights;

pub(super) fn load(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<Loaded, ModelError> {
    load_with(keys, w, RopeKind::Neox)
}

pub(super) fn load_pocket(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<Loaded, ModelError> {
    load_with(keys, w, RopeKind::Norm)
}

fn load_with(keys: &Keys<'_>, w: &mut Weights<'_>, kind: RopeKind) -> Result<Loaded, ModelError> {
    let hp = Hparams::read(keys)?;
    let norm = NormKind::Layer(keys.layer_eps()?);
    let rope = w.rope(RopeKeys::read(keys, hp.key_dim, hp.n_ctx)?.table(kind, None));
    let layers = decoder::layers(w, &hp, norm, |b| {
        let ffn = b.plain(Activation::GeluTanh)?;
        Ok(Layer { rope: Some(rope), ..b.pre_norm(ffn)? })
    })?;
    Ok(Decoder::new(w, &hp, norm, layers)?.loaded(&hp))
}
