//! Falcon: layer norms, fused projections without biases, split-half rotary embedding, a GELU
//! network in parallel with attention. The 7B model has one norm for both, the 40B model one for
//! each.
//! GGUF: `general.architecture = "falcon"`.

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
        let ffn = b.ungated(Activation::GeluErf)?;
        let first = b.norm("attn_norm")?;
        // The second norm, if present, is that of attention.
        let (attn_norm, ffn_norm) = match b.opt_norm("attn_norm_2")? {
            Some(second) => (Some(second), Some(first)),
            None => (Some(first), None),
        };
        Ok(Layer { attn_norm, rope: Some(rope), parallel: true, ffn_norm, ..b.without_norms(ffn)? })
    })?;
    Ok(Decoder::new(w, &hp, norm, layers)?.into_architecture(&hp))
}
