//! Hunyuan 3: normed query and key heads; dense layers first, then experts with sigmoid routing and
//! selection bias, and a shared expert.
//! GGUF: `general.architecture = "hy_v3"`.

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
    let rope = w.factored_rope(&RopeKeys::read(keys, hp.key_dim, hp.n_ctx)?, RopeKind::Neox)?;
    let positive = |key| Ok::<_, ModelError>(keys.opt_count(key)?.filter(|&width| width > 0));
    let hidden = positive("expert_feed_forward_length")?;
    let shared = positive("expert_shared_feed_forward_length")?;
    let layers = decoder::layers(w, &hp, norm, |b| {
        let ffn = if b.has("ffn_gate_inp.weight") {
            // By default the experts of a token are together as wide as a dense layer.
            let used = keys.count("expert_used_count")?;
            let hidden = hidden.unwrap_or(hp.ff(b.i) / used);
            b.experts_with_shared(
                ExpertShape::read_with_routing(keys, hidden, Gating::Sigmoid)?,
                shared.unwrap_or(hidden),
            )?
        } else {
            b.gated(Glu::Silu)?
        };
        Ok(Layer {
            qk_norm: QkNorm::BeforeRope(b.head_norms()?),
            rope: Some(rope),
            ..b.pre_norm(ffn)?
        })
    })?;
    Ok(Decoder::new(w, &hp, norm, layers)?.into_architecture(&hp))
}
