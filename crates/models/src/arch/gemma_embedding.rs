//! EmbeddingGemma: Gemma 3 as an encoder: tokens see what lies before and behind them, five layers within half a window for each one
//! that sees everything; thin projections for the vector of a text.
//! GGUF: `general.architecture = "gemma-embedding"`.

use puna_graph::*;

use crate::decoder::{self, Decoder, Layer, NormKind, QkNorm};
use crate::error::ModelError;
use crate::hparams::{Hparams, Keys};
use crate::model::{LoadOptions, Loaded};
use crate::rope::{self, RopeKeys, Scaling};
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
    // Scaling is for the layers that see the whole text.
    let local_keys =
        RopeKeys { scaling: Scaling::None, ..rope_keys.in_windows(keys, hp.key_dim, rope::BASE)? };
    let local_rope = w.rope(local_keys.table(RopeKind::Neox, None));
    let windows = Windows::read(keys, keys.sliding(hp.n_layer, 6)?)?;
    let layers = decoder::layers(w, &hp, norm, |b| {
        let ffn = b.gated(Glu::Gelu)?;
        Ok(Layer {
            qk_norm: QkNorm::Before(b.head_norms()?),
            rope: Some(if windows.slides(b.i) { local_rope } else { global_rope }),
            attention: AttentionSpec { mask: windows.mask_around(b.i), ..hp.attention(b.i) },
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
    .loaded(&hp))
}

/// `dense_2` and `dense_3`, for a text's vector. They have no bias, so that a mean may be taken behind them as well as before.
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
                let reason = "must be as wide as what comes before it";
                let key = keys.name(&format!("{name}_feat_in"));
                return Err(ModelError::KeyValue { key, value: input.to_string(), reason });
            }
            width = output;
            projections.push(dense);
        }
    }
    if width != hp.n_embd {
        let key = keys.name("dense_3_feat_out");
        let reason = "vectors of texts must be as wide as the model";
        return Err(ModelError::KeyValue { key, value: width.to_string(), reason });
    }
    Ok(projections)
}
