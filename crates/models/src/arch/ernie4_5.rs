//! ERNIE 4.5: a Llama with tied output matrix. The MoE model has dense layers first, then experts
//! with selection bias and shared experts.
//! GGUF: `general.architecture = "ernie4_5"` and `"ernie4_5-moe"`, and `"paddleocr"` for the
//! language model of PaddleOCR-VL, with split-half rotary embedding in sections that are equal for
//! text.

use puna_graph::*;

use crate::architecture::{LoadOptions, LoadedArchitecture};
use crate::decoder::{self, Decoder, Layer, NormKind};
use crate::error::ModelError;
use crate::experts::ExpertShape;
use crate::hparams::{Hparams, Keys};
use crate::rope::{RopeKeys, Sections};
use crate::weights::Weights;

pub(super) fn load(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<LoadedArchitecture, ModelError> {
    load_with_rope(keys, w, RopeKind::Norm)
}

pub(super) fn load_ocr(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<LoadedArchitecture, ModelError> {
    load_with_rope(keys, w, RopeKind::Neox)
}

fn load_with_rope(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    kind: RopeKind,
) -> Result<LoadedArchitecture, ModelError> {
    let hp = Hparams::read(keys)?;
    let norm = NormKind::Rms(keys.rms_eps()?);
    let rope = w.rope(
        RopeKeys::read(keys, hp.key_dim, hp.n_ctx)?
            .with_sections(keys, Sections::Consecutive)?
            .table(kind, None),
    );
    let experts = match keys.opt_count("expert_count")?.unwrap_or(0) {
        0 => None,
        _ => Some(ExpertLayers::read(keys)?),
    };
    let layers = decoder::layers(w, &hp, norm, |b| {
        let ffn = match experts.as_ref().filter(|experts| experts.is_at(b.i)) {
            Some(experts) => b.experts_with_shared(experts.shape, experts.shared)?,
            None => b.gated(Glu::Silu)?,
        };
        Ok(Layer { rope: Some(rope), ..b.pre_norm(ffn)? })
    })?;
    Ok(Decoder::new(w, &hp, norm, layers)?.into_architecture(&hp))
}

/// Expert layers of the MoE model.
struct ExpertLayers {
    shape: ExpertShape,
    /// Hidden dimension of the shared experts.
    shared: usize,
    /// Number of dense layers at the start.
    dense: usize,
    /// Interval of expert layers.
    step: usize,
}

impl ExpertLayers {
    fn read(keys: &Keys<'_>) -> Result<Self, ModelError> {
        let hidden = keys.count("expert_feed_forward_length")?;
        let shape = ExpertShape {
            normalize: true,
            ..ExpertShape::read_with_routing(keys, hidden, Gating::Softmax)?
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
