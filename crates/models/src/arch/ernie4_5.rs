//! ERNIE 4.5: a llama with tied output; the MoE form has dense layers first, then a mixture with a bias for choosing and experts that every
//! token uses.
//! GGUF: `general.architecture = "ernie4_5"` and `"ernie4_5-moe"`, and `"paddleocr"` for the language model of PaddleOCR-VL, whose heads turn
//! in halves, in sections that are all the same for text.

use puna_graph::*;

use crate::decoder::{self, Decoder, Layer, NormKind};
use crate::error::ModelError;
use crate::experts::ExpertShape;
use crate::hparams::{Hparams, Keys};
use crate::model::{LoadOptions, Loaded};
use crate::rope::RopeKeys;
use crate::weights::Weights;

pub(super) fn load(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<Loaded, ModelError> {
    load_turning(keys, w, RopeKind::Norm)
}

pub(super) fn load_ocr(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<Loaded, ModelError> {
    load_turning(keys, w, RopeKind::Neox)
}

fn load_turning(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    kind: RopeKind,
) -> Result<Loaded, ModelError> {
    let hp = Hparams::read(keys)?;
    let norm = NormKind::Rms(keys.rms_eps()?);
    let rope = w.rope(RopeKeys::read(keys, hp.key_dim, hp.n_ctx)?.table(kind, None));
    let experts = match keys.opt_count("expert_count")?.unwrap_or(0) {
        0 => None,
        _ => Some(Mixture::read(keys)?),
    };
    let layers = decoder::layers(w, &hp, norm, |b| {
        let ffn = match experts.as_ref().filter(|mixture| mixture.is_at(b.i)) {
            Some(mixture) => b.experts_beside(mixture.shape, mixture.shared)?,
            None => b.gated(Glu::Silu)?,
        };
        Ok(Layer { rope: Some(rope), ..b.pre_norm(ffn)? })
    })?;
    Ok(Decoder::new(w, &hp, norm, layers)?.loaded(&hp))
}

/// What the MoE form adds.
struct Mixture {
    shape: ExpertShape,
    /// Width of the experts that every token uses.
    shared: usize,
    /// Dense layers before the first mixture.
    dense: usize,
    /// One layer of so many is a mixture.
    step: usize,
}

impl Mixture {
    fn read(keys: &Keys<'_>) -> Result<Self, ModelError> {
        let hidden = keys.count("expert_feed_forward_length")?;
        let shape = ExpertShape {
            normalise: true,
            ..ExpertShape::read_all(keys, hidden, Gating::Softmax)?
        };
        Ok(Self {
            shape,
            shared: keys.shared_width(hidden)?,
            dense: keys.opt_count("leading_dense_block_count")?.unwrap_or(0),
            step: keys.count_or("interleave_moe_layer_step", 1)?,
        })
    }

    fn is_at(&self, i: usize) -> bool {
        i >= self.dense && (i + 1).is_multiple_of(self.step)
    }
}
