//! Models of several residual streams: Hunyuan 4, which attends through a latent vector as DeepSeek does, and DeepSeek 4 with names of its
//! own, products of 8 bits and experts of 4.

use puna_quant::TensorType;

use super::super::ImportError;
use super::super::config::Json;
use super::super::keys::{Keys, Shape};
use super::super::pieces::Cutter;
use super::super::plan::{Content, Output};
use super::super::rules::{Rule, one};
use super::super::weights::Weights;
use super::latent::{DEEPSEEK2, INDEXER, LATENT, deepseek2, owners};
use super::names::{ATTENTION, BEFORE, EXPERTS, GATED, SHARED, WHOLE};
use super::{Alike, Family, PLAIN};
use crate::error::StoreError;

/// How layers are connected to the streams, by the names of published folders and of later files.
const LINKS: [Rule; 15] = [
    one("hc_attn_layer.hc_pre.hc_fn", "hc_attn_fn"),
    one("hc_attn_layer.hc_pre.hc_base", "hc_attn_base"),
    one("hc_attn_layer.hc_pre.hc_scale", "hc_attn_scale"),
    one("hc_mlp_layer.hc_pre.hc_fn", "hc_ffn_fn"),
    one("hc_mlp_layer.hc_pre.hc_base", "hc_ffn_base"),
    one("hc_mlp_layer.hc_pre.hc_scale", "hc_ffn_scale"),
    one("attn_hc.fn", "hc_attn_fn"),
    one("attn_hc.base", "hc_attn_base"),
    one("attn_hc.scale", "hc_attn_scale"),
    one("ffn_hc.fn", "hc_ffn_fn"),
    one("ffn_hc.base", "hc_ffn_base"),
    one("ffn_hc.scale", "hc_ffn_scale"),
    one("self_attn.learnable_sink_param", "attn_sinks"),
    one("self_attn.linear_gate", "attn_gate"),
    one("self_attn.gate_proj", "attn_gate"),
];

/// How the streams become one.
const END: [Rule; 6] = [
    one("hc_head.hc_head_fn", "output_hc_fn"),
    one("hc_head.hc_head_base", "output_hc_base"),
    one("hc_head.hc_head_scale", "output_hc_scale"),
    one("hc_head.hc_fn", "output_hc_fn"),
    one("hc_head.hc_base", "output_hc_base"),
    one("hc_head.hc_scale", "output_hc_scale"),
];

pub(super) const HY_V4: Family = Family {
    architecture: "hy_v4",
    classes: &["HYV4ForCausalLM"],
    whole: &[&WHOLE, &END],
    layer: &[&ATTENTION, &LATENT, &INDEXER, &LINKS, &GATED, &BEFORE, &EXPERTS, &SHARED],
    alike: Alike::Kinds,
    shape: |config| {
        let mut shape = Shape::usual(config)?;
        // Whatever is said of groups: each head has keys of its own.
        shape.sizes.kv_heads = shape.sizes.heads;
        Ok(shape)
    },
    keys: hy_v4,
    ..DEEPSEEK2
};

fn hy_v4(keys: &mut Keys<'_>) -> Result<(), StoreError> {
    let config = keys.config;
    keys.sigmoid();
    deepseek2(keys)?;
    if let Some(kinds) = config.strings("mlp_layer_types") {
        let dense = kinds.iter().take_while(|kind| *kind == "dense").count();
        if kinds[dense..].iter().any(|kind| kind == "dense") {
            return Err(config
                .wrong("mlp_layer_types", "no dense layer behind one with experts")
                .into());
        }
        keys.set("leading_dense_block_count", dense as u32);
    }
    let limit = config.opt_float("swiglu_limit")?.unwrap_or(10.0);
    if limit > 0.0 {
        keys.list("swiglu_clamp_exp", vec![limit; keys.shape.sizes.layers as usize])?;
    }
    keys.count("hyper_connection.count", &["hc_mult"])?;
    keys.set("hyper_connection.epsilon", config.float("hc_eps", 1e-6)?);
    keys.set("hyper_connection.magnitude", config.float("hc_magnitude", 2.0)?);
    let Some(owners) = owners(config)?.or_else(|| sparse_layers(config)) else { return Ok(()) };
    keys.indexer()?;
    keys.list("attention.indexer.types", owners)
}

/// Which layers have an indexer by older configurations, which only say which layers attend sparsely. Nothing where none does.
fn sparse_layers(config: &Json) -> Option<Vec<bool>> {
    let sparse =
        |kind: &String| ["sparse_attention", "deepseek_sparse_attention"].contains(&kind.as_str());
    let kinds = config.strings("layer_types").unwrap_or_default();
    kinds.iter().any(sparse).then(|| kinds.iter().map(sparse).collect())
}

/// DeepSeek 4's names outside of the layers.
const WHOLE4: [Rule; 6] = [
    one("embed", "token_embd"),
    one("norm", "output_norm"),
    one("head", "output"),
    one("hc_head_fn", "output_hc_fn"),
    one("hc_head_base", "output_hc_base"),
    one("hc_head_scale", "output_hc_scale"),
];

const ATTENTION4: [Rule; 20] = [
    one("attn_norm", "attn_norm"),
    one("attn.attn_sink", "attn_sinks"),
    one("attn.wq_a", "attn_q_a"),
    one("attn.q_norm", "attn_q_a_norm"),
    one("attn.wq_b", "attn_q_b"),
    one("attn.wkv", "attn_kv"),
    one("attn.kv_norm", "attn_kv_a_norm"),
    one("attn.wo_a", "attn_output_a"),
    one("attn.wo_b", "attn_output_b"),
    one("attn.compressor.wkv", "attn_compressor_kv"),
    one("attn.compressor.wgate", "attn_compressor_gate"),
    one("attn.compressor.ape", "attn_compressor_ape"),
    one("attn.compressor.norm", "attn_compressor_norm"),
    one("attn.indexer.wq_b", "indexer.attn_q_b.weight"),
    one("attn.indexer.weights_proj", "indexer.proj.weight"),
    one("attn.indexer.compressor.wkv", "indexer_compressor_kv"),
    one("attn.indexer.compressor.wgate", "indexer_compressor_gate"),
    one("attn.indexer.compressor.ape", "indexer_compressor_ape"),
    one("attn.indexer.compressor.norm", "indexer_compressor_norm"),
    one("ffn_norm", "ffn_norm"),
];

const EXPERTS4: [Rule; 15] = [
    one("hc_attn_fn", "hc_attn_fn"),
    one("hc_attn_base", "hc_attn_base"),
    one("hc_attn_scale", "hc_attn_scale"),
    one("hc_ffn_fn", "hc_ffn_fn"),
    one("hc_ffn_base", "hc_ffn_base"),
    one("hc_ffn_scale", "hc_ffn_scale"),
    one("ffn.gate.bias_vl", "exp_probs_b_vl.bias"),
    one("ffn.gate.bias", "exp_probs_b.bias"),
    one("ffn.gate", "ffn_gate_inp"),
    one("ffn.experts.{}.w1", "ffn_gate_exps"),
    one("ffn.experts.{}.w3", "ffn_up_exps"),
    one("ffn.experts.{}.w2", "ffn_down_exps"),
    one("ffn.shared_experts.w1", "ffn_gate_shexp"),
    one("ffn.shared_experts.w3", "ffn_up_shexp"),
    one("ffn.shared_experts.w2", "ffn_down_shexp"),
];

pub(super) const DEEPSEEK4: Family = Family {
    architecture: "deepseek4",
    classes: &["DeepseekV4ForCausalLM"],
    root: "",
    whole: &[&WHOLE4],
    layer: &[&ATTENTION4, &EXPERTS4],
    alike: Alike::Nothing,
    odd: Some(by_token),
    shape: |config| {
        let context = config.count("max_position_embeddings")?;
        let mut shape = Shape::of(config, context, config.count("moe_intermediate_size")?)?;
        shape.sizes.kv_heads = 1;
        Ok(shape)
    },
    keys: deepseek4,
    ..PLAIN
};

/// The first layers select experts by token id, so they have no selection bias. Leaves out the tensors of the image encoder.
fn by_token<'a>(
    cutter: &Cutter<'_>,
    weights: &mut Weights<'a>,
    outputs: &mut Vec<Output<'a>>,
) -> Result<(), StoreError> {
    weights.leave(|name| name.starts_with("aligner.") || name.starts_with("image_"));
    for layer in
        0..cutter.config.opt_number("num_hash_layers")?.unwrap_or(0).min(cutter.sizes.layers)
    {
        let there = format!("layers.{layer}.ffn.gate.tid2eid");
        let tensor = weights.take(&there).ok_or(ImportError::TensorMissing { name: there })?;
        weights.take(&format!("layers.{layer}.ffn.gate.bias"));
        let (name, shape) =
            (cutter.full(Some(layer), "ffn_gate_tid2eid.weight"), tensor.entry.shape.clone());
        outputs.push(Output { name, ty: TensorType::I32, shape, content: Content::Whole(tensor) });
    }
    Ok(())
}

fn deepseek4(keys: &mut Keys<'_>) -> Result<(), StoreError> {
    let config = keys.config;
    keys.sizes_without_inner();
    keys.rope()?;
    keys.norms()?;
    keys.head_sizes();
    keys.count("rope.dimension_count", &["qk_rope_head_dim"])?;
    keys.count("attention.q_lora_rank", &["q_lora_rank"])?;
    keys.count("attention.sliding_window", &["sliding_window"])?;
    keys.set("attention.compress_rope_freq_base", config.float("compress_rope_theta", 160_000.0)?);
    keys.count("attention.output_group_count", &["o_groups"])?;
    keys.count("attention.output_lora_rank", &["o_lora_rank"])?;
    let mut ratios = config.numbers("compress_ratios")?;
    ratios.truncate(keys.shape.sizes.layers as usize);
    keys.list("attention.compress_ratios", ratios)?;
    keys.indexer()?;
    keys.set("expert_gating_func", 4u32);
    keys.experts()?;
    keys.routed()?;
    if let Some(limit) = config.opt_float("swiglu_limit")?.filter(|&limit| limit > 0.0) {
        let limits = vec![limit; keys.shape.sizes.layers as usize];
        keys.list("swiglu_clamp_exp", limits.clone())?;
        keys.list("swiglu_clamp_shexp", limits)?;
    }
    keys.set("hash_layer_count", config.opt_number("num_hash_layers")?.unwrap_or(0));
    keys.count("hyper_connection.count", &["hc_mult"])?;
    keys.count("hyper_connection.sinkhorn_iterations", &["hc_sinkhorn_iters"])?;
    keys.set("hyper_connection.epsilon", config.float("hc_eps", 1e-6)?);
    Ok(())
}
