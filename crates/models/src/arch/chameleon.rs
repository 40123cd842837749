//! Chameleon: a llama whose query and key heads are normed by mean and variance, each with weights of its own; the larger form norms what
//! parts give instead of what they read. Its tokens are text and pieces of images, of which it says none.
//! GGUF: `general.architecture = "chameleon"`.

use std::ops::Range;

use puna_graph::*;

use crate::decoder::{self, Decoder, Layer, NormKind, QkNorm};
use crate::error::ModelError;
use crate::hparams::{Hparams, Keys};
use crate::model::{LoadOptions, Loaded};
use crate::rope::RopeKeys;
use crate::weights::Weights;

/// Of the norms of heads: files name that of the others alone.
const HEADS_EPS: f32 = 1e-5;
/// Tokens that are pieces of images, in every published vocabulary.
const PIECES: Range<usize> = 4..8196;

pub(super) fn load(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<Loaded, ModelError> {
    let hp = Hparams::read(keys)?;
    let norm = NormKind::Rms(keys.rms_eps()?);
    let rope = w.rope(RopeKeys::read(keys, hp.key_dim, hp.n_ctx)?.table(RopeKind::Norm, None));
    let norms_results = keys.flag("swin_norm")?;
    let layers = decoder::layers(w, &hp, norm, |b| {
        let ffn = b.gated(Glu::Silu)?;
        let mut of_heads = |part: &str, heads| {
            NormKind::Layer(HEADS_EPS).load(
                b.w,
                &format!("{}.{part}", b.name),
                &[hp.key_dim, heads],
            )
        };
        let norms =
            [of_heads("attn_q_norm", hp.heads[b.i])?, of_heads("attn_k_norm", hp.kv_heads[b.i])?];
        let plain = b.pre_norm(ffn)?;
        let (attn_norm, ffn_norm) = (plain.attn_norm, plain.ffn_norm);
        let plain = Layer { qk_norm: QkNorm::Before(norms), rope: Some(rope), ..plain };
        Ok(match norms_results {
            true => Layer {
                attn_norm: None,
                post_attn_norm: attn_norm,
                ffn_norm: None,
                post_ffn_norm: ffn_norm,
                ..plain
            },
            false => plain,
        })
    })?;
    let mut decoder = Decoder::new(w, &hp, norm, layers)?;
    decoder.head.bias = decoder.head.bias.or_else(|| silence(w, hp.n_vocab));
    Ok(decoder.loaded(&hp))
}

/// Added to logits: as little as there can be for pieces of images, where the vocabulary has them.
fn silence(w: &mut Weights<'_>, n_vocab: usize) -> Option<WeightId> {
    let of = |token| if PIECES.contains(&token) { f32::MIN } else { 0.0 };
    let biases: Vec<f32> = (0..n_vocab).map(of).collect();
    (n_vocab >= PIECES.end).then(|| w.constant("image_tokens", &[n_vocab], &biases))
}
