//! Command R and Cohere 2: attention and SwiGLU in parallel behind one layer norm without bias;
//! tied output matrix, scaled logits. In Cohere 2, three layers with a sliding window and rotary
//! embedding alternate with one layer without either. Cohere 2 MoE adds half the sum of experts and
//! a shared expert, after dense layers that all have rotary embedding.
//! GGUF: `general.architecture = "command-r"`, `"cohere2"` and `"cohere2moe"`.

use puna_graph::*;

use crate::architecture::{LoadOptions, LoadedArchitecture};
use crate::decoder::{self, Decoder, Layer, NormKind, QkNorm};
use crate::error::ModelError;
use crate::experts::ExpertShape;
use crate::hparams::{Hparams, Keys};
use crate::rope::RopeKeys;
use crate::weights::Weights;
use crate::windows::Windows;

/// Number of layers from which Command R (Plus) has norms of query and key heads.
const LAYERS_PLUS: usize = 64;

pub(super) fn load_1(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<LoadedArchitecture, ModelError> {
    let hp = Hparams::read(keys)?;
    load(keys, w, &hp, |_| (true, Mask::Causal))
}

pub(super) fn load_2(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<LoadedArchitecture, ModelError> {
    let hp = Hparams::read(keys)?;
    let windows = Windows::read(keys, keys.sliding(hp.n_layer, 4)?)?;
    load(keys, w, &hp, |i| (windows.has_window(i), windows.mask(i)))
}

pub(super) fn load_2_moe(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<LoadedArchitecture, ModelError> {
    let hp = Hparams::read(keys)?;
    let has_rms = keys.opt_f32("attention.layer_norm_rms_epsilon")?.is_some();
    let norm =
        if has_rms { NormKind::Rms(keys.rms_eps()?) } else { NormKind::Layer(keys.layer_eps()?) };
    let rope = w.factored_rope(&RopeKeys::read(keys, hp.key_dim, hp.n_ctx)?, RopeKind::Norm)?;
    let windows = Windows::read(keys, keys.sliding_except_first(hp.n_layer, 4)?)?;
    let hidden = keys.opt_count("expert_feed_forward_length")?.filter(|&hidden| hidden > 0);
    let dense = keys.opt_count("leading_dense_block_count")?.unwrap_or(0);
    let layers = decoder::layers(w, &hp, norm, |b| {
        let is_dense = b.i < dense;
        let hidden = hidden.unwrap_or(hp.ff(b.i));
        let ffn = if is_dense {
            b.gated(Glu::Silu)?
        } else {
            let shape = ExpertShape::read_with_routing(keys, hidden, Gating::Sigmoid)?;
            match keys.opt_count("expert_shared_count")?.unwrap_or(0) {
                0 => b.experts(shape)?,
                _ => b.experts_with_shared(shape, keys.shared_width(hidden)?)?.scaled(0.5),
            }
        };
        Ok(Layer {
            attn_norm: Some(b.norm("attn_norm")?),
            rope: (windows.has_window(b.i) || is_dense).then_some(rope),
            attention: AttentionSpec { mask: windows.mask(b.i), ..hp.attention(b.i) },
            parallel: true,
            ..b.without_norms(ffn)?
        })
    })?;
    let logit_scale = keys.factor("logit_scale")?.unwrap_or(1.0);
    Ok(Decoder { logit_scale, ..Decoder::new(w, &hp, norm, layers)? }.into_architecture(&hp))
}

/// Loads the decoder; `layer` gives rotary embedding and mask of a layer.
fn load(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    hp: &Hparams,
    layer: impl Fn(usize) -> (bool, Mask),
) -> Result<LoadedArchitecture, ModelError> {
    let norm = NormKind::Layer(keys.layer_eps()?);
    let rope = w.rope(RopeKeys::read(keys, hp.key_dim, hp.n_ctx)?.table(RopeKind::Norm, None));
    let layers = decoder::layers(w, hp, norm, |b| {
        let (has_rope, mask) = layer(b.i);
        let ffn = b.gated(Glu::Silu)?;
        let has_qk_norm = hp.n_layer >= LAYERS_PLUS && b.has("attn_q_norm.weight");
        Ok(Layer {
            attn_norm: Some(b.norm("attn_norm")?),
            qk_norm: if has_qk_norm {
                QkNorm::BeforeRope(b.per_head_norms()?)
            } else {
                QkNorm::None
            },
            rope: has_rope.then_some(rope),
            attention: AttentionSpec { mask, ..hp.attention(b.i) },
            parallel: true,
            ..b.without_norms(ffn)?
        })
    })?;
    let logit_scale = keys.factor("logit_scale")?.unwrap_or(1.0);
    Ok(Decoder { logit_scale, ..Decoder::new(w, hp, norm, layers)? }.into_architecture(hp))
}
