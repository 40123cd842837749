//! Grok: norms before and after each part, soft-capped scores, experts with GELU gates and an
//! optional dense network parallel to them.
//! GGUF: `general.architecture = "grok"`; the default factors are Grok 1's.

use puna_graph::*;

use crate::architecture::{LoadOptions, LoadedArchitecture};
use crate::decoder::{self, Decoder, Layer, NormKind};
use crate::error::ModelError;
use crate::experts::ExpertShape;
use crate::hparams::{Hparams, Keys};
use crate::rope::{RopeKeys, Scaling};
use crate::weights::Weights;

/// Factors of embeddings, scores and logits in Grok 1.
const EMBEDDING_SCALE: f32 = 78.383_67;
const ATTENTION_SCALE: f32 = 0.088_388_35;
const LOGIT_SCALE: f32 = 0.577_350_26;
/// Rotations over the original context above which YaRN leaves a frequency unchanged.
const BETA_FAST: f32 = 8.0;

pub(super) fn load(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<LoadedArchitecture, ModelError> {
    let hp = Hparams::read(keys)?;
    let norm = NormKind::Rms(keys.rms_eps()?);
    let mut rope_keys = RopeKeys::read(keys, hp.key_dim, hp.n_ctx)?;
    if let Scaling::Yarn { beta_fast, .. } = &mut rope_keys.scaling {
        *beta_fast = keys.opt_f32("rope.scaling.yarn_beta_fast")?.unwrap_or(BETA_FAST);
    }
    let rope = w.rope(rope_keys.table(RopeKind::Neox, None));
    let scale = keys.factor("attention.output_scale")?.unwrap_or(ATTENTION_SCALE);
    let softcap =
        Some(keys.opt_f32("attn_logit_softcapping")?.unwrap_or(30.0)).filter(|&cap| cap > 0.0);
    let hidden = keys.opt_count("expert_feed_forward_length")?.filter(|&hidden| hidden > 0);
    let layers = decoder::layers(w, &hp, norm, |b| {
        let hidden = hidden.unwrap_or(hp.ff(b.i));
        let shape = ExpertShape {
            normalize: true,
            scale: keys.factor("expert_weights_scale")?.unwrap_or(1.0),
            glu: Glu::Gelu,
            ..ExpertShape::read(keys, hidden)?
        };
        let ffn = match b.has("ffn_up.weight") {
            true => b.experts_with_dense(shape)?.scaled(std::f32::consts::FRAC_1_SQRT_2),
            false => b.experts(shape)?,
        };
        let last = b.opt_norm("layer_output_norm")?;
        Ok(Layer {
            rope: Some(rope),
            attention: AttentionSpec { scale, softcap, ..hp.attention(b.i) },
            post_attn_norm: Some(b.norm("attn_output_norm")?),
            post_ffn_norm: Some(last.map_or_else(|| b.norm("post_ffw_norm"), Ok)?),
            ..b.pre_norm(ffn)?
        })
    })?;
    Ok(Decoder {
        embd_scale: keys.factor("embedding_scale")?.unwrap_or(EMBEDDING_SCALE),
        logit_scale: keys.factor("logit_scale")?.unwrap_or(LOGIT_SCALE),
        logit_cap: keys.opt_limit("final_logit_softcapping")?,
        ..Decoder::new(w, &hp, norm, layers)?
    }
    .into_architecture(&hp))
}
