//! Granite: scales of embeddings, residuals, attention and logits.

use super::common_rules::{ATTENTION, GATED_FFN, PRE_FFN_NORM};
use super::default_family::DEFAULT;
use super::mamba::{MAMBA2_IN_HYBRID, negate_exp_of_decay};
use crate::error::ConvertError;
use crate::family::{Family, LayerUniformity};
use crate::metadata::{HyperParameters, MetadataWriter};
use crate::rules::{RowSplit, TensorRule, rename, split};
use crate::source::Config;

pub(super) const GRANITE: Family = Family {
    architecture: "granite",
    classes: &["GraniteForCausalLM"],
    interleaves_rope_pairs: true,
    write_metadata: granite,
    ..DEFAULT
};

/// Stacked experts, gate before up.
const MOE: [TensorRule; 8] = [
    rename("block_sparse_moe.router.layer", "ffn_gate_inp"),
    rename("block_sparse_moe.router", "ffn_gate_inp"),
    split("block_sparse_moe.input_linear", RowSplit::EqualParts, &["ffn_gate_exps", "ffn_up_exps"]),
    split(
        "block_sparse_moe.experts.gate_up_proj",
        RowSplit::EqualParts,
        &["ffn_gate_exps", "ffn_up_exps"],
    ),
    rename("block_sparse_moe.output_linear", "ffn_down_exps"),
    rename("block_sparse_moe.experts.down_proj", "ffn_down_exps"),
    split("shared_mlp.input_linear", RowSplit::EqualParts, &["ffn_gate_shexp", "ffn_up_shexp"]),
    rename("shared_mlp.output_linear", "ffn_down_shexp"),
];

pub(super) const GRANITEMOE: Family = Family {
    architecture: "granitemoe",
    classes: &["GraniteMoeForCausalLM", "GraniteMoeSharedForCausalLM"],
    layer_rules: &[&ATTENTION, &PRE_FFN_NORM, &MOE],
    interleaves_rope_pairs: true,
    write_metadata: |metadata| {
        granite(metadata)?;
        metadata.set_opt_count("expert_shared_feed_forward_length", &["shared_intermediate_size"])
    },
    ..DEFAULT
};

/// Layers with a window, and layers without rotary embedding.
pub(super) const GRANITE_SWA: Family = Family {
    architecture: "granite_swa",
    classes: &["GraniteSWAForCausalLM", "GraniteMoeSWAForCausalLM"],
    layer_rules: &[&ATTENTION, &GATED_FFN, &PRE_FFN_NORM, &MOE],
    interleaves_rope_pairs: true,
    write_metadata: |metadata| {
        granite(metadata)?;
        metadata.set_opt_count_or_zero(
            "expert_shared_feed_forward_length",
            &["shared_intermediate_size"],
        )?;
        let config = metadata.config;
        metadata
            .set("attention.sliding_window", config.opt_count("sliding_window")?.unwrap_or(128));
        // By default the first of each four layers has full attention.
        let layers = metadata.params.dims.layers;
        let is_sliding = match config.value("layer_types") {
            Some(_) => metadata.sliding_layers(4)?,
            None => (0..layers).map(|layer| layer % 4 != 0).collect(),
        };
        metadata.set("attention.sliding_window_pattern", is_sliding);
        if config.value("no_rope_layers").is_some_and(|list| list.is_array()) {
            let is_rotated = config.numbers("no_rope_layers")?;
            metadata.set_layer_list(
                "attention.rope_pattern",
                is_rotated.iter().map(|&is_rotated| is_rotated != 0).collect::<Vec<bool>>(),
            )?;
        }
        Ok(())
    },
    ..DEFAULT
};

pub(super) fn granite(metadata: &mut MetadataWriter<'_>) -> Result<(), ConvertError> {
    metadata.write_sizes();
    metadata.write_experts()?;
    metadata.write_norm_epsilons()?;
    metadata.write_rope()?;
    metadata.set_full_rope_dim();
    for (source, target) in [
        ("attention_multiplier", "attention.scale"),
        ("embedding_multiplier", "embedding_scale"),
        ("residual_multiplier", "residual_scale"),
        ("logits_scaling", "logit_scale"),
    ] {
        if let Some(scale) = metadata.config.opt_float(source)?.filter(|scale| *scale != 0.0) {
            metadata.set(target, scale);
        }
    }
    Ok(())
}

/// The dense network of models without experts.
const DENSE_FFN: [TensorRule; 2] = [
    split("shared_mlp.input_linear", RowSplit::EqualParts, &["ffn_gate", "ffn_up"]),
    rename("shared_mlp.output_linear", "ffn_down"),
];

/// Granite 4: layers with Mamba 2, others with attention.
pub(super) const GRANITE_HYBRID: Family = Family {
    architecture: "granitehybrid",
    classes: &["GraniteMoeHybridForCausalLM"],
    layer_rules: &[&ATTENTION, &PRE_FFN_NORM, &MAMBA2_IN_HYBRID, &MOE],
    layer_uniformity: LayerUniformity::Arbitrary,
    value_transform: negate_exp_of_decay,
    matches: |config| has_states(config) && has_experts(config),
    hyper_parameters: |config| {
        let mut params = HyperParameters::from_config(config)?;
        params.dims.groups = config.opt_count("mamba_n_groups")?.unwrap_or(1);
        params.context_length = 1 << 20;
        Ok(params)
    },
    write_metadata: |metadata| {
        granite(metadata)?;
        let (config, kv_heads) = (metadata.config, metadata.params.dims.kv_heads);
        let kinds = config.strings("layer_types").unwrap_or_default();
        if kinds.len() != metadata.params.dims.layers as usize {
            return Err(config.invalid("layer_types", "a list with a string for each layer"));
        }
        let has_attention =
            |layer: u32| kinds.get(layer as usize).is_some_and(|kind| kind == "attention");
        metadata.set_by_layer("attention.head_count_kv", |layer| {
            if has_attention(layer) { kv_heads } else { 0 }
        });
        metadata
            .set_opt_count("expert_shared_feed_forward_length", &["shared_intermediate_size"])?;
        let heads = config.count("mamba_n_heads")?;
        let inner = match config.value("mamba_expand").is_some_and(serde_json::Value::is_u64) {
            true => config.count("mamba_expand")?.saturating_mul(metadata.params.hidden_size),
            false => heads.saturating_mul(config.opt_count("mamba_d_head")?.unwrap_or(64)),
        };
        metadata.write_grouped_ssm(inner, heads)?;
        metadata.set("rope.scaling.finetuned", false);
        Ok(())
    },
    ..GRANITE
};

pub(super) const GRANITE_HYBRID_DENSE: Family = Family {
    layer_rules: &[&ATTENTION, &PRE_FFN_NORM, &MAMBA2_IN_HYBRID, &DENSE_FFN],
    matches: |config| has_states(config) && !has_experts(config),
    ..GRANITE_HYBRID
};

/// A Granite 4 hybrid model without Mamba layers has the former Granite architecture.
pub(super) const GRANITE_4: Family = Family {
    classes: GRANITE_HYBRID.classes,
    layer_rules: &[&ATTENTION, &PRE_FFN_NORM, &DENSE_FFN],
    matches: |config| !has_states(config) && !has_experts(config),
    write_metadata: granite_4,
    ..GRANITE
};

pub(super) const GRANITE_4_MOE: Family = Family {
    architecture: "granitemoe",
    layer_rules: &[&ATTENTION, &PRE_FFN_NORM, &MOE],
    matches: |config| !has_states(config) && has_experts(config),
    ..GRANITE_4
};

fn granite_4(metadata: &mut MetadataWriter<'_>) -> Result<(), ConvertError> {
    granite(metadata)?;
    metadata.set_opt_count("expert_shared_feed_forward_length", &["shared_intermediate_size"])?;
    metadata.set("rope.scaling.finetuned", true);
    Ok(())
}

fn has_states(config: &Config) -> bool {
    let kinds = config.strings("layer_types").unwrap_or_default();
    kinds.iter().any(|kind| kind != "attention")
}

fn has_experts(config: &Config) -> bool {
    config
        .value("num_local_experts")
        .and_then(serde_json::Value::as_u64)
        .is_some_and(|count| count > 0)
}
