//! DeepSeek 4: several residual streams that flow into each other (hyper-connections); attention of all heads to one key, which is its own
//! value, within a window, and in most layers beside it to rows that blocks of earlier tokens were pooled into: to all where a block is
//! long, else to those that an indexer chooses. What heads read turns back by the token's position and goes to the stream by a thin
//! matrix for each group of heads. Mixtures of bounded experts beside a shared one, in the first layers by the token's id.
//! GGUF: `general.architecture = "deepseek4"`.

use puna_graph::*;

use crate::blocks::{Experts, FeedForward, Shared};
use crate::decoder::{self, AnyNorm, Block, NormKind};
use crate::error::ModelError;
use crate::experts::ExpertShape;
use crate::hparams::{Hparams, Keys};
use crate::hybrid::{Hybrid, HybridLayer, Mixer, Residual, Trail};
use crate::hyper::{HyperForm, Streams};
use crate::indexer::IndexerForm;
use crate::model::{LoadOptions, Loaded};
use crate::rope::{self, RopeKeys};
use crate::weights::Weights;

/// Tokens of a block where blocks overlap and are chosen.
const SHORT: usize = 4;
/// Tokens of a block at most.
const LONGEST: usize = 1 << 16;

pub(super) fn load(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<Loaded, ModelError> {
    let hp = Hparams::read(keys)?;
    let eps = keys.rms_eps()?;
    let norm = NormKind::Rms(eps);
    let blocks = blocks(keys, hp.n_layer)?;
    let form = Form::read(keys, &hp, norm, &blocks)?;
    let experts = Mixtures::read(keys, &hp)?;
    let layers = decoder::layers(w, &hp, norm, |b| {
        let attention = Attention::load(b, &form, blocks[b.i])?;
        let ffn = experts.load(b)?;
        let ffn = Some((b.norm("ffn_norm")?, ffn));
        Ok(HybridLayer { norm: b.norm("attn_norm")?, mixers: vec![Box::new(attention)], ffn })
    })?;
    let connections = HyperForm::read_mixing(keys, eps)?;
    let residual: Box<dyn Residual> =
        Box::new(Streams::load(w, hp.n_embd, hp.n_layer, &connections)?);
    Ok(Hybrid { residual: Some(residual), ..Hybrid::new(w, &hp, norm, layers)? }.loaded(&hp))
}

/// Tokens of each layer's blocks; zero for layers with a window alone.
fn blocks(keys: &Keys<'_>, layers: usize) -> Result<Vec<usize>, ModelError> {
    const KEY: &str = "attention.compress_ratios";
    let wrong =
        |value: String, reason| Err(ModelError::KeyValue { key: keys.name(KEY), value, reason });
    match keys.per_layer(KEY, layers)? {
        None => wrong("absent".into(), "a number of tokens for each layer is needed"),
        Some(blocks) => match blocks.iter().find(|&&block| block > LONGEST) {
            Some(block) => wrong(block.to_string(), "a block has at most 65536 tokens"),
            None => Ok(blocks),
        },
    }
}

/// What all layers' attention has in common.
struct Form {
    norm: NormKind,
    q_lora_rank: usize,
    /// Features of a head that turn, the last ones.
    qk_rope_dim: usize,
    window: Mask,
    /// How layers with a window alone turn, and others.
    ropes: [RopeKeys; 2],
    /// Groups of heads, and features that each becomes.
    groups: (usize, usize),
    /// Where there are layers of short blocks.
    indexer: Option<IndexerForm>,
}

impl Form {
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
                "keys are values, and must be as long",
            );
        }
        let groups = keys.count("attention.output_group_count")?;
        if hp.heads.iter().any(|heads| !heads.is_multiple_of(groups)) {
            return wrong(
                "attention.output_group_count",
                groups,
                "heads must come in groups of one size",
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
                .contains(&SHORT)
                .then(|| IndexerForm::read(keys, rope.dims))
                .transpose()?,
        })
    }

    /// The table of a layer with or without blocks.
    fn rope(&self, has_blocks: bool) -> Rope {
        // Yarn leaves cosine and sine as they are.
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
    /// Of each head's query.
    unit: AnyNorm,
    /// The first feature that turns, how, and how it turns back.
    start: usize,
    ropes: [RopeId; 2],
    spec: AttentionSpec,
    blocks: Option<(Pooling, Option<Indexer>)>,
    out: HeadLinear,
    wo: Linear,
}

/// Blocks of tokens as rows.
struct Pooling {
    x: Linear,
    gate: Linear,
    spec: PoolSpec,
    norm: AnyNorm,
    /// The first feature that turns, by the position of a block's first token.
    start: usize,
    rope: RopeId,
}

/// Chooses blocks.
struct Indexer {
    query: Linear,
    rope: RopeId,
    weights: Linear,
    keys: Pooling,
    spec: TopKPositionsSpec,
}

impl Attention {
    fn load(b: &mut Block<'_, '_>, form: &Form, block: usize) -> Result<Self, ModelError> {
        let (n_embd, heads, dim) = (b.hp.n_embd, b.hp.heads[b.i], b.hp.key_dim);
        let rope = form.rope(block > 0);
        let back = b.w.rope(Rope { is_back: true, ..rope.clone() });
        let (groups, rank) = form.groups;
        let width = heads * dim / groups;
        let wide =
            b.w.heads_in_rows(&format!("{}.attn_output_a.weight", b.name), &[width, rank, groups])?;
        let mask = form.window;
        let sinks = Some(b.tensor("attn_sinks.weight", &[heads])?);
        let causal = AttentionSpec::causal(heads, 1, dim, dim);
        Ok(Self {
            down: b.linear("attn_q_a", n_embd, form.q_lora_rank)?,
            down_norm: b.norm_of("attn_q_a_norm", &[form.q_lora_rank])?,
            up: b.linear("attn_q_b", form.q_lora_rank, heads * dim)?,
            key: b.linear("attn_kv", n_embd, dim)?,
            key_norm: b.norm_of("attn_kv_a_norm", &[dim])?,
            unit: form.norm.plain(dim),
            start: dim - form.qk_rope_dim,
            ropes: [b.w.rope(rope), back],
            spec: AttentionSpec { mask, sinks, values_in_keys: true, ..causal },
            blocks: match block {
                0 => None,
                block => {
                    let indexer = form.indexer.filter(|_| block == SHORT);
                    let indexer =
                        indexer.map(|indexer| Indexer::load(b, form, indexer)).transpose()?;
                    Some((Pooling::load(b, "attn_compressor", form, (block, dim))?, indexer))
                }
            },
            out: HeadLinear { w: wide, input: width, out: rank, heads: groups },
            wo: b.linear("attn_output_b", groups * rank, n_embd)?,
        })
    }
}

impl Pooling {
    /// `NAME_{kv,gate,ape,norm}`.
    fn load(
        b: &mut Block<'_, '_>,
        name: &str,
        form: &Form,
        (block, dim): (usize, usize),
    ) -> Result<Self, ModelError> {
        let (n_embd, overlaps) = (b.hp.n_embd, block == SHORT);
        let cols = if overlaps { 2 * dim } else { dim };
        let bias = format!("{name}_ape.weight");
        let rope = Rope { behind: block as u32 - 1, ..form.rope(true) };
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
            start: dim - form.qk_rope_dim,
            rope: b.w.rope(rope),
        })
    }

    /// The rows, each at the last token of its block.
    fn pool(&self, g: &mut Graph, h: ValueId) -> ValueId {
        let (x, gate) =
            (g.linear("compressor_kv", &self.x, h), g.linear("compressor_score", &self.gate, h));
        let rows = g.recur("compressor", Recurrence::Pool { x, gate: Some(gate), spec: self.spec });
        let rows = self.norm.apply(g, "compressor_normed", rows);
        g.rope_from("compressor_rope", rows, (self.spec.dim, self.start), self.rope)
    }
}

impl Indexer {
    fn load(b: &mut Block<'_, '_>, form: &Form, indexer: IndexerForm) -> Result<Self, ModelError> {
        let IndexerForm { heads, dim, count, .. } = indexer;
        Ok(Self {
            query: b.linear("indexer.attn_q_b", form.q_lora_rank, heads * dim)?,
            rope: b.w.rope(form.rope(true)),
            weights: b.linear("indexer.proj", b.hp.n_embd, heads)?,
            keys: Pooling::load(b, "indexer_compressor", form, (SHORT, dim))?,
            spec: indexer.among_blocks(SHORT, count),
        })
    }

    /// The blocks that a token attends to, of its thin query and what the layer reads. As in other indexers, a factor of all weights is
    /// left out.
    fn select(&self, g: &mut Graph, layer: usize, thin: ValueId, h: ValueId) -> ValueId {
        let dim = self.spec.dim;
        let q = g.linear("lid_q", &self.query, thin);
        let q = g.rope_from("lid_q_rope", q, (dim, self.keys.start), self.rope);
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

    fn mix(&self, g: &mut Graph, trail: &mut Trail, h: ValueId) -> ValueId {
        let (layer, heads) = (trail.layer, (self.spec.key_dim, self.start));
        let thin = g.linear("qr", &self.down, h);
        let thin = self.down_norm.apply(g, "qr_norm", thin);
        let q = g.linear("q", &self.up, thin);
        let q = self.unit.apply(g, "q_norm", q);
        let q = g.rope_from("q_rope", q, heads, self.ropes[0]);
        let k = g.linear("kv", &self.key, h);
        let k = self.key_norm.apply(g, "kv_norm", k);
        let k = g.rope_from("kv_rope", k, heads, self.ropes[0]);
        let pooled = self.blocks.as_ref().map(|(pooling, indexer)| Pooled {
            layer: layer + 1,
            mask: Mask::Pooled(pooling.spec.block as u32),
            rows: pooling.pool(g, h),
            chosen: indexer
                .as_ref()
                .map(|indexer| (indexer.select(g, layer + 2, thin, h), indexer.spec.chosen)),
        });
        let a = match pooled {
            None => g.attention("attn_raw", layer, [q, k, k], self.spec),
            Some(pooled) => g.attention_and_pooled("attn_pooled", layer, [q, k], pooled, self.spec),
        };
        g.rope_from("attn_derope", a, heads, self.ropes[1])
    }

    fn finish(&self, g: &mut Graph, mixed: ValueId) -> ValueId {
        let thin = g.linear_of_heads("attn_wo_a", &self.out, mixed);
        g.linear("attn_out", &self.wo, thin)
    }
}

/// The mixtures of all layers.
struct Mixtures {
    shape: ExpertShape,
    /// Width of the experts that every token uses.
    shared: usize,
    /// Bounds of both, for each layer.
    bounds: [Vec<Option<f32>>; 2],
    /// Layers whose experts are those of the token's id.
    by_token: usize,
}

impl Mixtures {
    fn read(keys: &Keys<'_>, hp: &Hparams) -> Result<Self, ModelError> {
        let hidden = keys.count("expert_feed_forward_length")?;
        let [bounds, beside] = keys.bounds_of_units(hp.n_layer)?;
        Ok(Self {
            shape: ExpertShape::read_all(keys, hidden, Gating::SqrtSoftplus)?,
            shared: keys.shared_width(hidden)?,
            bounds: [bounds, beside],
            by_token: keys.opt_count("hash_layer_count")?.unwrap_or(0),
        })
    }

    fn load(&self, b: &mut Block<'_, '_>) -> Result<FeedForward, ModelError> {
        let n = b.hp.n_embd;
        let [glu, beside] = [&self.bounds[0], &self.bounds[1]]
            .map(|bounds| bounds[b.i].map_or(Glu::Silu, |limit| Glu::SiluOfClamped { limit }));
        let mut experts = Experts::load(b.w, &b.name, n, ExpertShape { glu, ..self.shape })?;
        if b.i < self.by_token {
            experts = experts.listed(
                b.w,
                &format!("{}.ffn_gate_tid2eid.weight", b.name),
                b.hp.n_vocab,
            )?;
        }
        if self.shared == 0 {
            return Ok(FeedForward::Moe(experts));
        }
        Ok(FeedForward::Shared(experts, Shared::load(b.w, &b.name, n, self.shared, beside)?))
    }
}
