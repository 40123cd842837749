//! Talkie: norms without weights, also of the embeddings, which are added to the stream again after
//! each layer; norms of query and key heads after the rotary embedding, and a factor for each query
//! head.
//! GGUF: `general.architecture = "talkie"`.

use std::sync::Arc;

use puna_graph::*;

use crate::architecture::{LoadOptions, LoadedArchitecture};
use crate::decoder::{self, Decoder, Layer, LayerLoader, NormKind, QkNorm};
use crate::error::ModelError;
use crate::hparams::{Hparams, Keys};
use crate::rope::RopeKeys;
use crate::weights::{MappedBytes, Weights};

pub(super) fn load(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<LoadedArchitecture, ModelError> {
    let hp = Hparams::read(keys)?;
    let norm = NormKind::Rms(keys.rms_eps()?);
    let rope = w.rope(RopeKeys::read(keys, hp.key_dim, hp.n_ctx)?.table(RopeKind::Neox, None));
    let plain = norm.unweighted(hp.n_embd);
    let layers = decoder::layers(w, &hp, norm, |b| {
        let ffn = b.gated(Glu::Silu)?;
        let share = b.w.numbers(&format!("{}.layer_output_scale.weight", b.name), 1)?;
        Ok(Layer {
            attn_norm: Some(plain),
            rope: Some(rope),
            qk_norm: QkNorm::AfterRope([norm.unweighted(hp.key_dim); 2]),
            query_factors: Some(query_factors(b)?),
            ffn_norm: Some(plain),
            embd_skip_scale: share.map_or(0.0, |share| share[0]),
            ..b.without_norms(ffn)?
        })
    })?;
    Ok(Decoder {
        embd_norm: Some(plain),
        logit_scale: keys.opt_f32("logit_scale")?.unwrap_or(1.0),
        ..Decoder::with_norm(w, &hp, plain, layers)?
    }
    .into_architecture(&hp))
}

/// `attn_q_norm [1, heads]` as a row: the factor of each query head.
fn query_factors(b: &mut LayerLoader<'_, '_>) -> Result<WeightId, ModelError> {
    let (name, heads) = (format!("{}.attn_q_norm.weight", b.name), b.hp.heads[b.i]);
    b.w.derive(&name, &[heads], (&name, &[1, heads]), |bytes, ty| {
        (ty, Arc::new(MappedBytes(bytes)))
    })
}
