//! GLM.

use super::super::keys::{Keys, Shape};
use super::super::rules::{Rule, aside, one};
use super::names::{ATTENTION, BEFORE, EXPERTS, FUSED, GATED, SHARED};
use super::{Alike, Family, PLAIN};
use crate::error::StoreError;

/// Where another speaks, and what stands for what is not known.
const ENDS: [(&str, &str); 3] =
    [("eot", "<|user|>"), ("eom", "<|observation|>"), ("unknown", "<|endoftext|>")];

pub(super) const CHATGLM: Family = Family {
    architecture: "chatglm",
    classes: &["GlmForCausalLM"],
    layer: &[&ATTENTION, &FUSED, &BEFORE],
    ends: &ENDS,
    pre: |name| if name == "llama-bpe" || name == "dbrx" { "chatglm-bpe" } else { name },
    shape: |config| {
        let mut shape = Shape::usual(config)?;
        shape.context = config.opt_count("seq_length")?.unwrap_or(shape.context);
        Ok(shape)
    },
    keys: |keys| {
        half_turns(keys)?;
        keys.set_whole("tokenizer.ggml.add_bos_token", false);
        Ok(())
    },
    ..PLAIN
};

const FIRST_WHOLE: [Rule; 4] = [
    one("embedding.word_embeddings", "token_embd"),
    one("encoder.final_layernorm", "output_norm"),
    one("output_layer", "output"),
    aside("rotary_pos_emb.inv_freq"),
];
const FIRST_LAYER: [Rule; 6] = [
    one("input_layernorm", "attn_norm"),
    one("self_attention.query_key_value", "attn_qkv"),
    one("self_attention.dense", "attn_output"),
    one("post_attention_layernorm", "ffn_norm"),
    one("mlp.dense_h_to_4h", "ffn_up"),
    one("mlp.dense_4h_to_h", "ffn_down"),
];

/// The same under the names that it was published by at first.
pub(super) const CHATGLM_FIRST: Family = Family {
    classes: &["ChatGLMModel", "ChatGLMForConditionalGeneration"],
    root: "transformer.",
    layers: "encoder.layers.",
    whole: &[&FIRST_WHOLE],
    layer: &[&FIRST_LAYER],
    ranks: Some("chatglm-bpe"),
    shape: |config| {
        let mut shape =
            Shape::of(config, config.count("seq_length")?, config.count("ffn_hidden_size")?)?;
        shape.sizes.head = config.opt_count("kv_channels")?.unwrap_or(shape.sizes.head);
        if config.flag("multi_query_attention") == Some(true) {
            shape.sizes.kv_heads = config.count("multi_query_group_num")?;
        }
        Ok(shape)
    },
    keys: |keys| {
        keys.sizes();
        keys.set("attention.layer_norm_rms_epsilon", keys.config.float("layernorm_epsilon", 1e-5)?);
        keys.set("rope.dimension_count", keys.head() / 2);
        keys.set("rope.freq_base", 10_000.0 * keys.config.float("rope_ratio", 1.0)?);
        keys.set_whole("tokenizer.ggml.add_bos_token", false);
        Ok(())
    },
    ..CHATGLM
};

/// Norms behind both parts, too.
const NORMS: [Rule; 2] = [
    one("post_self_attn_layernorm", "post_attention_norm"),
    one("post_mlp_layernorm", "post_ffw_norm"),
];

pub(super) const GLM4: Family = Family {
    architecture: "glm4",
    classes: &["Glm4ForCausalLM"],
    layer: &[&ATTENTION, &FUSED, &BEFORE, &NORMS],
    pre: glm4,
    ends: &ENDS,
    keys: half_turns,
    ..PLAIN
};

/// The norm before the network has the name of one behind attention.
const MOE_NORM: [Rule; 1] = [one("post_attention_layernorm", "post_attention_norm")];

pub(super) const GLM4MOE: Family = Family {
    architecture: "glm4moe",
    classes: &["Glm4MoeForCausalLM", "SolarOpenForCausalLM"],
    layer: &[&ATTENTION, &GATED, &MOE_NORM, &EXPERTS, &SHARED],
    alike: Alike::Kinds,
    pre: glm4,
    ends: &ENDS,
    keys: |keys| {
        keys.sigmoid();
        half_turns(keys)?;
        keys.routed()
    },
    ..PLAIN
};

/// It has no first token, where others that cut alike do.
fn glm4(name: &'static str) -> &'static str {
    if name == "llama-bpe" || name == "dbrx" { "glm4" } else { name }
}

/// The usual keys, and that half of a head turns unless something else is said.
fn half_turns(keys: &mut Keys<'_>) -> Result<(), StoreError> {
    keys.usual()?;
    let turning = keys.turning(0.5)?;
    keys.set("rope.dimension_count", turning);
    Ok(())
}
