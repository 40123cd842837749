//! Qwen3-Next and Qwen 3.5: layers with a gated delta rule; every fourth layer has gated attention.

use super::common_rules::{ATTENTION, EXPERTS, GATED_FFN};
use super::default_family::DEFAULT;
use super::qwen::SHARED_EXPERT;
use crate::error::ConvertError;
use crate::family::{Family, LayerUniformity, TensorMapper};
use crate::metadata::{HyperParameters, MetadataWriter};
use crate::output::{OutputTensor, RowMapping, RowOrder, TensorContent, ValueTransform};
use crate::rules::{SourceLayout, TensorRule, rename};
use crate::source::{Config, SourceTensor, Weights};

pub(super) const DELTA_RULE: [TensorRule; 6] = [
    rename("linear_attn.conv1d", "ssm_conv1d").with_layout(SourceLayout::Squeezed),
    rename("linear_attn.A_log", "ssm_a."),
    rename("linear_attn.dt_bias", "ssm_dt.bias"),
    rename("linear_attn.in_proj_ba", "ssm_ba"),
    rename("linear_attn.norm", "ssm_norm"),
    rename("post_attention_layernorm", "post_attention_norm"),
];

/// The output projection. Qwen 3.5's columns are reordered by heads.
const OUT_PROJECTION: [TensorRule; 1] = [rename("linear_attn.out_proj", "ssm_out")];
pub(super) const TILED_OUT_PROJECTION: [TensorRule; 1] =
    [rename("linear_attn.out_proj", "ssm_out").with_layout(SourceLayout::ColumnWise)];

/// Heads of the delta rule.
struct DeltaHeads {
    key_heads: u64,
    value_heads: u64,
    /// Size of a key head and of a value head.
    key_dim: u64,
    value_dim: u64,
}

impl DeltaHeads {
    fn read(config: &Config) -> Result<Self, ConvertError> {
        let count = |key: &str| config.count(key).map(u64::from);
        let heads = Self {
            key_heads: count("linear_num_key_heads")?,
            value_heads: count("linear_num_value_heads")?,
            key_dim: count("linear_key_head_dim")?,
            value_dim: count("linear_value_head_dim")?,
        };
        match heads.value_heads.is_multiple_of(heads.key_heads) {
            true => Ok(heads),
            false => {
                Err(config.invalid("linear_num_value_heads", "a multiple of linear_num_key_heads"))
            }
        }
    }

    /// Reorders value heads: in the folder, those of a key head are adjacent; in GGUF files, the
    /// first of each key head come first.
    fn tiling(&self, block: u64) -> RowMapping {
        let values_per_key_head = self.value_heads / self.key_heads;
        if values_per_key_head == 1 {
            RowMapping::Identity
        } else {
            RowMapping::GroupHeads {
                groups: values_per_key_head,
                heads_per_group: self.key_heads,
                head_dim: block,
            }
        }
    }
}

pub(super) const QWEN3NEXT: Family = Family {
    architecture: "qwen3next",
    classes: &["Qwen3NextForCausalLM"],
    layer_rules: &[&ATTENTION, &GATED_FFN, &DELTA_RULE, &OUT_PROJECTION, &EXPERTS, &SHARED_EXPERT],
    layer_uniformity: LayerUniformity::SeveralKinds,
    value_transform: transform,
    custom_tensors: Some(split_qkvz),
    write_metadata: |metadata| {
        metadata.write_common()?;
        write_experts(metadata)?;
        write_linear(metadata)
    },
    ..DEFAULT
};

pub(super) const QWEN35: Family = Family {
    architecture: "qwen35",
    classes: &["Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration"],
    layer_rules: &[&ATTENTION, &GATED_FFN, &DELTA_RULE, &TILED_OUT_PROJECTION],
    custom_tensors: Some(tile_heads),
    write_metadata: |metadata| {
        metadata.write_common()?;
        write_linear(metadata)?;
        write_sections(metadata)
    },
    ..QWEN3NEXT
};

pub(super) const QWEN35MOE: Family = Family {
    architecture: "qwen35moe",
    classes: &["Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration"],
    layer_rules: &[
        &ATTENTION,
        &GATED_FFN,
        &DELTA_RULE,
        &TILED_OUT_PROJECTION,
        &EXPERTS,
        &SHARED_EXPERT,
    ],
    custom_tensors: Some(tile_heads),
    // All layers have experts.
    hyper_parameters: |config| {
        HyperParameters::with_sizes(config, config.count("max_position_embeddings")?, 0)
    },
    write_metadata: qwen35moe,
    ..QWEN3NEXT
};

pub(super) fn qwen35moe(metadata: &mut MetadataWriter<'_>) -> Result<(), ConvertError> {
    if metadata.config.opt_count("head_dim")?.is_some() {
        metadata.write_head_sizes();
    }
    metadata.write_sizes_without_feed_forward();
    metadata.set_opt_count("feed_forward_length", &["intermediate_size"])?;
    metadata.write_experts()?;
    metadata.write_norm_epsilons()?;
    metadata.write_rope()?;
    write_experts(metadata)?;
    write_linear(metadata)?;
    write_sections(metadata)
}

/// Norms are stored as the difference from one, except that of the delta rule.
pub(super) fn transform(_: &Config, name: &str) -> Result<ValueTransform, ConvertError> {
    Ok(match name {
        "ssm_a" => ValueTransform::NegativeExp,
        "ssm_norm.weight" => ValueTransform::None,
        name if name.ends_with("norm.weight") => ValueTransform::Add(1.0),
        _ => ValueTransform::None,
    })
}

fn write_experts(metadata: &mut MetadataWriter<'_>) -> Result<(), ConvertError> {
    metadata.set_count("expert_feed_forward_length", &["moe_intermediate_size"])?;
    metadata.set_count("expert_shared_feed_forward_length", &["shared_expert_intermediate_size"])
}

fn write_linear(metadata: &mut MetadataWriter<'_>) -> Result<(), ConvertError> {
    let heads = DeltaHeads::read(metadata.config)?;
    metadata.set_count("ssm.conv_kernel", &["linear_conv_kernel_dim"])?;
    metadata.set_count("ssm.state_size", &["linear_key_head_dim"])?;
    metadata.set_count("ssm.group_count", &["linear_num_key_heads"])?;
    metadata.set_count("ssm.time_step_rank", &["linear_num_value_heads"])?;
    metadata.set(
        "ssm.inner_size",
        u32::try_from(heads.value_heads * heads.value_dim).unwrap_or(u32::MAX),
    );
    if let Some(kinds) = metadata.config.strings("layer_types") {
        if kinds.len() != metadata.params.dims.layers as usize {
            return Err(metadata
                .config
                .invalid("layer_types", "a list with a string for each layer"));
        }
        let recurrent: Vec<bool> = kinds.iter().map(|kind| kind == "linear_attention").collect();
        metadata.set("attention.recurrent_layers", recurrent);
    }
    metadata.set(
        "full_attention_interval",
        metadata.config.opt_count("full_attention_interval")?.unwrap_or(4),
    );
    let rope_dim = metadata.rope_dim(0.25)?;
    metadata.set("rope.dimension_count", rope_dim);
    Ok(())
}

/// Writes the default sections of rotary embedding by three kinds of positions.
fn write_sections(metadata: &mut MetadataWriter<'_>) -> Result<(), ConvertError> {
    if metadata.config.rope_parameters().value("mrope_section").is_none() {
        metadata.set("rope.dimension_sections", vec![11, 11, 10, 0]);
    }
    Ok(())
}

/// Takes a tensor of a layer and checks its number of rows.
fn take_checked<'a>(
    mapper: &TensorMapper<'_>,
    weights: &mut Weights<'a>,
    layer: u32,
    part: &str,
    rows: u64,
) -> Result<Option<SourceTensor<'a>>, ConvertError> {
    let name = format!("layers.{layer}.linear_attn.{part}");
    let Some(tensor) = weights.take(&name) else { return Ok(None) };
    let mut want = tensor.entry.shape.clone();
    if let Some(first) = want.first_mut() {
        *first = rows;
    }
    match want == tensor.entry.shape && !want.is_empty() {
        true => Ok(Some(tensor)),
        false => {
            let name = format!("{}{name}", mapper.family.root_prefix);
            Err(ConvertError::TensorShape { name, found: tensor.entry.shape.clone(), want })
        }
    }
}

/// Ignores multi-token prediction.
fn discard_mtp(weights: &mut Weights<'_>) {
    weights.discard(|name| name.starts_with("mtp."));
}

/// Splits Qwen3-Next's matrix, which has for each key head its query, its key, its values and its
/// gates.
fn split_qkvz<'a>(
    mapper: &TensorMapper<'_>,
    weights: &mut Weights<'a>,
    outputs: &mut Vec<OutputTensor<'a>>,
) -> Result<(), ConvertError> {
    discard_mtp(weights);
    let heads = DeltaHeads::read(mapper.config)?;
    let values = heads.value_heads / heads.key_heads * heads.value_dim;
    let period = 2 * heads.key_dim + 2 * values;
    for layer in 0..mapper.dims.layers {
        let part = "in_proj_qkvz.weight";
        let Some(tensor) = take_checked(mapper, weights, layer, part, heads.key_heads * period)?
        else {
            continue;
        };
        let window = |offset, count| {
            (heads.key_heads * count, RowOrder::of(RowMapping::Window { period, offset, count }))
        };
        let parts = [
            window(0, heads.key_dim),
            window(heads.key_dim, heads.key_dim),
            window(2 * heads.key_dim, values),
        ];
        let gates = [window(2 * heads.key_dim + values, values)];
        outputs.push(mapper.gather_rows(layer, "attn_qkv.weight", &tensor, &parts)?);
        outputs.push(mapper.gather_rows(layer, "attn_gate.weight", &tensor, &gates)?);
    }
    Ok(())
}

/// Reorders the value heads of Qwen 3.5's tensors.
pub(super) fn tile_heads<'a>(
    mapper: &TensorMapper<'_>,
    weights: &mut Weights<'a>,
    outputs: &mut Vec<OutputTensor<'a>>,
) -> Result<(), ConvertError> {
    discard_mtp(weights);
    let heads = DeltaHeads::read(mapper.config)?;
    let (qk_rows, values) =
        (2 * heads.key_heads * heads.key_dim, heads.value_heads * heads.value_dim);
    let width = u64::from(mapper.config.count("hidden_size")?);
    let tiled = |block| RowOrder::of(heads.tiling(block));
    // Queries and keys keep their place before the values.
    let qkv = [
        (qk_rows, RowOrder::SAME),
        (
            values,
            RowOrder::of(RowMapping::Offset { rows: qk_rows })
                .preceded_by(heads.tiling(heads.value_dim)),
        ),
    ];
    let (by_value, by_head) = ([(values, tiled(heads.value_dim))], [(heads.value_heads, tiled(1))]);
    for layer in 0..mapper.dims.layers {
        for (part, target, parts) in [
            ("in_proj_qkv.weight", "attn_qkv.weight", &qkv[..]),
            ("conv1d.weight", "ssm_conv1d.weight", &qkv),
            ("in_proj_z.weight", "attn_gate.weight", &by_value),
            ("in_proj_a.weight", "ssm_alpha.weight", &by_head),
            ("in_proj_b.weight", "ssm_beta.weight", &by_head),
            ("A_log", "ssm_a", &by_head),
            ("dt_bias", "ssm_dt.bias", &by_head),
        ] {
            let rows = parts.iter().map(|(rows, _)| rows).sum();
            let Some(tensor) = take_checked(mapper, weights, layer, part, rows)? else { continue };
            outputs.push(mapper.gather_rows(layer, target, &tensor, parts)?);
        }
        let Some(tensor) = take_checked(mapper, weights, layer, "out_proj.weight", width)? else {
            continue;
        };
        if tensor.entry.shape[1..] != [values] {
            let (name, found) = (tensor.entry.name.clone(), tensor.entry.shape.clone());
            return Err(ConvertError::TensorShape { name, found, want: vec![width, values] });
        }
        let shape = tensor.entry.shape.clone();
        let content = TensorContent::PermutedColumns { tensor, order: tiled(heads.value_dim) };
        let name = mapper.full_name(Some(layer), "ssm_out.weight");
        outputs.push(OutputTensor { name, ty: mapper.matrix_type, shape, content });
    }
    Ok(())
}
