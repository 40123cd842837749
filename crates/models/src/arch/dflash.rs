//! DFlash: a draft model that guesses a block of tokens at once, by the masks that stand for them. Its layers see keys and values that
//! are made of what some layers of the model have read, and those of the block. DSpark adds to a token's logits what the one before it
//! makes likely; DFlash 2 weighs that by the token's state, chooses among the likeliest, and mixes neighbours around each part of a
//! layer.
//! GGUF: `general.architecture = "dflash"`.

use puna_graph::*;

use crate::block_draft_head::{self, Link};
use crate::blocks::Mlp;
use crate::companion::{self, Companion, Guesser, Guesses, Needs, Trunk};
use crate::error::ModelError;
use crate::hparams::{Hparams, Keys};
use crate::rope::RopeKeys;
use crate::token_mixing_conv::{self, Mixing, Neighbours};
use crate::weights::Weights;
use crate::windows::Windows;

struct Dflash {
    n_embd: usize,
    /// Of the layers' inputs side by side.
    fused: Linear,
    fused_norm: Norm,
    /// Own embeddings; without, the model's.
    table: Option<WeightId>,
    embd_scale: f32,
    layers: Vec<Layer>,
    norm: Norm,
    /// Own output matrix; without, the model's.
    head: Option<Linear>,
    link: Option<Link>,
}

struct Layer {
    attn_norm: Norm,
    attn_mix: Option<Neighbours>,
    q: Linear,
    k: Linear,
    /// Without, values are what keys are made of, behind a norm without weights.
    v: Option<Linear>,
    q_norm: Norm,
    k_norm: Norm,
    v_norm: Norm,
    rope: RopeId,
    attention: AttentionSpec,
    wo: Linear,
    value_scale: f32,
    post_attn_norm: Option<Norm>,
    ffn_norm: Norm,
    ffn_mix: Option<Neighbours>,
    ffn: Mlp,
    post_ffn_norm: Option<Norm>,
    scale: f32,
}

/// What all layers are loaded with.
struct Form {
    hp: Hparams,
    eps: f32,
    windows: Windows,
    is_causal: bool,
    rope: RopeId,
    scale: Option<f32>,
    value_scale: f32,
    unit: Glu,
    mixing: Option<Mixing>,
}

/// Rows of a block where the file does not say it.
const ROWS: usize = 16;
/// More rows than any block has, to bound what a file can ask for.
const MOST_ROWS: usize = 256;

pub(super) fn load(keys: &Keys<'_>, w: &mut Weights<'_>) -> Result<Companion, ModelError> {
    if keys.opt_count("hyper_connection.count")?.is_some_and(|count| count > 0) {
        let what = "a DSpark draft model with several residual streams".to_owned();
        let reason =
            "models that have such carry states, and are not guessed for; run the model without it";
        return Err(ModelError::Unsupported { what, reason });
    }
    let form = Form::read(keys, w)?;
    let Form { hp, eps, .. } = &form;
    let (n, n_vocab) = (hp.n_embd, hp.n_vocab);
    let inputs = keys.target_layers()?;
    let tokens = w.tokens("d2t", n_vocab)?;
    let entries = tokens.as_ref().map_or(n_vocab, Vec::len);
    let table = w.opt("token_embd.weight", &[n, n_vocab])?;
    let tied = table.filter(|_| tokens.is_none());
    let tied = tied.map(|w| Linear { w, scale: 1.0, bias: None, out: n_vocab });
    let head = w.head_of(tokens.as_deref(), n, n_vocab)?.or(tied);
    let link = Link::load(keys, w, (n, n_vocab, entries))?;
    let block = block(keys, hp, link.as_ref())?;
    let layers =
        (0..hp.n_layer).map(|i| Layer::load(w, &form, i)).collect::<Result<Vec<_>, _>>()?;
    // A window would have the model's own pages come and go by what the draft model sees.
    let kept = |layer: &Layer| CacheLayer { mask: Mask::Causal, ..layer.attention.cache_layer() };
    let cache = layers.iter().map(kept).collect();
    let shares = (table.is_none() || head.is_none()).then_some(n);
    let dflash = Dflash {
        n_embd: n,
        fused: w.linear("fc", inputs.len() * n, n)?,
        fused_norm: w.norm("enc.output_norm", n, *eps)?,
        table,
        embd_scale: keys.factor("embedding_scale")?.unwrap_or(1.0),
        layers,
        norm: w.norm("output_norm", n, *eps)?,
        head,
        link,
    };
    Ok(Companion {
        guesser: Box::new(dflash),
        guesses: Guesses::Block(block),
        needs: Needs { width: n, n_vocab, shares, inputs, ..Needs::default() },
        cache,
        tokens,
    })
}

/// What a step of guesses is.
fn block(
    keys: &Keys<'_>,
    hp: &Hparams,
    link: Option<&Link>,
) -> Result<companion::Block, ModelError> {
    const MASK: &str = "tokenizer.ggml.mask_token_id";
    let rows = match link {
        None => keys.count_or("block_size", ROWS)?,
        Some(_) => keys.count("block_size")?,
    };
    // Those of DSpark may have no mask for the token that the newest one is followed by.
    let from_newest =
        link.is_some_and(Link::is_markov) && keys.opt_bool("sample_from_anchor")?.unwrap_or(true);
    let first = usize::from(!from_newest);
    if rows <= first || rows > MOST_ROWS {
        let (key, value) = (keys.name("block_size"), rows.to_string());
        let reason =
            "must be at most 256, and more than the newest token where its row says nothing";
        return Err(ModelError::KeyValue { key, value, reason });
    }
    let mask = keys.meta().opt_u32(MASK)?;
    let Some(mask) = mask.filter(|&mask| (mask as usize) < hp.n_vocab) else {
        let (key, value) =
            (MASK.into(), mask.map_or_else(|| "absent".into(), |mask| mask.to_string()));
        let reason = "the token that stands for one that is not known is needed";
        return Err(ModelError::KeyValue { key, value, reason });
    };
    Ok(companion::Block { rows, mask, first, link: link.map(Link::form) })
}

impl Form {
    fn read(keys: &Keys<'_>, w: &mut Weights<'_>) -> Result<Self, ModelError> {
        const UNIT: &str = "hidden_activation";
        let hp = Hparams::read_draft(keys)?;
        let width = keys.opt_count("attention.sliding_window")?.filter(|&width| width > 0);
        let sliding = match width {
            Some(_) => keys.listed_sliding(hp.n_layer)?,
            None => vec![false; hp.n_layer],
        };
        let rope = RopeKeys::read(keys, hp.key_dim, hp.n_ctx)?;
        // With sections for pictures, whose first is the position in a text, there are no factors.
        let rope = match keys.meta().get(&keys.name("rope.dimension_sections")) {
            Some(_) => w.rope(rope.table(RopeKind::Neox, None)),
            None => w.factored_rope(&rope, RopeKind::Neox)?,
        };
        let unit = match keys.opt_str(UNIT)? {
            None | Some("silu") => Glu::Silu,
            Some("gelu" | "gelu_pytorch_tanh") => Glu::Gelu,
            Some(other) => {
                let (key, value) = (keys.name(UNIT), puna_gguf::shown(other.as_bytes()));
                return Err(ModelError::KeyValue {
                    key,
                    value,
                    reason: "use silu or gelu_pytorch_tanh",
                });
            }
        };
        let is_second = w.has(block_draft_head::SELECTOR);
        Ok(Self {
            eps: keys.rms_eps()?,
            windows: Windows::read_optional(keys, sliding)?,
            is_causal: keys.flag("attention.causal")?,
            rope,
            scale: keys.factor("attention.scale")?,
            value_scale: keys.factor("attention.value_scale")?.unwrap_or(1.0),
            unit,
            mixing: is_second.then(|| Mixing::read(keys, hp.n_embd)).transpose()?,
            hp,
        })
    }
}

impl Layer {
    fn load(w: &mut Weights<'_>, form: &Form, i: usize) -> Result<Self, ModelError> {
        let Form { hp, eps, .. } = form;
        let (n, dim, plain) = (hp.n_embd, hp.key_dim, hp.attention(i));
        let [q, k, v] = hp.widths(i);
        let name = |part: &str| format!("blk.{i}.{part}");
        let norm = |w: &mut Weights<'_>, part: &str, dim| w.norm(&name(part), dim, *eps);
        let mix = |w: &mut Weights<'_>, part: &str| {
            form.mixing.map(|mixing| Neighbours::load(w, &name(part), n, mixing)).transpose()
        };
        let own_v = w.opt_linear(&name("attn_v"), n, v)?;
        if own_v.is_none() && hp.value_dim != dim {
            return Err(ModelError::MissingTensor { name: name("attn_v.weight") });
        }
        Ok(Self {
            attn_norm: norm(w, "attn_norm", n)?,
            attn_mix: mix(w, "attn")?,
            q: w.linear(&name("attn_q"), n, q)?,
            k: w.linear(&name("attn_k"), n, k)?,
            v: own_v,
            q_norm: norm(w, "attn_q_norm", dim)?,
            k_norm: norm(w, "attn_k_norm", dim)?,
            v_norm: Norm { w: None, b: None, dim, eps: *eps },
            rope: form.rope,
            attention: AttentionSpec {
                mask: form.windows.mask(i),
                sees_ahead: !form.is_causal,
                sinks: w.opt(&name("attn_sinks.weight"), &[hp.heads[i]])?,
                scale: form.scale.unwrap_or(plain.scale),
                ..plain
            },
            wo: w.linear(&name("attn_output"), hp.heads[i] * hp.value_dim, n)?,
            value_scale: form.value_scale,
            post_attn_norm: w.opt_norm(&name("post_attention_norm"), &[n], *eps)?,
            ffn_norm: norm(w, "ffn_norm", n)?,
            ffn_mix: mix(w, "ffn")?,
            ffn: Mlp::load(w, &format!("blk.{i}"), n, hp.ff(i), form.unit)?,
            post_ffn_norm: w.opt_norm(&name("post_ffw_norm"), &[n], *eps)?,
            scale: w.numbers(&name("layer_output_scale.weight"), 1)?.map_or(1.0, |scale| scale[0]),
        })
    }

    /// Keys and values of what the layer reads, or of what was made of the model's layers.
    fn keys_and_values(&self, g: &mut Graph, h: ValueId) -> [ValueId; 2] {
        let raw = g.linear("Kcur", &self.k, h);
        let v = match &self.v {
            Some(v) => g.linear("Vcur", v, h),
            None => g.rms_norm("Vcur", &self.v_norm, raw),
        };
        let k = g.rms_norm("Kcur_normed", &self.k_norm, raw);
        [g.rope("Kcur_rope", k, self.attention.key_dim, self.rope), v]
    }

    /// The stream behind the layer, whose keys and values are in this layer of the cache.
    fn forward(&self, g: &mut Graph, x: ValueId, layer: usize) -> ValueId {
        let h = g.rms_norm("noise_norm", &self.attn_norm, x);
        let a = token_mixing_conv::around(g, self.attn_mix.as_ref(), h, |g, h| {
            self.attend(g, h, layer)
        });
        let a =
            self.post_attn_norm.as_ref().map_or(a, |norm| g.rms_norm("attn_post_norm", norm, a));
        let x = g.add("ffn_inp", x, a);
        let h = g.rms_norm("ffn_norm", &self.ffn_norm, x);
        let f =
            token_mixing_conv::around(g, self.ffn_mix.as_ref(), h, |g, h| self.ffn.forward(g, h));
        let f = self.post_ffn_norm.as_ref().map_or(f, |norm| g.rms_norm("ffn_post_norm", norm, f));
        let x = g.add("l_out", x, f);
        scaled(g, "l_out_scaled", x, self.scale)
    }

    fn attend(&self, g: &mut Graph, h: ValueId, layer: usize) -> ValueId {
        let q = g.linear("Qcur", &self.q, h);
        let q = g.rms_norm("Qcur_normed", &self.q_norm, q);
        let q = g.rope("Qcur_rope", q, self.attention.key_dim, self.rope);
        let [k, v] = self.keys_and_values(g, h);
        let a = g.attention("kqv_out", layer, [q, k, v], self.attention);
        let a = g.linear("attn_out", &self.wo, a);
        scaled(g, "attn_out_scaled", a, self.value_scale)
    }
}

fn scaled(g: &mut Graph, name: &'static str, x: ValueId, by: f32) -> ValueId {
    if by == 1.0 { x } else { g.scale(name, x, by) }
}

impl Guesser for Dflash {
    fn read(&self, g: &mut Graph, _hidden: ValueId, inputs: &[ValueId], trunk: &Trunk) {
        let all = companion::side_by_side(g, "inp_target_features", inputs);
        let fused = g.linear("fc_out", &self.fused, all);
        let fused = g.rms_norm("inp_g_embeddings", &self.fused_norm, fused);
        for (i, layer) in self.layers.iter().enumerate() {
            let kept = layer.keys_and_values(g, fused);
            g.keep("injected", trunk.own + i, kept, layer.attention);
        }
    }

    fn guess(&self, g: &mut Graph, trunk: &Trunk) -> ValueId {
        let x = g.embed("inp_noise_embd", trunk.table_or(self.table), self.n_embd, Index::Token);
        let mut x = scaled(g, "inp_scaled", x, self.embd_scale);
        for (i, layer) in self.layers.iter().enumerate() {
            g.set_layer(Some(i));
            x = layer.forward(g, x, trunk.own + i);
        }
        g.set_layer(None);
        let x = g.rms_norm("result_norm", &self.norm, x);
        let x = g.gather_outputs(x);
        let logits = g.linear("result_output", trunk.head_or(self.head.as_ref()), x);
        self.link.as_ref().map_or(logits, |link| link.prepare(g, x, logits))
    }

    fn link(&self, g: &mut Graph) -> Option<ValueId> {
        self.link.as_ref().map(|link| link.forward(g))
    }
}
