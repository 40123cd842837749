//! Muse Glimmer: normed embeddings, norms before and after each part, normed query and key heads,
//! gated attention, scaled and capped logits. Three layers with a sliding window and rotary
//! embedding alternate with one layer without either.
//! GGUF: `general.architecture = "muse-glimmer"`.

use puna_graph::*;

use crate::architecture::{LoadOptions, LoadedArchitecture};
use crate::decoder::{self, Decoder, Layer, NormKind, QkNorm};
use crate::error::ModelError;
use crate::hparams::{Hparams, Keys};
use crate::rope::RopeKeys;
use crate::weights::Weights;
use crate::windows::Windows;

/// Norm after each part; its epsilon does not depend on the file.
const POST_NORM: NormKind = NormKind::Rms(1e-8);

pub(super) fn load(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<LoadedArchitecture, ModelError> {
    let hp = Hparams::read(keys)?;
    let norm = NormKind::Rms(keys.rms_eps()?);
    let rope_keys = RopeKeys::read(keys, hp.key_dim, hp.n_ctx)?;
    let local_keys = rope_keys.for_windows(keys, hp.key_dim, rope_keys.base)?.unscaled();
    let rope = w.rope(local_keys.table(RopeKind::Norm, None));
    let windows = Windows::read(keys, keys.sliding(hp.n_layer, 4)?)?;
    let layers = decoder::layers(w, &hp, norm, |b| {
        let width = hp.heads[b.i] * hp.value_dim;
        let ffn = b.gated(Glu::Silu)?;
        let [post_attn, post_ffn] = ["post_attention_norm", "post_ffw_norm"]
            .map(|part| POST_NORM.load(b.w, &format!("{}.{part}", b.name), &[hp.n_embd]));
        Ok(Layer {
            qk_norm: QkNorm::BeforeRope(b.head_norms()?),
            rope: windows.has_window(b.i).then_some(rope),
            attention: AttentionSpec { mask: windows.mask(b.i), ..hp.attention(b.i) },
            gate: Some((b.linear("attn_gate", hp.n_embd, width)?, Activation::Sigmoid)),
            post_attn_norm: Some(post_attn?),
            post_ffn_norm: Some(post_ffn?),
            ..b.pre_norm(ffn)?
        })
    })?;
    Ok(Decoder {
        embd_norm: Some(norm.unweighted(hp.n_embd)),
        logit_scale: keys.opt_f32("logit_scale")?.unwrap_or(1.0),
        logit_cap: keys.factor("final_logit_softcapping")?,
        ..Decoder::new(w, &hp, norm, layers)?
    }
    .into_architecture(&hp))
}
