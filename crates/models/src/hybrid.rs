//! Decoders with recurrent layers. Each layer has one or more parallel mixers and an optional
//! feed-forward network. A mixer carries earlier tokens in the KV cache or in a state of fixed
//! size.

use puna_graph::*;

use crate::architecture::{Architecture, LoadedArchitecture, ModelShape};
use crate::blocks::{FeedForward, Qkv};
use crate::decoder::{AnyNorm, Decoder, LayerLoader, NormKind};
use crate::error::ModelError;
use crate::hparams::{Hparams, Keys};
use crate::latent::{Latent, LatentSizes};
use crate::residual::{LayerPart, ResidualConnections, ResidualStream};
use crate::weights::Weights;

/// Part of a layer that mixes tokens of a sequence: attention or a recurrent layer.
pub trait Mixer: Send + Sync {
    /// Cache layer of the mixer, if it has attention.
    fn cache(&self) -> Option<CacheLayer> {
        None
    }

    /// Cache layers of a mixer that needs several.
    fn cache_layers(&self) -> Vec<CacheLayer> {
        self.cache().into_iter().collect()
    }

    /// Computes everything that needs other tokens, from the normed input of all rows.
    fn mix(&self, g: &mut Graph, context: &mut MixerContext, h: ValueId) -> ValueId;

    /// Computes the addition to the residual stream from the result of [`Mixer::mix`], for the
    /// output rows only in the last layer.
    fn finish(&self, g: &mut Graph, mixed: ValueId) -> ValueId;
}

/// State that the mixers of a graph pass on from layer to layer.
#[derive(Debug, Default)]
pub struct MixerContext {
    /// Index of the mixer's first cache layer.
    pub cache_layer: usize,
    /// Values of the first layer, which later layers of RWKV 7 mix with their own.
    pub first_values: Option<ValueId>,
    /// Positions that the last indexer selected, for mixers that share the selection.
    pub selected: Option<ValueId>,
}

/// One layer; the fields are in the order of computation.
pub struct HybridLayer {
    /// Norm of the mixers' input.
    pub norm: AnyNorm,
    /// Mixers with the same input; their outputs are added.
    pub mixers: Vec<Box<dyn Mixer>>,
    /// Norm and feed-forward network.
    pub ffn: Option<(AnyNorm, FeedForward)>,
}

/// Decoder of mixer layers.
pub struct Hybrid {
    /// Embeddings, last norm and output matrix: a decoder without layers.
    pub outer: Decoder,
    /// The layers.
    pub layers: Vec<HybridLayer>,
    /// Layers here that the file counts as one block.
    pub layers_per_block: usize,
    /// Interval of blocks after which the stream is halved; later weights in the file are scaled
    /// accordingly.
    pub halve_interval: Option<usize>,
    /// Factor of the normed input, to which parts add their output instead of the stream; `None`
    /// for the stream.
    pub residual_from_norm_scale: Option<f32>,
    /// Residual connections other than a plain addition.
    pub residual: Option<Box<dyn ResidualConnections>>,
}

impl Hybrid {
    /// Layers between the embeddings and output of a [`Decoder`]; each layer is a block.
    pub fn new(
        w: &mut Weights<'_>,
        hp: &Hparams,
        norm: NormKind,
        layers: Vec<HybridLayer>,
    ) -> Result<Self, ModelError> {
        Ok(Self::with_outer(Decoder::new(w, hp, norm, Vec::new())?, layers))
    }

    /// Layers between the embeddings and output of `outer`.
    pub fn with_outer(outer: Decoder, layers: Vec<HybridLayer>) -> Self {
        Self {
            outer,
            layers,
            layers_per_block: 1,
            halve_interval: None,
            residual_from_norm_scale: None,
            residual: None,
        }
    }

    /// Value that a part with the normed input `h` adds its output to.
    fn residual_base(&self, g: &mut Graph, x: ValueId, h: ValueId) -> ValueId {
        self.residual_from_norm_scale.map_or(x, |by| g.scale("residual_scaled", h, by))
    }

    /// Model with the cache layers of all mixers.
    pub fn into_architecture(self, hp: &Hparams) -> LoadedArchitecture {
        let mixers = self.layers.iter().flat_map(|layer| &layer.mixers);
        let cache = mixers.flat_map(|mixer| mixer.cache_layers()).collect();
        LoadedArchitecture { arch: Box::new(self), cache, shape: ModelShape::decoder(hp) }
    }

    fn read(&self, g: &mut Graph, stream: &mut ResidualStream, at: (usize, LayerPart)) -> ValueId {
        self.residual.as_ref().map_or(stream.x, |residual| residual.read(g, stream, at))
    }

    fn write(
        &self,
        g: &mut Graph,
        stream: &mut ResidualStream,
        at: (usize, LayerPart),
        output: ValueId,
    ) {
        if let Some(residual) = &self.residual {
            return residual.write(g, stream, at, output);
        }
        let name = if at.1 == LayerPart::Mixer { "ffn_inp" } else { "l_out" };
        stream.x = self.outer.add_scaled(g, name, stream.x, output);
    }
}

impl Architecture for Hybrid {
    fn hidden(&self, g: &mut Graph, outputs_only: bool) -> ValueId {
        let mut x = self.outer.input_stream(g);
        if let Some(residual) = &self.residual {
            x = residual.begin(g, x);
        }
        let mut stream = ResidualStream { x, saved: Vec::new() };
        let mut context = MixerContext::default();
        for (i, layer) in self.layers.iter().enumerate() {
            let block = i / self.layers_per_block;
            g.set_layer(Some(block));
            let at = (i, LayerPart::Mixer);
            let h = self.read(g, &mut stream, at);
            let h = layer.norm.apply(g, "attn_norm", h);
            stream.x = self.residual_base(g, stream.x, h);
            let is_last = outputs_only && i + 1 == self.layers.len();
            let mut parts = Vec::with_capacity(layer.mixers.len());
            for mixer in &layer.mixers {
                let mixed = mixer.mix(g, &mut context, h);
                context.cache_layer += mixer.cache_layers().len();
                parts.push(if is_last { g.gather_outputs(mixed) } else { mixed });
            }
            if is_last {
                stream.gather_outputs(g);
            }
            for (mixer, part) in layer.mixers.iter().zip(parts) {
                let part = mixer.finish(g, part);
                self.write(g, &mut stream, at, part);
            }
            if let Some((norm, ffn)) = &layer.ffn {
                let at = (i, LayerPart::FeedForward);
                let h = self.read(g, &mut stream, at);
                let h = norm.apply(g, "ffn_norm", h);
                stream.x = self.residual_base(g, stream.x, h);
                let f = ffn.forward(g, h);
                self.write(g, &mut stream, at, f);
            }
            if !(i + 1).is_multiple_of(self.layers_per_block) {
                continue;
            }
            if self.halve_interval.is_some_and(|every| (block + 1).is_multiple_of(every)) {
                stream.x = g.scale("l_out", stream.x, 0.5);
            }
            stream.x = g.add_control_vectors(block, stream.x);
        }
        g.set_layer(None);
        let x = match &self.residual {
            Some(residual) => residual.end(g, stream),
            None => stream.x,
        };
        self.outer.output_hidden(g, x)
    }

    fn logits(&self, g: &mut Graph, hidden: ValueId) -> ValueId {
        self.outer.logits(g, hidden)
    }
}

/// Attention as a mixer.
pub struct Attention {
    /// Query, key and value projections.
    pub qkv: Qkv,
    /// Whether the query projection has a gate after each head's query. The gate's sigmoid weighs
    /// the result.
    pub gated: bool,
    /// Norms of query and key heads, before the rotary embedding.
    pub norms: Option<[AnyNorm; 2]>,
    /// Rotary embedding; `None` for NoPE.
    pub rope: Option<RopeId>,
    /// Attention.
    pub spec: AttentionSpec,
    /// Output projection.
    pub wo: Linear,
}

impl Attention {
    /// Loads `attn_{q,k,v,output}` of a layer; if `gated`, `attn_q` contains the gates.
    pub fn load(b: &mut LayerLoader<'_, '_>, gated: bool) -> Result<Self, ModelError> {
        let (hp, i) = (b.hp, b.i);
        let spec = hp.attention(i);
        if spec.kv_heads == 0 || !spec.heads.is_multiple_of(spec.kv_heads) {
            let (what, reason) = (
                format!("attention in layer {i}"),
                "`attention.head_count` must be a multiple of `attention.head_count_kv`",
            );
            return Err(ModelError::Unsupported { what, reason });
        }
        if gated && spec.key_dim != spec.value_dim {
            let what = format!(
                "gated attention with values of {} features and keys of {}",
                spec.value_dim, spec.key_dim
            );
            let reason = "`attention.value_length` must equal `attention.key_length`";
            return Err(ModelError::Unsupported { what, reason });
        }
        let [q, k, v] = hp.qkv_widths(i);
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

    /// Gated result of all heads on cache layer `layer`, restricted to the selected positions, if
    /// any.
    pub fn attend(
        &self,
        g: &mut Graph,
        layer: usize,
        h: ValueId,
        selected: Option<(ValueId, SelectedPositions)>,
    ) -> ValueId {
        let [mut q, mut k, v] = self.qkv.project(g, h);
        let dim = self.spec.key_dim;
        let gate = self.gated.then(|| g.strided_columns("attn_gate", q, dim, dim, 2 * dim));
        if self.gated {
            q = g.strided_columns("Qcur", q, 0, dim, 2 * dim);
        }
        if let Some([of_q, of_k]) = &self.norms {
            (q, k) = (of_q.apply(g, "Qcur_normed", q), of_k.apply(g, "Kcur_normed", k));
        }
        if let Some(rope) = self.rope {
            q = g.rope("Qcur_rope", q, dim, rope);
            k = g.rope("Kcur_rope", k, dim, rope);
        }
        let a = match selected {
            Some(selected) => g.sparse_attention("kqv_out", layer, [q, k, v], selected, self.spec),
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

    fn mix(&self, g: &mut Graph, context: &mut MixerContext, h: ValueId) -> ValueId {
        self.attend(g, context.cache_layer, h, None)
    }

    fn finish(&self, g: &mut Graph, mixed: ValueId) -> ValueId {
        g.linear("attn_out", &self.wo, mixed)
    }
}

/// Latent attention as a mixer.
pub struct LatentAttention {
    latent: Latent,
    spec: AttentionSpec,
    /// `W_UV` of each head, applied to the attention result.
    values: PerHeadLinear,
    /// Projection of the input to a gate of each value, or of each head, by its sigmoid.
    gate: Option<Linear>,
    wo: Linear,
}

impl LatentAttention {
    /// Loads the tensors of [`Latent::load`] and `attn_output`.
    pub fn load(
        b: &mut LayerLoader<'_, '_>,
        (sizes, norm, rope): (LatentSizes, NormKind, Option<RopeId>),
    ) -> Result<Self, ModelError> {
        let (n_embd, heads) = (b.hp.n_embd, b.hp.heads[b.i]);
        let (latent, values) = Latent::load(b.w, &b.name, (n_embd, heads), (sizes, norm, rope))?;
        let wo = b.linear("attn_output", heads * values.out, n_embd)?;
        Ok(Self { latent, spec: sizes.attention(heads), values, gate: None, wo })
    }

    /// Sets the gate of the values.
    pub fn gated(self, gate: Option<Linear>) -> Self {
        Self { gate, ..self }
    }
}

impl Mixer for LatentAttention {
    fn cache(&self) -> Option<CacheLayer> {
        Some(self.spec.cache_layer())
    }

    fn mix(&self, g: &mut Graph, context: &mut MixerContext, h: ValueId) -> ValueId {
        let qkv = self.latent.project(g, h);
        let gate = self.gate.as_ref().map(|gate| g.linear("attn_gate", gate, h));
        let a = g.attention("kqv_out", context.cache_layer, qkv, self.spec);
        let values = g.per_head_linear("kqv_values", &self.values, a);
        let Some(gate) = gate else { return values };
        let gate = g.activate("attn_gate_sigmoid", Activation::Sigmoid, gate);
        g.mul("attn_gated", values, gate)
    }

    fn finish(&self, g: &mut Graph, mixed: ValueId) -> ValueId {
        g.linear("attn_out", &self.wo, mixed)
    }
}

/// Feed-forward network in place of a mixer.
impl Mixer for FeedForward {
    fn mix(&self, _: &mut Graph, _: &mut MixerContext, h: ValueId) -> ValueId {
        h
    }

    fn finish(&self, g: &mut Graph, mixed: ValueId) -> ValueId {
        self.forward(g, mixed)
    }
}

/// Sizes of a recurrent layer, from the `ssm.*` keys.
#[derive(Debug, Clone, Copy)]
pub struct SsmKeys {
    /// Rows of the convolution kernel.
    pub taps: usize,
    /// Columns of the inner stream.
    pub inner: usize,
    /// State values of each column.
    pub state: usize,
    /// Rank of the time step (Mamba 1), or number of heads.
    pub rank: usize,
    /// Groups of heads.
    pub groups: usize,
}

impl SsmKeys {
    /// Reads the keys. If `has_heads`, [`Self::rank`] is the number of heads, which come in groups.
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
            return of("ssm.time_step_rank", rank, "must divide ssm.inner_size");
        }
        if has_heads && !rank.is_multiple_of(groups) {
            return of("ssm.group_count", groups, "must divide ssm.time_step_rank");
        }
        Ok(Self { taps, inner, state, rank, groups })
    }
}

/// Kernel size of a convolution, from a key.
pub fn taps(keys: &Keys<'_>, key: &str) -> Result<usize, ModelError> {
    let taps = keys.count(key)?;
    if !(2..=64).contains(&taps) {
        let (key, value) = (keys.name(key), taps.to_string());
        return Err(ModelError::KeyValue { key, value, reason: "must be between 2 and 64" });
    }
    Ok(taps)
}
