//! Folders of models with bounded delta attention, made from zoo files, and their conversion.

use serde_json::{Value, json};

use super::families::{Case, GROUPED, ROUTED, WEIGHTED, case};
use super::fixtures::StoredTensor;
use super::latent_attention::{
    DEEPSEEK, INDEXER, KIMI, LATENT, LAYERS, SIZES, STANDARD_GLOBAL, join_kv_b, merged,
};
use super::zoo_model::{TensorValues, ZooModel};

/// Kimi K3: names with a common prefix, norms and projections of attention residuals apart, and a
/// tensor of a layer with the largest number.
pub(super) fn kimi_3(mut model: ZooModel<'_>) -> Vec<StoredTensor> {
    const ROOT: &str = "language_model.model.layers.";
    let halved = |model: &mut ZooModel<'_>, name: String, (shape, numbers): TensorValues| {
        let half = numbers.iter().map(|x| x / 2.0).collect();
        model.put(format!("{name}_norm.weight"), (shape.clone(), vec![2.0; numbers.len()]));
        model.put(format!("{name}_proj.weight"), (vec![1, shape[0]], half));
    };
    for layer in 0..model.layers {
        for (target, source) in
            [("attn_res_score", "self_attention_res"), ("ffn_res_score", "mlp_res")]
        {
            let numbers = model.take(layer, &format!("{target}.weight")).unwrap();
            halved(&mut model, format!("{ROOT}{layer}.{source}"), numbers);
        }
    }
    let numbers = model.take_whole("output_res_score.weight").unwrap();
    halved(&mut model, "language_model.model.output_attn_res".to_owned(), numbers);
    model.put("vision_tower.patch_embed.proj.weight".to_owned(), (vec![1], vec![1.0]));
    model.put(format!("{ROOT}{}.self_attn.g_proj.weight", u32::MAX), (vec![1], vec![1.0]));
    let whole = [
        ("token_embd", "language_model.model.embed_tokens"),
        ("output_norm", "language_model.model.norm"),
        ("output", "language_model.lm_head"),
    ];
    let own = [
        ("ssm_g", "self_attn.g_proj"),
        ("attn_gate", "self_attn.g_proj"),
        ("ffn_routed_down", "block_sparse_moe.routed_expert_down_proj"),
        ("ffn_routed_up", "block_sparse_moe.routed_expert_up_proj"),
        ("ffn_routed_norm", "block_sparse_moe.routed_expert_norm"),
    ];
    model.into_folder_tensors(&whole, ROOT, &[&own, LATENT, KIMI].concat())
}

/// Ling 3: one name for the gates of both kinds of layers, and multi-token prediction in layers
/// with huge numbers.
pub(super) fn ling_3(mut model: ZooModel<'_>) -> Vec<StoredTensor> {
    join_kv_b(&mut model);
    model.experts(
        LAYERS,
        &[
            ("ffn_gate_exps", "mlp.experts.{}.gate_proj"),
            ("ffn_up_exps", "mlp.experts.{}.up_proj"),
            ("ffn_down_exps", "mlp.experts.{}.down_proj"),
        ],
    );
    model.for_all(&|name, (shape, numbers)| {
        if name.ends_with("ssm_a") {
            numbers.iter_mut().for_each(|x| *x = x.ln());
            *shape = vec![numbers.len() as u64];
        } else if name.contains("ssm_conv1d") {
            let sizes: Vec<u64> = shape.iter().copied().filter(|&n| n != 1).collect();
            *shape = vec![sizes[0], 1, sizes[1]];
        }
    });
    for beyond in [model.layers as u32, u32::MAX] {
        model.put(format!("{LAYERS}{beyond}.attention.g_proj.weight"), (vec![1], vec![1.0]));
    }
    let whole = [
        ("token_embd", "model.word_embeddings"),
        ("output_norm", "model.norm"),
        ("output", "lm_head"),
    ];
    let own = [
        ("ssm_f_a", "attention.f_proj"),
        ("ssm_g_a", "attention.g_proj"),
        ("attn_gate", "attention.g_proj"),
        ("exp_probs_b.bias", "mlp.gate.expert_bias"),
    ];
    let names: Vec<(&str, String)> = [&own, LATENT, DEEPSEEK, KIMI]
        .concat()
        .into_iter()
        .map(|(target, source)| (target, source.replace("self_attn.", "attention.")))
        .collect();
    let names: Vec<(&str, &str)> =
        names.iter().map(|(target, source)| (*target, &**source)).collect();
    model.into_folder_tensors(&whole, LAYERS, &names)
}

/// GLM 5 Next: its own names of hyper-connections, and an image encoder.
pub(super) fn glm_5_next(mut model: ZooModel<'_>) -> Vec<StoredTensor> {
    join_kv_b(&mut model);
    model.experts(
        LAYERS,
        &[
            ("ffn_gate_exps", "mlp.experts.{}.gate_proj"),
            ("ffn_up_exps", "mlp.experts.{}.up_proj"),
            ("ffn_down_exps", "mlp.experts.{}.down_proj"),
        ],
    );
    model.for_all(&|name, (shape, numbers)| {
        if name.ends_with("ssm_a") {
            numbers.iter_mut().for_each(|x| *x = (-*x).ln());
            *shape = vec![1, 1, numbers.len() as u64, 1];
        } else if name.contains("ssm_conv1d") {
            let sizes: Vec<u64> = shape.iter().copied().filter(|&n| n != 1).collect();
            *shape = vec![sizes[0], 1, sizes[1]];
        }
    });
    model.put("model.visual.patch_embed.proj.weight".to_owned(), (vec![1], vec![1.0]));
    let own = [
        ("hc_attn_fn.weight", "hc_attn_fn"),
        ("hc_attn_base.weight", "hc_attn_base"),
        ("hc_attn_scale.weight", "hc_attn_scale"),
        ("hc_ffn_fn.weight", "hc_ffn_fn"),
        ("hc_ffn_base.weight", "hc_ffn_base"),
        ("hc_ffn_scale.weight", "hc_ffn_scale"),
        ("indexer_compressor_gate.weight", "self_attn.indexer.index_kpool_compress_gate"),
        ("indexer_compressor_ape.weight", "self_attn.indexer.index_kpool_compress_ape"),
    ];
    model.into_folder_tensors(
        STANDARD_GLOBAL,
        LAYERS,
        &[&own, LATENT, DEEPSEEK, INDEXER, KIMI].concat(),
    )
}

#[test]
fn bounded_delta_attention_converts_to_the_files_of_llama_cpp() {
    let heads = || json!({"num_key_value_heads": 3, "qk_nope_head_dim": 12, "head_dim": null});
    let sizes = [
        SIZES,
        WEIGHTED,
        &[
            ("num_shared_experts", "expert_shared_count"),
            ("first_k_dense_replace", "leading_dense_block_count"),
            ("q_lora_rank", "attention.q_lora_rank"),
        ],
    ]
    .concat();
    let situ = [
        ("activation_situ_beta", "activation.situ_beta"),
        ("activation_situ_linear_beta", "activation.situ_linear_beta"),
        ("attn_res_block_size", "attn_res.block_size"),
        ("routed_expert_hidden_size", "expert_latent_length"),
        ("moe_renormalize", "expert_weights_norm"),
    ];
    case("kimi-k3", "KimiK3ForConditionalGeneration")
        .keys(&[&sizes[..], &situ].concat())
        .config(merged(
            heads(),
            json!({"moe_router_activation_func": "sigmoid", "hidden_act": "situ", "linear_attn_config": {
            "full_attn_layers": [3, 5], "kda_layers": [1, 2, 4], "head_dim": 16, "num_heads": 3,
            "short_conv_kernel_size": 4, "gate_lower_bound": -3.0}}),
        ))
        .ignoring(&["tokenizer.ggml.pre"])
        .check();
    let own = [
        ("short_conv_kernel_size", "ssm.conv_kernel"),
        ("kda_lower_bound", "kda.gate_lower_bound"),
        ("moe_shared_expert_intermediate_size", "expert_shared_feed_forward_length"),
    ];
    let ling = |sizes: &[(&'static str, &'static str)], name, class, more: Value| {
        let fixed = json!({"score_function": "sigmoid", "head_dim": 16, "layer_group_size": 2, "no_kda_lora": true,
            "kda_safe_gate": true, "gated_attention_proj_granularity_type": "head_wise"});
        let fixed = merged(merged(heads(), fixed), more);
        case(name, class)
            .keys(&[sizes, GROUPED, &own].concat())
            .config(fixed)
            .ignoring(&["tokenizer.ggml.pre", "value_length"])
            .check();
    };
    let limits = json!({"expert_swiglu_limit_list": [null, 0.3, null, 0.2, 0.5], "share_expert_swiglu_limit_list": [0.4, null, 0.3, 0.25]});
    ling(&sizes, "bailingmoe3", "BailingMoeV3ForCausalLM", limits);
    let sees = json!({"mrope_section": [2, 1, 1], "tie_word_embeddings": true});
    ling(
        &sizes[..sizes.len() - 1],
        "bailingmoe3-vl",
        "BailingMoeV3VLForConditionalGeneration",
        sees,
    );
}

#[test]
fn glm_5_next_converts_to_the_file_of_llama_cpp() {
    glm_5().check();
}

pub(super) fn glm_5() -> Case {
    let keys = [
        SIZES,
        ROUTED,
        WEIGHTED,
        &[
            ("q_lora_rank", "attention.q_lora_rank"),
            ("index_n_heads", "attention.indexer.head_count"),
            ("index_head_dim", "attention.indexer.key_length"),
            ("index_topk", "attention.indexer.top_k"),
            ("index_kpool", "attention.indexer.kpool"),
            ("hc_mult", "hyper_connection.count"),
            ("hc_sinkhorn_iters", "hyper_connection.sinkhorn_iterations"),
            ("hc_eps", "hyper_connection.epsilon"),
        ],
    ]
    .concat();
    let (delta, latent) = ("linear_attention", "full_attention");
    case("glm5-next", "Glm5NextForConditionalGeneration")
        .keys(&keys)
        .config(json!({"num_key_value_heads": 3, "qk_nope_head_dim": 20, "head_dim": null, "scoring_func": "sigmoid",
            "layer_types": [delta, latent, delta, latent, latent], "indexer_types": ["full", "full", "full", "full", "shared"],
            "swiglu_limit": 0.4, "linear_attn_config": {"head_dim": 16, "num_heads": 3, "short_conv_kernel_size": 4,
                "gate_lower_bound": -3.0}}))
        .ignoring(&["tokenizer.ggml.pre", "unknown_token_id", "swiglu_clamp_shexp"])
}
