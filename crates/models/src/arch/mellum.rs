//! Mellum 2: a Qwen 3 MoE in which three layers with a sliding window and unscaled rotary embedding
//! alternate with one layer without a window.
//! GGUF: `general.architecture = "mellum"`.

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
    let local_keys = rope_keys.unscaled();
    let local_rope = w.rope(local_keys.table(RopeKind::Neox, None));
    let windows = Windows::read_optional(keys, keys.sliding(hp.n_layer, 4)?)?;
    let hidden = keys.count("expert_feed_forward_length")?;
    let scale = keys.factor("expert_weights_scale")?.unwrap_or(1.0);
    let shape = ExpertShape { normalize: true, scale, ..ExpertShape::read(keys, hidden)? };
    let layers = decoder::layers(w, &hp, norm, |b| {
        let ffn = b.experts(shape)?;
        Ok(Layer {
            qk_norm: QkNorm::BeforeRope(b.head_norms()?),
            rope: Some(if windows.has_window(b.i) { local_rope } else { global_rope }),
            attention: AttentionSpec { mask: windows.mask(b.i), ..hp.attention(b.i) },
            ..b.pre_norm(ffn)?
        })
    })?;
    Ok(Decoder::new(w, &hp, norm, layers)?.into_architecture(&hp))
}
