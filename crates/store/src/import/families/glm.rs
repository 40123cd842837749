//! GLM.

use super::super::keys::{Keys, Shape};
use super::super::rules::{Rule, one};
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

/// Norms behind both parts, too.
const NORMS: [Rule; 2] =
    [one("post_self_attn_layernorm", "post_attention_norm"), one("post_mlp_layernorm", "post_ffw_norm")];

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
        half_turns(keys)?;
        keys.routed()?;
        keys.sigmoid();
        Ok(())
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
