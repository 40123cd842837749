//! Models of several residual streams: Hunyuan 4, which attends through a latent vector as DeepSeek does.

use super::super::keys::{Keys, Shape};
use super::super::rules::{Rule, one};
use super::latent::{DEEPSEEK2, INDEXER, LATENT, deepseek2};
use super::names::{ATTENTION, BEFORE, EXPERTS, GATED, SHARED, WHOLE};
use super::{Alike, Family};
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
    deepseek2(keys)?;
    keys.sigmoid();
    if let Some(kinds) = config.strings("mlp_layer_types") {
        let dense = kinds.iter().take_while(|kind| *kind == "dense").count();
        if kinds[dense..].iter().any(|kind| kind == "dense") {
            return Err(config.wrong("mlp_layer_types", "no dense layer behind one with experts").into());
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
    let Some(owners) = owners(keys)? else { return Ok(()) };
    keys.count("attention.indexer.head_count", &["index_n_heads"])?;
    keys.count("attention.indexer.key_length", &["index_head_dim"])?;
    keys.count("attention.indexer.top_k", &["index_topk"])?;
    keys.list("attention.indexer.types", owners)
}

/// Which layers have an indexer: older configurations only say which layers attend sparsely. Nothing where none does.
fn owners(keys: &Keys<'_>) -> Result<Option<Vec<bool>>, StoreError> {
    let config = keys.config;
    if let Some(types) = config.strings("indexer_types") {
        return match types.iter().find(|kind| !["full", "shared"].contains(&kind.as_str())) {
            None => Ok(Some(types.iter().map(|kind| kind == "full").collect())),
            Some(_) => Err(config.wrong("indexer_types", "`full` or `shared` for each layer").into()),
        };
    }
    let sparse = |kind: &String| ["sparse_attention", "deepseek_sparse_attention"].contains(&kind.as_str());
    let kinds = config.strings("layer_types").unwrap_or_default();
    Ok(kinds.iter().any(sparse).then(|| kinds.iter().map(sparse).collect()))
}
