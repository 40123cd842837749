//! Spark 2.5: a Llama with GeGLU and a sigmoid gate per attention head; some layers have a sliding
//! window and another rotary base.
//! GGUF: `general.architecture = "spark2_5"`.

use puna_graph::*;

use crate::architecture::{LoadOptions, LoadedArchitecture};
use crate::decoder::{self, Decoder, Layer, NormKind};
use crate::error::ModelError;
use crate::hparams::{Hparams, Keys};
use crate::rope::RopeKeys;
use crate::weights::Weights;
use crate::windows::Windows;

pub(super) fn load(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<LoadedArchitecture, ModelError> {
    let hp = Hparams::read(keys)?;
    let norm = NormKind::Rms(keys.rms_eps()?);
    let rope_keys = RopeKeys::read(keys, hp.key_dim, hp.n_ctx)?;
    let global_rope = w.rope(rope_keys.table(RopeKind::Neox, None));
    let local_keys = rope_keys.for_windows(keys, hp.key_dim, rope_keys.base)?;
    let local_rope = w.rope(local_keys.table(RopeKind::Neox, None));
    let windows = Windows::read(keys, keys.listed_sliding(hp.n_layer)?)?;
    let layers = decoder::layers(w, &hp, norm, |b| {
        let ffn = b.gated(Glu::Gelu)?;
        Ok(Layer {
            rope: Some(if windows.has_window(b.i) { local_rope } else { global_rope }),
            attention: AttentionSpec { mask: windows.mask(b.i), ..hp.attention(b.i) },
            gate: Some((b.linear("attn_gate", hp.n_embd, hp.heads[b.i])?, Activation::Sigmoid)),
            ..b.pre_norm(ffn)?
        })
    })?;
    Ok(Decoder::new(w, &hp, norm, layers)?.into_architecture(&hp))
}
