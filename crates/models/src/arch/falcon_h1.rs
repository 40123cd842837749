//! Falcon-H1: attention and Mamba 2 in parallel in every layer, then SwiGLU.
//! GGUF: `general.architecture = "falcon-h1"`.

use puna_graph::{Glu, Norm, RopeKind};

use crate::architecture::{LoadOptions, LoadedArchitecture};
use crate::decoder::{self, AnyNorm, NormKind};
use crate::error::ModelError;
use crate::hparams::{Hparams, Keys};
use crate::hybrid::{Attention, Hybrid, HybridLayer, SsmKeys};
use crate::mamba::Mamba2;
use crate::rope::RopeKeys;
use crate::weights::Weights;

pub(super) fn load(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<LoadedArchitecture, ModelError> {
    let hp = Hparams::read(keys)?;
    let (eps, ssm) = (keys.rms_eps()?, SsmKeys::read(keys, true)?);
    let norm = NormKind::Rms(eps);
    let rope = w.factored_rope(&RopeKeys::read(keys, hp.key_dim, hp.n_ctx)?, RopeKind::Neox)?;
    let layers = decoder::layers(w, &hp, norm, |b| {
        let attention = Attention { rope: Some(rope), ..Attention::load(b, false)? };
        let mamba = Mamba2::load(b, ssm)?;
        // Files store this norm without the suffix `.weight`.
        let ffn_norm = match b.opt_tensor("ffn_norm", &[hp.n_embd])? {
            Some(w) => AnyNorm::Rms(Norm { w: Some(w), b: None, dim: hp.n_embd, eps }),
            None => b.norm("ffn_norm")?,
        };
        Ok(HybridLayer {
            norm: b.norm("attn_norm")?,
            mixers: vec![Box::new(attention), Box::new(mamba)],
            ffn: Some((ffn_norm, b.gated(Glu::Silu)?)),
        })
    })?;
    Ok(Hybrid::new(w, &hp, norm, layers)?.into_architecture(&hp))
}
