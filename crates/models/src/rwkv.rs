//! Parts that the versions of RWKV share: how a token is mixed with the one before it.

use puna_graph::*;

use crate::decoder::{self, Block, Decoder, NormKind};
use crate::error::ModelError;
use crate::hparams::{Hparams, Keys};
use crate::hybrid::{Hybrid, HybridLayer, Mixer};
use crate::model::Loaded;
use crate::weights::Weights;

/// Of the memory's norm, whatever the file says of others.
pub const HEAD_EPS: f32 = 64e-5;

/// Features of a head, of which the stream has some.
pub fn head_size(keys: &Keys<'_>, hp: &Hparams) -> Result<usize, ModelError> {
    let head = keys.count("wkv.head_size")?;
    if !hp.n_embd.is_multiple_of(head) {
        let (key, value) = (keys.name("wkv.head_size"), head.to_string());
        return Err(ModelError::KeyValue {
            key,
            value,
            reason: "heads must share embedding_length evenly",
        });
    }
    Ok(head)
}

/// Blocks of two layers each, of which none has a feed-forward part, between what is before and behind them.
pub fn between(
    w: &mut Weights<'_>,
    hp: &Hparams,
    norm: NormKind,
    blocks: Vec<[HybridLayer; 2]>,
) -> Result<Hybrid, ModelError> {
    let plain = Hybrid::new(w, hp, norm, blocks.into_iter().flatten().collect())?;
    let embd_norm = Some(norm.load(w, "token_embd_norm", &[hp.n_embd])?);
    Ok(Hybrid { around: Decoder { embd_norm, ..plain.around }, block: 2, ..plain })
}

/// A decoder whose layers have a memory in attention's place.
pub fn memory_decoder<T: Mixer + 'static>(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    hp: &Hparams,
    memory: impl Fn(&mut Block<'_, '_>) -> Result<T, ModelError>,
) -> Result<Loaded, ModelError> {
    let norm = NormKind::Rms(keys.rms_eps()?);
    let layers = decoder::layers(w, hp, norm, |b| {
        let memory = memory(b)?;
        let ffn = Some((b.norm("ffn_norm")?, b.gated(Glu::Silu)?));
        Ok(HybridLayer { norm: b.norm("attn_norm")?, mixers: vec![Box::new(memory)], ffn })
    })?;
    Ok(Hybrid::new(w, hp, norm, layers)?.loaded(hp))
}

/// A block of a memory and of what is in a feed-forward part's place.
pub fn block(
    b: &mut Block<'_, '_>,
    time: impl Mixer + 'static,
    channel: impl Mixer + 'static,
) -> Result<[HybridLayer; 2], ModelError> {
    let layer = |norm, mixer: Box<dyn Mixer>| HybridLayer { norm, mixers: vec![mixer], ffn: None };
    Ok([
        layer(b.norm("attn_norm")?, Box::new(time)),
        layer(b.norm("attn_norm_2")?, Box::new(channel)),
    ])
}

/// The state that has the row before the next one; `part` is the norm of the rows.
pub fn shift(b: &mut Block<'_, '_>, part: &str) -> Result<ConvSpec, ModelError> {
    let state = b.state(part, 1, b.hp.n_embd)?;
    Ok(ConvSpec { state, taps: 2, stride: 1, w: None, bias: None, silu: false })
}

/// By how much the token before differs.
pub fn difference(g: &mut Graph, spec: ConvSpec, x: ValueId) -> ValueId {
    let before = g.recur("token_shift", Recurrence::Conv { x, spec });
    let negative = g.scale("token_negative", x, -1.0);
    g.add("token_difference", negative, before)
}

/// A vector of the file, for every token.
pub fn vector(g: &mut Graph, w: WeightId, cols: usize) -> ValueId {
    g.embed("vector", w, cols, Index::Fixed(0))
}

/// `x + by · difference`.
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
        b: &mut Block<'_, '_>,
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
        let thin = g.linear("thin", &self.down, x);
        let thin = self.kind.map_or(thin, |kind| g.activate("thin_act", kind, thin));
        g.linear(name, &self.up, thin)
    }
}
