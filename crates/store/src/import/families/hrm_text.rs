//! HRM-Text: two stacks of layers, the lower first, which are gone through several times.

use super::super::keys::Shape;
use super::super::pieces::Cutter;
use super::super::plan::Output;
use super::super::rules::{Cut, Rule, one, pieces};
use super::super::weights::Weights;
use super::names::{ATTENTION, GATED};
use super::{Family, PLAIN};
use crate::error::StoreError;

const WHOLE: [Rule; 3] =
    [one("embed_tokens", "token_embd"), one("lm_head", "output"), one("z_L_init", "hrm.z_l_init.")];
const LAYER: [Rule; 4] = [
    pieces("attn.gqkv_proj", Cut::GatedQkv, &["attn_gate", "attn_q", "attn_k", "attn_v"]),
    one("attn.o_proj", "attn_output"),
    pieces("mlp.gate_up_proj", Cut::Behind, &["ffn_gate", "ffn_up"]),
    one("self_attn.gate_proj", "attn_gate"),
];
/// Layers of a stack: of old the number of layers said it, which now counts them as often as they are passed.
const DEPTH: [&str; 2] = ["num_layers_per_stack", "num_hidden_layers"];

pub(super) const HRM_TEXT: Family = Family {
    architecture: "hrm_text",
    classes: &["HrmTextForCausalLM"],
    whole: &[&WHOLE],
    layer: &[&LAYER, &ATTENTION, &GATED],
    odd: Some(stacked),
    shape: |config| {
        let mut shape = Shape::of_layers(config, config.one_of(&DEPTH)?.saturating_mul(2))?;
        shape.inner = config.count("intermediate_size")?;
        Ok(shape)
    },
    keys: |keys| {
        let config = keys.config;
        let (depth, high, low) =
            (config.one_of(&DEPTH)?, config.count("H_cycles")?, config.count("L_cycles")?);
        let passed = depth.checked_mul(high).and_then(|n| n.checked_mul(low.checked_add(1)?));
        let passed = passed
            .ok_or_else(|| config.wrong("H_cycles", "a number of passes that can be counted"))?;
        keys.usual()?;
        keys.turns_whole();
        keys.set("block_count", passed);
        let usual = 1.0 / config.float("initializer_range", 0.02)?;
        keys.set("embedding_scale", config.float("embedding_scale", usual)?);
        keys.set("hrm.layers_per_stack", depth);
        keys.set("hrm.h_cycles", high);
        keys.set("hrm.l_cycles", low);
        keys.set("hrm.prefix_lm", config.flag("prefix_lm").unwrap_or(false));
        Ok(())
    },
    ..PLAIN
};

/// Numbers the layers of both stacks together.
fn stacked<'a>(
    cutter: &Cutter<'_>,
    weights: &mut Weights<'a>,
    _: &mut Vec<Output<'a>>,
) -> Result<(), StoreError> {
    let depth = cutter.sizes.layers / 2;
    let numbered = |name: &str| {
        let (stack, rest) = name.split_once("_module.layers.")?;
        let (layer, part) = rest.split_once('.')?;
        let layer = layer.parse::<u32>().ok().filter(|&layer| layer < depth)?;
        let first = match stack {
            "L" => 0,
            "H" => depth,
            _ => return None,
        };
        Some(format!("{}{}.{part}", cutter.family.layers, first + layer))
    };
    Ok(weights.rename(|name| numbered(name).unwrap_or_else(|| name.to_owned()))?)
}
