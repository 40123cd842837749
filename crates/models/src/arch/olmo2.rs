//! OLMo 2 and 3: norms behind attention and behind SwiGLU only, query and key normed over all heads together; OLMo 3 has three
//! layers with a sliding window for each one without.
//! GGUF: `general.architecture = "olmo2"`.

use puna_graph::*;

use crate::decoder::{self, Decoder, Layer, NormKind, QkNorm};
use crate::error::ModelError;
use crate::hparams::{Hparams, Keys};
use crate::model::{LoadOptions, Loaded};
use crate::rope::{RopeKeys, Scaling};
use crate::weights::Weights;
use crate::windows::Windows;

pub(super) fn load(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<Loaded, ModelError> {
    let hp = Hparams::read(keys)?;
    let norm = NormKind::Rms(keys.rms_eps()?);
    let rope_keys = RopeKeys::read(keys, hp.key_dim, hp.n_ctx)?;
    let global_rope = w.rope(rope_keys.table(RopeKind::Neox, None));
    // Scaling is for the layers that see the whole context.
    let local_keys = RopeKeys { scaling: Scaling::None, ..rope_keys };
    let local_rope = w.rope(local_keys.table(RopeKind::Neox, None));
    let windows = Windows::read_optional(keys, keys.sliding(hp.n_layer, 4)?)?;
    let layers = decoder::layers(w, &hp, norm, |b| {
        let ffn = b.gated(Glu::Silu)?;
        Ok(Layer {
            qk_norm: QkNorm::Before(b.projection_norms()?),
            rope: Some(if windows.slides(b.i) { local_rope } else { global_rope }),
            attention: AttentionSpec { mask: windows.mask(b.i), ..hp.attention(b.i) },
            post_attn_norm: Some(b.norm("post_attention_norm")?),
            post_ffn_norm: Some(b.norm("post_ffw_norm")?),
            ..b.bare(ffn)?
        })
    })?;
    Ok(Decoder::new(w, &hp, norm, layers)?.loaded(&hp))
}
