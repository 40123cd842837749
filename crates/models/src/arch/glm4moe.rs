//! GLM-4.5: pre-norm decoder, partial rotary embedding, dense layers first, then experts with
//! sigmoid routing and selection bias, and a shared expert. The larger model norms query and key
//! heads.
//! GGUF: `general.architecture = "glm4moe"`; the norm before the feed-forward network is stored as
//! `post_attention_norm`.

use puna_graph::*;

use crate::architecture::{LoadOptions, LoadedArchitecture};
use crate::decoder::{self, Decoder, Layer, NormKind, QkNorm};
use crate::error::ModelError;
use crate::experts::ExpertShape;
use crate::hparams::{Hparams, Keys};
use crate::rope::{RopeKeys, Sections};
use crate::weights::Weights;

pub(super) fn load(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<LoadedArchitecture, ModelError> {
    let hp = Hparams::read(keys)?;
    let norm = NormKind::Rms(keys.rms_eps()?);
    let rope = w.rope(
        RopeKeys::read(keys, hp.key_dim, hp.n_ctx)?
            .with_sections(keys, Sections::Consecutive)?
            .table(RopeKind::Neox, None),
    );
    let hidden = keys.count("expert_feed_forward_length")?;
    let shape = ExpertShape::read_with_routing(keys, hidden, Gating::Sigmoid)?;
    let dense = keys.opt_count("leading_dense_block_count")?.unwrap_or(0);
    let shared = keys.shared_width(hidden)?;
    let layers = decoder::layers(w, &hp, norm, |b| {
        let ffn =
            if b.i < dense { b.gated(Glu::Silu)? } else { b.experts_with_shared(shape, shared)? };
        let has_qk_norm = b.has("attn_q_norm.weight");
        Ok(Layer {
            attn_norm: Some(b.norm("attn_norm")?),
            qk_norm: if has_qk_norm { QkNorm::BeforeRope(b.head_norms()?) } else { QkNorm::None },
            rope: Some(rope),
            ffn_norm: Some(b.norm("post_attention_norm")?),
            ..b.without_norms(ffn)?
        })
    })?;
    Ok(Decoder::new(w, &hp, norm, layers)?.into_architecture(&hp))
}
