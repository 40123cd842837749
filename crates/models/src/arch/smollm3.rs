//! SmolLM3: a llama in which every fourth layer does not turn.
//! GGUF: `general.architecture = "smollm3"`.

use puna_graph::*;

use crate::decoder::{self, Decoder, Layer, NormKind};
use crate::error::ModelError;
use crate::hparams::{Hparams, Keys};
use crate::model::{LoadOptions, Loaded};
use crate::rope::RopeKeys;
use crate::weights::Weights;

/// One layer of so many has no rotation, the last.
const PERIOD: usize = 4;

pub(super) fn load(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<Loaded, ModelError> {
    let hp = Hparams::read(keys)?;
    let norm = NormKind::Rms(keys.rms_eps()?);
    let rope = w.rope(RopeKeys::read(keys, hp.key_dim, hp.n_ctx)?.table(RopeKind::Norm, None));
    let layers = decoder::layers(w, &hp, norm, |b| {
        let turns = !(b.i + 1).is_multiple_of(PERIOD);
        let ffn = b.gated(Glu::Silu)?;
        Ok(Layer { rope: turns.then_some(rope), ..b.pre_norm(ffn)? })
    })?;
    Ok(Decoder::new(w, &hp, norm, layers)?.loaded(&hp))
}
