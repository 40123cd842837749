//! RWKV 6: a recurrent time mix with token-dependent decay, then a channel mix of each token with
//! the one before. A Qwen2 variant has this time mix in place of attention, and reads the state
//! after the token's update.
//! GGUF: `general.architecture = "rwkv6"`, with two layers here for each block, and `"rwkv6qwen2"`.

use puna_graph::*;

use crate::architecture::{LoadOptions, LoadedArchitecture};
use crate::decoder::{self, LayerLoader, NormKind};
use crate::error::ModelError;
use crate::hparams::{Hparams, Keys};
use crate::hybrid::{Hybrid, Mixer, MixerContext};
use crate::rwkv::*;
use crate::weights::Weights;

pub(super) fn load(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<LoadedArchitecture, ModelError> {
    let hp = Hparams::read_hybrid(keys)?;
    let (norm, config) = (NormKind::Layer(keys.layer_eps()?), Rwkv6Config::read(keys, &hp)?);
    let blocks = decoder::layers(w, &hp, norm, |b| {
        let (time, channel) = (TimeMix::load(b, config, false)?, ChannelMix::load(b)?);
        block(b, time, channel)
    })?;
    let halve_interval = keys.opt_count("rescale_every_n_layers")?.filter(|&n| n > 0);
    Ok(Hybrid { halve_interval, ..two_layer_blocks(w, &hp, norm, blocks)? }.into_architecture(&hp))
}

pub(super) fn load_qwen2(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<LoadedArchitecture, ModelError> {
    let hp = Hparams::read_hybrid(keys)?;
    let config = Rwkv6Config::read(keys, &hp)?;
    recurrent_decoder(keys, w, &hp, |b| TimeMix::load(b, config, true))
}

/// Sizes of the time mix.
#[derive(Clone, Copy)]
struct Rwkv6Config {
    dim: usize,
    /// Number of key and value heads.
    kv_heads: usize,
    /// Ranks of the interpolation weights and of the decay.
    ranks: [usize; 2],
}

impl Rwkv6Config {
    fn read(keys: &Keys<'_>, hp: &Hparams) -> Result<Self, ModelError> {
        let dim = head_size(keys, hp)?;
        let heads = hp.n_embd / dim;
        // These files do not store the number of query heads.
        let kv_heads = match hp.kv_heads[0] {
            0 => heads,
            kv_heads => kv_heads,
        };
        if !heads.is_multiple_of(kv_heads) {
            let (key, value) = (keys.name("attention.head_count_kv"), kv_heads.to_string());
            return Err(ModelError::KeyValue {
                key,
                value,
                reason: "must divide the number of heads",
            });
        }
        let ranks = [keys.count("time_mix_extra_dim")?, keys.count("time_decay_extra_dim")?];
        Ok(Self { dim, kv_heads, ranks })
    }
}

/// Time mix, in place of attention.
struct TimeMix {
    shift: ConvSpec,
    lerp_x: WeightId,
    /// Interpolation weights of decay, key, value, receptance and gate.
    lerps: Vec<WeightId>,
    /// Low-rank projections to corrections of these five weights.
    w1: Linear,
    w2: Vec<Linear>,
    decay: LowRankProjection,
    key: Linear,
    value: Linear,
    receptance: Linear,
    gate: Linear,
    wkv: WkvSpec,
    /// Norm of each head's result.
    norm: Option<Norm>,
    out: Linear,
}

impl TimeMix {
    /// Loads `time_mix_*` of a layer; `is_linear` selects gated linear attention.
    fn load(
        b: &mut LayerLoader<'_, '_>,
        config: Rwkv6Config,
        is_linear: bool,
    ) -> Result<Self, ModelError> {
        let Rwkv6Config { dim, kv_heads, ranks: [rank, decay_rank] } = config;
        let (n, shared) = (b.hp.n_embd, kv_heads * dim);
        let name = |part: &str| format!("time_mix_{part}.weight");
        let fused = name("lerp_fused");
        let lerps = if b.has(&fused) {
            b.w.split_stack(&format!("{}.{fused}", b.name), &[n, 1, 1, 5])?
        } else {
            let each = |kind| b.tensor(&name(&format!("lerp_{kind}")), &[n]);
            ["w", "k", "v", "r", "g"].map(each).into_iter().collect::<Result<_, _>>()?
        };
        let w2 = b.w.split_stack(&format!("{}.{}", b.name, name("w2")), &[rank, n, 5])?;
        let (bonus, norm) = if is_linear {
            (None, None)
        } else {
            let (w, bias) =
                (b.tensor("time_mix_ln.weight", &[n])?, b.tensor("time_mix_ln.bias", &[n])?);
            let norm = Norm { w: Some(w), b: Some(bias), dim, eps: HEAD_EPS };
            (Some(b.tensor(&name("first"), &[dim, n / dim])?), Some(norm))
        };
        let names = ["time_mix_decay_w1", "time_mix_decay_w2"];
        Ok(Self {
            shift: token_shift(b, "attn_norm.weight")?,
            lerp_x: b.tensor(&name("lerp_x"), &[n])?,
            lerps,
            w1: b.linear("time_mix_w1", n, 5 * rank)?,
            w2: w2.into_iter().map(|w| Linear { w, scale: 1.0, bias: None, out: n }).collect(),
            decay: LowRankProjection::load(
                b,
                names,
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
                bonus,
            },
            norm,
            out: b.linear("time_mix_output", n, n)?,
        })
    }
}

impl Mixer for TimeMix {
    fn mix(&self, g: &mut Graph, _: &mut MixerContext, h: ValueId) -> ValueId {
        let n = self.out.out;
        let s = token_difference(g, self.shift, h);
        let by = vector(g, self.lerp_x, n);
        let mixed = lerp(g, "time_mix_x", h, s, by);
        let all = g.linear("time_mix_w1", &self.w1, mixed);
        let all = g.activate("time_mix_tanh", Activation::Tanh, all);
        let rank = self.w1.out / 5;
        let [w, k, v, r, gate] = [0, 1, 2, 3, 4].map(|i| {
            let part = g.strided_columns("time_mix_part", all, i * rank, rank, 5 * rank);
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

/// Channel mix, in place of a feed-forward network.
struct ChannelMix {
    shift: ConvSpec,
    /// Interpolation weights of key and receptance.
    lerps: [WeightId; 2],
    key: Linear,
    value: Linear,
    receptance: Linear,
}

impl ChannelMix {
    fn load(b: &mut LayerLoader<'_, '_>) -> Result<Self, ModelError> {
        let (n, ff) = (b.hp.n_embd, b.hp.ff(b.i));
        Ok(Self {
            shift: token_shift(b, "attn_norm_2.weight")?,
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
    /// Inputs of key and receptance, concatenated.
    fn mix(&self, g: &mut Graph, _: &mut MixerContext, h: ValueId) -> ValueId {
        let s = token_difference(g, self.shift, h);
        let [k, r] = self.lerps.map(|by| {
            let by = vector(g, by, self.value.out);
            lerp(g, "channel_mix", h, s, by)
        });
        g.concat("channel_mixed", k, r)
    }

    fn finish(&self, g: &mut Graph, mixed: ValueId) -> ValueId {
        let n = self.value.out;
        let [k, r] =
            [0, n].map(|start| g.strided_columns("channel_mix_part", mixed, start, n, 2 * n));
        let k = g.linear("channel_key", &self.key, k);
        let k = g.activate("channel_relu", Activation::ReluSquared, k);
        let v = g.linear("channel_value", &self.value, k);
        let r = g.linear("channel_receptance", &self.receptance, r);
        let r = g.activate("channel_sigmoid", Activation::Sigmoid, r);
        g.mul("channel_out", v, r)
    }
}
