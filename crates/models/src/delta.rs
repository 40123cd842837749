//! Gated delta rule (Yang et al., 2024) as a mixer. Queries, keys and values pass a short
//! convolution. The state decays by a factor that depends on the token, and each key writes the
//! difference between its value and the stored one. The result is gated.

use puna_graph::*;

use crate::decoder::{AnyNorm, LayerLoader};
use crate::error::ModelError;
use crate::hybrid::{Mixer, MixerContext, SsmKeys};
use crate::mamba::conv;

/// Epsilon of the norm that scales queries and keys to unit length; files do not store it.
pub const QK_NORM_EPS: f32 = 1e-6;

/// Layer of the gated delta rule.
pub struct DeltaNet {
    inputs: DeltaInputs,
    /// Write strength (beta) and decay (alpha) of each head.
    beta_alpha: BetaAlpha,
    conv: ConvSpec,
    /// RMS norm of queries and keys; with the scales of [`DeltaSpec`] it gives unit length.
    qk_norm: Norm,
    delta: DeltaSpec,
    /// Norm of each head's result.
    norm: AnyNorm,
    /// Activation of the gate.
    gate: Activation,
    out: Linear,
}

/// Projections to queries, keys and values (before the convolution) and to the gate.
enum DeltaInputs {
    /// `attn_qkv` and `attn_gate`.
    Split([Linear; 2]),
    /// `ssm_in` of early files: for each key head its query and key, then the values and gates of
    /// its value heads.
    Joined(Linear),
}

impl DeltaInputs {
    fn load(b: &mut LayerLoader<'_, '_>, keys: usize, values: usize) -> Result<Self, ModelError> {
        let n_embd = b.hp.n_embd;
        if b.has("ssm_in.weight") {
            return Ok(Self::Joined(b.linear("ssm_in", n_embd, 2 * (keys + values))?));
        }
        let [qkv, z] = [("attn_qkv", 2 * keys + values), ("attn_gate", values)]
            .map(|(part, output)| b.linear(part, n_embd, output));
        Ok(Self::Split([qkv?, z?]))
    }

    /// Returns queries, keys and values concatenated, and the gate.
    fn project(&self, g: &mut Graph, h: ValueId, spec: &DeltaSpec) -> [ValueId; 2] {
        match self {
            Self::Split([qkv, z]) => {
                [g.linear("linear_attn_qkv_mixed", qkv, h), g.linear("z", z, h)]
            }
            Self::Joined(all) => {
                let all = g.linear("linear_attn_qkvz", all, h);
                let (dim, values) =
                    (spec.key_dim, spec.value_heads / spec.key_heads * spec.value_dim);
                let mut pick = |name, start, width| {
                    g.strided_columns(name, all, start, width, 2 * (dim + values))
                };
                let [q, k] = [pick("q", 0, dim), pick("k", dim, dim)];
                let [v, z] = [pick("v", 2 * dim, values), pick("z", 2 * dim + values, values)];
                let qk = g.concat("linear_attn_qk", q, k);
                [g.concat("linear_attn_qkv_mixed", qk, v), z]
            }
        }
    }
}

enum BetaAlpha {
    /// `ssm_beta` and `ssm_alpha`.
    Split([Linear; 2]),
    /// `ssm_ba`: for each key head the betas of its value heads, then their alphas.
    Fused(Linear),
}

impl DeltaNet {
    /// Loads `ssm_*` and `attn_{qkv,gate}` of a layer, or `ssm_in`; `is_next` selects the layout of
    /// Qwen3-Next.
    pub fn load(
        b: &mut LayerLoader<'_, '_>,
        keys: SsmKeys,
        is_next: bool,
    ) -> Result<Self, ModelError> {
        let SsmKeys { taps, inner, state: dim, rank: heads, groups: key_heads } = keys;
        let (n_embd, both) = (b.hp.n_embd, 2 * key_heads * dim);
        let (value_dim, each) = (inner / heads, heads / key_heads);
        let beta_alpha = if is_next {
            BetaAlpha::Fused(b.linear("ssm_ba", n_embd, 2 * heads)?)
        } else {
            BetaAlpha::Split([
                b.linear("ssm_beta", n_embd, heads)?,
                b.linear("ssm_alpha", n_embd, heads)?,
            ])
        };
        let root = (dim as f32).sqrt();
        Ok(Self {
            inputs: DeltaInputs::load(b, key_heads * dim, inner)?,
            beta_alpha,
            conv: conv(b, taps, both + inner, false)?,
            qk_norm: Norm { w: None, b: None, dim, eps: QK_NORM_EPS / dim as f32 },
            delta: DeltaSpec {
                state: b.state("ssm_out.weight", inner, dim)?,
                key_heads,
                value_heads: heads,
                key_dim: dim,
                value_dim,
                tiled: !is_next,
                runs: if is_next { (each, 2 * each) } else { (heads, heads) },
                // Unit length, and scores divided by the root of the head dimension.
                scales: [1.0 / (root * root), 1.0 / root],
                decay_kind: DecayKind::Unbounded,
                a: b.tensor("ssm_a", &[heads])?,
                dt_bias: b.tensor("ssm_dt.bias", &[heads])?,
            },
            norm: b.norm_of("ssm_norm", &[value_dim])?,
            gate: Activation::Silu,
            out: b.linear("ssm_out", inner, n_embd)?,
        })
    }

    /// Replaces the activation of the gate.
    pub fn gated_by(self, gate: Activation) -> Self {
        Self { gate, ..self }
    }
}

impl Mixer for DeltaNet {
    fn mix(&self, g: &mut Graph, _: &mut MixerContext, h: ValueId) -> ValueId {
        let spec = self.delta;
        let (keys, values) = (spec.key_heads * spec.key_dim, spec.value_heads * spec.value_dim);
        let [x, z] = self.inputs.project(g, h, &spec);
        let (beta, decay) = match &self.beta_alpha {
            BetaAlpha::Split([beta, alpha]) => {
                (g.linear("beta", beta, h), g.linear("alpha", alpha, h))
            }
            BetaAlpha::Fused(both) => {
                let all = g.linear("linear_attn_mixed_ba", both, h);
                let (run, cols) = (spec.runs.0, 2 * spec.value_heads);
                (g.slice(all, 0, cols - run), g.slice(all, run, cols - run))
            }
        };
        let x = g.recur("conv_output_silu", Recurrence::Conv { x, spec: self.conv });
        let (q, k) = (g.slice(x, 0, keys), g.slice(x, keys, keys));
        let v = g.slice(x, 2 * keys, values);
        let (q, k) =
            (g.rms_norm("q_conv", &self.qk_norm, q), g.rms_norm("k_conv", &self.qk_norm, k));
        let y = g.recur("attn_output", Recurrence::Delta { q, k, v, decay, beta, spec });
        let y = self.norm.apply(g, "attn_out_norm", y);
        if self.gate == Activation::Silu {
            return g.glu("final_output", Glu::Silu, z, y);
        }
        let z = g.activate("gate", self.gate, z);
        g.mul("final_output", y, z)
    }

    fn finish(&self, g: &mut Graph, mixed: ValueId) -> ValueId {
        g.linear("linear_attn_out", &self.out, mixed)
    }
}
