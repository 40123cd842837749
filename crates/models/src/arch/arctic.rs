//! Snowflake Arctic: a Llama. Each layer adds a dense network as wide as the residual stream, and
//! experts that read the stream before attention.
//! GGUF: `general.architecture = "arctic"`.

use puna_graph::*;

use crate::architecture::{LoadOptions, LoadedArchitecture};
use crate::blocks::{Experts, FeedForward, Mlp};
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
    let eps = keys.rms_eps()?;
    let norm = NormKind::Rms(eps);
    let rope = w.rope(RopeKeys::read(keys, hp.key_dim, hp.n_ctx)?.table(RopeKind::Norm, None));
    let scale = keys.factor("expert_weights_scale")?.unwrap_or(1.0);
    let n = hp.n_embd;
    let layers = decoder::layers(w, &hp, norm, |b| {
        let shape = ExpertShape { normalize: true, scale, ..ExpertShape::read(keys, hp.ff(b.i))? };
        let ffn = FeedForward::ParallelExperts {
            dense: Mlp::load(b.w, &b.name, n, n, Glu::Silu)?,
            norm: b.w.norm(&format!("{}.ffn_norm_exps", b.name), n, eps)?,
            experts: Experts::load(b.w, &b.name, n, shape)?,
        };
        Ok(Layer { rope: Some(rope), early_router: true, ..b.pre_norm(ffn)? })
    })?;
    Ok(Decoder::new(w, &hp, norm, layers)?.into_architecture(&hp))
}
