//! SmallThinker: a mixture whose router reads the stream before attention, ReLU units; one layer that sees everything and does not turn
//! before each three with a sliding window.
//! GGUF: `general.architecture = "smallthinker"`.

use puna_graph::*;

use crate::decoder::{self, Decoder, Layer, NormKind};
use crate::error::ModelError;
use crate::experts::ExpertShape;
use crate::hparams::{Hparams, Keys};
use crate::model::{LoadOptions, Loaded};
use crate::rope::RopeKeys;
use crate::weights::Weights;

pub(super) fn load(keys: &Keys<'_>, w: &mut Weights<'_>, _: LoadOptions) -> Result<Loaded, ModelError> {
    let hp = Hparams::read(keys)?;
    let norm = NormKind::Rms(keys.rms_eps()?);
    let rope = w.rope(RopeKeys::read(keys, hp.key_dim, hp.n_ctx)?.table(RopeKind::Neox, None));
    let window = keys.opt_count("attention.sliding_window")?.filter(|&w| w > 0);
    let sliding = keys.sliding_but_first(hp.n_layer, 4)?;
    let hidden = keys.opt_count("expert_feed_forward_length")?.filter(|&hidden| hidden > 0);
    let layers = decoder::layers(w, &hp, norm, |b| {
        let hidden = hidden.unwrap_or(hp.ff(b.i));
        let shape = ExpertShape::read_all(keys, hidden, Gating::Softmax)?;
        let ffn = b.experts(ExpertShape { normalise: true, glu: Glu::Relu, ..shape })?;
        // Without windows, every layer turns.
        let local = window.filter(|_| sliding[b.i]);
        Ok(Layer {
            rope: (local.is_some() || window.is_none()).then_some(rope),
            attention: AttentionSpec {
                mask: local.map_or(Mask::Causal, |w| Mask::Window(w as u32)),
                ..hp.attention(b.i)
            },
            early_router: true,
            ..b.pre_norm(ffn)?
        })
    })?;
    Ok(Decoder::new(w, &hp, norm, layers)?.loaded(&hp))
}
