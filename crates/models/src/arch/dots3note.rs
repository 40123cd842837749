//! dots3-note's language model: latent attention with a gate per head and a norm of the rotated key
//! dimensions. Layers with a sliding window have dimensions of their own; the others have sparse
//! attention with a lightning indexer.
//! GGUF: `general.architecture = "dots3note"`.

use puna_graph::*;

use crate::architecture::{LoadOptions, LoadedArchitecture};
use crate::decoder::{self, Decoder, Layer, NormKind};
use crate::error::ModelError;
use crate::experts::ExpertShape;
use crate::hparams::{Hparams, Keys};
use crate::indexer::{Indexer, IndexerSizes, KEY_EPS, SparseSelection};
use crate::latent::LatentSizes;
use crate::rope::RopeKeys;
use crate::weights::Weights;
use crate::windows::Windows;

pub(super) fn load(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<LoadedArchitecture, ModelError> {
    let hp = Hparams::read(keys)?;
    let norm = NormKind::Rms(keys.rms_eps()?);
    let sizes = LatentSizes::read(keys, &hp, w)?;
    let local_form = sizes.read_local(keys)?;
    let q_lora_rank = keys.count("attention.q_lora_rank")?;
    let indexer = IndexerSizes::read(keys, sizes.qk_rope_dim)?;
    let rope_keys = RopeKeys::read(keys, sizes.key_dim(), hp.n_ctx)?;
    let rope = w.rope(rope_keys.table(RopeKind::Norm, None));
    // The indexer rotates adjacent pairs, as the published model does. llama.cpp rotates split
    // halves and so selects other positions.
    let indexer_rope = (rope, 0);
    let local_keys = rope_keys.for_windows(keys, local_form.key_dim(), rope_keys.base)?;
    let local_keys = RopeKeys { dims: sizes.qk_rope_dim, ..local_keys };
    let local_rope = w.rope(local_keys.table(RopeKind::Norm, None));
    let windows = Windows::read(keys, keys.listed_sliding(hp.n_layer)?)?;
    let hidden = keys.count("expert_feed_forward_length")?;
    let (shape, shared) = (
        ExpertShape::read_with_routing(keys, hidden, Gating::Sigmoid)?,
        keys.shared_width(hidden)?,
    );
    let dense = keys.opt_count("leading_dense_block_count")?.unwrap_or(0);
    let layers = decoder::layers(w, &hp, norm, |b| {
        let ffn =
            if b.i < dense { b.gated(Glu::Silu)? } else { b.experts_with_shared(shape, shared)? };
        b.norm_of("attn_k_norm", &[sizes.qk_rope_dim])?;
        let gate = b.linear("attn_gate", hp.n_embd, hp.heads[b.i])?;
        let layer = match windows.has_window(b.i) {
            true => {
                let layer = b.latent(local_form, local_rope, 1.0, ffn)?;
                Layer {
                    attention: AttentionSpec { mask: windows.mask(b.i), ..layer.attention },
                    ..layer
                }
            }
            false => {
                let selection = SparseSelection::Own(
                    Indexer::load(b, indexer, q_lora_rank, (Some(indexer_rope), KEY_EPS))?.into(),
                );
                Layer { selection, ..b.latent(sizes, rope, 1.0, ffn)? }
            }
        };
        Ok(Layer { gate: Some((gate, Activation::Sigmoid)), ..layer })
    })?;
    Ok(Decoder::new(w, &hp, norm, layers)?.into_architecture(&hp))
}
