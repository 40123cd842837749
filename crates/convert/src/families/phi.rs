//! Phi 2, Phi 3 and Phi MoE.

use super::common_rules::{ATTENTION, EXPERTS, FUSED_GATE_UP, GLOBAL, MIXTRAL, PRE_FFN_NORM};
use super::default_family::DEFAULT;
use crate::error::ConvertError;
use crate::family::Family;
use crate::metadata::{HyperParameters, MetadataWriter};
use crate::rules::{TensorRule, rename};

/// Ungated feed-forward network in parallel with attention, under one norm.
const PARALLEL: [TensorRule; 3] = [
    rename("self_attn.dense", "attn_output"),
    rename("mlp.fc1", "ffn_up"),
    rename("mlp.fc2", "ffn_down"),
];

pub(super) const PHI2: Family = Family {
    architecture: "phi2",
    classes: &["PhiForCausalLM"],
    global_rules: &[&[rename("final_layernorm", "output_norm")], &GLOBAL],
    layer_rules: &[&PARALLEL, &ATTENTION],
    hyper_parameters: HyperParameters::with_default_feed_forward,
    write_metadata: |metadata| {
        metadata.write_common()?;
        let rope_dim = metadata.rope_dim(0.5)?;
        metadata.set("rope.dimension_count", rope_dim);
        // No first token is added, unless the tokenizer's settings say so.
        metadata.set_global("tokenizer.ggml.add_bos_token", false);
        Ok(())
    },
    ..DEFAULT
};

pub(super) const PHI3: Family = Family {
    architecture: "phi3",
    classes: &["Phi3ForCausalLM"],
    layer_rules: &[&ATTENTION, &FUSED_GATE_UP, &PRE_FFN_NORM],
    write_metadata: phi3,
    ..DEFAULT
};

/// Mixtral's experts, and a later name of their router.
pub(super) const PHIMOE: Family = Family {
    architecture: "phimoe",
    classes: &["PhimoeForCausalLM", "PhiMoEForCausalLM"],
    layer_rules: &[
        &ATTENTION,
        &PRE_FFN_NORM,
        &MIXTRAL,
        &EXPERTS,
        &[rename("mlp.router", "ffn_gate_inp")],
    ],
    write_metadata: phi3,
    ..DEFAULT
};

fn phi3(metadata: &mut MetadataWriter<'_>) -> Result<(), ConvertError> {
    metadata.write_common()?;
    // 0 if there is no window; this distinguishes Phi 4.
    metadata
        .set("attention.sliding_window", metadata.config.opt_count("sliding_window")?.unwrap_or(0));
    let rope_dim = metadata.rope_dim(1.0)?;
    metadata.set("rope.dimension_count", rope_dim);
    // The key is also written for models without scaling.
    let original = metadata.original_context_length()?;
    metadata.set("rope.scaling.original_context_length", original);
    Ok(())
}
