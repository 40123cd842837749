//! Gemma 3n: four residual streams, one of which passes through the layers. Each layer predicts all
//! streams from the current ones and corrects the prediction by the layer's result (AltUp, Baykal
//! et al., 2023). A low-rank map lies parallel to attention (LAuReL, Menghani et al., 2024). The
//! first layers have sparse gates, the last layers share keys and values of earlier ones, and each
//! token has per-layer embeddings.
//! GGUF: `general.architecture = "gemma3n"`.

use puna_graph::*;

use crate::architecture::{Architecture, LoadOptions, LoadedArchitecture, ModelShape};
use crate::blocks::Qkv;
use crate::error::ModelError;
use crate::hparams::{Hparams, Keys};
use crate::per_layer::{PerLayerEmbedding, PerLayerProjection};
use crate::rope::{self, RopeKeys, Scaling};
use crate::weights::Weights;
use crate::windows::Windows;

/// Constants that files do not store.
const STREAMS: usize = 4;
const LAUREL_RANK: usize = 64;
const PER_LAYER_WIDTH: usize = 256;
/// Default number of layers with own keys and values.
const OWN_KV_LAYERS: usize = 20;
/// Default number of layers with sparse gates: values below this many standard deviations above the
/// mean are zero, which keeps 5 %.
const SPARSE_LAYERS: usize = 10;
const SPARSITY_DEVIATIONS: f32 = 1.644_853_6;
const LOGIT_CAP: f32 = 30.0;

struct Gemma3n {
    n_embd: usize,
    table: WeightId,
    tokens: PerLayerEmbedding,
    /// Projections from the first stream to the others, and back.
    out: Vec<Linear>,
    back: Vec<Linear>,
    layers: Vec<Layer>,
    norm: Norm,
    head: Linear,
}

struct Layer {
    router_norm: Norm,
    router: Linear,
    predict: Linear,
    correct: Linear,
    correct_scale: WeightId,
    laurel: [Linear; 2],
    laurel_norm: Norm,
    attn_norm: Norm,
    source: KvSource,
    q_norm: Norm,
    rope: RopeId,
    attention: AttentionSpec,
    wo: Linear,
    post_attn_norm: Norm,
    ffn_norm: Norm,
    gate: Linear,
    up: Linear,
    down: Linear,
    /// Threshold of the gates in standard deviations above the mean, if they are sparse.
    sparsity: Option<f32>,
    post_ffn_norm: Norm,
    token: PerLayerProjection,
}

/// Source of a layer's keys and values.
enum KvSource {
    Own {
        qkv: Box<Qkv>,
        k_norm: Norm,
        v_norm: Norm,
    },
    /// Keys and values of this earlier layer; the layer has only a query projection.
    Layer(usize, Linear),
}

pub(super) fn load(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<LoadedArchitecture, ModelError> {
    let hp = Hparams::read(keys)?;
    let eps = keys.rms_eps()?;
    let width = keys.count_or("embedding_length_per_layer_input", PER_LAYER_WIDTH)?;
    let global = RopeKeys::read(keys, hp.key_dim, hp.n_ctx)?;
    let local =
        RopeKeys { scaling: Scaling::None, ..global.for_windows(keys, hp.key_dim, rope::BASE)? };
    let ropes = [global, local].map(|keys| w.rope(keys.table(RopeKind::Neox, None)));
    let windows = Windows::read(keys, keys.sliding(hp.n_layer, 5)?)?;
    let table = w.tensor("token_embd.weight", &[hp.n_embd, hp.n_vocab])?;
    let tokens = PerLayerEmbedding::load(w, (hp.n_embd, hp.n_vocab), (hp.n_layer, width), eps)?;
    let mut streams = |name: &str| -> Result<Vec<Linear>, ModelError> {
        let parts = w.split_stack(name, &[hp.n_embd, hp.n_embd, STREAMS - 1])?;
        Ok(parts
            .into_iter()
            .map(|w| Linear { w, scale: 1.0, bias: None, out: hp.n_embd })
            .collect())
    };
    let (out, back) = (streams("altup_proj.weight")?, streams("altup_unembd_proj.weight")?);
    let mut layers = Vec::with_capacity(hp.n_layer);
    let (own_kv_layers, sparsity) = (own_kv_layers(keys, &hp)?, sparsity(keys, hp.n_layer)?);
    for (i, &sparsity) in sparsity.iter().enumerate() {
        let source = source(keys, &windows, own_kv_layers, i)?;
        source.map_or(Ok(()), |source| hp.check_shared_kv(keys, i, source))?;
        let attention = AttentionSpec { scale: 1.0, mask: windows.mask(i), ..hp.attention(i) };
        layers.push(Layer::load(
            w,
            &hp,
            (i, width, eps, sparsity),
            (source, attention, ropes[usize::from(windows.has_window(i))]),
        )?);
    }
    let norm = w.norm("output_norm", hp.n_embd, eps)?;
    let head = w.output_head(table, hp.n_embd, hp.n_vocab)?;
    let cache = layers[..own_kv_layers].iter().map(|l| l.attention.cache_layer()).collect();
    let arch =
        Box::new(Gemma3n { n_embd: hp.n_embd, table, tokens, out, back, layers, norm, head });
    Ok(LoadedArchitecture { arch, cache, shape: ModelShape::decoder(&hp) })
}

/// Number of the earlier layer that provides keys and values to layer `i`, if it has none: the last
/// one with the same kind of mask.
fn source(
    keys: &Keys<'_>,
    windows: &Windows,
    own_kv_layers: usize,
    i: usize,
) -> Result<Option<usize>, ModelError> {
    if i < own_kv_layers {
        return Ok(None);
    }
    let last = (0..own_kv_layers).rev().find(|&at| windows.has_window(at) == windows.has_window(i));
    last.map(Some).ok_or_else(|| {
        let (key, value) = (keys.name("attention.sliding_window_pattern"), format!("of layer {i}"));
        let reason =
            "the layers with their own keys must include one with a window and one without";
        ModelError::KeyValue { key, value, reason }
    })
}

/// Number of first layers with own keys and values.
fn own_kv_layers(keys: &Keys<'_>, hp: &Hparams) -> Result<usize, ModelError> {
    let Some(shared) = keys.opt_count("attention.shared_kv_layers")? else {
        return Ok(OWN_KV_LAYERS.min(hp.n_layer));
    };
    hp.n_layer.checked_sub(shared).filter(|&own_kv_layers| own_kv_layers > 0).ok_or_else(|| {
        let (key, value) = (keys.name("attention.shared_kv_layers"), shared.to_string());
        ModelError::KeyValue { key, value, reason: "the first layer needs its own keys and values" }
    })
}

/// Sparsity threshold of each layer's gates in standard deviations; minus infinity in the list
/// means none.
fn sparsity(keys: &Keys<'_>, layers: usize) -> Result<Vec<Option<f32>>, ModelError> {
    let key = keys.name("activation_sparsity_scale");
    if keys.meta().get(&key).is_none() {
        return Ok((0..layers)
            .map(|i| (i < SPARSE_LAYERS).then_some(SPARSITY_DEVIATIONS))
            .collect());
    }
    let scales = keys.numbers_per_layer(&key, layers)?;
    Ok(scales
        .into_iter()
        .take(layers)
        .map(|scale| Some(scale).filter(|scale| scale.is_finite()))
        .collect())
}

impl Layer {
    fn load(
        w: &mut Weights<'_>,
        hp: &Hparams,
        (i, width, eps, sparsity): (usize, usize, f32, Option<f32>),
        (source, attention, rope): (Option<usize>, AttentionSpec, RopeId),
    ) -> Result<Self, ModelError> {
        let (n, dim, ff) = (hp.n_embd, hp.key_dim, hp.ff(i));
        let b = format!("blk.{i}");
        let name = |part: &str| format!("{b}.{part}");
        let [q, _, _] = hp.qkv_widths(i);
        let source = match source {
            Some(layer) => KvSource::Layer(layer, w.linear(&name("attn_q"), n, q)?),
            None => KvSource::Own {
                qkv: Box::new(Qkv::load(w, &b, n, hp.qkv_widths(i))?),
                k_norm: w.norm(&name("attn_k_norm"), dim, eps)?,
                v_norm: Norm { w: None, b: None, dim: hp.value_dim, eps },
            },
        };
        Ok(Self {
            router_norm: w.norm(&name("altup_router_norm"), n, eps)?,
            router: w.linear(&name("altup_router"), n, STREAMS)?,
            predict: w.linear(&name("altup_predict_coef"), STREAMS, STREAMS * STREAMS)?,
            correct: w.linear(&name("altup_correct_coef"), STREAMS, STREAMS)?,
            correct_scale: w.tensor(&name("altup_correct_scale.weight"), &[n])?,
            laurel: [
                w.linear(&name("laurel_l"), n, LAUREL_RANK)?,
                w.linear(&name("laurel_r"), LAUREL_RANK, n)?,
            ],
            laurel_norm: w.norm(&name("laurel_post_norm"), n, eps)?,
            attn_norm: w.norm(&name("attn_norm"), n, eps)?,
            source,
            q_norm: w.norm(&name("attn_q_norm"), dim, eps)?,
            rope,
            attention,
            wo: w.linear(&name("attn_output"), hp.heads[i] * hp.value_dim, n)?,
            post_attn_norm: w.norm(&name("post_attention_norm"), n, eps)?,
            ffn_norm: w.norm(&name("ffn_norm"), n, eps)?,
            gate: w.linear(&name("ffn_gate"), n, ff)?,
            up: w.linear(&name("ffn_up"), n, ff)?,
            down: w.linear(&name("ffn_down"), ff, n)?,
            sparsity,
            post_ffn_norm: w.norm(&name("post_ffw_norm"), n, eps)?,
            token: PerLayerProjection::load(w, &b, (n, width), eps)?,
        })
    }

    /// Router outputs for the stream, in (-1, 1).
    fn modalities(&self, g: &mut Graph, x: ValueId) -> ValueId {
        let n_embd = g.value(x).cols;
        let x = g.rms_norm("router_normed", &self.router_norm, x);
        let x = g.scale("router_scaled", x, 1.0 / n_embd as f32);
        let x = g.linear("router", &self.router, x);
        g.activate("modalities", Activation::Tanh, x)
    }

    /// Predicts all streams.
    fn predict(&self, g: &mut Graph, streams: [ValueId; STREAMS]) -> [ValueId; STREAMS] {
        let modalities = self.modalities(g, streams[0]);
        let coefficients = g.linear("all_coefs", &self.predict, modalities);
        std::array::from_fn(|k| {
            streams.iter().enumerate().fold(streams[k], |sum, (j, &stream)| {
                let coefficient = g.slice(coefficients, STREAMS * k + j, 1);
                let part = g.mul("predicted_part", stream, coefficient);
                g.add("predictions", sum, part)
            })
        })
    }

    /// Corrects the predicted streams by the layer's result.
    fn correct(
        &self,
        g: &mut Graph,
        predicted: [ValueId; STREAMS],
        activated: ValueId,
    ) -> [ValueId; STREAMS] {
        let modalities = self.modalities(g, activated);
        let coefficients = g.linear("all_coefs", &self.correct, modalities);
        let less = g.scale("active_negated", predicted[0], -1.0);
        let new = g.add("innovation", activated, less);
        std::array::from_fn(|k| {
            let coefficient = g.slice(coefficients, k, 1);
            let part = g.mul("corrected_part", new, coefficient);
            let part = g.add("corrected_whole", part, new);
            g.add("corrected", predicted[k], part)
        })
    }

    /// Attention result, with the heads concatenated.
    fn attend(&self, g: &mut Graph, i: usize, h: ValueId) -> ValueId {
        let dim = self.attention.key_dim;
        match &self.source {
            KvSource::Own { qkv, k_norm, v_norm } => {
                let [q, k, v] = qkv.project(g, h);
                let q = g.rms_norm("Qcur_normed", &self.q_norm, q);
                let k = g.rms_norm("Kcur_normed", k_norm, k);
                let v = g.rms_norm("Vcur_normed", v_norm, v);
                let q = g.rope("Qcur_pos", q, dim, self.rope);
                let k = g.rope("Kcur_pos", k, dim, self.rope);
                g.attention("kqv_out", i, [q, k, v], self.attention)
            }
            KvSource::Layer(layer, q) => {
                let q = g.linear("Qcur", q, h);
                let q = g.rms_norm("Qcur_normed", &self.q_norm, q);
                let q = g.rope("Qcur_pos", q, dim, self.rope);
                g.attention_to("kqv_out", *layer, q, self.attention)
            }
        }
    }

    fn feed_forward(&self, g: &mut Graph, x: ValueId) -> ValueId {
        let h = g.rms_norm("ffn_norm", &self.ffn_norm, x);
        let mut gate = g.linear("ffn_gate", &self.gate, h);
        let up = g.linear("ffn_up", &self.up, h);
        if let Some(deviations) = self.sparsity {
            gate = g.gaussian_top_k("ffn_gate_sparse", gate, deviations);
        }
        let hidden = g.glu("ffn_glu", Glu::Gelu, gate, up);
        let f = g.linear("ffn_out", &self.down, hidden);
        g.rms_norm("ffn_post_norm", &self.post_ffn_norm, f)
    }

    fn forward(
        &self,
        g: &mut Graph,
        i: usize,
        streams: [ValueId; STREAMS],
        per_layer: ValueId,
    ) -> [ValueId; STREAMS] {
        let half = std::f32::consts::FRAC_1_SQRT_2;
        let predicted = self.predict(g, streams);
        let active = predicted[0];
        let h = g.rms_norm("attn_norm", &self.attn_norm, active);
        let low_rank = g.linear("laurel_l", &self.laurel[0], h);
        let low_rank = g.linear("laurel_r", &self.laurel[1], low_rank);
        let low_rank = g.rms_norm("laurel_normed", &self.laurel_norm, low_rank);
        let laurel = g.add("laurel_out", low_rank, h);
        let a = self.attend(g, i, h);
        let a = g.linear("attn_out", &self.wo, a);
        let a = g.rms_norm("attn_post_norm", &self.post_attn_norm, a);
        let a = g.add("attn_gated", a, active);
        let x = g.add("attn_laurel_sum", a, laurel);
        let x = g.scale("attn_laurel", x, half);
        let f = self.feed_forward(g, x);
        let activated = g.add("attn_ffw_laurel_gated", f, x);
        let mut streams = self.correct(g, predicted, activated);
        let n_embd = g.value(active).cols;
        let scale = g.embed("correct_scale", self.correct_scale, n_embd, Index::Fixed(0));
        let first = g.mul("first_prediction", streams[0], scale);
        let more = self.token.record(g, first, per_layer);
        for stream in &mut streams[1..] {
            *stream = g.add("l_out", *stream, more);
        }
        streams
    }
}

impl Architecture for Gemma3n {
    fn hidden(&self, g: &mut Graph, outputs_only: bool) -> ValueId {
        let x = g.embed("inp_embd", self.table, self.n_embd, Index::Token);
        let x = g.scale("inp_scaled", x, (self.n_embd as f32).sqrt());
        let per_layer = self.tokens.record(g, x);
        let mut streams = std::array::from_fn(|k| match k.checked_sub(1) {
            None => x,
            Some(other) => {
                let made = g.linear("altup_added", &self.out[other], x);
                g.match_norm("inp_stacked", made, x)
            }
        });
        for (i, layer) in self.layers.iter().enumerate() {
            g.set_layer(Some(i));
            let per_layer = self.tokens.of_layer(g, per_layer, i);
            streams = layer
                .forward(g, i, streams, per_layer)
                .map(|stream| g.add_control_vectors(i, stream));
        }
        g.set_layer(None);
        if outputs_only {
            streams = streams.map(|stream| g.gather_outputs(stream));
        }
        let [first, others @ ..] = streams;
        let sum = others.into_iter().zip(&self.back).fold(first, |sum, (stream, back)| {
            let made = g.linear("altup_unembd", back, stream);
            let made = g.match_norm("altup_unembd_resized", made, first);
            g.add("unembd_sum", sum, made)
        });
        let merged = g.scale("unembd_merged", sum, 1.0 / STREAMS as f32);
        g.rms_norm("result_norm", &self.norm, merged)
    }

    fn logits(&self, g: &mut Graph, hidden: ValueId) -> ValueId {
        let logits = g.linear("result_output", &self.head, hidden);
        g.softcap("result_capped", logits, LOGIT_CAP)
    }
}
