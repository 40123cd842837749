//! Families whose layers differ in their sizes.

use super::super::config::Json;
use super::super::keys::{Keys, Shape};
use super::super::rules::{Cut, Form, Rule, Sizes, gathered, one, pieces};
use super::names::{ATTENTION, BEFORE, GATED};
use super::{Alike, Family, PLAIN};
use crate::error::StoreError;

/// A layer that is a matrix in the place of attention.
const LINEAR: [Rule; 1] = [one("self_attn.linear_attn", "attn_output")];

pub(super) const DECI: Family = Family {
    architecture: "deci",
    classes: &["DeciLMForCausalLM"],
    layer: &[&LINEAR, &ATTENTION, &GATED, &BEFORE],
    alike: Alike::Nothing,
    pairs: true,
    shape: |config| match config.value("block_configs") {
        Some(_) => Shape::of(config, config.count("max_position_embeddings")?, 0),
        None => Shape::usual(config),
    },
    keys: deci,
    ..PLAIN
};

fn deci(keys: &mut Keys<'_>) -> Result<(), StoreError> {
    keys.sizes();
    keys.norms()?;
    keys.rope()?;
    keys.turns_whole();
    keys.head_sizes();
    let config = keys.config;
    if config.value("num_key_value_heads_per_layer").is_some() {
        keys.list("attention.head_count_kv", config.numbers("num_key_value_heads_per_layer")?)?;
    }
    let Some(blocks) = config.value("block_configs") else { return Ok(()) };
    let wrong = || config.wrong("block_configs", "a list with an object for each layer");
    let blocks = blocks.as_array().filter(|list| list.len() == keys.shape.sizes.layers as usize);
    let (all, width) = (keys.shape.sizes.heads, keys.shape.width);
    let (mut heads, mut kv_heads, mut inner) = (Vec::new(), Vec::new(), Vec::new());
    for block in blocks.ok_or_else(wrong)? {
        let attention = block.get("attention").ok_or_else(wrong)?;
        let group = attention.get("n_heads_in_group").and_then(serde_json::Value::as_u64);
        let is_linear = attention.get("replace_with_linear").and_then(serde_json::Value::as_bool);
        // A matrix in its place has heads and no keys, and where there is nothing there are none.
        let (queries, keys) = match group.and_then(|n| u32::try_from(n).ok()).filter(|&n| n > 0) {
            Some(group) => (all, all / group),
            None => (if is_linear == Some(true) { all } else { 0 }, 0),
        };
        heads.push(queries);
        kv_heads.push(keys);
        let times = block.get("ffn").and_then(|ffn| ffn.get("ffn_mult")?.as_f64()).unwrap_or(0.0);
        let size = (2.0 * times * f64::from(width) / 3.0) as u32;
        inner.push(size.checked_next_multiple_of(256).unwrap_or(u32::MAX));
    }
    keys.set("attention.head_count", heads);
    keys.set("attention.head_count_kv", kv_heads);
    keys.set("feed_forward_length", inner);
    Ok(())
}

const OPENELM_WHOLE: [Rule; 3] =
    [one("token_embeddings", "token_embd"), one("norm", "output_norm"), one("lm_head", "output")];

const OPENELM_PARTS: [Rule; 8] = [
    one("attn_norm", "attn_norm"),
    one("attn.qkv_proj", "attn_qkv"),
    one("attn.q_norm", "attn_q_norm"),
    one("attn.k_norm", "attn_k_norm"),
    one("attn.out_proj", "attn_output"),
    one("ffn_norm", "ffn_norm"),
    pieces("ffn.proj_1", Cut::Behind, &["ffn_gate", "ffn_up"]),
    one("ffn.proj_2", "ffn_down"),
];

pub(super) const OPENELM: Family = Family {
    architecture: "openelm",
    classes: &["OpenELMForCausalLM"],
    root: "transformer.",
    whole: &[&OPENELM_WHOLE],
    layer: &[&OPENELM_PARTS],
    shape: openelm_shape,
    keys: |keys| {
        let config = keys.config;
        keys.sizes();
        keys.head_sizes();
        keys.list("attention.head_count", config.numbers("num_query_heads")?)?;
        keys.list("attention.head_count_kv", config.numbers("num_kv_heads")?)?;
        let divisor = config.count("ffn_dim_divisor")?;
        let times = config.floats("ffn_multipliers")?;
        let inner = times.iter().map(|times| divisible(times * keys.shape.width as f32, divisor));
        keys.list("feed_forward_length", inner.collect::<Vec<u32>>())?;
        keys.set("attention.layer_norm_rms_epsilon", 1e-6f32);
        keys.set("rope.dimension_count", keys.head());
        keys.float_if("rope.freq_base", &["rope_freq_constant"])
    },
    ..PLAIN
};

fn openelm_shape(config: &Json) -> Result<Shape, StoreError> {
    let most = |key: &str| config.numbers(key).map(|list| list.into_iter().max().unwrap_or(0));
    let sizes = Sizes {
        layers: config.count("num_transformer_layers")?,
        heads: most("num_query_heads")?,
        kv_heads: most("num_kv_heads")?,
        head: config.count("head_dim")?,
        experts: 0,
        groups: 0,
    };
    let (width, context) = (config.count("model_dim")?, config.count("max_context_length")?);
    Ok(Shape { sizes, width, context, inner: 0 })
}

/// The nearest multiple, and not much less than asked for.
fn divisible(size: f32, divisor: u32) -> u32 {
    let near = ((size + divisor as f32 / 2.0) as u32 / divisor * divisor).max(divisor);
    if (near as f32) < 0.9 * size { near.saturating_add(divisor) } else { near }
}

/// A head of keys serves every so many-eth head of queries, where a GGUF file has those of a group side by side.
const PLAMO_PARTS: [Rule; 3] = [
    one("norm", "attn_norm"),
    gathered("self_attn.q_proj", Cut::Crossed, "attn_q"),
    gathered("self_attn.o_proj", Cut::Crossed, "attn_output").form(Form::Across),
];

/// Layers have two names in front of them.
pub(super) const PLAMO: Family = Family {
    architecture: "plamo",
    classes: &["PlamoForCausalLM"],
    layers: "layers.layers.",
    layer: &[&PLAMO_PARTS, &ATTENTION, &GATED],
    shape: |config| {
        // Its context is in none of its files, and the number of heads of keys says something else.
        let context = config.opt_count("max_position_embeddings")?.unwrap_or(4096);
        let mut shape = Shape::of(config, context, config.count("intermediate_size")?)?;
        let shared = config.opt_count("n_shared_head")?.unwrap_or(8);
        shape.sizes.kv_heads = (shape.sizes.heads / shared).max(1);
        Ok(shape)
    },
    ..PLAIN
};
