//! EuroBERT, NeoBERT and encoders derived from Llama: a Llama with bidirectional attention.
//! EuroBERT has split-half rotary embedding, the others adjacent pairs.
//! GGUF: `general.architecture = "eurobert"`, `"neo-bert"` and `"llama-embed"`.

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
    load_with(keys, w, RopeKind::Neox, "output_norm")
}

pub(super) fn load_neo(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<LoadedArchitecture, ModelError> {
    load_with(keys, w, RopeKind::Norm, "enc.output_norm")
}

pub(super) fn load_llama(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<LoadedArchitecture, ModelError> {
    load_with(keys, w, RopeKind::Norm, "output_norm")
}

fn load_with(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    rope: RopeKind,
    last: &str,
) -> Result<LoadedArchitecture, ModelError> {
    let hp = Hparams::read(keys)?;
    let norm = NormKind::Rms(keys.rms_eps()?);
    let rope = w.rope(RopeKeys::read(keys, hp.key_dim, hp.n_ctx)?.table(rope, None));
    let layers = decoder::layers(w, &hp, norm, |b| {
        let ffn = b.gated(Glu::Silu)?;
        let attention = AttentionSpec { mask: Mask::Full, ..hp.attention(b.i) };
        Ok(Layer { rope: Some(rope), attention, ..b.pre_norm(ffn)? })
    })?;
    let last = norm.load(w, last, &[hp.n_embd])?;
    Ok(Decoder::with_norm(w, &hp, last, layers)?.into_architecture(&hp))
}
