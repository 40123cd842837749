//! RWKV of the sixth version: a memory with a decay that the text decides, then a mixture of each token with the one before it; and
//! Qwen2 with such a memory, read behind the token, in attention's place.
//! GGUF: `general.architecture = "rwkv6"`, of which a block is two layers here, and `"rwkv6qwen2"`.

use puna_graph::*;

use crate::decoder::{self, Block, NormKind};
use crate::error::ModelError;
use crate::hparams::{Hparams, Keys};
use crate::hybrid::{Hybrid, Mixer, Trail};
use crate::model::{LoadOptions, Loaded};
use crate::rwkv::*;
use crate::weights::Weights;

pub(super) fn load(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<Loaded, ModelError> {
    let hp = Hparams::read_hybrid(keys)?;
    let (norm, form) = (NormKind::Layer(keys.layer_eps()?), Form::read(keys, &hp)?);
    let blocks = decoder::layers(w, &hp, norm, |b| {
        let (time, channel) = (TimeMix::load(b, form, false)?, ChannelMix::load(b)?);
        block(b, time, channel)
    })?;
    let halved_every = keys.opt_count("rescale_every_n_layers")?.filter(|&n| n > 0);
    Ok(Hybrid { halved_every, ..between(w, &hp, norm, blocks)? }.loaded(&hp))
}

pub(super) fn load_qwen2(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<Loaded, ModelError> {
    let hp = Hparams::read_hybrid(keys)?;
    let form = Form::read(keys, &hp)?;
    memory_decoder(keys, w, &hp, |b| TimeMix::load(b, form, true))
}

/// What keys say of the memory.
#[derive(Clone, Copy)]
struct Form {
    dim: usize,
    /// Heads of keys and values.
    kv_heads: usize,
    /// Columns to the corrections of a token's mixtures, and to its decay.
    ranks: [usize; 2],
}

impl Form {
    fn read(keys: &Keys<'_>, hp: &Hparams) -> Result<Self, ModelError> {
        let dim = head_size(keys, hp)?;
        let heads = hp.n_embd / dim;
        // Heads of queries are not counted in these files.
        let kv_heads = match hp.kv_heads[0] {
            0 => heads,
            kv_heads => kv_heads,
        };
        if !heads.is_multiple_of(kv_heads) {
            let (key, value) = (keys.name("attention.head_count_kv"), kv_heads.to_string());
            return Err(ModelError::KeyValue {
                key,
                value,
                reason: "all heads must share these evenly",
            });
        }
        let ranks = [keys.count("time_mix_extra_dim")?, keys.count("time_decay_extra_dim")?];
        Ok(Self { dim, kv_heads, ranks })
    }
}

/// Attention's place.
struct TimeMix {
    shift: ConvSpec,
    lerp_x: WeightId,
    /// Of decay, key, value, receptance and gate.
    lerps: Vec<WeightId>,
    /// To the corrections of those five and back.
    w1: Linear,
    w2: Vec<Linear>,
    decay: LowRankProjection,
    key: Linear,
    value: Linear,
    receptance: Linear,
    gate: Linear,
    wkv: WkvSpec,
    /// Of each head's result.
    norm: Option<Norm>,
    out: Linear,
}

impl TimeMix {
    /// `is_linear`: as gated linear attention.
    fn load(b: &mut Block<'_, '_>, form: Form, is_linear: bool) -> Result<Self, ModelError> {
        let Form { dim, kv_heads, ranks: [rank, decay_rank] } = form;
        let (n, shared) = (b.hp.n_embd, kv_heads * dim);
        let name = |part: &str| format!("time_mix_{part}.weight");
        let fused = name("lerp_fused");
        let lerps = if b.has(&fused) {
            b.w.parts(&format!("{}.{fused}", b.name), &[n, 1, 1, 5])?
        } else {
            let each = |kind| b.tensor(&name(&format!("lerp_{kind}")), &[n]);
            ["w", "k", "v", "r", "g"].map(each).into_iter().collect::<Result<_, _>>()?
        };
        let w2 = b.w.parts(&format!("{}.{}", b.name, name("w2")), &[rank, n, 5])?;
        let (first, norm) = if is_linear {
            (None, None)
        } else {
            let (w, bias) =
                (b.tensor("time_mix_ln.weight", &[n])?, b.tensor("time_mix_ln.bias", &[n])?);
            let norm = Norm { w: Some(w), b: Some(bias), dim, eps: HEAD_EPS };
            (Some(b.tensor(&name("first"), &[dim, n / dim])?), Some(norm))
        };
        let ways = ["time_mix_decay_w1", "time_mix_decay_w2"];
        Ok(Self {
            shift: shift(b, "attn_norm.weight")?,
            lerp_x: b.tensor(&name("lerp_x"), &[n])?,
            lerps,
            w1: b.linear("time_mix_w1", n, 5 * rank)?,
            w2: w2.into_iter().map(|w| Linear { w, scale: 1.0, bias: None, out: n }).collect(),
            decay: LowRankProjection::load(
                b,
                ways,
                decay_rank,
                Some(Activation::Tanh),
                Some("time_mix_decay"),
            )?,
            key: b.linear("time_mix_key", n, shared)?,
            value: b.linear("time_mix_value", n, shared)?,
            receptance: b.linear("time_mix_receptance", n, n)?,
            gate: b.linear("time_mix_gate", n, n)?,
            wkv: WkvSpec {
                state: b.state(&name("decay"), n, dim)?,
                heads: n / dim,
                kv_heads,
                dim,
                first,
            },
            norm,
            out: b.linear("time_mix_output", n, n)?,
        })
    }
}

impl Mixer for TimeMix {
    fn mix(&self, g: &mut Graph, _: &mut Trail, h: ValueId) -> ValueId {
        let n = self.out.out;
        let s = difference(g, self.shift, h);
        let by = vector(g, self.lerp_x, n);
        let mixed = lerp(g, "time_mix_x", h, s, by);
        let all = g.linear("time_mix_w1", &self.w1, mixed);
        let all = g.activate("time_mix_tanh", Activation::Tanh, all);
        let rank = self.w1.out / 5;
        let [w, k, v, r, gate] = [0, 1, 2, 3, 4].map(|i| {
            let part = g.pick("time_mix_part", all, i * rank, rank, 5 * rank);
            let part = g.linear("time_mix_w2", &self.w2[i], part);
            let by = vector(g, self.lerps[i], n);
            let by = g.add("time_mix_lerp", by, part);
            lerp(g, "time_mix", h, s, by)
        });
        let decay = self.decay.apply(g, "decay", w);
        let (r, k) = (g.linear("receptance", &self.receptance, r), g.linear("key", &self.key, k));
        let v = g.linear("value", &self.value, v);
        let gate = g.linear("gate", &self.gate, gate);
        let y = g.recur("wkv_out", Recurrence::Wkv { r, k, v, decay, spec: self.wkv });
        match &self.norm {
            Some(norm) => {
                let y = g.layer_norm("wkv_norm", norm, y);
                g.glu("wkv_gated", Glu::Silu, gate, y)
            }
            None => {
                let gate = g.activate("gate_sigmoid", Activation::Sigmoid, gate);
                g.mul("wkv_gated", y, gate)
            }
        }
    }

    fn finish(&self, g: &mut Graph, mixed: ValueId) -> ValueId {
        g.linear("time_mix_out", &self.out, mixed)
    }
}

/// The feed-forward part's place.
struct ChannelMix {
    shift: ConvSpec,
    /// Of key and receptance.
    lerps: [WeightId; 2],
    key: Linear,
    value: Linear,
    receptance: Linear,
}

impl ChannelMix {
    fn load(b: &mut Block<'_, '_>) -> Result<Self, ModelError> {
        let (n, ff) = (b.hp.n_embd, b.hp.ff(b.i));
        Ok(Self {
            shift: shift(b, "attn_norm_2.weight")?,
            lerps: [
                b.tensor("channel_mix_lerp_k.weight", &[n])?,
                b.tensor("channel_mix_lerp_r.weight", &[n])?,
            ],
            key: b.linear("channel_mix_key", n, ff)?,
            value: b.linear("channel_mix_value", ff, n)?,
            receptance: b.linear("channel_mix_receptance", n, n)?,
        })
    }
}

impl Mixer for ChannelMix {
    /// What key and receptance read, side by side.
    fn mix(&self, g: &mut Graph, _: &mut Trail, h: ValueId) -> ValueId {
        let s = difference(g, self.shift, h);
        let [k, r] = self.lerps.map(|by| {
            let by = vector(g, by, self.value.out);
            lerp(g, "channel_mix", h, s, by)
        });
        g.concat("channel_mixed", k, r)
    }

    fn finish(&self, g: &mut Graph, mixed: ValueId) -> ValueId {
        let n = self.value.out;
        let [k, r] = [0, n].map(|start| g.pick("channel_mix_part", mixed, start, n, 2 * n));
        let k = g.linear("channel_key", &self.key, k);
        let k = g.activate("channel_relu", Activation::ReluSquared, k);
        let v = g.linear("channel_value", &self.value, k);
        let r = g.linear("channel_receptance", &self.receptance, r);
        let r = g.activate("channel_sigmoid", Activation::Sigmoid, r);
        g.mul("channel_out", v, r)
    }
}
