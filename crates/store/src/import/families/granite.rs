//! Granite: scales of embeddings, residuals, attention and output.

use super::super::config::Json;
use super::super::keys::{Keys, Shape};
use super::super::rules::{Cut, Rule, one, pieces};
use super::names::{ATTENTION, BEFORE, GATED};
use super::state::{MAMBA_2, rates};
use super::{Alike, Family, PLAIN};
use crate::error::StoreError;

pub(super) const GRANITE: Family = Family {
    architecture: "granite",
    classes: &["GraniteForCausalLM"],
    pairs: true,
    keys: granite,
    ..PLAIN
};

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
            keys.list(
                "attention.rope_pattern",
                turns.iter().map(|&turns| turns != 0).collect::<Vec<bool>>(),
            )?;
        }
        Ok(())
    },
    ..PLAIN
};

pub(super) fn granite(keys: &mut Keys<'_>) -> Result<(), StoreError> {
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

/// The network of all tokens alone.
const SHARED: [Rule; 2] = [
    pieces("shared_mlp.input_linear", Cut::Behind, &["ffn_gate", "ffn_up"]),
    one("shared_mlp.output_linear", "ffn_down"),
];

/// Granite 4: layers with states, others with attention.
pub(super) const GRANITE_HYBRID: Family = Family {
    architecture: "granitehybrid",
    classes: &["GraniteMoeHybridForCausalLM"],
    layer: &[&ATTENTION, &BEFORE, &MAMBA_2, &MOE],
    alike: Alike::Nothing,
    change: rates,
    fits: |config| has_states(config) && has_experts(config),
    shape: |config| {
        let mut shape = Shape::usual(config)?;
        shape.sizes.groups = config.opt_count("mamba_n_groups")?.unwrap_or(1);
        shape.context = 1 << 20;
        Ok(shape)
    },
    keys: |keys| {
        granite(keys)?;
        let (config, kv_heads) = (keys.config, keys.shape.sizes.kv_heads);
        let kinds = config.strings("layer_types").unwrap_or_default();
        if kinds.len() != keys.shape.sizes.layers as usize {
            return Err(config.wrong("layer_types", "a list with a word for each layer").into());
        }
        let attends =
            |layer: u32| kinds.get(layer as usize).is_some_and(|kind| kind == "attention");
        keys.by_layer("attention.head_count_kv", |layer| if attends(layer) { kv_heads } else { 0 });
        keys.count_if("expert_shared_feed_forward_length", &["shared_intermediate_size"])?;
        let heads = config.count("mamba_n_heads")?;
        let inner = match config.value("mamba_expand").is_some_and(serde_json::Value::is_u64) {
            true => config.count("mamba_expand")?.saturating_mul(keys.shape.width),
            false => heads.saturating_mul(config.opt_count("mamba_d_head")?.unwrap_or(64)),
        };
        keys.second_state(inner, heads)?;
        keys.set("rope.scaling.finetuned", false);
        Ok(())
    },
    ..GRANITE
};

pub(super) const GRANITE_HYBRID_DENSE: Family = Family {
    layer: &[&ATTENTION, &BEFORE, &MAMBA_2, &SHARED],
    fits: |config| has_states(config) && !has_experts(config),
    ..GRANITE_HYBRID
};

/// The same class without states is what Granite was before.
pub(super) const GRANITE_4: Family = Family {
    classes: GRANITE_HYBRID.classes,
    layer: &[&ATTENTION, &BEFORE, &SHARED],
    fits: |config| !has_states(config) && !has_experts(config),
    keys: granite_4,
    ..GRANITE
};

pub(super) const GRANITE_4_MOE: Family = Family {
    architecture: "granitemoe",
    layer: &[&ATTENTION, &BEFORE, &MOE],
    fits: |config| !has_states(config) && has_experts(config),
    ..GRANITE_4
};

fn granite_4(keys: &mut Keys<'_>) -> Result<(), StoreError> {
    granite(keys)?;
    keys.count_if("expert_shared_feed_forward_length", &["shared_intermediate_size"])?;
    keys.set("rope.scaling.finetuned", true);
    Ok(())
}

fn has_states(config: &Json) -> bool {
    let kinds = config.strings("layer_types").unwrap_or_default();
    kinds.iter().any(|kind| kind != "attention")
}

fn has_experts(config: &Json) -> bool {
    config
        .value("num_local_experts")
        .and_then(serde_json::Value::as_u64)
        .is_some_and(|count| count > 0)
}
