//! BitNet b1.58: a Llama with an additional norm before each output projection, and ternary
//! matrices with a scale each. The 2B model has squared ReLU as gate activation.
//! GGUF: `general.architecture = "bitnet"`, `"bitnet-b1.58"`.

use puna_graph::*;

use crate::architecture::{LoadOptions, LoadedArchitecture};
use crate::blocks::{FeedForward, Mlp};
use crate::decoder::{self, Decoder, Layer, NormKind};
use crate::error::ModelError;
use crate::hparams::{Hparams, Keys};
use crate::rope::RopeKeys;
use crate::weights::Weights;

pub(super) fn load(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<LoadedArchitecture, ModelError> {
    gated(keys, w, Glu::Silu)
}

/// The 2B model.
pub(super) fn load_158(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<LoadedArchitecture, ModelError> {
    gated(keys, w, Glu::GatedReluSquared)
}

fn gated(keys: &Keys<'_>, w: &mut Weights<'_>, glu: Glu) -> Result<LoadedArchitecture, ModelError> {
    let hp = Hparams::read(keys)?;
    let eps = keys.rms_eps()?;
    let norm = NormKind::Rms(eps);
    let rope = w.rope(RopeKeys::read(keys, hp.key_dim, hp.n_ctx)?.table(RopeKind::Neox, None));
    let layers = decoder::layers(w, &hp, norm, |b| {
        let (ff, width) = (hp.ff(b.i), hp.heads[b.i] * hp.value_dim);
        let inner = b.w.norm(&format!("{}.ffn_sub_norm", b.name), ff, eps)?;
        let mlp = Mlp::load(b.w, &b.name, hp.n_embd, ff, glu)?.with_norm(inner);
        Ok(Layer {
            rope: Some(rope),
            attn_sub_norm: Some(b.norm_of("attn_sub_norm", &[width])?),
            ..b.pre_norm(FeedForward::Dense(mlp))?
        })
    })?;
    Ok(Decoder::new(w, &hp, norm, layers)?.into_architecture(&hp))
}
