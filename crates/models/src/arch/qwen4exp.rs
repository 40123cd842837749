//! Qwen 4 Exp: gated hyper-connections instead of norms; layers of the gated delta rule, and every
//! few layers gated attention to blocks of tokens. An indexer selects blocks by the mean of their
//! keys; tokens after the last whole block are always included. Each layer has experts and a shared
//! expert, and before one layer an n-gram embedding is added to all streams.
//! GGUF: `general.architecture = "qwen4exp"`.

use puna_graph::*;

use super::qwen3next;
use crate::architecture::{LoadOptions, LoadedArchitecture};
use crate::decoder::{self, AnyNorm, Decoder, LayerLoader, NormKind};
use crate::delta::DeltaNet;
use crate::error::ModelError;
use crate::gated_streams::{GatedStreams, StreamGateSizes};
use crate::hparams::{Hparams, Keys};
use crate::hybrid::{Attention, Hybrid, HybridLayer, Mixer, MixerContext, SsmKeys};
use crate::indexer::IndexerSizes;
use crate::ngram_embedding::{NgramEmbedding, NgramKeys};
use crate::residual::ResidualConnections;
use crate::rope::RopeKeys;
use crate::weights::Weights;

/// Largest accepted number of tokens of a block, against hostile files.
const MAX_BLOCK: usize = 1 << 16;

pub(super) fn load(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<LoadedArchitecture, ModelError> {
    let hp = Hparams::read(keys)?;
    let eps = keys.rms_eps()?;
    let (norm, ssm) = (NormKind::Rms(eps), SsmKeys::read(keys, true)?);
    let sizes = StreamGateSizes::read(keys, hp.n_embd, eps)?;
    let ngram_keys = NgramKeys::read(keys, hp.n_layer)?;
    let recurrent = keys.recurrent_layers(hp.n_layer, 4)?;
    let indexers = Indexers::read(keys, &hp)?;
    let rope = w.rope(indexers.rope.table(RopeKind::Neox, None));
    let layers = decoder::layers(w, &hp, norm, |b| {
        let mixer: Box<dyn Mixer> = if recurrent[b.i] {
            Box::new(DeltaNet::load(b, ssm, false)?.gated_by(Activation::Sigmoid))
        } else {
            let attention = Attention {
                norms: Some(b.head_norms()?),
                rope: Some(rope),
                ..Attention::load(b, true)?
            };
            match indexers.blocks[b.i] {
                0 => Box::new(attention),
                block => Box::new(BlockAttention::load(b, &indexers, (attention, rope), block)?),
            }
        };
        let ffn = Some((AnyNorm::None, qwen3next::experts(keys, b)?));
        Ok(HybridLayer { norm: AnyNorm::None, mixers: vec![mixer], ffn })
    })?;
    let ngrams = match &ngram_keys {
        Some(ngram_keys) => {
            let mut block = LayerLoader::new(w, &hp, norm, ngram_keys.layer);
            Some((ngram_keys.layer, NgramEmbedding::load(&mut block, keys, ngram_keys, sizes)?))
        }
        None => None,
    };
    let residual: Box<dyn ResidualConnections> =
        Box::new(GatedStreams::load(w, hp.n_layer, sizes, ngrams)?);
    let outer = Decoder::with_norm(w, &hp, AnyNorm::None, Vec::new())?;
    Ok(Hybrid { residual: Some(residual), ..Hybrid::with_outer(outer, layers) }
        .into_architecture(&hp))
}

/// Options that all indexers share.
struct Indexers {
    sizes: IndexerSizes,
    /// Rotary embedding of indexers and of attention.
    rope: RopeKeys,
    /// Block size of each layer in tokens; zero for dense attention.
    blocks: Vec<usize>,
}

impl Indexers {
    fn read(keys: &Keys<'_>, hp: &Hparams) -> Result<Self, ModelError> {
        const KEY: &str = "attention.compress_ratios";
        let rope = qwen3next::mrope_keys(keys, hp)?;
        let sizes = IndexerSizes::read(keys, rope.dims)?;
        let blocks = keys.per_layer(KEY, hp.n_layer)?.unwrap_or_else(|| vec![0; hp.n_layer]);
        let fits =
            |&block: &usize| block == 0 || block <= MAX_BLOCK && sizes.top_k.is_multiple_of(block);
        match blocks.iter().find(|block| !fits(block)) {
            None => Ok(Self { sizes, rope, blocks }),
            Some(block) => {
                let (key, value) = (keys.name(KEY), block.to_string());
                let reason = "must be at most 65536 and divide attention.indexer.top_k";
                Err(ModelError::KeyValue { key, value, reason })
            }
        }
    }
}

/// Attention to selected blocks of tokens.
struct BlockAttention {
    attention: Attention,
    query: Linear,
    query_norm: AnyNorm,
    key: Linear,
    /// Mean key of a block, rotated by the position of its first token.
    pool: PoolSpec,
    key_norm: AnyNorm,
    ropes: [RopeId; 2],
    spec: TopKPositionsSpec,
    selected: SelectedPositions,
}

impl BlockAttention {
    fn load(
        b: &mut LayerLoader<'_, '_>,
        indexers: &Indexers,
        (mut attention, rope): (Attention, RopeId),
        block: usize,
    ) -> Result<Self, ModelError> {
        let IndexerSizes { heads, dim, top_k, .. } = indexers.sizes;
        let n_embd = b.hp.n_embd;
        let first =
            Rope { position_offset: block as u32 - 1, ..indexers.rope.table(RopeKind::Neox, None) };
        let spec = indexers.sizes.among_blocks(block, top_k / block);
        attention.spec.sees_tail = true;
        Ok(Self {
            attention,
            query: b.linear("indexer.q_proj", n_embd, heads * dim)?,
            query_norm: b.norm_of("indexer.q_norm", &[dim])?,
            key: b.linear("indexer.k_proj", n_embd, dim)?,
            pool: indexers.sizes.pool(b, "indexer.k_proj.weight", block, None)?,
            key_norm: b.norm_of("indexer.k_norm", &[dim])?,
            ropes: [rope, b.w.rope(first)],
            spec,
            selected: SelectedPositions { block, ..spec.selected },
        })
    }

    /// Selects blocks for each token. The published scores are divided by the square root of the
    /// head dimension, which does not change the order.
    fn select(&self, g: &mut Graph, layer: usize, h: ValueId) -> ValueId {
        let (q, k) = (g.linear("indexer_q", &self.query, h), g.linear("indexer_k", &self.key, h));
        let k = g.recur("indexer_k_pooled", Recurrence::Pool { x: k, gate: None, spec: self.pool });
        let q = self.query_norm.apply(g, "indexer_q_normed", q);
        let k = self.key_norm.apply(g, "indexer_k_normed", k);
        let [q, k] = [(q, self.ropes[0]), (k, self.ropes[1])]
            .map(|(x, rope)| g.rope("indexer_pe", x, self.spec.dim, rope));
        g.top_k_positions("indexer_top_k", layer, [q, k], None, self.spec)
    }
}

impl Mixer for BlockAttention {
    fn cache_layers(&self) -> Vec<CacheLayer> {
        vec![self.attention.spec.cache_layer(), self.spec.cache_layer()]
    }

    fn mix(&self, g: &mut Graph, context: &mut MixerContext, h: ValueId) -> ValueId {
        let selected = self.select(g, context.cache_layer + 1, h);
        self.attention.attend(g, context.cache_layer, h, Some((selected, self.selected)))
    }

    fn finish(&self, g: &mut Graph, mixed: ValueId) -> ValueId {
        self.attention.finish(g, mixed)
    }
}
