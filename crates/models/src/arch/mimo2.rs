//! MiMo 2: value heads smaller than key heads, scaled values. Some layers have a sliding window,
//! sinks and another rotary base. Dense layers, and experts with sigmoid routing and selection
//! bias.
//! GGUF: `general.architecture = "mimo2"`.

use puna_graph::*;

use crate::architecture::{LoadOptions, LoadedArchitecture};
use crate::decoder::{self, Decoder, Layer, NormKind};
use crate::error::ModelError;
use crate::experts::ExpertShape;
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
    let norm = NormKind::Rms(keys.rms_eps()?);
    let rope_keys = RopeKeys::read(keys, hp.key_dim, hp.n_ctx)?;
    let global_rope = w.rope(rope_keys.table(RopeKind::Neox, None));
    let local_keys = rope_keys.for_windows(keys, hp.key_dim, rope::BASE)?.unscaled();
    let local_rope = w.rope(local_keys.table(RopeKind::Neox, None));
    let windows = Windows::read(keys, keys.listed_sliding(hp.n_layer)?)?;
    let value_scale = keys.factor("attention.value_scale")?.unwrap_or(1.0);
    let layers = decoder::layers(w, &hp, norm, |b| {
        let ffn = if b.has("ffn_gate_inp.weight") {
            let shape = ExpertShape::read(keys, keys.count("expert_feed_forward_length")?)?;
            let scale = keys.factor("expert_weights_scale")?.unwrap_or(1.0);
            b.experts(ExpertShape { gating: Gating::Sigmoid, normalize: true, scale, ..shape })?
        } else {
            b.gated(Glu::Silu)?
        };
        let plain = hp.attention(b.i);
        let layer = b.pre_norm(ffn)?;
        Ok(Layer {
            rope: Some(if windows.has_window(b.i) { local_rope } else { global_rope }),
            attention: AttentionSpec {
                mask: windows.mask(b.i),
                sinks: b.opt_tensor("attn_sinks.weight", &[plain.heads])?,
                ..plain
            },
            // Scaling the attention result equals scaling the values.
            attn_scale: value_scale,
            ..layer
        })
    })?;
    Ok(Decoder::new(w, &hp, norm, layers)?.into_architecture(&hp))
}
