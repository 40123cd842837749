//! Phi-3 and Phi-4: pre-norm decoder with fused projections, SwiGLU, LongRoPE factors.
//! GGUF: `general.architecture = "phi3"`.

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
    options: LoadOptions,
) -> Result<LoadedArchitecture, ModelError> {
    let hp = Hparams::read(keys)?;
    let norm = NormKind::Rms(keys.rms_eps()?);
    let rope_keys = RopeKeys::read(keys, hp.key_dim, hp.n_ctx)?;
    let rope = w.long_rope(&rope_keys, RopeKind::Neox, options.n_ctx.unwrap_or(hp.n_ctx))?;
    let layers = decoder::layers(w, &hp, norm, |b| {
        let ffn = b.gated(Glu::Silu)?;
        Ok(Layer { rope: Some(rope), ..b.pre_norm(ffn)? })
    })?;
    Ok(Decoder::new(w, &hp, norm, layers)?.into_architecture(&hp))
}
