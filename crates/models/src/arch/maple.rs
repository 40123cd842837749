//! Maple: experts with clamped activations, normed query and key heads; some layers have a sliding
//! window and rotary embedding, the others neither.
//! GGUF: `general.architecture = "maple"`.

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
    let windows = Windows::read(keys, keys.listed_sliding(hp.n_layer)?)?;
    let shape = ExpertShape {
        normalize: true,
        ..ExpertShape::read(keys, keys.count("expert_feed_forward_length")?)?
    };
    let limits = keys.limits_per_layer("swiglu_clamp_exp", hp.n_layer)?;
    let layers = decoder::layers(w, &hp, norm, |b| {
        let glu = limits[b.i].map_or(Glu::Silu, |limit| Glu::SiluOfClamped { limit });
        let ffn = b.experts(ExpertShape { glu, ..shape })?;
        Ok(Layer {
            qk_norm: QkNorm::BeforeRope(b.head_norms()?),
            rope: windows.has_window(b.i).then_some(rope),
            attention: AttentionSpec { mask: windows.mask(b.i), ..hp.attention(b.i) },
            ..b.pre_norm(ffn)?
        })
    })?;
    Ok(Decoder::new(w, &hp, norm, layers)?.into_architecture(&hp))
}
