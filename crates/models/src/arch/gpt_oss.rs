//! gpt-oss: pre-norm decoder, attention sinks, a sliding window in every other layer, experts with
//! biases and a clamped SwiGLU.
//! GGUF: `general.architecture = "gpt-oss"`.

use puna_graph::*;

use crate::architecture::{LoadOptions, LoadedArchitecture};
use crate::decoder::{self, Decoder, Layer, NormKind};
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
    let rope_keys = RopeKeys::read(keys, hp.key_dim, hp.n_ctx)?.with_exact_ramp();
    let local_keys = rope_keys.for_windows(keys, hp.key_dim, rope_keys.base)?;
    let [global_rope, local_rope] =
        [rope_keys, local_keys].map(|keys| w.rope(keys.table(RopeKind::Neox, None)));
    let windows = Windows::read(keys, keys.sliding(hp.n_layer, 2)?)?;
    let shape = ExpertShape {
        gating: Gating::SoftmaxOfSelected,
        glu: Glu::Clamped { alpha: 1.702, limit: 7.0 },
        ..ExpertShape::read(keys, keys.count("expert_feed_forward_length")?)?
    };
    let layers = decoder::layers(w, &hp, norm, |b| {
        let ffn = b.experts(shape)?;
        Ok(Layer {
            attn_norm: Some(b.norm("attn_norm")?),
            rope: Some(if windows.has_window(b.i) { local_rope } else { global_rope }),
            attention: AttentionSpec {
                mask: windows.mask(b.i),
                sinks: Some(b.tensor("attn_sinks.weight", &[hp.heads[b.i]])?),
                ..hp.attention(b.i)
            },
            // Files store the norm under this name.
            ffn_norm: Some(b.norm("post_attention_norm")?),
            ..b.without_norms(ffn)?
        })
    })?;
    Ok(Decoder::new(w, &hp, norm, layers)?.into_architecture(&hp))
}
