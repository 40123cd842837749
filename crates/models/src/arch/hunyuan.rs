//! Hunyuan: pre-norm decoder, norms of query and key heads after the rotary embedding, SwiGLU, or
//! experts with a shared expert.
//! GGUF: `general.architecture = "hunyuan-dense"` and `"hunyuan-moe"`, `"hunyuan_vl"` for the
//! language model of HunyuanOCR, and `"maincoder"`, with adjacent-pair rotary embedding.

use puna_graph::*;

use crate::architecture::{LoadOptions, LoadedArchitecture};
use crate::decoder::{self, Decoder, Layer, NormKind, QkNorm};
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
    load_with(keys, w, RopeKind::Neox)
}

pub(super) fn load_maincoder(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<LoadedArchitecture, ModelError> {
    load_with(keys, w, RopeKind::Norm)
}

fn load_with(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    rope: RopeKind,
) -> Result<LoadedArchitecture, ModelError> {
    let hp = Hparams::read(keys)?;
    let norm = NormKind::Rms(keys.rms_eps()?);
    let rope = w.rope(
        RopeKeys::read(keys, hp.key_dim, hp.n_ctx)?
            .with_sections(keys, Sections::Consecutive)?
            .table(rope, None),
    );
    let experts = keys.opt_count("expert_count")?.unwrap_or(0);
    let layers = decoder::layers(w, &hp, norm, |b| {
        let ffn = if experts > 0 {
            let shape = ExpertShape { normalize: true, ..ExpertShape::read(keys, hp.ff(b.i))? };
            b.experts_with_shared(shape, keys.count("expert_shared_feed_forward_length")?)?
        } else {
            b.gated(Glu::Silu)?
        };
        Ok(Layer {
            qk_norm: QkNorm::AfterRope(b.head_norms()?),
            rope: Some(rope),
            ..b.pre_norm(ffn)?
        })
    })?;
    Ok(Decoder::new(w, &hp, norm, layers)?.into_architecture(&hp))
}
