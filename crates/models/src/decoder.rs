//! The pre-norm decoder that most language models share: each layer adds attention and a
//! feed-forward network to a residual stream. Architectures differ in the options of [`Layer`] and
//! [`Decoder`]; their files name only the options they use.

use std::ops::Range;

use puna_graph::*;

use crate::architecture::{Architecture, LoadedArchitecture, ModelShape, Unmasking};
use crate::blocks::{FeedForward, Mlp, Qkv, UngatedMlp};
use crate::error::ModelError;
use crate::experts::{ExpertShape, Experts, SharedExpert};
use crate::hparams::Hparams;
use crate::hyper::{self, ResidualStreams};
use crate::indexer::{Selections, SparseSelection};
use crate::latent::{Latent, LatentSizes};
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
    /// No norms.
    None,
    /// Norms of query and key before the rotary embedding.
    BeforeRope([AnyNorm; 2]),
    /// Norms of query and key after the rotary embedding.
    AfterRope([AnyNorm; 2]),
}

/// One layer; the fields are in the order of computation.
#[derive(Clone)]
pub struct Layer {
    /// Norm of the input of attention; without it, attention reads the residual stream.
    pub attn_norm: Option<AnyNorm>,
    /// Query, key and value projections.
    pub qkv: Qkv,
    /// Limit of the absolute values of query, key and value.
    pub clamp: Option<f32>,
    /// Norms of query and key.
    pub qk_norm: QkNorm,
    /// `[heads]`: factor of each query head, after norms and rotary embedding.
    pub query_factors: Option<WeightId>,
    /// Rotary embedding of query and key; `None` for NoPE.
    pub rope: Option<RopeId>,
    /// Factor of queries that grows with the position.
    pub temperature: Option<AttnTemperatureSpec>,
    /// Attention.
    pub attention: AttentionSpec,
    /// Sparse attention within the positions that the mask allows.
    pub selection: SparseSelection,
    /// Projection of each head's result to its values (`W_UV` of latent attention).
    pub values: Option<PerHeadLinear>,
    /// Projection of the attention input to the gate, and the gate's activation: one factor for
    /// each value, or for each head.
    pub gate: Option<(Linear, Activation)>,
    /// Factor of the attention result.
    pub attn_scale: f32,
    /// Norm of the concatenated heads.
    pub attn_sub_norm: Option<AnyNorm>,
    /// Output projection.
    pub wo: Linear,
    /// Norm of the attention output before it is added.
    pub post_attn_norm: Option<AnyNorm>,
    /// Whether the feed-forward network reads the stream before attention (parallel layers).
    pub parallel: bool,
    /// Norm of the feed-forward input. Without it, the network reads the residual stream, or in
    /// parallel layers the attention input.
    pub ffn_norm: Option<AnyNorm>,
    /// Feed-forward network.
    pub ffn: FeedForward,
    /// Whether the router reads the stream before attention, without a norm.
    pub early_router: bool,
    /// Norm of the feed-forward output before it is added.
    pub post_ffn_norm: Option<AnyNorm>,
    /// Factor of the token embeddings that are added to the stream after the layer; zero for none.
    pub embd_skip_scale: f32,
    /// Norm of the stream after the layer.
    pub stream_norm: Option<AnyNorm>,
}

/// The whole model; the fields are in the order of computation.
pub struct Decoder {
    /// Dimensions of the residual stream.
    pub n_embd: usize,
    /// Token embeddings.
    pub table: WeightId,
    /// Row of `table` that a token uses.
    pub index: Index,
    /// Position embeddings, added to the token embeddings.
    pub positions: Option<WeightId>,
    /// Factor of the embeddings.
    pub embd_scale: f32,
    /// Norm of the embeddings.
    pub embd_norm: Option<AnyNorm>,
    /// The layers.
    pub layers: Vec<Layer>,
    /// Hyper-connections with several residual streams; `None` for one stream.
    pub streams: Option<ResidualStreams>,
    /// Factor of what each part of a layer adds to the stream.
    pub residual_scale: f32,
    /// Norm after the last layer.
    pub norm: AnyNorm,
    /// Output matrix, from hidden states to logits.
    pub head: Linear,
    /// Factor of the logits.
    pub logit_scale: f32,
    /// `cap · tanh(logit / cap)`.
    pub logit_cap: Option<f32>,
    /// Projections after the last norm, applied in turn.
    pub projections: Vec<Linear>,
    /// Classifier of a reranker, from hidden states to scores.
    pub classifier: Option<Linear>,
}

impl Decoder {
    /// Decoder with these layers; loads `token_embd`, `output_norm` and `output`, or uses
    /// `token_embd` as output matrix.
    pub fn new(
        w: &mut Weights<'_>,
        hp: &Hparams,
        norm: NormKind,
        layers: Vec<Layer>,
    ) -> Result<Self, ModelError> {
        let last = norm.load(w, "output_norm", &[hp.n_embd])?;
        Self::with_norm(w, hp, last, layers)
    }

    /// [`Self::new`] with a given norm after the last layer.
    pub fn with_norm(
        w: &mut Weights<'_>,
        hp: &Hparams,
        norm: AnyNorm,
        layers: Vec<Layer>,
    ) -> Result<Self, ModelError> {
        let table = w.tensor("token_embd.weight", &[hp.n_embd, hp.n_vocab])?;
        let head = w.output_head(table, hp.n_embd, hp.n_vocab)?;
        Self::with_head(w, hp, (norm, head), layers)
    }

    /// [`Self::new`] with a given last norm and output matrix.
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

    /// Model with a KV cache if its masks are causal, else an encoder.
    pub fn into_architecture(self, hp: &Hparams) -> LoadedArchitecture {
        self.into_architecture_as(hp, |decoder| Box::new(decoder))
    }

    /// [`Self::into_architecture`] for an architecture that wraps the decoder and computes in an
    /// order of its own.
    pub fn into_architecture_as(
        self,
        hp: &Hparams,
        arch: impl FnOnce(Self) -> Box<dyn Architecture>,
    ) -> LoadedArchitecture {
        let cached = self.layers.iter().filter(|l| l.attention.mask.is_cached());
        let mut cache: Vec<CacheLayer> = cached.map(|l| l.attention.cache_layer()).collect();
        cache.extend(self.layers.iter().filter_map(|l| Some(l.selection.indexer()?.cache_layer())));
        let causal = !cache.is_empty();
        let score_labels = self.classifier.as_ref().map_or(0, |c| c.out);
        let shape = ModelShape {
            causal,
            has_logits: causal,
            score_labels,
            score_is_softmax: score_labels > 0,
            ..ModelShape::decoder(hp)
        };
        LoadedArchitecture { arch: arch(self), cache, shape }
    }

    /// Diffusion model: attention is bidirectional, and logits predict masked tokens.
    pub fn into_diffusion(mut self, hp: &Hparams, unmasking: Unmasking) -> LoadedArchitecture {
        self.layers.iter_mut().for_each(|layer| layer.attention.mask = Mask::Full);
        let shape =
            ModelShape { causal: false, unmasking: Some(unmasking), ..ModelShape::decoder(hp) };
        LoadedArchitecture { arch: Box::new(self), cache: Vec::new(), shape }
    }

    /// Initial state of the selections for a graph that starts at layer `i`: the cache layer of the
    /// next indexer, and no earlier selection.
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
        let (read, mut write) = self.read_stream(g, i, 0, x);
        let mut h = normed(g, "attn_norm", &l.attn_norm, read);
        let mut a = l.attend(g, i, h, selections);
        if outputs_only && i + 1 == self.layers.len() {
            a = g.gather_outputs(a);
            if l.parallel && l.ffn_norm.is_none() {
                h = if h == x { h } else { g.gather_outputs(h) };
            }
            x = g.gather_outputs(x);
            write = write.map(|write| hyper::gather_outputs(g, write));
        }
        let a = scaled(g, "kqv_scaled", a, l.attn_scale);
        let a = normed(g, "attn_sub_norm", &l.attn_sub_norm, a);
        let a = g.linear("attn_out", &l.wo, a);
        let a = normed(g, "attn_post_norm", &l.post_attn_norm, a);
        let a = scaled(g, "attn_scaled", a, self.residual_scale);
        let before = x;
        x = hyper::add(g, "ffn_inp", x, a, write);
        let (read, write) = self.read_stream(g, i, 1, x);
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
        let f = l.ffn.forward_routed(g, h, if l.early_router { before } else { h });
        let f = normed(g, "ffn_post_norm", &l.post_ffn_norm, f);
        let f = scaled(g, "ffn_scaled", f, self.residual_scale);
        hyper::add(g, "l_out", x, f, write)
    }

    /// Input of a part of layer `i`, and with several streams the weights of writing its output.
    fn read_stream(
        &self,
        g: &mut Graph,
        i: usize,
        part: usize,
        x: ValueId,
    ) -> (ValueId, Option<StreamWrite>) {
        let Some(streams) = &self.streams else { return (x, None) };
        let (read, write) = streams.connections[i][part].read(g, x);
        (read, Some(write))
    }
}

impl Layer {
    /// Layer of attention and a feed-forward network without any option.
    pub fn new(qkv: Qkv, attention: AttentionSpec, wo: Linear, ffn: FeedForward) -> Self {
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
            attn_scale: 1.0,
            attn_sub_norm: None,
            wo,
            post_attn_norm: None,
            parallel: false,
            ffn_norm: None,
            ffn,
            early_router: false,
            post_ffn_norm: None,
            embd_skip_scale: 0.0,
            stream_norm: None,
        }
    }

    /// Attention result of `h`, with the heads concatenated.
    fn attend(&self, g: &mut Graph, i: usize, h: ValueId, selections: &mut Selections) -> ValueId {
        let source = self.qkv.source(g, h);
        let selected = selections.select(g, &self.selection, h, source);
        let projected = self.qkv.project_from(g, h, source);
        let gate = self.gate.as_ref().map(|(gate, kind)| (g.linear("attn_gate", gate, h), *kind));
        let [mut q, mut k, v] = match self.clamp {
            Some(limit) => projected.map(|x| {
                g.activate("qkv_clamped", Activation::Clamp { min: -limit, max: limit }, x)
            }),
            None => projected,
        };
        if let QkNorm::BeforeRope(norms) = &self.qk_norm {
            [q, k] = norm_both(g, norms, [q, k]);
        }
        if let Some(rope) = self.rope {
            q = g.rope("Qcur_rope", q, self.attention.key_dim, rope);
            k = g.rope("Kcur_rope", k, self.attention.key_dim, rope);
        }
        if let QkNorm::AfterRope(norms) = &self.qk_norm {
            [q, k] = norm_both(g, norms, [q, k]);
        }
        if let Some(factors) = self.query_factors {
            let factors = g.embed("Qcur_factors", factors, self.attention.heads, Index::Fixed(0));
            q = g.mul("Qcur_scaled", q, factors);
        }
        if let Some(by) = self.temperature {
            q = g.attn_temperature("Qcur_attn_temp_scaled", q, by);
        }
        let a = match selected {
            Some(positions) => {
                g.sparse_attention("kqv_out", i, [q, k, v], positions, self.attention)
            }
            None => g.attention("kqv_out", i, [q, k, v], self.attention),
        };
        let a = self.values.as_ref().map_or(a, |values| g.per_head_linear("kqv_values", values, a));
        let Some((gate, kind)) = gate else { return a };
        let gate = g.activate("attn_gate_act", kind, gate);
        g.mul("attn_gated", a, gate)
    }
}

fn norm_both(g: &mut Graph, norms: &[AnyNorm; 2], [q, k]: [ValueId; 2]) -> [ValueId; 2] {
    [norms[0].apply(g, "Qcur_normed", q), norms[1].apply(g, "Kcur_normed", k)]
}

impl Decoder {
    /// Residual stream before the first layer.
    pub fn input_stream(&self, g: &mut Graph) -> ValueId {
        let mut x = g.embed("inp_embd", self.table, self.n_embd, self.index);
        x = scaled(g, "inp_scaled", x, self.embd_scale);
        x = g.add_media(x);
        if let Some(positions) = self.positions {
            let positions = g.embed("pos_embd", positions, self.n_embd, Index::Position);
            x = g.add("inp_pos", x, positions);
        }
        x = normed(g, "inp_norm", &self.embd_norm, x);
        self.streams.as_ref().map_or(x, |streams| streams.replicate(g, x))
    }

    /// Residual stream after `layers`, of which the first reads `first_input`. If `outputs_only`,
    /// the model's last layer keeps only the output rows.
    pub fn run_layers(
        &self,
        g: &mut Graph,
        layers: Range<usize>,
        first_input: ValueId,
        outputs_only: bool,
    ) -> ValueId {
        let mut x = first_input;
        let mut selections = self.selections(layers.start);
        for i in layers {
            let Layer { embd_skip_scale, stream_norm, .. } = &self.layers[i];
            g.set_layer(Some(i));
            x = self.layer(g, i, x, &mut selections, outputs_only);
            if *embd_skip_scale != 0.0 {
                let is_last = outputs_only && i + 1 == self.layers.len();
                let embd = if is_last { g.gather_outputs(first_input) } else { first_input };
                let embd = g.scale("embd_skip", embd, *embd_skip_scale);
                x = g.add("l_out_skip", x, embd);
            }
            x = g.add_deepstack(i, x);
            x = g.add_control_vectors(i, x);
            x = normed(g, "l_out_norm", stream_norm, x);
        }
        g.set_layer(None);
        x
    }

    /// Hidden states: the stream after the last layer, merged, normed and projected.
    pub fn output_hidden(&self, g: &mut Graph, x: ValueId) -> ValueId {
        let x = self.streams.as_ref().map_or(x, |streams| streams.merge(g, x));
        let x = self.norm.apply(g, "result_norm", x);
        self.projections.iter().fold(x, |x, projection| g.linear("result_projected", projection, x))
    }

    /// Adds the output of a part of a layer to the stream, times [`Self::residual_scale`].
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
        let x = self.input_stream(g);
        let x = self.run_layers(g, 0..self.layers.len(), x, outputs_only);
        self.output_hidden(g, x)
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

/// Loads the tensors of one layer, `blk.N.PART`.
pub struct LayerLoader<'a, 'w> {
    /// Tensors of the file.
    pub w: &'a mut Weights<'w>,
    /// Common keys of the file.
    pub hp: &'a Hparams,
    norm: NormKind,
    /// Index of the layer.
    pub i: usize,
    /// Prefix of its tensor names, `blk.N`.
    pub name: String,
}

/// Calls `layer` for each layer of the model.
pub fn layers<'w, L>(
    w: &mut Weights<'w>,
    hp: &Hparams,
    norm: NormKind,
    mut layer: impl FnMut(&mut LayerLoader<'_, 'w>) -> Result<L, ModelError>,
) -> Result<Vec<L>, ModelError> {
    // The embeddings are checked first: their error shows best that keys and tensors disagree.
    w.tensor("token_embd.weight", &[hp.n_embd, hp.n_vocab])?;
    (0..hp.n_layer).map(|i| layer(&mut LayerLoader::new(w, hp, norm, i))).collect()
}

impl<'a, 'w> LayerLoader<'a, 'w> {
    /// Loader of layer `i`.
    pub fn new(w: &'a mut Weights<'w>, hp: &'a Hparams, norm: NormKind, i: usize) -> Self {
        Self { w, hp, norm, i, name: format!("blk.{i}") }
    }
}

impl LayerLoader<'_, '_> {
    /// Llama's layer with this feed-forward network: `attn_norm`, `attn_{q,k,v,output}`,
    /// `ffn_norm`.
    pub fn pre_norm(&mut self, ffn: FeedForward) -> Result<Layer, ModelError> {
        let (attn_norm, ffn_norm) = (Some(self.norm("attn_norm")?), Some(self.norm("ffn_norm")?));
        Ok(Layer { attn_norm, ffn_norm, ..self.without_norms(ffn)? })
    }

    /// Attention and this feed-forward network without norms.
    pub fn without_norms(&mut self, ffn: FeedForward) -> Result<Layer, ModelError> {
        let qkv = Qkv::load(self.w, &self.name, self.hp.n_embd, self.hp.qkv_widths(self.i))?;
        self.with_output(qkv, self.hp.attention(self.i), None, ffn)
    }

    /// Latent attention and this feed-forward network, with `attn_norm` and `ffn_norm`.
    pub fn latent(
        &mut self,
        sizes: LatentSizes,
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
            (sizes, self.norm, Some(rope)),
        )?;
        let attention = sizes.attention(heads);
        let attention = AttentionSpec { scale: scale * attention.scale, ..attention };
        let layer =
            self.with_output(Qkv::Latent(Box::new(latent)), attention, Some(values), ffn)?;
        Ok(Layer { attn_norm, ffn_norm, ..layer })
    }

    fn with_output(
        &mut self,
        qkv: Qkv,
        attention: AttentionSpec,
        values: Option<PerHeadLinear>,
        ffn: FeedForward,
    ) -> Result<Layer, ModelError> {
        let width = attention.heads * values.map_or(attention.value_dim, |values| values.out);
        let wo = self.linear("attn_output", width, self.hp.n_embd)?;
        Ok(Layer { values, ..Layer::new(qkv, attention, wo, ffn) })
    }

    /// Whether the layer has a tensor.
    pub fn has(&self, part: &str) -> bool {
        self.w.has(&format!("{}.{part}", self.name))
    }

    /// A tensor of this shape, fastest dimension first.
    pub fn tensor(&mut self, part: &str, shape: &[usize]) -> Result<WeightId, ModelError> {
        self.w.tensor(&format!("{}.{part}", self.name), shape)
    }

    /// Optional tensor of this shape.
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

    /// Adds a recurrent state of `rows` × `cols` values; `part` is the tensor that has this shape.
    pub fn state(&mut self, part: &str, rows: usize, cols: usize) -> Result<usize, ModelError> {
        self.w.state(&format!("{}.{part}", self.name), rows, cols)
    }

    /// Matrix with a mandatory bias.
    pub fn biased(
        &mut self,
        part: &str,
        input: usize,
        output: usize,
    ) -> Result<Linear, ModelError> {
        self.tensor(&format!("{part}.bias"), &[output])?;
        self.linear(part, input, output)
    }

    /// Norm over the first dimension of `shape`; further dimensions are norms with own weights.
    pub fn norm_of(&mut self, part: &str, shape: &[usize]) -> Result<AnyNorm, ModelError> {
        self.norm.load(self.w, &format!("{}.{part}", self.name), shape)
    }

    /// [`Self::norm_of`], optional.
    pub fn opt_norm_of(
        &mut self,
        part: &str,
        shape: &[usize],
    ) -> Result<Option<AnyNorm>, ModelError> {
        self.norm.load_opt(self.w, &format!("{}.{part}", self.name), shape)
    }

    /// Matrix with an optional bias.
    pub fn linear(
        &mut self,
        part: &str,
        input: usize,
        output: usize,
    ) -> Result<Linear, ModelError> {
        self.w.linear(&format!("{}.{part}", self.name), input, output)
    }

    /// Norm of the residual stream.
    pub fn norm(&mut self, part: &str) -> Result<AnyNorm, ModelError> {
        self.norm.load(self.w, &format!("{}.{part}", self.name), &[self.hp.n_embd])
    }

    /// Optional norm of the residual stream.
    pub fn opt_norm(&mut self, part: &str) -> Result<Option<AnyNorm>, ModelError> {
        self.norm.load_opt(self.w, &format!("{}.{part}", self.name), &[self.hp.n_embd])
    }

    /// `attn_q_norm` and `attn_k_norm`, applied to each head with the same weights.
    pub fn head_norms(&mut self) -> Result<[AnyNorm; 2], ModelError> {
        let dim = self.hp.key_dim;
        self.qk_norms(&[dim], &[dim])
    }

    /// `attn_q_norm` and `attn_k_norm` with own weights for each head.
    pub fn per_head_norms(&mut self) -> Result<[AnyNorm; 2], ModelError> {
        let (dim, i) = (self.hp.key_dim, self.i);
        self.qk_norms(&[dim, self.hp.heads[i]], &[dim, self.hp.kv_heads[i]])
    }

    /// `attn_q_norm` and `attn_k_norm` over all heads together.
    pub fn projection_norms(&mut self) -> Result<[AnyNorm; 2], ModelError> {
        let [q, k, _] = self.hp.qkv_widths(self.i);
        self.qk_norms(&[q], &[k])
    }

    fn qk_norms(&mut self, q: &[usize], k: &[usize]) -> Result<[AnyNorm; 2], ModelError> {
        let q = self.norm.load(self.w, &format!("{}.attn_q_norm", self.name), q)?;
        Ok([q, self.norm.load(self.w, &format!("{}.attn_k_norm", self.name), k)?])
    }

    /// Gated network: `ffn_{gate,up,down}`, or `ffn_up` with both halves.
    pub fn gated(&mut self, kind: Glu) -> Result<FeedForward, ModelError> {
        let ff = self.hp.ff(self.i);
        Ok(FeedForward::Dense(Mlp::load(self.w, &self.name, self.hp.n_embd, ff, kind)?))
    }

    /// Network without a gate: `ffn_{up,down}`.
    pub fn ungated(&mut self, kind: Activation) -> Result<FeedForward, ModelError> {
        let ff = self.hp.ff(self.i);
        Ok(FeedForward::Ungated(UngatedMlp::load(self.w, &self.name, self.hp.n_embd, ff, kind)?))
    }

    /// Mixture of experts: `ffn_gate_inp` and `ffn_{gate,up,down}_exps`.
    pub fn experts(&mut self, shape: ExpertShape) -> Result<FeedForward, ModelError> {
        Ok(FeedForward::Moe(Experts::load(self.w, &self.name, self.hp.n_embd, shape)?))
    }

    /// [`Self::experts`] plus the dense network `ffn_{gate,up,down}` with the same activation.
    pub fn experts_with_dense(&mut self, shape: ExpertShape) -> Result<FeedForward, ModelError> {
        let experts = Experts::load(self.w, &self.name, self.hp.n_embd, shape)?;
        let mlp = Mlp::load(self.w, &self.name, self.hp.n_embd, self.hp.ff(self.i), shape.glu)?;
        Ok(FeedForward::Shared(experts, SharedExpert::ungated(mlp)))
    }

    /// [`Self::experts`] plus the shared expert `ffn_{gate,up,down}_shexp` of width `shared`; zero
    /// for none.
    pub fn experts_with_shared(
        &mut self,
        shape: ExpertShape,
        shared: usize,
    ) -> Result<FeedForward, ModelError> {
        self.experts_with_shared_glu(shape, shared, shape.glu)
    }

    /// [`Self::experts_with_shared`] with a separate activation of the shared expert.
    pub fn experts_with_shared_glu(
        &mut self,
        shape: ExpertShape,
        shared: usize,
        glu: Glu,
    ) -> Result<FeedForward, ModelError> {
        if shared == 0 {
            return self.experts(shape);
        }
        let experts = Experts::load(self.w, &self.name, self.hp.n_embd, shape)?;
        let shared = SharedExpert::load(self.w, &self.name, self.hp.n_embd, shared, glu)?;
        Ok(FeedForward::Shared(experts, shared))
    }
}
