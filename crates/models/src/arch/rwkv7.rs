//! RWKV 7: a recurrent time mix with separate keys for removal, then a channel mix of each token
//! with the one before. Later layers mix the first layer's values into theirs. Models of other
//! families have this time mix in place of attention.
//! GGUF: `general.architecture = "rwkv7"`, with two layers here for each block, and `"arwkv7"`.

use puna_graph::*;

use crate::architecture::{LoadOptions, LoadedArchitecture};
use crate::decoder::{self, LayerLoader, NormKind};
use crate::error::ModelError;
use crate::hparams::{Hparams, Keys};
use crate::hybrid::{Mixer, MixerContext};
use crate::rwkv::*;
use crate::weights::Weights;

pub(super) fn load(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<LoadedArchitecture, ModelError> {
    let hp = Hparams::read_hybrid(keys)?;
    let (norm, config) = (NormKind::Layer(keys.layer_eps()?), Rwkv7Config::read(keys, &hp)?);
    let blocks = decoder::layers(w, &hp, norm, |b| {
        let (time, channel) = (TimeMix::load(b, keys, config)?, ChannelMix::load(b)?);
        block(b, time, channel)
    })?;
    Ok(two_layer_blocks(w, &hp, norm, blocks)?.into_architecture(&hp))
}

pub(super) fn load_arwkv7(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<LoadedArchitecture, ModelError> {
    let hp = Hparams::read_hybrid(keys)?;
    let config = Rwkv7Config::read(keys, &hp)?;
    recurrent_decoder(keys, w, &hp, |b| TimeMix::load(b, keys, config))
}

/// Sizes of the time mix.
#[derive(Clone, Copy)]
struct Rwkv7Config {
    dim: usize,
    /// Ranks of decay, in-context learning rate and value mix.
    ranks: [usize; 3],
}

impl Rwkv7Config {
    fn read(keys: &Keys<'_>, hp: &Hparams) -> Result<Self, ModelError> {
        let rank = |of: &str| keys.count(&format!("attention.{of}_lora_rank"));
        let ranks = [rank("decay")?, rank("iclr")?, rank("value_residual_mix")?];
        Ok(Self { dim: head_size(keys, hp)?, ranks })
    }
}

/// Time mix, in place of attention.
struct TimeMix {
    shift: ConvSpec,
    /// Interpolation weights of receptance, decay, key, value, learning rate and gate.
    lerps: Vec<WeightId>,
    receptance: Linear,
    key: Linear,
    value: Linear,
    decay: LowRankProjection,
    /// In-context learning rate (`iclr`): how much of the value stored under a key is removed.
    iclr: LowRankProjection,
    /// Share of the first layer's values in the values of a later layer.
    value_residual: Option<LowRankProjection>,
    gate: Option<LowRankProjection>,
    /// `k_k`: factor from keys to removal keys.
    removal_key_factor: WeightId,
    /// `k_a`: strength of the learning rate's effect on keys.
    key_rate_factor: WeightId,
    wkv: Wkv7Spec,
    /// Norm of each head's result.
    norm: Option<Norm>,
    out: Linear,
}

impl TimeMix {
    fn load(
        b: &mut LayerLoader<'_, '_>,
        keys: &Keys<'_>,
        config: Rwkv7Config,
    ) -> Result<Self, ModelError> {
        let Rwkv7Config { dim, ranks: [decay_rank, iclr_rank, value_residual_rank] } = config;
        let n = b.hp.n_embd;
        let name = |part: &str| format!("time_mix_{part}.weight");
        let has_gate = b.has(&name("g1"));
        let parts = if has_gate { 6 } else { 5 };
        let lerps =
            b.w.split_stack(&format!("{}.{}", b.name, name("lerp_fused")), &[n, 1, 1, parts])?;
        let norm = if b.has(&name("ln")) {
            let (w, bias) =
                (b.tensor("time_mix_ln.weight", &[n])?, b.tensor("time_mix_ln.bias", &[n])?);
            Some(Norm { w: Some(w), b: Some(bias), dim, eps: HEAD_EPS })
        } else {
            None
        };
        let low_rank = |b: &mut LayerLoader<'_, '_>, [one, two, added]: [&str; 3], rank, kind| {
            LowRankProjection::load(b, [one, two], rank, kind, Some(added))
        };
        let names = ["time_mix_w1", "time_mix_w2", "time_mix_w0"];
        let decay = low_rank(b, names, decay_rank, Some(Activation::Tanh))?;
        let iclr = low_rank(b, ["time_mix_a1", "time_mix_a2", "time_mix_a0"], iclr_rank, None)?;
        // The first layer has nothing to mix with; its tensors in files may have any shape.
        let names = ["time_mix_v1", "time_mix_v2", "time_mix_v0"];
        let value_residual =
            if b.i == 0 { None } else { Some(low_rank(b, names, value_residual_rank, None)?) };
        let gate = if has_gate {
            let rank = keys.count("attention.gate_lora_rank")?;
            let names = ["time_mix_g1", "time_mix_g2"];
            Some(LowRankProjection::load(b, names, rank, Some(Activation::Sigmoid), None)?)
        } else {
            None
        };
        Ok(Self {
            shift: token_shift(b, "attn_norm.weight")?,
            lerps,
            receptance: b.linear("time_mix_receptance", n, n)?,
            key: b.linear("time_mix_key", n, n)?,
            value: b.linear("time_mix_value", n, n)?,
            decay,
            iclr,
            value_residual,
            gate,
            removal_key_factor: b.tensor(&name("k_k"), &[n])?,
            key_rate_factor: b.tensor(&name("k_a"), &[n])?,
            wkv: Wkv7Spec {
                state: b.state(&name("r_k"), n, dim)?,
                heads: n / dim,
                dim,
                bonus: b.tensor(&name("r_k"), &[n])?,
            },
            norm,
            out: b.linear("time_mix_output", n, n)?,
        })
    }

    /// Values, mixed with the first layer's.
    fn values(&self, g: &mut Graph, context: &mut MixerContext, x: ValueId) -> ValueId {
        let v = g.linear("value", &self.value, x);
        let (Some(value_residual), Some(first)) = (&self.value_residual, context.first_values)
        else {
            context.first_values = Some(v);
            return v;
        };
        let share = value_residual.apply(g, "value_share", x);
        let share = g.activate("value_share_sigmoid", Activation::Sigmoid, share);
        let negative = g.scale("value_negative", v, -1.0);
        let difference = g.add("value_difference", negative, first);
        lerp(g, "value_mixed", v, difference, share)
    }
}

impl Mixer for TimeMix {
    fn mix(&self, g: &mut Graph, context: &mut MixerContext, h: ValueId) -> ValueId {
        let n = self.out.out;
        let s = token_difference(g, self.shift, h);
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
        let v = self.values(g, context, v);
        let iclr = mixed(g, 4);
        let iclr = self.iclr.apply(g, "rate", iclr);
        let iclr = g.activate("rate_sigmoid", Activation::Sigmoid, iclr);
        let factor = vector(g, self.removal_key_factor, n);
        let removal_key = g.mul("removal_key", factor, k);
        // The learning rate scales the keys: `k + k_a (iclr - 1) k`.
        let factor = vector(g, self.key_rate_factor, n);
        let scaled = g.mul("key_scaled", factor, k);
        let negative = g.scale("key_negative", scaled, -1.0);
        let k = g.add("key_reduced", negative, k);
        let scaled = g.mul("key_rate", scaled, iclr);
        let k = g.add("key_learnt", k, scaled);
        let y = g.recur(
            "wkv_out",
            Recurrence::Wkv7 { r, k, v, decay, removal_key, iclr, spec: self.wkv },
        );
        let (read, bonus) = (g.slice(y, 0, n), g.slice(y, n, n));
        let read = self.norm.as_ref().map_or(read, |norm| g.layer_norm("wkv_norm", norm, read));
        let y = g.add("wkv_plus_bonus", read, bonus);
        let Some(gate) = &self.gate else { return y };
        let x = mixed(g, 5);
        let gate = gate.apply(g, "gate", x);
        g.mul("wkv_gated", y, gate)
    }

    fn finish(&self, g: &mut Graph, mixed: ValueId) -> ValueId {
        g.linear("time_mix_out", &self.out, mixed)
    }
}

/// Channel mix, in place of a feed-forward network.
struct ChannelMix {
    shift: ConvSpec,
    lerp: WeightId,
    key: Linear,
    value: Linear,
}

impl ChannelMix {
    fn load(b: &mut LayerLoader<'_, '_>) -> Result<Self, ModelError> {
        let (n, ff) = (b.hp.n_embd, b.hp.ff(b.i));
        Ok(Self {
            shift: token_shift(b, "attn_norm_2.weight")?,
            lerp: b.tensor("channel_mix_lerp_k.weight", &[n])?,
            key: b.linear("channel_mix_key", n, ff)?,
            value: b.linear("channel_mix_value", ff, n)?,
        })
    }
}

impl Mixer for ChannelMix {
    fn mix(&self, g: &mut Graph, _: &mut MixerContext, h: ValueId) -> ValueId {
        let s = token_difference(g, self.shift, h);
        let by = vector(g, self.lerp, self.value.out);
        lerp(g, "channel_mix", h, s, by)
    }

    fn finish(&self, g: &mut Graph, mixed: ValueId) -> ValueId {
        let k = g.linear("channel_key", &self.key, mixed);
        let k = g.activate("channel_relu", Activation::ReluSquared, k);
        g.linear("channel_value", &self.value, k)
    }
}
