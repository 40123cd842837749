//! `config.json` of a folder.

use puna_gguf::Gguf;
use serde_json::{Value, json};

use super::fixtures::values;

/// The configuration that transformers writes for a model.
pub(super) fn folder_config(gguf: &Gguf, class: &str, llama3: Option<Value>) -> Value {
    let meta = gguf.metadata();
    let arch = meta.architecture().unwrap();
    // Parameters that vary by layer have other keys in the folder.
    let number = |key: &str| meta.opt_u32(&format!("{arch}.{key}")).ok().flatten();
    let float = |key: &str| meta.opt_f32(&format!("{arch}.{key}")).unwrap();
    let token = |key: &str| meta.opt_u32(&format!("tokenizer.ggml.{key}_token_id")).unwrap();
    let original = number("rope.scaling.original_context_length");
    let mut rope = json!({
        "rope_type": meta.opt_str(&format!("{arch}.rope.scaling.type")).unwrap().filter(|t| *t != "none").unwrap_or("default"),
        "rope_theta": float("rope.freq_base"),
        "factor": float("rope.scaling.factor"),
        "original_max_position_embeddings": original,
        "beta_fast": float("rope.scaling.yarn_beta_fast"),
        "beta_slow": float("rope.scaling.yarn_beta_slow"),
        "attention_factor": float("rope.scaling.yarn_attn_factor"),
    });
    for (key, tensor) in
        [("long_factor", "rope_factors_long.weight"), ("short_factor", "rope_factors_short.weight")]
    {
        if let Some(tensor) = gguf.tensor(tensor) {
            rope[key] = values(gguf, tensor).into();
            rope["rope_type"] = "longrope".into();
        }
    }
    if let Some(llama3) = llama3 {
        rope.as_object_mut().unwrap().extend(llama3.as_object().unwrap().clone());
    }
    if let Some(local) = float("rope.freq_base_swa") {
        rope = json!({"full_attention": rope, "sliding_attention": {"rope_type": "default", "rope_theta": local}});
    }
    let layer_types = meta
        .bools(&format!("{arch}.attention.sliding_window_pattern"))
        .ok()
        .flatten()
        .map(|is_sliding| {
            let kind = |is_sliding| if is_sliding { "sliding_attention" } else { "full_attention" };
            is_sliding.into_iter().map(kind).collect::<Vec<_>>()
        });
    json!({
        "architectures": [class], "hidden_size": number("embedding_length"), "num_hidden_layers": number("block_count"),
        "intermediate_size": number("feed_forward_length"), "num_attention_heads": number("attention.head_count"),
        "num_key_value_heads": number("attention.head_count_kv"), "head_dim": number("attention.key_length"),
        "max_position_embeddings": number("context_length"), "rms_norm_eps": float("attention.layer_norm_rms_epsilon"),
        "sliding_window": number("attention.sliding_window").filter(|&n| n > 0),
        "attn_logit_softcapping": float("attn_logit_softcapping"),
        "final_logit_softcapping": float("final_logit_softcapping"), "rope_parameters": rope,
        "original_max_position_embeddings": original,
        "num_local_experts": number("expert_count"), "num_experts_per_tok": number("expert_used_count"),
        "moe_intermediate_size": number("expert_feed_forward_length"),
        "shared_expert_intermediate_size": number("expert_shared_feed_forward_length"),
        "layer_types": layer_types, "layer_norm_eps": float("attention.layer_norm_epsilon"),
        "attention_multiplier": float("attention.scale"), "embedding_multiplier": float("embedding_scale"),
        "residual_multiplier": float("residual_scale"), "logits_scaling": float("logit_scale"),
        "logit_scale": float("logit_scale"),
        "partial_rotary_factor": (arch == "phi3").then(|| {
            let head = number("embedding_length").unwrap() / number("attention.head_count").unwrap();
            number("rope.dimension_count").unwrap() as f32 / head as f32
        }),
        "bos_token_id": token("bos"), "eos_token_id": token("eos"), "pad_token_id": token("padding"),
        "unk_token_id": token("unknown"),
    })
}
