//! Lightning indexer of sparse attention (DSA; DeepSeek-AI, "DeepSeek-V3.2", 2025): a small
//! attention of many query heads to one KV head. Its scores select the top-k positions that the
//! attention of this layer, and of later layers that share it, attends to.

use puna_graph::*;

use crate::decoder::{AnyNorm, LayerLoader, NormKind};
use crate::error::ModelError;
use crate::hparams::Keys;

/// Limit of selected positions per token, against hostile files: each token of a step has a list of
/// this length.
const MAX_SELECTED: usize = 1 << 14;
/// Limit of heads and of their dimensions, against hostile files.
const MAX_SIZE: usize = 1 << 14;

/// Epsilon of the key norm, if the file has none.
pub const KEY_EPS: f32 = 1e-6;

/// Dimensions of an indexer.
#[derive(Debug, Clone, Copy)]
pub struct IndexerSizes {
    /// Number of query heads.
    pub heads: usize,
    /// Dimensions of a head.
    pub dim: usize,
    /// Largest number of selected blocks.
    pub top_k: usize,
    /// Positions per block.
    pub block: usize,
    /// Number of nearest blocks that are always selected.
    pub local_blocks: usize,
}

impl IndexerSizes {
    /// Reads `attention.indexer.{head_count,key_length,top_k}`; `rope_dim` dimensions of a head
    /// have rotary embedding.
    pub fn read(keys: &Keys<'_>, rope_dim: usize) -> Result<Self, ModelError> {
        let bounded = |part: &str, max: usize, reason| {
            let key = format!("attention.indexer.{part}");
            let value = keys.count(&key)?;
            if value <= max {
                return Ok(value);
            }
            Err(ModelError::KeyValue { key: keys.name(&key), value: value.to_string(), reason })
        };
        let heads = bounded("head_count", MAX_SIZE, "must be at most 16384")?;
        let dim = bounded("key_length", MAX_SIZE, "must be at most 16384")?;
        let top_k = bounded("top_k", MAX_SELECTED, "must be at most 16384")?;
        if rope_dim > dim {
            let (key, value) = (
                keys.name("attention.indexer.key_length"),
                format!("{dim}, of which {rope_dim} are rotated"),
            );
            let reason = "must be at least rope.dimension_count";
            return Err(ModelError::KeyValue { key, value, reason });
        }
        Ok(Self { heads, dim, top_k, block: 1, local_blocks: 0 })
    }

    /// Reads `attention.indexer.{block_size,local_blocks}` as well, for an indexer that selects
    /// blocks for each KV head. `kv_heads` are the KV heads of the layers.
    pub fn read_blocks(
        keys: &Keys<'_>,
        rope_dim: usize,
        kv_heads: &[usize],
    ) -> Result<Self, ModelError> {
        let block = keys.count("attention.indexer.block_size")?;
        let local_blocks = keys.opt_count("attention.indexer.local_blocks")?.unwrap_or(0);
        let sizes = Self { block, local_blocks, ..Self::read(keys, rope_dim)? };
        let of = |part: &str, value: usize, reason| {
            let key = keys.name(&format!("attention.indexer.{part}"));
            Err(ModelError::KeyValue { key, value: value.to_string(), reason })
        };
        if local_blocks > sizes.top_k {
            return of("local_blocks", local_blocks, "must be at most attention.indexer.top_k");
        }
        if kv_heads.iter().any(|&kv_heads| kv_heads != sizes.heads) {
            return of("head_count", sizes.heads, "must equal attention.head_count_kv");
        }
        Ok(sizes)
    }

    /// Pools the keys of each block to one; `part` is the tensor that gives their width, `bias` the
    /// bias of the pooling gates.
    pub fn pool(
        &self,
        b: &mut LayerLoader<'_, '_>,
        part: &str,
        block: usize,
        bias: Option<WeightId>,
    ) -> Result<PoolSpec, ModelError> {
        let (state, dim) = (b.state(part, 3, self.dim)?, self.dim);
        Ok(PoolSpec { state, block, dim, overlaps: false, bias })
    }

    /// Selects `count` blocks of `block` tokens by one pooled key per block.
    pub fn among_blocks(&self, block: usize, count: usize) -> TopKPositionsSpec {
        let Self { heads, dim, .. } = *self;
        let (mask, selected) =
            (Mask::Pooled(block as u32), SelectedPositions { lists: 1, count, block: 1 });
        TopKPositionsSpec { heads, dim, relu: true, mask, near: 0, selected }
    }
}

/// Which layers have their own indexer (`attention.indexer.types`); the others share the selection
/// of the last indexer before them.
pub fn owners(keys: &Keys<'_>, layers: usize) -> Result<Option<Vec<bool>>, ModelError> {
    const KEY: &str = "attention.indexer.types";
    let owners = match keys.flags(KEY, layers)? {
        Some(owners) => Some(owners),
        None => keys.opt_bool(KEY)?.map(|all| vec![all; layers]),
    };
    if owners.as_ref().is_some_and(|owners| !owners[0]) {
        let (key, value) = (keys.name(KEY), "absent in the first layer".into());
        return Err(ModelError::KeyValue {
            key,
            value,
            reason: "the first layer has no earlier indexer to share",
        });
    }
    Ok(owners)
}

/// Rotary embedding of queries and keys of an indexer: table, and first dimension of a head.
pub type IndexerRope = (RopeId, usize);

/// Selects positions for each token.
#[derive(Debug, Clone, Copy)]
pub struct Indexer {
    query: Linear,
    query_norm: Option<AnyNorm>,
    key: Linear,
    key_norm: AnyNorm,
    /// Projection to the weights of query heads; `None` if each list has one head.
    weights: Option<Linear>,
    rope: Option<IndexerRope>,
    spec: TopKPositionsSpec,
}

impl Indexer {
    /// Loads `indexer.{attn_q_b,attn_k,k_norm,proj}` of a layer; the input of the first has
    /// `source` columns.
    pub fn load(
        b: &mut LayerLoader<'_, '_>,
        sizes: IndexerSizes,
        source: usize,
        (rope, eps): (Option<IndexerRope>, f32),
    ) -> Result<Self, ModelError> {
        let IndexerSizes { heads, dim, top_k, block, local_blocks } = sizes;
        let n_embd = b.hp.n_embd;
        let selected = SelectedPositions { lists: 1, count: top_k, block };
        Ok(Self {
            query: b.linear("indexer.attn_q_b", source, heads * dim)?,
            query_norm: None,
            key: b.linear("indexer.attn_k", n_embd, dim)?,
            key_norm: NormKind::Layer(eps).load(
                b.w,
                &format!("{}.indexer.k_norm", b.name),
                &[dim],
            )?,
            weights: Some(b.linear("indexer.proj", n_embd, heads)?),
            rope,
            spec: TopKPositionsSpec {
                heads,
                dim,
                relu: true,
                mask: Mask::Causal,
                near: local_blocks,
                selected,
            },
        })
    }

    /// Loads `indexer.{q_proj,k_proj,q_norm,k_norm}` of a layer; each head selects blocks for one
    /// KV head.
    pub fn load_blocks(
        b: &mut LayerLoader<'_, '_>,
        sizes: IndexerSizes,
        rope: RopeId,
    ) -> Result<Self, ModelError> {
        let IndexerSizes { heads, dim, top_k, block, local_blocks } = sizes;
        let n_embd = b.hp.n_embd;
        let selected = SelectedPositions { lists: heads, count: top_k, block };
        Ok(Self {
            query: b.linear("indexer.q_proj", n_embd, heads * dim)?,
            query_norm: Some(b.norm_of("indexer.q_norm", &[dim])?),
            key: b.linear("indexer.k_proj", n_embd, dim)?,
            key_norm: b.norm_of("indexer.k_norm", &[dim])?,
            weights: None,
            rope: Some((rope, 0)),
            spec: TopKPositionsSpec {
                heads,
                dim,
                relu: false,
                mask: Mask::Causal,
                near: local_blocks,
                selected,
            },
        })
    }

    /// Cache layer of the indexer's keys.
    pub fn cache_layer(&self) -> CacheLayer {
        self.spec.cache_layer()
    }

    /// Selects positions for the tokens of `x`; `source` is the input of the query projection,
    /// `layer` the cache layer.
    ///
    /// The published weights are divided by the square root of all heads' dimensions, which does
    /// not change the order of scores.
    pub fn select(
        &self,
        g: &mut Graph,
        layer: usize,
        x: ValueId,
        source: ValueId,
    ) -> (ValueId, SelectedPositions) {
        let q = g.linear("indexer_q", &self.query, source);
        let k = g.linear("indexer_k", &self.key, x);
        let weights = self.weights.as_ref().map(|weights| g.linear("indexer_weights", weights, x));
        let q = self.query_norm.as_ref().map_or(q, |norm| norm.apply(g, "indexer_q_normed", q));
        let k = self.key_norm.apply(g, "indexer_k_normed", k);
        let [q, k] = match self.rope {
            Some((rope, start)) => {
                [q, k].map(|x| g.rope_from("indexer_pe", x, (self.spec.dim, start), rope))
            }
            None => [q, k],
        };
        (g.top_k_positions("top_k", layer, [q, k], weights, self.spec), self.spec.selected)
    }
}

/// Sparse attention of a layer: which of the positions that its mask allows it attends to.
#[derive(Debug, Clone)]
pub enum SparseSelection {
    /// All positions (dense attention).
    Dense,
    /// The positions that the layer's own indexer selects.
    Own(Box<Indexer>),
    /// The positions that the last indexer of an earlier layer selected.
    Shared,
}

impl SparseSelection {
    /// The layer's own indexer.
    pub fn indexer(&self) -> Option<&Indexer> {
        match self {
            Self::Own(indexer) => Some(indexer),
            Self::Dense | Self::Shared => None,
        }
    }
}

/// Selections of the indexers so far in a graph.
#[derive(Debug, Clone, Copy)]
pub struct Selections {
    /// Cache layer of the next indexer.
    pub layer: usize,
    /// Lists that the last indexer selected.
    pub last: Option<(ValueId, SelectedPositions)>,
}

impl Selections {
    /// Lists of selected positions for a layer; `None` for dense attention. `x` and `source` are as
    /// in [`Indexer::select`].
    pub fn select(
        &mut self,
        g: &mut Graph,
        selection: &SparseSelection,
        x: ValueId,
        source: ValueId,
    ) -> Option<(ValueId, SelectedPositions)> {
        match selection {
            SparseSelection::Dense => None,
            SparseSelection::Own(indexer) => {
                self.last = Some(indexer.select(g, self.layer, x, source));
                self.layer += 1;
                self.last
            }
            SparseSelection::Shared => Some(
                self.last.expect("a layer that shares a selection follows one with an indexer"),
            ),
        }
    }
}
