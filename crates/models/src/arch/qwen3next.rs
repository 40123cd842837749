//! Qwen3-Next and Qwen3.5: three layers of the gated delta rule to each one of attention, both with gates on what they give; SwiGLU or a
//! mixture of experts beside a shared one.
//! GGUF: `general.architecture = "qwen3next"`, `"qwen35"` and `"qwen35moe"`.

use puna_graph::*;

use crate::decoder::{self, AnyNorm, Block, NormKind};
use crate::error::ModelError;
use crate::experts::ExpertShape;
use crate::hparams::{Hparams, Keys};
use crate::hybrid::{Attention, Hybrid, HybridLayer, Mixer, SsmKeys, Trail};
use crate::mamba::conv;
use crate::model::{LoadOptions, Loaded};
use crate::rope::RopeKeys;
use crate::weights::Weights;

/// Of the norm that brings queries and keys of the delta rule to length one; no file says it.
const UNIT_EPS: f32 = 1e-6;

pub(super) fn load(keys: &Keys<'_>, w: &mut Weights<'_>, _: LoadOptions) -> Result<Loaded, ModelError> {
    let hp = Hparams::read(keys)?;
    let (norm, ssm) = (NormKind::Rms(keys.rms_eps()?), SsmKeys::read(keys, true)?);
    let is_next = keys.meta().architecture()? == "qwen3next";
    if !is_next && keys.meta().array(&keys.name("rope.dimension_sections"))?.is_none() {
        let (key, value) = (keys.name("rope.dimension_sections"), "absent".into());
        return Err(ModelError::KeyValue {
            key,
            value,
            reason: "it says which pairs turn by what of a place",
        });
    }
    // Of text all sections are equal, so that pairs turn as in any other model.
    let rope = w.rope(RopeKeys::read(keys, hp.key_dim, hp.n_ctx)?.table(RopeKind::Neox, None));
    let recurrent = keys.recurrent_layers(hp.n_layer, 4)?;
    let has_experts = keys.opt_count("expert_count")?.unwrap_or(0) > 0;
    let layers = decoder::layers(w, &hp, norm, |b| {
        let mixer: Box<dyn Mixer> = if recurrent[b.i] {
            Box::new(DeltaNet::load(b, ssm, is_next)?)
        } else {
            let norms = Some(b.head_norms()?);
            Box::new(Attention { norms, rope: Some(rope), ..Attention::load(b, true)? })
        };
        let ffn = if has_experts {
            let used = keys.count("expert_used_count")?;
            let hidden = keys.count_or("expert_feed_forward_length", hp.ff(b.i) / used)?;
            let shared = keys.count_or("expert_shared_feed_forward_length", hp.ff(b.i))?;
            b.experts_beside(ExpertShape { normalise: true, ..ExpertShape::read(keys, hidden)? }, shared)?
        } else {
            b.gated(Glu::Silu)?
        };
        let ffn = Some((b.norm("post_attention_norm")?, ffn));
        Ok(HybridLayer { norm: b.norm("attn_norm")?, mixers: vec![mixer], ffn })
    })?;
    Ok(Hybrid::new(w, &hp, norm, layers)?.loaded(&hp))
}

/// A layer of the gated delta rule.
struct DeltaNet {
    inputs: Inputs,
    /// How much is learnt and how much is left, of each head.
    beta_alpha: BetaAlpha,
    conv: ConvSpec,
    /// Of queries and keys: together with the factors of the rule, to length one.
    unit: Norm,
    delta: DeltaSpec,
    /// Of each head's result.
    norm: AnyNorm,
    out: Linear,
}

/// Queries, keys and values before their convolution, and the gate of the result.
enum Inputs {
    /// `attn_qkv` and `attn_gate`.
    Split([Linear; 2]),
    /// `ssm_in` of the first files: for each key head its query and key, then the values and gates of its value heads.
    Joined(Linear),
}

impl Inputs {
    fn load(b: &mut Block<'_, '_>, keys: usize, values: usize) -> Result<Self, ModelError> {
        let n_embd = b.hp.n_embd;
        if b.has("ssm_in.weight") {
            return Ok(Self::Joined(b.linear("ssm_in", n_embd, 2 * (keys + values))?));
        }
        let [qkv, z] = [("attn_qkv", 2 * keys + values), ("attn_gate", values)]
            .map(|(part, output)| b.linear(part, n_embd, output));
        Ok(Self::Split([qkv?, z?]))
    }

    /// Queries, keys and values one after the other; the gate.
    fn project(&self, g: &mut Graph, h: ValueId, spec: &DeltaSpec) -> [ValueId; 2] {
        match self {
            Self::Split([qkv, z]) => [g.linear("linear_attn_qkv_mixed", qkv, h), g.linear("z", z, h)],
            Self::Joined(all) => {
                let all = g.linear("linear_attn_qkvz", all, h);
                let (dim, values) = (spec.key_dim, spec.value_heads / spec.key_heads * spec.value_dim);
                let mut pick = |name, start, width| g.pick(name, all, start, width, 2 * (dim + values));
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
    /// `ssm_ba`: for each key head first those of one kind of its value heads, then of the other.
    Fused(Linear),
}

impl DeltaNet {
    fn load(b: &mut Block<'_, '_>, keys: SsmKeys, is_next: bool) -> Result<Self, ModelError> {
        let SsmKeys { taps, inner, state: dim, rank: heads, groups: key_heads } = keys;
        let (n_embd, both) = (b.hp.n_embd, 2 * key_heads * dim);
        let (value_dim, each) = (inner / heads, heads / key_heads);
        let beta_alpha = if is_next {
            BetaAlpha::Fused(b.linear("ssm_ba", n_embd, 2 * heads)?)
        } else {
            BetaAlpha::Split([b.linear("ssm_beta", n_embd, heads)?, b.linear("ssm_alpha", n_embd, heads)?])
        };
        let root = (dim as f32).sqrt();
        Ok(Self {
            inputs: Inputs::load(b, key_heads * dim, inner)?,
            beta_alpha,
            conv: conv(b, taps, both + inner, false)?,
            unit: Norm { w: None, b: None, dim, eps: UNIT_EPS / dim as f32 },
            delta: DeltaSpec {
                state: b.state("ssm_out.weight", inner, dim)?,
                key_heads,
                value_heads: heads,
                key_dim: dim,
                value_dim,
                tiled: !is_next,
                runs: if is_next { (each, 2 * each) } else { (heads, heads) },
                // To length one, and scores over the root of their number.
                scales: [1.0 / (root * root), 1.0 / root],
                fading: Fading::Free,
                a: b.tensor("ssm_a", &[heads])?,
                dt_bias: b.tensor("ssm_dt.bias", &[heads])?,
            },
            norm: b.norm_of("ssm_norm", &[value_dim])?,
            out: b.linear("ssm_out", inner, n_embd)?,
        })
    }
}

impl Mixer for DeltaNet {
    fn mix(&self, g: &mut Graph, _: &mut Trail, h: ValueId) -> ValueId {
        let spec = self.delta;
        let (keys, values) = (spec.key_heads * spec.key_dim, spec.value_heads * spec.value_dim);
        let [x, z] = self.inputs.project(g, h, &spec);
        let (beta, decay) = match &self.beta_alpha {
            BetaAlpha::Split([beta, alpha]) => (g.linear("beta", beta, h), g.linear("alpha", alpha, h)),
            BetaAlpha::Fused(both) => {
                let all = g.linear("linear_attn_mixed_ba", both, h);
                let (run, cols) = (spec.runs.0, 2 * spec.value_heads);
                (g.slice(all, 0, cols - run), g.slice(all, run, cols - run))
            }
        };
        let x = g.recur("conv_output_silu", Recurrence::Conv { x, spec: self.conv });
        let (q, k) = (g.slice(x, 0, keys), g.slice(x, keys, keys));
        let v = g.slice(x, 2 * keys, values);
        let (q, k) = (g.rms_norm("q_conv", &self.unit, q), g.rms_norm("k_conv", &self.unit, k));
        let y = g.recur("attn_output", Recurrence::Delta { q, k, v, decay, beta, spec });
        let y = self.norm.apply(g, "attn_out_norm", y);
        g.glu("final_output", Glu::Silu, z, y)
    }

    fn finish(&self, g: &mut Graph, mixed: ValueId) -> ValueId {
        g.linear("linear_attn_out", &self.out, mixed)
    }
}
