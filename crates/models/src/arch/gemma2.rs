//! Gemma 2: norms before and after each part, soft-capped scores and logits, a sliding window in
//! every other layer, GeGLU, tied output matrix.
//! GGUF: `general.architecture = "gemma2"`.

use puna_graph::*;

use crate::architecture::{LoadOptions, LoadedArchitecture};
use crate::decoder::{self, Decoder, Layer, NormKind};
use crate::error::ModelError;
use crate::hparams::{Hparams, Keys};
use crate::rope::RopeKeys;
use crate::weights::Weights;
use crate::windows::Windows;

/// Number of layers of the 27B model, which scales scores by the width divided by the number of
/// heads.
const LAYERS_27B: usize = 46;

pub(super) fn load(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<LoadedArchitecture, ModelError> {
    let hp = Hparams::read(keys)?;
    let norm = NormKind::Rms(keys.rms_eps()?);
    let rope_keys = RopeKeys::read(keys, hp.key_dim, hp.n_ctx)?;
    let local_keys = rope_keys.for_windows(keys, hp.key_dim, rope_keys.base)?;
    let [global_rope, local_rope] =
        [rope_keys, local_keys].map(|keys| w.rope(keys.table(RopeKind::Neox, None)));
    let width = keys.count_or("attention.sliding_window", 4096)?;
    let windows = Windows::new(width, keys.sliding(hp.n_layer, 2)?);
    let softcap =
        Some(keys.opt_f32("attn_logit_softcapping")?.unwrap_or(50.0)).filter(|&c| c > 0.0);
    let layers = decoder::layers(w, &hp, norm, |b| {
        let per_head =
            if hp.n_layer == LAYERS_27B { hp.n_embd / hp.heads[b.i] } else { hp.key_dim };
        let ffn = b.gated(Glu::Gelu)?;
        Ok(Layer {
            rope: Some(if windows.has_window(b.i) { local_rope } else { global_rope }),
            attention: AttentionSpec {
                scale: 1.0 / (per_head as f32).sqrt(),
                softcap,
                mask: windows.mask(b.i),
                ..hp.attention(b.i)
            },
            post_attn_norm: Some(b.norm("post_attention_norm")?),
            post_ffn_norm: Some(b.norm("post_ffw_norm")?),
            ..b.pre_norm(ffn)?
        })
    })?;
    let embd_scale = (hp.n_embd as f32).sqrt();
    let logit_cap =
        Some(keys.opt_f32("final_logit_softcapping")?.unwrap_or(30.0)).filter(|&c| c > 0.0);
    Ok(Decoder { embd_scale, logit_cap, ..Decoder::new(w, &hp, norm, layers)? }
        .into_architecture(&hp))
}
