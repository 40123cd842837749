//! Jamba: layers of Mamba 1 with norms of time step, B and C, and some layers of attention without
//! rotary embedding; SwiGLU or experts after each.
//! GGUF: `general.architecture = "jamba"`.

use puna_graph::Glu;

use crate::architecture::{LoadOptions, LoadedArchitecture};
use crate::decoder::{self, NormKind};
use crate::error::ModelError;
use crate::experts::ExpertShape;
use crate::hparams::{Hparams, Keys};
use crate::hybrid::{Attention, Hybrid, HybridLayer, Mixer, SsmKeys};
use crate::mamba::Mamba1;
use crate::weights::Weights;

pub(super) fn load(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<LoadedArchitecture, ModelError> {
    let hp = Hparams::read_hybrid(keys)?;
    let (norm, ssm) = (NormKind::Rms(keys.rms_eps()?), SsmKeys::read(keys, false)?);
    let layers = decoder::layers(w, &hp, norm, |b| {
        let mixer: Box<dyn Mixer> = match hp.kv_heads[b.i] {
            0 => Box::new(Mamba1::load(b, ssm, norm, false)?),
            _ => Box::new(Attention::load(b, false)?),
        };
        let ffn = if b.has("ffn_gate_inp.weight") {
            b.experts(ExpertShape::read(keys, hp.ff(b.i))?)?
        } else {
            b.gated(Glu::Silu)?
        };
        let ffn = Some((b.norm("ffn_norm")?, ffn));
        Ok(HybridLayer { norm: b.norm("attn_norm")?, mixers: vec![mixer], ffn })
    })?;
    Ok(Hybrid::new(w, &hp, norm, layers)?.into_architecture(&hp))
}
