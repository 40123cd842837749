//! Kimi Linear (Kimi Team, 2025): layers of the delta rule whose decay is each key feature's own, here and there latent attention without
//! rotation; dense layers first, then mixtures of experts beside shared ones.
//! GGUF: `general.architecture = "kimi-linear"`.

use puna_graph::*;

use crate::decoder::{self, AnyNorm, Block, NormKind};
use crate::error::ModelError;
use crate::experts::ExpertShape;
use crate::hparams::{Hparams, Keys};
use crate::hybrid::{Hybrid, HybridLayer, Mixer, Trail, taps};
use crate::latent::{Latent, LatentForm};
use crate::model::{LoadOptions, Loaded};
use crate::weights::Weights;

pub(super) fn load(keys: &Keys<'_>, w: &mut Weights<'_>, _: LoadOptions) -> Result<Loaded, ModelError> {
    let hp = Hparams::read_hybrid(keys)?;
    let eps = keys.rms_eps()?;
    let norm = NormKind::Rms(eps);
    let form = LatentForm::read(keys, &hp, w)?;
    let kda = (taps(keys, "ssm.conv_kernel")?, keys.count("kda.head_dim")?);
    let dense = keys.opt_count("leading_dense_block_count")?.unwrap_or(0);
    let hidden = keys.count("expert_feed_forward_length")?;
    let shape = ExpertShape { normalise: true, ..ExpertShape::read_all(keys, hidden, Gating::Sigmoid)? };
    let shared = keys.shared_width(hidden)?;
    let layers = decoder::layers(w, &hp, norm, |b| {
        let mixer: Box<dyn Mixer> = match hp.kv_heads[b.i] {
            0 => Box::new(DeltaAttention::load(b, kda, eps)?),
            _ => Box::new(LatentAttention::load(b, form, norm)?),
        };
        let ffn = if b.i < dense { b.gated(Glu::Silu)? } else { b.experts_beside(shape, shared)? };
        let ffn = Some((b.norm("ffn_norm")?, ffn));
        Ok(HybridLayer { norm: b.norm("attn_norm")?, mixers: vec![mixer], ffn })
    })?;
    Ok(Hybrid::new(w, &hp, norm, layers)?.loaded(&hp))
}

/// A layer of the delta rule.
struct DeltaAttention {
    /// Of query, key and value: its projection and its convolution.
    qkv: [(Linear, ConvSpec); 3],
    /// The two thin products that decays and output gates come of.
    decay: [Linear; 2],
    gate: [Linear; 2],
    beta: Linear,
    /// Of queries and keys: together with the factors of the rule, to length one.
    unit: Norm,
    delta: DeltaSpec,
    /// Of each head's result.
    norm: AnyNorm,
    out: Linear,
}

impl DeltaAttention {
    fn load(b: &mut Block<'_, '_>, (taps, dim): (usize, usize), eps: f32) -> Result<Self, ModelError> {
        let (n_embd, heads) = (b.hp.n_embd, b.hp.heads[b.i]);
        let cols = heads * dim;
        let mut part = |of: &str| -> Result<(Linear, ConvSpec), ModelError> {
            let kernel = format!("ssm_conv1d_{of}.weight");
            let w = Some(b.tensor(&kernel, &[taps, 1, cols])?);
            let state = b.state(&kernel, taps - 1, cols)?;
            let conv = ConvSpec { state, taps, w, bias: None, silu: true };
            Ok((b.linear(&format!("attn_{of}"), n_embd, cols)?, conv))
        };
        let qkv = [part("q")?, part("k")?, part("v")?];
        let mut thin = |of: &str| -> Result<[Linear; 2], ModelError> {
            let down = b.linear(&format!("ssm_{of}_a"), n_embd, dim)?;
            Ok([down, b.linear(&format!("ssm_{of}_b"), dim, cols)?])
        };
        let (decay, gate) = (thin("f")?, thin("g")?);
        let root = (dim as f32).sqrt();
        Ok(Self {
            qkv,
            decay,
            gate,
            beta: b.linear("ssm_beta", n_embd, heads)?,
            unit: Norm { w: None, b: None, dim, eps: eps / dim as f32 },
            delta: DeltaSpec {
                state: b.state("ssm_f_b.weight", cols, dim)?,
                key_heads: heads,
                value_heads: heads,
                key_dim: dim,
                value_dim: dim,
                tiled: false,
                runs: (heads, heads),
                // To length one, and scores over the root of their number.
                scales: [1.0 / (root * root), 1.0 / root],
                a: b.tensor("ssm_a", &[1, heads])?,
                dt_bias: b.tensor("ssm_dt.bias", &[cols])?,
            },
            norm: b.norm_of("ssm_norm", &[dim])?,
            out: b.linear("attn_output", cols, n_embd)?,
        })
    }
}

impl Mixer for DeltaAttention {
    fn mix(&self, g: &mut Graph, _: &mut Trail, h: ValueId) -> ValueId {
        let projected = self.qkv.map(|(projection, conv)| (g.linear("kda_qkv", &projection, h), conv));
        let [decay_down, decay_up] = &self.decay;
        let thin = g.linear("kda_decay_thin", decay_down, h);
        let decay = g.linear("kda_decay", decay_up, thin);
        let beta = g.linear("kda_beta", &self.beta, h);
        let [gate_down, gate_up] = &self.gate;
        let thin = g.linear("kda_gate_thin", gate_down, h);
        let gate = g.linear("kda_gate", gate_up, thin);
        let [q, k, v] = projected.map(|(x, spec)| g.recur("kda_conv", Recurrence::Conv { x, spec }));
        let (q, k) = (g.rms_norm("kda_q", &self.unit, q), g.rms_norm("kda_k", &self.unit, k));
        let y = g.recur("kda_out", Recurrence::Delta { q, k, v, decay, beta, spec: self.delta });
        let y = self.norm.apply(g, "kda_normed", y);
        let gate = g.activate("kda_gate_sigmoid", Activation::Sigmoid, gate);
        g.mul("kda_gated", y, gate)
    }

    fn finish(&self, g: &mut Graph, mixed: ValueId) -> ValueId {
        g.linear("kda_proj", &self.out, mixed)
    }
}

/// Latent attention as a mixer: nothing turns.
struct LatentAttention {
    latent: Latent,
    spec: AttentionSpec,
    /// From what each head read to its values.
    values: HeadLinear,
    wo: Linear,
}

impl LatentAttention {
    fn load(b: &mut Block<'_, '_>, form: LatentForm, norm: NormKind) -> Result<Self, ModelError> {
        let (n_embd, heads) = (b.hp.n_embd, b.hp.heads[b.i]);
        let (latent, values) = Latent::load(b.w, &b.name, (n_embd, heads), (form, norm, None))?;
        let wo = b.linear("attn_output", heads * values.out, n_embd)?;
        Ok(Self { latent, spec: form.attention(heads), values, wo })
    }
}

impl Mixer for LatentAttention {
    fn cache(&self) -> Option<CacheLayer> {
        Some(self.spec.cache_layer())
    }

    fn mix(&self, g: &mut Graph, trail: &mut Trail, h: ValueId) -> ValueId {
        let qkv = self.latent.project(g, h);
        let a = g.attention("kqv_out", trail.layer, qkv, self.spec);
        g.linear_of_heads("kqv_values", &self.values, a)
    }

    fn finish(&self, g: &mut Graph, mixed: ValueId) -> ValueId {
        g.linear("attn_out", &self.wo, mixed)
    }
}
