//! Chameleon: a Llama with layer norms of query and key heads, with own weights for each head. The
//! larger model norms the outputs of parts instead of their inputs. The vocabulary contains image
//! tokens, which text generation never predicts.
//! GGUF: `general.architecture = "chameleon"`.

use std::ops::Range;

use puna_graph::*;

use crate::architecture::{LoadOptions, LoadedArchitecture};
use crate::decoder::{self, Decoder, Layer, NormKind, QkNorm};
use crate::error::ModelError;
use crate::hparams::{Hparams, Keys};
use crate::rope::RopeKeys;
use crate::weights::Weights;

/// Epsilon of the head norms; the file's key is that of the other norms.
const HEADS_EPS: f32 = 1e-5;
/// Image tokens in every published vocabulary.
const IMAGE_TOKENS: Range<usize> = 4..8196;

pub(super) fn load(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<LoadedArchitecture, ModelError> {
    let hp = Hparams::read(keys)?;
    let norm = NormKind::Rms(keys.rms_eps()?);
    let rope = w.rope(RopeKeys::read(keys, hp.key_dim, hp.n_ctx)?.table(RopeKind::Norm, None));
    let norms_results = keys.flag("swin_norm")?;
    let layers = decoder::layers(w, &hp, norm, |b| {
        let ffn = b.gated(Glu::Silu)?;
        let mut per_head = |part: &str, heads| {
            NormKind::Layer(HEADS_EPS).load(
                b.w,
                &format!("{}.{part}", b.name),
                &[hp.key_dim, heads],
            )
        };
        let norms =
            [per_head("attn_q_norm", hp.heads[b.i])?, per_head("attn_k_norm", hp.kv_heads[b.i])?];
        let plain = b.pre_norm(ffn)?;
        let (attn_norm, ffn_norm) = (plain.attn_norm, plain.ffn_norm);
        let plain = Layer { qk_norm: QkNorm::BeforeRope(norms), rope: Some(rope), ..plain };
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
    decoder.head.bias = decoder.head.bias.or_else(|| image_token_bias(w, hp.n_vocab));
    Ok(decoder.into_architecture(&hp))
}

/// Bias of the logits that excludes image tokens, if the vocabulary has them.
fn image_token_bias(w: &mut Weights<'_>, n_vocab: usize) -> Option<WeightId> {
    let of = |token| if IMAGE_TOKENS.contains(&token) { f32::MIN } else { 0.0 };
    let biases: Vec<f32> = (0..n_vocab).map(of).collect();
    (n_vocab >= IMAGE_TOKENS.end).then(|| w.constant("image_tokens", &[n_vocab], &biases))
}
