//! GLM 5 Next: several residual streams that flow into each other (hyper-connections); layers of delta attention, here and there latent
//! attention without rotation to blocks of tokens: an indexer chooses them by keys that it pools of each, and what lies behind the
//! last whole block is always seen. Dense layers first, then mixtures of bounded units beside shared ones.
//! GGUF: `general.architecture = "glm5-next"`.

use puna_graph::*;

use crate::decoder::{self, AnyNorm, Block, NormKind};
use crate::delta::UNIT_EPS;
use crate::error::ModelError;
use crate::experts::ExpertShape;
use crate::hparams::{Hparams, Keys};
use crate::hybrid::{Hybrid, HybridLayer, Mixer, Residual, Trail};
use crate::hyper::{HyperForm, Streams};
use crate::indexer::{IndexerForm, KEY_EPS};
use crate::kda::{DeltaAttention, KdaForm};
use crate::latent::{Latent, LatentSizes};
use crate::model::{LoadOptions, Loaded};
use crate::weights::Weights;

pub(super) fn load(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<Loaded, ModelError> {
    let hp = Hparams::read_hybrid(keys)?;
    let eps = keys.rms_eps()?;
    let norm = NormKind::Rms(eps);
    let kda = KdaForm { eps: UNIT_EPS, ..KdaForm::read(keys)?.bounded(keys, -1.0)? };
    let (form, indexers) = (LatentSizes::read(keys, &hp, w)?, Indexers::read(keys, &hp)?);
    let dense = keys.opt_count("leading_dense_block_count")?.unwrap_or(0);
    let hidden = keys.count("expert_feed_forward_length")?;
    let (shape, shared) =
        (ExpertShape::read_all(keys, hidden, Gating::Sigmoid)?, keys.shared_width(hidden)?);
    let [bounds, beside] = keys.bounds_of_units(hp.n_layer)?;
    let layers = decoder::layers(w, &hp, norm, |b| {
        let mixer: Box<dyn Mixer> = match hp.kv_heads[b.i] {
            0 => Box::new(DeltaAttention::load(b, kda)?),
            _ => Box::new(BlockAttention::load(b, (form, norm), &indexers)?),
        };
        // Dense layers have the unit of the part that every token uses.
        let [glu, dense_glu] = [bounds[b.i], beside[b.i]]
            .map(|bound| bound.map_or(Glu::Silu, |limit| Glu::SiluOfClamped { limit }));
        let ffn = match b.i < dense {
            true => b.gated(dense_glu)?,
            false => b.experts_beside_other(ExpertShape { glu, ..shape }, shared, dense_glu)?,
        };
        let ffn = Some((b.norm("ffn_norm")?, ffn));
        Ok(HybridLayer { norm: b.norm("attn_norm")?, mixers: vec![mixer], ffn })
    })?;
    let connections = HyperForm::read_mixing(keys, eps)?;
    let streams = Streams::load_without_end(w, hp.n_embd, hp.n_layer, &connections)?;
    let residual: Box<dyn Residual> = Box::new(streams);
    Ok(Hybrid { residual: Some(residual), ..Hybrid::new(w, &hp, norm, layers)? }.loaded(&hp))
}

/// What indexers have in common.
struct Indexers {
    form: IndexerForm,
    /// Of the norm of their keys.
    eps: f32,
    /// Tokens of a block.
    block: usize,
    /// Which layers have one of their own, of those that attend.
    owners: Vec<bool>,
}

impl Indexers {
    fn read(keys: &Keys<'_>, hp: &Hparams) -> Result<Self, ModelError> {
        let wrong = |key: &str, value: String, reason| {
            let key = keys.name(&format!("attention.indexer.{key}"));
            Err(ModelError::KeyValue { key, value, reason })
        };
        let form = IndexerForm::read(keys, 0)?;
        let block = keys.count("attention.indexer.kpool")?;
        if block < 2 || !form.count.is_multiple_of(block) {
            return wrong(
                "kpool",
                block.to_string(),
                "must be more than one and divide attention.indexer.top_k",
            );
        }
        if keys.opt_bool("attention.indexer.kpool_select_tail")? == Some(false) {
            return wrong(
                "kpool_select_tail",
                "false".into(),
                "the first tokens would see nothing",
            );
        }
        let owners = keys.flags("attention.indexer.types", hp.n_layer)?;
        let owners = owners.unwrap_or_else(|| vec![true; hp.n_layer]);
        let first = (0..hp.n_layer).find(|&i| hp.kv_heads[i] > 0);
        if first.is_some_and(|first| !owners[first]) {
            return wrong(
                "types",
                "none in the first layer that attends".into(),
                "there is none that it could share",
            );
        }
        let eps = keys.opt_f32("attention.layer_norm_epsilon")?.unwrap_or(KEY_EPS);
        Ok(Self { form, eps, block, owners })
    }
}

/// Chooses blocks of tokens.
struct Indexer {
    query: Linear,
    key: Linear,
    key_norm: AnyNorm,
    /// How much each feature of a token's key counts in its block.
    gate: Linear,
    pool: PoolSpec,
    weights: Linear,
    spec: TopKPositionsSpec,
}

impl Indexer {
    fn load(b: &mut Block<'_, '_>, indexers: &Indexers, thin: usize) -> Result<Self, ModelError> {
        const BIAS: &str = "indexer_compressor_ape.weight";
        let IndexerForm { heads, dim, count, .. } = indexers.form;
        let (n_embd, block) = (b.hp.n_embd, indexers.block);
        let norm = NormKind::Layer(indexers.eps);
        let bias = b.tensor(BIAS, &[dim, block])?;
        Ok(Self {
            query: b.linear("indexer.attn_q_b", thin, heads * dim)?,
            key: b.linear("indexer.attn_k", n_embd, dim)?,
            key_norm: norm.load(b.w, &format!("{}.indexer.k_norm", b.name), &[dim])?,
            gate: b.linear("indexer_compressor_gate", n_embd, dim)?,
            pool: indexers.form.pool(b, BIAS, block, Some(bias))?,
            weights: b.linear("indexer.proj", n_embd, heads)?,
            spec: indexers.form.among_blocks(block, count / block),
        })
    }

    /// The blocks that a token attends to, of its thin query and what the layer reads. As in other indexers, a factor of all weights is
    /// left out.
    fn select(&self, g: &mut Graph, layer: usize, thin: ValueId, h: ValueId) -> ValueId {
        let q = g.linear("indexer_q", &self.query, thin);
        let (k, gate) =
            (g.linear("indexer_k", &self.key, h), g.linear("indexer_gate", &self.gate, h));
        let weights = g.linear("indexer_weights", &self.weights, h);
        let k = self.key_norm.apply(g, "indexer_k_normed", k);
        let keys =
            g.recur("indexer_pool_k", Recurrence::Pool { x: k, gate: Some(gate), spec: self.pool });
        g.top_k_positions("indexer_top_k", layer, [q, keys], Some(weights), self.spec)
    }
}

/// Latent attention to blocks that an indexer chooses, or that the last one before it has chosen.
struct BlockAttention {
    latent: Latent,
    indexer: Option<Indexer>,
    spec: AttentionSpec,
    chosen: SelectedPositions,
    /// From what each head read to its values.
    values: HeadLinear,
    wo: Linear,
}

impl BlockAttention {
    fn load(
        b: &mut Block<'_, '_>,
        (form, norm): (LatentSizes, NormKind),
        indexers: &Indexers,
    ) -> Result<Self, ModelError> {
        let (n_embd, heads) = (b.hp.n_embd, b.hp.heads[b.i]);
        let (latent, values) = Latent::load(b.w, &b.name, (n_embd, heads), (form, norm, None))?;
        let thin = form.q_lora_rank.unwrap_or(n_embd);
        let block = indexers.block;
        Ok(Self {
            latent,
            indexer: if indexers.owners[b.i] {
                Some(Indexer::load(b, indexers, thin)?)
            } else {
                None
            },
            spec: AttentionSpec { sees_tail: true, ..form.attention(heads) },
            chosen: SelectedPositions { lists: 1, count: indexers.form.count / block, block },
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

    fn mix(&self, g: &mut Graph, trail: &mut Trail, h: ValueId) -> ValueId {
        let thin = self.latent.source(g, h);
        if let Some(indexer) = &self.indexer {
            trail.chosen = Some(indexer.select(g, trail.layer + 1, thin, h));
        }
        let chosen = trail.chosen.expect("the first layer that attends has an indexer");
        let qkv = self.latent.project_from(g, h, thin);
        let a = g.sparse_attention("kqv_out", trail.layer, qkv, (chosen, self.chosen), self.spec);
        g.linear_of_heads("kqv_values", &self.values, a)
    }

    fn finish(&self, g: &mut Graph, mixed: ValueId) -> ValueId {
        g.linear("attn_out", &self.wo, mixed)
    }
}
