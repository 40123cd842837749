//! Qwen, and what is built like it.

use super::super::ImportError;
use super::super::keys::Keys;
use super::super::pieces::Cutter;
use super::super::plan::Output;
use super::super::rules::{Cut, Form, Rule, one, pieces};
use super::super::weights::Weights;
use super::names::{ATTENTION, BEFORE, EXPERTS, GATED, OLD_NORMS, OLD_WHOLE};
use super::{Alike, Family, PLAIN};
use crate::error::StoreError;

/// The expert that all tokens meet.
pub(super) const SHARED: [Rule; 4] = [
    one("mlp.shared_expert.gate_proj", "ffn_gate_shexp"),
    one("mlp.shared_expert.up_proj", "ffn_up_shexp"),
    one("mlp.shared_expert.down_proj", "ffn_down_shexp"),
    one("mlp.shared_expert_gate", "ffn_gate_inp_shexp"),
];

/// KORMo's names of the norms.
const KORMO: [Rule; 2] =
    [one("pre_attention_layernorm", "attn_norm"), one("pre_mlp_layernorm", "ffn_norm")];

pub(super) const QWEN2: Family = Family {
    architecture: "qwen2",
    classes: &["Qwen2ForCausalLM", "Qwen2Model", "KORMoForCausalLM"],
    layer: &[&ATTENTION, &GATED, &BEFORE, &KORMO],
    ..PLAIN
};

/// The first Qwen: one matrix of queries, keys and values, with a bias.
pub(super) const QWEN: Family = Family {
    architecture: "qwen",
    classes: &["QWenLMHeadModel"],
    root: "transformer.",
    layers: "h.",
    whole: &[&OLD_WHOLE],
    layer: &[&OLD_NORMS, &QWEN_1],
    ends: &[("bos", "<|endoftext|>"), ("eos", "<|endoftext|>"), ("unknown", "<|endoftext|>")],
    keys: |keys| {
        keys.sizes();
        // The two halves of the network are as wide as this together.
        keys.set("feed_forward_length", keys.shape.inner / 2);
        keys.set(
            "attention.layer_norm_rms_epsilon",
            keys.config.float("layer_norm_epsilon", 1e-6)?,
        );
        keys.rope()?;
        keys.set("rope.dimension_count", keys.head());
        Ok(())
    },
    ..PLAIN
};

const QWEN_1: [Rule; 5] = [
    one("attn.c_attn", "attn_qkv"),
    one("attn.c_proj", "attn_output"),
    one("mlp.w2", "ffn_gate"),
    one("mlp.w1", "ffn_up"),
    one("mlp.c_proj", "ffn_down"),
];

/// Texts of a model that also sees.
pub(super) const QWEN2VL: Family = Family {
    architecture: "qwen2vl",
    classes: &[
        "Qwen2VLForConditionalGeneration",
        "Qwen2_5_VLForConditionalGeneration",
        "Qwen2VLModel",
    ],
    ..PLAIN
};

pub(super) const QWEN3VL: Family = Family {
    architecture: "qwen3vl",
    classes: &["Qwen3VLForConditionalGeneration"],
    keys: |keys| {
        keys.usual()?;
        deepstack(keys);
        Ok(())
    },
    ..PLAIN
};

/// Experts come all in one, inputs before outputs.
const QWEN3VL_EXPERTS: [Rule; 2] = [
    pieces("mlp.experts.gate_up_proj", Cut::Behind, &["ffn_gate_exps", "ffn_up_exps"])
        .form(Form::Turned),
    one("mlp.experts.down_proj", "ffn_down_exps").form(Form::Turned),
];

/// Later programs store the same tensors with outputs before inputs: the way back tells which it is.
fn experts<'a>(
    cutter: &Cutter<'_>,
    weights: &mut Weights<'a>,
    outputs: &mut Vec<Output<'a>>,
) -> Result<(), StoreError> {
    let width = u64::from(cutter.config.count("hidden_size")?);
    let inner = u64::from(cutter.config.count("moe_intermediate_size")?);
    for layer in 0..cutter.sizes.layers {
        let name = |part: &str| format!("layers.{layer}.mlp.experts.{part}");
        let down = weights.get(&name("down_proj"));
        if down
            .is_none_or(|down| down.entry.shape.get(1..) != Some(&[width, inner]) || width == inner)
        {
            continue;
        }
        for rule in QWEN3VL_EXPERTS {
            let part = rule.there.trim_start_matches("mlp.experts.");
            let tensor = weights.take(&name(part));
            let tensor = tensor.ok_or_else(|| ImportError::TensorMissing { name: name(part) })?;
            cutter.cut(&rule.form(Form::Plain), Some(layer), ".weight", &tensor, outputs)?;
        }
    }
    Ok(())
}

pub(super) const QWEN3VLMOE: Family = Family {
    architecture: "qwen3vlmoe",
    classes: &["Qwen3VLMoeForConditionalGeneration"],
    layer: &[&ATTENTION, &GATED, &BEFORE, &QWEN3VL_EXPERTS, &EXPERTS],
    alike: Alike::Kinds,
    odd: Some(experts),
    keys: |keys| {
        keys.usual()?;
        deepstack(keys);
        keys.count("expert_feed_forward_length", &["moe_intermediate_size"])
    },
    ..PLAIN
};

/// How many layers take something of a picture.
fn deepstack(keys: &mut Keys<'_>) {
    let vision = keys.config.section("vision_config");
    let layers = vision
        .value("deepstack_visual_indexes")
        .and_then(|list| list.as_array())
        .map_or(0, Vec::len);
    keys.set("n_deepstack_layers", u32::try_from(layers).unwrap_or(0));
}

pub(super) const QWEN3: Family =
    Family { architecture: "qwen3", classes: &["Qwen3ForCausalLM", "Qwen3Model"], ..PLAIN };

pub(super) const QWEN3MOE: Family = Family {
    architecture: "qwen3moe",
    classes: &["Qwen3MoeForCausalLM"],
    layer: &[&ATTENTION, &GATED, &BEFORE, &EXPERTS],
    // Some may have no experts.
    alike: Alike::Kinds,
    keys: |keys| {
        keys.usual()?;
        keys.count("expert_feed_forward_length", &["moe_intermediate_size"])
    },
    ..PLAIN
};

pub(super) const QWEN2MOE: Family = Family {
    architecture: "qwen2moe",
    classes: &["Qwen2MoeForCausalLM"],
    layer: &[&ATTENTION, &GATED, &BEFORE, &EXPERTS, &SHARED],
    alike: Alike::Kinds,
    keys: |keys| {
        keys.usual()?;
        keys.count("expert_feed_forward_length", &["moe_intermediate_size"])?;
        keys.count("expert_shared_feed_forward_length", &["shared_expert_intermediate_size"])
    },
    ..PLAIN
};

pub(super) const OLMOE: Family = Family {
    architecture: "olmoe",
    classes: &["OlmoeForCausalLM"],
    layer: &[&ATTENTION, &BEFORE, &EXPERTS],
    ..PLAIN
};
