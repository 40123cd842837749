//! Qwen 4 Exp: several residual streams by gates in the place of all norms (hyper-connections); layers of the gated delta rule, with a layer
//! of gated attention every few, to blocks of tokens that an indexer chooses by the mean of their keys, and to what lies behind the last
//! whole block; a mixture of experts beside a shared one in each. Before one layer all streams are told what hashed n-grams say.
//! GGUF: `general.architecture = "qwen4exp"`.

use puna_graph::*;

use super::qwen3next;
use crate::decoder::{self, AnyNorm, Block, Decoder, NormKind};
use crate::delta::DeltaNet;
use crate::error::ModelError;
use crate::gated_streams::{GateForm, GatedStreams};
use crate::hparams::{Hparams, Keys};
use crate::hybrid::{Attention, Hybrid, HybridLayer, Mixer, Residual, SsmKeys, Trail};
use crate::indexer::IndexerForm;
use crate::model::{LoadOptions, Loaded};
use crate::ngram_embedding::{GramKeys, Grams};
use crate::rope::RopeKeys;
use crate::weights::Weights;

/// Tokens of a block at most.
const LONGEST: usize = 1 << 16;

pub(super) fn load(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<Loaded, ModelError> {
    let hp = Hparams::read(keys)?;
    let eps = keys.rms_eps()?;
    let (norm, ssm) = (NormKind::Rms(eps), SsmKeys::read(keys, true)?);
    let form = GateForm::read(keys, hp.n_embd, eps)?;
    let said = GramKeys::read(keys, hp.n_layer)?;
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
    let grams = match &said {
        Some(said) => {
            let mut block = Block::new(w, &hp, norm, said.layer);
            Some((said.layer, Grams::load(&mut block, keys, said, form)?))
        }
        None => None,
    };
    let residual: Box<dyn Residual> = Box::new(GatedStreams::load(w, hp.n_layer, form, grams)?);
    let around = Decoder::with_norm(w, &hp, AnyNorm::None, Vec::new())?;
    Ok(Hybrid { residual: Some(residual), ..Hybrid::between(around, layers) }.loaded(&hp))
}

/// What indexers have in common.
struct Indexers {
    form: IndexerForm,
    /// How their heads turn, and those of attention.
    rope: RopeKeys,
    /// Tokens of each layer's blocks; zero for layers that see everything.
    blocks: Vec<usize>,
}

impl Indexers {
    fn read(keys: &Keys<'_>, hp: &Hparams) -> Result<Self, ModelError> {
        const KEY: &str = "attention.compress_ratios";
        let rope = qwen3next::in_sections(keys, hp)?;
        let form = IndexerForm::read(keys, rope.dims)?;
        let blocks = keys.per_layer(KEY, hp.n_layer)?.unwrap_or_else(|| vec![0; hp.n_layer]);
        let fits =
            |&block: &usize| block == 0 || block <= LONGEST && form.count.is_multiple_of(block);
        match blocks.iter().find(|block| !fits(block)) {
            None => Ok(Self { form, rope, blocks }),
            Some(block) => {
                let (key, value) = (keys.name(KEY), block.to_string());
                let reason = "a block has at most 65536 tokens, and attention.indexer.top_k is of whole blocks";
                Err(ModelError::KeyValue { key, value, reason })
            }
        }
    }
}

/// Attention to blocks of tokens.
struct BlockAttention {
    attention: Attention,
    query: Linear,
    query_norm: AnyNorm,
    key: Linear,
    /// Of the mean key of a block, which turns as its first token does.
    pool: PoolSpec,
    key_norm: AnyNorm,
    ropes: [RopeId; 2],
    spec: TopKPositionsSpec,
    chosen: SelectedPositions,
}

impl BlockAttention {
    fn load(
        b: &mut Block<'_, '_>,
        indexers: &Indexers,
        (mut attention, rope): (Attention, RopeId),
        block: usize,
    ) -> Result<Self, ModelError> {
        let IndexerForm { heads, dim, count, .. } = indexers.form;
        let n_embd = b.hp.n_embd;
        let first = Rope { behind: block as u32 - 1, ..indexers.rope.table(RopeKind::Neox, None) };
        let spec = indexers.form.among_blocks(block, count / block);
        attention.spec.sees_tail = true;
        Ok(Self {
            attention,
            query: b.linear("indexer.q_proj", n_embd, heads * dim)?,
            query_norm: b.norm_of("indexer.q_norm", &[dim])?,
            key: b.linear("indexer.k_proj", n_embd, dim)?,
            pool: indexers.form.pool(b, "indexer.k_proj.weight", block, None)?,
            key_norm: b.norm_of("indexer.k_norm", &[dim])?,
            ropes: [rope, b.w.rope(first)],
            spec,
            chosen: SelectedPositions { block, ..spec.chosen },
        })
    }

    /// The blocks that a token attends to. Scores would be divided by the root of a head's features, which changes no order.
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

    fn mix(&self, g: &mut Graph, trail: &mut Trail, h: ValueId) -> ValueId {
        let chosen = self.select(g, trail.layer + 1, h);
        self.attention.attend(g, trail.layer, h, Some((chosen, self.chosen)))
    }

    fn finish(&self, g: &mut Graph, mixed: ValueId) -> ValueId {
        self.attention.finish(g, mixed)
    }
}
