//! ModernBERT, an encoder: layer norms without bias before each part but the first, which reads the normed embeddings as they are; one
//! layer that sees everything before each two that see a window around a token and turn by another base; a gated unit.
//! GGUF: `general.architecture = "modern-bert"`.

use puna_gguf::shown;
use puna_graph::*;

use crate::decoder::{self, Decoder, Layer, NormKind};
use crate::error::ModelError;
use crate::hparams::{Hparams, Keys};
use crate::model::{LoadOptions, Loaded};
use crate::rope::{self, RopeKeys};
use crate::weights::Weights;
use crate::windows::Windows;

pub(super) fn load(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<Loaded, ModelError> {
    let hp = Hparams::read(keys)?;
    let norm = NormKind::Layer(keys.layer_eps()?);
    let rope_keys = RopeKeys::read(keys, hp.key_dim, hp.n_ctx)?;
    let global_rope = w.rope(rope_keys.table(RopeKind::Neox, None));
    let local_keys = rope_keys.in_windows(keys, hp.key_dim, rope::BASE)?;
    let local_rope = w.rope(local_keys.table(RopeKind::Neox, None));
    let windows = Windows::read_optional(keys, keys.sliding_but_first(hp.n_layer, 3)?)?;
    let unit = unit(keys)?;
    let layers = decoder::layers(w, &hp, norm, |b| {
        let ffn = b.gated(unit)?;
        Ok(Layer {
            attn_norm: if b.i == 0 { b.opt_norm("attn_norm")? } else { Some(b.norm("attn_norm")?) },
            rope: Some(if windows.slides(b.i) { local_rope } else { global_rope }),
            attention: AttentionSpec { mask: windows.mask_around(b.i), ..hp.attention(b.i) },
            ffn_norm: Some(b.norm("ffn_norm")?),
            ..b.bare(ffn)?
        })
    })?;
    let embd_norm = Some(norm.load(w, "token_embd_norm", &[hp.n_embd])?);
    Ok(Decoder { embd_norm, ..Decoder::new(w, &hp, norm, layers)? }.loaded(&hp))
}

/// The gated unit that the file names, or else that of the first of these models.
fn unit(keys: &Keys<'_>) -> Result<Glu, ModelError> {
    match keys.opt_str("hidden_activation")? {
        None | Some("gelu") => Ok(Glu::Gelu),
        Some("silu") => Ok(Glu::Silu),
        Some(other) => {
            let (key, value) = (keys.name("hidden_activation"), shown(other.as_bytes()));
            Err(ModelError::KeyValue { key, value, reason: "use gelu or silu" })
        }
    }
}
