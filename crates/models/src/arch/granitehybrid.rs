//! Granite 4 and Bamba: layers of Mamba 2 and some of attention; Granite's factors; SwiGLU or
//! experts.
//! GGUF: `general.architecture = "granitehybrid"`.

use puna_graph::*;

use crate::architecture::{LoadOptions, LoadedArchitecture};
use crate::decoder::{self, Decoder, NormKind};
use crate::error::ModelError;
use crate::experts::ExpertShape;
use crate::hparams::{Hparams, Keys};
use crate::hybrid::{Attention, Hybrid, HybridLayer, Mixer, SsmKeys};
use crate::mamba::Mamba2;
use crate::rope::RopeKeys;
use crate::weights::Weights;

pub(super) fn load(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<LoadedArchitecture, ModelError> {
    let hp = Hparams::read_hybrid(keys)?;
    let (norm, ssm) = (NormKind::Rms(keys.rms_eps()?), SsmKeys::read(keys, true)?);
    let rope = w.factored_rope(&RopeKeys::read(keys, hp.key_dim, hp.n_ctx)?, RopeKind::Norm)?;
    // In these files, `finetuned = false` means that no layer has rotary embedding.
    let rope = keys.opt_bool("rope.scaling.finetuned")?.unwrap_or(true).then_some(rope);
    let scale = keys.factor("attention.scale")?;
    let experts = keys.opt_count("expert_count")?.unwrap_or(0);
    let shared = keys.opt_count("expert_shared_feed_forward_length")?.unwrap_or(0);
    let layers = decoder::layers(w, &hp, norm, |b| {
        let mixer: Box<dyn Mixer> = if hp.kv_heads[b.i] == 0 {
            Box::new(Mamba2::load(b, ssm)?)
        } else {
            let plain = Attention::load(b, false)?;
            let spec = AttentionSpec { scale: scale.unwrap_or(plain.spec.scale), ..plain.spec };
            Box::new(Attention { rope, spec, ..plain })
        };
        let ffn = if experts > 0 {
            let shape = ExpertShape { normalize: true, ..ExpertShape::read(keys, hp.ff(b.i))? };
            b.experts_with_shared(shape, shared)?
        } else {
            b.gated(Glu::Silu)?
        };
        let ffn = Some((b.norm("ffn_norm")?, ffn));
        Ok(HybridLayer { norm: b.norm("attn_norm")?, mixers: vec![mixer], ffn })
    })?;
    let around = Decoder {
        embd_scale: keys.factor("embedding_scale")?.unwrap_or(1.0),
        residual_scale: keys.factor("residual_scale")?.unwrap_or(1.0),
        logit_scale: 1.0 / keys.factor("logit_scale")?.unwrap_or(1.0),
        ..Decoder::new(w, &hp, norm, Vec::new())?
    };
    Ok(Hybrid::with_outer(around, layers).into_architecture(&hp))
}
