//! EmbeddingGemma: Gemma 3 as an encoder with bidirectional attention. Five layers with half a
//! window on each side alternate with one without a window; two projections follow the pooling.
//! GGUF: `general.architecture = "gemma-embedding"`.

use puna_graph::*;

use crate::architecture::{LoadOptions, LoadedArchitecture};
use crate::decoder::{self, Decoder, Layer, NormKind, QkNorm};
use crate::error::ModelError;
use crate::hparams::{Hparams, Keys};
use crate::rope::{self, RopeKeys, Scaling};
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
    // Rotary scaling applies only to layers without a window.
    let local_keys =
        RopeKeys { scaling: Scaling::None, ..rope_keys.for_windows(keys, hp.key_dim, rope::BASE)? };
    let local_rope = w.rope(local_keys.table(RopeKind::Neox, None));
    let windows = Windows::read(keys, keys.sliding(hp.n_layer, 6)?)?;
    let layers = decoder::layers(w, &hp, norm, |b| {
        let ffn = b.gated(Glu::Gelu)?;
        Ok(Layer {
            qk_norm: QkNorm::BeforeRope(b.head_norms()?),
            rope: Some(if windows.has_window(b.i) { local_rope } else { global_rope }),
            attention: AttentionSpec { mask: windows.encoder_mask(b.i), ..hp.attention(b.i) },
            post_attn_norm: Some(b.norm("post_attention_norm")?),
            post_ffn_norm: Some(b.norm("post_ffw_norm")?),
            ..b.pre_norm(ffn)?
        })
    })?;
    let embd_scale = (hp.n_embd as f32).sqrt();
    Ok(Decoder {
        embd_scale,
        projections: projections(keys, w, &hp)?,
        ..Decoder::new(w, &hp, norm, layers)?
    }
    .into_architecture(&hp))
}

/// Loads `dense_2` and `dense_3`. They have no bias, so projecting before or after a mean pooling
/// gives the same embedding.
fn projections(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    hp: &Hparams,
) -> Result<Vec<Linear>, ModelError> {
    let mut projections = Vec::new();
    let mut width = hp.n_embd;
    for name in ["dense_2", "dense_3"] {
        let input = keys.opt_count(&format!("{name}_feat_in"))?.unwrap_or(width);
        let output = keys.opt_count(&format!("{name}_feat_out"))?.unwrap_or(hp.n_embd);
        if let Some(dense) = w.opt_linear(name, input, output)? {
            if input != width {
                let reason = "must equal the output width of the layer before it";
                let key = keys.name(&format!("{name}_feat_in"));
                return Err(ModelError::KeyValue { key, value: input.to_string(), reason });
            }
            width = output;
            projections.push(dense);
        }
    }
    if width != hp.n_embd {
        let key = keys.name("dense_3_feat_out");
        let reason = "must equal embedding_length";
        return Err(ModelError::KeyValue { key, value: width.to_string(), reason });
    }
    Ok(projections)
}
