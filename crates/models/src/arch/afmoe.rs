//! Arcee's Trinity: norms before and after each part, scaled embeddings, normed query and key
//! heads, gated attention. Three layers with a sliding window and rotary embedding alternate with
//! one layer without either. Dense layers first, then experts with sigmoid routing.
//! GGUF: `general.architecture = "afmoe"`.

use puna_graph::*;

use crate::architecture::{LoadOptions, LoadedArchitecture};
use crate::decoder::{self, Decoder, Layer, NormKind, QkNorm};
use crate::error::ModelError;
use crate::experts::ExpertShape;
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
    let local_keys = rope_keys.for_windows(keys, hp.key_dim, rope_keys.base)?;
    let rope = w.rope(local_keys.table(RopeKind::Neox, None));
    let windows = Windows::read(keys, keys.sliding(hp.n_layer, 4)?)?;
    let hidden = keys.count("expert_feed_forward_length")?;
    let shape = ExpertShape::read_with_routing(keys, hidden, Gating::Sigmoid)?;
    let dense = keys.opt_count("leading_dense_block_count")?.unwrap_or(0);
    let shared = keys.shared_width(hidden)?;
    let layers = decoder::layers(w, &hp, norm, |b| {
        let width = hp.heads[b.i] * hp.value_dim;
        let ffn =
            if b.i < dense { b.gated(Glu::Silu)? } else { b.experts_with_shared(shape, shared)? };
        Ok(Layer {
            qk_norm: QkNorm::BeforeRope(b.head_norms()?),
            rope: windows.has_window(b.i).then_some(rope),
            attention: AttentionSpec { mask: windows.mask(b.i), ..hp.attention(b.i) },
            gate: Some((b.linear("attn_gate", hp.n_embd, width)?, Activation::Sigmoid)),
            post_attn_norm: Some(b.norm("post_attention_norm")?),
            post_ffn_norm: Some(b.norm("post_ffw_norm")?),
            ..b.pre_norm(ffn)?
        })
    })?;
    let embd_scale = (hp.n_embd as f32).sqrt();
    Ok(Decoder { embd_scale, ..Decoder::new(w, &hp, norm, layers)? }.into_architecture(&hp))
}
