//! EXAONE 4: norms behind attention and behind SwiGLU only, normed query and key heads; the 32B form has three layers with a sliding
//! window, and rotation in these alone, for each one without.
//! GGUF: `general.architecture = "exaone4"`.

use puna_graph::*;

use crate::decoder::{self, Decoder, Layer, NormKind, QkNorm};
use crate::error::ModelError;
use crate::hparams::{Hparams, Keys};
use crate::model::{LoadOptions, Loaded};
use crate::rope::RopeKeys;
use crate::weights::Weights;

/// Layers of the form with sliding windows.
const LAYERS_32B: usize = 64;

pub(super) fn load(keys: &Keys<'_>, w: &mut Weights<'_>, _: LoadOptions) -> Result<Loaded, ModelError> {
    let hp = Hparams::read(keys)?;
    let norm = NormKind::Rms(keys.rms_eps()?);
    let rope = w.factored_rope(&RopeKeys::read(keys, hp.key_dim, hp.n_ctx)?, RopeKind::Neox)?;
    let slides = hp.n_layer == LAYERS_32B;
    let window = keys.opt_count("attention.sliding_window")?.filter(|&w| w > 0).unwrap_or(4096) as u32;
    let sliding = keys.sliding(hp.n_layer, 4)?;
    let layers = decoder::layers(w, &hp, norm, |b| {
        let local = slides && sliding[b.i];
        let ffn = b.gated(Glu::Silu)?;
        Ok(Layer {
            qk_norm: QkNorm::Before(b.head_norms()?),
            rope: (!slides || local).then_some(rope),
            attention: AttentionSpec {
                mask: if local { Mask::Window(window) } else { Mask::Causal },
                ..hp.attention(b.i)
            },
            post_attn_norm: Some(b.norm("post_attention_norm")?),
            post_ffn_norm: Some(b.norm("post_ffw_norm")?),
            ..b.bare(ffn)?
        })
    })?;
    Ok(Decoder::new(w, &hp, norm, layers)?.loaded(&hp))
}
