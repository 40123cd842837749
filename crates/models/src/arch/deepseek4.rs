//! DeepSeek 4: hyper-connections with mixed residual streams. All heads attend to one key, which is
//! also the value, within a sliding window. Most layers also attend to pooled blocks of earlier
//! tokens: all blocks if they are long, else those that an indexer selects. The rotation of the
//! attention result is reversed, and the output projection is low-rank per group of heads. Experts
//! have clamped activations and a shared expert; the first layers select experts by token id.
//! GGUF: `general.architecture = "deepseek4"`.

use puna_graph::*;

use crate::architecture::{LoadOptions, LoadedArchitecture};
use crate::blocks::{Experts, FeedForward, SharedExpert};
use crate::decoder::{self, AnyNorm, LayerLoader, NormKind};
use crate::error::ModelError;
use crate::experts::ExpertShape;
use crate::hparams::{Hparams, Keys};
use crate::hybrid::{Hybrid, HybridLayer, Mixer, MixerContext};
use crate::hyper::{HyperConnectionSpec, ResidualStreams};
use crate::indexer::IndexerSizes;
use crate::residual::ResidualConnections;
use crate::rope::{self, RopeKeys};
use crate::weights::Weights;

/// Tokens of a short block; short blocks overlap, and an indexer selects them.
const SHORT_BLOCK: usize = 4;
/// Largest accepted number of tokens of a block, against hostile files.
const MAX_BLOCK: usize = 1 << 16;

pub(super) fn load(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<LoadedArchitecture, ModelError> {
    let hp = Hparams::read(keys)?;
    let eps = keys.rms_eps()?;
    let norm = NormKind::Rms(eps);
    let blocks = blocks(keys, hp.n_layer)?;
    let config = DeepSeek4Config::read(keys, &hp, norm, &blocks)?;
    let experts = ExpertLayers::read(keys, &hp)?;
    let layers = decoder::layers(w, &hp, norm, |b| {
        let attention = Attention::load(b, &config, blocks[b.i])?;
        let ffn = experts.load(b)?;
        let ffn = Some((b.norm("ffn_norm")?, ffn));
        Ok(HybridLayer { norm: b.norm("attn_norm")?, mixers: vec![Box::new(attention)], ffn })
    })?;
    let connections = HyperConnectionSpec::read_mixing(keys, eps)?;
    let residual: Box<dyn ResidualConnections> =
        Box::new(ResidualStreams::load(w, hp.n_embd, hp.n_layer, &connections)?);
    Ok(Hybrid { residual: Some(residual), ..Hybrid::new(w, &hp, norm, layers)? }
        .into_architecture(&hp))
}

/// Block size of each layer in tokens; zero for layers with a window only.
fn blocks(keys: &Keys<'_>, layers: usize) -> Result<Vec<usize>, ModelError> {
    const KEY: &str = "attention.compress_ratios";
    let wrong =
        |value: String, reason| Err(ModelError::KeyValue { key: keys.name(KEY), value, reason });
    match keys.per_layer(KEY, layers)? {
        None => wrong("absent".into(), "it must have one number of tokens per layer"),
        Some(blocks) => match blocks.iter().find(|&&block| block > MAX_BLOCK) {
            Some(block) => wrong(block.to_string(), "must be at most 65536"),
            None => Ok(blocks),
        },
    }
}

/// Options that all layers' attention shares.
struct DeepSeek4Config {
    norm: NormKind,
    q_lora_rank: usize,
    /// Rotated dimensions of a head, which are the last ones.
    qk_rope_dim: usize,
    window: Mask,
    /// Rotary embedding of layers without and with blocks.
    ropes: [RopeKeys; 2],
    /// Number of head groups, and rank of each group's output projection.
    groups: (usize, usize),
    /// Indexer, if there are layers with short blocks.
    indexer: Option<IndexerSizes>,
}

impl DeepSeek4Config {
    fn read(
        keys: &Keys<'_>,
        hp: &Hparams,
        norm: NormKind,
        blocks: &[usize],
    ) -> Result<Self, ModelError> {
        let wrong = |key: &str, value: usize, reason| {
            Err(ModelError::KeyValue { key: keys.name(key), value: value.to_string(), reason })
        };
        if hp.key_dim != hp.value_dim {
            return wrong(
                "attention.value_length",
                hp.value_dim,
                "keys are also the values, so it must equal attention.key_length",
            );
        }
        let groups = keys.count("attention.output_group_count")?;
        if hp.heads.iter().any(|heads| !heads.is_multiple_of(groups)) {
            return wrong(
                "attention.output_group_count",
                groups,
                "must divide the number of heads",
            );
        }
        let rope = RopeKeys::read(keys, hp.key_dim, hp.n_ctx)?;
        let base = rope::base(keys, "attention.compress_rope_freq_base", rope.base)?;
        let pooled = RopeKeys { base, ..rope }.checked(keys, hp.key_dim)?;
        Ok(Self {
            norm,
            q_lora_rank: keys.count("attention.q_lora_rank")?,
            qk_rope_dim: rope.dims,
            window: Mask::Window(keys.count("attention.sliding_window")? as u32),
            ropes: [rope.unscaled(), pooled],
            groups: (groups, keys.count("attention.output_lora_rank")?),
            indexer: blocks
                .contains(&SHORT_BLOCK)
                .then(|| IndexerSizes::read(keys, rope.dims))
                .transpose()?,
        })
    }

    /// Rotary table of layers with or without blocks.
    fn rope(&self, has_blocks: bool) -> Rope {
        // YaRN does not change the magnitude here.
        Rope { magnitude: 1.0, ..self.ropes[usize::from(has_blocks)].table(RopeKind::Norm, None) }
    }
}

/// Attention of a layer.
struct Attention {
    down: Linear,
    down_norm: AnyNorm,
    up: Linear,
    key: Linear,
    key_norm: AnyNorm,
    /// Norm of each query head, without weights.
    query_norm: AnyNorm,
    /// First rotated dimension; rotation and its inverse.
    rope_start: usize,
    ropes: [RopeId; 2],
    spec: AttentionSpec,
    blocks: Option<(BlockPooling, Option<Indexer>)>,
    out: PerHeadLinear,
    wo: Linear,
}

/// Pools blocks of tokens to cache rows.
struct BlockPooling {
    x: Linear,
    gate: Linear,
    spec: PoolSpec,
    norm: AnyNorm,
    /// First rotated dimension, and rotation by the position of the block's first token.
    rope_start: usize,
    rope: RopeId,
}

/// Selects blocks.
struct Indexer {
    query: Linear,
    rope: RopeId,
    weights: Linear,
    keys: BlockPooling,
    spec: TopKPositionsSpec,
}

impl Attention {
    fn load(
        b: &mut LayerLoader<'_, '_>,
        config: &DeepSeek4Config,
        block: usize,
    ) -> Result<Self, ModelError> {
        let (n_embd, heads, dim) = (b.hp.n_embd, b.hp.heads[b.i], b.hp.key_dim);
        let rope = config.rope(block > 0);
        let back = b.w.rope(Rope { is_inverse: true, ..rope.clone() });
        let (groups, rank) = config.groups;
        let width = heads * dim / groups;
        let wide = b.w.per_head_or_stacked(
            &format!("{}.attn_output_a.weight", b.name),
            &[width, rank, groups],
        )?;
        let mask = config.window;
        let sinks = Some(b.tensor("attn_sinks.weight", &[heads])?);
        let causal = AttentionSpec::causal(heads, 1, dim, dim);
        Ok(Self {
            down: b.linear("attn_q_a", n_embd, config.q_lora_rank)?,
            down_norm: b.norm_of("attn_q_a_norm", &[config.q_lora_rank])?,
            up: b.linear("attn_q_b", config.q_lora_rank, heads * dim)?,
            key: b.linear("attn_kv", n_embd, dim)?,
            key_norm: b.norm_of("attn_kv_a_norm", &[dim])?,
            query_norm: config.norm.unweighted(dim),
            rope_start: dim - config.qk_rope_dim,
            ropes: [b.w.rope(rope), back],
            spec: AttentionSpec { mask, sinks, values_in_keys: true, ..causal },
            blocks: match block {
                0 => None,
                block => {
                    let indexer = config.indexer.filter(|_| block == SHORT_BLOCK);
                    let indexer =
                        indexer.map(|indexer| Indexer::load(b, config, indexer)).transpose()?;
                    Some((BlockPooling::load(b, "attn_compressor", config, (block, dim))?, indexer))
                }
            },
            out: PerHeadLinear { w: wide, input: width, out: rank, heads: groups },
            wo: b.linear("attn_output_b", groups * rank, n_embd)?,
        })
    }
}

impl BlockPooling {
    /// Loads `NAME_{kv,gate,ape,norm}`.
    fn load(
        b: &mut LayerLoader<'_, '_>,
        name: &str,
        config: &DeepSeek4Config,
        (block, dim): (usize, usize),
    ) -> Result<Self, ModelError> {
        let (n_embd, overlaps) = (b.hp.n_embd, block == SHORT_BLOCK);
        let cols = if overlaps { 2 * dim } else { dim };
        let bias = format!("{name}_ape.weight");
        let rope = Rope { position_offset: block as u32 - 1, ..config.rope(true) };
        Ok(Self {
            x: b.linear(&format!("{name}_kv"), n_embd, cols)?,
            gate: b.linear(&format!("{name}_gate"), n_embd, cols)?,
            spec: PoolSpec {
                bias: Some(b.tensor(&bias, &[cols, block])?),
                state: b.state(&bias, 3, cols)?,
                block,
                dim,
                overlaps,
            },
            norm: b.norm_of(&format!("{name}_norm"), &[dim])?,
            rope_start: dim - config.qk_rope_dim,
            rope: b.w.rope(rope),
        })
    }

    /// Pooled rows; each block's is at the row of its last token.
    fn pool(&self, g: &mut Graph, h: ValueId) -> ValueId {
        let (x, gate) =
            (g.linear("compressor_kv", &self.x, h), g.linear("compressor_score", &self.gate, h));
        let rows = g.recur("compressor", Recurrence::Pool { x, gate: Some(gate), spec: self.spec });
        let rows = self.norm.apply(g, "compressor_normed", rows);
        g.rope_from("compressor_rope", rows, (self.spec.dim, self.rope_start), self.rope)
    }
}

impl Indexer {
    fn load(
        b: &mut LayerLoader<'_, '_>,
        config: &DeepSeek4Config,
        indexer: IndexerSizes,
    ) -> Result<Self, ModelError> {
        let IndexerSizes { heads, dim, top_k, .. } = indexer;
        Ok(Self {
            query: b.linear("indexer.attn_q_b", config.q_lora_rank, heads * dim)?,
            rope: b.w.rope(config.rope(true)),
            weights: b.linear("indexer.proj", b.hp.n_embd, heads)?,
            keys: BlockPooling::load(b, "indexer_compressor", config, (SHORT_BLOCK, dim))?,
            spec: indexer.among_blocks(SHORT_BLOCK, top_k),
        })
    }

    /// Selects blocks for each token, from its low-rank query and the layer's input. A constant
    /// factor of all weights is omitted because it does not change the order.
    fn select(&self, g: &mut Graph, layer: usize, low_rank: ValueId, h: ValueId) -> ValueId {
        let dim = self.spec.dim;
        let q = g.linear("lid_q", &self.query, low_rank);
        let q = g.rope_from("lid_q_rope", q, (dim, self.keys.rope_start), self.rope);
        let weights = g.linear("lid_weights", &self.weights, h);
        let keys = self.keys.pool(g, h);
        g.top_k_positions("lid_top_k", layer, [q, keys], Some(weights), self.spec)
    }
}

impl Mixer for Attention {
    fn cache_layers(&self) -> Vec<CacheLayer> {
        let own = self.spec.cache_layer();
        let mut layers = vec![own];
        if let Some((pooling, indexer)) = &self.blocks {
            layers.push(CacheLayer { mask: Mask::Pooled(pooling.spec.block as u32), ..own });
            layers.extend(indexer.as_ref().map(|indexer| indexer.spec.cache_layer()));
        }
        layers
    }

    fn mix(&self, g: &mut Graph, context: &mut MixerContext, h: ValueId) -> ValueId {
        let (layer, heads) = (context.cache_layer, (self.spec.key_dim, self.rope_start));
        let low_rank = g.linear("qr", &self.down, h);
        let low_rank = self.down_norm.apply(g, "qr_norm", low_rank);
        let q = g.linear("q", &self.up, low_rank);
        let q = self.query_norm.apply(g, "q_norm", q);
        let q = g.rope_from("q_rope", q, heads, self.ropes[0]);
        let k = g.linear("kv", &self.key, h);
        let k = self.key_norm.apply(g, "kv_norm", k);
        let k = g.rope_from("kv_rope", k, heads, self.ropes[0]);
        let pooled = self.blocks.as_ref().map(|(pooling, indexer)| Pooled {
            layer: layer + 1,
            mask: Mask::Pooled(pooling.spec.block as u32),
            rows: pooling.pool(g, h),
            selected: indexer
                .as_ref()
                .map(|indexer| (indexer.select(g, layer + 2, low_rank, h), indexer.spec.selected)),
        });
        let a = match pooled {
            None => g.attention("attn_raw", layer, [q, k, k], self.spec),
            Some(pooled) => g.attention_and_pooled("attn_pooled", layer, [q, k], pooled, self.spec),
        };
        g.rope_from("attn_derope", a, heads, self.ropes[1])
    }

    fn finish(&self, g: &mut Graph, mixed: ValueId) -> ValueId {
        let low_rank = g.per_head_linear("attn_wo_a", &self.out, mixed);
        g.linear("attn_out", &self.wo, low_rank)
    }
}

/// Experts of all layers.
struct ExpertLayers {
    shape: ExpertShape,
    /// Hidden dimension of the shared experts.
    shared: usize,
    /// Activation limits of experts and shared experts, for each layer.
    limits: [Vec<Option<f32>>; 2],
    /// Number of first layers that select experts by token id.
    hash_layers: usize,
}

impl ExpertLayers {
    fn read(keys: &Keys<'_>, hp: &Hparams) -> Result<Self, ModelError> {
        let hidden = keys.count("expert_feed_forward_length")?;
        let [limits, shared_limits] = keys.glu_limits(hp.n_layer)?;
        Ok(Self {
            shape: ExpertShape::read_with_routing(keys, hidden, Gating::SqrtSoftplus)?,
            shared: keys.shared_width(hidden)?,
            limits: [limits, shared_limits],
            hash_layers: keys.opt_count("hash_layer_count")?.unwrap_or(0),
        })
    }

    fn load(&self, b: &mut LayerLoader<'_, '_>) -> Result<FeedForward, ModelError> {
        let n = b.hp.n_embd;
        let [glu, shared_limits] = [&self.limits[0], &self.limits[1]]
            .map(|limits| limits[b.i].map_or(Glu::Silu, |limit| Glu::SiluOfClamped { limit }));
        let mut experts = Experts::load(b.w, &b.name, n, ExpertShape { glu, ..self.shape })?;
        if b.i < self.hash_layers {
            experts = experts.with_experts_by_token(
                b.w,
                &format!("{}.ffn_gate_tid2eid.weight", b.name),
                b.hp.n_vocab,
            )?;
        }
        if self.shared == 0 {
            return Ok(FeedForward::Moe(experts));
        }
        Ok(FeedForward::Shared(
            experts,
            SharedExpert::load(b.w, &b.name, n, self.shared, shared_limits)?,
        ))
    }
}
