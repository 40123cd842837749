//! DeepSeek 3.2 and GLM 5: DeepSeek 3 with sparse attention to the positions that a lightning
//! indexer selects. Some layers of GLM 5 share the selection of an earlier layer.
//! GGUF: `general.architecture = "deepseek32"` and `"glm-dsa"`.

use puna_graph::*;

use crate::architecture::{LoadOptions, LoadedArchitecture};
use crate::decoder::{self, Decoder, Layer, NormKind};
use crate::error::ModelError;
use crate::experts::ExpertShape;
use crate::hparams::{Hparams, Keys};
use crate::indexer::{self, Indexer, IndexerSizes, KEY_EPS, SparseSelection};
use crate::latent::LatentSizes;
use crate::rope::RopeKeys;
use crate::weights::Weights;

/// Training context of GLM 5.2, the first model with indexers shared between layers, in tokens.
const SHARING_CONTEXT: usize = 1 << 20;

pub(super) fn load(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<LoadedArchitecture, ModelError> {
    let hp = Hparams::read(keys)?;
    let owners = vec![true; hp.n_layer];
    load_with(keys, w, &hp, RopeKind::Neox, &owners)
}

pub(super) fn load_glm(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<LoadedArchitecture, ModelError> {
    let hp = Hparams::read(keys)?;
    // Files of GLM 5.2 may lack the list: the first two layers have indexers, then the first of
    // each four.
    let has_indexer = |i: usize| hp.n_ctx < SHARING_CONTEXT || i < 2 || (i - 2).is_multiple_of(4);
    let owners = indexer::owners(keys, hp.n_layer)?
        .unwrap_or_else(|| (0..hp.n_layer).map(has_indexer).collect());
    load_with(keys, w, &hp, RopeKind::Norm, &owners)
}

/// Loads the model; `owners` are the layers with an indexer, `kind` is the rotary pairing of the
/// first dimensions of its heads.
fn load_with(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    hp: &Hparams,
    kind: RopeKind,
    owners: &[bool],
) -> Result<LoadedArchitecture, ModelError> {
    let norm = NormKind::Rms(keys.rms_eps()?);
    let sizes = LatentSizes::read(keys, hp, w)?;
    let q_lora_rank = keys.count("attention.q_lora_rank")?;
    let indexer = IndexerSizes::read(keys, sizes.qk_rope_dim)?;
    let (rope_keys, score_scale) =
        RopeKeys::read(keys, sizes.key_dim(), hp.n_ctx)?.with_mscale(false);
    let rope = w.rope(rope_keys.table(RopeKind::Norm, None));
    let indexer_rope = (w.rope(rope_keys.table(kind, None)), 0);
    let hidden = keys.count("expert_feed_forward_length")?;
    let (shape, shared) = (
        ExpertShape::read_with_routing(keys, hidden, Gating::Sigmoid)?,
        keys.shared_width(hidden)?,
    );
    let dense = keys.opt_count("leading_dense_block_count")?.unwrap_or(0);
    let layers = decoder::layers(w, hp, norm, |b| {
        let ffn =
            if b.i < dense { b.gated(Glu::Silu)? } else { b.experts_with_shared(shape, shared)? };
        let selection = match owners[b.i] {
            true => SparseSelection::Own(
                Indexer::load(b, indexer, q_lora_rank, (Some(indexer_rope), KEY_EPS))?.into(),
            ),
            false => SparseSelection::Shared,
        };
        Ok(Layer { selection, ..b.latent(sizes, rope, score_scale, ffn)? })
    })?;
    Ok(Decoder::new(w, hp, norm, layers)?.into_architecture(hp))
}
