//! LFM2: short convolutions, and attention in some layers.

use std::collections::BTreeSet;

use super::default_family::DEFAULT;
use crate::error::ConvertError;
use crate::family::{Family, LayerUniformity};
use crate::metadata::{HyperParameters, MetadataWriter};
use crate::output::ValueTransform;
use crate::rules::{SourceLayout, TensorRule, rename};

const GLOBAL: [TensorRule; 4] = [
    rename("embed_tokens", "token_embd"),
    // The norm behind all layers, with the name that GGUF files have for it.
    rename("embedding_norm", "token_embd_norm"),
    rename("norm", "token_embd_norm"),
    rename("lm_head", "output"),
];
const LAYER: [TensorRule; 19] = [
    rename("operator_norm", "attn_norm"),
    rename("ffn_norm", "ffn_norm"),
    rename("conv.conv", "shortconv.conv.weight").with_layout(SourceLayout::Squeezed),
    rename("conv.in_proj", "shortconv.in_proj.weight"),
    rename("conv.out_proj", "shortconv.out_proj.weight"),
    rename("self_attn.q_proj", "attn_q"),
    rename("self_attn.k_proj", "attn_k"),
    rename("self_attn.v_proj", "attn_v"),
    rename("self_attn.out_proj", "attn_output"),
    rename("self_attn.q_layernorm", "attn_q_norm"),
    rename("self_attn.k_layernorm", "attn_k_norm"),
    rename("feed_forward.w1", "ffn_gate"),
    rename("feed_forward.w2", "ffn_down"),
    rename("feed_forward.w3", "ffn_up"),
    rename("feed_forward.gate", "ffn_gate_inp"),
    rename("feed_forward.expert_bias", "exp_probs_b.bias"),
    rename("feed_forward.experts.{}.w1", "ffn_gate_exps"),
    rename("feed_forward.experts.{}.w2", "ffn_down_exps"),
    rename("feed_forward.experts.{}.w3", "ffn_up_exps"),
];

pub(super) const LFM2: Family = Family {
    architecture: "lfm2",
    classes: &["Lfm2ForCausalLM", "LFM2ForCausalLM"],
    global_rules: &[&GLOBAL],
    layer_rules: &[&LAYER],
    layer_uniformity: LayerUniformity::Arbitrary,
    value_transform: |_, _| Ok(ValueTransform::None),
    hyper_parameters: HyperParameters::from_config,
    write_metadata: lfm2,
    ..DEFAULT
};

pub(super) const LFM2MOE: Family = Family {
    architecture: "lfm2moe",
    classes: &["Lfm2MoeForCausalLM"],
    write_metadata: |metadata| {
        lfm2(metadata)?;
        metadata.write_experts()?;
        metadata.set_count("feed_forward_length", &["intermediate_size"])?;
        metadata.set_count("expert_feed_forward_length", &["moe_intermediate_size"])?;
        let dense = metadata.config.opt_count_or_zero("num_dense_layers")?.unwrap_or(0);
        metadata.set("leading_dense_block_count", dense);
        // Sigmoid.
        metadata.set("expert_gating_func", 2u32);
        Ok(())
    },
    ..LFM2
};

fn lfm2(metadata: &mut MetadataWriter<'_>) -> Result<(), ConvertError> {
    let (config, kv_heads) = (metadata.config, metadata.params.dims.kv_heads);
    let layers = metadata.params.dims.layers;
    let kinds = match config.strings("layer_types") {
        Some(kinds) => kinds,
        // Older configurations list the numbers of attention layers.
        None => {
            let attention_layers: BTreeSet<u32> =
                config.numbers("full_attn_idxs")?.into_iter().collect();
            let word =
                |layer| if attention_layers.contains(&layer) { "full_attention" } else { "conv" };
            (0..layers).map(|layer| word(layer).to_owned()).collect()
        }
    };
    if kinds.len() != layers as usize {
        return Err(config.invalid("layer_types", "a list with a string for each layer"));
    }
    metadata.set("block_count", layers);
    metadata.set("context_length", metadata.params.context_length);
    metadata.set("embedding_length", metadata.params.hidden_size);
    metadata.set("feed_forward_length", inner(metadata)?);
    metadata.set("attention.head_count", metadata.params.dims.heads);
    let has_attention =
        |layer: u32| kinds.get(layer as usize).is_some_and(|kind| kind == "full_attention");
    metadata.set_by_layer("attention.head_count_kv", |layer| {
        if has_attention(layer) { kv_heads } else { 0 }
    });
    let eps = config.first_float(&["norm_eps", "block_norm_eps", "rms_norm_eps"])?.unwrap_or(1e-5);
    metadata.set("attention.layer_norm_rms_epsilon", eps);
    metadata.write_vocab_size();
    metadata.set_count("shortconv.l_cache", &["conv_L_cache"])?;
    metadata.write_rope_with_base(Some(1e6))
}

/// Width of the feed-forward network. Some configurations give it before it is reduced to two
/// thirds and rounded up.
fn inner(metadata: &MetadataWriter<'_>) -> Result<u32, ConvertError> {
    let config = metadata.config;
    let inner = config.first_required_count(&["block_ff_dim", "intermediate_size"])?;
    if config.flag("block_auto_adjust_ff_dim") != Some(true) {
        return Ok(inner);
    }
    let two_thirds = u64::from(inner) * 2 / 3;
    let times = f64::from(config.opt_float("block_ffn_dim_multiplier")?.unwrap_or(1.0));
    let multiple = u64::from(config.opt_count("block_multiple_of")?.unwrap_or(256));
    let inner = ((two_thirds as f64 * times) as u64).div_ceil(multiple) * multiple;
    u32::try_from(inner).map_err(|_| config.invalid("block_ff_dim", "a positive number"))
}
