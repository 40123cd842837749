//! Families with sliding-window attention, most of them with a gate at the output of attention:
//! Spark 2.5, Maple, Muse Glimmer, MiMo 2, Step 3.5, PLaMo 3.

use puna_gguf::escape_for_message;

use super::common_rules::{
    ATTENTION, EXPERTS, GATED_FFN, POST_NORMS, PRE_FFN_NORM, add_one_to_norms,
};
use super::default_family::DEFAULT;
use crate::error::ConvertError;
use crate::family::{Family, LayerUniformity, TensorMapper};
use crate::metadata::{HyperParameters, MetadataWriter, llama3_factors};
use crate::output::{OutputTensor, RowMapping, RowOrder, ValueTransform};
use crate::rules::{RowSplit, TensorRule, rename, split};
use crate::source::{Config, Weights};

const SPARK_LAYER: [TensorRule; 2] = [
    split("self_attn.q_k_v_proj", RowSplit::Qkv, &["attn_q", "attn_k", "attn_v"]),
    rename("self_attn.g_proj", "attn_gate"),
];

/// Attention has one gate value a head.
pub(super) const SPARK2_5: Family = Family {
    architecture: "spark2_5",
    classes: &["Spark2_5ForCausalLM"],
    layer_rules: &[&SPARK_LAYER, &ATTENTION, &GATED_FFN, &PRE_FFN_NORM],
    write_metadata: |metadata| {
        let config = metadata.config;
        for (key, want) in [("gate_attn_act_mode", "sigmoid"), ("hidden_act", "gelu")] {
            if let Some(found) = config.text(key).filter(|found| *found != want) {
                let found =
                    format!("{}, but GGUF files support only {want}", escape_for_message(found));
                return Err(config.invalid_value(key, found));
            }
        }
        metadata.write_common()?;
        write_window(metadata)?;
        let rope_dim = metadata.rope_dim(1.0)?;
        metadata.set("rope.dimension_count", rope_dim);
        if let Some(local) = config.rope_parameters().opt_section("sliding_attention") {
            let fraction = local.float_or("partial_rotary_factor", 1.0)?;
            metadata
                .set("rope.dimension_count_swa", (fraction * metadata.head_dim() as f32) as u32);
        }
        Ok(())
    },
    ..DEFAULT
};

/// Experts with clamped activations.
pub(super) const MAPLE: Family = Family {
    architecture: "maple",
    classes: &["MapleForCausalLM"],
    layer_rules: &[&ATTENTION, &PRE_FFN_NORM, &EXPERTS],
    hyper_parameters: |config| {
        let inner =
            config.first_count(&["intermediate_size", "moe_intermediate_size"])?.unwrap_or(0);
        HyperParameters::with_sizes(config, config.count("max_position_embeddings")?, inner)
    },
    write_metadata: |metadata| {
        metadata.write_common()?;
        write_window(metadata)?;
        metadata.set_count("expert_feed_forward_length", &["moe_intermediate_size"])?;
        let rope_dim = metadata.rope_dim(1.0)?;
        metadata.set("rope.dimension_count", rope_dim);
        metadata.set("swiglu_clamp_exp", vec![7.0f32; metadata.params.dims.layers as usize]);
        Ok(())
    },
    ..DEFAULT
};

const MUSE_LAYER: [TensorRule; 2] =
    [rename("self_attn.gate_proj", "attn_gate"), rename("pre_feedforward_layernorm", "ffn_norm")];

/// Norms before and behind both blocks. Norms of queries and keys have one weight for all features,
/// from the configuration.
pub(super) const MUSE_GLIMMER: Family = Family {
    architecture: "muse-glimmer",
    classes: &["MuseGlimmerForConditionalGeneration"],
    layer_rules: &[&MUSE_LAYER, &POST_NORMS, &ATTENTION, &GATED_FFN],
    interleaves_rope_pairs: true,
    extra_special_tokens: &[("eot", "<|eot|>")],
    // All norms except the last are stored as the difference from one.
    value_transform: |_, name| {
        let is_norm = name.ends_with("norm.weight") && name != "output_norm.weight";
        Ok(if is_norm { ValueTransform::Add(1.0) } else { ValueTransform::None })
    },
    write_metadata: |metadata| {
        metadata.write_common()?;
        write_window(metadata)?;
        metadata.set_opt_float("final_logit_softcapping", &["final_logit_softcapping"])?;
        metadata.set_opt_float("logit_scale", &["output_multiplier"])?;
        let (scale, head_dim) =
            (metadata.config.float_or("qk_scale_factor", 1.0)?, metadata.head_dim() as usize);
        for layer in 0..metadata.params.dims.layers {
            metadata
                .add_constant(&format!("blk.{layer}.attn_q_norm.weight"), vec![scale; head_dim]);
            metadata.add_constant(&format!("blk.{layer}.attn_k_norm.weight"), vec![1.0; head_dim]);
        }
        Ok(())
    },
    ..DEFAULT
};

/// Value heads are smaller than key heads, and layers with a window have another number of key
/// heads.
pub(super) const MIMO2: Family = Family {
    architecture: "mimo2",
    classes: &["MiMoV2FlashForCausalLM", "MiMoV2ForCausalLM"],
    layer_rules: &[
        &[rename("self_attn.attention_sink_bias", "attn_sinks")],
        &ATTENTION,
        &GATED_FFN,
        &PRE_FFN_NORM,
        &EXPERTS,
    ],
    layer_uniformity: LayerUniformity::SeveralKinds,
    custom_tensors: Some(split_sharded_qkv),
    write_metadata: mimo2,
    ..DEFAULT
};

/// FP8 queries, keys and values in one matrix: the matrices of all training devices, concatenated.
fn split_sharded_qkv<'a>(
    mapper: &TensorMapper<'_>,
    weights: &mut Weights<'a>,
    outputs: &mut Vec<OutputTensor<'a>>,
) -> Result<(), ConvertError> {
    let (config, dims) = (mapper.config, mapper.dims);
    let head_dim = u64::from(dims.head_dim);
    let value = u64::from(config.opt_count("v_head_dim")?.unwrap_or(dims.head_dim));
    let is_sliding = sliding_flags(config)?;
    for layer in 0..dims.layers {
        let name = format!("layers.{layer}.self_attn.qkv_proj.weight");
        let Some(tensor) = weights.take_if(&name, |tensor| tensor.scale_parts() > 1) else {
            continue;
        };
        let parts = tensor.scale_parts();
        let has_window = is_sliding.get(layer as usize) == Some(&true);
        let kv_heads = config
            .opt_count("swa_num_key_value_heads")?
            .filter(|_| has_window)
            .unwrap_or(dims.kv_heads);
        let kv_heads = u64::from(kv_heads);
        let rows = [u64::from(dims.heads) * head_dim, kv_heads * head_dim, kv_heads * value];
        let (all, columns) = (rows.iter().sum::<u64>(), tensor.columns());
        if tensor.entry.shape != [all, columns]
            || rows.iter().any(|rows| !rows.is_multiple_of(parts))
        {
            let (name, found) = (tensor.entry.name.clone(), tensor.entry.shape.clone());
            return Err(ConvertError::TensorShape { name, found, want: vec![all, columns] });
        }
        let mut from = 0;
        for (part, rows) in
            ["attn_q.weight", "attn_k.weight", "attn_v.weight"].into_iter().zip(rows)
        {
            let order = RowOrder::of(RowMapping::Window {
                period: all / parts,
                offset: from,
                count: rows / parts,
            });
            outputs.push(mapper.gather_rows(layer, part, &tensor, &[(rows, order)])?);
            from += rows / parts;
        }
    }
    Ok(())
}

/// Layers with a sliding window.
fn sliding_flags(config: &Config) -> Result<Vec<bool>, ConvertError> {
    Ok(config.numbers("hybrid_layer_pattern")?.iter().map(|&kind| kind == 1).collect())
}

fn mimo2(metadata: &mut MetadataWriter<'_>) -> Result<(), ConvertError> {
    metadata.write_common()?;
    let config: &Config = metadata.config;
    for (window_key, key) in
        [("swa_head_dim", "head_dim"), ("swa_num_attention_heads", "num_attention_heads")]
    {
        if config
            .opt_count(window_key)?
            .is_some_and(|count| config.opt_count(key).ok().flatten() != Some(count))
        {
            return Err(config.invalid(window_key, "equal to the key without a window"));
        }
    }
    let is_sliding = sliding_flags(config)?;
    if is_sliding.len() != metadata.params.dims.layers as usize {
        return Err(config.invalid("hybrid_layer_pattern", "a list with a number for each layer"));
    }
    let all = metadata.params.dims.kv_heads;
    let local = config.opt_count("swa_num_key_value_heads")?.unwrap_or(all);
    let kv_heads: Vec<u32> =
        is_sliding.iter().map(|&is_sliding| if is_sliding { local } else { all }).collect();
    metadata.set("attention.head_count_kv", kv_heads);
    metadata.set("attention.sliding_window_pattern", is_sliding);
    metadata.set_count("attention.sliding_window", &["sliding_window"])?;
    metadata.set_opt_count("attention.value_length", &["v_head_dim"])?;
    metadata.set_opt_float("attention.value_scale", &["attention_value_scale"])?;
    metadata.set("attention.layer_norm_rms_epsilon", config.float_or("layernorm_epsilon", 1e-5)?);
    metadata.set_count("expert_feed_forward_length", &["moe_intermediate_size"])?;
    metadata.set_opt_flag("expert_weights_norm", "norm_topk_prob");
    metadata.set_opt_float("expert_weights_scale", &["routed_scaling_factor"])?;
    let rope_dim = metadata.rope_dim(1.0)?;
    metadata.set("rope.dimension_count", rope_dim);
    Ok(())
}

const STEP_LAYER: [TensorRule; 9] = [
    rename("self_attn.g_proj", "attn_gate"),
    rename("moe.gate", "ffn_gate_inp"),
    rename("moe.router_bias", "exp_probs_b.bias"),
    rename("moe.gate_proj", "ffn_gate_exps"),
    rename("moe.up_proj", "ffn_up_exps"),
    rename("moe.down_proj", "ffn_down_exps"),
    rename("share_expert.gate_proj", "ffn_gate_shexp"),
    rename("share_expert.up_proj", "ffn_up_shexp"),
    rename("share_expert.down_proj", "ffn_down_shexp"),
];

/// Layers with a window have their own numbers of heads; norms are stored as the difference from
/// one.
pub(super) const STEP35: Family = Family {
    architecture: "step35",
    classes: &["Step3p5ForCausalLM", "Step3p7ForConditionalGeneration"],
    layer_rules: &[&STEP_LAYER, &ATTENTION, &GATED_FFN, &PRE_FFN_NORM],
    layer_uniformity: LayerUniformity::SeveralKinds,
    value_transform: add_one_to_norms,
    write_metadata: step35,
    ..DEFAULT
};

fn step35(metadata: &mut MetadataWriter<'_>) -> Result<(), ConvertError> {
    metadata.write_sizes();
    metadata.write_head_sizes();
    metadata.write_norm_epsilons()?;
    metadata.write_experts()?;
    metadata.set_count("expert_feed_forward_length", &["moe_intermediate_size"])?;
    metadata.set_count("expert_shared_feed_forward_length", &["share_expert_dim"])?;
    metadata.set_opt_float("expert_weights_scale", &["moe_router_scaling_factor"])?;
    metadata.set_opt_flag("expert_weights_norm", "norm_expert_weight");
    let (config, layers) = (metadata.config, metadata.params.dims.layers as usize);
    // The lists also contain layers that are not converted.
    let kinds = config.strings("layer_types").filter(|kinds| kinds.len() >= layers);
    let kinds = kinds
        .ok_or_else(|| config.invalid("layer_types", "a list with a string for each layer"))?;
    let is_sliding: Vec<bool> =
        kinds[..layers].iter().map(|kind| kind == "sliding_attention").collect();
    let other = config.section_or_self("attention_other_setting");
    for (source, target, all) in [
        ("num_attention_heads", "attention.head_count", metadata.params.dims.heads),
        ("num_attention_groups", "attention.head_count_kv", metadata.params.dims.kv_heads),
    ] {
        let local = other.opt_count(source)?.unwrap_or(all);
        let counts = is_sliding.iter().map(|&is_sliding| if is_sliding { local } else { all });
        metadata.set(target, counts.collect::<Vec<u32>>());
    }
    metadata.set("attention.sliding_window_pattern", is_sliding);
    metadata.set_count("attention.sliding_window", &["sliding_window"])?;
    for (source, target) in
        [("swiglu_limits", "swiglu_clamp_exp"), ("swiglu_limits_shared", "swiglu_clamp_shexp")]
    {
        let limits = config.value(source).and_then(|list| list.as_array());
        let number = |limit: &serde_json::Value| limit.as_f64().unwrap_or(0.0) as f32;
        let Some(limits) =
            limits.map(|list| list.iter().map(number).take(layers).collect::<Vec<f32>>())
        else {
            continue;
        };
        metadata.set(target, limits);
    }
    step35_rope(metadata)
}

/// Layers with full attention have one frequency base and rotate half of a head; layers with a
/// window have another base.
fn step35_rope(metadata: &mut MetadataWriter<'_>) -> Result<(), ConvertError> {
    let config = metadata.config;
    let bases = match config.value("rope_theta").is_some_and(|value| value.is_array()) {
        true => config.floats("rope_theta")?,
        false => vec![config.float_or("rope_theta", 10_000.0)?],
    };
    let base = bases.first().copied();
    for (base, key) in bases.iter().zip(["rope.freq_base", "rope.freq_base_swa"]) {
        metadata.set(key, *base);
    }
    metadata.set("rope.dimension_count", metadata.head_dim());
    let rope = config.rope_parameters();
    if rope.text("rope_type").or(rope.text("type")) == Some("llama3") {
        let mut factors =
            llama3_factors(&rope, metadata.head_dim() / 2, base, rope.float_or("factor", 8.0)?)?;
        // Layers that rotate the whole head use the same tensor, with unchanged frequencies.
        factors.resize(metadata.head_dim() as usize / 2, 1.0);
        metadata.add_constant("rope_freqs.weight", factors);
    }
    Ok(())
}

pub(super) const PLAMO3_LAYER: [TensorRule; 10] = [
    rename("pre_mixer_norm", "attn_norm"),
    rename("mixer.qkv_proj", "attn_qkv"),
    rename("mixer.q_norm", "attn_q_norm"),
    rename("mixer.k_norm", "attn_k_norm"),
    rename("mixer.o_proj", "attn_output"),
    rename("post_mixer_norm", "post_attention_norm."),
    rename("pre_mlp_norm", "ffn_norm"),
    rename("mlp.gate_up_proj", "ffn_up"),
    rename("mlp.down_proj", "ffn_down"),
    rename("post_mlp_norm", "post_ffw_norm."),
];

/// Norms before and behind both blocks, stored as the difference from a constant.
pub(super) const PLAMO3: Family = Family {
    architecture: "plamo3",
    classes: &["Plamo3ForCausalLM", "PLaMo3ForCausalLM"],
    layer_prefix: "layers.layers.",
    layer_rules: &[&PLAMO3_LAYER],
    extra_special_tokens: &[("eot", "<|plamo:op|>")],
    value_transform: |_, name| {
        Ok(match name {
            "post_attention_norm" => ValueTransform::Add(0.2),
            "post_ffw_norm" => ValueTransform::Add(0.089_442_72),
            name if name.ends_with("norm.weight") => ValueTransform::Add(1.0),
            _ => ValueTransform::None,
        })
    },
    write_metadata: |metadata| {
        metadata.write_common()?;
        if let Some(window) = metadata.config.first_count(&["window_size", "sliding_window"])? {
            metadata.set("attention.sliding_window", window);
            metadata.set_count("attention.sliding_window_pattern", &["sliding_window_pattern"])?;
        }
        Ok(())
    },
    ..DEFAULT
};

/// Writes the window and its layers.
fn write_window(metadata: &mut MetadataWriter<'_>) -> Result<(), ConvertError> {
    metadata.set_count("attention.sliding_window", &["sliding_window"])?;
    let is_sliding = metadata.sliding_layers(4)?;
    metadata.set("attention.sliding_window_pattern", is_sliding);
    Ok(())
}
