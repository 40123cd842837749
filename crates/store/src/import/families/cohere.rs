//! Command R: layer norms without bias, parallel parts, a scale of the output.

use super::super::keys::{Keys, Shape};
use super::names::{ATTENTION, BEFORE, EXPERTS, GATED, SHARED};
use super::{Alike, Family, PLAIN};
use crate::error::StoreError;

pub(super) const COMMAND_R: Family = Family {
    architecture: "command-r",
    classes: &["CohereForCausalLM"],
    tied: true,
    // It was trained for more than it says at the usual place.
    shape: |config| {
        let mut shape = Shape::usual(config)?;
        shape.context = config.opt_count("model_max_length")?.unwrap_or(shape.context);
        Ok(shape)
    },
    keys: cohere,
    ..PLAIN
};

pub(super) const COHERE2: Family = Family {
    architecture: "cohere2",
    classes: &["Cohere2ForCausalLM"],
    tied: true,
    keys: |keys| {
        cohere(keys)?;
        let share = keys.config.float("rotary_pct", 1.0)?;
        keys.set("rope.dimension_count", (share * keys.head() as f32) as u32);
        keys.count("attention.sliding_window", &["sliding_window"])
    },
    ..PLAIN
};

/// Experts behind some layers without, and the average of shared and chosen ones.
pub(super) const COHERE2MOE: Family = Family {
    architecture: "cohere2moe",
    classes: &["Cohere2MoeForCausalLM"],
    layer: &[&ATTENTION, &GATED, &BEFORE, &EXPERTS, &SHARED],
    alike: Alike::Kinds,
    keys: cohere2moe,
    ..PLAIN
};

fn cohere2moe(keys: &mut Keys<'_>) -> Result<(), StoreError> {
    keys.usual()?;
    let config = keys.config;
    keys.turns_whole();
    keys.set("rope.scaling.type", "none");
    keys.float_if("logit_scale", &["logit_scale"])?;
    keys.count("attention.sliding_window", &["sliding_window"])?;
    let slides = keys.sliding_layers(4)?;
    keys.set("attention.sliding_window_pattern", slides);
    let hidden = config.count("intermediate_size")?;
    keys.set("expert_feed_forward_length", hidden);
    keys.count_if("feed_forward_length", &["prefix_dense_intermediate_size"])?;
    keys.set("expert_weights_norm", config.flag("norm_topk_prob").unwrap_or(false));
    if let Some(shared) = config.opt_number("num_shared_experts")?.filter(|&shared| shared > 0) {
        let how = config.text("shared_expert_combination_strategy").unwrap_or("average");
        if how != "average" {
            let found = format!("{}, and a GGUF file means the average", crate::name::shown(how));
            return Err(config.wrong_value("shared_expert_combination_strategy", found).into());
        }
        keys.set("expert_shared_count", shared);
        keys.set("expert_shared_feed_forward_length", hidden.saturating_mul(shared));
    }
    let dense = match config.strings("mlp_layer_types") {
        Some(kinds) => kinds.iter().take_while(|kind| *kind == "dense").count() as u32,
        None => config.opt_number("first_k_dense_replace")?.unwrap_or(0),
    };
    keys.set("leading_dense_block_count", dense);
    Ok(())
}

fn cohere(keys: &mut Keys<'_>) -> Result<(), StoreError> {
    keys.usual()?;
    keys.set("attention.layer_norm_epsilon", keys.config.float("layer_norm_eps", 1e-5)?);
    keys.set("logit_scale", keys.config.float("logit_scale", 0.0625)?);
    keys.set("rope.scaling.type", "none");
    Ok(())
}
