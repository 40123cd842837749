//! OLMo: pre-norm decoder with layer norms without weights, adjacent-pair rotary embedding, clamped
//! query, key and value, SwiGLU.
//! GGUF: `general.architecture = "olmo"`.

use puna_graph::*;

use crate::architecture::{LoadOptions, LoadedArchitecture};
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
    let hp = Hparams::read(keys)?;
    let norm = NormKind::Layer(keys.layer_eps()?);
    let rope = w.rope(RopeKeys::read(keys, hp.key_dim, hp.n_ctx)?.table(RopeKind::Norm, None));
    let (clamp, plain) = (keys.opt_limit("attention.clamp_kqv")?, norm.unweighted(hp.n_embd));
    let layers = decoder::layers(w, &hp, norm, |b| {
        let ffn = b.gated(Glu::Silu)?;
        let (attn_norm, ffn_norm) = (Some(plain), Some(plain));
        Ok(Layer { attn_norm, clamp, rope: Some(rope), ffn_norm, ..b.without_norms(ffn)? })
    })?;
    Ok(Decoder::with_norm(w, &hp, plain, layers)?.into_architecture(&hp))
}
