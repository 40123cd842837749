//! DeepSeek 3.2 and GLM 5: the third DeepSeek, whose attention sees what a lightning indexer has chosen; GLM's later layers share
//! what an earlier one chose.
//! GGUF: `general.architecture = "deepseek32"` and `"glm-dsa"`.

use puna_graph::*;

use crate::decoder::{self, Decoder, Layer, NormKind};
use crate::error::ModelError;
use crate::experts::ExpertShape;
use crate::hparams::{Hparams, Keys};
use crate::indexer::{self, Indexer, IndexerForm, KEY_EPS, SparseSelection};
use crate::latent::LatentSizes;
use crate::model::{LoadOptions, Loaded};
use crate::rope::RopeKeys;
use crate::weights::Weights;

/// The context of the first GLM 5 whose layers share indexers.
const SHARING_CONTEXT: usize = 1 << 20;

pub(super) fn load(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<Loaded, ModelError> {
    let hp = Hparams::read(keys)?;
    let owners = vec![true; hp.n_layer];
    load_with(keys, w, &hp, RopeKind::Neox, &owners)
}

pub(super) fn load_glm(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<Loaded, ModelError> {
    let hp = Hparams::read(keys)?;
    // Files of 5.2 may leave out what they mean: the first two layers choose, then the first of each four.
    let chooses = |i: usize| hp.n_ctx < SHARING_CONTEXT || i < 2 || (i - 2).is_multiple_of(4);
    let owners = indexer::owners(keys, hp.n_layer)?
        .unwrap_or_else(|| (0..hp.n_layer).map(chooses).collect());
    load_with(keys, w, &hp, RopeKind::Norm, &owners)
}

/// Layers of which these have indexers, whose heads turn first features in pairs of this kind.
fn load_with(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    hp: &Hparams,
    kind: RopeKind,
    owners: &[bool],
) -> Result<Loaded, ModelError> {
    let norm = NormKind::Rms(keys.rms_eps()?);
    let form = LatentSizes::read(keys, hp, w)?;
    let thin = keys.count("attention.q_lora_rank")?;
    let indexer = IndexerForm::read(keys, form.qk_rope_dim)?;
    let (rope_keys, sharper) = RopeKeys::read(keys, form.key_dim(), hp.n_ctx)?.sharpened(false);
    let rope = w.rope(rope_keys.table(RopeKind::Norm, None));
    let turned = (w.rope(rope_keys.table(kind, None)), 0);
    let hidden = keys.count("expert_feed_forward_length")?;
    let (shape, shared) =
        (ExpertShape::read_all(keys, hidden, Gating::Sigmoid)?, keys.shared_width(hidden)?);
    let dense = keys.opt_count("leading_dense_block_count")?.unwrap_or(0);
    let layers = decoder::layers(w, hp, norm, |b| {
        let ffn = if b.i < dense { b.gated(Glu::Silu)? } else { b.experts_beside(shape, shared)? };
        let selection = match owners[b.i] {
            true => SparseSelection::Own(
                Indexer::load(b, indexer, thin, (Some(turned), KEY_EPS))?.into(),
            ),
            false => SparseSelection::Shared,
        };
        Ok(Layer { selection, ..b.latent(form, rope, sharper, ffn)? })
    })?;
    Ok(Decoder::new(w, hp, norm, layers)?.loaded(hp))
}
