//! Decoders that follow GPT-2: layer norms, biases, ungated feed-forward networks, learned
//! positions or ALiBi.

use super::common_rules::{ATTENTION, GPT2_GLOBAL, GPT2_NORMS, PRE_FFN_NORM};
use super::default_family::DEFAULT;
use crate::error::ConvertError;
use crate::family::Family;
use crate::metadata::{HyperParameters, MetadataWriter};
use crate::output::ValueTransform;
use crate::rules::{RowSplit, SourceLayout, TensorRule, ignore, rename, reorder, split};
use crate::source::Config;

const BASE: Family = Family {
    root_prefix: "transformer.",
    layer_prefix: "h.",
    global_rules: &[&GPT2_GLOBAL],
    hyper_parameters: HyperParameters::with_default_feed_forward,
    ..DEFAULT
};

/// Matrices have dimensions inputs, outputs.
const GPT2_LAYER: [TensorRule; 5] = [
    rename("attn.c_attn", "attn_qkv").with_layout(SourceLayout::Transposed),
    rename("attn.c_proj", "attn_output").with_layout(SourceLayout::Transposed),
    rename("mlp.c_fc", "ffn_up").with_layout(SourceLayout::Transposed),
    rename("mlp.c_proj", "ffn_down").with_layout(SourceLayout::Transposed),
    // The causal mask.
    ignore("attn"),
];

pub(super) const GPT2: Family = Family {
    architecture: "gpt2",
    classes: &["GPT2LMHeadModel"],
    layer_rules: &[&GPT2_NORMS, &GPT2_LAYER],
    ties_output: true,
    ..BASE
};

const STARCODER_LAYER: [TensorRule; 5] = [
    rename("attn.c_attn", "attn_qkv"),
    rename("attn.c_proj", "attn_output"),
    rename("mlp.c_fc", "ffn_up"),
    rename("mlp.c_proj", "ffn_down"),
    ignore("attn"),
];

/// Multi-query attention: one KV head.
pub(super) const STARCODER: Family = Family {
    architecture: "starcoder",
    classes: &["GPTBigCodeForCausalLM"],
    layer_rules: &[&GPT2_NORMS, &STARCODER_LAYER],
    ties_output: true,
    write_metadata: |metadata| {
        if metadata.config.flag("multi_query") == Some(false) {
            let found =
                "false, but GGUF files of this architecture have one key-value head".to_owned();
            return Err(metadata.config.invalid_value("multi_query", found));
        }
        metadata.write_common()?;
        metadata.set("attention.head_count_kv", 1u32);
        Ok(())
    },
    ..BASE
};

const STARCODER2_LAYER: [TensorRule; 2] =
    [rename("mlp.c_fc", "ffn_up"), rename("mlp.c_proj", "ffn_down")];

pub(super) const STARCODER2: Family = Family {
    architecture: "starcoder2",
    classes: &["Starcoder2ForCausalLM"],
    layer_rules: &[&ATTENTION, &PRE_FFN_NORM, &STARCODER2_LAYER],
    ..DEFAULT
};

const CODESHELL_LAYER: [TensorRule; 5] = [
    rename("attn.c_attn", "attn_qkv"),
    rename("attn.c_proj", "attn_output"),
    rename("mlp.c_fc", "ffn_up"),
    rename("mlp.c_proj", "ffn_down"),
    ignore("attn.rotary_emb.inv_freq"),
];

pub(super) const CODESHELL: Family = Family {
    architecture: "codeshell",
    classes: &["CodeShellForCausalLM"],
    layer_rules: &[&GPT2_NORMS, &CODESHELL_LAYER],
    write_metadata: |metadata| {
        metadata.write_sizes();
        metadata.write_norm_epsilons()?;
        metadata.set("rope.freq_base", metadata.config.float_or("rope_theta", 10_000.0)?);
        metadata.set("rope.scaling.type", "linear");
        metadata.set("rope.scaling.factor", 1.0f32);
        Ok(())
    },
    ..BASE
};

/// Names of BLOOM, Falcon and GPT-NeoX.
const NEOX_MLP: [TensorRule; 2] =
    [rename("mlp.dense_h_to_4h", "ffn_up"), rename("mlp.dense_4h_to_h", "ffn_down")];

const NEOX_GLOBAL: [TensorRule; 3] = [
    rename("embed_in", "token_embd"),
    rename("final_layer_norm", "output_norm"),
    rename("embed_out", "output"),
];

const NEOX_LAYER: [TensorRule; 4] = [
    rename("input_layernorm", "attn_norm"),
    reorder("attention.query_key_value", RowSplit::QkvPerKvHead, "attn_qkv"),
    rename("attention.dense", "attn_output"),
    rename("post_attention_layernorm", "ffn_norm"),
];

pub(super) const GPTNEOX: Family = Family {
    architecture: "gptneox",
    classes: &["GPTNeoXForCausalLM"],
    root_prefix: "gpt_neox.",
    global_rules: &[&NEOX_GLOBAL],
    layer_rules: &[&NEOX_LAYER, &NEOX_MLP],
    write_metadata: |metadata| {
        metadata.write_common()?;
        let rope_dim = metadata.rope_dim(0.25)?;
        metadata.set("rope.dimension_count", rope_dim);
        let is_parallel = metadata.config.flag("use_parallel_residual").unwrap_or(true);
        metadata.set("use_parallel_residual", is_parallel);
        Ok(())
    },
    ..DEFAULT
};

const WORDS: [TensorRule; 4] = [
    rename("word_embeddings", "token_embd"),
    rename("word_embeddings_layernorm", "token_embd_norm"),
    rename("ln_f", "output_norm"),
    rename("lm_head", "output"),
];

const SELF_ATTENTION: [TensorRule; 4] = [
    rename("input_layernorm", "attn_norm"),
    reorder("self_attention.query_key_value", RowSplit::QkvPerKvHead, "attn_qkv"),
    rename("self_attention.dense", "attn_output"),
    rename("post_attention_layernorm", "ffn_norm"),
];

/// ALiBi, which does not limit the context.
pub(super) const BLOOM: Family = Family {
    architecture: "bloom",
    classes: &["BloomForCausalLM", "BloomModel"],
    global_rules: &[&WORDS],
    layer_rules: &[&SELF_ATTENTION, &NEOX_MLP],
    ties_output: true,
    hyper_parameters: |config| HyperParameters::with_default_context(config, 2048),
    ..BASE
};

/// The two norms of large Falcon models.
const FALCON_NORMS: [TensorRule; 2] =
    [rename("ln_mlp", "attn_norm"), rename("ln_attn", "attn_norm_2")];

pub(super) const FALCON: Family = Family {
    architecture: "falcon",
    classes: &["FalconForCausalLM", "RWForCausalLM"],
    global_rules: &[&WORDS],
    layer_rules: &[&FALCON_NORMS, &SELF_ATTENTION, &NEOX_MLP],
    hyper_parameters: falcon_shape,
    write_metadata: |metadata| {
        if metadata.config.flag("alibi") == Some(true) {
            let found = "true, but GGUF files of this architecture use rotary positions".to_owned();
            return Err(metadata.config.invalid_value("alibi", found));
        }
        metadata.write_common()?;
        metadata.set("tensor_data_layout", "jploski");
        Ok(())
    },
    ..BASE
};

/// One KV head, unless the configuration has groups of heads.
fn falcon_shape(config: &Config) -> Result<HyperParameters, ConvertError> {
    let mut params = HyperParameters::with_default_context(config, 2048)?;
    let is_new = config.flag("new_decoder_architecture").unwrap_or(false);
    let many = config.first_count(&["num_kv_heads", "n_head_kv"])?;
    params.dims.kv_heads = match (is_new, config.flag("multi_query").unwrap_or(true)) {
        (false, true) => 1,
        (true, _) => many.unwrap_or(params.dims.heads),
        (false, false) => params.dims.heads,
    };
    Ok(params)
}

const MPT_GLOBAL: [TensorRule; 4] = [
    rename("wte", "token_embd"),
    rename("wpe", "position_embd"),
    rename("norm_f", "output_norm"),
    rename("lm_head", "output"),
];

const MPT_LAYER: [TensorRule; 8] = [
    rename("norm_1", "attn_norm"),
    rename("attn.Wqkv", "attn_qkv"),
    rename("attn.out_proj", "attn_output"),
    rename("attn.q_ln", "attn_q_norm"),
    rename("attn.k_ln", "attn_k_norm"),
    rename("norm_2", "ffn_norm"),
    rename("ffn.up_proj", "ffn_up"),
    rename("ffn.down_proj", "ffn_down"),
];

pub(super) const MPT: Family = Family {
    architecture: "mpt",
    classes: &["MPTForCausalLM", "MptForCausalLM"],
    layer_prefix: "blocks.",
    global_rules: &[&MPT_GLOBAL],
    layer_rules: &[&MPT_LAYER],
    ties_output: true,
    hyper_parameters: |config| {
        let mut params = HyperParameters::with_default_feed_forward(config)?;
        let kv_heads = config.section_or_self("attn_config").opt_count("kv_n_heads")?;
        params.dims.kv_heads = kv_heads.unwrap_or(params.dims.heads);
        Ok(params)
    },
    write_metadata: |metadata| {
        metadata.write_sizes();
        metadata.set(
            "attention.layer_norm_epsilon",
            metadata.config.float_or("layer_norm_epsilon", 1e-5)?,
        );
        let attention = metadata.config.section_or_self("attn_config");
        if let Some(limit) = attention.opt_float("clip_qkv")? {
            metadata.set("attention.clamp_kqv", limit);
        }
        let max_bias = attention.float_or("alibi_bias_max", 8.0)?;
        metadata.set(
            "attention.max_alibi_bias",
            if attention.flag("alibi") == Some(true) { max_bias } else { 0.0 },
        );
        Ok(())
    },
    ..BASE
};

const JAIS_LAYER: [TensorRule; 5] = [
    rename("attn.c_attn", "attn_qkv").with_layout(SourceLayout::Transposed),
    rename("attn.c_proj", "attn_output").with_layout(SourceLayout::Transposed),
    rename("mlp.c_fc", "ffn_up").with_layout(SourceLayout::Transposed),
    rename("mlp.c_fc2", "ffn_gate").with_layout(SourceLayout::Transposed),
    rename("mlp.c_proj", "ffn_down").with_layout(SourceLayout::Transposed),
];

/// A gate, ALiBi, and scales that are multiplied into the embedding and the output.
pub(super) const JAIS: Family = Family {
    architecture: "jais",
    classes: &["JAISLMHeadModel"],
    global_rules: &[&GPT2_GLOBAL, &[ignore("relative_pe.slopes")]],
    layer_rules: &[&GPT2_NORMS, &JAIS_LAYER, &[ignore("attn")]],
    value_transform: |config, name| {
        let scale = match name {
            "token_embd.weight" => {
                config.first_float(&["mup_embeddings_scale", "embeddings_scale"])?
            }
            "output.weight" => match config.opt_float("mup_output_alpha")? {
                Some(alpha) => Some(alpha * config.float_or("mup_width_scale", 1.0)?),
                None => config.opt_float("width_scale")?,
            },
            _ => None,
        };
        Ok(scale.filter(|scale| *scale != 1.0).map_or(ValueTransform::None, ValueTransform::Scale))
    },
    write_metadata: |metadata| {
        metadata.write_sizes();
        metadata.write_norm_epsilons()?;
        metadata.set("attention.max_alibi_bias", 8.0f32);
        Ok(())
    },
    ..BASE
};

const REFACT_LAYER: [TensorRule; 5] = [
    rename("attn.q", "attn_q"),
    split("attn.kv", RowSplit::EqualParts, &["attn_k", "attn_v"]),
    rename("attn.c_proj", "attn_output"),
    split("mlp.gate_up_proj", RowSplit::EqualParts, &["ffn_gate", "ffn_up"]),
    rename("mlp.c_proj", "ffn_down"),
];

/// RMS norms, a gate, one KV head, ALiBi.
pub(super) const REFACT: Family = Family {
    architecture: "refact",
    classes: &["GPTRefactForCausalLM"],
    layer_rules: &[&GPT2_NORMS, &REFACT_LAYER],
    write_metadata: refact,
    ..BASE
};

fn refact(metadata: &mut MetadataWriter<'_>) -> Result<(), ConvertError> {
    metadata.write_sizes();
    // Two thirds of four times the hidden size, rounded up to a multiple of 256.
    let inner = metadata.params.hidden_size.saturating_mul(8) / 3;
    metadata.set("feed_forward_length", inner.next_multiple_of(256));
    metadata.set("attention.head_count_kv", 1u32);
    metadata.set(
        "attention.layer_norm_rms_epsilon",
        metadata.config.float_or("layer_norm_epsilon", 1e-5)?,
    );
    Ok(())
}
