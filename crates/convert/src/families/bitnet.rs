//! BitNet b1.58 with ternary matrices. Folders have either the unrounded training weights, which
//! are rounded here, or packed ternary weights.

use puna_gguf::escape_for_message;

use super::common_rules::{ATTENTION, GATED_FFN, PRE_FFN_NORM};
use super::default_family::DEFAULT;
use crate::error::ConvertError;
use crate::family::{Family, TensorMapper};
use crate::metadata::MetadataWriter;
use crate::output::{OutputTensor, TensorContent, ValueTransform, check_width};
use crate::rules::{TensorRule, rename};
use crate::source::{Config, SourceTensor, Weights};

/// Norms before the output projections.
const SUB_NORMS: [TensorRule; 4] = [
    rename("self_attn.inner_attn_ln", "attn_sub_norm"),
    rename("self_attn.attn_sub_norm", "attn_sub_norm"),
    rename("mlp.ffn_layernorm", "ffn_sub_norm"),
    rename("mlp.ffn_sub_norm", "ffn_sub_norm"),
];
/// The ternary matrices.
const TERNARY_MATRICES: [&str; 7] = [
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.down_proj",
];
/// Lower limit of the scale.
const MIN_MAGNITUDE: f32 = 1e-5;
/// Values that are read at a time.
const CHUNK_VALUES: u64 = 1 << 20;

pub(super) const BITNET: Family = Family {
    architecture: "bitnet",
    classes: &["BitnetForCausalLM", "BitNetForCausalLM"],
    matches: |config| activation(config) != SQUARED_RELU,
    layer_rules: &[&ATTENTION, &GATED_FFN, &PRE_FFN_NORM, &SUB_NORMS],
    // An adapter's update would be rounded with the weights.
    supports_adapters: false,
    custom_tensors: Some(round_to_ternary),
    write_metadata: |metadata| {
        // GGUF files have no key for the activation.
        let activation = activation(metadata.config);
        if activation != "silu" {
            let found = format!(
                "{}, but GGUF files of bitnet support only silu",
                escape_for_message(activation)
            );
            return Err(metadata.config.invalid_value("hidden_act", found));
        }
        bitnet(metadata)
    },
    ..DEFAULT
};

/// The 2B model and relatives, with a squared ReLU gate.
pub(super) const BITNET_158: Family = Family {
    architecture: "bitnet-b1.58",
    matches: |config| activation(config) == SQUARED_RELU,
    write_metadata: bitnet,
    ..BITNET
};

const SQUARED_RELU: &str = "relu2";

/// Activation of the gate.
fn activation(config: &Config) -> &str {
    let is_late = config.architecture().is_ok_and(|class| class == "BitNetForCausalLM");
    config.text("hidden_act").unwrap_or(if is_late { SQUARED_RELU } else { "silu" })
}

fn bitnet(metadata: &mut MetadataWriter<'_>) -> Result<(), ConvertError> {
    metadata.write_common()?;
    metadata.set("rope.scaling.type", "linear");
    metadata.set("rope.scaling.factor", 1.0f32);
    Ok(())
}

fn round_to_ternary<'a>(
    mapper: &TensorMapper<'_>,
    weights: &mut Weights<'a>,
    outputs: &mut Vec<OutputTensor<'a>>,
) -> Result<(), ConvertError> {
    let rules = || mapper.family.layer_rules.iter().copied().flatten();
    let matrices = || rules().filter(|rule| TERNARY_MATRICES.contains(&rule.source));
    for (layer, rule) in
        (0..mapper.dims.layers).flat_map(|layer| matrices().map(move |rule| (layer, rule)))
    {
        let name = format!("{}{layer}.{}.weight", mapper.family.layer_prefix, rule.source);
        // Packed matrices are already rounded.
        let Some(tensor) = weights.take_if(&name, |tensor| !tensor.is_packed_ternary()) else {
            continue;
        };
        mapper.map_tensor(rule, Some(layer), ".weight", &tensor, outputs)?;
        if let Some(OutputTensor { content: TensorContent::Rows { transform, .. }, .. }) =
            outputs.last_mut()
        {
            *transform = ValueTransform::RoundToTernary(mean_magnitude(&tensor)?);
        }
    }
    Ok(())
}

/// Mean magnitude of all values, which is the scale of rounding.
fn mean_magnitude(tensor: &SourceTensor<'_>) -> Result<f32, ConvertError> {
    let columns = tensor.columns().max(1);
    check_width(&tensor.entry.name, &tensor.entry.shape, columns)?;
    let rows = tensor.entry.elements() / columns;
    let step = (CHUNK_VALUES / columns).max(1);
    let (mut from, mut sum) = (0, 0.0);
    while from < rows {
        let count = step.min(rows - from);
        sum += tensor.rows(from, count, columns)?.iter().map(|x| f64::from(x.abs())).sum::<f64>();
        from += count;
    }
    Ok(((sum / (rows * columns).max(1) as f64) as f32).max(MIN_MAGNITUDE))
}
