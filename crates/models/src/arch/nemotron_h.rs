//! Nemotron-H: a layer is Mamba's second version, attention without rotation, or a feed-forward part of squared ReLU without a
//! gate, of one matrix pair or of experts.
//! GGUF: `general.architecture = "nemotron_h"` and `"nemotron_h_moe"`.

use puna_graph::*;

use crate::blocks::Plain;
use crate::decoder::{self, Block, NormKind};
use crate::error::ModelError;
use crate::experts::{ExpertShape, Experts, LatentExperts};
use crate::hparams::{Hparams, Keys};
use crate::hybrid::{Attention, Hybrid, HybridLayer, Mixer, SsmKeys, Trail};
use crate::mamba::Mamba2;
use crate::model::{LoadOptions, Loaded};
use crate::weights::Weights;

pub(super) fn load(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<Loaded, ModelError> {
    let hp = Hparams::read_hybrid(keys)?;
    // Files name this epsilon as that of layer norms, and some as what it is.
    let has_own = keys.opt_f32("attention.layer_norm_rms_epsilon")?.is_some();
    let norm = NormKind::Rms(if has_own { keys.rms_eps()? } else { keys.layer_eps()? });
    let ssm = SsmKeys::read(keys, true)?;
    let layers = decoder::layers(w, &hp, norm, |b| {
        let mixer: Box<dyn Mixer> = match (hp.kv_heads[b.i], hp.ff(b.i)) {
            (0, 0) => Box::new(Mamba2::load(b, ssm)?),
            (_, 0) => Box::new(Attention::load(b, false)?),
            _ if b.has("ffn_gate_inp.weight") => Box::new(Mixture::load(b, keys)?),
            _ => Box::new(b.plain(Activation::ReluSquared)?),
        };
        Ok(HybridLayer { norm: b.norm("attn_norm")?, mixers: vec![mixer], ffn: None })
    })?;
    Ok(Hybrid::new(w, &hp, norm, layers)?.loaded(&hp))
}

/// Experts beside one that every token uses, none with a gate.
struct Mixture {
    experts: Experts,
    shared: Plain,
}

impl Mixture {
    fn load(b: &mut Block<'_, '_>, keys: &Keys<'_>) -> Result<Self, ModelError> {
        // Of each layer, zero where it has none.
        let of_layer =
            |key| Ok::<_, ModelError>(keys.per_layer(key, b.hp.n_layer)?.map_or(0, |all| all[b.i]));
        let (own, used) = (of_layer("expert_feed_forward_length")?, of_layer("expert_used_count")?);
        let hidden = if own > 0 { own } else { b.hp.ff(b.i) / used.max(1) };
        let shape = ExpertShape {
            glu: Glu::ReluSquared,
            gating: Gating::Sigmoid,
            latent: latent_experts(keys)?,
            ..ExpertShape::using(keys, hidden, used)?.with_choice(keys, Gating::Sigmoid)?
        };
        let (n_embd, shared) = (b.hp.n_embd, keys.shared_width(hidden)?);
        Ok(Self {
            experts: Experts::load(b.w, &b.name, n_embd, shape)?,
            shared: Plain::named(
                b.w,
                &b.name,
                "_shexp",
                (n_embd, shared),
                Activation::ReluSquared,
            )?,
        })
    }
}

/// What the experts read, where that is not the stream.
fn latent_experts(keys: &Keys<'_>) -> Result<Option<LatentExperts>, ModelError> {
    let width = keys.opt_count("moe_latent_size")?.filter(|&width| width > 0);
    Ok(width.map(|width| LatentExperts { width, name: "latent", eps: None }))
}

impl Mixer for Mixture {
    fn mix(&self, _: &mut Graph, _: &mut Trail, h: ValueId) -> ValueId {
        h
    }

    fn finish(&self, g: &mut Graph, mixed: ValueId) -> ValueId {
        let y = self.experts.forward_by(g, mixed, mixed);
        let beside = self.shared.forward(g, mixed);
        g.add("ffn_out", y, beside)
    }
}
