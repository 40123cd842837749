//! Kimi delta attention (Kimi Team, 2025): a layer of the delta rule whose decay is each key feature's own, with a convolution of queries,
//! keys and values each and a gate of what it gives.

use puna_graph::*;

use crate::decoder::{AnyNorm, Block};
use crate::error::ModelError;
use crate::hparams::Keys;
use crate::hybrid::{Mixer, Trail, taps};

/// What an architecture decides about its layers of delta attention.
#[derive(Debug, Clone, Copy)]
pub struct KdaForm {
    /// Rows that a convolution weighs.
    pub taps: usize,
    /// Features of a head.
    pub dim: usize,
    /// How fast states fade.
    pub decay_kind: DecayKind,
    /// Of the norm that brings queries and keys to length one.
    pub eps: f32,
    /// Projection to decays.
    pub decay: Projection,
    /// Projection to gates.
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

impl KdaForm {
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

    /// With the lower bound of the decay (`kda.gate_lower_bound`), if the file has one; `sign` is that of the stored `ssm_a`.
    pub fn bounded(self, keys: &Keys<'_>, sign: f32) -> Result<Self, ModelError> {
        const KEY: &str = "kda.gate_lower_bound";
        match keys.opt_f32(KEY)? {
            None => Ok(self),
            Some(least) if least < 0.0 => {
                Ok(Self { decay_kind: DecayKind::Bounded { least, sign }, ..self })
            }
            Some(least) => {
                let (key, value) = (keys.name(KEY), least.to_string());
                Err(ModelError::KeyValue { key, value, reason: "must be negative" })
            }
        }
    }
}

/// A loaded projection.
enum LoadedProjection {
    Direct(Linear),
    LowRank([Linear; 2]),
}

impl LoadedProjection {
    fn load(
        b: &mut Block<'_, '_>,
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

/// A layer of delta attention.
pub struct DeltaAttention {
    /// Of query, key and value: its projection and its convolution.
    qkv: [(Linear, ConvSpec); 3],
    decay: LoadedProjection,
    gate: LoadedProjection,
    beta: Linear,
    /// Of queries and keys: together with the factors of the rule, to length one.
    unit: Norm,
    delta: DeltaSpec,
    /// Of each head's result.
    norm: AnyNorm,
    out: Linear,
}

impl DeltaAttention {
    /// `attn_{q,k,v,output}` and `ssm_*` of a layer.
    pub fn load(b: &mut Block<'_, '_>, form: KdaForm) -> Result<Self, ModelError> {
        let KdaForm { taps, dim, decay_kind, eps, decay, gate } = form;
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
        // One number a head, which some files have as a row each.
        let a = if b.rows("ssm_a").is_some() { vec![1, heads] } else { vec![heads] };
        Ok(Self {
            qkv,
            decay,
            gate,
            beta: b.linear("ssm_beta", n_embd, heads)?,
            unit: Norm { w: None, b: None, dim, eps: eps / dim as f32 },
            delta: DeltaSpec {
                state: b.state("attn_v.weight", cols, dim)?,
                key_heads: heads,
                value_heads: heads,
                key_dim: dim,
                value_dim: dim,
                tiled: false,
                runs: (heads, heads),
                // To length one, and scores over the root of their number.
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
    fn mix(&self, g: &mut Graph, _: &mut Trail, h: ValueId) -> ValueId {
        let projected =
            self.qkv.map(|(projection, conv)| (g.linear("kda_qkv", &projection, h), conv));
        let decay = self.decay.apply(g, ["kda_decay_thin", "kda_decay"], h);
        let beta = g.linear("kda_beta", &self.beta, h);
        let gate = self.gate.apply(g, ["kda_gate_thin", "kda_gate"], h);
        let [q, k, v] =
            projected.map(|(x, spec)| g.recur("kda_conv", Recurrence::Conv { x, spec }));
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
