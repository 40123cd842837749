//! LFM2: short convolutions, and attention in some layers.

use std::collections::BTreeSet;

use super::super::keys::{Keys, Shape};
use super::super::plan::Change;
use super::super::rules::{Form, Rule, one};
use super::{Alike, Family, PLAIN};
use crate::error::StoreError;

const WHOLE: [Rule; 4] = [
    one("embed_tokens", "token_embd"),
    // It stands behind all layers; the name is the one that files have.
    one("embedding_norm", "token_embd_norm"),
    one("norm", "token_embd_norm"),
    one("lm_head", "output"),
];
const LAYER: [Rule; 19] = [
    one("operator_norm", "attn_norm"),
    one("ffn_norm", "ffn_norm"),
    one("conv.conv", "shortconv.conv.weight").form(Form::Squeezed),
    one("conv.in_proj", "shortconv.in_proj.weight"),
    one("conv.out_proj", "shortconv.out_proj.weight"),
    one("self_attn.q_proj", "attn_q"),
    one("self_attn.k_proj", "attn_k"),
    one("self_attn.v_proj", "attn_v"),
    one("self_attn.out_proj", "attn_output"),
    one("self_attn.q_layernorm", "attn_q_norm"),
    one("self_attn.k_layernorm", "attn_k_norm"),
    one("feed_forward.w1", "ffn_gate"),
    one("feed_forward.w2", "ffn_down"),
    one("feed_forward.w3", "ffn_up"),
    one("feed_forward.gate", "ffn_gate_inp"),
    one("feed_forward.expert_bias", "exp_probs_b.bias"),
    one("feed_forward.experts.{}.w1", "ffn_gate_exps"),
    one("feed_forward.experts.{}.w2", "ffn_down_exps"),
    one("feed_forward.experts.{}.w3", "ffn_up_exps"),
];

pub(super) const LFM2: Family = Family {
    architecture: "lfm2",
    classes: &["Lfm2ForCausalLM", "LFM2ForCausalLM"],
    whole: &[&WHOLE],
    layer: &[&LAYER],
    alike: Alike::Nothing,
    change: |_, _| Ok(Change::None),
    shape: Shape::usual,
    keys: lfm2,
    ..PLAIN
};

pub(super) const LFM2MOE: Family = Family {
    architecture: "lfm2moe",
    classes: &["Lfm2MoeForCausalLM"],
    keys: |keys| {
        lfm2(keys)?;
        keys.experts()?;
        keys.count("feed_forward_length", &["intermediate_size"])?;
        keys.count("expert_feed_forward_length", &["moe_intermediate_size"])?;
        let dense = keys.config.opt_number("num_dense_layers")?.unwrap_or(0);
        keys.set("leading_dense_block_count", dense);
        // By the logistic function of each.
        keys.set("expert_gating_func", 2u32);
        Ok(())
    },
    ..LFM2
};

fn lfm2(keys: &mut Keys<'_>) -> Result<(), StoreError> {
    let (config, kv_heads) = (keys.config, keys.shape.sizes.kv_heads);
    let layers = keys.shape.sizes.layers;
    let kinds = match config.strings("layer_types") {
        Some(kinds) => kinds,
        // Older configurations number the layers that attend.
        None => {
            let attends: BTreeSet<u32> = config.numbers("full_attn_idxs")?.into_iter().collect();
            let word = |layer| if attends.contains(&layer) { "full_attention" } else { "conv" };
            (0..layers).map(|layer| word(layer).to_owned()).collect()
        }
    };
    if kinds.len() != layers as usize {
        return Err(config.wrong("layer_types", "a list with a word for each layer").into());
    }
    keys.set("block_count", layers);
    keys.set("context_length", keys.shape.context);
    keys.set("embedding_length", keys.shape.width);
    keys.set("feed_forward_length", inner(keys)?);
    keys.set("attention.head_count", keys.shape.sizes.heads);
    let attends =
        |layer: u32| kinds.get(layer as usize).is_some_and(|kind| kind == "full_attention");
    keys.by_layer("attention.head_count_kv", |layer| if attends(layer) { kv_heads } else { 0 });
    let eps = config.first_float(&["norm_eps", "block_norm_eps", "rms_norm_eps"])?.unwrap_or(1e-5);
    keys.set("attention.layer_norm_rms_epsilon", eps);
    keys.set_rows();
    keys.count("shortconv.l_cache", &["conv_L_cache"])?;
    keys.rope_of(Some(1e6))
}

/// The width of the network, which a configuration may give before it is made two thirds and rounded up.
fn inner(keys: &Keys<'_>) -> Result<u32, StoreError> {
    let config = keys.config;
    let inner = config.one_of(&["block_ff_dim", "intermediate_size"])?;
    if config.flag("block_auto_adjust_ff_dim") != Some(true) {
        return Ok(inner);
    }
    let two_thirds = u64::from(inner) * 2 / 3;
    let times = f64::from(config.opt_float("block_ffn_dim_multiplier")?.unwrap_or(1.0));
    let multiple = u64::from(config.opt_count("block_multiple_of")?.unwrap_or(256));
    let inner = ((two_thirds as f64 * times) as u64).div_ceil(multiple) * multiple;
    u32::try_from(inner).map_err(|_| config.wrong("block_ff_dim", "a positive number").into())
}
