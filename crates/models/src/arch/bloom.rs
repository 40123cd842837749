//! BLOOM: pre-norm decoder with layer norms, also of the embeddings; ALiBi, a GELU network without
//! a gate, biases everywhere.
//! GGUF: `general.architecture = "bloom"`.

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
    let layers = decoder::layers(w, &hp, norm, |b| {
        let ffn = b.ungated(Activation::GeluTanh)?;
        Ok(Layer {
            attention: AttentionSpec { alibi: Some(8.0), ..hp.attention(b.i) },
            ..b.pre_norm(ffn)?
        })
    })?;
    let embd_norm = Some(norm.load(w, "token_embd_norm", &[hp.n_embd])?);
    Ok(Decoder { embd_norm, ..Decoder::new(w, &hp, norm, layers)? }.into_architecture(&hp))
}
