//! Ling 3: layers of Kimi delta attention with bounded decay, and some layers of latent attention
//! with a gate per head. Dense layers first, then experts with clamped activations and a shared
//! expert.
//! GGUF: `general.architecture = "bailingmoe3"`.

use puna_graph::*;

use crate::architecture::{LoadOptions, LoadedArchitecture};
use crate::decoder::{self, NormKind};
use crate::error::ModelError;
use crate::experts::ExpertShape;
use crate::hparams::{Hparams, Keys};
use crate::hybrid::{Hybrid, HybridLayer, LatentAttention, Mixer};
use crate::kda::{DeltaAttention, KdaConfig, Projection};
use crate::latent::LatentSizes;
use crate::rope::RopeKeys;
use crate::weights::Weights;

pub(super) fn load(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<LoadedArchitecture, ModelError> {
    let hp = Hparams::read_hybrid(keys)?;
    let norm = NormKind::Rms(keys.rms_eps()?);
    let (sizes, kda) = (LatentSizes::read(keys, &hp, w)?, bounded_kda(keys)?);
    // Vision models rotate by sections, which are equal for text, and pair dimensions differently
    // from text-only models.
    let has_sections = keys.meta().array(&keys.name("rope.dimension_sections"))?.is_some();
    let kind = if has_sections { RopeKind::Neox } else { RopeKind::Norm };
    let rope = w.rope(RopeKeys::read(keys, sizes.key_dim(), hp.n_ctx)?.table(kind, None));
    let dense = keys.opt_count("leading_dense_block_count")?.unwrap_or(0);
    let hidden = keys.count("expert_feed_forward_length")?;
    let shape = ExpertShape::read_with_routing(keys, hidden, Gating::Sigmoid)?;
    let shared = Some(keys.shared_width(hidden)?).filter(|&width| width > 0).unwrap_or(hidden);
    let of_experts = keys.limits_per_layer("swiglu_clamp_exp", hp.n_layer)?;
    let of_shared = keys.limits_per_layer("swiglu_clamp_shexp", hp.n_layer)?;
    let layers = decoder::layers(w, &hp, norm, |b| {
        let mixer: Box<dyn Mixer> = match hp.kv_heads[b.i] {
            0 => Box::new(DeltaAttention::load(b, kda)?),
            _ => {
                let gate = b.linear("attn_gate", hp.n_embd, hp.heads[b.i])?;
                Box::new(LatentAttention::load(b, (sizes, norm, Some(rope)))?.gated(Some(gate)))
            }
        };
        // Dense layers have the limits of the shared expert.
        let [glu, dense_glu] = [of_experts[b.i], of_shared[b.i]]
            .map(|bound| bound.map_or(Glu::Silu, |limit| Glu::ClampedSilu { limit }));
        let ffn = match b.i < dense {
            true => b.gated(dense_glu)?,
            false => b.experts_with_shared_glu(ExpertShape { glu, ..shape }, shared, dense_glu)?,
        };
        let ffn = Some((b.norm("ffn_norm")?, ffn));
        Ok(HybridLayer { norm: b.norm("attn_norm")?, mixers: vec![mixer], ffn })
    })?;
    Ok(Hybrid::new(w, &hp, norm, layers)?.into_architecture(&hp))
}

/// Delta attention with direct projections; files must have the bound of the decay.
fn bounded_kda(keys: &Keys<'_>) -> Result<KdaConfig, ModelError> {
    let kda = KdaConfig::read(keys)?.bounded(keys, 1.0)?;
    if keys.opt_bool("kda.safe_gate")? == Some(false) || kda.decay_kind == DecayKind::Unbounded {
        let (key, value) =
            (keys.name("kda.gate_lower_bound"), "absent or without kda.safe_gate".into());
        return Err(ModelError::KeyValue {
            key,
            value,
            reason: "the decay of states needs a lower bound",
        });
    }
    Ok(KdaConfig {
        decay: Projection::Direct("ssm_f_a"),
        gate: Projection::Direct("ssm_g_a"),
        ..kda
    })
}
