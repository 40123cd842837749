//! dots.llm1 and Ling 2: pre-norm decoder, normed query and key heads, dense layers first, then
//! experts with sigmoid routing and selection bias (in groups for Ling) and shared experts.
//! GGUF: `general.architecture = "dots1"` and `"bailingmoe2"`.

use puna_graph::*;

use crate::architecture::{LoadOptions, LoadedArchitecture};
use crate::decoder::{self, Decoder, Layer, NormKind, QkNorm};
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
    let hidden = keys.count("expert_feed_forward_length")?;
    let shape = ExpertShape::read_with_routing(keys, hidden, Gating::Sigmoid)?;
    let dense = keys.opt_count("leading_dense_block_count")?.unwrap_or(0);
    let shared = keys.shared_width(hidden)?;
    let layers = decoder::layers(w, &hp, norm, |b| {
        let ffn =
            if b.i < dense { b.gated(Glu::Silu)? } else { b.experts_with_shared(shape, shared)? };
        Ok(Layer {
            qk_norm: QkNorm::BeforeRope(b.head_norms()?),
            rope: Some(rope),
            ..b.pre_norm(ffn)?
        })
    })?;
    Ok(Decoder::new(w, &hp, norm, layers)?.into_architecture(&hp))
}
