//! Lightning indexers (DeepSeek-AI, 2025): a small attention of many thin query heads to one key head, whose scores say which
//! positions the attention of a layer sees, and perhaps of layers behind it.

use puna_graph::*;

use crate::decoder::{AnyNorm, Block, NormKind};
use crate::error::ModelError;
use crate::hparams::Keys;

/// More positions than any model chooses: each token of a step has room for as many numbers.
const MAX_CHOSEN: usize = 1 << 14;
/// More heads or features of one than any indexer has.
const MAX_SIZE: usize = 1 << 14;

/// Of the norm of an indexer's keys, where files do not say it.
pub const KEY_EPS: f32 = 1e-6;

/// Sizes of an indexer.
#[derive(Debug, Clone, Copy)]
pub struct IndexerForm {
    /// Query heads.
    pub heads: usize,
    /// Features of a head.
    pub dim: usize,
    /// Blocks that are chosen, at most.
    pub count: usize,
    /// Positions of a block.
    pub block: usize,
    /// Blocks up to the token's own that always are.
    pub near: usize,
}

impl IndexerForm {
    /// Reads `attention.indexer.{head_count,key_length,top_k}`; `turned` features of a head turn with the position.
    pub fn read(keys: &Keys<'_>, turned: usize) -> Result<Self, ModelError> {
        let bounded = |part: &str, most: usize, reason| {
            let key = format!("attention.indexer.{part}");
            let value = keys.count(&key)?;
            if value <= most {
                return Ok(value);
            }
            Err(ModelError::KeyValue { key: keys.name(&key), value: value.to_string(), reason })
        };
        let heads = bounded("head_count", MAX_SIZE, "must be at most 16384")?;
        let dim = bounded("key_length", MAX_SIZE, "must be at most 16384")?;
        let count = bounded("top_k", MAX_CHOSEN, "must be at most 16384")?;
        if turned > dim {
            let (key, value) =
                (keys.name("attention.indexer.key_length"), format!("{dim}, of which {turned} turn"));
            let reason = "must not be less than rope.dimension_count";
            return Err(ModelError::KeyValue { key, value, reason });
        }
        Ok(Self { heads, dim, count, block: 1, near: 0 })
    }

    /// The same with `attention.indexer.{block_size,local_blocks}`, of an indexer with a head for each of a layer's key heads,
    /// of which layers have these numbers.
    pub fn read_blocks(keys: &Keys<'_>, turned: usize, kv_heads: &[usize]) -> Result<Self, ModelError> {
        let block = keys.count("attention.indexer.block_size")?;
        let near = keys.opt_count("attention.indexer.local_blocks")?.unwrap_or(0);
        let form = Self { block, near, ..Self::read(keys, turned)? };
        let of = |part: &str, value: usize, reason| {
            let key = keys.name(&format!("attention.indexer.{part}"));
            Err(ModelError::KeyValue { key, value: value.to_string(), reason })
        };
        if near > form.count {
            return of("local_blocks", near, "must not be more than attention.indexer.top_k");
        }
        if kv_heads.iter().any(|&kv_heads| kv_heads != form.heads) {
            return of("head_count", form.heads, "must be attention.head_count_kv");
        }
        Ok(form)
    }

    /// Of the keys of a block one; `part` is the tensor that says how wide they are, `bias` what is added to their gates.
    pub fn pool(
        &self,
        b: &mut Block<'_, '_>,
        part: &str,
        block: usize,
        bias: Option<WeightId>,
    ) -> Result<PoolSpec, ModelError> {
        let (state, dim) = (b.state(part, 3, self.dim)?, self.dim);
        Ok(PoolSpec { state, block, dim, overlaps: false, bias })
    }

    /// A choice of `count` blocks by keys that a block of `block` tokens has one of.
    pub fn among_blocks(&self, block: usize, count: usize) -> TopKPositionsSpec {
        let Self { heads, dim, .. } = *self;
        let (mask, chosen) = (Mask::Pooled(block as u32), SelectedPositions { lists: 1, count, block: 1 });
        TopKPositionsSpec { heads, dim, rectified: true, mask, near: 0, chosen }
    }
}

/// Which layers have an indexer of their own, where the file says so: the others share what the last one before them has chosen.
pub fn owners(keys: &Keys<'_>, layers: usize) -> Result<Option<Vec<bool>>, ModelError> {
    const KEY: &str = "attention.indexer.types";
    let owners = match keys.flags(KEY, layers)? {
        Some(owners) => Some(owners),
        None => keys.opt_bool(KEY)?.map(|all| vec![all; layers]),
    };
    if owners.as_ref().is_some_and(|owners| !owners[0]) {
        let (key, value) = (keys.name(KEY), "the first layer has none".into());
        return Err(ModelError::KeyValue {
            key,
            value,
            reason: "there is no earlier choice that it could share",
        });
    }
    Ok(owners)
}

/// How queries and keys of an indexer turn: by which table, and from which feature of a head on.
pub type Turned = (RopeId, usize);

/// Chooses positions for each token.
#[derive(Debug, Clone, Copy)]
pub struct Indexer {
    query: Linear,
    query_norm: Option<AnyNorm>,
    key: Linear,
    key_norm: AnyNorm,
    /// Of query heads; without, each is a list's only one.
    weights: Option<Linear>,
    turned: Option<Turned>,
    spec: TopKPositionsSpec,
}

impl Indexer {
    /// Loads `indexer.{attn_q_b,attn_k,k_norm,proj}` of a layer, the first of which reads `source` columns.
    pub fn load(
        b: &mut Block<'_, '_>,
        form: IndexerForm,
        source: usize,
        (turned, eps): (Option<Turned>, f32),
    ) -> Result<Self, ModelError> {
        let IndexerForm { heads, dim, count, block, near } = form;
        let n_embd = b.hp.n_embd;
        let chosen = SelectedPositions { lists: 1, count, block };
        Ok(Self {
            query: b.linear("indexer.attn_q_b", source, heads * dim)?,
            query_norm: None,
            key: b.linear("indexer.attn_k", n_embd, dim)?,
            key_norm: NormKind::Layer(eps).load(b.w, &format!("{}.indexer.k_norm", b.name), &[dim])?,
            weights: Some(b.linear("indexer.proj", n_embd, heads)?),
            turned,
            spec: TopKPositionsSpec { heads, dim, rectified: true, mask: Mask::Causal, near, chosen },
        })
    }

    /// Loads `indexer.{q_proj,k_proj,q_norm,k_norm}` of a layer, each of whose heads chooses blocks for a key head of its own.
    pub fn load_blocks(b: &mut Block<'_, '_>, form: IndexerForm, turned: RopeId) -> Result<Self, ModelError> {
        let IndexerForm { heads, dim, count, block, near } = form;
        let n_embd = b.hp.n_embd;
        let chosen = SelectedPositions { lists: heads, count, block };
        Ok(Self {
            query: b.linear("indexer.q_proj", n_embd, heads * dim)?,
            query_norm: Some(b.norm_of("indexer.q_norm", &[dim])?),
            key: b.linear("indexer.k_proj", n_embd, dim)?,
            key_norm: b.norm_of("indexer.k_norm", &[dim])?,
            weights: None,
            turned: Some((turned, 0)),
            spec: TopKPositionsSpec { heads, dim, rectified: false, mask: Mask::Causal, near, chosen },
        })
    }

    /// What the cache keeps of it.
    pub fn cache_layer(&self) -> CacheLayer {
        self.spec.cache_layer()
    }

    /// What is chosen for tokens whose features are `x`, and `source` what their queries are made of; `layer` is the cache's.
    ///
    /// Files mean weights to be divided by the root of all heads' features, which changes no order.
    pub fn choose(
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
        let [q, k] = match self.turned {
            Some((rope, start)) => [q, k].map(|x| g.rope_from("indexer_pe", x, (self.spec.dim, start), rope)),
            None => [q, k],
        };
        (g.choose("top_k", layer, [q, k], weights, self.spec), self.spec.chosen)
    }
}

/// What the attention of a layer sees of what its mask lets through.
#[derive(Debug, Clone)]
pub enum Sight {
    /// Everything.
    All,
    /// What an indexer of the layer's own chooses.
    Own(Box<Indexer>),
    /// What the last indexer before it has chosen.
    Shared,
}

impl Sight {
    /// The layer's own indexer.
    pub fn indexer(&self) -> Option<&Indexer> {
        match self {
            Self::Own(indexer) => Some(indexer),
            Self::All | Self::Shared => None,
        }
    }
}

/// What indexers have chosen so far in a graph.
#[derive(Debug, Clone, Copy)]
pub struct Choices {
    /// The cache's layer of the next one.
    pub layer: usize,
    /// What the last one has chosen.
    pub last: Option<(ValueId, SelectedPositions)>,
}

impl Choices {
    /// What a layer with this sight sees, for tokens as in [`Indexer::choose`]; nothing stands for everything.
    pub fn seen(
        &mut self,
        g: &mut Graph,
        sight: &Sight,
        x: ValueId,
        source: ValueId,
    ) -> Option<(ValueId, SelectedPositions)> {
        match sight {
            Sight::All => None,
            Sight::Own(indexer) => {
                self.last = Some(indexer.choose(g, self.layer, x, source));
                self.layer += 1;
                self.last
            }
            Sight::Shared => Some(self.last.expect("the first layer that shares follows one that chooses")),
        }
    }
}
