//! dots3-note's language model: latent attention with a gate for each head and a norm of what turns of the keys; layers with a window
//! have sizes of their own, the others see what a lightning indexer chooses.
//! GGUF: `general.architecture = "dots3note"`.

use puna_graph::*;

use crate::decoder::{self, Decoder, Layer, NormKind};
use crate::error::ModelError;
use crate::experts::ExpertShape;
use crate::hparams::{Hparams, Keys};
use crate::indexer::{Indexer, IndexerForm, KEY_EPS, SparseSelection};
use crate::latent::LatentSizes;
use crate::model::{LoadOptions, Loaded};
use crate::rope::RopeKeys;
use crate::weights::Weights;
use crate::windows::Windows;

pub(super) fn load(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<Loaded, ModelError> {
    let hp = Hparams::read(keys)?;
    let norm = NormKind::Rms(keys.rms_eps()?);
    let form = LatentSizes::read(keys, &hp, w)?;
    let local_form = form.read_local(keys)?;
    let thin = keys.count("attention.q_lora_rank")?;
    let indexer = IndexerForm::read(keys, form.qk_rope_dim)?;
    let rope_keys = RopeKeys::read(keys, form.key_dim(), hp.n_ctx)?;
    let rope = w.rope(rope_keys.table(RopeKind::Norm, None));
    // Neighbours turn in the indexer, too, as in the published model; llama.cpp turns halves, and so chooses others.
    let turned = (rope, 0);
    let local_keys = rope_keys.in_windows(keys, local_form.key_dim(), rope_keys.base)?;
    let local_keys = RopeKeys { dims: form.qk_rope_dim, ..local_keys };
    let local_rope = w.rope(local_keys.table(RopeKind::Norm, None));
    let windows = Windows::read(keys, keys.listed_sliding(hp.n_layer)?)?;
    let hidden = keys.count("expert_feed_forward_length")?;
    let (shape, shared) =
        (ExpertShape::read_all(keys, hidden, Gating::Sigmoid)?, keys.shared_width(hidden)?);
    let dense = keys.opt_count("leading_dense_block_count")?.unwrap_or(0);
    let layers = decoder::layers(w, &hp, norm, |b| {
        let ffn = if b.i < dense { b.gated(Glu::Silu)? } else { b.experts_beside(shape, shared)? };
        b.norm_of("attn_k_norm", &[form.qk_rope_dim])?;
        let gate = b.linear("attn_gate", hp.n_embd, hp.heads[b.i])?;
        let layer = match windows.slides(b.i) {
            true => {
                let layer = b.latent(local_form, local_rope, 1.0, ffn)?;
                Layer {
                    attention: AttentionSpec { mask: windows.mask(b.i), ..layer.attention },
                    ..layer
                }
            }
            false => {
                let selection = SparseSelection::Own(
                    Indexer::load(b, indexer, thin, (Some(turned), KEY_EPS))?.into(),
                );
                Layer { selection, ..b.latent(form, rope, 1.0, ffn)? }
            }
        };
        Ok(Layer { gate: Some((gate, Activation::Sigmoid)), ..layer })
    })?;
    Ok(Decoder::new(w, &hp, norm, layers)?.loaded(&hp))
}
