//! MiniMax: MiniMax 01 has layers with lightning attention, M2 has full attention, M3 has
//! block-sparse attention with an indexer.

use super::common_rules::{
    ATTENTION, EXPERTS, GATED_FFN, GLOBAL, MIXTRAL, PRE_FFN_NORM, add_one_to_norms,
};
use super::default_family::DEFAULT;
use crate::error::ConvertError;
use crate::family::{Family, LayerUniformity};
use crate::metadata::{HyperParameters, MetadataWriter};
use crate::rules::{TensorRule, ignore, rename};
use crate::source::Config;

/// Lightning attention; queries, keys and values of each head stay in one matrix.
const LIGHTNING: [TensorRule; 7] = [
    rename("self_attn.norm", "attn_norm_2"),
    rename("self_attn.output_gate", "attn_gate"),
    rename("self_attn.out_proj", "attn_output"),
    // Values that follow from the numbers of heads and layers; transformers stores them.
    ignore("self_attn.slope_rate"),
    ignore("self_attn.query_decay"),
    ignore("self_attn.key_decay"),
    ignore("self_attn.diagonal_decay"),
];

pub(super) const MINIMAX_01: Family = Family {
    architecture: "minimax-01",
    classes: &["MiniMaxText01ForCausalLM", "MiniMaxM1ForCausalLM", "MiniMaxForCausalLM"],
    layer_rules: &[&LIGHTNING, &ATTENTION, &PRE_FFN_NORM, &MIXTRAL, &EXPERTS],
    layer_uniformity: LayerUniformity::SeveralKinds,
    write_metadata: |metadata| {
        metadata.write_common()?;
        let scale = residual_scale(metadata.config)?;
        metadata.set("residual_scale", scale);
        write_recurrent_layers(metadata)?;
        write_rope_dim(metadata)
    },
    ..DEFAULT
};

/// Scale of the residual stream. It must be the same for all blocks, and the scale of their outputs
/// must be 1.
fn residual_scale(config: &Config) -> Result<f32, ConvertError> {
    const RESIDUAL_FACTORS: [[&str; 2]; 3] = [
        ["layernorm_full_attention_alpha", "full_attn_alpha_factor"],
        ["layernorm_linear_attention_alpha", "linear_attn_alpha_factor"],
        ["layernorm_mlp_alpha", "mlp_alpha_factor"],
    ];
    const BLOCK_FACTORS: [[&str; 2]; 3] = [
        ["layernorm_full_attention_beta", "full_attn_beta_factor"],
        ["layernorm_linear_attention_beta", "linear_attn_beta_factor"],
        ["layernorm_mlp_beta", "mlp_beta_factor"],
    ];
    if config.flag("postnorm") == Some(false) {
        return Err(config.invalid("postnorm", "true: GGUF files support only post-norm"));
    }
    let scale = config.first_float(&RESIDUAL_FACTORS[0])?.unwrap_or(1.0);
    for (names, want, reason) in RESIDUAL_FACTORS
        .iter()
        .map(|names| (names, scale, "equal to the factors of the other parts of a layer"))
        .chain(
            BLOCK_FACTORS
                .iter()
                .map(|names| (names, 1.0, "1: GGUF files have no key for other values")),
        )
    {
        if config.first_float(names)?.unwrap_or(1.0) != want {
            let config_key =
                names.iter().find(|name| config.value(name).is_some()).unwrap_or(&names[0]);
            return Err(config.invalid(config_key, reason));
        }
    }
    Ok(scale)
}

/// Writes which layers have lightning attention: by 0 in a list of numbers, or by names.
fn write_recurrent_layers(metadata: &mut MetadataWriter<'_>) -> Result<(), ConvertError> {
    let (config, by_number) = (metadata.config, "attn_type_list");
    let (source, recurrent): (_, Vec<bool>) = if config.value(by_number).is_some() {
        (by_number, config.numbers(by_number)?.into_iter().map(|kind| kind == 0).collect())
    } else if let Some(kinds) = config.strings("layer_types") {
        ("layer_types", kinds.iter().map(|kind| kind == "linear_attention").collect())
    } else {
        return Ok(());
    };
    if recurrent.len() != metadata.params.dims.layers as usize {
        return Err(config.invalid(source, "a list with an entry for each layer"));
    }
    metadata.set("attention.recurrent_layers", recurrent);
    Ok(())
}

/// Writes the number of rotated values of a head.
fn write_rope_dim(metadata: &mut MetadataWriter<'_>) -> Result<(), ConvertError> {
    let rope_dim = match metadata.config.opt_count("rotary_dim")? {
        Some(rope_dim) => rope_dim,
        None => metadata.rope_dim(1.0)?,
    };
    metadata.set("rope.dimension_count", rope_dim);
    Ok(())
}

const SELECTION_BIAS: [TensorRule; 1] =
    [rename("block_sparse_moe.e_score_correction_bias", "exp_probs_b.bias")];

pub(super) const MINIMAX_M2: Family = Family {
    architecture: "minimax-m2",
    classes: &["MiniMaxM2ForCausalLM"],
    layer_rules: &[&ATTENTION, &PRE_FFN_NORM, &SELECTION_BIAS, &MIXTRAL, &EXPERTS],
    layer_uniformity: LayerUniformity::SeveralKinds,
    write_metadata: |metadata| {
        metadata.write_common()?;
        metadata.set_count("expert_feed_forward_length", &["intermediate_size"])?;
        write_rope_dim(metadata)
    },
    ..DEFAULT
};

/// Projection of image features.
const IGNORED_IMAGE_TENSORS: [TensorRule; 2] =
    [ignore("patch_merge_mlp.linear_1"), ignore("patch_merge_mlp.linear_2")];

/// The indexer, with published names and with those of transformers.
const INDEXER: [TensorRule; 8] = [
    rename("self_attn.index_q_proj", "indexer.q_proj.weight"),
    rename("self_attn.index_k_proj", "indexer.k_proj.weight"),
    rename("self_attn.index_q_norm", "indexer.q_norm.weight"),
    rename("self_attn.index_k_norm", "indexer.k_norm.weight"),
    rename("self_attn.indexer.q_proj", "indexer.q_proj.weight"),
    rename("self_attn.indexer.k_proj", "indexer.k_proj.weight"),
    rename("self_attn.indexer.q_norm", "indexer.q_norm.weight"),
    rename("self_attn.indexer.k_norm", "indexer.k_norm.weight"),
];

const MINIMAX_SHARED_EXPERT: [TensorRule; 3] = [
    rename("block_sparse_moe.shared_experts.gate_proj", "ffn_gate_shexp"),
    rename("block_sparse_moe.shared_experts.up_proj", "ffn_up_shexp"),
    rename("block_sparse_moe.shared_experts.down_proj", "ffn_down_shexp"),
];

/// The text model.
pub(super) const MINIMAX_M3: Family = Family {
    architecture: "minimax-m3",
    classes: &["MiniMaxM3SparseForCausalLM", "MiniMaxM3SparseForConditionalGeneration"],
    global_rules: &[&GLOBAL, &IGNORED_IMAGE_TENSORS],
    layer_rules: &[
        &ATTENTION,
        &INDEXER,
        &GATED_FFN,
        &PRE_FFN_NORM,
        &SELECTION_BIAS,
        &MIXTRAL,
        &MINIMAX_SHARED_EXPERT,
    ],
    layer_uniformity: LayerUniformity::SeveralKinds,
    value_transform: add_one_to_norms,
    hyper_parameters: |config| {
        let inner =
            config.first_required_count(&["dense_intermediate_size", "intermediate_size"])?;
        HyperParameters::with_sizes(config, config.count("max_position_embeddings")?, inner)
    },
    write_metadata: minimax_m3,
    ..DEFAULT
};

fn minimax_m3(metadata: &mut MetadataWriter<'_>) -> Result<(), ConvertError> {
    metadata.set_sigmoid_gating();
    metadata.write_common()?;
    metadata.write_expert_routing()?;
    metadata.set_count("expert_feed_forward_length", &["intermediate_size"])?;
    metadata.set("expert_weights_norm", true);
    write_rope_dim(metadata)?;
    let sparse = metadata.config.section_or_self("sparse_attention_config");
    for (key, source) in [
        ("head_count", ["sparse_num_index_heads", "index_n_heads"]),
        ("key_length", ["sparse_index_dim", "index_head_dim"]),
        ("top_k", ["sparse_topk_blocks", "index_topk_blocks"]),
        ("block_size", ["sparse_block_size", "index_block_size"]),
    ] {
        metadata.set(&format!("attention.indexer.{key}"), sparse.first_required_count(&source)?);
    }
    let local_blocks =
        sparse.first_count_or_zero(&["sparse_local_block", "index_local_blocks"])?.unwrap_or(1);
    metadata.set("attention.indexer.local_blocks", local_blocks);
    let dense = dense_layers(metadata.config, metadata.params.dims.layers as usize)?;
    metadata.set("leading_dense_block_count", u32::try_from(dense).unwrap_or(0));
    Ok(())
}

/// Number of dense layers before those with experts. Only the latter have an indexer.
fn dense_layers(config: &Config, layers: usize) -> Result<usize, ConvertError> {
    const KEY: &str = "moe_layer_freq";
    let sparse: Vec<bool> = match config.strings("mlp_layer_types") {
        Some(kinds) => kinds.iter().map(|kind| kind == "sparse").collect(),
        None => config.numbers(KEY)?.into_iter().map(|kind| kind > 0).collect(),
    };
    let dense = sparse.iter().take_while(|&&sparse| !sparse).count();
    if sparse.len() != layers || sparse[dense..].contains(&false) {
        return Err(config.invalid(KEY, "0 for each of the first layers and 1 for all others"));
    }
    Ok(dense)
}
