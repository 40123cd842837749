//! Qwen, and what is built like it.

use super::super::rules::{Rule, one};
use super::names::{ATTENTION, BEFORE, EXPERTS, GATED};
use super::{Alike, Family, PLAIN};

/// The expert that all tokens meet.
const SHARED: [Rule; 4] = [
    one("mlp.shared_expert.gate_proj", "ffn_gate_shexp"),
    one("mlp.shared_expert.up_proj", "ffn_up_shexp"),
    one("mlp.shared_expert.down_proj", "ffn_down_shexp"),
    one("mlp.shared_expert_gate", "ffn_gate_inp_shexp"),
];

pub(super) const QWEN2: Family = Family {
    architecture: "qwen2",
    classes: &["Qwen2ForCausalLM", "Qwen2Model", "KORMoForCausalLM"],
    ..PLAIN
};

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
