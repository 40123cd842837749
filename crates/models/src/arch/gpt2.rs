//! GPT-2: pre-norm decoder with layer norms, learned positions, fused projections and a GELU
//! network without a gate, all with biases.
//! GGUF: `general.architecture = "gpt2"`, and `"starcoder"` for the first StarCoder, with one key
//! head for all query heads.

use puna_graph::*;

use crate::architecture::{LoadOptions, LoadedArchitecture};
use crate::decoder::{self, Decoder, NormKind};
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
        b.pre_norm(ffn)
    })?;
    let positions = Some(w.tensor("position_embd.weight", &[hp.n_embd, hp.n_ctx])?);
    Ok(Decoder { positions, ..Decoder::new(w, &hp, norm, layers)? }.into_architecture(&hp))
}
