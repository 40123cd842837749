//! Families with latent attention: DeepSeek 2 and 3, GLM 4.7 Flash and 5, Mistral 4, MiniCPM 3,
//! PLM, and Kimi Linear, whose other layers have delta attention.

use std::collections::BTreeSet;

use super::common_rules::{ATTENTION, EXPERTS, GATED_FFN, MIXTRAL, PRE_FFN_NORM, SHARED_EXPERT};
use super::default_family::DEFAULT;
use super::glm;
use super::mamba::negate_exp_of_decay;
use crate::error::ConvertError;
use crate::family::{Family, LayerUniformity, TensorMapper};
use crate::metadata::MetadataWriter;
use crate::output::{OutputTensor, RowMapping, RowOrder, TensorContent, ValueTransform};
use crate::rules::{SourceLayout, TensorRule, rename};
use crate::source::{Config, Weights};

pub(super) const LATENT: [TensorRule; 6] = [
    rename("self_attn.q_a_proj", "attn_q_a"),
    rename("self_attn.q_a_layernorm", "attn_q_a_norm"),
    rename("self_attn.q_b_proj", "attn_q_b"),
    rename("self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa"),
    rename("self_attn.kv_a_layernorm", "attn_kv_a_norm"),
    rename("self_attn.kv_b_proj", "attn_kv_b"),
];

pub(super) const DEEPSEEK2: Family = Family {
    architecture: "deepseek2",
    classes: &["DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM", "YoutuForCausalLM"],
    layer_rules: &[&ATTENTION, &LATENT, &GATED_FFN, &PRE_FFN_NORM, &EXPERTS, &SHARED_EXPERT],
    layer_uniformity: LayerUniformity::SeveralKinds,
    custom_tensors: Some(split_kv_b),
    write_metadata: deepseek2,
    ..DEFAULT
};

/// GLM 4.7 Flash, with the tokenizer of its family.
pub(super) const GLM4_MOE_LITE: Family = Family {
    classes: &["Glm4MoeLiteForCausalLM"],
    pretokenizer: glm::GLM4.pretokenizer,
    extra_special_tokens: glm::GLM4.extra_special_tokens,
    ..DEEPSEEK2
};

/// The indexer of sparse attention.
pub(super) const INDEXER: [TensorRule; 5] = [
    rename("self_attn.indexer.wq_b", "indexer.attn_q_b.weight"),
    rename("self_attn.indexer.wk", "indexer.attn_k.weight"),
    rename("self_attn.indexer.k_norm.bias", "indexer.k_norm.bias"),
    rename("self_attn.indexer.k_norm", "indexer.k_norm.weight"),
    rename("self_attn.indexer.weights_proj", "indexer.proj.weight"),
];

/// DeepSeek 3.2, with an indexer in each layer.
pub(super) const DEEPSEEK32: Family = Family {
    architecture: "deepseek32",
    classes: &["DeepseekV32ForCausalLM"],
    layer_rules: &[
        &ATTENTION,
        &LATENT,
        &INDEXER,
        &GATED_FFN,
        &PRE_FFN_NORM,
        &EXPERTS,
        &SHARED_EXPERT,
    ],
    write_metadata: deepseek32,
    ..DEEPSEEK2
};

/// GLM 5. In later versions, layers without an indexer use the selection of an earlier layer.
pub(super) const GLM_DSA: Family = Family {
    architecture: "glm-dsa",
    classes: &["GlmMoeDsaForCausalLM"],
    pretokenizer: glm::GLM4.pretokenizer,
    extra_special_tokens: glm::GLM4.extra_special_tokens,
    write_metadata: |metadata| {
        deepseek32(metadata)?;
        let indexer_layers = match indexer_layers(metadata.config)? {
            None => indexer_layers_by_pattern(metadata)?,
            named => named,
        };
        indexer_layers.map_or(Ok(()), |indexer_layers| {
            metadata.set_layer_list("attention.indexer.types", indexer_layers)
        })
    },
    ..DEEPSEEK32
};

pub(super) fn deepseek32(metadata: &mut MetadataWriter<'_>) -> Result<(), ConvertError> {
    // Some configurations omit the gating function.
    metadata.set_sigmoid_gating();
    deepseek2(metadata)?;
    metadata.write_indexer()
}

impl MetadataWriter<'_> {
    /// Writes the number of an indexer's heads, their size, and top-k.
    pub(super) fn write_indexer(&mut self) -> Result<(), ConvertError> {
        self.set_count("attention.indexer.head_count", &["index_n_heads"])?;
        self.set_count("attention.indexer.key_length", &["index_head_dim"])?;
        self.set_count("attention.indexer.top_k", &["index_topk"])
    }
}

/// Layers with their own indexer, by `indexer_types`; `None` if the configuration does not have it.
pub(super) fn indexer_layers(config: &Config) -> Result<Option<Vec<bool>>, ConvertError> {
    const KEY: &str = "indexer_types";
    if config.value(KEY).is_none_or(|types| types.is_null()) {
        return Ok(None);
    }
    let of = |kind: String| match kind.as_str() {
        "full" => Some(true),
        "shared" => Some(false),
        _ => None,
    };
    let indexer_layers: Option<Vec<bool>> =
        config.strings(KEY).and_then(|types| types.into_iter().map(of).collect());
    indexer_layers.map(Some).ok_or_else(|| config.invalid(KEY, "`full` or `shared` for each layer"))
}

/// Layers with their own indexer, by a pattern of letters, or by a period and an offset.
fn indexer_layers_by_pattern(
    metadata: &MetadataWriter<'_>,
) -> Result<Option<Vec<bool>>, ConvertError> {
    let config = metadata.config;
    if let Some(letters) = config.text("index_topk_pattern") {
        if letters.bytes().any(|letter| !b"FS".contains(&letter)) {
            return Err(config.invalid("index_topk_pattern", "`F` or `S` for each layer"));
        }
        return Ok(Some(letters.bytes().map(|letter| letter == b'F').collect()));
    }
    let Some(period) = config.opt_count("index_topk_freq")? else { return Ok(None) };
    let offset = config.opt_count_or_zero("index_skip_topk_offset")?.unwrap_or(2);
    let chooses = |layer: u32| (layer + 1).saturating_sub(offset).is_multiple_of(period);
    Ok(Some((0..metadata.params.dims.layers).map(chooses).collect()))
}

/// Gate and up projection stay in one tensor.
const FUSED_EXPERTS: [TensorRule; 1] = [rename("mlp.experts.gate_up_proj", "ffn_gate_up_exps")];

/// Mistral 4, whose attention temperature depends on the position.
pub(super) const MISTRAL4: Family = Family {
    architecture: "mistral4",
    classes: &["Mistral3ForConditionalGeneration", "Mistral4ForCausalLM"],
    matches: |config| config.text("model_type") == Some("mistral4"),
    layer_rules: &[
        &FUSED_EXPERTS,
        &ATTENTION,
        &LATENT,
        &GATED_FFN,
        &PRE_FFN_NORM,
        &EXPERTS,
        &SHARED_EXPERT,
    ],
    write_metadata: |metadata| {
        deepseek2(metadata)?;
        if let Some(beta) = metadata.config.rope_parameters().opt_float("llama_4_scaling_beta")? {
            let original = metadata.original_context_length()?;
            metadata.set("attention.temperature_scale", beta);
            metadata.set("attention.temperature_length", original);
        }
        Ok(())
    },
    ..DEEPSEEK2
};

/// Splits `kv_b_proj` into a transposed matrix for keys and one for values (absorbed projections).
pub(super) fn split_kv_b<'a>(
    mapper: &TensorMapper<'_>,
    weights: &mut Weights<'a>,
    outputs: &mut Vec<OutputTensor<'a>>,
) -> Result<(), ConvertError> {
    let heads = u64::from(mapper.dims.kv_heads);
    let [qk_nope_dim, v_head_dim] =
        ["qk_nope_head_dim", "v_head_dim"].map(|key| mapper.config.count(key).map(u64::from));
    let dims = [heads, qk_nope_dim?, v_head_dim?];
    (0..mapper.dims.layers)
        .try_for_each(|layer| split_kv_b_of_layer(mapper, weights, layer, dims, outputs))
}

/// Splits `kv_b` of one layer. `dims`: number of heads, features of a key without rotary embedding,
/// features of a value.
pub(super) fn split_kv_b_of_layer<'a>(
    mapper: &TensorMapper<'_>,
    weights: &mut Weights<'a>,
    layer: u32,
    [heads, qk_nope_dim, v_head_dim]: [u64; 3],
    outputs: &mut Vec<OutputTensor<'a>>,
) -> Result<(), ConvertError> {
    let period = qk_nope_dim + v_head_dim;
    let name = format!("layers.{layer}.self_attn.kv_b_proj.weight");
    let Some(tensor) = weights.take(&name) else { return Ok(()) };
    let rank = match tensor.entry.shape[..] {
        [rows, rank] if rows == heads * period => rank,
        _ => {
            let (found, want) = (tensor.entry.shape.clone(), vec![heads * period]);
            return Err(ConvertError::TensorShape { name: tensor.entry.name.clone(), found, want });
        }
    };
    let (name, shape) =
        (mapper.full_name(Some(layer), "attn_k_b.weight"), vec![heads, rank, qk_nope_dim]);
    let (order, matrices, transform) = (RowOrder::SAME, RowOrder::SAME, ValueTransform::None);
    let content = TensorContent::Transposed {
        tensor: tensor.clone(),
        source_rows: period,
        columns_taken: rank,
        column_order: order,
        matrix_order: matrices,
        transform,
    };
    outputs.push(OutputTensor { name, ty: mapper.matrix_type, shape, content });
    let (name, shape) =
        (mapper.full_name(Some(layer), "attn_v_b.weight"), vec![heads, v_head_dim, rank]);
    let order = RowOrder::of(RowMapping::Window { period, offset: qk_nope_dim, count: v_head_dim });
    outputs.push(OutputTensor::rows(name, mapper.matrix_type, shape, tensor, order));
    Ok(())
}

/// Writes the sizes of latent attention as of one KV head.
pub(super) fn write_latent_sizes(metadata: &mut MetadataWriter<'_>) -> Result<(), ConvertError> {
    let config = metadata.config;
    let rank = config.opt_count("kv_lora_rank")?.unwrap_or(512);
    let missing = || config.invalid("qk_rope_head_dim", "a number");
    let rope_dim = config.opt_count_or_zero("qk_rope_head_dim")?.ok_or_else(missing)?;
    metadata.set_opt_count("attention.q_lora_rank", &["q_lora_rank"])?;
    metadata.set("attention.kv_lora_rank", rank);
    metadata.set("attention.key_length", rank.saturating_add(rope_dim));
    metadata.set(
        "attention.key_length_mla",
        config.count("qk_nope_head_dim")?.saturating_add(rope_dim),
    );
    metadata.set_count("attention.value_length_mla", &["v_head_dim"])?;
    metadata.set("rope.dimension_count", rope_dim);
    Ok(())
}

pub(super) fn deepseek2(metadata: &mut MetadataWriter<'_>) -> Result<(), ConvertError> {
    let config = metadata.config;
    metadata.write_sizes();
    metadata.set("attention.head_count_kv", 1u32);
    metadata.write_rope()?;
    metadata.set("attention.layer_norm_rms_epsilon", config.float_or("rms_norm_eps", 1e-6)?);
    metadata.write_experts()?;
    write_latent_sizes(metadata)?;
    let rank = config.opt_count("kv_lora_rank")?.unwrap_or(512);
    metadata.set("attention.value_length", rank);
    let has_experts = metadata.params.dims.experts > 0;
    let dense = config.opt_count_or_zero("first_k_dense_replace")?;
    let default = if has_experts { 0 } else { metadata.params.dims.layers };
    metadata.set("leading_dense_block_count", dense.unwrap_or(default));
    metadata
        .set_count("expert_feed_forward_length", &["moe_intermediate_size", "intermediate_size"])?;
    metadata.set("expert_shared_count", config.opt_count_or_zero("n_shared_experts")?.unwrap_or(0));
    metadata.set_opt_float("expert_weights_scale", &["routed_scaling_factor"])?;
    if config.flag("norm_topk_prob") == Some(true) {
        metadata.set("expert_weights_norm", true);
    }
    if let Some(scale) = config.rope_parameters().opt_float("mscale_all_dim")? {
        metadata.set("rope.scaling.yarn_log_multiplier", 0.1 * scale);
    }
    Ok(())
}

pub(super) const MINICPM3: Family = Family {
    architecture: "minicpm3",
    classes: &["MiniCPM3ForCausalLM"],
    layer_rules: &[&ATTENTION, &LATENT, &GATED_FFN, &PRE_FFN_NORM],
    write_metadata: |metadata| {
        let config = metadata.config;
        metadata.write_sizes();
        metadata.write_norm_epsilons()?;
        metadata.set_opt_count("attention.q_lora_rank", &["q_lora_rank"])?;
        metadata.set_count("attention.kv_lora_rank", &["kv_lora_rank"])?;
        let rope_dim = config.count("qk_rope_head_dim")?;
        metadata.set(
            "attention.key_length",
            config.count("qk_nope_head_dim")?.saturating_add(rope_dim),
        );
        metadata.set("rope.dimension_count", rope_dim);
        let rope = config.rope_parameters();
        match ["long_factor", "short_factor"].map(|key| rope.value(key).is_some()) {
            [false, false] => Ok(()),
            _ => metadata.write_rope_factors(&rope, rope_dim),
        }
    },
    ..DEFAULT
};

pub(super) const PLM: Family = Family {
    architecture: "plm",
    classes: &["PLMForCausalLM"],
    layer_rules: &[&ATTENTION, &LATENT, &GATED_FFN, &PRE_FFN_NORM],
    write_metadata: |metadata| {
        metadata.write_sizes();
        metadata.write_norm_epsilons()?;
        metadata.write_rope()?;
        metadata.set_count("attention.kv_lora_rank", &["kv_lora_rank"])?;
        let rope_dim = metadata.config.count("qk_rope_head_dim")?;
        metadata.set(
            "attention.key_length",
            metadata.config.count("qk_nope_head_dim")?.saturating_add(rope_dim),
        );
        metadata.set_count("attention.value_length", &["v_head_dim"])?;
        metadata.set("rope.dimension_count", rope_dim);
        Ok(())
    },
    ..DEFAULT
};

/// Layers with delta attention.
pub(super) const KIMI_DELTA: [TensorRule; 11] = [
    rename("self_attn.A_log", "ssm_a."),
    rename("self_attn.dt_bias", "ssm_dt.bias"),
    rename("self_attn.b_proj", "ssm_beta"),
    rename("self_attn.f_a_proj", "ssm_f_a"),
    rename("self_attn.f_b_proj", "ssm_f_b"),
    rename("self_attn.g_a_proj", "ssm_g_a"),
    rename("self_attn.g_b_proj", "ssm_g_b"),
    rename("self_attn.o_norm", "ssm_norm"),
    rename("self_attn.q_conv1d", "ssm_conv1d_q").with_layout(SourceLayout::SqueezedToRank4),
    rename("self_attn.k_conv1d", "ssm_conv1d_k").with_layout(SourceLayout::SqueezedToRank4),
    rename("self_attn.v_conv1d", "ssm_conv1d_v").with_layout(SourceLayout::SqueezedToRank4),
];

/// Selection bias and shared experts.
pub(super) const KIMI_SHARED_EXPERT: [TensorRule; 4] = [
    rename("block_sparse_moe.gate.e_score_correction_bias", "exp_probs_b.bias"),
    rename("block_sparse_moe.shared_experts.gate_proj", "ffn_gate_shexp"),
    rename("block_sparse_moe.shared_experts.up_proj", "ffn_up_shexp"),
    rename("block_sparse_moe.shared_experts.down_proj", "ffn_down_shexp"),
];

pub(super) const KIMI_LINEAR: Family = Family {
    architecture: "kimi-linear",
    classes: &["KimiLinearForCausalLM", "KimiLinearModel"],
    layer_rules: &[
        &ATTENTION,
        &LATENT,
        &GATED_FFN,
        &PRE_FFN_NORM,
        &KIMI_DELTA,
        &KIMI_SHARED_EXPERT,
        &MIXTRAL,
        &SHARED_EXPERT,
    ],
    layer_uniformity: LayerUniformity::Arbitrary,
    value_transform: negate_exp_of_decay,
    custom_tensors: Some(split_kv_b),
    write_metadata: |metadata| {
        let config = metadata.config;
        let linear = config.section_or_self("linear_attn_config");
        let attention_layers: BTreeSet<u32> =
            linear.numbers("full_attn_layers")?.into_iter().collect();
        metadata.write_sizes();
        // The configuration counts layers from one.
        metadata.set_by_layer("attention.head_count_kv", |layer| {
            u32::from(attention_layers.contains(&(layer + 1)))
        });
        metadata.write_rope()?;
        metadata.write_norm_epsilons()?;
        metadata.write_experts()?;
        metadata.write_head_sizes();
        write_latent_sizes(metadata)?;
        metadata.set_opt_float("expert_weights_scale", &["routed_scaling_factor"])?;
        metadata.set("ssm.conv_kernel", linear.opt_count("short_conv_kernel_size")?.unwrap_or(4));
        metadata.set("kda.head_dim", linear.count("head_dim")?);
        metadata.set_count("expert_feed_forward_length", &["moe_intermediate_size"])?;
        metadata.set_count("expert_shared_count", &["num_shared_experts"])?;
        metadata.set(
            "leading_dense_block_count",
            config.opt_count_or_zero("first_k_dense_replace")?.unwrap_or(0),
        );
        Ok(())
    },
    ..DEFAULT
};
