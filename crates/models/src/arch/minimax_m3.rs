//! MiniMax M3 (2026): the second one with norms of each head, dense layers first and experts beside shared ones. Behind the dense layers
//! an indexer chooses for each key head the blocks of positions that its queries see.
//! GGUF: `general.architecture = "minimax-m3"`.

use puna_graph::*;

use crate::decoder::{self, Decoder, Layer, NormKind, QkNorm};
use crate::error::ModelError;
use crate::experts::ExpertShape;
use crate::hparams::{Hparams, Keys};
use crate::indexer::{Indexer, IndexerForm, SparseSelection};
use crate::model::{LoadOptions, Loaded};
use crate::rope::RopeKeys;
use crate::weights::Weights;

/// Of all feed-forward parts.
const UNIT: Glu = Glu::Clamped { alpha: 1.702, limit: 7.0 };

pub(super) fn load(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<Loaded, ModelError> {
    let hp = Hparams::read(keys)?;
    let norm = NormKind::Rms(keys.rms_eps()?);
    let rope_keys = RopeKeys::read(keys, hp.key_dim, hp.n_ctx)?;
    let rope = w.rope(rope_keys.table(RopeKind::Neox, None));
    let hidden = keys.count("expert_feed_forward_length")?;
    let shape = ExpertShape { glu: UNIT, ..ExpertShape::read_all(keys, hidden, Gating::Sigmoid)? };
    let shared = keys.shared_width(hidden)?;
    let dense = keys.opt_count("leading_dense_block_count")?.unwrap_or(0);
    let sparse = hp.kv_heads.get(dense..).filter(|sparse| !sparse.is_empty());
    let indexer =
        sparse.map(|sparse| IndexerForm::read_blocks(keys, rope_keys.dims, sparse)).transpose()?;
    let layers = decoder::layers(w, &hp, norm, |b| {
        let (ffn, selection) = match indexer.filter(|_| b.i >= dense) {
            None => (b.gated(UNIT)?, SparseSelection::Dense),
            Some(form) => (
                b.experts_beside(shape, shared)?,
                SparseSelection::Own(Indexer::load_blocks(b, form, rope)?.into()),
            ),
        };
        let qk_norm = QkNorm::Before(b.head_norms()?);
        Ok(Layer { qk_norm, rope: Some(rope), selection, ..b.pre_norm(ffn)? })
    })?;
    Ok(Decoder::new(w, &hp, norm, layers)?.loaded(&hp))
}
