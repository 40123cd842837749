//! Decoders whose layers need not attend: each has one mixer or several beside each other, which carry what earlier tokens said
//! in a cache or in a state of fixed size, and then perhaps a feed-forward part.

use puna_graph::*;

use crate::blocks::{FeedForward, Qkv};
use crate::decoder::{AnyNorm, Block, Decoder, NormKind};
use crate::error::ModelError;
use crate::hparams::{Hparams, Keys};
use crate::latent::{Latent, LatentSizes};
use crate::model::{Architecture, Loaded, Shape};
use crate::weights::Weights;

/// The part of a layer by which tokens see those before them.
pub trait Mixer: Send + Sync {
    /// What the cache keeps for it, if it attends.
    fn cache(&self) -> Option<CacheLayer> {
        None
    }

    /// The same where it needs several layers of the cache.
    fn cache_layers(&self) -> Vec<CacheLayer> {
        self.cache().into_iter().collect()
    }

    /// All that needs other tokens, of what it reads.
    fn mix(&self, g: &mut Graph, trail: &mut Trail, h: ValueId) -> ValueId;

    /// What is added to the stream, of what [`Mixer::mix`] gave, for the rows that are wanted.
    fn finish(&self, g: &mut Graph, mixed: ValueId) -> ValueId;
}

/// What mixers know of those before them in the same graph.
#[derive(Debug, Default)]
pub struct Trail {
    /// The cache's layer of a mixer that attends.
    pub layer: usize,
    /// Values of the first mixer, for those that mix theirs with them.
    pub first_values: Option<ValueId>,
    /// What the last indexer has chosen, for mixers that share it.
    pub chosen: Option<ValueId>,
}

/// One layer, in the order in which it computes.
pub struct HybridLayer {
    /// Of what the mixers read.
    pub norm: AnyNorm,
    /// All of the same value; their results are added.
    pub mixers: Vec<Box<dyn Mixer>>,
    /// The feed-forward part and the norm of what it reads.
    pub ffn: Option<(AnyNorm, FeedForward)>,
}

/// The whole.
pub struct Hybrid {
    /// What is before and behind the layers: it has none itself.
    pub around: Decoder,
    /// The layers.
    pub layers: Vec<HybridLayer>,
    /// Layers of what files count as one block.
    pub block: usize,
    /// Behind every how many blocks the stream is halved: files have smaller weights there.
    pub halved_every: Option<usize>,
    /// What the parts of a layer add to, where that is not the stream: what they read themselves, times this.
    pub kept_of_norm: Option<f32>,
    /// What parts read and what becomes of what they give, where they do not read the stream and add to it.
    pub residual: Option<Box<dyn Residual>>,
}

/// The stream between layers.
pub struct Stream {
    /// What the next part adds to.
    pub x: ValueId,
    /// What else later parts read.
    pub kept: Vec<ValueId>,
}

/// Which of the parts of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The mixer: the layer has one.
    Mixer,
    /// The feed-forward part.
    FeedForward,
}

/// Another way for features from part to part than to be added up.
pub trait Residual: Send + Sync {
    /// What the stream begins as, of what tokens are.
    fn enter(&self, _: &mut Graph, x: ValueId) -> ValueId {
        x
    }

    /// What the norm of this part of a layer reads.
    fn read(&self, g: &mut Graph, stream: &mut Stream, at: (usize, Part)) -> ValueId;

    /// Takes in what the part gave.
    fn join(&self, g: &mut Graph, stream: &mut Stream, at: (usize, Part), given: ValueId);

    /// What the last norm reads.
    fn leave(&self, g: &mut Graph, stream: Stream) -> ValueId;
}

impl Stream {
    /// The rows of the tokens whose results are wanted.
    fn gather_outputs(&mut self, g: &mut Graph) {
        let x = g.gather_outputs(self.x);
        for kept in &mut self.kept {
            *kept = if *kept == self.x { x } else { g.gather_outputs(*kept) };
        }
        self.x = x;
    }
}

impl Hybrid {
    /// These layers with what is before and behind them as in a [`Decoder`]; each is a block.
    pub fn new(
        w: &mut Weights<'_>,
        hp: &Hparams,
        norm: NormKind,
        layers: Vec<HybridLayer>,
    ) -> Result<Self, ModelError> {
        Ok(Self::between(Decoder::new(w, hp, norm, Vec::new())?, layers))
    }

    /// These layers between what is before and behind those of a decoder.
    pub fn between(around: Decoder, layers: Vec<HybridLayer>) -> Self {
        Self { around, layers, block: 1, halved_every: None, kept_of_norm: None, residual: None }
    }

    /// What a part adds to, that reads `h` of the stream `x`.
    fn kept(&self, g: &mut Graph, x: ValueId, h: ValueId) -> ValueId {
        self.kept_of_norm.map_or(x, |by| g.scale("residual_scaled", h, by))
    }

    /// As a model.
    pub fn loaded(self, hp: &Hparams) -> Loaded {
        let mixers = self.layers.iter().flat_map(|layer| &layer.mixers);
        let cache = mixers.flat_map(|mixer| mixer.cache_layers()).collect();
        Loaded { arch: Box::new(self), cache, shape: Shape::decoder(hp) }
    }

    fn read(&self, g: &mut Graph, stream: &mut Stream, at: (usize, Part)) -> ValueId {
        self.residual.as_ref().map_or(stream.x, |residual| residual.read(g, stream, at))
    }

    fn join(&self, g: &mut Graph, stream: &mut Stream, at: (usize, Part), given: ValueId) {
        if let Some(residual) = &self.residual {
            return residual.join(g, stream, at, given);
        }
        let name = if at.1 == Part::Mixer { "ffn_inp" } else { "l_out" };
        stream.x = self.around.add_scaled(g, name, stream.x, given);
    }
}

impl Architecture for Hybrid {
    fn hidden(&self, g: &mut Graph, outputs_only: bool) -> ValueId {
        let mut x = self.around.enter(g);
        if let Some(residual) = &self.residual {
            x = residual.enter(g, x);
        }
        let mut stream = Stream { x, kept: Vec::new() };
        let mut trail = Trail::default();
        for (i, layer) in self.layers.iter().enumerate() {
            let block = i / self.block;
            g.set_layer(Some(block));
            let at = (i, Part::Mixer);
            let h = self.read(g, &mut stream, at);
            let h = layer.norm.apply(g, "attn_norm", h);
            stream.x = self.kept(g, stream.x, h);
            let is_last = outputs_only && i + 1 == self.layers.len();
            let mut parts = Vec::with_capacity(layer.mixers.len());
            for mixer in &layer.mixers {
                let mixed = mixer.mix(g, &mut trail, h);
                trail.layer += mixer.cache_layers().len();
                parts.push(if is_last { g.gather_outputs(mixed) } else { mixed });
            }
            if is_last {
                stream.gather_outputs(g);
            }
            for (mixer, part) in layer.mixers.iter().zip(parts) {
                let part = mixer.finish(g, part);
                self.join(g, &mut stream, at, part);
            }
            if let Some((norm, ffn)) = &layer.ffn {
                let at = (i, Part::FeedForward);
                let h = self.read(g, &mut stream, at);
                let h = norm.apply(g, "ffn_norm", h);
                stream.x = self.kept(g, stream.x, h);
                let f = ffn.forward(g, h);
                self.join(g, &mut stream, at, f);
            }
            if !(i + 1).is_multiple_of(self.block) {
                continue;
            }
            if self.halved_every.is_some_and(|every| (block + 1).is_multiple_of(every)) {
                stream.x = g.scale("l_out", stream.x, 0.5);
            }
            stream.x = g.steer(block, stream.x);
        }
        g.set_layer(None);
        let x = match &self.residual {
            Some(residual) => residual.leave(g, stream),
            None => stream.x,
        };
        self.around.leave(g, x)
    }

    fn logits(&self, g: &mut Graph, hidden: ValueId) -> ValueId {
        self.around.logits(g, hidden)
    }
}

/// Attention as a mixer.
pub struct Attention {
    /// Query, key and value.
    pub qkv: Qkv,
    /// Whether the query projection has for each head a gate behind its query, whose sigmoid weighs the result.
    pub gated: bool,
    /// Of the heads of query and key, before they turn.
    pub norms: Option<[AnyNorm; 2]>,
    /// How query and key turn with the position.
    pub rope: Option<RopeId>,
    /// Its form.
    pub spec: AttentionSpec,
    /// From the heads back to the stream.
    pub wo: Linear,
}

impl Attention {
    /// `attn_{q,k,v,output}` of a layer; `gated`: with gates in `attn_q`.
    pub fn load(b: &mut Block<'_, '_>, gated: bool) -> Result<Self, ModelError> {
        let (hp, i) = (b.hp, b.i);
        let spec = hp.attention(i);
        if spec.kv_heads == 0 || !spec.heads.is_multiple_of(spec.kv_heads) {
            let (what, reason) = (
                format!("attention in layer {i}"),
                "its `attention.head_count` is no multiple of its `attention.head_count_kv`",
            );
            return Err(ModelError::Unsupported { what, reason });
        }
        if gated && spec.key_dim != spec.value_dim {
            let what = format!("values of {} features to keys of {}", spec.value_dim, spec.key_dim);
            let reason = "gates of attention are as wide as its keys, and `attention.value_length` is not `attention.key_length`";
            return Err(ModelError::Unsupported { what, reason });
        }
        let [q, k, v] = hp.widths(i);
        let q = if gated { 2 * q } else { q };
        Ok(Self {
            qkv: Qkv::load(b.w, &b.name, hp.n_embd, [q, k, v])?,
            gated,
            norms: None,
            rope: None,
            spec,
            wo: b.linear("attn_output", spec.heads * spec.value_dim, hp.n_embd)?,
        })
    }

    /// What all heads read of cache layer `layer`, gated: of what was chosen, if anything was.
    pub fn attend(
        &self,
        g: &mut Graph,
        layer: usize,
        h: ValueId,
        chosen: Option<(ValueId, SelectedPositions)>,
    ) -> ValueId {
        let [mut q, mut k, v] = self.qkv.project(g, h);
        let dim = self.spec.key_dim;
        let gate = self.gated.then(|| g.pick("attn_gate", q, dim, dim, 2 * dim));
        if self.gated {
            q = g.pick("Qcur", q, 0, dim, 2 * dim);
        }
        if let Some([of_q, of_k]) = &self.norms {
            (q, k) = (of_q.apply(g, "Qcur_normed", q), of_k.apply(g, "Kcur_normed", k));
        }
        if let Some(rope) = self.rope {
            q = g.rope("Qcur_rope", q, dim, rope);
            k = g.rope("Kcur_rope", k, dim, rope);
        }
        let a = match chosen {
            Some(chosen) => g.sparse_attention("kqv_out", layer, [q, k, v], chosen, self.spec),
            None => g.attention("kqv_out", layer, [q, k, v], self.spec),
        };
        let Some(gate) = gate else { return a };
        let gate = g.activate("attn_gate_sigmoid", Activation::Sigmoid, gate);
        g.mul("attn_gated", a, gate)
    }
}

impl Mixer for Attention {
    fn cache(&self) -> Option<CacheLayer> {
        Some(self.spec.cache_layer())
    }

    fn mix(&self, g: &mut Graph, trail: &mut Trail, h: ValueId) -> ValueId {
        self.attend(g, trail.layer, h, None)
    }

    fn finish(&self, g: &mut Graph, mixed: ValueId) -> ValueId {
        g.linear("attn_out", &self.wo, mixed)
    }
}

/// Latent attention as a mixer.
pub struct LatentAttention {
    latent: Latent,
    spec: AttentionSpec,
    /// From what each head read to its values.
    values: HeadLinear,
    /// Of what the mixer reads: its sigmoid weighs each value, or all of a head.
    gate: Option<Linear>,
    wo: Linear,
}

impl LatentAttention {
    /// What [`Latent::load`] loads, with `attn_output`.
    pub fn load(
        b: &mut Block<'_, '_>,
        (form, norm, rope): (LatentSizes, NormKind, Option<RopeId>),
    ) -> Result<Self, ModelError> {
        let (n_embd, heads) = (b.hp.n_embd, b.hp.heads[b.i]);
        let (latent, values) = Latent::load(b.w, &b.name, (n_embd, heads), (form, norm, rope))?;
        let wo = b.linear("attn_output", heads * values.out, n_embd)?;
        Ok(Self { latent, spec: form.attention(heads), values, gate: None, wo })
    }

    /// The same with this gate of its values.
    pub fn gated(self, gate: Option<Linear>) -> Self {
        Self { gate, ..self }
    }
}

impl Mixer for LatentAttention {
    fn cache(&self) -> Option<CacheLayer> {
        Some(self.spec.cache_layer())
    }

    fn mix(&self, g: &mut Graph, trail: &mut Trail, h: ValueId) -> ValueId {
        let qkv = self.latent.project(g, h);
        let gate = self.gate.as_ref().map(|gate| g.linear("attn_gate", gate, h));
        let a = g.attention("kqv_out", trail.layer, qkv, self.spec);
        let values = g.linear_of_heads("kqv_values", &self.values, a);
        let Some(gate) = gate else { return values };
        let gate = g.activate("attn_gate_sigmoid", Activation::Sigmoid, gate);
        g.mul("attn_gated", values, gate)
    }

    fn finish(&self, g: &mut Graph, mixed: ValueId) -> ValueId {
        g.linear("attn_out", &self.wo, mixed)
    }
}

/// A feed-forward part in a mixer's place.
impl Mixer for FeedForward {
    fn mix(&self, _: &mut Graph, _: &mut Trail, h: ValueId) -> ValueId {
        h
    }

    fn finish(&self, g: &mut Graph, mixed: ValueId) -> ValueId {
        self.forward(g, mixed)
    }
}

/// What `ssm.*` keys say of a recurrent layer.
#[derive(Debug, Clone, Copy)]
pub struct SsmKeys {
    /// Rows that the convolution weighs.
    pub taps: usize,
    /// Columns that the state is of.
    pub inner: usize,
    /// Values of the state for each column.
    pub state: usize,
    /// Rank of the step, or heads.
    pub rank: usize,
    /// Groups of heads.
    pub groups: usize,
}

impl SsmKeys {
    /// Reads them; heads are those of [`Self::rank`], in groups, if `has_heads`.
    pub fn read(keys: &Keys<'_>, has_heads: bool) -> Result<Self, ModelError> {
        let taps = taps(keys, "ssm.conv_kernel")?;
        let [inner, state, rank] =
            ["inner_size", "state_size", "time_step_rank"].map(|key| format!("ssm.{key}"));
        let (inner, state, rank) = (keys.count(&inner)?, keys.count(&state)?, keys.count(&rank)?);
        let groups = if has_heads { keys.count("ssm.group_count")? } else { 1 };
        let of = |key: &str, value: usize, reason| {
            Err(ModelError::KeyValue { key: keys.name(key), value: value.to_string(), reason })
        };
        if has_heads && !inner.is_multiple_of(rank) {
            return of("ssm.time_step_rank", rank, "the heads must share ssm.inner_size evenly");
        }
        if has_heads && !rank.is_multiple_of(groups) {
            return of(
                "ssm.group_count",
                groups,
                "the groups must share ssm.time_step_rank evenly",
            );
        }
        Ok(Self { taps, inner, state, rank, groups })
    }
}

/// Rows that a convolution weighs, by a key.
pub fn taps(keys: &Keys<'_>, key: &str) -> Result<usize, ModelError> {
    let taps = keys.count(key)?;
    if !(2..=64).contains(&taps) {
        let (key, value) = (keys.name(key), taps.to_string());
        return Err(ModelError::KeyValue { key, value, reason: "must be between 2 and 64" });
    }
    Ok(taps)
}
