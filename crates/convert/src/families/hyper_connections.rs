//! Models with hyper-connections: Hunyuan 4 with latent attention as in DeepSeek 2, and DeepSeek 4
//! with its own tensor names, FP8 weights and MXFP4 experts.

use puna_quant::TensorType;

use super::common_rules::{ATTENTION, EXPERTS, GATED_FFN, GLOBAL, PRE_FFN_NORM, SHARED_EXPERT};
use super::default_family::DEFAULT;
use super::latent_attention::{DEEPSEEK2, INDEXER, LATENT, deepseek2, indexer_layers};
use crate::error::ConvertError;
use crate::family::{Family, LayerUniformity, TensorMapper};
use crate::metadata::{HyperParameters, MetadataWriter};
use crate::output::{OutputTensor, TensorContent};
use crate::rules::{TensorRule, rename};
use crate::source::{Config, Weights};

/// Hyper-connections and gates, by the names of published folders and of later files.
const HYPER_CONNECTIONS: [TensorRule; 15] = [
    rename("hc_attn_layer.hc_pre.hc_fn", "hc_attn_fn"),
    rename("hc_attn_layer.hc_pre.hc_base", "hc_attn_base"),
    rename("hc_attn_layer.hc_pre.hc_scale", "hc_attn_scale"),
    rename("hc_mlp_layer.hc_pre.hc_fn", "hc_ffn_fn"),
    rename("hc_mlp_layer.hc_pre.hc_base", "hc_ffn_base"),
    rename("hc_mlp_layer.hc_pre.hc_scale", "hc_ffn_scale"),
    rename("attn_hc.fn", "hc_attn_fn"),
    rename("attn_hc.base", "hc_attn_base"),
    rename("attn_hc.scale", "hc_attn_scale"),
    rename("ffn_hc.fn", "hc_ffn_fn"),
    rename("ffn_hc.base", "hc_ffn_base"),
    rename("ffn_hc.scale", "hc_ffn_scale"),
    rename("self_attn.learnable_sink_param", "attn_sinks"),
    rename("self_attn.linear_gate", "attn_gate"),
    rename("self_attn.gate_proj", "attn_gate"),
];

/// Mix of the residual streams before the output.
const OUTPUT_STREAM_MIX: [TensorRule; 6] = [
    rename("hc_head.hc_head_fn", "output_hc_fn"),
    rename("hc_head.hc_head_base", "output_hc_base"),
    rename("hc_head.hc_head_scale", "output_hc_scale"),
    rename("hc_head.hc_fn", "output_hc_fn"),
    rename("hc_head.hc_base", "output_hc_base"),
    rename("hc_head.hc_scale", "output_hc_scale"),
];

pub(super) const HY_V4: Family = Family {
    architecture: "hy_v4",
    classes: &["HYV4ForCausalLM"],
    global_rules: &[&GLOBAL, &OUTPUT_STREAM_MIX],
    layer_rules: &[
        &ATTENTION,
        &LATENT,
        &INDEXER,
        &HYPER_CONNECTIONS,
        &GATED_FFN,
        &PRE_FFN_NORM,
        &EXPERTS,
        &SHARED_EXPERT,
    ],
    layer_uniformity: LayerUniformity::SeveralKinds,
    hyper_parameters: |config| {
        let mut params = HyperParameters::from_config(config)?;
        // Every head has its own keys, whatever the configuration says about groups.
        params.dims.kv_heads = params.dims.heads;
        Ok(params)
    },
    write_metadata: hy_v4,
    ..DEEPSEEK2
};

fn hy_v4(metadata: &mut MetadataWriter<'_>) -> Result<(), ConvertError> {
    let config = metadata.config;
    metadata.set_sigmoid_gating();
    deepseek2(metadata)?;
    if let Some(kinds) = config.strings("mlp_layer_types") {
        let dense = kinds.iter().take_while(|kind| *kind == "dense").count();
        if kinds[dense..].iter().any(|kind| kind == "dense") {
            return Err(config.invalid(
                "mlp_layer_types",
                "a list with all dense layers before those with experts",
            ));
        }
        metadata.set("leading_dense_block_count", dense as u32);
    }
    let limit = config.opt_float("swiglu_limit")?.unwrap_or(10.0);
    if limit > 0.0 {
        metadata.set_layer_list(
            "swiglu_clamp_exp",
            vec![limit; metadata.params.dims.layers as usize],
        )?;
    }
    metadata.set_count("hyper_connection.count", &["hc_mult"])?;
    metadata.set("hyper_connection.epsilon", config.float_or("hc_eps", 1e-6)?);
    metadata.set("hyper_connection.magnitude", config.float_or("hc_magnitude", 2.0)?);
    let Some(indexer_layers) = indexer_layers(config)?.or_else(|| sparse_layers(config)) else {
        return Ok(());
    };
    metadata.write_indexer()?;
    metadata.set_layer_list("attention.indexer.types", indexer_layers)
}

/// Layers with an indexer, for older configurations that only name layers with sparse attention.
/// `None` if no layer has one.
fn sparse_layers(config: &Config) -> Option<Vec<bool>> {
    let sparse =
        |kind: &String| ["sparse_attention", "deepseek_sparse_attention"].contains(&kind.as_str());
    let kinds = config.strings("layer_types").unwrap_or_default();
    kinds.iter().any(sparse).then(|| kinds.iter().map(sparse).collect())
}

/// Tensors of DeepSeek 4 outside of layers.
const DEEPSEEK4_GLOBAL: [TensorRule; 6] = [
    rename("embed", "token_embd"),
    rename("norm", "output_norm"),
    rename("head", "output"),
    rename("hc_head_fn", "output_hc_fn"),
    rename("hc_head_base", "output_hc_base"),
    rename("hc_head_scale", "output_hc_scale"),
];

const DEEPSEEK4_ATTENTION: [TensorRule; 20] = [
    rename("attn_norm", "attn_norm"),
    rename("attn.attn_sink", "attn_sinks"),
    rename("attn.wq_a", "attn_q_a"),
    rename("attn.q_norm", "attn_q_a_norm"),
    rename("attn.wq_b", "attn_q_b"),
    rename("attn.wkv", "attn_kv"),
    rename("attn.kv_norm", "attn_kv_a_norm"),
    rename("attn.wo_a", "attn_output_a"),
    rename("attn.wo_b", "attn_output_b"),
    rename("attn.compressor.wkv", "attn_compressor_kv"),
    rename("attn.compressor.wgate", "attn_compressor_gate"),
    rename("attn.compressor.ape", "attn_compressor_ape"),
    rename("attn.compressor.norm", "attn_compressor_norm"),
    rename("attn.indexer.wq_b", "indexer.attn_q_b.weight"),
    rename("attn.indexer.weights_proj", "indexer.proj.weight"),
    rename("attn.indexer.compressor.wkv", "indexer_compressor_kv"),
    rename("attn.indexer.compressor.wgate", "indexer_compressor_gate"),
    rename("attn.indexer.compressor.ape", "indexer_compressor_ape"),
    rename("attn.indexer.compressor.norm", "indexer_compressor_norm"),
    rename("ffn_norm", "ffn_norm"),
];

const DEEPSEEK4_EXPERTS: [TensorRule; 15] = [
    rename("hc_attn_fn", "hc_attn_fn"),
    rename("hc_attn_base", "hc_attn_base"),
    rename("hc_attn_scale", "hc_attn_scale"),
    rename("hc_ffn_fn", "hc_ffn_fn"),
    rename("hc_ffn_base", "hc_ffn_base"),
    rename("hc_ffn_scale", "hc_ffn_scale"),
    rename("ffn.gate.bias_vl", "exp_probs_b_vl.bias"),
    rename("ffn.gate.bias", "exp_probs_b.bias"),
    rename("ffn.gate", "ffn_gate_inp"),
    rename("ffn.experts.{}.w1", "ffn_gate_exps"),
    rename("ffn.experts.{}.w3", "ffn_up_exps"),
    rename("ffn.experts.{}.w2", "ffn_down_exps"),
    rename("ffn.shared_experts.w1", "ffn_gate_shexp"),
    rename("ffn.shared_experts.w3", "ffn_up_shexp"),
    rename("ffn.shared_experts.w2", "ffn_down_shexp"),
];

pub(super) const DEEPSEEK4: Family = Family {
    architecture: "deepseek4",
    classes: &["DeepseekV4ForCausalLM"],
    root_prefix: "",
    global_rules: &[&DEEPSEEK4_GLOBAL],
    layer_rules: &[&DEEPSEEK4_ATTENTION, &DEEPSEEK4_EXPERTS],
    layer_uniformity: LayerUniformity::Arbitrary,
    custom_tensors: Some(map_hash_routed_layers),
    hyper_parameters: |config| {
        let context = config.count("max_position_embeddings")?;
        let mut params =
            HyperParameters::with_sizes(config, context, config.count("moe_intermediate_size")?)?;
        params.dims.kv_heads = 1;
        Ok(params)
    },
    write_metadata: deepseek4,
    ..DEFAULT
};

/// The first layers select experts by token id, so they have no selection bias. Ignores the tensors
/// of the image encoder.
fn map_hash_routed_layers<'a>(
    mapper: &TensorMapper<'_>,
    weights: &mut Weights<'a>,
    outputs: &mut Vec<OutputTensor<'a>>,
) -> Result<(), ConvertError> {
    weights.discard(|name| name.starts_with("aligner.") || name.starts_with("image_"));
    for layer in
        0..mapper.config.opt_count_or_zero("num_hash_layers")?.unwrap_or(0).min(mapper.dims.layers)
    {
        let source = format!("layers.{layer}.ffn.gate.tid2eid");
        let tensor = weights.take(&source).ok_or(ConvertError::TensorMissing { name: source })?;
        weights.take(&format!("layers.{layer}.ffn.gate.bias"));
        let (name, shape) =
            (mapper.full_name(Some(layer), "ffn_gate_tid2eid.weight"), tensor.entry.shape.clone());
        outputs.push(OutputTensor {
            name,
            ty: TensorType::I32,
            shape,
            content: TensorContent::Integers(tensor),
        });
    }
    Ok(())
}

fn deepseek4(metadata: &mut MetadataWriter<'_>) -> Result<(), ConvertError> {
    let config = metadata.config;
    metadata.write_sizes_without_feed_forward();
    metadata.write_rope()?;
    metadata.write_norm_epsilons()?;
    metadata.write_head_sizes();
    metadata.set_count("rope.dimension_count", &["qk_rope_head_dim"])?;
    metadata.set_count("attention.q_lora_rank", &["q_lora_rank"])?;
    metadata.set_count("attention.sliding_window", &["sliding_window"])?;
    metadata.set(
        "attention.compress_rope_freq_base",
        config.float_or("compress_rope_theta", 160_000.0)?,
    );
    metadata.set_count("attention.output_group_count", &["o_groups"])?;
    metadata.set_count("attention.output_lora_rank", &["o_lora_rank"])?;
    let mut ratios = config.numbers("compress_ratios")?;
    ratios.truncate(metadata.params.dims.layers as usize);
    metadata.set_layer_list("attention.compress_ratios", ratios)?;
    metadata.write_indexer()?;
    metadata.set("expert_gating_func", 4u32);
    metadata.write_experts()?;
    metadata.write_expert_routing()?;
    if let Some(limit) = config.opt_float("swiglu_limit")?.filter(|&limit| limit > 0.0) {
        let limits = vec![limit; metadata.params.dims.layers as usize];
        metadata.set_layer_list("swiglu_clamp_exp", limits.clone())?;
        metadata.set_layer_list("swiglu_clamp_shexp", limits)?;
    }
    metadata.set("hash_layer_count", config.opt_count_or_zero("num_hash_layers")?.unwrap_or(0));
    metadata.set_count("hyper_connection.count", &["hc_mult"])?;
    metadata.set_count("hyper_connection.sinkhorn_iterations", &["hc_sinkhorn_iters"])?;
    metadata.set("hyper_connection.epsilon", config.float_or("hc_eps", 1e-6)?);
    Ok(())
}
