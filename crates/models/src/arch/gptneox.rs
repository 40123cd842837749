//! GPT-NeoX (Pythia and others): layer norms, fused projections, partial rotary embedding, a GELU
//! network parallel to attention or after it.
//! GGUF: `general.architecture = "gptneox"`.

use puna_graph::*;

use crate::architecture::{LoadOptions, LoadedArchitecture};
use crate::decoder::{self, Decoder, Layer, NormKind};
use crate::error::ModelError;
use crate::hparams::{Hparams, Keys};
use crate::rope::RopeKeys;
use crate::weights::Weights;

pub(super) fn load(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<LoadedArchitecture, ModelError> {
    let hp = Hparams::read(keys)?;
    let norm = NormKind::Layer(keys.layer_eps()?);
    let rope = w.rope(RopeKeys::read(keys, hp.key_dim, hp.n_ctx)?.table(RopeKind::Neox, None));
    let parallel = keys.flag("use_parallel_residual")?;
    let layers = decoder::layers(w, &hp, norm, |b| {
        let ffn = b.ungated(Activation::GeluErf)?;
        Ok(Layer { rope: Some(rope), parallel, ..b.pre_norm(ffn)? })
    })?;
    Ok(Decoder::new(w, &hp, norm, layers)?.into_architecture(&hp))
}
