//! SmallThinker: experts with ReLU gates. The router reads the residual stream before attention.
//! One layer without window and rotary embedding alternates with three layers with both.
//! GGUF: `general.architecture = "smallthinker"`.

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
    let rope_keys = RopeKeys::read(keys, hp.key_dim, hp.n_ctx)?;
    let local_keys = rope_keys.for_windows(keys, hp.key_dim, rope_keys.base)?;
    let rope = w.rope(local_keys.table(RopeKind::Neox, None));
    let windows = Windows::read_optional(keys, keys.sliding_except_first(hp.n_layer, 4)?)?;
    let hidden = keys.opt_count("expert_feed_forward_length")?.filter(|&hidden| hidden > 0);
    let layers = decoder::layers(w, &hp, norm, |b| {
        let hidden = hidden.unwrap_or(hp.ff(b.i));
        let shape = ExpertShape::read_with_routing(keys, hidden, Gating::Softmax)?;
        let ffn = b.experts(ExpertShape { normalize: true, glu: Glu::Relu, ..shape })?;
        Ok(Layer {
            // Without windows, every layer has rotary embedding.
            rope: (windows.has_window(b.i) || !windows.is_enabled()).then_some(rope),
            attention: AttentionSpec { mask: windows.mask(b.i), ..hp.attention(b.i) },
            early_router: true,
            ..b.pre_norm(ffn)?
        })
    })?;
    Ok(Decoder::new(w, &hp, norm, layers)?.into_architecture(&hp))
}
