//! Granite and MiniCPM: a llama with factors on embeddings, scores, logits and what layers add to the stream, and SwiGLU or a mixture of
//! experts; with sinks of attention and layers with a sliding window, some of which may not turn.
//! GGUF: `general.architecture = "granite"`, `"granitemoe"`, `"granite_swa"` and `"minicpm"`.

use puna_graph::*;

use crate::decoder::{self, Decoder, Layer, NormKind};
use crate::error::ModelError;
use crate::experts::ExpertShape;
use crate::hparams::{Hparams, Keys};
use crate::model::{LoadOptions, Loaded};
use crate::rope::RopeKeys;
use crate::weights::Weights;
use crate::windows::Windows;

/// Factors that a file need not name.
struct Factors {
    embd: f32,
    residual: f32,
    /// Logits are divided by it.
    logit: f32,
}

pub(super) fn load(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<Loaded, ModelError> {
    let hp = Hparams::read(keys)?;
    load_with(keys, w, &hp, Factors { embd: 1.0, residual: 1.0, logit: 1.0 })
}

pub(super) fn load_minicpm(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<Loaded, ModelError> {
    let hp = Hparams::read(keys)?;
    let residual = 1.4 / (hp.n_layer as f32).sqrt();
    load_with(keys, w, &hp, Factors { embd: 12.0, residual, logit: 256.0 / hp.n_embd as f32 })
}

fn load_with(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    hp: &Hparams,
    default: Factors,
) -> Result<Loaded, ModelError> {
    let norm = NormKind::Rms(keys.rms_eps()?);
    let rope = w.factored_rope(&RopeKeys::read(keys, hp.key_dim, hp.n_ctx)?, RopeKind::Norm)?;
    // "Not finetuned" is how these files say that nothing turns.
    let turns = keys.opt_bool("rope.scaling.finetuned")?.unwrap_or(true);
    let scale = keys.factor("attention.scale")?;
    let experts = keys.opt_count("expert_count")?.unwrap_or(0);
    let shared = keys.opt_count("expert_shared_feed_forward_length")?.unwrap_or(0);
    let sliding = keys.flags("attention.sliding_window_pattern", hp.n_layer)?;
    let windows = Windows::read_optional(keys, sliding.unwrap_or_else(|| vec![false; hp.n_layer]))?;
    let turning = keys.flags("attention.rope_pattern", hp.n_layer)?;
    let layers = decoder::layers(w, hp, norm, |b| {
        let ffn = if experts > 0 {
            let shape = ExpertShape { normalise: true, ..ExpertShape::read(keys, hp.ff(b.i))? };
            b.experts_beside(shape, shared)?
        } else {
            b.gated(Glu::Silu)?
        };
        let plain = hp.attention(b.i);
        let turns_here = turns && turning.as_ref().is_none_or(|turning| turning[b.i]);
        Ok(Layer {
            rope: turns_here.then_some(rope),
            attention: AttentionSpec {
                scale: scale.unwrap_or(plain.scale),
                mask: windows.mask(b.i),
                sinks: b.opt_tensor("attn_sinks.weight", &[plain.heads])?,
                ..plain
            },
            ..b.pre_norm(ffn)?
        })
    })?;
    Ok(Decoder {
        embd_scale: keys.factor("embedding_scale")?.unwrap_or(default.embd),
        residual_scale: keys.factor("residual_scale")?.unwrap_or(default.residual),
        logit_scale: 1.0 / keys.factor("logit_scale")?.unwrap_or(default.logit),
        ..Decoder::new(w, hp, norm, layers)?
    }
    .loaded(hp))
}
