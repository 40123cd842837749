//! The decoder that most language models are: layers that attend and then transform, each added to a stream of features.
//! Families differ in options of a layer and of the whole; an architecture's file names those that it takes.

use std::ops::Range;

use puna_graph::*;

use crate::blocks::{FeedForward, Mlp, Plain, Qkv};
use crate::error::ModelError;
use crate::experts::{ExpertShape, Experts, Shared};
use crate::hparams::Hparams;
use crate::hyper::{self, Streams};
use crate::indexer::{Selections, SparseSelection};
use crate::latent::{Latent, LatentSizes};
use crate::model::{Architecture, Loaded, Shape, Unmasking};
use crate::weights::Weights;

pub use crate::norms::{AnyNorm, NormKind};

fn normed(g: &mut Graph, name: &'static str, norm: &Option<AnyNorm>, x: ValueId) -> ValueId {
    norm.as_ref().map_or(x, |norm| norm.apply(g, name, x))
}

fn scaled(g: &mut Graph, name: &'static str, x: ValueId, by: f32) -> ValueId {
    if by == 1.0 { x } else { g.scale(name, x, by) }
}

/// Norms of query and key.
#[derive(Debug, Clone, Copy)]
pub enum QkNorm {
    /// None.
    None,
    /// Of query and key, before they turn.
    Before([AnyNorm; 2]),
    /// Of query and key, after they turned.
    After([AnyNorm; 2]),
}

/// One layer, in the order in which it computes.
#[derive(Clone)]
pub struct Layer {
    /// Of what attention reads; without, it reads the stream.
    pub attn_norm: Option<AnyNorm>,
    /// Query, key and value.
    pub qkv: Qkv,
    /// Bound of all three.
    pub clamp: Option<f32>,
    /// Norms of query and key.
    pub qk_norm: QkNorm,
    /// `[heads]`: multiplies each head of the query behind all that.
    pub query_factors: Option<WeightId>,
    /// How query and key turn with the position.
    pub rope: Option<RopeId>,
    /// How queries grow with the position.
    pub temperature: Option<Temperature>,
    /// Attention.
    pub attention: AttentionSpec,
    /// What it sees of what its mask lets through.
    pub selection: SparseSelection,
    /// From what each head read to its values, where that is something else.
    pub values: Option<HeadLinear>,
    /// A projection of what attention read, and the function of it that weighs each result, or all of a head.
    pub gate: Option<(Linear, Activation)>,
    /// Multiplies what heads read.
    pub read_scale: f32,
    /// Of what all heads read together.
    pub heads_norm: Option<AnyNorm>,
    /// From the heads back to the stream.
    pub wo: Linear,
    /// Of attention's part before it is added.
    pub post_attn_norm: Option<AnyNorm>,
    /// Whether the feed-forward part reads the stream as it was before attention.
    pub parallel: bool,
    /// Of what the feed-forward part reads; without, it reads the stream, or in parallel what attention read.
    pub ffn_norm: Option<AnyNorm>,
    /// The feed-forward part.
    pub ffn: FeedForward,
    /// Whether a router reads the stream as it was before attention, without a norm.
    pub early_router: bool,
    /// Of its result before it is added.
    pub post_ffn_norm: Option<AnyNorm>,
    /// How much of the embeddings is added to the stream behind the layer.
    pub embd_share: f32,
    /// Of the stream behind the layer.
    pub stream_norm: Option<AnyNorm>,
}

/// The whole, in the order in which it computes.
pub struct Decoder {
    /// Features of the stream.
    pub n_embd: usize,
    /// Vectors of tokens.
    pub table: WeightId,
    /// Which of them a token takes.
    pub index: Index,
    /// Vectors of positions, added to those of tokens.
    pub positions: Option<WeightId>,
    /// Multiplies embeddings.
    pub embd_scale: f32,
    /// Of embeddings.
    pub embd_norm: Option<AnyNorm>,
    /// The layers.
    pub layers: Vec<Layer>,
    /// Several streams in the place of one.
    pub streams: Option<Streams>,
    /// Multiplies what layers add to the stream.
    pub residual_scale: f32,
    /// Of the stream behind the last layer.
    pub norm: AnyNorm,
    /// From hidden states to logits.
    pub head: Linear,
    /// Multiplies logits.
    pub logit_scale: f32,
    /// `cap · tanh(logit / cap)`.
    pub logit_cap: Option<f32>,
    /// Behind the last norm, one after the other.
    pub projections: Vec<Linear>,
    /// From hidden states to the scores of a reranker.
    pub classifier: Option<Linear>,
}

impl Decoder {
    /// A decoder of these layers: `token_embd`, `output_norm`, and `output` or else the table once more.
    pub fn new(
        w: &mut Weights<'_>,
        hp: &Hparams,
        norm: NormKind,
        layers: Vec<Layer>,
    ) -> Result<Self, ModelError> {
        let last = norm.load(w, "output_norm", &[hp.n_embd])?;
        Self::with_norm(w, hp, last, layers)
    }

    /// The same with this norm behind the last layer.
    pub fn with_norm(
        w: &mut Weights<'_>,
        hp: &Hparams,
        norm: AnyNorm,
        layers: Vec<Layer>,
    ) -> Result<Self, ModelError> {
        let table = w.tensor("token_embd.weight", &[hp.n_embd, hp.n_vocab])?;
        let head = w.head(table, hp.n_embd, hp.n_vocab)?;
        Self::with_head(w, hp, (norm, head), layers)
    }

    /// The same with this output matrix behind it.
    pub fn with_head(
        w: &mut Weights<'_>,
        hp: &Hparams,
        (norm, head): (AnyNorm, Linear),
        layers: Vec<Layer>,
    ) -> Result<Self, ModelError> {
        let table = w.tensor("token_embd.weight", &[hp.n_embd, hp.n_vocab])?;
        Ok(Self {
            n_embd: hp.n_embd,
            table,
            index: Index::Token,
            positions: None,
            embd_scale: 1.0,
            embd_norm: None,
            layers,
            streams: None,
            residual_scale: 1.0,
            norm,
            head,
            logit_scale: 1.0,
            logit_cap: None,
            projections: Vec::new(),
            classifier: None,
        })
    }

    /// As a model: with a cache where tokens see only what came before, else as an encoder.
    pub fn loaded(self, hp: &Hparams) -> Loaded {
        self.loaded_as(hp, |decoder| Box::new(decoder))
    }

    /// The same inside of an architecture that takes its parts in an order of its own.
    pub fn loaded_as(
        self,
        hp: &Hparams,
        arch: impl FnOnce(Self) -> Box<dyn Architecture>,
    ) -> Loaded {
        let cached = self.layers.iter().filter(|l| l.attention.mask.is_cached());
        let mut cache: Vec<CacheLayer> = cached.map(|l| l.attention.cache_layer()).collect();
        cache.extend(self.layers.iter().filter_map(|l| Some(l.selection.indexer()?.cache_layer())));
        let causal = !cache.is_empty();
        let score_labels = self.classifier.as_ref().map_or(0, |c| c.out);
        let shape = Shape {
            causal,
            has_logits: causal,
            score_labels,
            score_is_softmax: score_labels > 0,
            ..Shape::decoder(hp)
        };
        Loaded { arch: arch(self), cache, shape }
    }

    /// As a diffusion model: tokens see what lies before and behind them, and logits say what masked tokens are.
    pub fn unmasking(mut self, hp: &Hparams, unmasking: Unmasking) -> Loaded {
        self.layers.iter_mut().for_each(|layer| layer.attention.mask = Mask::Full);
        let shape = Shape { causal: false, unmasking: Some(unmasking), ..Shape::decoder(hp) };
        Loaded { arch: Box::new(self), cache: Vec::new(), shape }
    }

    /// What indexers before layer `i` have chosen: nothing that a graph would know which begins there.
    fn selections(&self, i: usize) -> Selections {
        let before = self.layers[..i].iter().filter(|l| l.selection.indexer().is_some()).count();
        Selections { layer: self.layers.len() + before, last: None }
    }

    fn layer(
        &self,
        g: &mut Graph,
        i: usize,
        mut x: ValueId,
        selections: &mut Selections,
        outputs_only: bool,
    ) -> ValueId {
        let l = &self.layers[i];
        let (read, mut writing) = self.read(g, i, 0, x);
        let mut h = normed(g, "attn_norm", &l.attn_norm, read);
        let mut a = l.attend(g, i, h, selections);
        if outputs_only && i + 1 == self.layers.len() {
            a = g.gather_outputs(a);
            if l.parallel && l.ffn_norm.is_none() {
                h = if h == x { h } else { g.gather_outputs(h) };
            }
            x = g.gather_outputs(x);
            writing = writing.map(|writing| hyper::gather_outputs(g, writing));
        }
        let a = scaled(g, "kqv_scaled", a, l.read_scale);
        let a = normed(g, "attn_sub_norm", &l.heads_norm, a);
        let a = g.linear("attn_out", &l.wo, a);
        let a = normed(g, "attn_post_norm", &l.post_attn_norm, a);
        let a = scaled(g, "attn_scaled", a, self.residual_scale);
        let before = x;
        x = hyper::add(g, "ffn_inp", x, a, writing);
        let (read, writing) = self.read(g, i, 1, x);
        let h = match &l.ffn_norm {
            Some(norm) => norm.apply(g, "ffn_norm", if l.parallel { before } else { read }),
            None => {
                if l.parallel {
                    h
                } else {
                    read
                }
            }
        };
        let f = l.ffn.forward_by(g, h, if l.early_router { before } else { h });
        let f = normed(g, "ffn_post_norm", &l.post_ffn_norm, f);
        let f = scaled(g, "ffn_scaled", f, self.residual_scale);
        hyper::add(g, "l_out", x, f, writing)
    }

    /// What a part of layer `i` reads, and how it writes where there are several streams.
    fn read(
        &self,
        g: &mut Graph,
        i: usize,
        part: usize,
        x: ValueId,
    ) -> (ValueId, Option<StreamWrite>) {
        let Some(streams) = &self.streams else { return (x, None) };
        let (read, writing) = streams.links[i][part].read(g, x);
        (read, Some(writing))
    }
}

impl Layer {
    /// Attention and a feed-forward part, with nothing else.
    pub fn plain(qkv: Qkv, attention: AttentionSpec, wo: Linear, ffn: FeedForward) -> Self {
        Self {
            attn_norm: None,
            qkv,
            clamp: None,
            qk_norm: QkNorm::None,
            query_factors: None,
            rope: None,
            temperature: None,
            attention,
            selection: SparseSelection::Dense,
            values: None,
            gate: None,
            read_scale: 1.0,
            heads_norm: None,
            wo,
            post_attn_norm: None,
            parallel: false,
            ffn_norm: None,
            ffn,
            early_router: false,
            post_ffn_norm: None,
            embd_share: 0.0,
            stream_norm: None,
        }
    }

    /// What attention makes of `h`, head after head.
    fn attend(&self, g: &mut Graph, i: usize, h: ValueId, selections: &mut Selections) -> ValueId {
        let source = self.qkv.source(g, h);
        let seen = selections.select(g, &self.selection, h, source);
        let projected = self.qkv.project_from(g, h, source);
        let gate = self.gate.as_ref().map(|(gate, kind)| (g.linear("attn_gate", gate, h), *kind));
        let [mut q, mut k, v] = match self.clamp {
            Some(limit) => {
                projected.map(|x| g.activate("qkv_clamped", Activation::Clamp { limit }, x))
            }
            None => projected,
        };
        if let QkNorm::Before(norms) = &self.qk_norm {
            [q, k] = norm_both(g, norms, [q, k]);
        }
        if let Some(rope) = self.rope {
            q = g.rope("Qcur_rope", q, self.attention.key_dim, rope);
            k = g.rope("Kcur_rope", k, self.attention.key_dim, rope);
        }
        if let QkNorm::After(norms) = &self.qk_norm {
            [q, k] = norm_both(g, norms, [q, k]);
        }
        if let Some(factors) = self.query_factors {
            let factors = g.embed("Qcur_factors", factors, self.attention.heads, Index::Fixed(0));
            q = g.mul("Qcur_scaled", q, factors);
        }
        if let Some(by) = self.temperature {
            q = g.temper("Qcur_attn_temp_scaled", q, by);
        }
        let a = match seen {
            Some(chosen) => g.sparse_attention("kqv_out", i, [q, k, v], chosen, self.attention),
            None => g.attention("kqv_out", i, [q, k, v], self.attention),
        };
        let a = self.values.as_ref().map_or(a, |values| g.linear_of_heads("kqv_values", values, a));
        let Some((gate, kind)) = gate else { return a };
        let gate = g.activate("attn_gate_act", kind, gate);
        g.mul("attn_gated", a, gate)
    }
}

fn norm_both(g: &mut Graph, norms: &[AnyNorm; 2], [q, k]: [ValueId; 2]) -> [ValueId; 2] {
    [norms[0].apply(g, "Qcur_normed", q), norms[1].apply(g, "Kcur_normed", k)]
}

impl Decoder {
    /// The stream before the first layer.
    pub fn enter(&self, g: &mut Graph) -> ValueId {
        let mut x = g.embed("inp_embd", self.table, self.n_embd, self.index);
        x = scaled(g, "inp_scaled", x, self.embd_scale);
        if let Some(positions) = self.positions {
            let positions = g.embed("pos_embd", positions, self.n_embd, Index::Position);
            x = g.add("inp_pos", x, positions);
        }
        x = normed(g, "inp_norm", &self.embd_norm, x);
        self.streams.as_ref().map_or(x, |streams| streams.begin(g, x))
    }

    /// The stream behind these layers, which `entered` the first of them. The last one of all lets only outputs through where that is
    /// wanted.
    pub fn pass(
        &self,
        g: &mut Graph,
        layers: Range<usize>,
        entered: ValueId,
        outputs_only: bool,
    ) -> ValueId {
        let mut x = entered;
        let mut selections = self.selections(layers.start);
        for i in layers {
            let Layer { embd_share, stream_norm, .. } = &self.layers[i];
            g.set_layer(Some(i));
            x = self.layer(g, i, x, &mut selections, outputs_only);
            if *embd_share != 0.0 {
                let is_last = outputs_only && i + 1 == self.layers.len();
                let embd = if is_last { g.gather_outputs(entered) } else { entered };
                let embd = g.scale("embd_skip", embd, *embd_share);
                x = g.add("l_out_skip", x, embd);
            }
            x = g.steer(i, x);
            x = normed(g, "l_out_norm", stream_norm, x);
        }
        g.set_layer(None);
        x
    }

    /// Hidden states of the stream behind the last layer.
    pub fn leave(&self, g: &mut Graph, x: ValueId) -> ValueId {
        let x = self.streams.as_ref().map_or(x, |streams| streams.join_all(g, x));
        let x = self.norm.apply(g, "result_norm", x);
        self.projections.iter().fold(x, |x, projection| g.linear("result_projected", projection, x))
    }

    /// The stream with what a part of a layer adds to it.
    pub fn add_scaled(
        &self,
        g: &mut Graph,
        name: &'static str,
        x: ValueId,
        part: ValueId,
    ) -> ValueId {
        let part = scaled(g, "part_scaled", part, self.residual_scale);
        g.add(name, x, part)
    }
}

impl Architecture for Decoder {
    fn hidden(&self, g: &mut Graph, outputs_only: bool) -> ValueId {
        let x = self.enter(g);
        let x = self.pass(g, 0..self.layers.len(), x, outputs_only);
        self.leave(g, x)
    }

    fn logits(&self, g: &mut Graph, hidden: ValueId) -> ValueId {
        let logits = g.linear("result_output", &self.head, hidden);
        let logits = scaled(g, "result_scaled", logits, self.logit_scale);
        match self.logit_cap {
            Some(cap) => g.softcap("result_capped", logits, cap),
            None => logits,
        }
    }

    fn score(&self, g: &mut Graph, hidden: ValueId) -> Option<ValueId> {
        self.classifier.as_ref().map(|classifier| g.linear("cls_out", classifier, hidden))
    }
}

/// Loads the parts of one layer by their names.
pub struct Block<'a, 'w> {
    /// The file's tensors.
    pub w: &'a mut Weights<'w>,
    /// The file's common keys.
    pub hp: &'a Hparams,
    norm: NormKind,
    /// The layer's number.
    pub i: usize,
    /// What the names of its tensors begin with.
    pub name: String,
}

/// Each layer of a model as `layer` loads it.
pub fn layers<'w, L>(
    w: &mut Weights<'w>,
    hp: &Hparams,
    norm: NormKind,
    mut layer: impl FnMut(&mut Block<'_, 'w>) -> Result<L, ModelError>,
) -> Result<Vec<L>, ModelError> {
    // The first to be asked for: where keys do not fit the tensors, it shows that best.
    w.tensor("token_embd.weight", &[hp.n_embd, hp.n_vocab])?;
    (0..hp.n_layer).map(|i| layer(&mut Block::new(w, hp, norm, i))).collect()
}

impl<'a, 'w> Block<'a, 'w> {
    /// The parts of layer `i`, whose names begin with `blk.i`.
    pub fn new(w: &'a mut Weights<'w>, hp: &'a Hparams, norm: NormKind, i: usize) -> Self {
        Self { w, hp, norm, i, name: format!("blk.{i}") }
    }
}

impl Block<'_, '_> {
    /// The layer of a llama around this feed-forward part: `attn_norm`, `attn_{q,k,v,output}`, `ffn_norm`, nothing else.
    pub fn pre_norm(&mut self, ffn: FeedForward) -> Result<Layer, ModelError> {
        let (attn_norm, ffn_norm) = (Some(self.norm("attn_norm")?), Some(self.norm("ffn_norm")?));
        Ok(Layer { attn_norm, ffn_norm, ..self.bare(ffn)? })
    }

    /// Attention and this feed-forward part without any norm.
    pub fn bare(&mut self, ffn: FeedForward) -> Result<Layer, ModelError> {
        let qkv = Qkv::load(self.w, &self.name, self.hp.n_embd, self.hp.widths(self.i))?;
        self.around(qkv, self.hp.attention(self.i), None, ffn)
    }

    /// Latent attention and this feed-forward part, with the norms of a llama.
    pub fn latent(
        &mut self,
        form: LatentSizes,
        rope: RopeId,
        scale: f32,
        ffn: FeedForward,
    ) -> Result<Layer, ModelError> {
        let (attn_norm, ffn_norm) = (Some(self.norm("attn_norm")?), Some(self.norm("ffn_norm")?));
        let heads = self.hp.heads[self.i];
        let (latent, values) = Latent::load(
            self.w,
            &self.name,
            (self.hp.n_embd, heads),
            (form, self.norm, Some(rope)),
        )?;
        let attention = form.attention(heads);
        let attention = AttentionSpec { scale: scale * attention.scale, ..attention };
        let layer = self.around(Qkv::Latent(Box::new(latent)), attention, Some(values), ffn)?;
        Ok(Layer { attn_norm, ffn_norm, ..layer })
    }

    fn around(
        &mut self,
        qkv: Qkv,
        attention: AttentionSpec,
        values: Option<HeadLinear>,
        ffn: FeedForward,
    ) -> Result<Layer, ModelError> {
        let width = attention.heads * values.map_or(attention.value_dim, |values| values.out);
        let wo = self.linear("attn_output", width, self.hp.n_embd)?;
        Ok(Layer { values, ..Layer::plain(qkv, attention, wo, ffn) })
    }

    /// Whether the layer has a tensor.
    pub fn has(&self, part: &str) -> bool {
        self.w.has(&format!("{}.{part}", self.name))
    }

    /// A tensor of this shape, fastest dimension first.
    pub fn tensor(&mut self, part: &str, shape: &[usize]) -> Result<WeightId, ModelError> {
        self.w.tensor(&format!("{}.{part}", self.name), shape)
    }

    /// The same, which may be absent.
    pub fn opt_tensor(
        &mut self,
        part: &str,
        shape: &[usize],
    ) -> Result<Option<WeightId>, ModelError> {
        self.w.opt(&format!("{}.{part}", self.name), shape)
    }

    /// Rows of a matrix of the layer.
    pub fn rows(&self, part: &str) -> Option<usize> {
        self.w.rows(&format!("{}.{part}", self.name))
    }

    /// A recurrent state of so many rows and columns; `part` is the tensor whose shape says so.
    pub fn state(&mut self, part: &str, rows: usize, cols: usize) -> Result<usize, ModelError> {
        self.w.state(&format!("{}.{part}", self.name), rows, cols)
    }

    /// A matrix with a bias that must be there.
    pub fn biased(
        &mut self,
        part: &str,
        input: usize,
        output: usize,
    ) -> Result<Linear, ModelError> {
        self.tensor(&format!("{part}.bias"), &[output])?;
        self.linear(part, input, output)
    }

    /// A norm over the first of these dimensions.
    pub fn norm_of(&mut self, part: &str, shape: &[usize]) -> Result<AnyNorm, ModelError> {
        self.norm.load(self.w, &format!("{}.{part}", self.name), shape)
    }

    /// The same, which may be absent.
    pub fn opt_norm_of(
        &mut self,
        part: &str,
        shape: &[usize],
    ) -> Result<Option<AnyNorm>, ModelError> {
        self.norm.load_opt(self.w, &format!("{}.{part}", self.name), shape)
    }

    /// A matrix with its optional bias.
    pub fn linear(
        &mut self,
        part: &str,
        input: usize,
        output: usize,
    ) -> Result<Linear, ModelError> {
        self.w.linear(&format!("{}.{part}", self.name), input, output)
    }

    /// A norm of the stream.
    pub fn norm(&mut self, part: &str) -> Result<AnyNorm, ModelError> {
        self.norm.load(self.w, &format!("{}.{part}", self.name), &[self.hp.n_embd])
    }

    /// A norm of the stream that may be absent.
    pub fn opt_norm(&mut self, part: &str) -> Result<Option<AnyNorm>, ModelError> {
        self.norm.load_opt(self.w, &format!("{}.{part}", self.name), &[self.hp.n_embd])
    }

    /// `attn_q_norm` and `attn_k_norm` over each head.
    pub fn head_norms(&mut self) -> Result<[AnyNorm; 2], ModelError> {
        let dim = self.hp.key_dim;
        self.qk_norms(&[dim], &[dim])
    }

    /// The same with weights of its own for each head.
    pub fn norms_of_heads(&mut self) -> Result<[AnyNorm; 2], ModelError> {
        let (dim, i) = (self.hp.key_dim, self.i);
        self.qk_norms(&[dim, self.hp.heads[i]], &[dim, self.hp.kv_heads[i]])
    }

    /// `attn_q_norm` and `attn_k_norm` over all heads together.
    pub fn projection_norms(&mut self) -> Result<[AnyNorm; 2], ModelError> {
        let [q, k, _] = self.hp.widths(self.i);
        self.qk_norms(&[q], &[k])
    }

    fn qk_norms(&mut self, q: &[usize], k: &[usize]) -> Result<[AnyNorm; 2], ModelError> {
        let q = self.norm.load(self.w, &format!("{}.attn_q_norm", self.name), q)?;
        Ok([q, self.norm.load(self.w, &format!("{}.attn_k_norm", self.name), k)?])
    }

    /// `ffn_{gate,up,down}`, or `ffn_up` with both halves.
    pub fn gated(&mut self, kind: Glu) -> Result<FeedForward, ModelError> {
        let ff = self.hp.ff(self.i);
        Ok(FeedForward::Dense(Mlp::load(self.w, &self.name, self.hp.n_embd, ff, kind)?))
    }

    /// `ffn_{up,down}` without a gate.
    pub fn plain(&mut self, kind: Activation) -> Result<FeedForward, ModelError> {
        let ff = self.hp.ff(self.i);
        Ok(FeedForward::Plain(Plain::load(self.w, &self.name, self.hp.n_embd, ff, kind)?))
    }

    /// `ffn_gate_inp` and `ffn_{gate,up,down}_exps`.
    pub fn experts(&mut self, shape: ExpertShape) -> Result<FeedForward, ModelError> {
        Ok(FeedForward::Moe(Experts::load(self.w, &self.name, self.hp.n_embd, shape)?))
    }

    /// The same beside `ffn_{gate,up,down}` with the same unit.
    pub fn experts_and_gated(&mut self, shape: ExpertShape) -> Result<FeedForward, ModelError> {
        let experts = Experts::load(self.w, &self.name, self.hp.n_embd, shape)?;
        let mlp = Mlp::load(self.w, &self.name, self.hp.n_embd, self.hp.ff(self.i), shape.glu)?;
        Ok(FeedForward::Shared(experts, Shared::always(mlp)))
    }

    /// The same beside `ffn_{gate,up,down}_shexp` of width `shared`; zero means none.
    pub fn experts_beside(
        &mut self,
        shape: ExpertShape,
        shared: usize,
    ) -> Result<FeedForward, ModelError> {
        self.experts_beside_other(shape, shared, shape.glu)
    }

    /// The same where the part that every token uses has a unit of its own.
    pub fn experts_beside_other(
        &mut self,
        shape: ExpertShape,
        shared: usize,
        glu: Glu,
    ) -> Result<FeedForward, ModelError> {
        if shared == 0 {
            return self.experts(shape);
        }
        let experts = Experts::load(self.w, &self.name, self.hp.n_embd, shape)?;
        let shared = Shared::load(self.w, &self.name, self.hp.n_embd, shared, glu)?;
        Ok(FeedForward::Shared(experts, shared))
    }
}
