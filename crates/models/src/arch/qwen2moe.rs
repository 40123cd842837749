//! Qwen2 with experts: pre-norm decoder, biases of query, key and value, experts with weights that
//! are not normalized, and a gated shared expert.
//! GGUF: `general.architecture = "qwen2moe"`.

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
    let norm = NormKind::Rms(keys.rms_eps()?);
    let rope = w.rope(RopeKeys::read(keys, hp.key_dim, hp.n_ctx)?.table(RopeKind::Neox, None));
    let used = keys.count("expert_used_count")?;
    let layers = decoder::layers(w, &hp, norm, |b| {
        let hidden = keys.count_or("expert_feed_forward_length", hp.ff(b.i) / used)?;
        let shared = keys.count_or("expert_shared_feed_forward_length", hp.ff(b.i))?;
        let ffn = b.experts_with_shared(ExpertShape::read(keys, hidden)?, shared)?;
        Ok(Layer { rope: Some(rope), ..b.pre_norm(ffn)? })
    })?;
    Ok(Decoder::new(w, &hp, norm, layers)?.into_architecture(&hp))
}
