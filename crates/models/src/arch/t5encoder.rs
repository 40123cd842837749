//! T5's encoder: RMS norms before each part; unscaled scores with a relative position bias, which
//! all layers share or each has of its own (UMT5); a GELU-gated network, or ReLU without a gate.
//! GGUF: `general.architecture = "t5encoder"`.

use puna_graph::*;

use crate::architecture::{LoadOptions, LoadedArchitecture};
use crate::blocks::{FeedForward, Mlp, Qkv, UngatedMlp};
use crate::decoder::{Decoder, Layer, NormKind};
use crate::error::ModelError;
use crate::hparams::{Hparams, Keys};
use crate::weights::Weights;

pub(super) fn load(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<LoadedArchitecture, ModelError> {
    let hp = Hparams::read(keys)?;
    Ok(encoder(keys, w, &hp)?.into_architecture(&hp))
}

/// The encoder; its output is normed.
pub(super) fn encoder(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    hp: &Hparams,
) -> Result<Decoder, ModelError> {
    let norm = NormKind::Rms(keys.rms_eps()?);
    let layers = (0..hp.n_layer).map(|i| layer(keys, w, hp, norm, i));
    let layers = layers.collect::<Result<Vec<_>, _>>()?;
    let last = norm.load(w, "enc.output_norm", &[hp.n_embd])?;
    Decoder::with_norm(w, hp, last, layers)
}

/// Relative position biases of layer `i`; the default is the first layer's biases.
pub(super) fn position_bias(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    (side, i, heads): (&str, usize, usize),
    both_sides: bool,
) -> Result<RelativePositionBias, ModelError> {
    let buckets = keys.count("attention.relative_buckets_count")?;
    if !RelativePositionBias::BUCKETS.contains(&buckets) {
        let (key, value) = (keys.name("attention.relative_buckets_count"), buckets.to_string());
        return Err(ModelError::KeyValue { key, value, reason: "must be between 4 and 256" });
    }
    let name = |i: usize| format!("{side}.blk.{i}.attn_rel_b.weight");
    let own = w.opt(&name(i), &[heads, buckets])?;
    let table = own.map_or_else(|| w.tensor(&name(0), &[heads, buckets]), Ok)?;
    Ok(RelativePositionBias { table, buckets, both_sides })
}

/// GELU-gated network, or ReLU without a gate.
pub(super) fn feed_forward(
    w: &mut Weights<'_>,
    block: &str,
    n: usize,
    ff: usize,
) -> Result<FeedForward, ModelError> {
    Ok(if w.has(&format!("{block}.ffn_gate.weight")) {
        FeedForward::Dense(Mlp::load(w, block, n, ff, Glu::Gelu)?)
    } else {
        FeedForward::Ungated(UngatedMlp::load(w, block, n, ff, Activation::Relu)?)
    })
}

fn layer(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    hp: &Hparams,
    norm: NormKind,
    i: usize,
) -> Result<Layer, ModelError> {
    let (b, n) = (format!("enc.blk.{i}"), hp.n_embd);
    let position_bias = position_bias(keys, w, ("enc", i, hp.heads[i]), true)?;
    let ffn = feed_forward(w, &b, n, hp.ff(i))?;
    let qkv = Qkv::load(w, &b, n, hp.qkv_widths(i))?;
    let attention = AttentionSpec {
        scale: 1.0,
        mask: Mask::Full,
        position_bias: Some(position_bias),
        ..hp.attention(i)
    };
    let wo = w.linear(&format!("{b}.attn_o"), hp.heads[i] * hp.value_dim, n)?;
    Ok(Layer {
        attn_norm: Some(norm.load(w, &format!("{b}.attn_norm"), &[n])?),
        ffn_norm: Some(norm.load(w, &format!("{b}.ffn_norm"), &[n])?),
        ..Layer::new(qkv, attention, wo, ffn)
    })
}
