//! Gemma 3: norms before and after each part, normed query and key heads, GeGLU, tied output
//! matrix. Five layers with a sliding window and a small rotary base alternate with one layer
//! without a window.
//! GGUF: `general.architecture = "gemma3"`.

use puna_graph::*;

use crate::architecture::{LoadOptions, LoadedArchitecture};
use crate::decoder::{self, Decoder, Layer, NormKind, QkNorm};
use crate::error::ModelError;
use crate::hparams::{Hparams, Keys};
use crate::rope::{self, RopeKeys, Scaling};
use crate::weights::Weights;
use crate::windows::Windows;

/// Number of layers of the 27B model, which scales scores by the width divided by the number of
/// heads.
const LAYERS_27B: usize = 62;

pub(super) fn load(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<LoadedArchitecture, ModelError> {
    let hp = Hparams::read(keys)?;
    let norm = NormKind::Rms(keys.rms_eps()?);
    let rope_keys = RopeKeys::read(keys, hp.key_dim, hp.n_ctx)?;
    let global_rope = w.rope(rope_keys.table(RopeKind::Neox, None));
    // Rotary scaling applies only to layers without a window.
    let local_keys =
        RopeKeys { scaling: Scaling::None, ..rope_keys.for_windows(keys, hp.key_dim, rope::BASE)? };
    let local_rope = w.rope(local_keys.table(RopeKind::Neox, None));
    let windows = Windows::read_optional(keys, keys.sliding(hp.n_layer, 6)?)?;
    let layers = decoder::layers(w, &hp, norm, |b| {
        let per_head =
            if hp.n_layer == LAYERS_27B { hp.n_embd / hp.heads[b.i] } else { hp.key_dim };
        let ffn = b.gated(Glu::Gelu)?;
        Ok(Layer {
            qk_norm: QkNorm::BeforeRope(b.head_norms()?),
            rope: Some(if windows.has_window(b.i) { local_rope } else { global_rope }),
            attention: AttentionSpec {
                scale: 1.0 / (per_head as f32).sqrt(),
                mask: windows.mask(b.i),
                sees_media_span: true,
                ..hp.attention(b.i)
            },
            post_attn_norm: Some(b.norm("post_attention_norm")?),
            post_ffn_norm: Some(b.norm("post_ffw_norm")?),
            ..b.pre_norm(ffn)?
        })
    })?;
    let embd_scale = (hp.n_embd as f32).sqrt();
    let logit_cap = keys.opt_f32("final_logit_softcapping")?.filter(|&c| c > 0.0);
    Ok(Decoder { embd_scale, logit_cap, ..Decoder::new(w, &hp, norm, layers)? }
        .into_architecture(&hp))
}
