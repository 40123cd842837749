//! DFlash: a companion that drafts a block of tokens in one step, at masked positions. Its layers
//! attend to the block and to keys and values computed from the inputs of some target layers. The
//! DSpark variant adds transition logits of the token before. DFlash 2 weighs them by the token's
//! state, samples among the likeliest, and has dynamic convolutions around each part of a layer.
//! GGUF: `general.architecture = "dflash"`.

use puna_graph::*;

use crate::block_draft_head::{self, BlockDraftHead};
use crate::blocks::Mlp;
use crate::companion::{self, Companion, DraftMethod, Drafter, TargetParts, TargetRequirements};
use crate::error::ModelError;
use crate::hparams::{Hparams, Keys};
use crate::rope::RopeKeys;
use crate::token_mixing_conv::{self, TokenMixingConv, TokenMixingSizes};
use crate::weights::Weights;
use crate::windows::Windows;

struct Dflash {
    n_embd: usize,
    /// Projection of the concatenated target features.
    fused: Linear,
    fused_norm: Norm,
    /// Own token embeddings; `None` to use the target's.
    table: Option<WeightId>,
    embd_scale: f32,
    layers: Vec<Layer>,
    norm: Norm,
    /// Own output matrix; `None` for that of the target.
    head: Option<Linear>,
    block_head: Option<BlockDraftHead>,
}

struct Layer {
    attn_norm: Norm,
    attn_mix: Option<TokenMixingConv>,
    q: Linear,
    k: Linear,
    /// `None` if values are the key projection behind a norm without weights.
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
    ffn_mix: Option<TokenMixingConv>,
    ffn: Mlp,
    post_ffn_norm: Option<Norm>,
    scale: f32,
}

/// Options that all layers share.
struct DflashConfig {
    hp: Hparams,
    eps: f32,
    windows: Windows,
    is_causal: bool,
    rope: RopeId,
    scale: Option<f32>,
    value_scale: f32,
    glu: Glu,
    mixing: Option<TokenMixingSizes>,
}

/// Default number of rows of a block.
const ROWS: usize = 16;
/// Largest accepted number of rows of a block, against hostile files.
const MAX_ROWS: usize = 256;

pub(super) fn load(keys: &Keys<'_>, w: &mut Weights<'_>) -> Result<Companion, ModelError> {
    if keys.opt_count("hyper_connection.count")?.is_some_and(|count| count > 0) {
        let what = "a DSpark draft model with several residual streams".to_owned();
        let reason = "its target models are recurrent, which speculative decoding does not support; run the model without the draft model";
        return Err(ModelError::Unsupported { what, reason });
    }
    let config = DflashConfig::read(keys, w)?;
    let DflashConfig { hp, eps, .. } = &config;
    let (n, n_vocab) = (hp.n_embd, hp.n_vocab);
    let inputs = keys.target_layers()?;
    let tokens = w.draft_tokens("d2t", n_vocab)?;
    let entries = tokens.as_ref().map_or(n_vocab, Vec::len);
    let table = w.opt("token_embd.weight", &[n, n_vocab])?;
    let tied = table.filter(|_| tokens.is_none());
    let tied = tied.map(|w| Linear { w, scale: 1.0, bias: None, out: n_vocab });
    let head = w.draft_head(tokens.as_deref(), n, n_vocab)?.or(tied);
    let block_head = BlockDraftHead::load(keys, w, (n, n_vocab, entries))?;
    let block = block(keys, hp, block_head.as_ref())?;
    let layers =
        (0..hp.n_layer).map(|i| Layer::load(w, &config, i)).collect::<Result<Vec<_>, _>>()?;
    // With a window here, the window pages of the target would depend on the draft model.
    let kept = |layer: &Layer| CacheLayer { mask: Mask::Causal, ..layer.attention.cache_layer() };
    let cache = layers.iter().map(kept).collect();
    let shared_width = (table.is_none() || head.is_none()).then_some(n);
    let dflash = Dflash {
        n_embd: n,
        fused: w.linear("fc", inputs.len() * n, n)?,
        fused_norm: w.norm("enc.output_norm", n, *eps)?,
        table,
        embd_scale: keys.factor("embedding_scale")?.unwrap_or(1.0),
        layers,
        norm: w.norm("output_norm", n, *eps)?,
        head,
        block_head,
    };
    Ok(Companion {
        drafter: Box::new(dflash),
        method: DraftMethod::Block(block),
        requirements: TargetRequirements {
            width: n,
            n_vocab,
            shared_width,
            tapped_layers: inputs,
            ..TargetRequirements::default()
        },
        cache,
        tokens,
    })
}

/// Description of a draft step.
fn block(
    keys: &Keys<'_>,
    hp: &Hparams,
    block_head: Option<&BlockDraftHead>,
) -> Result<companion::DraftBlock, ModelError> {
    const MASK: &str = "tokenizer.ggml.mask_token_id";
    let rows = match block_head {
        None => keys.count_or("block_size", ROWS)?,
        Some(_) => keys.count("block_size")?,
    };
    // DSpark blocks may predict the first token from the latest token's row, without a mask for it.
    let from_newest = block_head.is_some_and(BlockDraftHead::is_markov)
        && keys.opt_bool("sample_from_anchor")?.unwrap_or(true);
    let first_output_row = usize::from(!from_newest);
    if rows <= first_output_row || rows > MAX_ROWS {
        let (key, value) = (keys.name("block_size"), rows.to_string());
        let reason =
            "must be at most 256, and at least 2 unless the newest token's row predicts a token";
        return Err(ModelError::KeyValue { key, value, reason });
    }
    let mask = keys.meta().opt_u32(MASK)?;
    let Some(mask) = mask.filter(|&mask| (mask as usize) < hp.n_vocab) else {
        let (key, value) =
            (MASK.into(), mask.map_or_else(|| "absent".into(), |mask| mask.to_string()));
        let reason = "the mask token must be in the vocabulary";
        return Err(ModelError::KeyValue { key, value, reason });
    };
    Ok(companion::DraftBlock {
        rows,
        mask,
        first_output_row,
        transition: block_head.map(BlockDraftHead::describe),
    })
}

impl DflashConfig {
    fn read(keys: &Keys<'_>, w: &mut Weights<'_>) -> Result<Self, ModelError> {
        const ACTIVATION: &str = "hidden_activation";
        let hp = Hparams::read_draft(keys)?;
        let width = keys.opt_count("attention.sliding_window")?.filter(|&width| width > 0);
        let sliding = match width {
            Some(_) => keys.listed_sliding(hp.n_layer)?,
            None => vec![false; hp.n_layer],
        };
        let rope = RopeKeys::read(keys, hp.key_dim, hp.n_ctx)?;
        // Vision models have sections, with the text position first, and no frequency factors.
        let rope = match keys.meta().get(&keys.name("rope.dimension_sections")) {
            Some(_) => w.rope(rope.table(RopeKind::Neox, None)),
            None => w.factored_rope(&rope, RopeKind::Neox)?,
        };
        let glu = match keys.opt_str(ACTIVATION)? {
            None | Some("silu") => Glu::Silu,
            Some("gelu" | "gelu_pytorch_tanh") => Glu::Gelu,
            Some(other) => {
                let (key, value) =
                    (keys.name(ACTIVATION), puna_gguf::escape_for_display(other.as_bytes()));
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
            glu,
            mixing: is_second.then(|| TokenMixingSizes::read(keys, hp.n_embd)).transpose()?,
            hp,
        })
    }
}

impl Layer {
    fn load(w: &mut Weights<'_>, config: &DflashConfig, i: usize) -> Result<Self, ModelError> {
        let DflashConfig { hp, eps, .. } = config;
        let (n, dim, plain) = (hp.n_embd, hp.key_dim, hp.attention(i));
        let [q, k, v] = hp.qkv_widths(i);
        let name = |part: &str| format!("blk.{i}.{part}");
        let norm = |w: &mut Weights<'_>, part: &str, dim| w.norm(&name(part), dim, *eps);
        let mix = |w: &mut Weights<'_>, part: &str| {
            config.mixing.map(|mixing| TokenMixingConv::load(w, &name(part), n, mixing)).transpose()
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
            rope: config.rope,
            attention: AttentionSpec {
                mask: config.windows.mask(i),
                sees_ahead: !config.is_causal,
                sinks: w.opt(&name("attn_sinks.weight"), &[hp.heads[i]])?,
                scale: config.scale.unwrap_or(plain.scale),
                ..plain
            },
            wo: w.linear(&name("attn_output"), hp.heads[i] * hp.value_dim, n)?,
            value_scale: config.value_scale,
            post_attn_norm: w.opt_norm(&name("post_attention_norm"), &[n], *eps)?,
            ffn_norm: norm(w, "ffn_norm", n)?,
            ffn_mix: mix(w, "ffn")?,
            ffn: Mlp::load(w, &format!("blk.{i}"), n, hp.ff(i), config.glu)?,
            post_ffn_norm: w.opt_norm(&name("post_ffw_norm"), &[n], *eps)?,
            scale: w.numbers(&name("layer_output_scale.weight"), 1)?.map_or(1.0, |scale| scale[0]),
        })
    }

    /// Keys and values of a layer's normed input, or of the fused target features.
    fn keys_and_values(&self, g: &mut Graph, h: ValueId) -> [ValueId; 2] {
        let raw = g.linear("Kcur", &self.k, h);
        let v = match &self.v {
            Some(v) => g.linear("Vcur", v, h),
            None => g.rms_norm("Vcur", &self.v_norm, raw),
        };
        let k = g.rms_norm("Kcur_normed", &self.k_norm, raw);
        [g.rope("Kcur_rope", k, self.attention.key_dim, self.rope), v]
    }

    /// Residual stream after the layer; `layer` is its cache layer.
    fn forward(&self, g: &mut Graph, x: ValueId, layer: usize) -> ValueId {
        let h = g.rms_norm("noise_norm", &self.attn_norm, x);
        let a = token_mixing_conv::apply_around(g, self.attn_mix.as_ref(), h, |g, h| {
            self.attend(g, h, layer)
        });
        let a =
            self.post_attn_norm.as_ref().map_or(a, |norm| g.rms_norm("attn_post_norm", norm, a));
        let x = g.add("ffn_inp", x, a);
        let h = g.rms_norm("ffn_norm", &self.ffn_norm, x);
        let f = token_mixing_conv::apply_around(g, self.ffn_mix.as_ref(), h, |g, h| {
            self.ffn.forward(g, h)
        });
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

impl Drafter for Dflash {
    fn tap_target(
        &self,
        g: &mut Graph,
        _hidden: ValueId,
        inputs: &[ValueId],
        target: &TargetParts,
    ) {
        let all = companion::concat_features(g, "inp_target_features", inputs);
        let fused = g.linear("fc_out", &self.fused, all);
        let fused = g.rms_norm("inp_g_embeddings", &self.fused_norm, fused);
        for (i, layer) in self.layers.iter().enumerate() {
            let kept = layer.keys_and_values(g, fused);
            g.store_kv("injected", target.first_cache_layer + i, kept, layer.attention);
        }
    }

    fn draft(&self, g: &mut Graph, target: &TargetParts) -> ValueId {
        let x =
            g.embed("inp_noise_embd", target.token_table(self.table), self.n_embd, Index::Token);
        let mut x = scaled(g, "inp_scaled", x, self.embd_scale);
        for (i, layer) in self.layers.iter().enumerate() {
            g.set_layer(Some(i));
            x = layer.forward(g, x, target.first_cache_layer + i);
        }
        g.set_layer(None);
        let x = g.rms_norm("result_norm", &self.norm, x);
        let x = g.gather_outputs(x);
        let logits = g.linear("result_output", target.output_head(self.head.as_ref()), x);
        self.block_head.as_ref().map_or(logits, |block_head| block_head.prepare(g, x, logits))
    }

    fn transition_logits(&self, g: &mut Graph) -> Option<ValueId> {
        self.block_head.as_ref().map(|block_head| block_head.forward(g))
    }
}
