//! DeepSeek (first version): a Llama with dense layers first, then many small experts and shared
//! experts.
//! GGUF: `general.architecture = "deepseek"`, `"bailingmoe"` for Ling, which may normalize the
//! expert weights, and `"deepseek2-ocr"` for the language model of DeepSeek-OCR, with split-half
//! rotary embedding.

use puna_graph::*;

use crate::architecture::{LoadOptions, LoadedArchitecture};
use crate::decoder::{self, Decoder, Layer, NormKind};
use crate::error::ModelError;
use crate::experts::ExpertShape;
use crate::hparams::{Hparams, Keys};
use crate::rope::RopeKeys;
use crate::weights::Weights;

pub(super) fn load(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<LoadedArchitecture, ModelError> {
    let hidden = keys.count("expert_feed_forward_length")?;
    let shape = ExpertShape {
        normalize: keys.flag("expert_weights_norm")?,
        scale: keys.factor("expert_weights_scale")?.unwrap_or(1.0),
        ..ExpertShape::read(keys, hidden)?
    };
    load_with(keys, w, RopeKind::Norm, shape)
}

pub(super) fn load_ocr(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<LoadedArchitecture, ModelError> {
    if keys.opt_count("attention.sliding_window")?.is_some_and(|window| window > 0) {
        let what = format!("`{}`", keys.name("attention.sliding_window"));
        return Err(ModelError::Unsupported {
            what,
            reason: "use a model without a sliding window",
        });
    }
    let hidden = keys.count("expert_feed_forward_length")?;
    load_with(
        keys,
        w,
        RopeKind::Neox,
        ExpertShape::read_with_routing(keys, hidden, Gating::Softmax)?,
    )
}

fn load_with(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    rope: RopeKind,
    shape: ExpertShape,
) -> Result<LoadedArchitecture, ModelError> {
    let hp = Hparams::read(keys)?;
    let norm = NormKind::Rms(keys.rms_eps()?);
    let rope = w.factored_rope(&RopeKeys::read(keys, hp.key_dim, hp.n_ctx)?, rope)?;
    let hidden = shape.hidden;
    let dense = keys.opt_count("leading_dense_block_count")?.unwrap_or(0);
    let shared = keys.shared_width(hidden)?;
    let layers = decoder::layers(w, &hp, norm, |b| {
        let ffn =
            if b.i < dense { b.gated(Glu::Silu)? } else { b.experts_with_shared(shape, shared)? };
        Ok(Layer { rope: Some(rope), ..b.pre_norm(ffn)? })
    })?;
    Ok(Decoder::new(w, &hp, norm, layers)?.into_architecture(&hp))
}
