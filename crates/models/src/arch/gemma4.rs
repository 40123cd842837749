//! Gemma 4: a Gemma 3 with separate head sizes for the two kinds of layers, normed values, and
//! unscaled attention. The last layers may share keys and values of earlier ones, tokens may have
//! per-layer embeddings, and experts may be added to the dense network.
//! GGUF: `general.architecture = "gemma4"`.

use puna_graph::*;

use crate::architecture::{Architecture, LoadOptions, LoadedArchitecture, ModelShape};
use crate::blocks::{Experts, Mlp};
use crate::error::ModelError;
use crate::experts::ExpertShape;
use crate::hparams::{Hparams, Keys};
use crate::per_layer::{PerLayerEmbedding, PerLayerProjection};
use crate::rope::{self, RopeKeys, Scaling};
use crate::weights::Weights;
use crate::windows::Windows;

/// Largest accepted head dimension, against hostile files.
const MAX_DIM: usize = 1 << 16;

struct Gemma4 {
    n_embd: usize,
    table: WeightId,
    tokens: Option<PerLayerEmbedding>,
    layers: Vec<Layer>,
    norm: Norm,
    head: Linear,
    logit_cap: Option<f32>,
}

struct Layer {
    attn_norm: Norm,
    q: Linear,
    q_norm: Norm,
    source: KvSource,
    rope: RopeId,
    attention: AttentionSpec,
    wo: Linear,
    post_attn_norm: Norm,
    ffn_norm: Norm,
    ffn: Mlp,
    experts: Option<ParallelExperts>,
    post_ffn_norm: Norm,
    token: Option<PerLayerProjection>,
    scale: f32,
}

/// Source of a layer's keys and values.
enum KvSource {
    /// Own projections; without `v`, values are the key projection behind a norm.
    Own { k: Linear, v: Option<Linear>, k_norm: Norm, v_norm: Norm },
    /// Keys and values of this earlier layer.
    Layer(usize),
}

/// Experts in parallel with the dense network.
struct ParallelExperts {
    post_ffn_norm: Norm,
    norm: Norm,
    router_norm: Norm,
    experts: Experts,
    post_norm: Norm,
}

/// Options that all layers share.
struct Gemma4Config<'a, 'k> {
    keys: &'a Keys<'k>,
    hp: &'a Hparams,
    eps: f32,
    windows: Windows,
    /// Head dimension of layers with a sliding window.
    local_dim: usize,
    global_rope: RopeId,
    local_rope: RopeId,
    /// Number of first layers with own keys and values.
    own_kv_layers: usize,
    /// Dimensions of a per-layer embedding; zero for none.
    per_layer_width: usize,
}

pub(super) fn load(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<LoadedArchitecture, ModelError> {
    let hp = Hparams::read(keys)?;
    let config = Gemma4Config::read(keys, &hp, w)?;
    let table = w.tensor("token_embd.weight", &[hp.n_embd, hp.n_vocab])?;
    let tokens = match config.per_layer_width {
        0 => None,
        per_layer_width => Some(PerLayerEmbedding::load(
            w,
            (hp.n_embd, hp.n_vocab),
            (hp.n_layer, per_layer_width),
            config.eps,
        )?),
    };
    let layers =
        (0..hp.n_layer).map(|i| Layer::load(w, &config, i)).collect::<Result<Vec<_>, _>>()?;
    let norm = w.norm("output_norm", hp.n_embd, config.eps)?;
    let head = w.output_head(table, hp.n_embd, hp.n_vocab)?;
    let logit_cap = keys.opt_limit("final_logit_softcapping")?;
    let cache = layers[..config.own_kv_layers].iter().map(|l| l.attention.cache_layer()).collect();
    let arch = Box::new(Gemma4 { n_embd: hp.n_embd, table, tokens, layers, norm, head, logit_cap });
    Ok(LoadedArchitecture { arch, cache, shape: ModelShape::decoder(&hp) })
}

impl<'a, 'k> Gemma4Config<'a, 'k> {
    fn read(keys: &'a Keys<'k>, hp: &'a Hparams, w: &mut Weights<'_>) -> Result<Self, ModelError> {
        let (local_dim, [global_rope, local_rope]) = dims_and_ropes(keys, hp, w)?;
        let own_kv_layers = own_kv_layers(keys, hp)?;
        Ok(Self {
            keys,
            hp,
            eps: keys.rms_eps()?,
            windows: Windows::read(keys, keys.sliding(hp.n_layer, 6)?)?,
            local_dim,
            global_rope,
            local_rope,
            own_kv_layers,
            per_layer_width: keys.opt_count("embedding_length_per_layer_input")?.unwrap_or(0),
        })
    }

    /// Number of the layer that provides keys and values to layer `i`: the last one with own keys,
    /// or the one before it if layer `i` has a window.
    fn source(&self, i: usize) -> Result<usize, ModelError> {
        let source = self.own_kv_layers.checked_sub(if self.windows.has_window(i) { 2 } else { 1 });
        let source = source.filter(|&at| self.windows.has_window(at) == self.windows.has_window(i)).ok_or_else(|| {
            let reason =
                "the layers before the shared ones must end with one with a window and one without";
            let key = self.keys.name("attention.shared_kv_layers");
            ModelError::KeyValue { key, value: (self.hp.n_layer - self.own_kv_layers).to_string(), reason }
        })?;
        self.hp.check_shared_kv(self.keys, i, source)?;
        Ok(source)
    }
}

/// Head dimension of layers with a window, and the rotary embedding of layers without and with a
/// window.
pub(super) fn dims_and_ropes(
    keys: &Keys<'_>,
    hp: &Hparams,
    w: &mut Weights<'_>,
) -> Result<(usize, [RopeId; 2]), ModelError> {
    let local_dim = keys.count("attention.key_length_swa")?;
    same_dims(keys, hp, local_dim)?;
    let global = RopeKeys::read(keys, hp.key_dim, hp.n_ctx)?;
    let local = RopeKeys { scaling: Scaling::None, dims: local_dim, ..global };
    let local = local.for_windows(keys, local_dim, rope::BASE)?;
    let global = w.factored_rope(&global, RopeKind::Neox)?;
    Ok((local_dim, [global, w.rope(local.table(RopeKind::Neox, None))]))
}

/// Checks that key and value heads have the same size in both kinds of layers.
fn same_dims(keys: &Keys<'_>, hp: &Hparams, local_dim: usize) -> Result<(), ModelError> {
    let local_values = keys.count_or("attention.value_length_swa", local_dim)?;
    if local_dim > MAX_DIM {
        let (key, value) = (keys.name("attention.key_length_swa"), local_dim.to_string());
        return Err(ModelError::KeyValue { key, value, reason: "must be at most 65536" });
    }
    let both =
        [("value_length", hp.value_dim, hp.key_dim), ("value_length_swa", local_values, local_dim)];
    let Some((key, found, _)) = both.into_iter().find(|(_, value, key)| value != key) else {
        return Ok(());
    };
    let key = keys.name(&format!("attention.{key}"));
    Err(ModelError::KeyValue {
        key,
        value: found.to_string(),
        reason: "must equal the size of a key head",
    })
}

fn own_kv_layers(keys: &Keys<'_>, hp: &Hparams) -> Result<usize, ModelError> {
    let shared = keys.opt_count("attention.shared_kv_layers")?.unwrap_or(0);
    hp.n_layer.checked_sub(shared).filter(|&own_kv_layers| own_kv_layers > 0).ok_or_else(|| {
        let (key, value) = (keys.name("attention.shared_kv_layers"), shared.to_string());
        ModelError::KeyValue { key, value, reason: "the first layer needs its own keys and values" }
    })
}

impl Layer {
    fn load(
        w: &mut Weights<'_>,
        config: &Gemma4Config<'_, '_>,
        i: usize,
    ) -> Result<Self, ModelError> {
        let Gemma4Config { hp, eps, .. } = *config;
        let (heads, kv_heads, slides) = (hp.heads[i], hp.kv_heads[i], config.windows.has_window(i));
        let dim = if slides { config.local_dim } else { hp.key_dim };
        let name = |part: &str| format!("blk.{i}.{part}");
        let norm = |w: &mut Weights<'_>, part: &str| w.norm(&name(part), hp.n_embd, eps);
        let mask = config.windows.mask(i);
        let source = match i < config.own_kv_layers {
            true => KvSource::Own {
                k: w.linear(&name("attn_k"), hp.n_embd, kv_heads * dim)?,
                v: w.opt_linear(&name("attn_v"), hp.n_embd, kv_heads * dim)?,
                k_norm: w.norm(&name("attn_k_norm"), dim, eps)?,
                v_norm: Norm { w: None, b: None, dim, eps },
            },
            false => KvSource::Layer(config.source(i)?),
        };
        let has_experts = w.has(&name("ffn_gate_inp.weight"));
        Ok(Self {
            attn_norm: norm(w, "attn_norm")?,
            q: w.linear(&name("attn_q"), hp.n_embd, heads * dim)?,
            q_norm: w.norm(&name("attn_q_norm"), dim, eps)?,
            source,
            rope: if slides { config.local_rope } else { config.global_rope },
            attention: AttentionSpec {
                scale: 1.0,
                mask,
                // Layers without a window stay causal.
                sees_media_span: slides,
                ..AttentionSpec::causal(heads, kv_heads, dim, dim)
            },
            wo: w.linear(&name("attn_output"), heads * dim, hp.n_embd)?,
            post_attn_norm: norm(w, "post_attention_norm")?,
            ffn_norm: norm(w, "ffn_norm")?,
            ffn: Mlp::load(w, &format!("blk.{i}"), hp.n_embd, hp.ff(i), Glu::Gelu)?,
            experts: if has_experts { Some(ParallelExperts::load(w, config, i)?) } else { None },
            post_ffn_norm: norm(w, "post_ffw_norm")?,
            token: match config.per_layer_width {
                0 => None,
                per_layer_width => Some(PerLayerProjection::load(
                    w,
                    &format!("blk.{i}"),
                    (hp.n_embd, per_layer_width),
                    eps,
                )?),
            },
            scale: w.numbers(&name("layer_output_scale.weight"), 1)?.map_or(1.0, |s| s[0]),
        })
    }

    /// Attention result, with the heads concatenated.
    fn attend(&self, g: &mut Graph, i: usize, h: ValueId) -> ValueId {
        let dim = self.attention.key_dim;
        let q = g.linear("Qcur", &self.q, h);
        let q = g.rms_norm("Qcur_normed", &self.q_norm, q);
        match &self.source {
            KvSource::Own { k, v, k_norm, v_norm } => {
                let k = g.linear("Kcur", k, h);
                let v = v.as_ref().map_or(k, |v| g.linear("Vcur", v, h));
                let k = g.rms_norm("Kcur_normed", k_norm, k);
                let v = g.rms_norm("Vcur_normed", v_norm, v);
                let q = g.rope("Qcur_pos", q, dim, self.rope);
                let k = g.rope("Kcur_pos", k, dim, self.rope);
                g.attention("kqv_out", i, [q, k, v], self.attention)
            }
            KvSource::Layer(layer) => {
                let q = g.rope("Qcur_pos", q, dim, self.rope);
                g.attention_to("kqv_out", *layer, q, self.attention)
            }
        }
    }

    /// Output of the feed-forward network.
    fn feed_forward(&self, g: &mut Graph, x: ValueId, n_embd: usize) -> ValueId {
        let h = g.rms_norm("ffn_norm", &self.ffn_norm, x);
        let mut f = self.ffn.forward(g, h);
        if let Some(m) = &self.experts {
            f = g.rms_norm("ffn_mlp", &m.post_ffn_norm, f);
            let h = g.rms_norm("ffn_norm_2", &m.norm, x);
            let by = g.rms_norm("ffn_moe_router_normed", &m.router_norm, x);
            let by = g.scale("ffn_moe_router_scaled", by, 1.0 / (n_embd as f32).sqrt());
            let routed = m.experts.forward_routed(g, h, by);
            let routed = g.rms_norm("ffn_moe", &m.post_norm, routed);
            f = g.add("ffn_moe_combined", f, routed);
        }
        g.rms_norm("ffn_post_norm", &self.post_ffn_norm, f)
    }
}

impl ParallelExperts {
    fn load(
        w: &mut Weights<'_>,
        config: &Gemma4Config<'_, '_>,
        i: usize,
    ) -> Result<Self, ModelError> {
        let Gemma4Config { hp, eps, keys, .. } = *config;
        let name = |part: &str| format!("blk.{i}.{part}");
        let hidden = keys.count("expert_feed_forward_length")?;
        let shape =
            ExpertShape { normalize: true, glu: Glu::Gelu, ..ExpertShape::read(keys, hidden)? };
        let router = w.tensor(&name("ffn_gate_inp.weight"), &[hp.n_embd, shape.experts])?;
        let router = Linear { w: router, scale: 1.0, bias: None, out: shape.experts };
        let factors = Some(w.tensor(&name("ffn_gate_inp.scale"), &[hp.n_embd])?);
        Ok(Self {
            post_ffn_norm: w.norm(&name("post_ffw_norm_1"), hp.n_embd, eps)?,
            norm: w.norm(&name("pre_ffw_norm_2"), hp.n_embd, eps)?,
            router_norm: Norm { w: factors, b: None, dim: hp.n_embd, eps },
            experts: Experts::with_router(w, &format!("blk.{i}"), hp.n_embd, shape, router)?,
            post_norm: w.norm(&name("post_ffw_norm_2"), hp.n_embd, eps)?,
        })
    }
}

impl Architecture for Gemma4 {
    fn hidden(&self, g: &mut Graph, outputs_only: bool) -> ValueId {
        let x = g.embed("inp_embd", self.table, self.n_embd, Index::Token);
        let x = g.scale("inp_scaled", x, (self.n_embd as f32).sqrt());
        let mut x = g.add_media(x);
        let per_layer = self.tokens.as_ref().map(|tokens| (tokens, tokens.record(g, x)));
        for (i, l) in self.layers.iter().enumerate() {
            g.set_layer(Some(i));
            let h = g.rms_norm("attn_norm", &l.attn_norm, x);
            let mut a = l.attend(g, i, h);
            let mut per_layer = per_layer.map(|(tokens, all)| tokens.of_layer(g, all, i));
            if outputs_only && i + 1 == self.layers.len() {
                (a, x) = (g.gather_outputs(a), g.gather_outputs(x));
                per_layer = per_layer.map(|per_layer| g.gather_outputs(per_layer));
            }
            let a = g.linear("attn_proj", &l.wo, a);
            let a = g.rms_norm("attn_post_norm", &l.post_attn_norm, a);
            x = g.add("attn_out", x, a);
            let f = l.feed_forward(g, x, self.n_embd);
            x = g.add("ffn_out", x, f);
            if let (Some(token), Some(per_layer)) = (&l.token, per_layer) {
                let more = token.record(g, x, per_layer);
                x = g.add("per_layer_added", x, more);
            }
            if l.scale != 1.0 {
                x = g.scale("l_out", x, l.scale);
            }
            x = g.add_control_vectors(i, x);
        }
        g.set_layer(None);
        g.rms_norm("result_norm", &self.norm, x)
    }

    fn logits(&self, g: &mut Graph, hidden: ValueId) -> ValueId {
        let logits = g.linear("result_output", &self.head, hidden);
        match self.logit_cap {
            Some(cap) => g.softcap("result_capped", logits, cap),
            None => logits,
        }
    }
}
