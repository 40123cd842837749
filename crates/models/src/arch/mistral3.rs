//! Ministral 3: a Llama with a query scale that grows in steps of the original context length.
//! GGUF: `general.architecture = "mistral3"`.

use puna_graph::*;

use crate::architecture::{LoadOptions, LoadedArchitecture};
use crate::decoder::{self, Decoder, Layer, NormKind};
use crate::error::ModelError;
use crate::experts::ExpertShape;
use crate::hparams::{Hparams, Keys};
use crate::rope::RopeKeys;
use crate::weights::Weights;

pub(super) fn load(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<LoadedArchitecture, ModelError> {
    let hp = Hparams::read(keys)?;
    let norm = NormKind::Rms(keys.rms_eps()?);
    let rope_keys = RopeKeys::read(keys, hp.key_dim, hp.n_ctx)?;
    let rope = w.factored_rope(&rope_keys, RopeKind::Norm)?;
    let floor = rope_keys.original as u32;
    let temperature = keys
        .factor("attention.temperature_scale")?
        .map(|scale| AttnTemperatureSpec { scale, floor, offset: 0 });
    let experts = keys.opt_count("expert_count")?.unwrap_or(0);
    let layers = decoder::layers(w, &hp, norm, |b| {
        let ffn = if experts > 0 {
            b.experts(ExpertShape { normalize: true, ..ExpertShape::read(keys, hp.ff(b.i))? })?
        } else {
            b.gated(Glu::Silu)?
        };
        Ok(Layer { rope: Some(rope), temperature, ..b.pre_norm(ffn)? })
    })?;
    Ok(Decoder::new(w, &hp, norm, layers)?.into_architecture(&hp))
}
