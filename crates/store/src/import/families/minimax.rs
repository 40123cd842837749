//! MiniMax: the first ones have layers of linear attention that forgets, the second ones attend everywhere.

use super::super::config::Json;
use super::super::keys::Keys;
use super::super::rules::{Rule, one};
use super::names::{ATTENTION, BEFORE, EXPERTS, MIXTRAL};
use super::{Alike, Family, PLAIN};
use crate::error::StoreError;

/// Queries, keys and values stay in one, head by head.
const LIGHTNING: [Rule; 3] = [
    one("self_attn.norm", "attn_norm_2"),
    one("self_attn.output_gate", "attn_gate"),
    one("self_attn.out_proj", "attn_output"),
];

pub(super) const MINIMAX_01: Family = Family {
    architecture: "minimax-01",
    classes: &["MiniMaxText01ForCausalLM", "MiniMaxM1ForCausalLM", "MiniMaxForCausalLM"],
    layer: &[&LIGHTNING, &ATTENTION, &BEFORE, &MIXTRAL, &EXPERTS],
    alike: Alike::Kinds,
    keys: |keys| {
        keys.usual()?;
        let scale = residual_scale(keys.config)?;
        keys.set("residual_scale", scale);
        recurrent_layers(keys)?;
        turning(keys)
    },
    ..PLAIN
};

/// What a part of a layer adds to is multiplied by, which must be the same for all parts, and what it adds by nothing.
fn residual_scale(config: &Json) -> Result<f32, StoreError> {
    const KEPT: [[&str; 2]; 3] = [
        ["layernorm_full_attention_alpha", "full_attn_alpha_factor"],
        ["layernorm_linear_attention_alpha", "linear_attn_alpha_factor"],
        ["layernorm_mlp_alpha", "mlp_alpha_factor"],
    ];
    const ADDED: [[&str; 2]; 3] = [
        ["layernorm_full_attention_beta", "full_attn_beta_factor"],
        ["layernorm_linear_attention_beta", "linear_attn_beta_factor"],
        ["layernorm_mlp_beta", "mlp_beta_factor"],
    ];
    if config.flag("postnorm") == Some(false) {
        return Err(config.wrong("postnorm", "true, as a GGUF file of it is").into());
    }
    let scale = config.first_float(&KEPT[0])?.unwrap_or(1.0);
    for (names, want, reason) in KEPT
        .iter()
        .map(|names| (names, scale, "the number that is said of the other parts of a layer"))
        .chain(ADDED.iter().map(|names| (names, 1.0, "1, as a GGUF file of it has no place for others")))
    {
        if config.first_float(names)?.unwrap_or(1.0) != want {
            let said = names.iter().find(|name| config.value(name).is_some()).unwrap_or(&names[0]);
            return Err(config.wrong(said, reason).into());
        }
    }
    Ok(scale)
}

/// Which layers do not attend, where that is said: by 0 in one list, or by words in another.
fn recurrent_layers(keys: &mut Keys<'_>) -> Result<(), StoreError> {
    let (config, by_number) = (keys.config, "attn_type_list");
    let (there, recurrent): (_, Vec<bool>) = if config.value(by_number).is_some() {
        (by_number, config.numbers(by_number)?.into_iter().map(|kind| kind == 0).collect())
    } else if let Some(kinds) = config.strings("layer_types") {
        ("layer_types", kinds.iter().map(|kind| kind == "linear_attention").collect())
    } else {
        return Ok(());
    };
    if recurrent.len() != keys.shape.sizes.layers as usize {
        return Err(config.wrong(there, "a list with an entry for each layer").into());
    }
    keys.set("attention.recurrent_layers", recurrent);
    Ok(())
}

/// How much of a head turns.
fn turning(keys: &mut Keys<'_>) -> Result<(), StoreError> {
    let turning = match keys.config.opt_count("rotary_dim")? {
        Some(turning) => turning,
        None => keys.turning(1.0)?,
    };
    keys.set("rope.dimension_count", turning);
    Ok(())
}

const CHOICE: [Rule; 1] = [one("block_sparse_moe.e_score_correction_bias", "exp_probs_b.bias")];

pub(super) const MINIMAX_M2: Family = Family {
    architecture: "minimax-m2",
    classes: &["MiniMaxM2ForCausalLM"],
    layer: &[&ATTENTION, &BEFORE, &CHOICE, &MIXTRAL, &EXPERTS],
    alike: Alike::Kinds,
    keys: |keys| {
        keys.usual()?;
        keys.count("expert_feed_forward_length", &["intermediate_size"])?;
        turning(keys)
    },
    ..PLAIN
};
