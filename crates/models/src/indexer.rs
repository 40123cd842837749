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
    /// Positions that are chosen, at most.
    pub count: usize,
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
        Ok(Self { heads, dim, count })
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
    key: Linear,
    key_norm: AnyNorm,
    weights: Linear,
    turned: Option<Turned>,
    spec: ChoiceSpec,
}

impl Indexer {
    /// Loads `indexer.{attn_q_b,attn_k,k_norm,proj}` of a layer, the first of which reads `source` columns.
    pub fn load(
        b: &mut Block<'_, '_>,
        form: IndexerForm,
        source: usize,
        (turned, eps): (Option<Turned>, f32),
    ) -> Result<Self, ModelError> {
        let IndexerForm { heads, dim, count } = form;
        let n_embd = b.hp.n_embd;
        Ok(Self {
            query: b.linear("indexer.attn_q_b", source, heads * dim)?,
            key: b.linear("indexer.attn_k", n_embd, dim)?,
            key_norm: NormKind::Layer(eps).load(b.w, &format!("{}.indexer.k_norm", b.name), &[dim])?,
            weights: b.linear("indexer.proj", n_embd, heads)?,
            turned,
            spec: ChoiceSpec { heads, dim, rectified: true, chosen: Chosen { lists: 1, count, block: 1 } },
        })
    }

    /// What the cache keeps of it.
    pub fn cache_layer(&self) -> CacheLayer {
        self.spec.cache_layer()
    }

    /// What is chosen for tokens whose features are `x`, and `source` what their queries are made of; `layer` is the cache's.
    ///
    /// Files mean weights to be divided by the root of all heads' features, which changes no order.
    pub fn choose(&self, g: &mut Graph, layer: usize, x: ValueId, source: ValueId) -> (ValueId, Chosen) {
        let q = g.linear("indexer_q", &self.query, source);
        let k = g.linear("indexer_k", &self.key, x);
        let weights = g.linear("indexer_weights", &self.weights, x);
        let k = self.key_norm.apply(g, "indexer_k_normed", k);
        let [q, k] = match self.turned {
            Some((rope, start)) => [q, k].map(|x| g.rope_from("indexer_pe", x, (self.spec.dim, start), rope)),
            None => [q, k],
        };
        (g.choose("top_k", layer, [q, k], Some(weights), self.spec), self.spec.chosen)
    }
}

/// What the attention of a layer sees of what its mask lets through.
#[derive(Debug, Clone, Copy)]
pub enum Sight {
    /// Everything.
    All,
    /// What an indexer of the layer's own chooses.
    Own(Indexer),
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
    pub last: Option<(ValueId, Chosen)>,
}

impl Choices {
    /// What a layer with this sight sees, for tokens as in [`Indexer::choose`]; nothing stands for everything.
    pub fn seen(
        &mut self,
        g: &mut Graph,
        sight: &Sight,
        x: ValueId,
        source: ValueId,
    ) -> Option<(ValueId, Chosen)> {
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
