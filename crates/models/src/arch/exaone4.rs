//! EXAONE 4: norms only after attention and after SwiGLU, normed query and key heads. In the 32B
//! model, three layers with a sliding window and rotary embedding alternate with one layer without
//! either.
//! GGUF: `general.architecture = "exaone4"`.

use puna_graph::*;

use crate::architecture::{LoadOptions, LoadedArchitecture};
use crate::decoder::{self, Decoder, Layer, NormKind, QkNorm};
use crate::error::ModelError;
use crate::hparams::{Hparams, Keys};
use crate::rope::RopeKeys;
use crate::weights::Weights;
use crate::windows::Windows;

/// Layers of the model with sliding windows.
const LAYERS_32B: usize = 64;

pub(super) fn load(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<LoadedArchitecture, ModelError> {
    let hp = Hparams::read(keys)?;
    let norm = NormKind::Rms(keys.rms_eps()?);
    let rope = w.factored_rope(&RopeKeys::read(keys, hp.key_dim, hp.n_ctx)?, RopeKind::Neox)?;
    let slides = hp.n_layer == LAYERS_32B;
    let width = keys.opt_count("attention.sliding_window")?.filter(|&width| width > 0);
    let sliding = if slides { keys.sliding(hp.n_layer, 4)? } else { vec![false; hp.n_layer] };
    let windows = Windows::new(width.unwrap_or(4096), sliding);
    let layers = decoder::layers(w, &hp, norm, |b| {
        let ffn = b.gated(Glu::Silu)?;
        Ok(Layer {
            qk_norm: QkNorm::BeforeRope(b.head_norms()?),
            rope: (!slides || windows.has_window(b.i)).then_some(rope),
            attention: AttentionSpec { mask: windows.mask(b.i), ..hp.attention(b.i) },
            post_attn_norm: Some(b.norm("post_attention_norm")?),
            post_ffn_norm: Some(b.norm("post_ffw_norm")?),
            ..b.without_norms(ffn)?
        })
    })?;
    Ok(Decoder::new(w, &hp, norm, layers)?.into_architecture(&hp))
}
