//! MPT: pre-norm decoder with layer norms and a GELU network without a gate; ALiBi or learned
//! positions, optional biases and norms of query and key, clamped query, key and value.
//! GGUF: `general.architecture = "mpt"`.

use puna_graph::*;

use crate::architecture::{LoadOptions, LoadedArchitecture};
use crate::decoder::{self, Decoder, Layer, NormKind, QkNorm};
use crate::error::ModelError;
use crate::hparams::{Hparams, Keys};
use crate::weights::Weights;

pub(super) fn load(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<LoadedArchitecture, ModelError> {
    let hp = Hparams::read(keys)?;
    let norm = NormKind::Layer(keys.layer_eps()?);
    let (alibi, clamp) =
        (keys.factor("attention.max_alibi_bias")?, keys.opt_limit("attention.clamp_kqv")?);
    let layers = decoder::layers(w, &hp, norm, |b| {
        let ffn = b.ungated(Activation::GeluTanh)?;
        let has_qk_norm = b.has("attn_q_norm.weight");
        Ok(Layer {
            clamp,
            qk_norm: if has_qk_norm {
                QkNorm::BeforeRope(b.projection_norms()?)
            } else {
                QkNorm::None
            },
            attention: AttentionSpec { alibi, ..hp.attention(b.i) },
            ..b.pre_norm(ffn)?
        })
    })?;
    let positions = w.opt("position_embd.weight", &[hp.n_embd, hp.n_ctx])?;
    Ok(Decoder { positions, ..Decoder::new(w, &hp, norm, layers)? }.into_architecture(&hp))
}
