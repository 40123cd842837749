//! T5's encoder: root-mean-square norms before each part, scores that are not scaled and shift with the distance of key and query by
//! amounts that all layers share, a GELU gate or a rectifier without one.
//! GGUF: `general.architecture = "t5encoder"`.

use puna_graph::*;

use crate::blocks::{FeedForward, Mlp, Plain, Qkv};
use crate::decoder::{Decoder, Layer, NormKind};
use crate::error::ModelError;
use crate::hparams::{Hparams, Keys};
use crate::model::{LoadOptions, Loaded};
use crate::weights::Weights;

pub(super) fn load(keys: &Keys<'_>, w: &mut Weights<'_>, _: LoadOptions) -> Result<Loaded, ModelError> {
    let hp = Hparams::read(keys)?;
    let norm = NormKind::Rms(keys.rms_eps()?);
    let shifts = shifts(keys, w, &hp)?;
    let layers = (0..hp.n_layer).map(|i| layer(w, &hp, norm, i, shifts));
    let layers = layers.collect::<Result<Vec<_>, _>>()?;
    let last = norm.load(w, "enc.output_norm", &[hp.n_embd])?;
    Ok(Decoder::with_norm(w, &hp, last, layers)?.loaded(&hp))
}

/// The amounts by which scores shift. They are kept with the first layer.
fn shifts(keys: &Keys<'_>, w: &mut Weights<'_>, hp: &Hparams) -> Result<Shifts, ModelError> {
    let buckets = keys.count("attention.relative_buckets_count")?;
    if !Shifts::BUCKETS.contains(&buckets) {
        let (key, value) = (keys.name("attention.relative_buckets_count"), buckets.to_string());
        return Err(ModelError::KeyValue { key, value, reason: "must be between 4 and 256" });
    }
    let table = w.tensor("enc.blk.0.attn_rel_b.weight", &[hp.heads[0], buckets])?;
    Ok(Shifts { table, buckets })
}

fn layer(
    w: &mut Weights<'_>,
    hp: &Hparams,
    norm: NormKind,
    i: usize,
    shifts: Shifts,
) -> Result<Layer, ModelError> {
    let (b, n, ff) = (format!("enc.blk.{i}"), hp.n_embd, hp.ff(i));
    let ffn = if w.has(&format!("{b}.ffn_gate.weight")) {
        FeedForward::Dense(Mlp::load(w, &b, n, ff, Glu::Gelu)?)
    } else {
        FeedForward::Plain(Plain::load(w, &b, n, ff, Activation::Relu)?)
    };
    let qkv = Qkv::load(w, &b, n, hp.widths(i))?;
    let attention = AttentionSpec { scale: 1.0, mask: Mask::Full, shifts: Some(shifts), ..hp.attention(i) };
    let wo = w.linear(&format!("{b}.attn_o"), hp.heads[i] * hp.value_dim, n)?;
    Ok(Layer {
        attn_norm: Some(norm.load(w, &format!("{b}.attn_norm"), &[n])?),
        ffn_norm: Some(norm.load(w, &format!("{b}.ffn_norm"), &[n])?),
        ..Layer::plain(qkv, attention, wo, ffn)
    })
}
