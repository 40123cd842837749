//! MiniMax M3 (2026): MiniMax M2 with norms per head, dense layers first, and shared experts. After
//! the dense layers, attention is sparse: an indexer selects blocks of positions for each KV head.
//! GGUF: `general.architecture = "minimax-m3"`.

use puna_graph::*;

use crate::architecture::{LoadOptions, LoadedArchitecture};
use crate::decoder::{self, Decoder, Layer, NormKind, QkNorm};
use crate::error::ModelError;
use crate::experts::ExpertShape;
use crate::hparams::{Hparams, Keys};
use crate::indexer::{Indexer, IndexerSizes, SparseSelection};
use crate::rope::RopeKeys;
use crate::weights::Weights;

/// Activation of all feed-forward networks.
const ACTIVATION: Glu = Glu::Clamped { alpha: 1.702, limit: 7.0 };

pub(super) fn load(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<LoadedArchitecture, ModelError> {
    let hp = Hparams::read(keys)?;
    let norm = NormKind::Rms(keys.rms_eps()?);
    let rope_keys = RopeKeys::read(keys, hp.key_dim, hp.n_ctx)?;
    let rope = w.rope(rope_keys.table(RopeKind::Neox, None));
    let hidden = keys.count("expert_feed_forward_length")?;
    let shape = ExpertShape {
        glu: ACTIVATION,
        ..ExpertShape::read_with_routing(keys, hidden, Gating::Sigmoid)?
    };
    let shared = keys.shared_width(hidden)?;
    let dense = keys.opt_count("leading_dense_block_count")?.unwrap_or(0);
    let sparse = hp.kv_heads.get(dense..).filter(|sparse| !sparse.is_empty());
    let indexer =
        sparse.map(|sparse| IndexerSizes::read_blocks(keys, rope_keys.dims, sparse)).transpose()?;
    let layers = decoder::layers(w, &hp, norm, |b| {
        let (ffn, selection) = match indexer.filter(|_| b.i >= dense) {
            None => (b.gated(ACTIVATION)?, SparseSelection::Dense),
            Some(sizes) => (
                b.experts_with_shared(shape, shared)?,
                SparseSelection::Own(Indexer::load_blocks(b, sizes, rope)?.into()),
            ),
        };
        let qk_norm = QkNorm::BeforeRope(b.head_norms()?);
        Ok(Layer { qk_norm, rope: Some(rope), selection, ..b.pre_norm(ffn)? })
    })?;
    Ok(Decoder::new(w, &hp, norm, layers)?.into_architecture(&hp))
}
