//! DBRX: pre-norm decoder with layer norms, clamped query, key and value, split-half rotary
//! embedding, and experts with normalized weights.
//! GGUF: `general.architecture = "dbrx"`; the norm before the feed-forward network is stored as
//! `attn_output_norm`.

use puna_graph::*;

use crate::architecture::{LoadOptions, LoadedArchitecture};
use crate::decoder::{self, Decoder, Layer, NormKind};
use crate::error::ModelError;
use crate::experts::ExpertShape;
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
    let clamp = keys.opt_limit("attention.clamp_kqv")?;
    let layers = decoder::layers(w, &hp, norm, |b| {
        let shape = ExpertShape { normalize: true, ..ExpertShape::read(keys, hp.ff(b.i))? };
        let ffn = b.experts(shape)?;
        Ok(Layer {
            attn_norm: Some(b.norm("attn_norm")?),
            clamp,
            rope: Some(rope),
            ffn_norm: Some(b.norm("attn_output_norm")?),
            ..b.without_norms(ffn)?
        })
    })?;
    Ok(Decoder::new(w, &hp, norm, layers)?.into_architecture(&hp))
}
