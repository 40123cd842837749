//! Command R: layer norms without bias, parallel attention and feed-forward network, a logit scale.

use puna_gguf::escape_for_message;

use super::common_rules::{ATTENTION, EXPERTS, GATED_FFN, PRE_FFN_NORM, SHARED_EXPERT};
use super::default_family::DEFAULT;
use crate::error::ConvertError;
use crate::family::{Family, LayerUniformity};
use crate::metadata::{HyperParameters, MetadataWriter};

pub(super) const COMMAND_R: Family = Family {
    architecture: "command-r",
    classes: &["CohereForCausalLM"],
    ties_output: true,
    // `model_max_length` is the context length of the training, and longer than
    // `max_position_embeddings`.
    hyper_parameters: |config| {
        let mut params = HyperParameters::from_config(config)?;
        params.context_length =
            config.opt_count("model_max_length")?.unwrap_or(params.context_length);
        Ok(params)
    },
    write_metadata: write_cohere,
    ..DEFAULT
};

pub(super) const COHERE2: Family = Family {
    architecture: "cohere2",
    classes: &["Cohere2ForCausalLM"],
    ties_output: true,
    write_metadata: |metadata| {
        write_cohere(metadata)?;
        let fraction = metadata.config.float_or("rotary_pct", 1.0)?;
        metadata.set("rope.dimension_count", (fraction * metadata.head_dim() as f32) as u32);
        metadata.set_count("attention.sliding_window", &["sliding_window"])
    },
    ..DEFAULT
};

/// Dense layers, then layers with experts; the outputs of shared and selected experts are averaged.
pub(super) const COHERE2MOE: Family = Family {
    architecture: "cohere2moe",
    classes: &["Cohere2MoeForCausalLM"],
    layer_rules: &[&ATTENTION, &GATED_FFN, &PRE_FFN_NORM, &EXPERTS, &SHARED_EXPERT],
    layer_uniformity: LayerUniformity::SeveralKinds,
    write_metadata: write_cohere2moe,
    ..DEFAULT
};

fn write_cohere2moe(metadata: &mut MetadataWriter<'_>) -> Result<(), ConvertError> {
    metadata.write_common()?;
    let config = metadata.config;
    metadata.set_full_rope_dim();
    metadata.set("rope.scaling.type", "none");
    metadata.set_opt_float("logit_scale", &["logit_scale"])?;
    metadata.set_count("attention.sliding_window", &["sliding_window"])?;
    let is_sliding = metadata.sliding_layers(4)?;
    metadata.set("attention.sliding_window_pattern", is_sliding);
    let hidden = config.count("intermediate_size")?;
    metadata.set("expert_feed_forward_length", hidden);
    metadata.set_opt_count("feed_forward_length", &["prefix_dense_intermediate_size"])?;
    metadata.set("expert_weights_norm", config.flag("norm_topk_prob").unwrap_or(false));
    if let Some(shared) =
        config.opt_count_or_zero("num_shared_experts")?.filter(|&shared| shared > 0)
    {
        let strategy = config.text("shared_expert_combination_strategy").unwrap_or("average");
        if strategy != "average" {
            let found =
                format!("{}, but GGUF files support only average", escape_for_message(strategy));
            return Err(config.invalid_value("shared_expert_combination_strategy", found));
        }
        metadata.set("expert_shared_count", shared);
        metadata.set("expert_shared_feed_forward_length", hidden.saturating_mul(shared));
    }
    let dense = match config.strings("mlp_layer_types") {
        Some(kinds) => kinds.iter().take_while(|kind| *kind == "dense").count() as u32,
        None => config.opt_count_or_zero("first_k_dense_replace")?.unwrap_or(0),
    };
    metadata.set("leading_dense_block_count", dense);
    Ok(())
}

fn write_cohere(metadata: &mut MetadataWriter<'_>) -> Result<(), ConvertError> {
    metadata.write_common()?;
    metadata.set("attention.layer_norm_epsilon", metadata.config.float_or("layer_norm_eps", 1e-5)?);
    metadata.set("logit_scale", metadata.config.float_or("logit_scale", 0.0625)?);
    metadata.set("rope.scaling.type", "none");
    Ok(())
}
