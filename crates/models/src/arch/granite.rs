//! Granite and MiniCPM: a Llama with factors of embeddings, scores, logits and residual additions,
//! and SwiGLU or experts. Granite SWA has attention sinks and layers with a sliding window, some of
//! them without rotary embedding.
//! GGUF: `general.architecture = "granite"`, `"granitemoe"`, `"granite_swa"` and `"minicpm"`.

use puna_graph::*;

use crate::architecture::{LoadOptions, LoadedArchitecture};
use crate::decoder::{self, Decoder, Layer, NormKind};
use crate::error::ModelError;
use crate::experts::ExpertShape;
use crate::hparams::{Hparams, Keys};
use crate::rope::RopeKeys;
use crate::weights::Weights;
use crate::windows::Windows;

/// Default factors.
struct Factors {
    embd: f32,
    residual: f32,
    /// Divisor of the logits.
    logit: f32,
}

pub(super) fn load(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<LoadedArchitecture, ModelError> {
    let hp = Hparams::read(keys)?;
    load_with(keys, w, &hp, Factors { embd: 1.0, residual: 1.0, logit: 1.0 })
}

pub(super) fn load_minicpm(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<LoadedArchitecture, ModelError> {
    let hp = Hparams::read(keys)?;
    let residual = 1.4 / (hp.n_layer as f32).sqrt();
    load_with(keys, w, &hp, Factors { embd: 12.0, residual, logit: 256.0 / hp.n_embd as f32 })
}

fn load_with(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    hp: &Hparams,
    default: Factors,
) -> Result<LoadedArchitecture, ModelError> {
    let norm = NormKind::Rms(keys.rms_eps()?);
    let rope = w.factored_rope(&RopeKeys::read(keys, hp.key_dim, hp.n_ctx)?, RopeKind::Norm)?;
    // In these files, `finetuned = false` means that no layer has rotary embedding.
    let uses_rope = keys.opt_bool("rope.scaling.finetuned")?.unwrap_or(true);
    let scale = keys.factor("attention.scale")?;
    let experts = keys.opt_count("expert_count")?.unwrap_or(0);
    let shared = keys.opt_count("expert_shared_feed_forward_length")?.unwrap_or(0);
    let sliding = keys.flags("attention.sliding_window_pattern", hp.n_layer)?;
    let windows = Windows::read_optional(keys, sliding.unwrap_or_else(|| vec![false; hp.n_layer]))?;
    let rope_pattern = keys.flags("attention.rope_pattern", hp.n_layer)?;
    let layers = decoder::layers(w, hp, norm, |b| {
        let ffn = if experts > 0 {
            let shape = ExpertShape { normalize: true, ..ExpertShape::read(keys, hp.ff(b.i))? };
            b.experts_with_shared(shape, shared)?
        } else {
            b.gated(Glu::Silu)?
        };
        let plain = hp.attention(b.i);
        let has_rope =
            uses_rope && rope_pattern.as_ref().is_none_or(|rope_pattern| rope_pattern[b.i]);
        Ok(Layer {
            rope: has_rope.then_some(rope),
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
    .into_architecture(hp))
}
