//! PLaMo 3: norms before and after each part, normed query and key heads, SwiGLU. Seven layers with
//! a sliding window and another rotary base alternate with one without a window.
//! GGUF: `general.architecture = "plamo3"`.

use puna_graph::*;

use crate::architecture::{LoadOptions, LoadedArchitecture};
use crate::decoder::{self, AnyNorm, Decoder, Layer, LayerLoader, NormKind, QkNorm};
use crate::error::ModelError;
use crate::hparams::{Hparams, Keys};
use crate::rope::{self, RopeKeys};
use crate::weights::Weights;
use crate::windows::Windows;

pub(super) fn load(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<LoadedArchitecture, ModelError> {
    let hp = Hparams::read(keys)?;
    let eps = keys.rms_eps()?;
    let norm = NormKind::Rms(eps);
    let rope_keys = RopeKeys::read(keys, hp.key_dim, hp.n_ctx)?;
    let global_rope = w.rope(rope_keys.table(RopeKind::Neox, None));
    let local_keys = rope_keys.for_windows(keys, hp.key_dim, rope::BASE)?.unscaled();
    let local_rope = w.rope(local_keys.table(RopeKind::Neox, None));
    let windows = Windows::read_optional(keys, keys.sliding(hp.n_layer, 8)?)?;
    let layers = decoder::layers(w, &hp, norm, |b| {
        let ffn = b.gated(Glu::Silu)?;
        Ok(Layer {
            qk_norm: QkNorm::BeforeRope(b.head_norms()?),
            rope: Some(if windows.has_window(b.i) { local_rope } else { global_rope }),
            attention: AttentionSpec { mask: windows.mask(b.i), ..hp.attention(b.i) },
            post_attn_norm: Some(bare_norm(b, "post_attention_norm", hp.n_embd, eps)?),
            post_ffn_norm: Some(bare_norm(b, "post_ffw_norm", hp.n_embd, eps)?),
            ..b.pre_norm(ffn)?
        })
    })?;
    Ok(Decoder::new(w, &hp, norm, layers)?.into_architecture(&hp))
}

/// Norm over `dim` columns; PLaMo files store its tensor without the suffix `.weight`.
pub(super) fn bare_norm(
    b: &mut LayerLoader<'_, '_>,
    part: &str,
    dim: usize,
    eps: f32,
) -> Result<AnyNorm, ModelError> {
    let w = Some(b.tensor(part, &[dim])?);
    Ok(AnyNorm::Rms(Norm { w, b: None, dim, eps }))
}
