//! Companion of Gemma 4: a few narrow layers that attend to the target's keys and values. It reads
//! the target's token embedding and hidden state, and has no cache of its own.
//! GGUF: `general.architecture = "gemma4-assistant"`.

use puna_graph::*;

use super::gemma4::dims_and_ropes;
use crate::blocks::Mlp;
use crate::companion::{
    Companion, DraftCache, DraftMethod, Drafter, TargetParts, TargetRequirements,
};
use crate::error::ModelError;
use crate::hparams::{Hparams, Keys};
use crate::weights::Weights;

struct Gemma4Assistant {
    /// Dimensions of the target's hidden states.
    width: usize,
    /// Projection of the target's embedding and hidden state.
    pre_projection: Linear,
    layers: Vec<Layer>,
    norm: Norm,
    head: Linear,
    /// Projection to the hidden state that the next draft step reads.
    post_projection: Linear,
}

struct Layer {
    attn_norm: Norm,
    q: Linear,
    q_norm: Norm,
    rope: RopeId,
    attention: AttentionSpec,
    wo: Linear,
    post_attn_norm: Norm,
    ffn_norm: Norm,
    ffn: Mlp,
    post_ffn_norm: Norm,
    scale: f32,
}

/// Options that all layers share.
struct Gemma4AssistantConfig {
    hp: Hparams,
    eps: f32,
    sliding: Vec<bool>,
    /// Mask of a layer with a window. A row has the position of the token before its own, so its
    /// window is one shorter.
    window: Mask,
    local_dim: usize,
    global_rope: RopeId,
    local_rope: RopeId,
}

pub(super) fn load(keys: &Keys<'_>, w: &mut Weights<'_>) -> Result<Companion, ModelError> {
    let config = Gemma4AssistantConfig::read(keys, w)?;
    let hp = &config.hp;
    let width = keys.hidden_size("embedding_length_out")?;
    let table = w.tensor("token_embd.weight", &[hp.n_embd, hp.n_vocab])?;
    let pre_projection = w.linear("nextn.pre_projection", 2 * width, hp.n_embd)?;
    let layers =
        (0..hp.n_layer).map(|i| Layer::load(w, &config, i)).collect::<Result<Vec<_>, _>>()?;
    let drafter = Gemma4Assistant {
        width,
        pre_projection,
        norm: w.norm("output_norm", hp.n_embd, config.eps)?,
        head: w.output_head(table, hp.n_embd, hp.n_vocab)?,
        post_projection: w.linear("nextn.post_projection", hp.n_embd, width)?,
        layers,
    };
    let layers = drafter.layers.iter().map(|layer| layer.attention.cache_layer()).collect();
    Ok(Companion {
        drafter: Box::new(drafter),
        method: DraftMethod::Chain { state_dim: width, cache: DraftCache::Target },
        requirements: TargetRequirements {
            width,
            n_vocab: hp.n_vocab,
            shared_width: Some(width),
            cache_layers: layers,
            ..TargetRequirements::default()
        },
        cache: Vec::new(),
        tokens: None,
    })
}

impl Gemma4AssistantConfig {
    fn read(keys: &Keys<'_>, w: &mut Weights<'_>) -> Result<Self, ModelError> {
        let hp = Hparams::read_draft(keys)?;
        let (local_dim, [global_rope, local_rope]) = dims_and_ropes(keys, &hp, w)?;
        let sliding = keys.listed_sliding(hp.n_layer)?;
        let window = keys.count("attention.sliding_window")?;
        if window < 2 {
            let key = keys.name("attention.sliding_window");
            let reason = "must be 2 or more, because the newest token's keys are not computed yet";
            return Err(ModelError::KeyValue { key, value: window.to_string(), reason });
        }
        Ok(Self {
            eps: keys.rms_eps()?,
            sliding,
            window: Mask::Window(window as u32 - 1),
            local_dim,
            global_rope,
            local_rope,
            hp,
        })
    }
}

impl Layer {
    fn load(
        w: &mut Weights<'_>,
        config: &Gemma4AssistantConfig,
        i: usize,
    ) -> Result<Self, ModelError> {
        let Gemma4AssistantConfig { hp, eps, .. } = config;
        let (heads, kv_heads, slides) = (hp.heads[i], hp.kv_heads[i], config.sliding[i]);
        let dim = if slides { config.local_dim } else { hp.key_dim };
        let mask = if slides { config.window } else { Mask::Causal };
        let name = |part: &str| format!("blk.{i}.{part}");
        let norm = |w: &mut Weights<'_>, part: &str| w.norm(&name(part), hp.n_embd, *eps);
        let scale = name("layer_output_scale.weight");
        Ok(Self {
            attn_norm: norm(w, "attn_norm")?,
            q: w.linear(&name("attn_q"), hp.n_embd, heads * dim)?,
            q_norm: w.norm(&name("attn_q_norm"), dim, *eps)?,
            rope: if slides { config.local_rope } else { config.global_rope },
            attention: AttentionSpec {
                scale: 1.0,
                mask,
                ..AttentionSpec::causal(heads, kv_heads, dim, dim)
            },
            wo: w.linear(&name("attn_output"), heads * dim, hp.n_embd)?,
            post_attn_norm: norm(w, "post_attention_norm")?,
            ffn_norm: norm(w, "ffn_norm")?,
            ffn: Mlp::load(w, &format!("blk.{i}"), hp.n_embd, hp.ff(i), Glu::Gelu)?,
            post_ffn_norm: norm(w, "post_ffw_norm")?,
            scale: w.numbers(&scale, 1)?.ok_or(ModelError::MissingTensor { name: scale })?[0],
        })
    }

    /// Residual stream after the layer, which attends to cache layer `layer` of the target.
    fn record(&self, g: &mut Graph, x: ValueId, layer: usize) -> ValueId {
        let h = g.rms_norm("attn_norm", &self.attn_norm, x);
        let q = g.linear("Qcur", &self.q, h);
        let q = g.rms_norm("Qcur_normed", &self.q_norm, q);
        let q = g.rope("Qcur_pos", q, self.attention.key_dim, self.rope);
        let a = g.attention_to("kqv_out", layer, q, self.attention);
        let a = g.linear("attn_proj", &self.wo, a);
        let a = g.rms_norm("attn_post_norm", &self.post_attn_norm, a);
        let x = g.add("attn_out", x, a);
        let h = g.rms_norm("ffn_norm", &self.ffn_norm, x);
        let f = self.ffn.forward(g, h);
        let f = g.rms_norm("ffn_post_norm", &self.post_ffn_norm, f);
        let x = g.add("ffn_out", x, f);
        g.scale("out_scaled", x, self.scale)
    }
}

impl Drafter for Gemma4Assistant {
    fn tap_target(
        &self,
        g: &mut Graph,
        hidden: ValueId,
        _inputs: &[ValueId],
        _target: &TargetParts,
    ) {
        g.add_extra_output(hidden);
    }

    fn draft(&self, g: &mut Graph, target: &TargetParts) -> ValueId {
        let x = g.embed("inp_embd_target", target.token_table(None), self.width, Index::Token);
        let x = g.scale("inp_scaled", x, (self.width as f32).sqrt());
        let state = g.input_rows("inp_h", self.width);
        let both = g.concat("inp_xh", x, state);
        let mut x = g.linear("pre_proj", &self.pre_projection, both);
        for (i, (layer, &at)) in self.layers.iter().zip(&target.cache_layers).enumerate() {
            g.set_layer(Some(i));
            x = layer.record(g, x, at);
        }
        g.set_layer(None);
        let x = g.rms_norm("result_norm", &self.norm, x);
        let next = g.linear("h_nextn", &self.post_projection, x);
        g.add_extra_output(next);
        g.linear("result_output", &self.head, x)
    }
}
