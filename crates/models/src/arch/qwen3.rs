//! Qwen3: pre-norm decoder, grouped-query attention with RMS-normed query and key heads, SwiGLU or
//! experts. Rerankers have a projection to labels; the label probabilities are the scores.
//! GGUF: `general.architecture = "qwen3"` and `"qwen3moe"`; `"qwen3vl"` and `"qwen3vlmoe"` for the
//! language models of Qwen 3 VL, with rotary sections that are equal for text; `"openelm"`, with a
//! number of heads per layer; `"grovemoe"`, with adjugate experts.

use puna_graph::*;

use crate::architecture::{LoadOptions, LoadedArchitecture};
use crate::blocks::{Experts, FeedForward};
use crate::decoder::{self, Decoder, Layer, LayerLoader, NormKind, QkNorm};
use crate::error::ModelError;
use crate::experts::ExpertShape;
use crate::hparams::{Hparams, Keys};
use crate::rope::{RopeKeys, Sections};
use crate::weights::Weights;

pub(super) fn load_dense(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<LoadedArchitecture, ModelError> {
    let (hp, decoder) = decoder(keys, w, |b| b.gated(Glu::Silu))?;
    Ok(decoder.into_architecture(&hp))
}

pub(super) fn load_moe(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<LoadedArchitecture, ModelError> {
    let hidden = keys.count("expert_feed_forward_length")?;
    let shape = ExpertShape { normalize: true, ..ExpertShape::read(keys, hidden)? };
    let (hp, decoder) = decoder(keys, w, |b| b.experts(shape))?;
    Ok(decoder.into_architecture(&hp))
}

/// Grove MoE: each group of experts shares a smaller adjugate expert, which runs with each of them.
pub(super) fn load_grove(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<LoadedArchitecture, ModelError> {
    let hidden = keys.count("expert_feed_forward_length")?;
    let shape = ExpertShape { normalize: true, ..ExpertShape::read(keys, hidden)? };
    let each = keys.count("experts_per_group")?;
    if !shape.experts.is_multiple_of(each) {
        let (key, value) = (keys.name("experts_per_group"), each.to_string());
        let reason = "must divide expert_count";
        return Err(ModelError::KeyValue { key, value, reason });
    }
    let scale = keys.f32("expert_group_scale")?;
    let (hp, decoder) = decoder(keys, w, |b| {
        let width = keys.count_or("expert_chunk_feed_forward_length", b.hp.key_dim)?;
        let experts = Experts::load(b.w, &b.name, b.hp.n_embd, shape)?;
        let experts = experts.with_adjugates(b.w, &b.name, (b.hp.n_embd, width), (each, scale))?;
        Ok(FeedForward::Moe(experts))
    })?;
    Ok(decoder.into_architecture(&hp))
}

/// The decoder with a given feed-forward network in each layer, also for architectures that wrap
/// it.
pub(super) fn decoder(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    feed_forward: impl Fn(&mut LayerLoader<'_, '_>) -> Result<FeedForward, ModelError>,
) -> Result<(Hparams, Decoder), ModelError> {
    let hp = Hparams::read(keys)?;
    let norm = NormKind::Rms(keys.rms_eps()?);
    let layers = layers(keys, w, (&hp, norm), feed_forward)?;
    let classifier = w.opt_linear("cls.output", hp.n_embd, keys.labels()?)?;
    let decoder = Decoder { classifier, ..Decoder::new(w, &hp, norm, layers)? };
    Ok((hp, decoder))
}

/// Layers of the decoder.
pub(super) fn layers(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    (hp, norm): (&Hparams, NormKind),
    feed_forward: impl Fn(&mut LayerLoader<'_, '_>) -> Result<FeedForward, ModelError>,
) -> Result<Vec<Layer>, ModelError> {
    let rope = w.rope(
        RopeKeys::read(keys, hp.key_dim, hp.n_ctx)?
            .with_sections(keys, Sections::Interleaved)?
            .table(RopeKind::Neox, None),
    );
    decoder::layers(w, hp, norm, |b| {
        let ffn = feed_forward(b)?;
        let qk_norm = QkNorm::BeforeRope(b.head_norms()?);
        Ok(Layer { qk_norm, rope: Some(rope), ..b.pre_norm(ffn)? })
    })
}
