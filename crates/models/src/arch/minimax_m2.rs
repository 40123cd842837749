//! MiniMax M2: pre-norm decoder, query and key normed over all heads together, part of each head turns, a mixture of experts by sigmoids
//! with a bias for choosing.
//! GGUF: `general.architecture = "minimax-m2"`.

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
    let hidden = keys.count("expert_feed_forward_length")?;
    let shape =
        ExpertShape { normalise: true, ..ExpertShape::read_all(keys, hidden, Gating::Softmax)? };
    let layers = decoder::layers(w, &hp, norm, |b| {
        let ffn = b.experts(shape)?;
        Ok(Layer {
            qk_norm: QkNorm::Before(b.projection_norms()?),
            rope: Some(rope),
            ..b.pre_norm(ffn)?
        })
    })?;
    Ok(Decoder::new(w, &hp, norm, layers)?.loaded(&hp))
}
