//! ModernBERT, an encoder: layer norms without bias before each part, except the first, which reads
//! the normed embeddings. One layer without a window alternates with two layers with a window and
//! another rotary base; gated network.
//! GGUF: `general.architecture = "modern-bert"`.

use puna_gguf::escape_for_display;
use puna_graph::*;

use crate::architecture::{LoadOptions, LoadedArchitecture};
use crate::decoder::{self, Decoder, Layer, NormKind};
use crate::error::ModelError;
use crate::hparams::{Hparams, Keys};
use crate::rope::{self, RopeKeys};
use crate::weights::Weights;
use crate::windows::Windows;

pub(super) fn load(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<LoadedArchitecture, ModelError> {
    let hp = Hparams::read(keys)?;
    let norm = NormKind::Layer(keys.layer_eps()?);
    let rope_keys = RopeKeys::read(keys, hp.key_dim, hp.n_ctx)?;
    let global_rope = w.rope(rope_keys.table(RopeKind::Neox, None));
    let local_keys = rope_keys.for_windows(keys, hp.key_dim, rope::BASE)?;
    let local_rope = w.rope(local_keys.table(RopeKind::Neox, None));
    let windows = Windows::read_optional(keys, keys.sliding_except_first(hp.n_layer, 3)?)?;
    let activation = activation(keys)?;
    let layers = decoder::layers(w, &hp, norm, |b| {
        let ffn = b.gated(activation)?;
        Ok(Layer {
            attn_norm: if b.i == 0 { b.opt_norm("attn_norm")? } else { Some(b.norm("attn_norm")?) },
            rope: Some(if windows.has_window(b.i) { local_rope } else { global_rope }),
            attention: AttentionSpec { mask: windows.encoder_mask(b.i), ..hp.attention(b.i) },
            ffn_norm: Some(b.norm("ffn_norm")?),
            ..b.without_norms(ffn)?
        })
    })?;
    let embd_norm = Some(norm.load(w, "token_embd_norm", &[hp.n_embd])?);
    Ok(Decoder { embd_norm, ..Decoder::new(w, &hp, norm, layers)? }.into_architecture(&hp))
}

/// Activation of the gate from the file; GELU by default, as in the first of these models.
fn activation(keys: &Keys<'_>) -> Result<Glu, ModelError> {
    match keys.opt_str("hidden_activation")? {
        None | Some("gelu") => Ok(Glu::Gelu),
        Some("silu") => Ok(Glu::Silu),
        Some(other) => {
            let (key, value) =
                (keys.name("hidden_activation"), escape_for_display(other.as_bytes()));
            Err(ModelError::KeyValue { key, value, reason: "use gelu or silu" })
        }
    }
}
