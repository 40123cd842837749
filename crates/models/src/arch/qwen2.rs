//! Qwen2 and Qwen2.5: pre-norm decoder, grouped-query attention with biased projections, SwiGLU.
//! GGUF: `general.architecture = "qwen2"`, and `"qwen2vl"` for the language models of Qwen 2 VL and
//! Qwen 2.5 VL. Their rotary sections are equal for text.

use puna_graph::*;

use crate::architecture::{LoadOptions, LoadedArchitecture};
use crate::decoder::{self, Decoder, Layer, NormKind};
use crate::error::ModelError;
use crate::hparams::{Hparams, Keys};
use crate::rope::{RopeKeys, Sections};
use crate::weights::Weights;

pub(super) fn load(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<LoadedArchitecture, ModelError> {
    let (hp, decoder) = decoder(keys, w, keys.rms_eps()?)?;
    Ok(decoder.into_architecture(&hp))
}

/// Language models of Qwen 2 VL and Qwen 2.5 VL. The reference does not read their epsilon, which
/// is negligible against the squares of real hidden states.
pub(super) fn load_vl(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<LoadedArchitecture, ModelError> {
    // Not zero, so that a row of zeros stays zero.
    let (hp, decoder) = decoder(keys, w, f32::MIN_POSITIVE)?;
    Ok(decoder.into_architecture(&hp))
}

/// The decoder with a given epsilon, also for architectures that wrap it.
pub(super) fn decoder(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    eps: f32,
) -> Result<(Hparams, Decoder), ModelError> {
    let hp = Hparams::read(keys)?;
    let norm = NormKind::Rms(eps);
    let rope = w.rope(
        RopeKeys::read(keys, hp.key_dim, hp.n_ctx)?
            .with_sections(keys, Sections::Consecutive)?
            .table(RopeKind::Neox, None),
    );
    let layers = decoder::layers(w, &hp, norm, |b| {
        let ffn = b.gated(Glu::Silu)?;
        Ok(Layer { rope: Some(rope), ..b.pre_norm(ffn)? })
    })?;
    let decoder = Decoder::new(w, &hp, norm, layers)?;
    Ok((hp, decoder))
}
