//! Laguna: normed query and key heads, a softplus gate of attention per head or per value. One
//! layer without a window and with YaRN alternates with three layers with a sliding window and
//! another rotary base. Dense layers first, then experts and a shared expert.
//! GGUF: `general.architecture = "laguna"`.

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
    let global_rope = w.rope(rope_keys.table(RopeKind::Neox, None));
    let local_keys = rope_keys.for_windows(keys, hp.key_dim, rope_keys.base)?.unscaled();
    let local_rope = w.rope(local_keys.table(RopeKind::Neox, None));
    let windows = Windows::read_optional(keys, keys.sliding_except_first(hp.n_layer, 4)?)?;
    let hidden = keys.count("expert_feed_forward_length")?;
    let (shape, shared) = (
        ExpertShape::read_with_routing(keys, hidden, Gating::Sigmoid)?,
        keys.shared_width(hidden)?,
    );
    let dense = keys.opt_count("leading_dense_block_count")?.unwrap_or(0);
    let layers = decoder::layers(w, &hp, norm, |b| {
        let ffn =
            if b.i < dense { b.gated(Glu::Silu)? } else { b.experts_with_shared(shape, shared)? };
        let heads = hp.heads[b.i];
        let gates =
            if b.rows("attn_gate.weight") == Some(heads) { heads } else { heads * hp.value_dim };
        Ok(Layer {
            qk_norm: QkNorm::BeforeRope(b.head_norms()?),
            rope: Some(if windows.has_window(b.i) { local_rope } else { global_rope }),
            attention: AttentionSpec { mask: windows.mask(b.i), ..hp.attention(b.i) },
            gate: Some((b.linear("attn_gate", hp.n_embd, gates)?, Activation::Softplus)),
            ..b.pre_norm(ffn)?
        })
    })?;
    Ok(Decoder::new(w, &hp, norm, layers)?.into_architecture(&hp))
}
