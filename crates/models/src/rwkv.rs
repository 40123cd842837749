//! Parts that the versions of RWKV share: token shift, interpolation, low-rank projections.

use puna_graph::*;

use crate::architecture::LoadedArchitecture;
use crate::decoder::{self, Decoder, LayerLoader, NormKind};
use crate::error::ModelError;
use crate::hparams::{Hparams, Keys};
use crate::hybrid::{Hybrid, HybridLayer, Mixer};
use crate::weights::Weights;

/// Epsilon of the norm of each head's result; it does not depend on the file.
pub const HEAD_EPS: f32 = 64e-5;

/// Dimensions of a head. The width is a multiple of the head size.
pub fn head_size(keys: &Keys<'_>, hp: &Hparams) -> Result<usize, ModelError> {
    let head = keys.count("wkv.head_size")?;
    if !hp.n_embd.is_multiple_of(head) {
        let (key, value) = (keys.name("wkv.head_size"), head.to_string());
        return Err(ModelError::KeyValue { key, value, reason: "must divide embedding_length" });
    }
    Ok(head)
}

/// Model with two mixer layers per block (time mix and channel mix) and without feed-forward
/// networks.
pub fn two_layer_blocks(
    w: &mut Weights<'_>,
    hp: &Hparams,
    norm: NormKind,
    blocks: Vec<[HybridLayer; 2]>,
) -> Result<Hybrid, ModelError> {
    let plain = Hybrid::new(w, hp, norm, blocks.into_iter().flatten().collect())?;
    let embd_norm = Some(norm.load(w, "token_embd_norm", &[hp.n_embd])?);
    Ok(Hybrid { outer: Decoder { embd_norm, ..plain.outer }, layers_per_block: 2, ..plain })
}

/// Decoder with a time mix in place of attention.
pub fn recurrent_decoder<T: Mixer + 'static>(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    hp: &Hparams,
    time_mix: impl Fn(&mut LayerLoader<'_, '_>) -> Result<T, ModelError>,
) -> Result<LoadedArchitecture, ModelError> {
    let norm = NormKind::Rms(keys.rms_eps()?);
    let layers = decoder::layers(w, hp, norm, |b| {
        let time_mix = time_mix(b)?;
        let ffn = Some((b.norm("ffn_norm")?, b.gated(Glu::Silu)?));
        Ok(HybridLayer { norm: b.norm("attn_norm")?, mixers: vec![Box::new(time_mix)], ffn })
    })?;
    Ok(Hybrid::new(w, hp, norm, layers)?.into_architecture(hp))
}

/// Block of a time mix and a channel mix.
pub fn block(
    b: &mut LayerLoader<'_, '_>,
    time: impl Mixer + 'static,
    channel: impl Mixer + 'static,
) -> Result<[HybridLayer; 2], ModelError> {
    let layer = |norm, mixer: Box<dyn Mixer>| HybridLayer { norm, mixers: vec![mixer], ffn: None };
    Ok([
        layer(b.norm("attn_norm")?, Box::new(time)),
        layer(b.norm("attn_norm_2")?, Box::new(channel)),
    ])
}

/// Token shift: a state that holds the previous row; `part` is the norm of the rows.
pub fn token_shift(b: &mut LayerLoader<'_, '_>, part: &str) -> Result<ConvSpec, ModelError> {
    let state = b.state(part, 1, b.hp.n_embd)?;
    Ok(ConvSpec { state, taps: 2, stride: 1, w: None, bias: None, silu: false })
}

/// Previous row minus the current one.
pub fn token_difference(g: &mut Graph, spec: ConvSpec, x: ValueId) -> ValueId {
    let before = g.recur("token_shift", Recurrence::Conv { x, spec });
    let negative = g.scale("token_negative", x, -1.0);
    g.add("token_difference", negative, before)
}

/// Vector of the file, broadcast to all rows.
pub fn vector(g: &mut Graph, w: WeightId, cols: usize) -> ValueId {
    g.embed("vector", w, cols, Index::Fixed(0))
}

/// Linear interpolation: `x + by · difference`.
pub fn lerp(
    g: &mut Graph,
    name: &'static str,
    x: ValueId,
    difference: ValueId,
    by: ValueId,
) -> ValueId {
    let part = g.mul("lerp", by, difference);
    g.add(name, part, x)
}

/// Low-rank projection: `up · f(down · x) + bias`.
pub struct LowRankProjection {
    down: Linear,
    kind: Option<Activation>,
    up: Linear,
}

impl LowRankProjection {
    /// Loads the two matrices of the given rank and the bias.
    pub fn load(
        b: &mut LayerLoader<'_, '_>,
        [down, up]: [&str; 2],
        rank: usize,
        kind: Option<Activation>,
        added: Option<&str>,
    ) -> Result<Self, ModelError> {
        let n = b.hp.n_embd;
        let bias = added.map(|added| b.tensor(&format!("{added}.weight"), &[n])).transpose()?;
        let (down, up) = (b.linear(down, n, rank)?, b.linear(up, rank, n)?);
        Ok(Self { down, kind, up: Linear { bias, ..up } })
    }

    /// Projects `x`.
    pub fn apply(&self, g: &mut Graph, name: &'static str, x: ValueId) -> ValueId {
        let low_rank = g.linear("thin", &self.down, x);
        let low_rank = self.kind.map_or(low_rank, |kind| g.activate("thin_act", kind, low_rank));
        g.linear(name, &self.up, low_rank)
    }
}
