//! Phi.

use super::super::keys::{Keys, Shape};
use super::super::rules::{Rule, one};
use super::names::{ATTENTION, BEFORE, EXPERTS, FUSED, MIXTRAL, WHOLE};
use super::{Family, PLAIN};
use crate::error::StoreError;

/// Two layers of neurons without a gate, under one norm with attention.
const PARALLEL: [Rule; 3] =
    [one("self_attn.dense", "attn_output"), one("mlp.fc1", "ffn_up"), one("mlp.fc2", "ffn_down")];

pub(super) const PHI2: Family = Family {
    architecture: "phi2",
    classes: &["PhiForCausalLM"],
    whole: &[&[one("final_layernorm", "output_norm")], &WHOLE],
    layer: &[&PARALLEL, &ATTENTION],
    shape: Shape::four,
    keys: |keys| {
        keys.usual()?;
        let turning = keys.turning(0.5)?;
        keys.set("rope.dimension_count", turning);
        // Its texts begin with themselves, unless its tokenizer says something else.
        keys.set_whole("tokenizer.ggml.add_bos_token", false);
        Ok(())
    },
    ..PLAIN
};

pub(super) const PHI3: Family = Family {
    architecture: "phi3",
    classes: &["Phi3ForCausalLM"],
    layer: &[&ATTENTION, &FUSED, &BEFORE],
    keys: phi3,
    ..PLAIN
};

/// Mixtral's experts, and what a later version calls their router.
pub(super) const PHIMOE: Family = Family {
    architecture: "phimoe",
    classes: &["PhimoeForCausalLM", "PhiMoEForCausalLM"],
    layer: &[&ATTENTION, &BEFORE, &MIXTRAL, &EXPERTS, &[one("mlp.router", "ffn_gate_inp")]],
    keys: phi3,
    ..PLAIN
};

fn phi3(keys: &mut Keys<'_>) -> Result<(), StoreError> {
    keys.usual()?;
    // None is a window of none, which tells Phi 4 from the others.
    keys.set("attention.sliding_window", keys.config.opt_count("sliding_window")?.unwrap_or(0));
    let turning = keys.turning(1.0)?;
    keys.set("rope.dimension_count", turning);
    // The key is there with and without scaling.
    let original = keys.original_context()?;
    keys.set("rope.scaling.original_context_length", original);
    Ok(())
}
