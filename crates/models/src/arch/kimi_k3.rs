//! Kimi K3: Kimi Linear's layers, whose latent attention has gates of its values, with bounded units and experts that read fewer features
//! than the stream has. Each part reads of the stream what it heeds of it: every few layers the stream is set aside and begins anew, and
//! a softmax weighs what lies aside and what there is since.
//! GGUF: `general.architecture = "kimi-k3"`.

use puna_graph::*;

use crate::decoder::{self, NormKind};
use crate::error::ModelError;
use crate::experts::{ExpertShape, LatentExperts};
use crate::hparams::{Hparams, Keys};
use crate::hybrid::{Hybrid, HybridLayer, LatentAttention, Mixer, Part, Residual, Stream};
use crate::kda::{DeltaAttention, KdaForm, Projection};
use crate::latent::LatentSizes;
use crate::model::{LoadOptions, Loaded};
use crate::weights::Weights;

pub(super) fn load(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<Loaded, ModelError> {
    let hp = Hparams::read_hybrid(keys)?;
    let eps = keys.rms_eps()?;
    let (norm, form) = (NormKind::Rms(eps), LatentSizes::read(keys, &hp, w)?);
    let kda =
        KdaForm { gate: Projection::Direct("ssm_g"), ..KdaForm::read(keys)?.bounded(keys, -1.0)? };
    let dense = keys.opt_count("leading_dense_block_count")?.unwrap_or(0);
    let (glu, hidden) = (unit(keys)?, keys.count("expert_feed_forward_length")?);
    let latent = keys.opt_count("expert_latent_length")?.filter(|&width| width > 0);
    let latent = latent.map(|width| LatentExperts { width, name: "routed", eps: Some(eps) });
    let shape =
        ExpertShape { glu, latent, ..ExpertShape::read_all(keys, hidden, Gating::Sigmoid)? };
    let shared = keys.shared_width(hidden)?;
    let layers = decoder::layers(w, &hp, norm, |b| {
        let mixer: Box<dyn Mixer> = match hp.kv_heads[b.i] {
            0 => Box::new(DeltaAttention::load(b, kda)?),
            _ => {
                let (name, values) =
                    (format!("{}.attn_gate", b.name), hp.heads[b.i] * form.v_head_dim);
                let gate = b.w.opt_linear(&name, hp.n_embd, values)?;
                Box::new(LatentAttention::load(b, (form, norm, None))?.gated(gate))
            }
        };
        let ffn = if b.i < dense { b.gated(glu)? } else { b.experts_beside(shape, shared)? };
        let ffn = Some((b.norm("ffn_norm")?, ffn));
        Ok(HybridLayer { norm: b.norm("attn_norm")?, mixers: vec![mixer], ffn })
    })?;
    let residual: Option<Box<dyn Residual>> =
        match keys.opt_count("attn_res.block_size")?.unwrap_or(0) {
            0 => None,
            every => Some(Box::new(Aside::load(w, &hp, eps, every)?)),
        };
    Ok(Hybrid { residual, ..Hybrid::new(w, &hp, norm, layers)? }.loaded(&hp))
}

/// The unit of experts and dense layers.
fn unit(keys: &Keys<'_>) -> Result<Glu, ModelError> {
    let bound = |key: &str| {
        keys.opt_f32(key)?.ok_or_else(|| {
            let reason = "the bounds of the unit are needed";
            ModelError::KeyValue { key: keys.name(key), value: "absent".into(), reason }
        })
    };
    let (gate, up) = (bound("activation.situ_beta")?, bound("activation.situ_linear_beta")?);
    if gate <= 0.0 {
        let (key, value) = (keys.name("activation.situ_beta"), gate.to_string());
        return Err(ModelError::KeyValue { key, value, reason: "must be positive" });
    }
    Ok(Glu::BoundedSilu { bound: gate, limit: Some(up).filter(|&up| up > 0.0) })
}

/// Sets the stream aside before every so many layers.
struct Aside {
    every: usize,
    /// What each layer's mixer and feed-forward part heed, and the last norm.
    heeded: Vec<[WeightId; 2]>,
    last: WeightId,
    eps: f32,
}

impl Aside {
    fn load(w: &mut Weights<'_>, hp: &Hparams, eps: f32, every: usize) -> Result<Self, ModelError> {
        let heeded = decoder::layers(w, hp, NormKind::Rms(eps), |b| {
            let [attn, ffn] = ["attn", "ffn"].map(|part| format!("{part}_res_score.weight"));
            Ok([b.tensor(&attn, &[hp.n_embd])?, b.tensor(&ffn, &[hp.n_embd])?])
        })?;
        Ok(Self { every, heeded, last: w.tensor("output_res_score.weight", &[hp.n_embd])?, eps })
    }

    /// What is heeded of all that was set aside and of what there is since.
    fn recall(&self, g: &mut Graph, stream: &Stream, heeded: WeightId) -> ValueId {
        let mut places = stream.kept.clone();
        places.push(stream.x);
        match &places[..] {
            [only] => *only,
            _ => g.recall("res_mix", (heeded, self.eps), &places),
        }
    }

    /// Whether the stream is set aside before this part, which begins it anew.
    fn is_before(&self, (layer, part): (usize, Part)) -> bool {
        part == Part::Mixer && layer.is_multiple_of(self.every)
    }
}

impl Residual for Aside {
    fn read(&self, g: &mut Graph, stream: &mut Stream, at: (usize, Part)) -> ValueId {
        let h = self.recall(g, stream, self.heeded[at.0][usize::from(at.1 == Part::FeedForward)]);
        if self.is_before(at) {
            stream.kept.push(stream.x);
        }
        h
    }

    fn join(&self, g: &mut Graph, stream: &mut Stream, at: (usize, Part), given: ValueId) {
        stream.x = if self.is_before(at) { given } else { g.add("prefix_sum", stream.x, given) };
    }

    fn leave(&self, g: &mut Graph, stream: Stream) -> ValueId {
        self.recall(g, &stream, self.last)
    }
}
