//! RWKV 7, and models of other families with its time mixing in place of attention. Folders come in
//! two spellings: low-rank matrices with dimensions inputs, outputs; or modules of two linear
//! layers.

use super::common_rules::{GATED_FFN, GLOBAL as QWEN_GLOBAL, PRE_FFN_NORM};
use super::default_family::DEFAULT;
use super::rwkv::{UNLIMITED_CONTEXT, fuse_lerp_tensors, push_fused_lerp};
use crate::error::ConvertError;
use crate::family::{Family, TensorMapper, VocabularyKind};
use crate::metadata::{HyperParameters, MetadataWriter};
use crate::output::{OutputTensor, RowOrder, TensorRows};
use crate::rules::{Dimensions, SourceLayout, TensorRule, rename};
use crate::source::{Config, Weights};

const GLOBAL: [TensorRule; 6] = [
    rename("embeddings", "token_embd"),
    rename("pre_ln", "token_embd_norm"),
    rename("ln_out", "output_norm"),
    rename("norm", "output_norm"),
    rename("head", "output"),
    rename("lm_head", "output"),
];
/// Low-rank projections of decay (w), in-context learning rate (a), value residual (v) and gate
/// (g).
const LOW_RANK: [TensorRule; 22] = [
    rename("attention.w0", "time_mix_w0").with_layout(SourceLayout::Flattened),
    rename("attention.w1", "time_mix_w1").with_layout(SourceLayout::Transposed),
    rename("attention.w2", "time_mix_w2").with_layout(SourceLayout::Transposed),
    rename("attention.w_lora.lora.0", "time_mix_w1"),
    rename("attention.w_lora.lora.2.bias", "time_mix_w0.weight"),
    rename("attention.w_lora.lora.2", "time_mix_w2"),
    rename("attention.a0", "time_mix_a0").with_layout(SourceLayout::Flattened),
    rename("attention.a1", "time_mix_a1").with_layout(SourceLayout::Transposed),
    rename("attention.a2", "time_mix_a2").with_layout(SourceLayout::Transposed),
    rename("attention.a_lora.lora.0", "time_mix_a1"),
    rename("attention.a_lora.lora.2.bias", "time_mix_a0.weight"),
    rename("attention.a_lora.lora.2", "time_mix_a2"),
    rename("attention.v0", "time_mix_v0").with_layout(SourceLayout::Flattened),
    rename("attention.v1", "time_mix_v1").with_layout(SourceLayout::Transposed),
    rename("attention.v2", "time_mix_v2").with_layout(SourceLayout::Transposed),
    rename("attention.v_lora.lora.0", "time_mix_v1"),
    rename("attention.v_lora.lora.2.bias", "time_mix_v0.weight"),
    rename("attention.v_lora.lora.2", "time_mix_v2"),
    rename("attention.g1", "time_mix_g1").with_layout(SourceLayout::Transposed),
    rename("attention.g2", "time_mix_g2").with_layout(SourceLayout::Transposed),
    rename("attention.g_lora.lora.0", "time_mix_g1"),
    rename("attention.g_lora.lora.2", "time_mix_g2"),
];
const TIME_MIX: [TensorRule; 12] = [
    rename("attention.k_k", "time_mix_k_k").with_layout(SourceLayout::Flattened),
    rename("attention.k_a", "time_mix_k_a").with_layout(SourceLayout::Flattened),
    rename("attention.r_k", "time_mix_r_k").with_layout(SourceLayout::Flattened),
    rename("attention.receptance", "time_mix_receptance"),
    rename("attention.r_proj", "time_mix_receptance"),
    rename("attention.key", "time_mix_key"),
    rename("attention.k_proj", "time_mix_key"),
    rename("attention.value", "time_mix_value"),
    rename("attention.v_proj", "time_mix_value"),
    rename("attention.ln_x", "time_mix_ln"),
    rename("attention.output", "time_mix_output"),
    rename("attention.o_proj", "time_mix_output"),
];
const CHANNEL_MIX: [TensorRule; 6] = [
    rename("ln1", "attn_norm"),
    rename("attention_norm", "attn_norm"),
    rename("ln2", "attn_norm_2"),
    rename("feed_forward.x_k", "channel_mix_lerp_k").with_layout(SourceLayout::Flattened),
    rename("feed_forward.key", "channel_mix_key"),
    rename("feed_forward.value", "channel_mix_value"),
];
const NORM: [TensorRule; 1] = [rename("input_layernorm", "attn_norm")];

/// Interpolation weights in the order of the file; the gate may be missing.
const LERP_LETTERS: [&str; 6] = ["r", "w", "k", "v", "a", "g"];

pub(super) const RWKV7: Family = Family {
    architecture: "rwkv7",
    classes: &["Rwkv7ForCausalLM", "RWKV7ForCausalLM"],
    global_rules: &[&GLOBAL],
    layer_rules: &[&LOW_RANK, &TIME_MIX, &CHANNEL_MIX],
    vocabulary: VocabularyKind::Rwkv,
    custom_tensors: Some(map_time_mix),
    hyper_parameters: |config| {
        let (layers, width) = (config.count("num_hidden_layers")?, config.count("hidden_size")?);
        let inner = config.opt_count("intermediate_size")?.unwrap_or(width.saturating_mul(4));
        Ok(HyperParameters {
            dims: Dimensions { layers, ..Dimensions::default() },
            hidden_size: width,
            context_length: UNLIMITED_CONTEXT,
            feed_forward_length: inner,
        })
    },
    write_metadata: |metadata| {
        metadata.write_rwkv_sizes();
        let eps = metadata.config.first_float(&["layer_norm_epsilon", "norm_eps"])?;
        metadata.set("attention.layer_norm_epsilon", eps.unwrap_or(1e-5));
        metadata.set_count("wkv.head_size", &["head_size", "head_dim"])?;
        metadata.set("feed_forward_length", metadata.params.feed_forward_length);
        let width = f64::from(metadata.params.hidden_size);
        let rank = |power: f64, times: f64| {
            ((width.powf(power) * times / 32.0).round_ties_even() as u32).max(1).saturating_mul(32)
        };
        write_lora_ranks(metadata, [rank(0.5, 1.8), rank(0.5, 1.8), rank(0.5, 1.3), rank(0.8, 0.6)])
    },
    ..DEFAULT
};

/// Qwen 2 with RWKV 7's time mixing.
pub(super) const ARWKV7: Family = Family {
    architecture: "arwkv7",
    classes: &["RwkvHybridForCausalLM"],
    global_rules: &[&QWEN_GLOBAL],
    layer_rules: &[&NORM, &PRE_FFN_NORM, &LOW_RANK, &TIME_MIX, &GATED_FFN],
    custom_tensors: Some(map_time_mix),
    write_metadata: |metadata| {
        let config = metadata.config;
        if let Some(version) =
            config.opt_count_or_zero("wkv_version")?.filter(|&version| version != 7)
        {
            return Err(
                config.invalid_value("wkv_version", format!("{version}, but only 7 is supported"))
            );
        }
        metadata.write_rwkv_sizes();
        metadata.write_norm_epsilons()?;
        metadata.set_count("wkv.head_size", &["head_size"])?;
        metadata.set("feed_forward_length", metadata.params.feed_forward_length);
        metadata.set("token_shift_count", 1u32);
        let gate = if lerp_letters(config).len() == LERP_LETTERS.len() { 128 } else { 0 };
        write_lora_ranks(metadata, [64, 64, 32, gate])
    },
    ..DEFAULT
};

/// Writes the ranks of the low-rank projections.
fn write_lora_ranks(
    metadata: &mut MetadataWriter<'_>,
    default: [u32; 4],
) -> Result<(), ConvertError> {
    let names = [
        ("decay", ["lora_rank_decay", "decay_low_rank_dim"]),
        ("iclr", ["lora_rank_iclr", "a_low_rank_dim"]),
        ("value_residual_mix", ["lora_rank_value_residual_mix", "v_low_rank_dim"]),
        ("gate", ["lora_rank_gate", "gate_low_rank_dim"]),
    ];
    for ((target, source), default) in names.into_iter().zip(default) {
        let rank = metadata.config.first_count_or_zero(&source)?.unwrap_or(default);
        metadata.set(&format!("attention.{target}_lora_rank"), rank);
    }
    Ok(())
}

fn lerp_letters(config: &Config) -> &'static [&'static str] {
    let count = if config.flag("wkv_has_gate") == Some(false) { 5 } else { 6 };
    &LERP_LETTERS[..count]
}

/// Brings the names of all folders to one spelling.
fn canonical_name(name: &str) -> String {
    let name = name
        .replace("blocks.", "layers.")
        .replace("time_mixer.", "")
        .replace("ffn", "feed_forward");
    let name = name.replace("self_attn", "attention").replace("attn", "attention");
    let name = name.replace("feed_forward_norm", "ln2").replace("g_norm", "ln_x");
    // Only the first layer has this norm, which precedes all layers.
    let before =
        ["layers.0.pre_norm", "layers.0.pre_ln"].iter().find_map(|first| name.strip_prefix(first));
    before.map(|end| format!("pre_ln{end}")).unwrap_or(name)
}

/// The name of a value residual's tensor that corresponds to a tensor of the learning rate.
fn value_residual_name(target: &str) -> Option<&'static str> {
    Some(match target {
        "time_mix_a0" | "time_mix_a0.weight" => "time_mix_v0.weight",
        "time_mix_a1" => "time_mix_v1",
        "time_mix_a2" => "time_mix_v2",
        _ => return None,
    })
}

/// Fuses the interpolation weights. The first layer has no value residual, because there are no
/// values of an earlier layer. GGUF files have the learning rate's tensors in its place.
fn map_time_mix<'a>(
    mapper: &TensorMapper<'_>,
    weights: &mut Weights<'a>,
    outputs: &mut Vec<OutputTensor<'a>>,
) -> Result<(), ConvertError> {
    weights.rename(canonical_name)?;
    let first = "layers.0.attention.";
    let of_values =
        |part: &str| ["v0", "v1", "v2", "v_lora."].iter().any(|start| part.starts_with(start));
    weights.discard(|name| name.strip_prefix(first).is_some_and(of_values));
    let rates: Vec<String> =
        weights.names().filter(|name| name.starts_with(first)).cloned().collect();
    for name in rates {
        let Some((rule, layer, end)) = mapper.family.rule_for(&name) else { continue };
        if let (Some(target), Some(tensor)) =
            (value_residual_name(rule.target), weights.get(&name).cloned())
        {
            mapper.map_tensor(&TensorRule { target, ..*rule }, layer, end, &tensor, outputs)?;
        }
    }
    let lerp_letters = lerp_letters(mapper.config);
    for layer in 0..mapper.dims.layers {
        // Some folders already have them in one tensor.
        let Some(tensor) = weights.take(&format!("layers.{layer}.attention.x_x")) else {
            fuse_lerp_tensors(mapper, weights, layer, "attention.x_", lerp_letters, outputs)?;
            continue;
        };
        let (all, count) = (tensor.entry.elements(), lerp_letters.len() as u64);
        if !all.is_multiple_of(count) {
            let (name, found) = (tensor.entry.name.clone(), tensor.entry.shape.clone());
            return Err(ConvertError::TensorShape {
                name,
                found,
                want: vec![count, 1, 1, all / count],
            });
        }
        let parts = vec![TensorRows { tensor, rows: count, order: RowOrder::SAME }];
        push_fused_lerp(mapper, layer, parts, all / count, outputs);
    }
    Ok(())
}
