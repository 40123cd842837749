//! BitNet b1.58, whose matrices have three values, of which training keeps what they were rounded from; or they come packed, and
//! are what they are.

use super::super::config::Json;
use super::super::keys::Keys;
use super::super::pieces::Cutter;
use super::super::plan::{Change, Content, Output, check_width};
use super::super::rules::{Rule, one};
use super::super::weights::{Tensor, Weights};
use super::names::{ATTENTION, BEFORE, GATED};
use super::{Family, PLAIN};
use crate::error::StoreError;

/// Norms before each way back to the stream.
const WITHIN: [Rule; 4] = [
    one("self_attn.inner_attn_ln", "attn_sub_norm"),
    one("self_attn.attn_sub_norm", "attn_sub_norm"),
    one("mlp.ffn_layernorm", "ffn_sub_norm"),
    one("mlp.ffn_sub_norm", "ffn_sub_norm"),
];
/// The matrices of three values.
const MATRICES: [&str; 7] = [
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.down_proj",
];
/// Their values are never smaller.
const SIZE_MIN: f32 = 1e-5;
/// How many values are read at a time.
const PIECE_VALUES: u64 = 1 << 20;

pub(super) const BITNET: Family = Family {
    architecture: "bitnet",
    classes: &["BitnetForCausalLM", "BitNetForCausalLM"],
    fits: |config| activation(config) != SQUARED,
    layer: &[&ATTENTION, &GATED, &BEFORE, &WITHIN],
    // What is added to weights would be rounded with them.
    takes_adapters: false,
    odd: Some(thirds),
    keys: |keys| {
        // Files have no word for the activation of the network.
        let activation = activation(keys.config);
        if activation != "silu" {
            let found =
                format!("{}: in a GGUF file of bitnet it is silu", crate::name::shown(activation));
            return Err(keys.config.wrong_value("hidden_act", found).into());
        }
        bitnet(keys)
    },
    ..PLAIN
};

/// The 2B model and its kin, whose gates are squared where they are positive.
pub(super) const BITNET_158: Family = Family {
    architecture: "bitnet-b1.58",
    fits: |config| activation(config) == SQUARED,
    keys: bitnet,
    ..BITNET
};

const SQUARED: &str = "relu2";

/// The function of the network's gate.
fn activation(config: &Json) -> &str {
    let is_late = config.architecture().is_ok_and(|class| class == "BitNetForCausalLM");
    config.text("hidden_act").unwrap_or(if is_late { SQUARED } else { "silu" })
}

fn bitnet(keys: &mut Keys<'_>) -> Result<(), StoreError> {
    keys.usual()?;
    keys.set("rope.scaling.type", "linear");
    keys.set("rope.scaling.factor", 1.0f32);
    Ok(())
}

fn thirds<'a>(
    cutter: &Cutter<'_>,
    weights: &mut Weights<'a>,
    outputs: &mut Vec<Output<'a>>,
) -> Result<(), StoreError> {
    let rules = || cutter.family.layer.iter().copied().flatten();
    let matrices = || rules().filter(|rule| MATRICES.contains(&rule.there));
    for (layer, rule) in
        (0..cutter.sizes.layers).flat_map(|layer| matrices().map(move |rule| (layer, rule)))
    {
        let name = format!("{}{layer}.{}.weight", cutter.family.layers, rule.there);
        // Packed ones have been rounded.
        let Some(tensor) = weights.take_if(&name, |tensor| !tensor.is_packed()) else { continue };
        cutter.cut(rule, Some(layer), ".weight", &tensor, outputs)?;
        if let Some(Output { content: Content::Rows { change, .. }, .. }) = outputs.last_mut() {
            *change = Change::Thirds(size(&tensor)?);
        }
    }
    Ok(())
}

/// The mean of the sizes of all values.
fn size(tensor: &Tensor<'_>) -> Result<f32, StoreError> {
    let columns = tensor.columns().max(1);
    check_width(&tensor.entry.name, &tensor.entry.shape, columns)?;
    let rows = tensor.entry.elements() / columns;
    let step = (PIECE_VALUES / columns).max(1);
    let (mut from, mut sum) = (0, 0.0);
    while from < rows {
        let count = step.min(rows - from);
        sum += tensor.rows(from, count, columns)?.iter().map(|x| f64::from(x.abs())).sum::<f64>();
        from += count;
    }
    Ok(((sum / (rows * columns).max(1) as f64) as f32).max(SIZE_MIN))
}
