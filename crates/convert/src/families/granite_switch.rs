//! Granite Switch: Granite with built-in LoRA adapters, each of which is activated by a token.

use super::common_rules::{GLOBAL, PRE_FFN_NORM};
use super::default_family::DEFAULT;
use super::granite::granite;
use crate::error::ConvertError;
use crate::family::{Family, TensorMapper};
use crate::metadata::{HyperParameters, MetadataWriter};
use crate::output::{OutputTensor, RowMapping, RowOrder, TensorContent, TensorRows};
use crate::rules::{RowSplit, TensorRule, ignore, rename, split};
use crate::source::{SourceTensor, Weights};

/// Matrices of the base model.
const LAYER: [TensorRule; 4] = [
    rename("input_layernorm", "attn_norm"),
    rename("self_attn.o_proj.base_layer", "attn_output"),
    split("shared_mlp.input_linear.base_layer", RowSplit::EqualParts, &["ffn_gate", "ffn_up"]),
    rename("shared_mlp.output_linear.base_layer", "ffn_down"),
];

/// Lists that also follow from the configuration.
const IGNORED_LISTS: [TensorRule; 2] =
    [ignore("adapter_token_ids"), ignore("control_to_substitute_lut")];

/// Modules with adapters: source module, suffix behind `lora_A` and `lora_B`, target.
const ADAPTED_MODULES: [(&str, &str, &str); 7] = [
    ("self_attn.qkv_proj", "_slices.0", "attn_q"),
    ("self_attn.qkv_proj", "_slices.1", "attn_k"),
    ("self_attn.qkv_proj", "_slices.2", "attn_v"),
    ("self_attn.o_proj", "", "attn_output"),
    ("shared_mlp.input_linear", "_slices.0", "ffn_gate"),
    ("shared_mlp.input_linear", "_slices.1", "ffn_up"),
    ("shared_mlp.output_linear", "", "ffn_down"),
];

pub(super) const GRANITE_SWITCH: Family = Family {
    architecture: "graniteswitch",
    classes: &["GraniteSwitchForCausalLM"],
    global_rules: &[&GLOBAL, &IGNORED_LISTS],
    layer_rules: &[&LAYER, &PRE_FFN_NORM],
    // The output is the token embedding.
    ties_output: true,
    interleaves_rope_pairs: true,
    supports_adapters: false,
    custom_tensors: Some(map_adapters),
    hyper_parameters: |config| {
        let mut params = HyperParameters::from_config(config)?;
        // One layer only determines the adapter of a token.
        params.dims.layers = params.dims.layers.saturating_sub(1);
        params.dims.head_dim =
            config.opt_count("projection_head_dim")?.unwrap_or(params.dims.head_dim);
        params.feed_forward_length = config.count("shared_intermediate_size")?;
        Ok(params)
    },
    write_metadata: write_switch_metadata,
    ..DEFAULT
};

fn write_switch_metadata(metadata: &mut MetadataWriter<'_>) -> Result<(), ConvertError> {
    granite(metadata)?;
    let config = metadata.config;
    metadata.write_head_sizes();
    let count = config.count("num_adapters")?;
    metadata.set("adapters.count", count);
    metadata.set_count("adapters.lora_rank", &["max_lora_rank"])?;
    for (key, source) in [
        ("adapters.token_ids_activate", "adapter_token_ids"),
        ("adapters.token_ids_substitute", "adapter_substitute_token_ids"),
    ] {
        let ids = config.numbers(source)?;
        if ids.len() != count as usize {
            return Err(config.invalid(source, "a list with a token for each of `num_adapters`"));
        }
        metadata.set(key, ids);
    }
    metadata.set("adapters.router_gain", config.float_or("control_token_gain", 15.0)?);
    Ok(())
}

/// Maps the adapters' matrices, and the matrix of queries, keys and values, which stays in one but
/// with interleaved rotary pairs.
fn map_adapters<'a>(
    mapper: &TensorMapper<'_>,
    weights: &mut Weights<'a>,
    outputs: &mut Vec<OutputTensor<'a>>,
) -> Result<(), ConvertError> {
    weights.discard(|name| name.starts_with("switch."));
    let dims = mapper.dims;
    let head_dim = u64::from(dims.head_dim);
    if head_dim == 0 || !head_dim.is_multiple_of(2) {
        return Err(mapper.config.invalid("head_dim", "an even number"));
    }
    let [queries, keys] = [dims.heads, dims.kv_heads].map(|heads| u64::from(heads) * head_dim);
    for layer in 0..dims.layers {
        let prefix = format!("{}{layer}.", mapper.family.layer_prefix);
        let mut take = |name: String| {
            let tensor = weights.take(&name);
            tensor.ok_or(ConvertError::TensorMissing { name })
        };
        let fused = take(format!("{prefix}self_attn.qkv_proj.base_layer.weight"))?;
        let all = queries + 2 * keys;
        if fused.entry.shape.first() != Some(&all) {
            let (name, found) = (fused.entry.name.clone(), fused.entry.shape.clone());
            return Err(ConvertError::TensorShape { name, found, want: vec![all] });
        }
        let window = |from, take| {
            RowOrder::of(RowMapping::Window { period: all, offset: from, count: take })
        };
        let parts = [
            (queries, window(0, queries).preceded_by(RowMapping::InterleaveHalves { head_dim })),
            (keys, window(queries, keys).preceded_by(RowMapping::InterleaveHalves { head_dim })),
            (keys, window(queries + keys, keys)),
        ];
        outputs.push(mapper.gather_rows(layer, "attn_qkv.weight", &fused, &parts)?);
        for (module, slice, target) in ADAPTED_MODULES {
            for (source, end) in [("lora_A", "lora_a"), ("lora_B", "lora_b")] {
                let is_rotated = end == "lora_b" && matches!(target, "attn_q" | "attn_k");
                let order = if is_rotated {
                    RowOrder::of(RowMapping::InterleaveHalves { head_dim })
                } else {
                    RowOrder::SAME
                };
                let tensor = take(format!("{prefix}{module}.{source}{slice}"))?;
                outputs.push(with_zero_adapter(
                    mapper,
                    (layer, &format!("{target}.{end}")),
                    tensor,
                    order,
                )?);
            }
        }
    }
    Ok(())
}

/// Matrices of all adapters, behind one of zeros, which stands for no adapter.
fn with_zero_adapter<'a>(
    mapper: &TensorMapper<'_>,
    (layer, name): (u32, &str),
    tensor: SourceTensor<'a>,
    order: RowOrder,
) -> Result<OutputTensor<'a>, ConvertError> {
    let (found, adapters) =
        (tensor.entry.shape.clone(), u64::from(mapper.config.count("num_adapters")?));
    let (rows, columns) = match found[..] {
        [count, 1, rows, columns] if count == adapters => (rows, columns),
        _ => {
            let (name, want) = (tensor.entry.name.clone(), vec![adapters, 1, 0, 0]);
            return Err(ConvertError::TensorShape { name, found, want });
        }
    };
    let part = TensorRows { tensor, rows: adapters * rows, order };
    let content = TensorContent::ZerosThenRows { zero_rows: rows, rows: part, columns };
    let shape = vec![adapters + 1, rows, columns];
    Ok(OutputTensor {
        name: mapper.full_name(Some(layer), name),
        ty: mapper.matrix_type,
        shape,
        content,
    })
}
