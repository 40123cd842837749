//! Kimi Linear (Kimi Team, 2025): layers of delta attention, here and there latent attention without rotation; dense layers first, then
//! mixtures of experts beside shared ones.
//! GGUF: `general.architecture = "kimi-linear"`.

use puna_graph::*;

use crate::decoder::{self, NormKind};
use crate::error::ModelError;
use crate::experts::ExpertShape;
use crate::hparams::{Hparams, Keys};
use crate::hybrid::{Hybrid, HybridLayer, LatentAttention, Mixer};
use crate::kda::{DeltaAttention, KdaForm};
use crate::latent::LatentSizes;
use crate::model::{LoadOptions, Loaded};
use crate::weights::Weights;

pub(super) fn load(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<Loaded, ModelError> {
    let hp = Hparams::read_hybrid(keys)?;
    let norm = NormKind::Rms(keys.rms_eps()?);
    let (form, kda) = (LatentSizes::read(keys, &hp, w)?, KdaForm::read(keys)?);
    let dense = keys.opt_count("leading_dense_block_count")?.unwrap_or(0);
    let hidden = keys.count("expert_feed_forward_length")?;
    let shape =
        ExpertShape { normalise: true, ..ExpertShape::read_all(keys, hidden, Gating::Sigmoid)? };
    let shared = keys.shared_width(hidden)?;
    let layers = decoder::layers(w, &hp, norm, |b| {
        let mixer: Box<dyn Mixer> = match hp.kv_heads[b.i] {
            0 => Box::new(DeltaAttention::load(b, kda)?),
            _ => Box::new(LatentAttention::load(b, (form, norm, None))?),
        };
        let ffn = if b.i < dense { b.gated(Glu::Silu)? } else { b.experts_beside(shape, shared)? };
        let ffn = Some((b.norm("ffn_norm")?, ffn));
        Ok(HybridLayer { norm: b.norm("attn_norm")?, mixers: vec![mixer], ffn })
    })?;
    Ok(Hybrid::new(w, &hp, norm, layers)?.loaded(&hp))
}
