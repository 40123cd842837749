//! Nemotron-H: each layer is Mamba 2, attention without rotary embedding, or a squared-ReLU
//! feed-forward network without a gate, dense or with experts.
//! GGUF: `general.architecture = "nemotron_h"` and `"nemotron_h_moe"`.

use puna_graph::*;

use crate::architecture::{LoadOptions, LoadedArchitecture};
use crate::blocks::UngatedMlp;
use crate::decoder::{self, LayerLoader, NormKind};
use crate::error::ModelError;
use crate::experts::{ExpertShape, Experts, LatentExperts};
use crate::hparams::{Hparams, Keys};
use crate::hybrid::{Attention, Hybrid, HybridLayer, Mixer, MixerContext, SsmKeys};
use crate::mamba::Mamba2;
use crate::weights::Weights;

pub(super) fn load(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<LoadedArchitecture, ModelError> {
    let hp = Hparams::read_hybrid(keys)?;
    // Files store this epsilon under the key of layer norms, some also under that of RMS norms.
    let has_own = keys.opt_f32("attention.layer_norm_rms_epsilon")?.is_some();
    let norm = NormKind::Rms(if has_own { keys.rms_eps()? } else { keys.layer_eps()? });
    let ssm = SsmKeys::read(keys, true)?;
    let layers = decoder::layers(w, &hp, norm, |b| {
        let mixer: Box<dyn Mixer> = match (hp.kv_heads[b.i], hp.ff(b.i)) {
            (0, 0) => Box::new(Mamba2::load(b, ssm)?),
            (_, 0) => Box::new(Attention::load(b, false)?),
            _ if b.has("ffn_gate_inp.weight") => Box::new(ExpertMixer::load(b, keys)?),
            _ => Box::new(b.ungated(Activation::ReluSquared)?),
        };
        Ok(HybridLayer { norm: b.norm("attn_norm")?, mixers: vec![mixer], ffn: None })
    })?;
    Ok(Hybrid::new(w, &hp, norm, layers)?.into_architecture(&hp))
}

/// Experts plus a shared expert, all without a gate.
struct ExpertMixer {
    experts: Experts,
    shared: UngatedMlp,
}

impl ExpertMixer {
    fn load(b: &mut LayerLoader<'_, '_>, keys: &Keys<'_>) -> Result<Self, ModelError> {
        // Hidden dimension of each layer; zero for layers without a feed-forward network.
        let of_layer =
            |key| Ok::<_, ModelError>(keys.per_layer(key, b.hp.n_layer)?.map_or(0, |all| all[b.i]));
        let (own, used) = (of_layer("expert_feed_forward_length")?, of_layer("expert_used_count")?);
        let hidden = if own > 0 { own } else { b.hp.ff(b.i) / used.max(1) };
        let shape = ExpertShape {
            glu: Glu::ReluSquared,
            gating: Gating::Sigmoid,
            latent: latent_experts(keys)?,
            ..ExpertShape::using(keys, hidden, used)?.with_routing(keys, Gating::Sigmoid)?
        };
        let (n_embd, shared) = (b.hp.n_embd, keys.shared_width(hidden)?);
        Ok(Self {
            experts: Experts::load(b.w, &b.name, n_embd, shape)?,
            shared: UngatedMlp::named(
                b.w,
                &b.name,
                "_shexp",
                (n_embd, shared),
                Activation::ReluSquared,
            )?,
        })
    }
}

/// Latent space of the experts, if the file has one.
fn latent_experts(keys: &Keys<'_>) -> Result<Option<LatentExperts>, ModelError> {
    let width = keys.opt_count("moe_latent_size")?.filter(|&width| width > 0);
    Ok(width.map(|width| LatentExperts { width, name: "latent", eps: None }))
}

impl Mixer for ExpertMixer {
    fn mix(&self, _: &mut Graph, _: &mut MixerContext, h: ValueId) -> ValueId {
        h
    }

    fn finish(&self, g: &mut Graph, mixed: ValueId) -> ValueId {
        let y = self.experts.forward_routed(g, mixed, mixed);
        let y_shared = self.shared.forward(g, mixed);
        g.add("ffn_out", y, y_shared)
    }
}
