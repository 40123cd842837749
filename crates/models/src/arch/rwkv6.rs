//! RWKV of the sixth version: a memory with a decay that the text decides, then a mixture of each token with the one before it.
//! GGUF: `general.architecture = "rwkv6"`. A block is two layers here.

use puna_graph::*;

use crate::decoder::{self, Block, Decoder, NormKind};
use crate::error::ModelError;
use crate::hparams::{Hparams, Keys};
use crate::hybrid::{Hybrid, HybridLayer, Mixer};
use crate::model::{LoadOptions, Loaded};
use crate::weights::Weights;

/// Of the memory's norm, whatever the file says of others.
const HEAD_EPS: f32 = 64e-5;

pub(super) fn load(keys: &Keys<'_>, w: &mut Weights<'_>, _: LoadOptions) -> Result<Loaded, ModelError> {
    let hp = Hparams::read_hybrid(keys)?;
    let norm = NormKind::Layer(keys.layer_eps()?);
    let head = keys.count("wkv.head_size")?;
    if !hp.n_embd.is_multiple_of(head) {
        let (key, value) = (keys.name("wkv.head_size"), head.to_string());
        return Err(ModelError::KeyValue { key, value, reason: "heads must share embedding_length evenly" });
    }
    let ranks = [keys.count("time_mix_extra_dim")?, keys.count("time_decay_extra_dim")?];
    let blocks = decoder::layers(w, &hp, norm, |b| {
        let (time, channel) = (TimeMix::load(b, head, ranks)?, ChannelMix::load(b)?);
        let layer = |norm, mixer: Box<dyn Mixer>| HybridLayer { norm, mixers: vec![mixer], ffn: None };
        Ok([layer(b.norm("attn_norm")?, Box::new(time)), layer(b.norm("attn_norm_2")?, Box::new(channel))])
    })?;
    let plain = Hybrid::new(w, &hp, norm, blocks.into_iter().flatten().collect())?;
    let embd_norm = Some(norm.load(w, "token_embd_norm", &[hp.n_embd])?);
    let halved_every = keys.opt_count("rescale_every_n_layers")?.filter(|&n| n > 0);
    Ok(Hybrid { around: Decoder { embd_norm, ..plain.around }, block: 2, halved_every, ..plain }.loaded(&hp))
}

/// The state that has the row before the next one.
fn shift(b: &mut Block<'_, '_>, part: &str) -> Result<ConvSpec, ModelError> {
    let state = b.state(part, 1, b.hp.n_embd)?;
    Ok(ConvSpec { state, taps: 2, w: None, bias: None, silu: false })
}

/// By how much the token before differs.
fn difference(g: &mut Graph, spec: ConvSpec, x: ValueId) -> ValueId {
    let before = g.recur("token_shift", Recurrence::Conv { x, spec });
    let negative = g.scale("token_negative", x, -1.0);
    g.add("token_difference", negative, before)
}

/// A vector of the file, for every token.
fn vector(g: &mut Graph, w: WeightId, cols: usize) -> ValueId {
    g.embed("vector", w, cols, Index::Fixed(0))
}

/// `x + by · difference`.
fn lerp(g: &mut Graph, name: &'static str, x: ValueId, difference: ValueId, by: ValueId) -> ValueId {
    let part = g.mul("lerp", by, difference);
    g.add(name, part, x)
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
    decay: WeightId,
    decay_way: [Linear; 2],
    key: Linear,
    value: Linear,
    receptance: Linear,
    gate: Linear,
    wkv: WkvSpec,
    norm: Norm,
    out: Linear,
}

impl TimeMix {
    fn load(b: &mut Block<'_, '_>, dim: usize, [rank, decay_rank]: [usize; 2]) -> Result<Self, ModelError> {
        let n = b.hp.n_embd;
        let name = |part: &str| format!("time_mix_{part}.weight");
        let fused = name("lerp_fused");
        let lerps = if b.has(&fused) {
            b.w.parts(&format!("{}.{fused}", b.name), &[n, 1, 1, 5])?
        } else {
            let each = |kind| b.tensor(&name(&format!("lerp_{kind}")), &[n]);
            ["w", "k", "v", "r", "g"].map(each).into_iter().collect::<Result<_, _>>()?
        };
        let w2 = b.w.parts(&format!("{}.{}", b.name, name("w2")), &[rank, n, 5])?;
        let (w, bias) = (b.tensor("time_mix_ln.weight", &[n])?, b.tensor("time_mix_ln.bias", &[n])?);
        Ok(Self {
            shift: shift(b, "attn_norm.weight")?,
            lerp_x: b.tensor(&name("lerp_x"), &[n])?,
            lerps,
            w1: b.linear("time_mix_w1", n, 5 * rank)?,
            w2: w2.into_iter().map(|w| Linear { w, scale: 1.0, bias: None, out: n }).collect(),
            decay: b.tensor(&name("decay"), &[n])?,
            decay_way: [
                b.linear("time_mix_decay_w1", n, decay_rank)?,
                b.linear("time_mix_decay_w2", decay_rank, n)?,
            ],
            key: b.linear("time_mix_key", n, n)?,
            value: b.linear("time_mix_value", n, n)?,
            receptance: b.linear("time_mix_receptance", n, n)?,
            gate: b.linear("time_mix_gate", n, n)?,
            wkv: WkvSpec {
                state: b.state(&name("first"), n, dim)?,
                heads: n / dim,
                dim,
                first: b.tensor(&name("first"), &[dim, n / dim])?,
            },
            norm: Norm { w: Some(w), b: Some(bias), dim, eps: HEAD_EPS },
            out: b.linear("time_mix_output", n, n)?,
        })
    }
}

impl Mixer for TimeMix {
    fn mix(&self, g: &mut Graph, _: usize, h: ValueId) -> ValueId {
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
        let decay = g.linear("decay_w1", &self.decay_way[0], w);
        let decay = g.activate("decay_tanh", Activation::Tanh, decay);
        let decay = g.linear("decay_w2", &self.decay_way[1], decay);
        let plain = vector(g, self.decay, n);
        let decay = g.add("decay", plain, decay);
        let (r, k) = (g.linear("receptance", &self.receptance, r), g.linear("key", &self.key, k));
        let v = g.linear("value", &self.value, v);
        let gate = g.linear("gate", &self.gate, gate);
        let y = g.recur("wkv_out", Recurrence::Wkv { r, k, v, decay, spec: self.wkv });
        let y = g.layer_norm("wkv_norm", &self.norm, y);
        g.glu("wkv_gated", Glu::Silu, gate, y)
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
    fn mix(&self, g: &mut Graph, _: usize, h: ValueId) -> ValueId {
        let s = difference(g, self.shift, h);
        let [k, r] = self.lerps.map(|by| {
            let by = vector(g, by, self.value.out);
            lerp(g, "channel_mix", h, s, by)
        });
        let k = g.linear("channel_key", &self.key, k);
        let k = g.activate("channel_relu", Activation::ReluSquared, k);
        let v = g.linear("channel_value", &self.value, k);
        let r = g.linear("channel_receptance", &self.receptance, r);
        let r = g.activate("channel_sigmoid", Activation::Sigmoid, r);
        g.mul("channel_out", v, r)
    }

    fn finish(&self, _: &mut Graph, mixed: ValueId) -> ValueId {
        mixed
    }
}
