//! Families whose layers differ in size: Deci and OpenELM; and PLaMo 1.

use super::common_rules::{ATTENTION, GATED_FFN, PRE_FFN_NORM};
use super::default_family::DEFAULT;
use crate::error::ConvertError;
use crate::family::{Family, LayerUniformity};
use crate::metadata::{HyperParameters, MetadataWriter};
use crate::rules::{Dimensions, RowSplit, SourceLayout, TensorRule, rename, reorder, split};
use crate::source::Config;

/// A linear layer in place of attention.
const LINEAR: [TensorRule; 1] = [rename("self_attn.linear_attn", "attn_output")];

pub(super) const DECI: Family = Family {
    architecture: "deci",
    classes: &["DeciLMForCausalLM"],
    layer_rules: &[&LINEAR, &ATTENTION, &GATED_FFN, &PRE_FFN_NORM],
    layer_uniformity: LayerUniformity::Arbitrary,
    interleaves_rope_pairs: true,
    hyper_parameters: |config| match config.value("block_configs") {
        Some(_) => HyperParameters::with_sizes(config, config.count("max_position_embeddings")?, 0),
        None => HyperParameters::from_config(config),
    },
    write_metadata: deci,
    ..DEFAULT
};

fn deci(metadata: &mut MetadataWriter<'_>) -> Result<(), ConvertError> {
    metadata.write_sizes();
    metadata.write_norm_epsilons()?;
    metadata.write_rope()?;
    metadata.set_full_rope_dim();
    metadata.write_head_sizes();
    let config = metadata.config;
    if config.value("num_key_value_heads_per_layer").is_some() {
        metadata.set_layer_list(
            "attention.head_count_kv",
            config.numbers("num_key_value_heads_per_layer")?,
        )?;
    }
    let Some(blocks) = config.value("block_configs") else { return Ok(()) };
    let wrong = || config.invalid("block_configs", "a list with an object for each layer");
    let blocks =
        blocks.as_array().filter(|list| list.len() == metadata.params.dims.layers as usize);
    let (all, width) = (metadata.params.dims.heads, metadata.params.hidden_size);
    let (mut heads, mut kv_heads, mut inner) = (Vec::new(), Vec::new(), Vec::new());
    for block in blocks.ok_or_else(wrong)? {
        let attention = block.get("attention").ok_or_else(wrong)?;
        let group = attention.get("n_heads_in_group").and_then(serde_json::Value::as_u64);
        let is_linear = attention.get("replace_with_linear").and_then(serde_json::Value::as_bool);
        // A linear layer has heads but no KV heads; a layer without either has none.
        let (query_count, kv_count) =
            match group.and_then(|n| u32::try_from(n).ok()).filter(|&n| n > 0) {
                Some(group) => (all, all / group),
                None => (if is_linear == Some(true) { all } else { 0 }, 0),
            };
        heads.push(query_count);
        kv_heads.push(kv_count);
        let times = block.get("ffn").and_then(|ffn| ffn.get("ffn_mult")?.as_f64()).unwrap_or(0.0);
        let size = (2.0 * times * f64::from(width) / 3.0) as u32;
        inner.push(size.checked_next_multiple_of(256).unwrap_or(u32::MAX));
    }
    metadata.set("attention.head_count", heads);
    metadata.set("attention.head_count_kv", kv_heads);
    metadata.set("feed_forward_length", inner);
    Ok(())
}

const OPENELM_GLOBAL: [TensorRule; 3] = [
    rename("token_embeddings", "token_embd"),
    rename("norm", "output_norm"),
    rename("lm_head", "output"),
];

const OPENELM_LAYER: [TensorRule; 8] = [
    rename("attn_norm", "attn_norm"),
    rename("attn.qkv_proj", "attn_qkv"),
    rename("attn.q_norm", "attn_q_norm"),
    rename("attn.k_norm", "attn_k_norm"),
    rename("attn.out_proj", "attn_output"),
    rename("ffn_norm", "ffn_norm"),
    split("ffn.proj_1", RowSplit::EqualParts, &["ffn_gate", "ffn_up"]),
    rename("ffn.proj_2", "ffn_down"),
];

pub(super) const OPENELM: Family = Family {
    architecture: "openelm",
    classes: &["OpenELMForCausalLM"],
    root_prefix: "transformer.",
    global_rules: &[&OPENELM_GLOBAL],
    layer_rules: &[&OPENELM_LAYER],
    hyper_parameters: openelm_shape,
    write_metadata: |metadata| {
        let config = metadata.config;
        metadata.write_sizes();
        metadata.write_head_sizes();
        metadata.set_layer_list("attention.head_count", config.numbers("num_query_heads")?)?;
        metadata.set_layer_list("attention.head_count_kv", config.numbers("num_kv_heads")?)?;
        let divisor = config.count("ffn_dim_divisor")?;
        let times = config.floats("ffn_multipliers")?;
        let inner = times
            .iter()
            .map(|times| divisible(times * metadata.params.hidden_size as f32, divisor));
        metadata.set_layer_list("feed_forward_length", inner.collect::<Vec<u32>>())?;
        metadata.set("attention.layer_norm_rms_epsilon", 1e-6f32);
        metadata.set("rope.dimension_count", metadata.head_dim());
        metadata.set_opt_float("rope.freq_base", &["rope_freq_constant"])
    },
    ..DEFAULT
};

fn openelm_shape(config: &Config) -> Result<HyperParameters, ConvertError> {
    let max = |key: &str| config.numbers(key).map(|list| list.into_iter().max().unwrap_or(0));
    let dims = Dimensions {
        layers: config.count("num_transformer_layers")?,
        heads: max("num_query_heads")?,
        kv_heads: max("num_kv_heads")?,
        head_dim: config.count("head_dim")?,
        experts: 0,
        groups: 0,
    };
    let (width, context) = (config.count("model_dim")?, config.count("max_context_length")?);
    Ok(HyperParameters {
        dims,
        hidden_size: width,
        context_length: context,
        feed_forward_length: 0,
    })
}

/// The nearest multiple of `divisor` that is at least 90 % of `size`.
fn divisible(size: f32, divisor: u32) -> u32 {
    let near = ((size + divisor as f32 / 2.0) as u32 / divisor * divisor).max(divisor);
    if (near as f32) < 0.9 * size { near.saturating_add(divisor) } else { near }
}

/// In the folder, query heads of one KV head are `kv_heads` apart; in GGUF files they are
/// adjacent.
const PLAMO_LAYER: [TensorRule; 3] = [
    rename("norm", "attn_norm"),
    reorder("self_attn.q_proj", RowSplit::InterleavedQueryHeads, "attn_q"),
    reorder("self_attn.o_proj", RowSplit::InterleavedQueryHeads, "attn_output")
        .with_layout(SourceLayout::ColumnWise),
];

/// The layer prefix has two parts.
pub(super) const PLAMO: Family = Family {
    architecture: "plamo",
    classes: &["PlamoForCausalLM"],
    layer_prefix: "layers.layers.",
    layer_rules: &[&PLAMO_LAYER, &ATTENTION, &GATED_FFN],
    hyper_parameters: |config| {
        // The folder does not have the context length, and the configuration's number of KV heads
        // means something else.
        let context = config.opt_count("max_position_embeddings")?.unwrap_or(4096);
        let mut params =
            HyperParameters::with_sizes(config, context, config.count("intermediate_size")?)?;
        let shared = config.opt_count("n_shared_head")?.unwrap_or(8);
        params.dims.kv_heads = (params.dims.heads / shared).max(1);
        Ok(params)
    },
    ..DEFAULT
};
