//! Grok: norms before and after each part, soft-capped scores, a mixture of GELU units and perhaps one more that every token uses.
//! GGUF: `general.architecture = "grok"`; files that do not name the factors mean those of the first Grok.

use puna_graph::*;

use crate::decoder::{self, Decoder, Layer, NormKind};
use crate::error::ModelError;
use crate::experts::ExpertShape;
use crate::hparams::{Hparams, Keys};
use crate::model::{LoadOptions, Loaded};
use crate::rope::{RopeKeys, Scaling};
use crate::weights::Weights;

/// What the first Grok multiplies embeddings, scores and logits by.
const EMBEDDINGS: f32 = 78.383_67;
const SCORES: f32 = 0.088_388_35;
const LOGITS: f32 = 0.577_350_26;
/// Turns over the original context above which a frequency is kept.
const BETA_FAST: f32 = 8.0;

pub(super) fn load(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<Loaded, ModelError> {
    let hp = Hparams::read(keys)?;
    let norm = NormKind::Rms(keys.rms_eps()?);
    let mut rope_keys = RopeKeys::read(keys, hp.key_dim, hp.n_ctx)?;
    if let Scaling::Yarn { beta_fast, .. } = &mut rope_keys.scaling {
        *beta_fast = keys.opt_f32("rope.scaling.yarn_beta_fast")?.unwrap_or(BETA_FAST);
    }
    let rope = w.rope(rope_keys.table(RopeKind::Neox, None));
    let scale = keys.factor("attention.output_scale")?.unwrap_or(SCORES);
    let softcap =
        Some(keys.opt_f32("attn_logit_softcapping")?.unwrap_or(30.0)).filter(|&cap| cap > 0.0);
    let hidden = keys.opt_count("expert_feed_forward_length")?.filter(|&hidden| hidden > 0);
    let layers = decoder::layers(w, &hp, norm, |b| {
        let hidden = hidden.unwrap_or(hp.ff(b.i));
        let shape = ExpertShape {
            normalise: true,
            scale: keys.factor("expert_weights_scale")?.unwrap_or(1.0),
            glu: Glu::Gelu,
            ..ExpertShape::read(keys, hidden)?
        };
        let ffn = match b.has("ffn_up.weight") {
            true => b.experts_and_gated(shape)?.scaled(std::f32::consts::FRAC_1_SQRT_2),
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
        embd_scale: keys.factor("embedding_scale")?.unwrap_or(EMBEDDINGS),
        logit_scale: keys.factor("logit_scale")?.unwrap_or(LOGITS),
        logit_cap: keys.bound("final_logit_softcapping")?,
        ..Decoder::new(w, &hp, norm, layers)?
    }
    .loaded(&hp))
}
