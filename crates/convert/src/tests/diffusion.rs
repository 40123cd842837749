//! Diffusion language models.

use serde_json::json;

use super::families::case;
use super::fixtures::StoredTensor;
use super::folder_tensors::{llama_names, llama_names_with_experts};
use super::zoo_model::ZooModel;

/// The tensors of a zoo file under the names of a folder.
pub(super) fn tensors(mut model: ZooModel<'_>) -> Vec<StoredTensor> {
    match &*model.arch.clone() {
        "dream" => llama_names(model, &[]),
        "llada" => {
            model.deinterleave_rope_pairs();
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
            model.into_folder_tensors(&whole, "model.transformer.blocks.", &names)
        }
        _ => llama_names_with_experts(model, &[]),
    }
}

#[test]
fn diffusion_models_convert_to_the_files_of_llama_cpp() {
    let mask = json!({"mask_token_id": 318});
    case("dream", "DreamModel").config(mask.clone()).check();
    case("rnd1", "RND1").config(mask).ignoring(&["rope.dimension_count"]).check();
    // LLaDA's configuration has its own keys.
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
    case("llada", "LLaDAModelLM").keys(&sizes).config(not).check();
    case("llada-moe", "LLaDAMoEModelLM")
        .keys(&[("dense_intermediate_size", "feed_forward_length")])
        .config(json!({"mask_token_id": 318, "intermediate_size": null}))
        .check();
}
