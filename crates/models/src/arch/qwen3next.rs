//! Qwen3-Next and Qwen3.5: three layers of the gated delta rule alternate with one of gated
//! attention; SwiGLU or experts with a shared expert.
//! GGUF: `general.architecture = "qwen3next"`, `"qwen35"` and `"qwen35moe"`.

use puna_graph::*;

use crate::architecture::{LoadOptions, LoadedArchitecture};
use crate::blocks::FeedForward;
use crate::decoder::{self, LayerLoader, NormKind};
use crate::delta::DeltaNet;
use crate::error::ModelError;
use crate::experts::ExpertShape;
use crate::hparams::{Hparams, Keys};
use crate::hybrid::{Attention, Hybrid, HybridLayer, Mixer, SsmKeys};
use crate::rope::{RopeKeys, Sections};
use crate::weights::Weights;

pub(super) fn load(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<LoadedArchitecture, ModelError> {
    let hp = Hparams::read(keys)?;
    let (norm, ssm) = (NormKind::Rms(keys.rms_eps()?), SsmKeys::read(keys, true)?);
    let is_next = keys.meta().architecture()? == "qwen3next";
    let rope =
        if is_next { RopeKeys::read(keys, hp.key_dim, hp.n_ctx)? } else { mrope_keys(keys, &hp)? };
    let rope = w.rope(rope.table(RopeKind::Neox, None));
    let recurrent = keys.recurrent_layers(hp.n_layer, 4)?;
    let has_experts = keys.opt_count("expert_count")?.unwrap_or(0) > 0;
    let layers = decoder::layers(w, &hp, norm, |b| {
        let mixer: Box<dyn Mixer> = if recurrent[b.i] {
            Box::new(DeltaNet::load(b, ssm, is_next)?)
        } else {
            let norms = Some(b.head_norms()?);
            Box::new(Attention { norms, rope: Some(rope), ..Attention::load(b, true)? })
        };
        let ffn = if has_experts { experts(keys, b)? } else { b.gated(Glu::Silu)? };
        let ffn = Some((b.norm("post_attention_norm")?, ffn));
        Ok(HybridLayer { norm: b.norm("attn_norm")?, mixers: vec![mixer], ffn })
    })?;
    Ok(Hybrid::new(w, &hp, norm, layers)?.into_architecture(&hp))
}

/// Multimodal rotary embedding, in which sections of pairs rotate by different position numbers.
/// For text all numbers are equal, so it is the usual rotary embedding.
pub(super) fn mrope_keys(keys: &Keys<'_>, hp: &Hparams) -> Result<RopeKeys, ModelError> {
    let key = keys.name("rope.dimension_sections");
    if keys.meta().array(&key)?.is_none() {
        let reason = "the multimodal rotary embedding needs it";
        return Err(ModelError::KeyValue { key, value: "absent".into(), reason });
    }
    RopeKeys::read(keys, hp.key_dim, hp.n_ctx)?.with_sections(keys, Sections::Interleaved)
}

/// Experts and shared expert of a layer.
pub(super) fn experts(
    keys: &Keys<'_>,
    b: &mut LayerLoader<'_, '_>,
) -> Result<FeedForward, ModelError> {
    let (used, ff) = (keys.count("expert_used_count")?, b.hp.ff(b.i));
    let hidden = keys.count_or("expert_feed_forward_length", ff / used)?;
    let shared = keys.count_or("expert_shared_feed_forward_length", ff)?;
    b.experts_with_shared(
        ExpertShape { normalize: true, ..ExpertShape::read(keys, hidden)? },
        shared,
    )
}
