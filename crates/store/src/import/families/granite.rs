//! Granite: scales of embeddings, residuals, attention and output.

use super::super::keys::Keys;
use super::super::rules::{Cut, Rule, one, pieces};
use super::names::{ATTENTION, BEFORE, GATED};
use super::{Family, PLAIN};
use crate::error::StoreError;

pub(super) const GRANITE: Family =
    Family { architecture: "granite", classes: &["GraniteForCausalLM"], pairs: true, keys: granite, ..PLAIN };

/// Experts come all in one, gate before up.
const MOE: [Rule; 8] = [
    one("block_sparse_moe.router.layer", "ffn_gate_inp"),
    one("block_sparse_moe.router", "ffn_gate_inp"),
    pieces("block_sparse_moe.input_linear", Cut::Behind, &["ffn_gate_exps", "ffn_up_exps"]),
    pieces("block_sparse_moe.experts.gate_up_proj", Cut::Behind, &["ffn_gate_exps", "ffn_up_exps"]),
    one("block_sparse_moe.output_linear", "ffn_down_exps"),
    one("block_sparse_moe.experts.down_proj", "ffn_down_exps"),
    pieces("shared_mlp.input_linear", Cut::Behind, &["ffn_gate_shexp", "ffn_up_shexp"]),
    one("shared_mlp.output_linear", "ffn_down_shexp"),
];

pub(super) const GRANITEMOE: Family = Family {
    architecture: "granitemoe",
    classes: &["GraniteMoeForCausalLM", "GraniteMoeSharedForCausalLM"],
    layer: &[&ATTENTION, &BEFORE, &MOE],
    pairs: true,
    keys: |keys| {
        granite(keys)?;
        keys.count_if("expert_shared_feed_forward_length", &["shared_intermediate_size"])
    },
    ..PLAIN
};

/// Layers with a window, and layers without positions.
pub(super) const GRANITE_SWA: Family = Family {
    architecture: "granite_swa",
    classes: &["GraniteSWAForCausalLM", "GraniteMoeSWAForCausalLM"],
    layer: &[&ATTENTION, &GATED, &BEFORE, &MOE],
    pairs: true,
    keys: |keys| {
        granite(keys)?;
        keys.number_if("expert_shared_feed_forward_length", &["shared_intermediate_size"])?;
        let config = keys.config;
        keys.set("attention.sliding_window", config.opt_count("sliding_window")?.unwrap_or(128));
        // Unless something is said, the first of four sees all.
        let layers = keys.shape.sizes.layers;
        let slides = match config.value("layer_types") {
            Some(_) => keys.sliding_layers(4)?,
            None => (0..layers).map(|layer| layer % 4 != 0).collect(),
        };
        keys.set("attention.sliding_window_pattern", slides);
        if config.value("no_rope_layers").is_some_and(|list| list.is_array()) {
            let turns = config.numbers("no_rope_layers")?;
            keys.set("attention.rope_pattern", turns.iter().map(|&turns| turns != 0).collect::<Vec<bool>>());
        }
        Ok(())
    },
    ..PLAIN
};

fn granite(keys: &mut Keys<'_>) -> Result<(), StoreError> {
    keys.sizes();
    keys.experts()?;
    keys.norms()?;
    keys.rope()?;
    keys.turns_whole();
    for (there, here) in [
        ("attention_multiplier", "attention.scale"),
        ("embedding_multiplier", "embedding_scale"),
        ("residual_multiplier", "residual_scale"),
        ("logits_scaling", "logit_scale"),
    ] {
        if let Some(scale) = keys.config.opt_float(there)?.filter(|scale| *scale != 0.0) {
            keys.set(here, scale);
        }
    }
    Ok(())
}
