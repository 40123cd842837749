//! Kimi delta attention (Kimi Team, 2025): a delta-rule layer with a decay for each key dimension,
//! separate convolutions of query, key and value, and a gated result.

use puna_graph::*;

use crate::decoder::{AnyNorm, LayerLoader};
use crate::error::ModelError;
use crate::hparams::Keys;
use crate::hybrid::{Mixer, MixerContext, taps};

/// Options of an architecture's delta-attention layers.
#[derive(Debug, Clone, Copy)]
pub struct KdaConfig {
    /// Rows of the convolution kernels.
    pub taps: usize,
    /// Dimensions of a head.
    pub dim: usize,
    /// Range of the decay.
    pub decay_kind: DecayKind,
    /// Epsilon of the norm that scales queries and keys to unit length.
    pub eps: f32,
    /// Projection to the decays.
    pub decay: Projection,
    /// Projection to the gates.
    pub gate: Projection,
}

/// Names of the tensors of a projection from the residual stream.
#[derive(Debug, Clone, Copy)]
pub enum Projection {
    /// One matrix, `NAME`.
    Direct(&'static str),
    /// Two matrices, `NAME_a` and `NAME_b`, with the dimensions of a head between them.
    LowRank(&'static str),
}

impl KdaConfig {
    /// Reads `ssm.conv_kernel` and `kda.head_dim`; unbounded decay and low-rank projections.
    pub fn read(keys: &Keys<'_>) -> Result<Self, ModelError> {
        Ok(Self {
            taps: taps(keys, "ssm.conv_kernel")?,
            dim: keys.count("kda.head_dim")?,
            decay_kind: DecayKind::Unbounded,
            eps: keys.rms_eps()?,
            decay: Projection::LowRank("ssm_f"),
            gate: Projection::LowRank("ssm_g"),
        })
    }

    /// With the lower bound of the decay (`kda.gate_lower_bound`), if the file has one; `sign` is
    /// that of the stored `ssm_a`.
    pub fn bounded(self, keys: &Keys<'_>, sign: f32) -> Result<Self, ModelError> {
        const KEY: &str = "kda.gate_lower_bound";
        match keys.opt_f32(KEY)? {
            None => Ok(self),
            Some(min) if min < 0.0 => {
                Ok(Self { decay_kind: DecayKind::Bounded { min, sign }, ..self })
            }
            Some(min) => {
                let (key, value) = (keys.name(KEY), min.to_string());
                Err(ModelError::KeyValue { key, value, reason: "must be negative" })
            }
        }
    }
}

/// Projection with its weights.
enum LoadedProjection {
    Direct(Linear),
    LowRank([Linear; 2]),
}

impl LoadedProjection {
    fn load(
        b: &mut LayerLoader<'_, '_>,
        projection: Projection,
        [dim, cols]: [usize; 2],
    ) -> Result<Self, ModelError> {
        let n_embd = b.hp.n_embd;
        Ok(match projection {
            Projection::Direct(name) => Self::Direct(b.linear(name, n_embd, cols)?),
            Projection::LowRank(name) => {
                let down = b.linear(&format!("{name}_a"), n_embd, dim)?;
                Self::LowRank([down, b.linear(&format!("{name}_b"), dim, cols)?])
            }
        })
    }

    fn apply(&self, g: &mut Graph, [down_name, name]: [&'static str; 2], h: ValueId) -> ValueId {
        match self {
            Self::Direct(w) => g.linear(name, w, h),
            Self::LowRank([down, up]) => {
                let low_rank = g.linear(down_name, down, h);
                g.linear(name, up, low_rank)
            }
        }
    }
}

/// Layer of delta attention.
pub struct DeltaAttention {
    /// Projection and convolution of query, key and value.
    qkv: [(Linear, ConvSpec); 3],
    decay: LoadedProjection,
    gate: LoadedProjection,
    beta: Linear,
    /// RMS norm of queries and keys; with the scales of [`DeltaSpec`] it gives unit length.
    qk_norm: Norm,
    delta: DeltaSpec,
    /// Norm of each head's result.
    norm: AnyNorm,
    out: Linear,
}

impl DeltaAttention {
    /// Loads `attn_{q,k,v,output}` and `ssm_*` of a layer.
    pub fn load(b: &mut LayerLoader<'_, '_>, config: KdaConfig) -> Result<Self, ModelError> {
        let KdaConfig { taps, dim, decay_kind, eps, decay, gate } = config;
        let (n_embd, heads) = (b.hp.n_embd, b.hp.heads[b.i]);
        let cols = heads * dim;
        let mut part = |of: &str| -> Result<(Linear, ConvSpec), ModelError> {
            let kernel = format!("ssm_conv1d_{of}.weight");
            let w = Some(b.tensor(&kernel, &[taps, 1, cols])?);
            let state = b.state(&kernel, taps - 1, cols)?;
            let conv = ConvSpec { state, taps, stride: 1, w, bias: None, silu: true };
            Ok((b.linear(&format!("attn_{of}"), n_embd, cols)?, conv))
        };
        let qkv = [part("q")?, part("k")?, part("v")?];
        let (decay, gate) = (
            LoadedProjection::load(b, decay, [dim, cols])?,
            LoadedProjection::load(b, gate, [dim, cols])?,
        );
        let root = (dim as f32).sqrt();
        // One number per head, which some files store as rows of one element.
        let a = if b.rows("ssm_a").is_some() { vec![1, heads] } else { vec![heads] };
        Ok(Self {
            qkv,
            decay,
            gate,
            beta: b.linear("ssm_beta", n_embd, heads)?,
            qk_norm: Norm { w: None, b: None, dim, eps: eps / dim as f32 },
            delta: DeltaSpec {
                state: b.state("attn_v.weight", cols, dim)?,
                key_heads: heads,
                value_heads: heads,
                key_dim: dim,
                value_dim: dim,
                tiled: false,
                runs: (heads, heads),
                // Unit length, and scores divided by the root of the head dimension.
                scales: [1.0 / (root * root), 1.0 / root],
                decay_kind,
                a: b.tensor("ssm_a", &a)?,
                dt_bias: b.tensor("ssm_dt.bias", &[cols])?,
            },
            norm: b.norm_of("ssm_norm", &[dim])?,
            out: b.linear("attn_output", cols, n_embd)?,
        })
    }
}

impl Mixer for DeltaAttention {
    fn mix(&self, g: &mut Graph, _: &mut MixerContext, h: ValueId) -> ValueId {
        let projected =
            self.qkv.map(|(projection, conv)| (g.linear("kda_qkv", &projection, h), conv));
        let decay = self.decay.apply(g, ["kda_decay_thin", "kda_decay"], h);
        let beta = g.linear("kda_beta", &self.beta, h);
        let gate = self.gate.apply(g, ["kda_gate_thin", "kda_gate"], h);
        let [q, k, v] =
            projected.map(|(x, spec)| g.recur("kda_conv", Recurrence::Conv { x, spec }));
        let (q, k) = (g.rms_norm("kda_q", &self.qk_norm, q), g.rms_norm("kda_k", &self.qk_norm, k));
        let y = g.recur("kda_out", Recurrence::Delta { q, k, v, decay, beta, spec: self.delta });
        let y = self.norm.apply(g, "kda_normed", y);
        let gate = g.activate("kda_gate_sigmoid", Activation::Sigmoid, gate);
        g.mul("kda_gated", y, gate)
    }

    fn finish(&self, g: &mut Graph, mixed: ValueId) -> ValueId {
        g.linear("kda_proj", &self.out, mixed)
    }
}
