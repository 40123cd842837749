//! Kimi Linear (Kimi Team, 2025): layers of Kimi delta attention, and some layers of latent
//! attention without rotary embedding. Dense layers first, then experts and shared experts.
//! GGUF: `general.architecture = "kimi-linear"`.

use puna_graph::*;

use crate::architecture::{LoadOptions, LoadedArchitecture};
use crate::decoder::{self, NormKind};
use crate::error::ModelError;
use crate::experts::ExpertShape;
use crate::hparams::{Hparams, Keys};
use crate::hybrid::{Hybrid, HybridLayer, LatentAttention, Mixer};
use crate::kda::{DeltaAttention, KdaConfig};
use crate::latent::LatentSizes;
use crate::weights::Weights;

pub(super) fn load(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<LoadedArchitecture, ModelError> {
    let hp = Hparams::read_hybrid(keys)?;
    let norm = NormKind::Rms(keys.rms_eps()?);
    let (sizes, kda) = (LatentSizes::read(keys, &hp, w)?, KdaConfig::read(keys)?);
    let dense = keys.opt_count("leading_dense_block_count")?.unwrap_or(0);
    let hidden = keys.count("expert_feed_forward_length")?;
    let shape = ExpertShape {
        normalize: true,
        ..ExpertShape::read_with_routing(keys, hidden, Gating::Sigmoid)?
    };
    let shared = keys.shared_width(hidden)?;
    let layers = decoder::layers(w, &hp, norm, |b| {
        let mixer: Box<dyn Mixer> = match hp.kv_heads[b.i] {
            0 => Box::new(DeltaAttention::load(b, kda)?),
            _ => Box::new(LatentAttention::load(b, (sizes, norm, None))?),
        };
        let ffn =
            if b.i < dense { b.gated(Glu::Silu)? } else { b.experts_with_shared(shape, shared)? };
        let ffn = Some((b.norm("ffn_norm")?, ffn));
        Ok(HybridLayer { norm: b.norm("attn_norm")?, mixers: vec![mixer], ffn })
    })?;
    Ok(Hybrid::new(w, &hp, norm, layers)?.into_architecture(&hp))
}
