//! HRM-Text: two stacks of layers, the low-level one first, which the model runs several times.

use super::common_rules::{ATTENTION, GATED_FFN};
use super::default_family::DEFAULT;
use crate::error::ConvertError;
use crate::family::{Family, TensorMapper};
use crate::metadata::HyperParameters;
use crate::output::OutputTensor;
use crate::rules::{RowSplit, TensorRule, rename, split};
use crate::source::Weights;

const GLOBAL: [TensorRule; 3] = [
    rename("embed_tokens", "token_embd"),
    rename("lm_head", "output"),
    rename("z_L_init", "hrm.z_l_init."),
];
const LAYER: [TensorRule; 4] = [
    split("attn.gqkv_proj", RowSplit::GatedQkv, &["attn_gate", "attn_q", "attn_k", "attn_v"]),
    rename("attn.o_proj", "attn_output"),
    split("mlp.gate_up_proj", RowSplit::EqualParts, &["ffn_gate", "ffn_up"]),
    rename("self_attn.gate_proj", "attn_gate"),
];
/// Keys of the number of layers in a stack. Older configurations have it as the number of layers;
/// newer ones count each pass.
const LAYERS_PER_STACK: [&str; 2] = ["num_layers_per_stack", "num_hidden_layers"];

pub(super) const HRM_TEXT: Family = Family {
    architecture: "hrm_text",
    classes: &["HrmTextForCausalLM"],
    global_rules: &[&GLOBAL],
    layer_rules: &[&LAYER, &ATTENTION, &GATED_FFN],
    custom_tensors: Some(number_stacks),
    hyper_parameters: |config| {
        let mut params = HyperParameters::with_layer_count(
            config,
            config.first_required_count(&LAYERS_PER_STACK)?.saturating_mul(2),
        )?;
        params.feed_forward_length = config.count("intermediate_size")?;
        Ok(params)
    },
    write_metadata: |metadata| {
        let config = metadata.config;
        let (depth, high, low) = (
            config.first_required_count(&LAYERS_PER_STACK)?,
            config.count("H_cycles")?,
            config.count("L_cycles")?,
        );
        let passed = depth.checked_mul(high).and_then(|n| n.checked_mul(low.checked_add(1)?));
        let passed = passed.ok_or_else(|| {
            config.invalid("H_cycles", "a number that gives at most 2^32-1 passes")
        })?;
        metadata.write_common()?;
        metadata.set_full_rope_dim();
        metadata.set("block_count", passed);
        let default = 1.0 / config.float_or("initializer_range", 0.02)?;
        metadata.set("embedding_scale", config.float_or("embedding_scale", default)?);
        metadata.set("hrm.layers_per_stack", depth);
        metadata.set("hrm.h_cycles", high);
        metadata.set("hrm.l_cycles", low);
        metadata.set("hrm.prefix_lm", config.flag("prefix_lm").unwrap_or(false));
        Ok(())
    },
    ..DEFAULT
};

/// Numbers the layers of both stacks consecutively.
fn number_stacks<'a>(
    mapper: &TensorMapper<'_>,
    weights: &mut Weights<'a>,
    _: &mut Vec<OutputTensor<'a>>,
) -> Result<(), ConvertError> {
    let depth = mapper.dims.layers / 2;
    let numbered = |name: &str| {
        let (stack, rest) = name.split_once("_module.layers.")?;
        let (layer, part) = rest.split_once('.')?;
        let layer = layer.parse::<u32>().ok().filter(|&layer| layer < depth)?;
        let first = match stack {
            "L" => 0,
            "H" => depth,
            _ => return None,
        };
        Some(format!("{}{}.{part}", mapper.family.layer_prefix, first + layer))
    };
    weights.rename(|name| numbered(name).unwrap_or_else(|| name.to_owned()))
}
