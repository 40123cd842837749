//! Apertus: pre-norm decoder, normed query and key heads, feed-forward network with xIELU and
//! without a gate.
//! GGUF: `general.architecture = "apertus"`; the constants of xIELU are keys without the
//! architecture's prefix.

use puna_graph::*;

use crate::architecture::{LoadOptions, LoadedArchitecture};
use crate::decoder::{self, Decoder, Layer, NormKind, QkNorm};
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
    let norm = NormKind::Rms(keys.rms_eps()?);
    let rope = w.factored_rope(&RopeKeys::read(keys, hp.key_dim, hp.n_ctx)?, RopeKind::Neox)?;
    let constant = |name: &str| keys.numbers_per_layer(&format!("xielu.{name}"), hp.n_layer);
    let (alpha_p, alpha_n) = (constant("alpha_p")?, constant("alpha_n")?);
    let (beta, eps) = (constant("beta")?, constant("eps")?);
    let layers = decoder::layers(w, &hp, norm, |b| {
        let (i, beta) = (b.i, beta[b.i]);
        let (alpha_p, alpha_n) = (softplus(alpha_p[i]), beta + softplus(alpha_n[i]));
        let kind = Activation::Xielu { alpha_p, alpha_n, beta, eps: eps[i] };
        let ffn = b.ungated(kind)?;
        Ok(Layer {
            qk_norm: QkNorm::BeforeRope(b.head_norms()?),
            rope: Some(rope),
            ..b.pre_norm(ffn)?
        })
    })?;
    Ok(Decoder::new(w, &hp, norm, layers)?.into_architecture(&hp))
}

/// Keeps a trained constant positive.
fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { x.exp().ln_1p() }
}
