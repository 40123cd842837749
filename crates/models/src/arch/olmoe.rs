//! OLMoE: pre-norm decoder, query and key normed over all heads together, a mixture of experts whose weights do not sum to one.
//! GGUF: `general.architecture = "olmoe"`.

use puna_graph::*;

use crate::decoder::{self, Decoder, Layer, NormKind, QkNorm};
use crate::error::ModelError;
use crate::experts::ExpertShape;
use crate::hparams::{Hparams, Keys};
use crate::model::{LoadOptions, Loaded};
use crate::rope::RopeKeys;
use crate::weights::Weights;

pub(super) fn load(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<Loaded, ModelError> {
    let hp = Hparams::read(keys)?;
    let norm = NormKind::Rms(keys.rms_eps()?);
    let rope = w.rope(RopeKeys::read(keys, hp.key_dim, hp.n_ctx)?.table(RopeKind::Neox, None));
    let layers = decoder::layers(w, &hp, norm, |b| {
        let ffn = b.experts(ExpertShape::read(keys, hp.ff(b.i))?)?;
        Ok(Layer {
            qk_norm: QkNorm::Before(b.projection_norms()?),
            rope: Some(rope),
            ..b.pre_norm(ffn)?
        })
    })?;
    Ok(Decoder::new(w, &hp, norm, layers)?.loaded(&hp))
}
