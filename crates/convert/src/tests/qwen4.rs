//! Folders of Qwen 4 Exp, made from zoo files, and their conversion.

use serde_json::{Value, json};

use super::families::{Case, case};
use super::fixtures::{StoredTensor, zoo};
use super::zoo_model::ZooModel;

const LAYERS: &str = "model.layers.";
const GLOBAL: &[(&str, &str)] = &[
    ("token_embd", "model.embed_tokens"),
    ("output", "lm_head"),
    ("output_hc_norm", "model.hyper_connection_mixer.hc_norm"),
    ("output_hc_down", "model.hyper_connection_mixer.input_mix_weight_down"),
    ("output_hc_up", "model.hyper_connection_mixer.input_mix_weight_up"),
];

const LAYER: &[(&str, &str)] = &[
    ("hc_attn_norm", "attn_hyper_connection.hc_norm"),
    ("hc_attn_down", "attn_hyper_connection.input_mix_weight_down"),
    ("hc_attn_up", "attn_hyper_connection.input_mix_weight_up"),
    ("hc_attn_inject", "attn_hyper_connection.block_inject_weight"),
    ("hc_ffn_norm", "mlp_hyper_connection.hc_norm"),
    ("hc_ffn_down", "mlp_hyper_connection.input_mix_weight_down"),
    ("hc_ffn_up", "mlp_hyper_connection.input_mix_weight_up"),
    ("hc_ffn_inject", "mlp_hyper_connection.block_inject_weight"),
    ("indexer.qk", "self_attn.indexer.index_qk_proj"),
    ("indexer.q_norm", "self_attn.indexer.q_layernorm"),
    ("indexer.k_norm", "self_attn.indexer.k_layernorm"),
    ("ple_key", "ple.key_proj"),
    ("ple_value", "ple.value_proj"),
    ("ple_norm_key", "ple.norm_key"),
    ("ple_norm_query", "ple.norm_query"),
    ("ple_norm_conv", "ple.norm_conv"),
    ("ple_conv1d", "ple.conv1d"),
];

/// Number of shards of the n-gram table in a folder.
const PARTS: usize = 4;

/// The tensors of a zoo file under the names of a folder.
pub(super) fn tensors(mut model: ZooModel<'_>) -> Vec<StoredTensor> {
    super::mamba_and_hybrids::undo_mamba_transforms(&mut model);
    model.join_rows(&["indexer.q_proj", "indexer.k_proj"], "indexer.qk");
    model.for_all(&|name, (shape, numbers)| {
        if name.contains("ple_norm_") {
            numbers.iter_mut().for_each(|x| *x -= 1.0);
        } else if name.contains("ple_conv1d") {
            *shape = vec![shape[0], 1, shape[1]];
        }
    });
    let mut hashes = Vec::new();
    let meta = model.gguf.metadata();
    if let Some(layers) = meta.u32s("qwen4exp.ple.layers").unwrap() {
        let prefix = format!("{LAYERS}{}.ple.ple_embedding", layers[0]);
        for (source, target) in [
            ("layer_multipliers", "layer_multipliers"),
            ("ngram_heads_offsets", "head_offsets"),
            ("ngram_heads_vocab_sizes", "head_vocab_sizes"),
        ] {
            let numbers = meta.u64s(&format!("qwen4exp.ple.{target}")).unwrap().unwrap();
            let bytes = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
            hashes.push((format!("{prefix}.{source}"), "I64", vec![numbers.len() as u64], bytes));
        }
        let (shape, numbers) = model.take_whole("per_layer_token_embd.weight").unwrap();
        let each = shape[0] / PARTS as u64;
        for (number, part) in numbers.chunks_exact(numbers.len() / PARTS).enumerate() {
            let name = format!("{prefix}.ngram_embedding.shard_{number}.weight");
            model.put(name, (vec![each, shape[1]], part.to_vec()));
        }
    }
    let mut stored = super::mamba_and_hybrids::delta_with(model, GLOBAL, LAYER);
    stored.append(&mut hashes);
    stored
}

fn qwen4(name: &'static str) -> Case {
    let want = zoo(name);
    let layers = want.metadata().u32s("qwen4exp.ple.layers").unwrap().unwrap_or_default();
    let rope = json!({"rope_type": "default", "rope_theta": 1e5, "partial_rotary_factor": 0.5, "mrope_section": [2, 1, 1]});
    let keys = [
        ("linear_conv_kernel_dim", "ssm.conv_kernel"),
        ("linear_key_head_dim", "ssm.state_size"),
        ("linear_num_key_heads", "ssm.group_count"),
        ("linear_num_value_heads", "ssm.time_step_rank"),
        ("hc_count", "hyper_connection.count"),
        ("hc_lowrank", "hyper_connection.low_rank"),
        ("indexer_n_heads", "attention.indexer.head_count"),
        ("indexer_head_dim", "attention.indexer.key_length"),
        ("indexer_budget", "attention.indexer.top_k"),
    ];
    let kinds = ["linear_attention", "full_attention", "linear_attention", "indexed_attention"];
    case(name, "Qwen4ExpForCausalLM").keys(&keys).config(json!({
        "layer_types": kinds, "linear_value_head_dim": 16, "rope_parameters": rope, "output_gate_type": "sigmoid",
        "indexer_compress_ratio": 4, "indexer_kv_heads": 1, "ngram_size": 4, "heads_per_ngram": 2,
        "ple_conv_kernel_size": 3, "split_ngram_parts": PARTS, "image_token_id": 318,
        "ple_layer_ids": layers.iter().map(|layer| layer + 1).collect::<Vec<_>>(),
    }))
}

#[test]
fn qwen_4_exp_converts_to_the_file_of_llama_cpp() {
    for name in ["qwen4exp", "qwen4exp-blocks"] {
        qwen4(name).check();
    }
    // With several end tokens, n-grams end at the last.
    let several = qwen4("qwen4exp").with_config(
        json!({"eos_token_id": [3, 316], "architectures": ["Qwen4ExpForConditionalGeneration"]}),
    );
    let made = several.convert().unwrap();
    assert_eq!(made.metadata().u32("qwen4exp.ple.eos_token_id"), Ok(316));
}

#[test]
fn missing_parameters_of_n_grams_and_streams_are_named() {
    let refused =
        |says: Value| qwen4("qwen4exp").with_config(says).convert().map(drop).unwrap_err();
    for (says, reason) in [
        (json!({"output_gate_type": "silu"}), "`output_gate_type` is silu, but GGUF files"),
        (json!({"output_gate_type": null}), "`output_gate_type` is absent, but GGUF files"),
        (
            json!({"output_gate_type": null, "hidden_act": "silu"}),
            "`hidden_act` is silu, but GGUF files",
        ),
        (json!({"ple_layer_ids": [1, 3]}), "`ple_layer_ids` must be a list of one layer at most"),
        (json!({"ple_layer_ids": [5]}), "`ple_layer_ids` must be a list of one layer at most"),
        (json!({"ple_layer_ids": [0]}), "`ple_layer_ids` must be a list of one layer at most"),
        (json!({"ple_layer_ids": [1]}), "layers.0.ple.ple_embedding.layer_multipliers is missing"),
        (json!({"ngram_size": 3}), "ple_embedding.layer_multipliers has shape [4], expected [3]"),
        (
            json!({"heads_per_ngram": 3}),
            "ple_embedding.ngram_heads_offsets has shape [6], expected [9]",
        ),
        (json!({"ngram_size": 2147483647u32}), "expected [2147483647]"),
        (json!({"split_ngram_parts": 5}), "ngram_embedding.shard_4.weight is missing"),
        (json!({"split_ngram_parts": 3}), "ngram_embedding.shard_3.weight is unknown"),
        (
            json!({"indexer_head_dim": 8}),
            "index_qk_proj.weight has shape [96, 48], expected [64, 48]",
        ),
        (json!({"hc_lowrank": null}), "`hc_lowrank` must be a positive number"),
    ] {
        let error = refused(says.clone());
        assert!(error.contains(reason), "{says}: {error}");
    }
}
