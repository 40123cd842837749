//! CogVLM's language model: a Llama with a fused query, key and value matrix. The file has a second
//! set of matrices for images (`vis_*`), which text does not use.
//! GGUF: `general.architecture = "cogvlm"`.

use puna_graph::*;

use crate::architecture::{LoadOptions, LoadedArchitecture};
use crate::decoder::{self, Decoder, Layer, NormKind};
use crate::error::ModelError;
use crate::hparams::{Hparams, Keys};
use crate::rope::{RopeKeys, Scaling, Sections};
use crate::weights::Weights;

pub(super) fn load(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<LoadedArchitecture, ModelError> {
    let hp = Hparams::read(keys)?;
    let norm = NormKind::Rms(keys.rms_eps()?);
    // All dimensions of a head are rotated. The file has no base: CogVLM 2 has shared KV heads and
    // a larger base.
    let base = if hp.kv_heads == hp.heads { 10_000.0 } else { 500_000.0 };
    let (dims, original) = (hp.key_dim, hp.n_ctx);
    let rope_keys = RopeKeys {
        dims,
        base,
        scaling: Scaling::None,
        attn_factor: 1.0,
        original,
        sections: Sections::None,
    };
    let rope = w.rope(rope_keys.checked(keys, hp.key_dim)?.table(RopeKind::Neox, None));
    let layers = decoder::layers(w, &hp, norm, |b| {
        let ffn = b.gated(Glu::Silu)?;
        Ok(Layer { rope: Some(rope), ..b.pre_norm(ffn)? })
    })?;
    Ok(Decoder::new(w, &hp, norm, layers)?.into_architecture(&hp))
}
