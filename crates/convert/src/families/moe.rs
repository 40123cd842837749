//! Families with mixture of experts.

use super::common_rules::{
    ATTENTION, EXPERTS, GATED_FFN, GLOBAL, MIXTRAL, PRE_FFN_NORM, SHARED_EXPERT,
};
use super::default_family::DEFAULT;
use super::llama::write_with_full_rope;
use crate::error::ConvertError;
use crate::family::{Family, LayerUniformity, TensorMapper};
use crate::metadata::{HyperParameters, MetadataWriter};
use crate::output::OutputTensor;
use crate::rules::{RowSplit, SourceLayout, TensorRule, ignore, rename, split};
use crate::source::Weights;

const BASE: Family = Family {
    layer_rules: &[&ATTENTION, &GATED_FFN, &PRE_FFN_NORM, &EXPERTS, &SHARED_EXPERT],
    // The first layers have no experts.
    layer_uniformity: LayerUniformity::SeveralKinds,
    ..DEFAULT
};

pub(super) const DEEPSEEK: Family = Family {
    architecture: "deepseek",
    classes: &["DeepseekForCausalLM"],
    interleaves_rope_pairs: true,
    write_metadata: |metadata| {
        write_with_full_rope(metadata)?;
        metadata.write_expert_routing()?;
        metadata.set("expert_weights_scale", 1.0f32);
        metadata.set("rope.scaling.type", "none");
        Ok(())
    },
    ..BASE
};

/// Text model of DeepSeek-OCR, without interleaved rotary pairs.
pub(super) const DEEPSEEK_OCR: Family = Family {
    architecture: "deepseek2-ocr",
    classes: &["DeepseekOCRForCausalLM"],
    global_rules: &[&GLOBAL, &IGNORED_IMAGE_TENSORS],
    hyper_parameters: |config| {
        let mut params = HyperParameters::from_config(config)?;
        // The configuration's head sizes belong to latent attention, which the model does not use.
        params.dims.head_dim = params.hidden_size / params.dims.heads;
        Ok(params)
    },
    write_metadata: |metadata| {
        metadata.write_sizes();
        metadata.write_experts()?;
        metadata.write_expert_routing()?;
        metadata.set(
            "attention.layer_norm_rms_epsilon",
            metadata.config.float_or("rms_norm_eps", 1e-6)?,
        );
        metadata.write_rope_with_base(Some(10_000.0))
    },
    ..BASE
};

/// Separators of image features.
const IGNORED_IMAGE_TENSORS: [TensorRule; 2] = [ignore("view_seperator"), ignore("image_newline")];

/// Smaller experts, each of which is shared by a group of the others.
const GROUP_EXPERTS: [TensorRule; 4] = [
    rename("mlp.chunk_experts.{}.gate_proj", "ffn_gate_chexps"),
    rename("mlp.chunk_experts.{}.up_proj", "ffn_up_chexps"),
    rename("mlp.chunk_experts.{}.down_proj", "ffn_down_chexps"),
    ignore("mlp.expert_bias"),
];

/// Parameters that the configuration omits are the same in all published models.
pub(super) const GROVEMOE: Family = Family {
    architecture: "grovemoe",
    classes: &["GroveMoeForCausalLM", "modeling_grove_moe.GroveMoeForCausalLM"],
    layer_rules: &[&ATTENTION, &PRE_FFN_NORM, &EXPERTS, &GROUP_EXPERTS],
    custom_tensors: Some(check_group_experts),
    write_metadata: |metadata| {
        metadata.write_common()?;
        metadata.set_count("expert_feed_forward_length", &["moe_intermediate_size"])?;
        metadata.set(
            "expert_chunk_feed_forward_length",
            metadata.config.opt_count("head_dim")?.unwrap_or(128),
        );
        metadata.set("experts_per_group", 2u32);
        metadata.set("expert_group_scale", 0.05f32);
        Ok(())
    },
    ..BASE
};

/// Checks that all layers have the same number of group experts, and that the number of experts is
/// a multiple of it.
fn check_group_experts<'a>(
    mapper: &TensorMapper<'_>,
    weights: &mut Weights<'a>,
    _: &mut Vec<OutputTensor<'a>>,
) -> Result<(), ConvertError> {
    let number = |name: &String| -> Option<u32> {
        name.split_once(".mlp.chunk_experts.")?.1.split('.').next()?.parse().ok()
    };
    let last = weights.names().filter_map(number).max().unwrap_or(0);
    let name_of = |layer: u32, number: u64, part: &str| {
        format!(
            "{}{layer}.mlp.chunk_experts.{number}.{part}_proj.weight",
            mapper.family.layer_prefix
        )
    };
    let missing = |name: String| {
        Err(ConvertError::TensorMissing { name: format!("{}{name}", mapper.family.root_prefix) })
    };
    let count = u64::from(last) + 1;
    for layer in 0..mapper.dims.layers {
        // The first missing number ends the search, so a huge number in a name costs no time.
        let mut all = (0..count)
            .flat_map(|number| ["gate", "up", "down"].map(|part| name_of(layer, number, part)));
        if let Some(name) = all.find(|name| weights.get(name).is_none()) {
            return missing(name);
        }
    }
    match u64::from(mapper.dims.experts).is_multiple_of(count) {
        true => Ok(()),
        false => missing(name_of(0, count, "gate")),
    }
}

pub(super) const DOTS1: Family = Family {
    architecture: "dots1",
    classes: &["Dots1ForCausalLM"],
    write_metadata: |metadata| {
        metadata.write_common()?;
        metadata.write_expert_routing()
    },
    ..BASE
};

const SELECTION_BIAS: [TensorRule; 1] =
    [rename("mlp.moe_statics.e_score_correction_bias", "exp_probs_b.bias")];

pub(super) const ERNIE4_5_MOE: Family = Family {
    architecture: "ernie4_5-moe",
    classes: &["Ernie4_5_MoeForCausalLM"],
    layer_rules: &[
        &ATTENTION,
        &GATED_FFN,
        &PRE_FFN_NORM,
        &SELECTION_BIAS,
        &EXPERTS,
        &SHARED_EXPERT,
    ],
    write_metadata: |metadata| {
        metadata.write_common()?;
        metadata.write_expert_routing()?;
        metadata.set_count("interleave_moe_layer_step", &["moe_layer_interval"])?;
        let shared = metadata.config.first_count_or_zero(&["moe_num_shared_experts"])?.unwrap_or(0);
        let hidden = metadata.config.count("moe_intermediate_size")?;
        if shared > 0 {
            metadata.set("expert_shared_feed_forward_length", hidden.saturating_mul(shared));
        }
        Ok(())
    },
    ..BASE
};

pub(super) const BAILING_GLOBAL: [TensorRule; 3] = [
    rename("word_embeddings", "token_embd"),
    rename("norm", "output_norm"),
    rename("lm_head", "output"),
];

const BAILING_LAYER: [TensorRule; 5] = [
    rename("input_layernorm", "attn_norm"),
    split("attention.query_key_value", RowSplit::Qkv, &["attn_q", "attn_k", "attn_v"]),
    rename("attention.dense", "attn_output"),
    rename("attention.query_layernorm", "attn_q_norm"),
    rename("attention.key_layernorm", "attn_k_norm"),
];

pub(super) const BAILINGMOE: Family = Family {
    architecture: "bailingmoe",
    classes: &["BailingMoeForCausalLM"],
    global_rules: &[&BAILING_GLOBAL],
    layer_rules: &[&BAILING_LAYER, &GATED_FFN, &PRE_FFN_NORM, &EXPERTS, &SHARED_EXPERT],
    interleaves_rope_pairs: true,
    write_metadata: |metadata| {
        if metadata.config.flag("norm_head") == Some(true) {
            let found = "true, but GGUF files of this architecture have no normalized output";
            return Err(metadata.config.invalid_value("norm_head", found.to_owned()));
        }
        write_with_full_rope(metadata)?;
        metadata.write_expert_routing()?;
        metadata.set("expert_weights_scale", 1.0f32);
        Ok(())
    },
    ..BASE
};

/// Queries, keys and values stay in one matrix.
const BAILING2_QKV: [TensorRule; 1] = [rename("attention.query_key_value", "attn_qkv")];

pub(super) const BAILINGMOE2: Family = Family {
    architecture: "bailingmoe2",
    classes: &["BailingMoeV2ForCausalLM"],
    global_rules: &[&BAILING_GLOBAL],
    layer_rules: &[
        &BAILING2_QKV,
        &BAILING_LAYER,
        &GATED_FFN,
        &PRE_FFN_NORM,
        &EXPERTS,
        &SHARED_EXPERT,
    ],
    write_metadata: |metadata| {
        metadata.write_common()?;
        metadata.write_expert_routing()?;
        let (shared, hidden) = (
            metadata.config.first_count_or_zero(&["num_shared_experts"])?,
            metadata.config.count("moe_intermediate_size")?,
        );
        let shared_length = metadata.config.opt_count("moe_shared_expert_intermediate_size")?;
        let shared_length = shared_length.unwrap_or(hidden.saturating_mul(shared.unwrap_or(1)));
        metadata.set("expert_shared_feed_forward_length", shared_length);
        let rope_dim = metadata.rope_dim(0.5)?;
        metadata.set("rope.dimension_count", rope_dim);
        Ok(())
    },
    ..BASE
};

const SMALLTHINKER_EXPERTS: [TensorRule; 4] = [
    rename("block_sparse_moe.primary_router", "ffn_gate_inp"),
    rename("block_sparse_moe.experts.{}.gate", "ffn_gate_exps"),
    rename("block_sparse_moe.experts.{}.up", "ffn_up_exps"),
    rename("block_sparse_moe.experts.{}.down", "ffn_down_exps"),
];

pub(super) const SMALLTHINKER: Family = Family {
    architecture: "smallthinker",
    classes: &["SmallThinkerForCausalLM"],
    layer_rules: &[&ATTENTION, &PRE_FFN_NORM, &SMALLTHINKER_EXPERTS],
    hyper_parameters: |config| {
        let (context, inner) =
            (config.count("max_position_embeddings")?, config.count("moe_ffn_hidden_size")?);
        let mut params = HyperParameters::with_sizes(config, context, inner)?;
        params.dims.experts = config.count("moe_num_primary_experts")?;
        Ok(params)
    },
    write_metadata: smallthinker,
    ..BASE
};

fn smallthinker(metadata: &mut MetadataWriter<'_>) -> Result<(), ConvertError> {
    metadata.write_sizes();
    metadata.write_head_sizes();
    metadata.write_norm_epsilons()?;
    metadata.write_rope()?;
    metadata.set("expert_count", metadata.params.dims.experts);
    metadata.set_count("expert_used_count", &["moe_num_active_primary_experts"])?;
    metadata.set_count("expert_feed_forward_length", &["moe_ffn_hidden_size"])?;
    match metadata.config.flag("moe_primary_router_apply_softmax") {
        Some(true) => metadata.set("expert_gating_func", 1u32),
        _ => metadata.set_sigmoid_gating(),
    }
    let layout = metadata.config.value("sliding_window_layout").and_then(|list| list.as_array());
    if layout.is_some_and(|list| list.iter().any(|kind| kind.as_u64() != Some(0))) {
        metadata.set_count("attention.sliding_window", &["sliding_window_size"])?;
    }
    Ok(())
}

const AFMOE_LAYER: [TensorRule; 6] = [
    rename("self_attn.gate_proj", "attn_gate"),
    rename("post_attention_layernorm", "post_attention_norm"),
    rename("pre_mlp_layernorm", "ffn_norm"),
    rename("post_mlp_layernorm", "post_ffw_norm"),
    rename("mlp.router.gate", "ffn_gate_inp"),
    rename("mlp.expert_bias", "exp_probs_b.bias"),
];

pub(super) const AFMOE: Family = Family {
    architecture: "afmoe",
    classes: &["AfmoeForCausalLM"],
    layer_rules: &[&AFMOE_LAYER, &ATTENTION, &GATED_FFN, &EXPERTS, &SHARED_EXPERT],
    write_metadata: |metadata| {
        write_with_full_rope(metadata)?;
        metadata.write_expert_routing()?;
        metadata.set_opt_count("attention.sliding_window", &["sliding_window"])
    },
    ..BASE
};

pub(super) const MELLUM: Family = Family {
    architecture: "mellum",
    classes: &["MellumForCausalLM"],
    write_metadata: |metadata| {
        metadata.write_common()?;
        metadata.write_expert_routing()?;
        let window = metadata.config.opt_count("sliding_window")?;
        if let Some(window) =
            window.filter(|_| metadata.config.flag("use_sliding_window") != Some(false))
        {
            metadata.set("attention.sliding_window", window);
            let is_sliding = metadata.sliding_layers(4)?;
            metadata.set("attention.sliding_window_pattern", is_sliding);
        }
        Ok(())
    },
    ..BASE
};

pub(super) const EXAONE_MOE: Family = Family {
    architecture: "exaone-moe",
    classes: &["ExaoneMoEForCausalLM", "ExaoneMoeForCausalLM"],
    write_metadata: |metadata| {
        metadata.set_sigmoid_gating();
        metadata.write_common()?;
        metadata.write_expert_routing()?;
        let (shared, hidden) = (
            metadata.config.first_count_or_zero(&["num_shared_experts"])?,
            metadata.config.count("moe_intermediate_size")?,
        );
        metadata
            .set("expert_shared_feed_forward_length", hidden.saturating_mul(shared.unwrap_or(1)));
        metadata.set("rope.scaling.type", "none");
        if let Some(window) = metadata.config.opt_count("sliding_window")? {
            metadata.set("attention.sliding_window", window);
            let is_sliding = metadata.sliding_layers(4)?;
            metadata.set("attention.sliding_window_pattern", is_sliding);
        }
        Ok(())
    },
    ..BASE
};

const DBRX_GLOBAL: [TensorRule; 3] =
    [rename("wte", "token_embd"), rename("norm_f", "output_norm"), rename("lm_head", "output")];

const DBRX_LAYER: [TensorRule; 8] = [
    rename("norm_attn_norm.norm_1", "attn_norm"),
    rename("norm_attn_norm.attn.Wqkv", "attn_qkv"),
    rename("norm_attn_norm.attn.out_proj", "attn_output"),
    rename("norm_attn_norm.norm_2", "attn_output_norm"),
    rename("ffn.router.layer", "ffn_gate_inp"),
    rename("ffn.experts.mlp.w1", "ffn_gate_exps").with_layout(SourceLayout::StackedExperts),
    rename("ffn.experts.mlp.v1", "ffn_up_exps").with_layout(SourceLayout::StackedExperts),
    rename("ffn.experts.mlp.w2", "ffn_down_exps")
        .with_layout(SourceLayout::StackedExpertsTransposed),
];

/// The matrices of all experts are stacked by rows.
pub(super) const DBRX: Family = Family {
    architecture: "dbrx",
    classes: &["DbrxForCausalLM"],
    root_prefix: "transformer.",
    layer_prefix: "blocks.",
    global_rules: &[&DBRX_GLOBAL],
    layer_rules: &[&DBRX_LAYER],
    hyper_parameters: |config| {
        let (attention, network) =
            (config.section_or_self("attn_config"), config.section_or_self("ffn_config"));
        let mut shape = HyperParameters::with_sizes(
            config,
            config.count("max_seq_len")?,
            network.count("ffn_hidden_size")?,
        )?;
        shape.dims.kv_heads = attention.opt_count("kv_n_heads")?.unwrap_or(shape.dims.heads);
        shape.dims.experts = network.count("moe_num_experts")?;
        Ok(shape)
    },
    write_metadata: |metadata| {
        let (attention, network) = (
            metadata.config.section_or_self("attn_config"),
            metadata.config.section_or_self("ffn_config"),
        );
        metadata.write_sizes();
        metadata.set("rope.freq_base", attention.float_or("rope_theta", 10_000.0)?);
        if let Some(limit) = attention.opt_float("clip_qkv")? {
            metadata.set("attention.clamp_kqv", limit);
        }
        metadata.set("expert_count", metadata.params.dims.experts);
        metadata.set("expert_used_count", network.count("moe_top_k")?);
        metadata.set("attention.layer_norm_epsilon", 1e-5f32);
        Ok(())
    },
    ..DEFAULT
};

/// A dense network, and experts whose input is that of attention.
const ARCTIC_LAYER: [TensorRule; 5] = [
    rename("residual_layernorm", "ffn_norm"),
    rename("post_attention_layernorm", "ffn_norm_exps"),
    rename("residual_mlp.w1", "ffn_gate"),
    rename("residual_mlp.w3", "ffn_up"),
    rename("residual_mlp.w2", "ffn_down"),
];

pub(super) const ARCTIC: Family = Family {
    architecture: "arctic",
    classes: &["ArcticForCausalLM"],
    layer_rules: &[&ARCTIC_LAYER, &ATTENTION, &MIXTRAL],
    interleaves_rope_pairs: true,
    write_metadata: write_with_full_rope,
    ..BASE
};

const GROK_LAYER: [TensorRule; 4] = [
    rename("pre_attn_norm", "attn_norm"),
    rename("post_attn_norm", "attn_output_norm"),
    rename("pre_moe_norm", "ffn_norm"),
    rename("post_moe_norm", "post_ffw_norm"),
];

/// A dense network beside the experts; attention scores, router scores and logits have soft caps.
pub(super) const GROK: Family = Family {
    architecture: "grok",
    classes: &["Grok1ForCausalLM", "GrokForCausalLM"],
    layer_rules: &[&GROK_LAYER, &ATTENTION, &GATED_FFN, &MIXTRAL],
    custom_tensors: Some(check_expert_width),
    write_metadata: grok,
    ..DEFAULT
};

/// Checks the width of experts against the configuration. Experts joined from device shards are
/// narrower if the last shard is missing.
fn check_expert_width<'a>(
    mapper: &TensorMapper<'_>,
    weights: &mut Weights<'a>,
    _: &mut Vec<OutputTensor<'a>>,
) -> Result<(), ConvertError> {
    let width = u64::from(
        mapper.config.first_required_count(&["moe_intermediate_size", "intermediate_size"])?,
    );
    for (name, tensor) in
        weights.iter().filter(|(name, _)| name.contains(".block_sparse_moe.experts."))
    {
        let along = usize::from(name.ends_with(".w2.weight"));
        let found = tensor.entry.shape.clone();
        if found.get(along).is_some_and(|&found| found != width) {
            let (name, mut want) = (tensor.entry.name.clone(), found.clone());
            want[along] = width;
            return Err(ConvertError::TensorShape { name, found, want });
        }
    }
    Ok(())
}

fn grok(metadata: &mut MetadataWriter<'_>) -> Result<(), ConvertError> {
    metadata.write_common()?;
    metadata.write_expert_routing()?;
    let config = metadata.config;
    for key in ["attn_logit_softcapping", "router_logit_softcapping"] {
        metadata.set(key, config.float_or(key, 30.0)?);
    }
    metadata.set_opt_float("final_logit_softcapping", &["final_logit_softcapping"])?;
    let head_dim = (metadata.head_dim() as f32).sqrt();
    metadata
        .set("attention.output_scale", config.float_or("attn_output_multiplier", 1.0 / head_dim)?);
    metadata.set_opt_float("embedding_scale", &["embedding_multiplier_scale"])?;
    metadata.set_opt_float("logit_scale", &["output_multiplier_scale"])?;
    metadata.set_opt_count("attention.temperature_length", &["attn_temperature_len"])?;
    if let Some("yarn" | "original") = config.text("rope_type") {
        metadata.set("rope.scaling.type", "yarn");
        metadata.set_opt_float("rope.scaling.factor", &["scaling_factor"])?;
        metadata.set_opt_count(
            "rope.scaling.original_context_length",
            &["original_max_position_embeddings"],
        )?;
        for (source, target) in [
            ("extrapolation_factor", "rope.scaling.yarn_ext_factor"),
            ("attn_factor", "rope.scaling.yarn_attn_factor"),
            ("beta_fast", "rope.scaling.yarn_beta_fast"),
            ("beta_slow", "rope.scaling.yarn_beta_slow"),
        ] {
            metadata.set_opt_float(target, &[source])?;
        }
    }
    Ok(())
}

const LAGUNA_LAYER: [TensorRule; 5] = [
    rename("self_attn.g_proj", "attn_gate"),
    rename("mlp.experts.e_score_correction_bias", "exp_probs_b.bias"),
    rename("mlp.shared_expert.gate_proj", "ffn_gate_shexp"),
    rename("mlp.shared_expert.up_proj", "ffn_up_shexp"),
    rename("mlp.shared_expert.down_proj", "ffn_down_shexp"),
];

/// Numbers of heads and rotary embedding vary by layer.
pub(super) const LAGUNA: Family = Family {
    architecture: "laguna",
    classes: &["LagunaForCausalLM"],
    layer_rules: &[&LAGUNA_LAYER, &ATTENTION, &GATED_FFN, &PRE_FFN_NORM, &EXPERTS, &SHARED_EXPERT],
    write_metadata: laguna,
    ..BASE
};

fn laguna(metadata: &mut MetadataWriter<'_>) -> Result<(), ConvertError> {
    metadata.set_sigmoid_gating();
    metadata.write_common()?;
    metadata.write_expert_routing()?;
    let config = metadata.config;
    if config.value("num_attention_heads_per_layer").is_some_and(|list| list.is_array()) {
        metadata.set_layer_list(
            "attention.head_count",
            config.numbers("num_attention_heads_per_layer")?,
        )?;
    }
    metadata.set_opt_count("attention.sliding_window", &["sliding_window"])?;
    metadata
        .set_opt_count("expert_shared_feed_forward_length", &["shared_expert_intermediate_size"])?;
    metadata.set("expert_weights_norm", true);
    let kinds = config.strings("mlp_layer_types").unwrap_or_default();
    let dense = kinds.iter().take_while(|kind| *kind == "dense").count();
    metadata.set("leading_dense_block_count", u32::try_from(dense).unwrap_or(0));
    let rope_dim = metadata.rope_dim(1.0)?;
    metadata.set("rope.dimension_count", rope_dim);
    if let Some(local) = config.rope_parameters().opt_section("sliding_attention") {
        let fraction = local.float_or("partial_rotary_factor", 1.0)?;
        metadata.set("rope.dimension_count_swa", (fraction * metadata.head_dim() as f32) as u32);
    }
    Ok(())
}
