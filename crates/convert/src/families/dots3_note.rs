//! Text model of dots3-note: latent attention with a gate a head; layers with a window have their
//! own sizes. The query and key latents have a scale, which is multiplied into the weights of their
//! norms.

use puna_quant::TensorType;

use super::common_rules::{ATTENTION, EXPERTS, GATED_FFN, PRE_FFN_NORM, SHARED_EXPERT};
use super::latent_attention::{DEEPSEEK2, INDEXER, LATENT, deepseek32, split_kv_b_of_layer};
use crate::error::ConvertError;
use crate::family::{Family, LayerUniformity, TensorMapper};
use crate::metadata::MetadataWriter;
use crate::output::{OutputTensor, RowOrder, TensorContent, TensorRows, ValueTransform};
use crate::rules::{TensorRule, rename};
use crate::source::{Config, Weights};

const DOTS3_LAYER: [TensorRule; 2] = [
    rename("self_attn.g_proj", "attn_gate"),
    rename("self_attn.k_rope_only_layernorm", "attn_k_norm"),
];

pub(super) const DOTS3_NOTE: Family = Family {
    architecture: "dots3note",
    classes: &[
        "Dots3NoteForCausalLM",
        "Dots3NoteForConditionalGeneration",
        "Dots3NoteTextForCausalLM",
    ],
    layer_rules: &[
        &ATTENTION,
        &LATENT,
        &INDEXER,
        &DOTS3_LAYER,
        &GATED_FFN,
        &PRE_FFN_NORM,
        &EXPERTS,
        &SHARED_EXPERT,
    ],
    layer_uniformity: LayerUniformity::Arbitrary,
    extra_special_tokens: &[("eot", "<|endofassistant|>")],
    custom_tensors: Some(map_layers),
    write_metadata: dots3_note,
    ..DEEPSEEK2
};

/// A size of layers with a window: under its own key, or in the section of one of these layers.
fn window_layer_size(config: &Config, is_sliding: &[bool], key: &str) -> Result<u32, ConvertError> {
    if let Some(size) = config.opt_count(&format!("swa_{key}"))? {
        return Ok(size);
    }
    let first = is_sliding.iter().position(|&is_sliding| is_sliding).unwrap_or(0).to_string();
    let listed = config.opt_section("per_layer_config").and_then(|list| list.opt_section(&first));
    match listed {
        Some(layer) => layer.count(key),
        None => config.count(&format!("swa_{key}")),
    }
}

/// Layers with a sliding window.
fn sliding_flags(config: &Config, layers: u32) -> Result<Vec<bool>, ConvertError> {
    let types = config.strings("layer_types").filter(|types| types.len() == layers as usize);
    let types = types
        .ok_or_else(|| config.invalid("layer_types", "a list with a string for each layer"))?;
    Ok(types.iter().map(|kind| kind == "sliding_attention").collect())
}

fn dots3_note(metadata: &mut MetadataWriter<'_>) -> Result<(), ConvertError> {
    deepseek32(metadata)?;
    let (config, all) = (metadata.config, metadata.params.dims.heads);
    let is_sliding = sliding_flags(config, metadata.params.dims.layers)?;
    let size = |key: &str| window_layer_size(config, &is_sliding, key);
    let (heads, rank, qk_nope_dim) =
        (size("num_attention_heads")?, size("kv_lora_rank")?, size("qk_nope_head_dim")?);
    let (v_head_dim, rope_dim) = (size("v_head_dim")?, config.count("qk_rope_head_dim")?);
    if size("q_lora_rank")? != config.count("q_lora_rank")? || size("qk_rope_head_dim")? != rope_dim
    {
        let want = "equal to the key without swa_: GGUF files have one q_lora_rank and one qk_rope_head_dim";
        return Err(config.invalid("swa_q_lora_rank", want));
    }
    metadata.set_layer_list(
        "attention.head_count",
        is_sliding.iter().map(|&is_sliding| if is_sliding { heads } else { all }).collect(),
    )?;
    metadata.set_count("attention.sliding_window", &["sliding_window_size", "sliding_window"])?;
    metadata.set("attention.kv_lora_rank_swa", rank);
    metadata.set("attention.key_length_swa", rank.saturating_add(rope_dim));
    metadata.set("attention.value_length_swa", rank);
    metadata.set("attention.key_length_mla_swa", qk_nope_dim.saturating_add(rope_dim));
    metadata.set("attention.value_length_mla_swa", v_head_dim);
    // The same list says which layers have an indexer and which have a window.
    metadata.set_layer_list(
        "attention.indexer.types",
        is_sliding.iter().map(|is_sliding| !is_sliding).collect(),
    )?;
    metadata.set_layer_list("attention.sliding_window_pattern", is_sliding)
}

/// Maps the matrices of latent attention by the sizes of their layer, and scales the norms of
/// latents.
fn map_layers<'a>(
    mapper: &TensorMapper<'_>,
    weights: &mut Weights<'a>,
    outputs: &mut Vec<OutputTensor<'a>>,
) -> Result<(), ConvertError> {
    let config = mapper.config;
    let is_sliding = sliding_flags(config, mapper.dims.layers)?;
    let size = |has_window: bool, key: &str| match has_window {
        true => window_layer_size(config, &is_sliding, key),
        false => config.count(key),
    };
    for (layer, &target) in (0..).zip(&is_sliding) {
        let dims =
            ["num_attention_heads", "qk_nope_head_dim", "v_head_dim"].map(|key| size(target, key));
        let [heads, qk_nope_dim, v_head_dim] = dims;
        let dims = [heads?, qk_nope_dim?, v_head_dim?].map(u64::from);
        split_kv_b_of_layer(mapper, weights, layer, dims, outputs)?;
        if config.flag("apply_mla_qkv_lora_rescale") == Some(false) {
            continue;
        }
        for (source, target, rank) in [
            ("q_a_layernorm", "attn_q_a_norm", config.count("q_lora_rank")?),
            ("kv_a_layernorm", "attn_kv_a_norm", size(target, "kv_lora_rank")?),
        ] {
            let name = format!("layers.{layer}.self_attn.{source}.weight");
            let Some(tensor) = weights.take(&name) else { continue };
            let times = (config.count("hidden_size")? as f32 / rank as f32).sqrt();
            let (name, columns) = (
                mapper.full_name(Some(layer), &format!("{target}.weight")),
                tensor.entry.elements(),
            );
            let parts = vec![TensorRows { tensor, rows: 1, order: RowOrder::SAME }];
            let content =
                TensorContent::Rows { parts, columns, transform: ValueTransform::Scale(times) };
            outputs.push(OutputTensor { name, ty: TensorType::F32, shape: vec![columns], content });
        }
    }
    Ok(())
}
