//! Families with Kimi delta attention whose decay has a lower bound, and latent attention in other
//! layers: Kimi K3, Ling 3 and GLM 5 Next.

use std::collections::BTreeSet;

use puna_quant::TensorType;

use super::common_rules::{ATTENTION, EXPERTS, GATED_FFN, MIXTRAL, PRE_FFN_NORM, SHARED_EXPERT};
use super::default_family::DEFAULT;
use super::glm;
use super::latent_attention::{
    INDEXER, KIMI_DELTA, KIMI_SHARED_EXPERT, LATENT, indexer_layers, split_kv_b, write_latent_sizes,
};
use super::mamba::negate_exp_of_decay;
use super::moe::BAILING_GLOBAL;
use crate::error::ConvertError;
use crate::family::{Family, LayerUniformity, TensorMapper};
use crate::metadata::{HyperParameters, MetadataWriter};
use crate::output::{OutputTensor, TensorContent, ValueTransform, check_width};
use crate::rules::{SourceLayout, TensorRule, rename};
use crate::source::{Config, SourceTensor, Weights};

/// Tensors that Kimi K3 has in addition to Kimi Linear's. The folder uses one name for the gates of
/// both kinds of layers.
const KIMI_K3_LAYER: [TensorRule; 6] = [
    rename("self_attn.A_log", "ssm_a.").with_layout(SourceLayout::Flattened),
    rename("self_attn.delta_gate", "ssm_g"),
    rename("self_attn.g_proj", "attn_gate"),
    rename("block_sparse_moe.routed_expert_down_proj", "ffn_routed_down"),
    rename("block_sparse_moe.routed_expert_up_proj", "ffn_routed_up"),
    rename("block_sparse_moe.routed_expert_norm", "ffn_routed_norm"),
];

/// The text model.
pub(super) const KIMI_K3: Family = Family {
    architecture: "kimi-k3",
    classes: &["KimiK3ForConditionalGeneration"],
    layer_rules: &[
        &ATTENTION,
        &LATENT,
        &GATED_FFN,
        &PRE_FFN_NORM,
        &KIMI_K3_LAYER,
        &KIMI_DELTA,
        &KIMI_SHARED_EXPERT,
        &MIXTRAL,
        &SHARED_EXPERT,
    ],
    layer_uniformity: LayerUniformity::Arbitrary,
    value_transform: negate_exp_of_decay,
    custom_tensors: Some(map_gates_and_residual_scores),
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
        metadata.set_sigmoid_gating();
        metadata.write_experts()?;
        write_latent_sizes(metadata)?;
        metadata.set("attention.value_length", config.opt_count("kv_lora_rank")?.unwrap_or(512));
        metadata.write_expert_routing()?;
        metadata.set_opt_flag("expert_weights_norm", "moe_renormalize");
        metadata.set_opt_count("expert_latent_length", &["routed_expert_hidden_size"])?;
        metadata.write_delta_attention(&linear, &["gate_lower_bound"])?;
        if config.text("hidden_act").is_some_and(|unit| unit != "situ") {
            let found = config.text("hidden_act").unwrap_or_default().to_owned();
            return Err(config.invalid_value("hidden_act", format!("{found}, expected situ")));
        }
        for key in ["situ_beta", "situ_linear_beta"] {
            let bound = config.opt_float(&format!("activation_{key}"))?;
            let missing = || config.invalid(&format!("activation_{key}"), "a number");
            metadata.set(&format!("activation.{key}"), bound.ok_or_else(missing)?);
        }
        metadata.set_opt_count_or_zero("attn_res.block_size", &["attn_res_block_size"])?;
        Ok(())
    },
    ..DEFAULT
};

impl MetadataWriter<'_> {
    /// Writes the sizes of delta attention, and the lower bound of its decay from the first key
    /// that is present.
    fn write_delta_attention(
        &mut self,
        linear: &Config,
        bound: &[&str],
    ) -> Result<(), ConvertError> {
        self.set("ssm.conv_kernel", linear.opt_count("short_conv_kernel_size")?.unwrap_or(4));
        self.set("kda.head_dim", linear.count("head_dim")?);
        if let Some(min) = linear.first_float(bound)? {
            self.set("kda.gate_lower_bound", min);
        }
        Ok(())
    }
}

/// Gives gates of delta layers their own name, and computes the scores of attention residuals: the
/// products of norm weights and projection.
fn map_gates_and_residual_scores<'a>(
    mapper: &TensorMapper<'_>,
    weights: &mut Weights<'a>,
    outputs: &mut Vec<OutputTensor<'a>>,
) -> Result<(), ConvertError> {
    let attention_layers =
        mapper.config.section_or_self("linear_attn_config").numbers("full_attn_layers")?;
    let (attention_layers, layers): (BTreeSet<u32>, u32) =
        (attention_layers.into_iter().collect(), mapper.dims.layers);
    weights.rename(|name| match gate_layer(name, layers) {
        Some(layer) if !attention_layers.contains(&(layer + 1)) => {
            name.replace("g_proj", "delta_gate")
        }
        _ => name.to_owned(),
    })?;
    let width = u64::from(mapper.config.count("hidden_size")?);
    for layer in 0..mapper.dims.layers {
        for (source, target) in
            [("self_attention_res", "attn_res_score"), ("mlp_res", "ffn_res_score")]
        {
            let name = mapper.full_name(Some(layer), &format!("{target}.weight"));
            outputs.extend(residual_scores(
                weights,
                &format!("layers.{layer}.{source}"),
                name,
                width,
            )?);
        }
    }
    outputs.extend(residual_scores(
        weights,
        "output_attn_res",
        "output_res_score.weight".to_owned(),
        width,
    )?);
    split_kv_b(mapper, weights, outputs)
}

/// The layer of a gate's tensor. Numbers beyond the model's layers are ignored.
fn gate_layer(name: &str, layers: u32) -> Option<u32> {
    let layer =
        name.strip_prefix("layers.")?.strip_suffix(".self_attn.g_proj.weight")?.parse().ok()?;
    (layer < layers).then_some(layer)
}

/// The product of `NAME_norm` and `NAME_proj`, vectors of `width` values; `None` if they do not
/// exist.
fn residual_scores(
    weights: &mut Weights<'_>,
    source: &str,
    name: String,
    width: u64,
) -> Result<Option<OutputTensor<'static>>, ConvertError> {
    let [norm, proj] = ["norm", "proj"].map(|part| format!("{source}_{part}.weight"));
    let Some(of_norm) = weights.take(&norm) else { return Ok(None) };
    let of_proj = weights.take(&proj).ok_or(ConvertError::TensorMissing { name: proj })?;
    let numbers = |tensor: &SourceTensor<'_>| {
        let (name, found, want) =
            (tensor.entry.name.clone(), tensor.entry.shape.clone(), vec![width]);
        check_width(&name, &found, width)?;
        match tensor.entry.elements() == width {
            true => tensor.rows(0, 1, width),
            false => Err(ConvertError::TensorShape { name, found, want }),
        }
    };
    let product = numbers(&of_norm)?.iter().zip(numbers(&of_proj)?).map(|(a, b)| a * b).collect();
    Ok(Some(OutputTensor {
        name,
        ty: TensorType::F32,
        shape: vec![width],
        content: TensorContent::Constant(product),
    }))
}

/// Names of Ling 3. The folder uses one name for the gates of both kinds of layers.
const LING_LAYER: [TensorRule; 6] = [
    rename("self_attn.A_log", "ssm_a.").with_layout(SourceLayout::ColumnVector),
    rename("self_attn.dense", "attn_output"),
    rename("self_attn.f_proj", "ssm_f_a"),
    rename("self_attn.delta_gate", "ssm_g_a"),
    rename("self_attn.g_proj", "attn_gate"),
    rename("mlp.gate.expert_bias", "exp_probs_b.bias"),
];

/// Also the text model of Ling 3 VL.
pub(super) const BAILINGMOE3: Family = Family {
    architecture: "bailingmoe3",
    classes: &["BailingMoeV3ForCausalLM", "BailingMoeV3VLForConditionalGeneration"],
    global_rules: &[&BAILING_GLOBAL],
    layer_rules: &[
        &LING_LAYER,
        &ATTENTION,
        &LATENT,
        &GATED_FFN,
        &PRE_FFN_NORM,
        &KIMI_DELTA,
        &EXPERTS,
        &SHARED_EXPERT,
    ],
    layer_uniformity: LayerUniformity::Arbitrary,
    value_transform: |_, name| {
        Ok(if name == "ssm_a" { ValueTransform::Exp } else { ValueTransform::None })
    },
    custom_tensors: Some(|mapper, weights, outputs| {
        let (every, layers) = (mapper.config.count("layer_group_size")?, mapper.dims.layers);
        weights.discard(|name| name.starts_with("linear_proj"));
        weights.rename(|name| {
            let name = name.replace(".attention.", ".self_attn.");
            match gate_layer(&name, layers) {
                Some(layer) if !has_attention(layer, every, layers) => {
                    name.replace("g_proj", "delta_gate")
                }
                _ => name,
            }
        })?;
        split_kv_b(mapper, weights, outputs)
    }),
    hyper_parameters: |config| {
        let mut params = HyperParameters::from_config(config)?;
        params.dims.kv_heads = params.dims.heads;
        Ok(params)
    },
    write_metadata: |metadata| {
        let config = metadata.config;
        for (key, want) in [("no_kda_lora", true), ("kda_safe_gate", true)] {
            if config.flag(key) != Some(want) {
                let found = "not true, but other layers are not supported".to_owned();
                return Err(config.invalid_value(key, found));
            }
        }
        let (every, layers) = (config.count("layer_group_size")?, metadata.params.dims.layers);
        metadata.write_sizes();
        metadata.set_by_layer("attention.head_count_kv", |layer| {
            u32::from(has_attention(layer, every, layers))
        });
        metadata.write_rope()?;
        metadata.write_rope_sections(config, &["mrope_section"])?;
        metadata.write_norm_epsilons()?;
        metadata.write_experts()?;
        write_latent_sizes(metadata)?;
        metadata.write_expert_routing()?;
        metadata.set_opt_count(
            "expert_shared_feed_forward_length",
            &["moe_shared_expert_intermediate_size"],
        )?;
        metadata.write_delta_attention(config, &["kda_lower_bound"])?;
        metadata.set("kda.safe_gate", true);
        for (source, key) in [
            ("expert_swiglu_limit_list", "swiglu_clamp_exp"),
            ("share_expert_swiglu_limit_list", "swiglu_clamp_shexp"),
        ] {
            if let Some(list) = config.value(source).and_then(|list| list.as_array()) {
                let limits = list.iter().map(|limit| limit.as_f64().unwrap_or(0.0) as f32);
                let limits = limits
                    .chain(std::iter::repeat(0.0))
                    .take(layers as usize)
                    .collect::<Vec<f32>>();
                metadata.set(key, limits);
            }
        }
        Ok(())
    },
    ..DEFAULT
};

/// Whether a layer has attention: the last of each group, and all layers behind the last complete
/// group.
fn has_attention(layer: u32, every: u32, layers: u32) -> bool {
    (layer + 1).is_multiple_of(every) || layer >= layers / every * every
}

/// Hyper-connections, and the pooling of the indexer's keys.
const GLM_5_NEXT: [TensorRule; 9] = [
    rename("self_attn.A_log", "ssm_a.").with_layout(SourceLayout::Flattened),
    rename("hc_attn_fn", "hc_attn_fn"),
    rename("hc_attn_base", "hc_attn_base"),
    rename("hc_attn_scale", "hc_attn_scale"),
    rename("hc_ffn_fn", "hc_ffn_fn"),
    rename("hc_ffn_base", "hc_ffn_base"),
    rename("hc_ffn_scale", "hc_ffn_scale"),
    rename("self_attn.indexer.index_kpool_compress_gate", "indexer_compressor_gate"),
    rename("self_attn.indexer.index_kpool_compress_ape", "indexer_compressor_ape"),
];

/// The text model.
pub(super) const GLM5_NEXT: Family = Family {
    architecture: "glm5-next",
    classes: &["Glm5NextForConditionalGeneration"],
    layer_rules: &[
        &GLM_5_NEXT,
        &ATTENTION,
        &LATENT,
        &INDEXER,
        &GATED_FFN,
        &PRE_FFN_NORM,
        &KIMI_DELTA,
        &EXPERTS,
        &SHARED_EXPERT,
    ],
    layer_uniformity: LayerUniformity::Arbitrary,
    pretokenizer: glm::GLM4.pretokenizer,
    extra_special_tokens: glm::GLM4.extra_special_tokens,
    value_transform: negate_exp_of_decay,
    custom_tensors: Some(split_kv_b),
    write_metadata: |metadata| {
        let config = metadata.config;
        let linear = config.section_or_self("linear_attn_config");
        metadata.write_sizes();
        let has_attention: Vec<i32> = match config.strings("layer_types") {
            Some(types) => types.iter().map(|kind| i32::from(kind != "linear_attention")).collect(),
            None => {
                return Err(config.invalid("layer_types", "a list with a string for each layer"));
            }
        };
        metadata.set_layer_list("attention.head_count_kv", has_attention)?;
        metadata.write_rope()?;
        metadata.write_norm_epsilons()?;
        // For the norm of the indexer's keys.
        metadata.set("attention.layer_norm_epsilon", 1e-6f32);
        metadata.write_experts()?;
        write_latent_sizes(metadata)?;
        metadata.set("attention.value_length", config.opt_count("kv_lora_rank")?.unwrap_or(512));
        metadata.write_expert_routing()?;
        metadata.write_delta_attention(&linear, &["gate_lower_bound"])?;
        metadata.write_indexer()?;
        metadata.set_count("attention.indexer.kpool", &["index_kpool"])?;
        let tail = config.flag("index_kpool_always_select_tail").unwrap_or(true);
        metadata.set("attention.indexer.kpool_select_tail", tail);
        if let Some(indexer_layers) = indexer_layers(config)? {
            metadata.set_layer_list("attention.indexer.types", indexer_layers)?;
        }
        metadata.set_count("hyper_connection.count", &["hc_mult"])?;
        metadata.set_count("hyper_connection.sinkhorn_iterations", &["hc_sinkhorn_iters"])?;
        metadata.set_opt_float("hyper_connection.epsilon", &["hc_eps"])?;
        if let Some(limit) = config.opt_float("swiglu_limit")? {
            let limits = vec![limit; metadata.params.dims.layers as usize];
            metadata.set("swiglu_clamp_exp", limits.clone());
            metadata.set("swiglu_clamp_shexp", limits);
        }
        Ok(())
    },
    ..DEFAULT
};
