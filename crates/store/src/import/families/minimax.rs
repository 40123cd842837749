//! MiniMax: the first ones have layers of linear attention that forgets, the second ones attend everywhere, the third one attends to
//! blocks that it chooses.

use super::super::config::Json;
use super::super::keys::{Keys, Shape};
use super::super::rules::{Rule, aside, one};
use super::names::{ATTENTION, BEFORE, EXPERTS, GATED, MIXTRAL, WHOLE};
use super::{Alike, Family, PLAIN, from_one};
use crate::error::StoreError;

/// Queries, keys and values stay in one, head by head.
const LIGHTNING: [Rule; 7] = [
    one("self_attn.norm", "attn_norm_2"),
    one("self_attn.output_gate", "attn_gate"),
    one("self_attn.out_proj", "attn_output"),
    // What transformers stores of what follows from the numbers of heads and layers.
    aside("self_attn.slope_rate"),
    aside("self_attn.query_decay"),
    aside("self_attn.key_decay"),
    aside("self_attn.diagonal_decay"),
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
        .chain(
            ADDED
                .iter()
                .map(|names| (names, 1.0, "1, as a GGUF file of it has no place for others")),
        )
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

/// What a picture becomes on its way into the text.
const PICTURES: [Rule; 2] = [aside("patch_merge_mlp.linear_1"), aside("patch_merge_mlp.linear_2")];

/// The indexer, under its published names and under those of transformers.
const INDEXER: [Rule; 8] = [
    one("self_attn.index_q_proj", "indexer.q_proj.weight"),
    one("self_attn.index_k_proj", "indexer.k_proj.weight"),
    one("self_attn.index_q_norm", "indexer.q_norm.weight"),
    one("self_attn.index_k_norm", "indexer.k_norm.weight"),
    one("self_attn.indexer.q_proj", "indexer.q_proj.weight"),
    one("self_attn.indexer.k_proj", "indexer.k_proj.weight"),
    one("self_attn.indexer.q_norm", "indexer.q_norm.weight"),
    one("self_attn.indexer.k_norm", "indexer.k_norm.weight"),
];

const BESIDE: [Rule; 3] = [
    one("block_sparse_moe.shared_experts.gate_proj", "ffn_gate_shexp"),
    one("block_sparse_moe.shared_experts.up_proj", "ffn_up_shexp"),
    one("block_sparse_moe.shared_experts.down_proj", "ffn_down_shexp"),
];

/// The text model.
pub(super) const MINIMAX_M3: Family = Family {
    architecture: "minimax-m3",
    classes: &["MiniMaxM3SparseForCausalLM", "MiniMaxM3SparseForConditionalGeneration"],
    whole: &[&WHOLE, &PICTURES],
    layer: &[&ATTENTION, &INDEXER, &GATED, &BEFORE, &CHOICE, &MIXTRAL, &BESIDE],
    alike: Alike::Kinds,
    change: from_one,
    shape: |config| {
        let inner = config.one_of(&["dense_intermediate_size", "intermediate_size"])?;
        Shape::of(config, config.count("max_position_embeddings")?, inner)
    },
    keys: minimax_m3,
    ..PLAIN
};

fn minimax_m3(keys: &mut Keys<'_>) -> Result<(), StoreError> {
    keys.sigmoid();
    keys.usual()?;
    keys.routed()?;
    keys.count("expert_feed_forward_length", &["intermediate_size"])?;
    keys.set("expert_weights_norm", true);
    turning(keys)?;
    let sparse = keys.config.section("sparse_attention_config");
    for (key, there) in [
        ("head_count", ["sparse_num_index_heads", "index_n_heads"]),
        ("key_length", ["sparse_index_dim", "index_head_dim"]),
        ("top_k", ["sparse_topk_blocks", "index_topk_blocks"]),
        ("block_size", ["sparse_block_size", "index_block_size"]),
    ] {
        keys.set(&format!("attention.indexer.{key}"), sparse.one_of(&there)?);
    }
    let near = sparse.first_number(&["sparse_local_block", "index_local_blocks"])?.unwrap_or(1);
    keys.set("attention.indexer.local_blocks", near);
    let dense = dense_layers(keys.config, keys.shape.sizes.layers as usize)?;
    keys.set("leading_dense_block_count", u32::try_from(dense).unwrap_or(0));
    Ok(())
}

/// How many layers come before those with experts, which are also those that choose blocks.
fn dense_layers(config: &Json, layers: usize) -> Result<usize, StoreError> {
    const KEY: &str = "moe_layer_freq";
    let sparse: Vec<bool> = match config.strings("mlp_layer_types") {
        Some(kinds) => kinds.iter().map(|kind| kind == "sparse").collect(),
        None => config.numbers(KEY)?.into_iter().map(|kind| kind > 0).collect(),
    };
    let dense = sparse.iter().take_while(|&&sparse| !sparse).count();
    if sparse.len() != layers || sparse[dense..].contains(&false) {
        return Err(config
            .wrong(KEY, "0 for each of the first layers and 1 for all others")
            .into());
    }
    Ok(dense)
}
