//! RWKV of the seventh version: a memory that forgets by other keys than it learns by, values mixed with those of the first layer, then a
//! mixture of each token with the one before it; and models of other families with such a memory in attention's place.
//! GGUF: `general.architecture = "rwkv7"`, of which a block is two layers here, and `"arwkv7"`.

use puna_graph::*;

use crate::decoder::{self, Block, NormKind};
use crate::error::ModelError;
use crate::hparams::{Hparams, Keys};
use crate::hybrid::{Mixer, Trail};
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
        let (time, channel) = (TimeMix::load(b, keys, form)?, ChannelMix::load(b)?);
        block(b, time, channel)
    })?;
    Ok(between(w, &hp, norm, blocks)?.loaded(&hp))
}

pub(super) fn load_hybrid(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<Loaded, ModelError> {
    let hp = Hparams::read_hybrid(keys)?;
    let form = Form::read(keys, &hp)?;
    memory_decoder(keys, w, &hp, |b| TimeMix::load(b, keys, form))
}

/// What keys say of the memory.
#[derive(Clone, Copy)]
struct Form {
    dim: usize,
    /// Columns to decays, to rates and to shares of the first values.
    ranks: [usize; 3],
}

impl Form {
    fn read(keys: &Keys<'_>, hp: &Hparams) -> Result<Self, ModelError> {
        let rank = |of: &str| keys.count(&format!("attention.{of}_lora_rank"));
        let ranks = [rank("decay")?, rank("iclr")?, rank("value_residual_mix")?];
        Ok(Self { dim: head_size(keys, hp)?, ranks })
    }
}

/// Attention's place.
struct TimeMix {
    shift: ConvSpec,
    /// Of receptance, decay, key, value, rate and gate.
    lerps: Vec<WeightId>,
    receptance: Linear,
    key: Linear,
    value: Linear,
    decay: LowRankProjection,
    /// How much of what a key stands for is forgotten.
    rate: LowRankProjection,
    /// How much of the first layer's values comes in the place of a later layer's own.
    residual: Option<LowRankProjection>,
    gate: Option<LowRankProjection>,
    /// Makes keys for forgetting of keys.
    forget: WeightId,
    /// By how much the rate bends keys.
    bend: WeightId,
    wkv: Wkv7Spec,
    /// Of each head's result.
    norm: Option<Norm>,
    out: Linear,
}

impl TimeMix {
    fn load(b: &mut Block<'_, '_>, keys: &Keys<'_>, form: Form) -> Result<Self, ModelError> {
        let Form { dim, ranks: [decay_rank, rate_rank, residual_rank] } = form;
        let n = b.hp.n_embd;
        let name = |part: &str| format!("time_mix_{part}.weight");
        let has_gate = b.has(&name("g1"));
        let parts = if has_gate { 6 } else { 5 };
        let lerps = b.w.parts(&format!("{}.{}", b.name, name("lerp_fused")), &[n, 1, 1, parts])?;
        let norm = if b.has(&name("ln")) {
            let (w, bias) =
                (b.tensor("time_mix_ln.weight", &[n])?, b.tensor("time_mix_ln.bias", &[n])?);
            Some(Norm { w: Some(w), b: Some(bias), dim, eps: HEAD_EPS })
        } else {
            None
        };
        let thin = |b: &mut Block<'_, '_>, [one, two, added]: [&str; 3], rank, kind| {
            LowRankProjection::load(b, [one, two], rank, kind, Some(added))
        };
        let way = ["time_mix_w1", "time_mix_w2", "time_mix_w0"];
        let decay = thin(b, way, decay_rank, Some(Activation::Tanh))?;
        let rate = thin(b, ["time_mix_a1", "time_mix_a2", "time_mix_a0"], rate_rank, None)?;
        // The first layer has nothing to mix with, and what files have there is of any shape.
        let way = ["time_mix_v1", "time_mix_v2", "time_mix_v0"];
        let residual = if b.i == 0 { None } else { Some(thin(b, way, residual_rank, None)?) };
        let gate = if has_gate {
            let rank = keys.count("attention.gate_lora_rank")?;
            let way = ["time_mix_g1", "time_mix_g2"];
            Some(LowRankProjection::load(b, way, rank, Some(Activation::Sigmoid), None)?)
        } else {
            None
        };
        Ok(Self {
            shift: shift(b, "attn_norm.weight")?,
            lerps,
            receptance: b.linear("time_mix_receptance", n, n)?,
            key: b.linear("time_mix_key", n, n)?,
            value: b.linear("time_mix_value", n, n)?,
            decay,
            rate,
            residual,
            gate,
            forget: b.tensor(&name("k_k"), &[n])?,
            bend: b.tensor(&name("k_a"), &[n])?,
            wkv: Wkv7Spec {
                state: b.state(&name("r_k"), n, dim)?,
                heads: n / dim,
                dim,
                itself: b.tensor(&name("r_k"), &[n])?,
            },
            norm,
            out: b.linear("time_mix_output", n, n)?,
        })
    }

    /// Values, mixed with those of the first layer.
    fn values(&self, g: &mut Graph, trail: &mut Trail, x: ValueId) -> ValueId {
        let v = g.linear("value", &self.value, x);
        let (Some(residual), Some(first)) = (&self.residual, trail.first_values) else {
            trail.first_values = Some(v);
            return v;
        };
        let share = residual.apply(g, "value_share", x);
        let share = g.activate("value_share_sigmoid", Activation::Sigmoid, share);
        let negative = g.scale("value_negative", v, -1.0);
        let lacks = g.add("value_difference", negative, first);
        lerp(g, "value_mixed", v, lacks, share)
    }
}

impl Mixer for TimeMix {
    fn mix(&self, g: &mut Graph, trail: &mut Trail, h: ValueId) -> ValueId {
        let n = self.out.out;
        let s = difference(g, self.shift, h);
        let mixed = |g: &mut Graph, i: usize| {
            let by = vector(g, self.lerps[i], n);
            lerp(g, "time_mix", h, s, by)
        };
        let r = mixed(g, 0);
        let r = g.linear("receptance", &self.receptance, r);
        let decay = mixed(g, 1);
        let decay = self.decay.apply(g, "decay", decay);
        let k = mixed(g, 2);
        let k = g.linear("key", &self.key, k);
        let v = mixed(g, 3);
        let v = self.values(g, trail, v);
        let rate = mixed(g, 4);
        let rate = self.rate.apply(g, "rate", rate);
        let rate = g.activate("rate_sigmoid", Activation::Sigmoid, rate);
        let forget = vector(g, self.forget, n);
        let forget = g.mul("key_forget", forget, k);
        // Keys are learnt the less the slower they forget: k + bend (rate - 1) k.
        let bend = vector(g, self.bend, n);
        let bent = g.mul("key_bent", bend, k);
        let negative = g.scale("key_negative", bent, -1.0);
        let k = g.add("key_unbent", negative, k);
        let bent = g.mul("key_rate", bent, rate);
        let k = g.add("key_learnt", k, bent);
        let y =
            g.recur("wkv_out", Recurrence::Wkv7 { r, k, v, decay, forget, rate, spec: self.wkv });
        let (read, itself) = (g.slice(y, 0, n), g.slice(y, n, n));
        let read = self.norm.as_ref().map_or(read, |norm| g.layer_norm("wkv_norm", norm, read));
        let y = g.add("wkv_with_itself", read, itself);
        let Some(gate) = &self.gate else { return y };
        let x = mixed(g, 5);
        let gate = gate.apply(g, "gate", x);
        g.mul("wkv_gated", y, gate)
    }

    fn finish(&self, g: &mut Graph, mixed: ValueId) -> ValueId {
        g.linear("time_mix_out", &self.out, mixed)
    }
}

/// The feed-forward part's place.
struct ChannelMix {
    shift: ConvSpec,
    lerp: WeightId,
    key: Linear,
    value: Linear,
}

impl ChannelMix {
    fn load(b: &mut Block<'_, '_>) -> Result<Self, ModelError> {
        let (n, ff) = (b.hp.n_embd, b.hp.ff(b.i));
        Ok(Self {
            shift: shift(b, "attn_norm_2.weight")?,
            lerp: b.tensor("channel_mix_lerp_k.weight", &[n])?,
            key: b.linear("channel_mix_key", n, ff)?,
            value: b.linear("channel_mix_value", ff, n)?,
        })
    }
}

impl Mixer for ChannelMix {
    fn mix(&self, g: &mut Graph, _: &mut Trail, h: ValueId) -> ValueId {
        let s = difference(g, self.shift, h);
        let by = vector(g, self.lerp, self.value.out);
        lerp(g, "channel_mix", h, s, by)
    }

    fn finish(&self, g: &mut Graph, mixed: ValueId) -> ValueId {
        let k = g.linear("channel_key", &self.key, mixed);
        let k = g.activate("channel_relu", Activation::ReluSquared, k);
        g.linear("channel_value", &self.value, k)
    }
}
