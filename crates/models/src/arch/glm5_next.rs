//! GLM 5 Next: hyper-connections with mixed residual streams; layers of Kimi delta attention, and
//! some layers of latent attention without rotary embedding to blocks of tokens. An indexer with
//! pooled keys selects the blocks; tokens after the last whole block are always included. Dense
//! layers first, then experts with clamped activations and a shared expert.
//! GGUF: `general.architecture = "glm5-next"`.

use puna_graph::*;

use crate::architecture::{LoadOptions, LoadedArchitecture};
use crate::decoder::{self, AnyNorm, LayerLoader, NormKind};
use crate::delta::QK_NORM_EPS;
use crate::error::ModelError;
use crate::experts::ExpertShape;
use crate::hparams::{Hparams, Keys};
use crate::hybrid::{Hybrid, HybridLayer, Mixer, MixerContext};
use crate::hyper::{HyperConnectionSpec, ResidualStreams};
use crate::indexer::{IndexerSizes, KEY_EPS};
use crate::kda::{DeltaAttention, KdaConfig};
use crate::latent::{Latent, LatentSizes};
use crate::residual::ResidualConnections;
use crate::weights::Weights;

pub(super) fn load(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<LoadedArchitecture, ModelError> {
    let hp = Hparams::read_hybrid(keys)?;
    let eps = keys.rms_eps()?;
    let norm = NormKind::Rms(eps);
    let kda = KdaConfig { eps: QK_NORM_EPS, ..KdaConfig::read(keys)?.bounded(keys, -1.0)? };
    let (sizes, indexers) = (LatentSizes::read(keys, &hp, w)?, Indexers::read(keys, &hp)?);
    let dense = keys.opt_count("leading_dense_block_count")?.unwrap_or(0);
    let hidden = keys.count("expert_feed_forward_length")?;
    let (shape, shared) = (
        ExpertShape::read_with_routing(keys, hidden, Gating::Sigmoid)?,
        keys.shared_width(hidden)?,
    );
    let [limits, shared_limits] = keys.glu_limits(hp.n_layer)?;
    let layers = decoder::layers(w, &hp, norm, |b| {
        let mixer: Box<dyn Mixer> = match hp.kv_heads[b.i] {
            0 => Box::new(DeltaAttention::load(b, kda)?),
            _ => Box::new(BlockAttention::load(b, (sizes, norm), &indexers)?),
        };
        // Dense layers have the limits of the shared expert.
        let [glu, dense_glu] = [limits[b.i], shared_limits[b.i]]
            .map(|bound| bound.map_or(Glu::Silu, |limit| Glu::SiluOfClamped { limit }));
        let ffn = match b.i < dense {
            true => b.gated(dense_glu)?,
            false => b.experts_with_shared_glu(ExpertShape { glu, ..shape }, shared, dense_glu)?,
        };
        let ffn = Some((b.norm("ffn_norm")?, ffn));
        Ok(HybridLayer { norm: b.norm("attn_norm")?, mixers: vec![mixer], ffn })
    })?;
    let connections = HyperConnectionSpec::read_mixing(keys, eps)?;
    let streams = ResidualStreams::load_without_end(w, hp.n_embd, hp.n_layer, &connections)?;
    let residual: Box<dyn ResidualConnections> = Box::new(streams);
    Ok(Hybrid { residual: Some(residual), ..Hybrid::new(w, &hp, norm, layers)? }
        .into_architecture(&hp))
}

/// Options that all indexers share.
struct Indexers {
    sizes: IndexerSizes,
    /// Epsilon of the key norm.
    eps: f32,
    /// Tokens per block.
    block: usize,
    /// Which layers have an indexer, of those with attention.
    owners: Vec<bool>,
}

impl Indexers {
    fn read(keys: &Keys<'_>, hp: &Hparams) -> Result<Self, ModelError> {
        let wrong = |key: &str, value: String, reason| {
            let key = keys.name(&format!("attention.indexer.{key}"));
            Err(ModelError::KeyValue { key, value, reason })
        };
        let sizes = IndexerSizes::read(keys, 0)?;
        let block = keys.count("attention.indexer.kpool")?;
        if block < 2 || !sizes.top_k.is_multiple_of(block) {
            return wrong(
                "kpool",
                block.to_string(),
                "must be at least 2 and divide attention.indexer.top_k",
            );
        }
        if keys.opt_bool("attention.indexer.kpool_select_tail")? == Some(false) {
            return wrong(
                "kpool_select_tail",
                "false".into(),
                "must be true, because the first tokens have no other positions",
            );
        }
        let owners = keys.flags("attention.indexer.types", hp.n_layer)?;
        let owners = owners.unwrap_or_else(|| vec![true; hp.n_layer]);
        let first = (0..hp.n_layer).find(|&i| hp.kv_heads[i] > 0);
        if first.is_some_and(|first| !owners[first]) {
            return wrong(
                "types",
                "absent in the first layer with attention".into(),
                "the first layer with attention has no earlier indexer to share",
            );
        }
        let eps = keys.opt_f32("attention.layer_norm_epsilon")?.unwrap_or(KEY_EPS);
        Ok(Self { sizes, eps, block, owners })
    }
}

/// Selects blocks of tokens.
struct Indexer {
    query: Linear,
    key: Linear,
    key_norm: AnyNorm,
    /// Projection to the weight of each key dimension in its block's pooled key.
    gate: Linear,
    pool: PoolSpec,
    weights: Linear,
    spec: TopKPositionsSpec,
}

impl Indexer {
    fn load(
        b: &mut LayerLoader<'_, '_>,
        indexers: &Indexers,
        low_rank: usize,
    ) -> Result<Self, ModelError> {
        const BIAS: &str = "indexer_compressor_ape.weight";
        let IndexerSizes { heads, dim, top_k, .. } = indexers.sizes;
        let (n_embd, block) = (b.hp.n_embd, indexers.block);
        let norm = NormKind::Layer(indexers.eps);
        let bias = b.tensor(BIAS, &[dim, block])?;
        Ok(Self {
            query: b.linear("indexer.attn_q_b", low_rank, heads * dim)?,
            key: b.linear("indexer.attn_k", n_embd, dim)?,
            key_norm: norm.load(b.w, &format!("{}.indexer.k_norm", b.name), &[dim])?,
            gate: b.linear("indexer_compressor_gate", n_embd, dim)?,
            pool: indexers.sizes.pool(b, BIAS, block, Some(bias))?,
            weights: b.linear("indexer.proj", n_embd, heads)?,
            spec: indexers.sizes.among_blocks(block, top_k / block),
        })
    }

    /// Selects blocks for each token, from its low-rank query and the layer's input. A constant
    /// factor of all weights is omitted because it does not change the order.
    fn select(&self, g: &mut Graph, layer: usize, low_rank: ValueId, h: ValueId) -> ValueId {
        let q = g.linear("indexer_q", &self.query, low_rank);
        let (k, gate) =
            (g.linear("indexer_k", &self.key, h), g.linear("indexer_gate", &self.gate, h));
        let weights = g.linear("indexer_weights", &self.weights, h);
        let k = self.key_norm.apply(g, "indexer_k_normed", k);
        let keys =
            g.recur("indexer_pool_k", Recurrence::Pool { x: k, gate: Some(gate), spec: self.pool });
        g.top_k_positions("indexer_top_k", layer, [q, keys], Some(weights), self.spec)
    }
}

/// Latent attention to the blocks that its own indexer or the last one before it selects.
struct BlockAttention {
    latent: Latent,
    indexer: Option<Indexer>,
    spec: AttentionSpec,
    selected: SelectedPositions,
    /// `W_UV` of each head.
    values: PerHeadLinear,
    wo: Linear,
}

impl BlockAttention {
    fn load(
        b: &mut LayerLoader<'_, '_>,
        (sizes, norm): (LatentSizes, NormKind),
        indexers: &Indexers,
    ) -> Result<Self, ModelError> {
        let (n_embd, heads) = (b.hp.n_embd, b.hp.heads[b.i]);
        let (latent, values) = Latent::load(b.w, &b.name, (n_embd, heads), (sizes, norm, None))?;
        let low_rank = sizes.q_lora_rank.unwrap_or(n_embd);
        let block = indexers.block;
        Ok(Self {
            latent,
            indexer: if indexers.owners[b.i] {
                Some(Indexer::load(b, indexers, low_rank)?)
            } else {
                None
            },
            spec: AttentionSpec { sees_tail: true, ..sizes.attention(heads) },
            selected: SelectedPositions { lists: 1, count: indexers.sizes.top_k / block, block },
            values,
            wo: b.linear("attn_output", heads * values.out, n_embd)?,
        })
    }
}

impl Mixer for BlockAttention {
    fn cache_layers(&self) -> Vec<CacheLayer> {
        let own = self.spec.cache_layer();
        [own]
            .into_iter()
            .chain(self.indexer.as_ref().map(|indexer| indexer.spec.cache_layer()))
            .collect()
    }

    fn mix(&self, g: &mut Graph, context: &mut MixerContext, h: ValueId) -> ValueId {
        let low_rank = self.latent.source(g, h);
        if let Some(indexer) = &self.indexer {
            context.selected = Some(indexer.select(g, context.cache_layer + 1, low_rank, h));
        }
        let selected = context.selected.expect("the first layer that attends has an indexer");
        let qkv = self.latent.project_from(g, h, low_rank);
        let a = g.sparse_attention(
            "kqv_out",
            context.cache_layer,
            qkv,
            (selected, self.selected),
            self.spec,
        );
        g.per_head_linear("kqv_values", &self.values, a)
    }

    fn finish(&self, g: &mut Graph, mixed: ValueId) -> ValueId {
        g.linear("attn_out", &self.wo, mixed)
    }
}
