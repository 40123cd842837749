//! MiniCPM 3: latent attention in dense layers, long-rope factors, and fixed factors on embeddings, logits and what layers add to the
//! stream. PLM: latent attention and a squared-ReLU pair.
//! GGUF: `general.architecture = "minicpm3"` and `"plm"`.

use puna_graph::*;

use crate::decoder::{self, Decoder, NormKind};
use crate::error::ModelError;
use crate::hparams::{Hparams, Keys};
use crate::latent::LatentSizes;
use crate::model::{LoadOptions, Loaded};
use crate::rope::RopeKeys;
use crate::weights::Weights;

/// Width of the model that the factor on logits was found for.
const BASE_WIDTH: f32 = 256.0;

pub(super) fn load(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    options: LoadOptions,
) -> Result<Loaded, ModelError> {
    let hp = Hparams::read(keys)?;
    let norm = NormKind::Rms(keys.rms_eps()?);
    let form = LatentSizes::read(keys, &hp, w)?;
    let rope_keys = RopeKeys::read(keys, form.key_dim(), hp.n_ctx)?;
    let rope = w.long_rope(&rope_keys, RopeKind::Neox, options.n_ctx.unwrap_or(hp.n_ctx))?;
    let layers = decoder::layers(w, &hp, norm, |b| {
        let ffn = b.gated(Glu::Silu)?;
        b.latent(form, rope, 1.0, ffn)
    })?;
    Ok(Decoder {
        embd_scale: 12.0,
        residual_scale: 1.4 / (hp.n_layer as f32).sqrt(),
        logit_scale: BASE_WIDTH / hp.n_embd as f32,
        ..Decoder::new(w, &hp, norm, layers)?
    }
    .loaded(&hp))
}

pub(super) fn load_plm(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<Loaded, ModelError> {
    let hp = Hparams::read(keys)?;
    let norm = NormKind::Rms(keys.rms_eps()?);
    let form = LatentSizes::read(keys, &hp, w)?;
    let rope = w.rope(RopeKeys::read(keys, form.key_dim(), hp.n_ctx)?.table(RopeKind::Norm, None));
    let layers = decoder::layers(w, &hp, norm, |b| {
        let ffn = b.plain(Activation::ReluSquared)?;
        b.latent(form, rope, 1.0, ffn)
    })?;
    Ok(Decoder::new(w, &hp, norm, layers)?.loaded(&hp))
}
