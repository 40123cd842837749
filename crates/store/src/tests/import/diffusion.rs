//! Diffusion models.

use serde_json::json;

use super::families::case;
use super::kit::Stored;
use super::model::Model;
use super::there::{like_llama, with_experts};

/// The tensors of a zoo file as the folder of its family has them.
pub(super) fn tensors(mut model: Model<'_>) -> Vec<Stored> {
    match &*model.arch.clone() {
        "dream" => like_llama(model, &[]),
        "llada" => {
            model.unpair();
            let whole = [
                ("token_embd", "model.transformer.wte"),
                ("output_norm", "model.transformer.ln_f"),
                ("output", "model.transformer.ff_out"),
            ];
            let names = [
                ("attn_norm", "attn_norm"),
                ("attn_q", "q_proj"),
                ("attn_k", "k_proj"),
                ("attn_v", "v_proj"),
                ("attn_output", "attn_out"),
                ("ffn_norm", "ff_norm"),
                ("ffn_gate", "ff_proj"),
                ("ffn_up", "up_proj"),
                ("ffn_down", "ff_out"),
            ];
            model.named(&whole, "model.transformer.blocks.", &names)
        }
        _ => with_experts(model, &[]),
    }
}

#[test]
fn diffusion_models_become_what_llama_cpp_makes_of_them() {
    let mask = json!({"mask_token_id": 318});
    case("dream", "DreamModel").fixed(mask.clone()).check();
    case("rnd1", "RND1").fixed(mask).but(&["rope.dimension_count"]).check();
    // Its configuration has names of its own.
    let sizes = [
        ("d_model", "embedding_length"),
        ("n_layers", "block_count"),
        ("n_heads", "attention.head_count"),
        ("n_kv_heads", "attention.head_count_kv"),
        ("mlp_hidden_size", "feed_forward_length"),
        ("max_sequence_length", "context_length"),
    ];
    let not = json!({"mask_token_id": 318, "hidden_size": null, "num_hidden_layers": null, "num_attention_heads": null,
        "num_key_value_heads": null, "intermediate_size": null, "max_position_embeddings": null});
    case("llada", "LLaDAModelLM").keys(&sizes).fixed(not).check();
    case("llada-moe", "LLaDAMoEModelLM")
        .keys(&[("dense_intermediate_size", "feed_forward_length")])
        .fixed(json!({"mask_token_id": 318, "intermediate_size": null}))
        .check();
}
