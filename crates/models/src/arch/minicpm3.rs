//! MiniCPM 3: latent attention, dense layers, LongRoPE factors, and fixed factors of embeddings,
//! logits and residual additions. PLM: latent attention and a squared-ReLU network without a gate.
//! GGUF: `general.architecture = "minicpm3"` and `"plm"`.

use puna_graph::*;

use crate::architecture::{LoadOptions, LoadedArchitecture};
use crate::decoder::{self, Decoder, NormKind};
use crate::error::ModelError;
use crate::hparams::{Hparams, Keys};
use crate::latent::LatentSizes;
use crate::rope::RopeKeys;
use crate::weights::Weights;

/// Width of the model for which the factor of logits was tuned.
const BASE_WIDTH: f32 = 256.0;

pub(super) fn load(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    options: LoadOptions,
) -> Result<LoadedArchitecture, ModelError> {
    let hp = Hparams::read(keys)?;
    let norm = NormKind::Rms(keys.rms_eps()?);
    let sizes = LatentSizes::read(keys, &hp, w)?;
    let rope_keys = RopeKeys::read(keys, sizes.key_dim(), hp.n_ctx)?;
    let rope = w.long_rope(&rope_keys, RopeKind::Neox, options.n_ctx.unwrap_or(hp.n_ctx))?;
    let layers = decoder::layers(w, &hp, norm, |b| {
        let ffn = b.gated(Glu::Silu)?;
        b.latent(sizes, rope, 1.0, ffn)
    })?;
    Ok(Decoder {
        embd_scale: 12.0,
        residual_scale: 1.4 / (hp.n_layer as f32).sqrt(),
        logit_scale: BASE_WIDTH / hp.n_embd as f32,
        ..Decoder::new(w, &hp, norm, layers)?
    }
    .into_architecture(&hp))
}

pub(super) fn load_plm(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<LoadedArchitecture, ModelError> {
    let hp = Hparams::read(keys)?;
    let norm = NormKind::Rms(keys.rms_eps()?);
    let sizes = LatentSizes::read(keys, &hp, w)?;
    let rope = w.rope(RopeKeys::read(keys, sizes.key_dim(), hp.n_ctx)?.table(RopeKind::Norm, None));
    let layers = decoder::layers(w, &hp, norm, |b| {
        let ffn = b.ungated(Activation::ReluSquared)?;
        b.latent(sizes, rope, 1.0, ffn)
    })?;
    Ok(Decoder::new(w, &hp, norm, layers)?.into_architecture(&hp))
}
