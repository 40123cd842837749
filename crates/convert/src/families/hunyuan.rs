//! Hunyuan: norms of queries and keys behind the rotary embedding.

use super::common_rules::{ATTENTION, EXPERTS, GATED_FFN, PRE_FFN_NORM, SHARED_EXPERT};
use super::default_family::DEFAULT;
use crate::error::ConvertError;
use crate::family::{Family, LayerUniformity};
use crate::metadata::{HyperParameters, MetadataWriter};
use crate::rules::{TensorRule, rename};
use crate::source::Config;

const NORMS: [TensorRule; 2] = [
    rename("self_attn.query_layernorm", "attn_q_norm"),
    rename("self_attn.key_layernorm", "attn_k_norm"),
];

const MOE: [TensorRule; 4] = [
    rename("mlp.gate.wg", "ffn_gate_inp"),
    rename("mlp.shared_mlp.gate_proj", "ffn_gate_shexp"),
    rename("mlp.shared_mlp.up_proj", "ffn_up_shexp"),
    rename("mlp.shared_mlp.down_proj", "ffn_down_shexp"),
];

/// Context length of models with stretched frequencies.
const STRETCHED_CONTEXT: u32 = 256 * 1024;

pub(super) const DENSE: Family = Family {
    architecture: "hunyuan-dense",
    classes: &["HunYuanDenseV1ForCausalLM"],
    eos_key: Some("eod_token_id"),
    layer_rules: &[&NORMS, &ATTENTION, &GATED_FFN, &PRE_FFN_NORM],
    hyper_parameters: |config| {
        let mut params = HyperParameters::from_config(config)?;
        // The dense model's configuration has one expert.
        params.dims.experts = 0;
        Ok(params)
    },
    write_metadata: |metadata| {
        metadata.write_common()?;
        write_stretched_base(metadata, 50.0)
    },
    ..DEFAULT
};

pub(super) const MOE_V1: Family = Family {
    architecture: "hunyuan-moe",
    classes: &["HunYuanMoEV1ForCausalLM"],
    layer_rules: &[&NORMS, &MOE, &ATTENTION, &GATED_FFN, &PRE_FFN_NORM, &EXPERTS],
    write_metadata: |metadata| {
        metadata.write_sizes();
        metadata.write_norm_epsilons()?;
        metadata.write_rope()?;
        if metadata.config.opt_count("head_dim")?.is_some() {
            metadata.write_head_sizes();
        }
        metadata.set("expert_count", metadata.params.dims.experts);
        metadata.set("expert_shared_feed_forward_length", metadata.params.feed_forward_length);
        for (source, target) in [
            ("moe_topk", "expert_used_count"),
            ("moe_intermediate_size", "expert_feed_forward_length"),
            ("num_shared_expert", "expert_shared_count"),
        ] {
            if let Some(number) = uniform_count(metadata, source)? {
                metadata.set(target, number);
            }
        }
        write_stretched_base(metadata, 1000.0)
    },
    ..DEFAULT
};

/// Text model of Hunyuan VL, with several kinds of positions.
pub(super) const VL: Family = Family {
    architecture: "hunyuan_vl",
    classes: &["HunYuanVLForConditionalGeneration"],
    write_metadata: |metadata| {
        metadata.write_common()?;
        let rope = metadata.config.rope_parameters();
        if rope.value("xdrope_section").is_some() || rope.value("mrope_section").is_some() {
            metadata.write_rope_sections(&rope, &["xdrope_section", "mrope_section"])?;
            // Only the base changes, not the context length.
            metadata.set("rope.freq_base", stretched_base(metadata, &rope, 1.0)?);
            return Ok(());
        }
        write_stretched_base(metadata, 50.0)
    },
    ..DENSE
};

/// Names of version 3 in published and in later folders.
const HY_V3_LAYER: [TensorRule; 7] = [
    rename("mlp.router.gate", "ffn_gate_inp"),
    rename("mlp.gate", "ffn_gate_inp"),
    rename("mlp.expert_bias", "exp_probs_b."),
    rename("mlp.e_score_correction_bias", "exp_probs_b."),
    rename("mlp.shared_mlp.gate_proj", "ffn_gate_shexp"),
    rename("mlp.shared_mlp.up_proj", "ffn_up_shexp"),
    rename("mlp.shared_mlp.down_proj", "ffn_down_shexp"),
];

pub(super) const HY_V3: Family = Family {
    architecture: "hy_v3",
    classes: &["HYV3ForCausalLM"],
    layer_rules: &[&HY_V3_LAYER, &ATTENTION, &GATED_FFN, &PRE_FFN_NORM, &EXPERTS, &SHARED_EXPERT],
    layer_uniformity: LayerUniformity::SeveralKinds,
    write_metadata: |metadata| {
        metadata.set_sigmoid_gating();
        metadata.write_common()?;
        let config = metadata.config;
        let hidden = config.count("moe_intermediate_size")?;
        metadata.set("expert_feed_forward_length", hidden);
        let shared = config.opt_count("num_shared_experts")?.unwrap_or(1);
        metadata.set("expert_shared_feed_forward_length", hidden.saturating_mul(shared));
        metadata.set("expert_weights_norm", config.flag("route_norm").unwrap_or(true));
        metadata.set("expert_weights_scale", config.float_or("router_scaling_factor", 1.0)?);
        Ok(())
    },
    ..DEFAULT
};

/// A number, or a list with the same number for each layer.
fn uniform_count(metadata: &MetadataWriter<'_>, key: &str) -> Result<Option<u32>, ConvertError> {
    let config = metadata.config;
    if !config.value(key).is_some_and(|value| value.is_array()) {
        return config.opt_count_or_zero(key);
    }
    let list = config.numbers(key)?;
    match list.first() {
        Some(first) if list.iter().all(|number| number == first) => Ok(Some(*first)),
        _ => Err(config
            .invalid(key, "the same number for each layer: GGUF files have one for all layers")),
    }
}

/// Dynamic scaling with a fixed factor `alpha`, which is the same as another frequency base.
fn write_stretched_base(
    metadata: &mut MetadataWriter<'_>,
    default: f32,
) -> Result<(), ConvertError> {
    let rope = metadata.config.rope_parameters();
    if rope.text("rope_type").or(rope.text("type")) != Some("dynamic") {
        return Ok(());
    }
    metadata.set("rope.freq_base", stretched_base(metadata, &rope, default)?);
    metadata.set("rope.scaling.type", "none");
    metadata.set("rope.scaling.factor", 1.0f32);
    metadata.set("rope.scaling.original_context_length", STRETCHED_CONTEXT);
    metadata.set("context_length", STRETCHED_CONTEXT);
    Ok(())
}

fn stretched_base(
    metadata: &MetadataWriter<'_>,
    rope: &Config,
    default: f32,
) -> Result<f32, ConvertError> {
    let (alpha, head_dim) = (rope.float_or("alpha", default)?, metadata.head_dim() as f32);
    let base = rope
        .opt_float("rope_theta")?
        .or(metadata.config.opt_float("rope_theta")?)
        .unwrap_or(10_000.0);
    Ok(base * alpha.powf(head_dim / (head_dim - 2.0)))
}
