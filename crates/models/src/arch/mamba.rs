//! Mamba 1 and 2, and FalconMamba: each layer is a selective scan.
//! GGUF: `general.architecture = "mamba"` and `"mamba2"`.

use crate::architecture::{LoadOptions, LoadedArchitecture};
use crate::decoder::{self, LayerLoader, NormKind};
use crate::error::ModelError;
use crate::hparams::{Hparams, Keys};
use crate::hybrid::{Hybrid, HybridLayer, Mixer, SsmKeys};
use crate::mamba::{Mamba1, Mamba2};
use crate::weights::Weights;

pub(super) fn load(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<LoadedArchitecture, ModelError> {
    let (norm, ssm) = (NormKind::Rms(keys.rms_eps()?), SsmKeys::read(keys, false)?);
    // FalconMamba has norms without weights of time step, B and C.
    let normed = keys.flag("ssm.dt_b_c_rms")?;
    load_with(keys, w, norm, |b| Ok(Box::new(Mamba1::load(b, ssm, norm, normed)?)))
}

pub(super) fn load_2(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<LoadedArchitecture, ModelError> {
    let (norm, ssm) = (NormKind::Rms(keys.rms_eps()?), SsmKeys::read(keys, true)?);
    load_with(keys, w, norm, |b| Ok(Box::new(Mamba2::load(b, ssm)?)))
}

fn load_with(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    norm: NormKind,
    mixer: impl Fn(&mut LayerLoader<'_, '_>) -> Result<Box<dyn Mixer>, ModelError>,
) -> Result<LoadedArchitecture, ModelError> {
    let hp = Hparams::read_hybrid(keys)?;
    let layers = decoder::layers(w, &hp, norm, |b| {
        Ok(HybridLayer { norm: b.norm("attn_norm")?, mixers: vec![mixer(b)?], ffn: None })
    })?;
    Ok(Hybrid::new(w, &hp, norm, layers)?.into_architecture(&hp))
}
