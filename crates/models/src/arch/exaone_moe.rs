//! EXAONE with experts: normed query and key heads; three layers with a sliding window and rotary
//! embedding alternate with one layer without either. Dense layers first, then experts and shared
//! experts.
//! GGUF: `general.architecture = "exaone-moe"`.

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
    let rope = w.factored_rope(&RopeKeys::read(keys, hp.key_dim, hp.n_ctx)?, RopeKind::Neox)?;
    let windows = Windows::read(keys, keys.sliding(hp.n_layer, 4)?)?;
    let hidden = keys.count("expert_feed_forward_length")?;
    let (shape, shared) = (
        ExpertShape::read_with_routing(keys, hidden, Gating::Sigmoid)?,
        keys.shared_width(hidden)?,
    );
    let dense = keys.opt_count("leading_dense_block_count")?.unwrap_or(0);
    let layers = decoder::layers(w, &hp, norm, |b| {
        let ffn =
            if b.i < dense { b.gated(Glu::Silu)? } else { b.experts_with_shared(shape, shared)? };
        Ok(Layer {
            qk_norm: QkNorm::BeforeRope(b.head_norms()?),
            rope: windows.has_window(b.i).then_some(rope),
            attention: AttentionSpec { mask: windows.mask(b.i), ..hp.attention(b.i) },
            ..b.pre_norm(ffn)?
        })
    })?;
    Ok(Decoder::new(w, &hp, norm, layers)?.into_architecture(&hp))
}
