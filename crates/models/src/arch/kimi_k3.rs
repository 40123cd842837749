//! Kimi K3: the layers of Kimi Linear with gated latent attention, bounded activations, and experts
//! in a latent space. Residual connections are attention over depth. Every few layers the stream is
//! saved and a new one starts; each part reads a softmax-weighted sum of the saved streams and the
//! current one.
//! GGUF: `general.architecture = "kimi-k3"`.

use puna_graph::*;

use crate::architecture::{LoadOptions, LoadedArchitecture};
use crate::decoder::{self, NormKind};
use crate::error::ModelError;
use crate::experts::{ExpertShape, LatentExperts};
use crate::hparams::{Hparams, Keys};
use crate::hybrid::{Hybrid, HybridLayer, LatentAttention, Mixer};
use crate::kda::{DeltaAttention, KdaConfig, Projection};
use crate::latent::LatentSizes;
use crate::residual::{LayerPart, ResidualConnections, ResidualStream};
use crate::weights::Weights;

pub(super) fn load(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<LoadedArchitecture, ModelError> {
    let hp = Hparams::read_hybrid(keys)?;
    let eps = keys.rms_eps()?;
    let (norm, sizes) = (NormKind::Rms(eps), LatentSizes::read(keys, &hp, w)?);
    let kda = KdaConfig {
        gate: Projection::Direct("ssm_g"),
        ..KdaConfig::read(keys)?.bounded(keys, -1.0)?
    };
    let dense = keys.opt_count("leading_dense_block_count")?.unwrap_or(0);
    let (glu, hidden) = (activation(keys)?, keys.count("expert_feed_forward_length")?);
    let latent = keys.opt_count("expert_latent_length")?.filter(|&width| width > 0);
    let latent = latent.map(|width| LatentExperts { width, name: "routed", eps: Some(eps) });
    let shape = ExpertShape {
        glu,
        latent,
        ..ExpertShape::read_with_routing(keys, hidden, Gating::Sigmoid)?
    };
    let shared = keys.shared_width(hidden)?;
    let layers = decoder::layers(w, &hp, norm, |b| {
        let mixer: Box<dyn Mixer> = match hp.kv_heads[b.i] {
            0 => Box::new(DeltaAttention::load(b, kda)?),
            _ => {
                let (name, values) =
                    (format!("{}.attn_gate", b.name), hp.heads[b.i] * sizes.v_head_dim);
                let gate = b.w.opt_linear(&name, hp.n_embd, values)?;
                Box::new(LatentAttention::load(b, (sizes, norm, None))?.gated(gate))
            }
        };
        let ffn = if b.i < dense { b.gated(glu)? } else { b.experts_with_shared(shape, shared)? };
        let ffn = Some((b.norm("ffn_norm")?, ffn));
        Ok(HybridLayer { norm: b.norm("attn_norm")?, mixers: vec![mixer], ffn })
    })?;
    let residual: Option<Box<dyn ResidualConnections>> =
        match keys.opt_count("attn_res.block_size")?.unwrap_or(0) {
            0 => None,
            interval => Some(Box::new(BlockResidual::load(w, &hp, eps, interval)?)),
        };
    Ok(Hybrid { residual, ..Hybrid::new(w, &hp, norm, layers)? }.into_architecture(&hp))
}

/// Activation of experts and dense layers.
fn activation(keys: &Keys<'_>) -> Result<Glu, ModelError> {
    let required = |key: &str| {
        keys.opt_f32(key)?.ok_or_else(|| {
            let reason = "the activation needs its bounds";
            ModelError::KeyValue { key: keys.name(key), value: "absent".into(), reason }
        })
    };
    let (gate, up) = (required("activation.situ_beta")?, required("activation.situ_linear_beta")?);
    if gate <= 0.0 {
        let (key, value) = (keys.name("activation.situ_beta"), gate.to_string());
        return Err(ModelError::KeyValue { key, value, reason: "must be positive" });
    }
    Ok(Glu::BoundedSilu { bound: gate, limit: Some(up).filter(|&up| up > 0.0) })
}

/// Residual connections with depth attention: a new stream starts every `interval` layers.
struct BlockResidual {
    interval: usize,
    /// Score vectors of each layer's mixer and feed-forward network, and of the last norm.
    score_vectors: Vec<[WeightId; 2]>,
    last: WeightId,
    eps: f32,
}

impl BlockResidual {
    fn load(
        w: &mut Weights<'_>,
        hp: &Hparams,
        eps: f32,
        interval: usize,
    ) -> Result<Self, ModelError> {
        let score_vectors = decoder::layers(w, hp, NormKind::Rms(eps), |b| {
            let [attn, ffn] = ["attn", "ffn"].map(|part| format!("{part}_res_score.weight"));
            Ok([b.tensor(&attn, &[hp.n_embd])?, b.tensor(&ffn, &[hp.n_embd])?])
        })?;
        Ok(Self {
            interval,
            score_vectors,
            last: w.tensor("output_res_score.weight", &[hp.n_embd])?,
            eps,
        })
    }

    /// Weighted sum of the saved streams and the current one.
    fn weigh(&self, g: &mut Graph, stream: &ResidualStream, score_vectors: WeightId) -> ValueId {
        let mut streams = stream.saved.clone();
        streams.push(stream.x);
        match &streams[..] {
            [only] => *only,
            _ => g.depth_attention("res_mix", (score_vectors, self.eps), &streams),
        }
    }

    /// Whether a new stream starts at this part.
    fn starts_block(&self, (layer, part): (usize, LayerPart)) -> bool {
        part == LayerPart::Mixer && layer.is_multiple_of(self.interval)
    }
}

impl ResidualConnections for BlockResidual {
    fn read(&self, g: &mut Graph, stream: &mut ResidualStream, at: (usize, LayerPart)) -> ValueId {
        let h = self.weigh(
            g,
            stream,
            self.score_vectors[at.0][usize::from(at.1 == LayerPart::FeedForward)],
        );
        if self.starts_block(at) {
            stream.saved.push(stream.x);
        }
        h
    }

    fn write(
        &self,
        g: &mut Graph,
        stream: &mut ResidualStream,
        at: (usize, LayerPart),
        output: ValueId,
    ) {
        stream.x =
            if self.starts_block(at) { output } else { g.add("prefix_sum", stream.x, output) };
    }

    fn end(&self, g: &mut Graph, stream: ResidualStream) -> ValueId {
        self.weigh(g, &stream, self.last)
    }
}
