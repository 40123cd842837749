//! SmolLM3: a Llama in which every fourth layer has no rotary embedding (NoPE).
//! GGUF: `general.architecture = "smollm3"`.

use puna_graph::*;

use crate::architecture::{LoadOptions, LoadedArchitecture};
use crate::decoder::{self, Decoder, Layer, NormKind};
use crate::error::ModelError;
use crate::hparams::{Hparams, Keys};
use crate::rope::RopeKeys;
use crate::weights::Weights;

/// The last of this many layers has no rotary embedding.
const PERIOD: usize = 4;

pub(super) fn load(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<LoadedArchitecture, ModelError> {
    let hp = Hparams::read(keys)?;
    let norm = NormKind::Rms(keys.rms_eps()?);
    let rope = w.rope(RopeKeys::read(keys, hp.key_dim, hp.n_ctx)?.table(RopeKind::Norm, None));
    let layers = decoder::layers(w, &hp, norm, |b| {
        let has_rope = !(b.i + 1).is_multiple_of(PERIOD);
        let ffn = b.gated(Glu::Silu)?;
        Ok(Layer { rope: has_rope.then_some(rope), ..b.pre_norm(ffn)? })
    })?;
    Ok(Decoder::new(w, &hp, norm, layers)?.into_architecture(&hp))
}
