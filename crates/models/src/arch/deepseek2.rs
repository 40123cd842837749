//! DeepSeek 2 and 3 and what was built like them (Kimi K2, GLM-4.7-Flash, GigaChat 3): latent attention, dense layers first, then
//! mixtures of many small experts, some of which every token uses.
//! GGUF: `general.architecture = "deepseek2"`, and `"mistral4"` for Mistral's models of this form.

use puna_graph::*;

use crate::decoder::{self, Decoder, Layer, NormKind};
use crate::error::ModelError;
use crate::experts::ExpertShape;
use crate::hparams::{Hparams, Keys};
use crate::latent::LatentSizes;
use crate::model::{LoadOptions, Loaded};
use crate::rope::RopeKeys;
use crate::weights::Weights;

pub(super) fn load(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<Loaded, ModelError> {
    let hp = Hparams::read(keys)?;
    let norm = NormKind::Rms(keys.rms_eps()?);
    let form = LatentSizes::read(keys, &hp, w)?;
    let rope_keys = RopeKeys::read(keys, form.key_dim(), hp.n_ctx)?;
    let (rope_keys, sharper) = rope_keys.sharpened(keys.meta().architecture()? == "deepseek2");
    let rope = w.rope(rope_keys.table(RopeKind::Norm, None));
    let temperature = temperature(keys)?;
    let dense = keys.opt_count("leading_dense_block_count")?.unwrap_or(0);
    let mixture = if dense < hp.n_layer { Some(mixture(keys, &hp)?) } else { None };
    let layers = decoder::layers(w, &hp, norm, |b| {
        let ffn = match mixture.filter(|_| b.i >= dense) {
            Some((shape, shared)) => b.experts_beside(shape, shared)?,
            None => b.gated(Glu::Silu)?,
        };
        Ok(Layer { temperature, ..b.latent(form, rope, sharper, ffn)? })
    })?;
    Ok(Decoder::new(w, &hp, norm, layers)?.loaded(&hp))
}

/// The experts, and the width of those that every token uses.
fn mixture(keys: &Keys<'_>, hp: &Hparams) -> Result<(ExpertShape, usize), ModelError> {
    let hidden = keys.count("expert_feed_forward_length")?;
    // The first files of GLM-4.7-Flash do not say it.
    let is_glm = (47..=48).contains(&hp.n_layer) && hp.n_vocab == 154_880;
    let gating = if is_glm { Gating::Sigmoid } else { Gating::Softmax };
    Ok((ExpertShape::read_all(keys, hidden, gating)?, keys.shared_width(hidden)?))
}

/// How queries grow with the position, by stairs.
fn temperature(keys: &Keys<'_>) -> Result<Option<Temperature>, ModelError> {
    let Some(scale) = keys.factor("attention.temperature_scale")? else { return Ok(None) };
    let floor = keys.count("attention.temperature_length")? as u32;
    Ok(Some(Temperature { scale, floor, offset: 0 }))
}
