//! DeepSeek 2 and 3 and models of the same design (Kimi K2, GLM-4.7-Flash, GigaChat 3): multi-head
//! latent attention (MLA), dense layers first, then many small experts and shared experts. GGUF:
//! `general.architecture = "deepseek2"`, and `"mistral4"` for Mistral's models of this design.

use puna_graph::*;

use crate::architecture::{LoadOptions, LoadedArchitecture};
use crate::decoder::{self, Decoder, Layer, NormKind};
use crate::error::ModelError;
use crate::experts::ExpertShape;
use crate::hparams::{Hparams, Keys};
use crate::latent::LatentSizes;
use crate::rope::RopeKeys;
use crate::weights::Weights;

pub(super) fn load(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<LoadedArchitecture, ModelError> {
    let hp = Hparams::read(keys)?;
    let norm = NormKind::Rms(keys.rms_eps()?);
    let sizes = LatentSizes::read(keys, &hp, w)?;
    let rope_keys = RopeKeys::read(keys, sizes.key_dim(), hp.n_ctx)?;
    let (rope_keys, score_scale) =
        rope_keys.with_mscale(keys.meta().architecture()? == "deepseek2");
    let rope = w.rope(rope_keys.table(RopeKind::Norm, None));
    let temperature = temperature(keys)?;
    let dense = keys.opt_count("leading_dense_block_count")?.unwrap_or(0);
    let experts = if dense < hp.n_layer { Some(experts(keys, &hp)?) } else { None };
    let layers = decoder::layers(w, &hp, norm, |b| {
        let ffn = match experts.filter(|_| b.i >= dense) {
            Some((shape, shared)) => b.experts_with_shared(shape, shared)?,
            None => b.gated(Glu::Silu)?,
        };
        Ok(Layer { temperature, ..b.latent(sizes, rope, score_scale, ffn)? })
    })?;
    Ok(Decoder::new(w, &hp, norm, layers)?.into_architecture(&hp))
}

/// Experts, and the width of the shared experts.
fn experts(keys: &Keys<'_>, hp: &Hparams) -> Result<(ExpertShape, usize), ModelError> {
    let n_ff_exp = keys.count("expert_feed_forward_length")?;
    // Early files of GLM-4.7-Flash lack the key of the gating function.
    let is_glm = (47..=48).contains(&hp.n_layer) && hp.n_vocab == 154_880;
    let gating = if is_glm { Gating::Sigmoid } else { Gating::Softmax };
    Ok((ExpertShape::read_with_routing(keys, n_ff_exp, gating)?, keys.shared_width(n_ff_exp)?))
}

/// Attention temperature: factor of queries that grows with the logarithm of the position.
fn temperature(keys: &Keys<'_>) -> Result<Option<AttnTemperatureSpec>, ModelError> {
    let Some(scale) = keys.factor("attention.temperature_scale")? else { return Ok(None) };
    let floor = keys.count("attention.temperature_length")? as u32;
    Ok(Some(AttnTemperatureSpec { scale, floor, offset: 0 }))
}
