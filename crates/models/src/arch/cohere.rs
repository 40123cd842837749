//! Command R and Cohere 2: one layer norm without bias for attention and SwiGLU, which are added together; tied output, scaled
//! logits. Cohere 2 has three layers with a sliding window, and rotation in these alone, for each one without.
//! GGUF: `general.architecture = "command-r"` and `"cohere2"`.

use puna_graph::*;

use crate::decoder::{self, Decoder, Layer, NormKind, QkNorm};
use crate::error::ModelError;
use crate::hparams::{Hparams, Keys};
use crate::model::{LoadOptions, Loaded};
use crate::rope::RopeKeys;
use crate::weights::Weights;

/// Layers from which Command R (the Plus form) norms each head of query and key.
const LAYERS_PLUS: usize = 64;

pub(super) fn load_1(keys: &Keys<'_>, w: &mut Weights<'_>, _: LoadOptions) -> Result<Loaded, ModelError> {
    let hp = Hparams::read(keys)?;
    load(keys, w, &hp, |_| (true, Mask::Causal))
}

pub(super) fn load_2(keys: &Keys<'_>, w: &mut Weights<'_>, _: LoadOptions) -> Result<Loaded, ModelError> {
    let hp = Hparams::read(keys)?;
    let window = keys.count("attention.sliding_window")? as u32;
    let sliding = keys.sliding(hp.n_layer, 4)?;
    load(keys, w, &hp, |i| (sliding[i], if sliding[i] { Mask::Window(window) } else { Mask::Causal }))
}

/// `layer` says whether heads turn, and what they see.
fn load(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    hp: &Hparams,
    layer: impl Fn(usize) -> (bool, Mask),
) -> Result<Loaded, ModelError> {
    let norm = NormKind::Layer(keys.layer_eps()?);
    let rope = w.rope(RopeKeys::read(keys, hp.key_dim, hp.n_ctx)?.table(RopeKind::Norm, None));
    let layers = decoder::layers(w, hp, norm, |b| {
        let (turns, mask) = layer(b.i);
        let ffn = b.gated(Glu::Silu)?;
        let has_qk_norm = hp.n_layer >= LAYERS_PLUS && b.has("attn_q_norm.weight");
        Ok(Layer {
            attn_norm: Some(b.norm("attn_norm")?),
            qk_norm: if has_qk_norm { QkNorm::Before(b.norms_of_heads()?) } else { QkNorm::None },
            rope: turns.then_some(rope),
            attention: AttentionSpec { mask, ..hp.attention(b.i) },
            parallel: true,
            ..b.bare(ffn)?
        })
    })?;
    let logit_scale = keys.factor("logit_scale")?.unwrap_or(1.0);
    Ok(Decoder { logit_scale, ..Decoder::new(w, hp, norm, layers)? }.loaded(hp))
}
