//! BLOOM: pre-norm decoder with layer norms, one of them on the embeddings; positions by ALiBi, a GELU pair, biases everywhere.
//! GGUF: `general.architecture = "bloom"`.

use puna_graph::*;

use crate::decoder::{self, Decoder, Layer, NormKind};
use crate::error::ModelError;
use crate::hparams::{Hparams, Keys};
use crate::model::{LoadOptions, Loaded};
use crate::weights::Weights;

pub(super) fn load(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<Loaded, ModelError> {
    let hp = Hparams::read(keys)?;
    let norm = NormKind::Layer(keys.layer_eps()?);
    let layers = decoder::layers(w, &hp, norm, |b| {
        let ffn = b.plain(Activation::GeluTanh)?;
        Ok(Layer {
            attention: AttentionSpec { alibi: Some(8.0), ..hp.attention(b.i) },
            ..b.pre_norm(ffn)?
        })
    })?;
    let embd_norm = Some(norm.load(w, "token_embd_norm", &[hp.n_embd])?);
    Ok(Decoder { embd_norm, ..Decoder::new(w, &hp, norm, layers)? }.loaded(&hp))
}
