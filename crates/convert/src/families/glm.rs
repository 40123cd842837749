//! ChatGLM, GLM 4 and GLM 4.5.

use super::common_rules::{
    ATTENTION, EXPERTS, FUSED_GATE_UP, GATED_FFN, PRE_FFN_NORM, SHARED_EXPERT,
};
use super::default_family::DEFAULT;
use crate::error::ConvertError;
use crate::family::{Family, LayerUniformity};
use crate::metadata::{HyperParameters, MetadataWriter};
use crate::rules::{TensorRule, ignore, rename};

/// Tokens that begin the turn of another role, and the unknown token.
const TURN_TOKENS: [(&str, &str); 3] =
    [("eot", "<|user|>"), ("eom", "<|observation|>"), ("unknown", "<|endoftext|>")];

pub(super) const CHATGLM: Family = Family {
    architecture: "chatglm",
    classes: &["GlmForCausalLM"],
    layer_rules: &[&ATTENTION, &FUSED_GATE_UP, &PRE_FFN_NORM],
    extra_special_tokens: &TURN_TOKENS,
    pretokenizer: |name| if name == "llama-bpe" || name == "dbrx" { "chatglm-bpe" } else { name },
    hyper_parameters: |config| {
        let mut params = HyperParameters::from_config(config)?;
        params.context_length = config.opt_count("seq_length")?.unwrap_or(params.context_length);
        Ok(params)
    },
    write_metadata: |metadata| {
        write_with_half_rope(metadata)?;
        metadata.set_global("tokenizer.ggml.add_bos_token", false);
        Ok(())
    },
    ..DEFAULT
};

const CHATGLM_GLOBAL: [TensorRule; 4] = [
    rename("embedding.word_embeddings", "token_embd"),
    rename("encoder.final_layernorm", "output_norm"),
    rename("output_layer", "output"),
    ignore("rotary_pos_emb.inv_freq"),
];
const FIRST_LAYER: [TensorRule; 6] = [
    rename("input_layernorm", "attn_norm"),
    rename("self_attention.query_key_value", "attn_qkv"),
    rename("self_attention.dense", "attn_output"),
    rename("post_attention_layernorm", "ffn_norm"),
    rename("mlp.dense_h_to_4h", "ffn_up"),
    rename("mlp.dense_4h_to_h", "ffn_down"),
];

/// The same model under the tensor names of its first publication.
pub(super) const CHATGLM_FIRST: Family = Family {
    classes: &["ChatGLMModel", "ChatGLMForConditionalGeneration"],
    root_prefix: "transformer.",
    layer_prefix: "encoder.layers.",
    global_rules: &[&CHATGLM_GLOBAL],
    layer_rules: &[&FIRST_LAYER],
    tiktoken_pretokenizer: Some("chatglm-bpe"),
    hyper_parameters: |config| {
        let mut shape = HyperParameters::with_sizes(
            config,
            config.count("seq_length")?,
            config.count("ffn_hidden_size")?,
        )?;
        shape.dims.head_dim = config.opt_count("kv_channels")?.unwrap_or(shape.dims.head_dim);
        if config.flag("multi_query_attention") == Some(true) {
            shape.dims.kv_heads = config.count("multi_query_group_num")?;
        }
        Ok(shape)
    },
    write_metadata: |metadata| {
        metadata.write_sizes();
        metadata.set(
            "attention.layer_norm_rms_epsilon",
            metadata.config.float_or("layernorm_epsilon", 1e-5)?,
        );
        metadata.set("rope.dimension_count", metadata.head_dim() / 2);
        metadata.set("rope.freq_base", 10_000.0 * metadata.config.float_or("rope_ratio", 1.0)?);
        metadata.set_global("tokenizer.ggml.add_bos_token", false);
        Ok(())
    },
    ..CHATGLM
};

/// Norms behind both blocks.
const NORMS: [TensorRule; 2] = [
    rename("post_self_attn_layernorm", "post_attention_norm"),
    rename("post_mlp_layernorm", "post_ffw_norm"),
];

pub(super) const GLM4: Family = Family {
    architecture: "glm4",
    classes: &["Glm4ForCausalLM"],
    layer_rules: &[&ATTENTION, &FUSED_GATE_UP, &PRE_FFN_NORM, &NORMS],
    pretokenizer: glm4_pretokenizer,
    extra_special_tokens: &TURN_TOKENS,
    write_metadata: write_with_half_rope,
    ..DEFAULT
};

/// The norm before the network has the GGUF name of a norm behind attention.
const MOE_NORM: [TensorRule; 1] = [rename("post_attention_layernorm", "post_attention_norm")];

pub(super) const GLM4MOE: Family = Family {
    architecture: "glm4moe",
    classes: &["Glm4MoeForCausalLM", "SolarOpenForCausalLM"],
    layer_rules: &[&ATTENTION, &GATED_FFN, &MOE_NORM, &EXPERTS, &SHARED_EXPERT],
    layer_uniformity: LayerUniformity::SeveralKinds,
    pretokenizer: glm4_pretokenizer,
    extra_special_tokens: &TURN_TOKENS,
    write_metadata: |metadata| {
        metadata.set_sigmoid_gating();
        write_with_half_rope(metadata)?;
        metadata.write_expert_routing()
    },
    ..DEFAULT
};

/// GLM 4 adds no first token, unlike other vocabularies with the same splitting rules.
fn glm4_pretokenizer(name: &'static str) -> &'static str {
    if name == "llama-bpe" || name == "dbrx" { "glm4" } else { name }
}

/// Writes the common keys; by default half of a head is rotated.
fn write_with_half_rope(metadata: &mut MetadataWriter<'_>) -> Result<(), ConvertError> {
    metadata.write_common()?;
    let rope_dim = metadata.rope_dim(0.5)?;
    metadata.set("rope.dimension_count", rope_dim);
    Ok(())
}
