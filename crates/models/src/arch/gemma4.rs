//! Gemma 4: a Gemma 3 whose layers of either kind have heads of their own sizes, normed values, and scores as they are; the last layers
//! may read the keys and values of earlier ones, each token may have a vector of its own for each layer, and a mixture may lie beside
//! the feed-forward part.
//! GGUF: `general.architecture = "gemma4"`.

use puna_graph::*;

use crate::blocks::{Experts, Mlp};
use crate::error::ModelError;
use crate::experts::ExpertShape;
use crate::hparams::{Hparams, Keys};
use crate::model::{Architecture, LoadOptions, Loaded, Shape};
use crate::per_layer::{LayerInput, PerLayer};
use crate::rope::{self, RopeKeys, Scaling};
use crate::weights::Weights;
use crate::windows::Windows;

/// More features than any head has, to bound what a file can ask for.
const MAX_DIM: usize = 1 << 16;

struct Gemma4 {
    n_embd: usize,
    table: WeightId,
    tokens: Option<PerLayer>,
    layers: Vec<Layer>,
    norm: Norm,
    head: Linear,
    logit_cap: Option<f32>,
}

struct Layer {
    attn_norm: Norm,
    q: Linear,
    q_norm: Norm,
    source: Source,
    rope: RopeId,
    attention: AttentionSpec,
    wo: Linear,
    post_attn_norm: Norm,
    ffn_norm: Norm,
    ffn: Mlp,
    mixture: Option<Mixture>,
    post_ffn_norm: Norm,
    token: Option<LayerInput>,
    scale: f32,
}

/// Where a layer's keys and values come from.
enum Source {
    /// Its own; without `v`, values are made of what keys are made of.
    Own { k: Linear, v: Option<Linear>, k_norm: Norm, v_norm: Norm },
    /// This earlier layer's.
    Layer(usize),
}

/// A mixture beside the feed-forward part.
struct Mixture {
    post_ffn_norm: Norm,
    norm: Norm,
    router_norm: Norm,
    experts: Experts,
    post_norm: Norm,
}

/// What all layers are loaded with.
struct Form<'a, 'k> {
    keys: &'a Keys<'k>,
    hp: &'a Hparams,
    eps: f32,
    windows: Windows,
    /// Features of a sliding layer's head.
    local_dim: usize,
    global_rope: RopeId,
    local_rope: RopeId,
    /// Layers with keys and values of their own.
    own: usize,
    /// Features of what the token says to a layer, or zero.
    width: usize,
}

pub(super) fn load(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<Loaded, ModelError> {
    let hp = Hparams::read(keys)?;
    let form = Form::read(keys, &hp, w)?;
    let table = w.tensor("token_embd.weight", &[hp.n_embd, hp.n_vocab])?;
    let tokens = match form.width {
        0 => None,
        width => Some(PerLayer::load(w, (hp.n_embd, hp.n_vocab), (hp.n_layer, width), form.eps)?),
    };
    let layers =
        (0..hp.n_layer).map(|i| Layer::load(w, &form, i)).collect::<Result<Vec<_>, _>>()?;
    let norm = w.norm("output_norm", hp.n_embd, form.eps)?;
    let head = w.head(table, hp.n_embd, hp.n_vocab)?;
    let logit_cap = keys.bound("final_logit_softcapping")?;
    let cache = layers[..form.own].iter().map(|l| l.attention.cache_layer()).collect();
    let arch = Box::new(Gemma4 { n_embd: hp.n_embd, table, tokens, layers, norm, head, logit_cap });
    Ok(Loaded { arch, cache, shape: Shape::decoder(&hp) })
}

impl<'a, 'k> Form<'a, 'k> {
    fn read(keys: &'a Keys<'k>, hp: &'a Hparams, w: &mut Weights<'_>) -> Result<Self, ModelError> {
        let (local_dim, [global_rope, local_rope]) = dims_and_ropes(keys, hp, w)?;
        let own = layers_with_own_keys(keys, hp)?;
        Ok(Self {
            keys,
            hp,
            eps: keys.rms_eps()?,
            windows: Windows::read(keys, keys.sliding(hp.n_layer, 6)?)?,
            local_dim,
            global_rope,
            local_rope,
            own,
            width: keys.opt_count("embedding_length_per_layer_input")?.unwrap_or(0),
        })
    }

    /// The layer whose keys and values layer `i` reads: of those that have their own the last but one if it slides, else the last.
    fn source(&self, i: usize) -> Result<usize, ModelError> {
        let source = self.own.checked_sub(if self.windows.slides(i) { 2 } else { 1 });
        let source = source.filter(|&at| self.windows.slides(at) == self.windows.slides(i)).ok_or_else(|| {
            let reason =
                "the layers before those that share must end with a sliding one and one that sees everything";
            let key = self.keys.name("attention.shared_kv_layers");
            ModelError::KeyValue { key, value: (self.hp.n_layer - self.own).to_string(), reason }
        })?;
        self.hp.may_read(self.keys, i, source)?;
        Ok(source)
    }
}

/// Features of a sliding layer's head, and how heads turn in layers that see everything and in those that slide.
pub(super) fn dims_and_ropes(
    keys: &Keys<'_>,
    hp: &Hparams,
    w: &mut Weights<'_>,
) -> Result<(usize, [RopeId; 2]), ModelError> {
    let local_dim = keys.count("attention.key_length_swa")?;
    same_dims(keys, hp, local_dim)?;
    let global = RopeKeys::read(keys, hp.key_dim, hp.n_ctx)?;
    let local = RopeKeys { scaling: Scaling::None, dims: local_dim, ..global };
    let local = local.in_windows(keys, local_dim, rope::BASE)?;
    let global = w.factored_rope(&global, RopeKind::Neox)?;
    Ok((local_dim, [global, w.rope(local.table(RopeKind::Neox, None))]))
}

/// Keys and values have heads of the same size, in layers of either kind.
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
        reason: "must be the size of a key head",
    })
}

fn layers_with_own_keys(keys: &Keys<'_>, hp: &Hparams) -> Result<usize, ModelError> {
    let shared = keys.opt_count("attention.shared_kv_layers")?.unwrap_or(0);
    hp.n_layer.checked_sub(shared).filter(|&own| own > 0).ok_or_else(|| {
        let (key, value) = (keys.name("attention.shared_kv_layers"), shared.to_string());
        ModelError::KeyValue {
            key,
            value,
            reason: "the first layer needs keys and values of its own",
        }
    })
}

impl Layer {
    fn load(w: &mut Weights<'_>, form: &Form<'_, '_>, i: usize) -> Result<Self, ModelError> {
        let Form { hp, eps, .. } = *form;
        let (heads, kv_heads, slides) = (hp.heads[i], hp.kv_heads[i], form.windows.slides(i));
        let dim = if slides { form.local_dim } else { hp.key_dim };
        let name = |part: &str| format!("blk.{i}.{part}");
        let norm = |w: &mut Weights<'_>, part: &str| w.norm(&name(part), hp.n_embd, eps);
        let mask = form.windows.mask(i);
        let source = match i < form.own {
            true => Source::Own {
                k: w.linear(&name("attn_k"), hp.n_embd, kv_heads * dim)?,
                v: w.opt_linear(&name("attn_v"), hp.n_embd, kv_heads * dim)?,
                k_norm: w.norm(&name("attn_k_norm"), dim, eps)?,
                v_norm: Norm { w: None, b: None, dim, eps },
            },
            false => Source::Layer(form.source(i)?),
        };
        let has_mixture = w.has(&name("ffn_gate_inp.weight"));
        Ok(Self {
            attn_norm: norm(w, "attn_norm")?,
            q: w.linear(&name("attn_q"), hp.n_embd, heads * dim)?,
            q_norm: w.norm(&name("attn_q_norm"), dim, eps)?,
            source,
            rope: if slides { form.local_rope } else { form.global_rope },
            attention: AttentionSpec {
                scale: 1.0,
                mask,
                ..AttentionSpec::causal(heads, kv_heads, dim, dim)
            },
            wo: w.linear(&name("attn_output"), heads * dim, hp.n_embd)?,
            post_attn_norm: norm(w, "post_attention_norm")?,
            ffn_norm: norm(w, "ffn_norm")?,
            ffn: Mlp::load(w, &format!("blk.{i}"), hp.n_embd, hp.ff(i), Glu::Gelu)?,
            mixture: if has_mixture { Some(Mixture::load(w, form, i)?) } else { None },
            post_ffn_norm: norm(w, "post_ffw_norm")?,
            token: match form.width {
                0 => None,
                width => Some(LayerInput::load(w, &format!("blk.{i}"), (hp.n_embd, width), eps)?),
            },
            scale: w.numbers(&name("layer_output_scale.weight"), 1)?.map_or(1.0, |s| s[0]),
        })
    }

    /// What heads read.
    fn attend(&self, g: &mut Graph, i: usize, h: ValueId) -> ValueId {
        let dim = self.attention.key_dim;
        let q = g.linear("Qcur", &self.q, h);
        let q = g.rms_norm("Qcur_normed", &self.q_norm, q);
        match &self.source {
            Source::Own { k, v, k_norm, v_norm } => {
                let k = g.linear("Kcur", k, h);
                let v = v.as_ref().map_or(k, |v| g.linear("Vcur", v, h));
                let k = g.rms_norm("Kcur_normed", k_norm, k);
                let v = g.rms_norm("Vcur_normed", v_norm, v);
                let q = g.rope("Qcur_pos", q, dim, self.rope);
                let k = g.rope("Kcur_pos", k, dim, self.rope);
                g.attention("kqv_out", i, [q, k, v], self.attention)
            }
            Source::Layer(layer) => {
                let q = g.rope("Qcur_pos", q, dim, self.rope);
                g.attention_to("kqv_out", *layer, q, self.attention)
            }
        }
    }

    /// What the feed-forward part adds.
    fn feed_forward(&self, g: &mut Graph, x: ValueId, n_embd: usize) -> ValueId {
        let h = g.rms_norm("ffn_norm", &self.ffn_norm, x);
        let mut f = self.ffn.forward(g, h);
        if let Some(m) = &self.mixture {
            f = g.rms_norm("ffn_mlp", &m.post_ffn_norm, f);
            let h = g.rms_norm("ffn_norm_2", &m.norm, x);
            let by = g.rms_norm("ffn_moe_router_normed", &m.router_norm, x);
            let by = g.scale("ffn_moe_router_scaled", by, 1.0 / (n_embd as f32).sqrt());
            let chosen = m.experts.forward_by(g, h, by);
            let chosen = g.rms_norm("ffn_moe", &m.post_norm, chosen);
            f = g.add("ffn_moe_combined", f, chosen);
        }
        g.rms_norm("ffn_post_norm", &self.post_ffn_norm, f)
    }
}

impl Mixture {
    fn load(w: &mut Weights<'_>, form: &Form<'_, '_>, i: usize) -> Result<Self, ModelError> {
        let Form { hp, eps, keys, .. } = *form;
        let name = |part: &str| format!("blk.{i}.{part}");
        let hidden = keys.count("expert_feed_forward_length")?;
        let shape =
            ExpertShape { normalise: true, glu: Glu::Gelu, ..ExpertShape::read(keys, hidden)? };
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
        let mut x = g.scale("inp_scaled", x, (self.n_embd as f32).sqrt());
        let said = self.tokens.as_ref().map(|tokens| (tokens, tokens.record(g, x)));
        for (i, l) in self.layers.iter().enumerate() {
            g.set_layer(Some(i));
            let h = g.rms_norm("attn_norm", &l.attn_norm, x);
            let mut a = l.attend(g, i, h);
            let mut said = said.map(|(tokens, all)| tokens.of_layer(g, all, i));
            if outputs_only && i + 1 == self.layers.len() {
                (a, x) = (g.gather_outputs(a), g.gather_outputs(x));
                said = said.map(|said| g.gather_outputs(said));
            }
            let a = g.linear("attn_proj", &l.wo, a);
            let a = g.rms_norm("attn_post_norm", &l.post_attn_norm, a);
            x = g.add("attn_out", x, a);
            let f = l.feed_forward(g, x, self.n_embd);
            x = g.add("ffn_out", x, f);
            if let (Some(token), Some(said)) = (&l.token, said) {
                let more = token.record(g, x, said);
                x = g.add("per_layer_added", x, more);
            }
            if l.scale != 1.0 {
                x = g.scale("l_out", x, l.scale);
            }
            x = g.steer(i, x);
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
