//! Phi-3.5-MoE: a pre-norm decoder with layer norms and biases, experts with SparseMixer routing,
//! LongRoPE factors.
//! GGUF: `general.architecture = "phimoe"`.
//!
//! llama.cpp has RMS norms and softmax routing instead; this is the model as it was trained.

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
    options: LoadOptions,
) -> Result<LoadedArchitecture, ModelError> {
    let hp = Hparams::read(keys)?;
    // Files store the epsilon of these layer norms under the key of RMS norms.
    let norm = NormKind::Layer(keys.rms_eps()?);
    let rope_keys = RopeKeys::read(keys, hp.key_dim, hp.n_ctx)?;
    let rope = w.long_rope(&rope_keys, RopeKind::Neox, options.n_ctx.unwrap_or(hp.n_ctx))?;
    let layers = decoder::layers(w, &hp, norm, |b| {
        let shape =
            ExpertShape { gating: Gating::SparseMixer, ..ExpertShape::read(keys, hp.ff(b.i))? };
        let ffn = b.experts(shape)?;
        Ok(Layer { rope: Some(rope), ..b.pre_norm(ffn)? })
    })?;
    Ok(Decoder::new(w, &hp, norm, layers)?.into_architecture(&hp))
}
