//! Folders of DeepSeek 4, made from zoo files, and their conversion.

use puna_quant::TensorType;
use serde_json::{Value, json};

use super::config::folder_config;
use super::convert_tensors;
use super::families::case;
use super::fixtures::{StoredTensor, values, zoo};
use super::zoo_model::ZooModel;

const GLOBAL: &[(&str, &str)] = &[
    ("token_embd", "embed"),
    ("output_norm", "norm"),
    ("output", "head"),
    ("output_hc_fn.weight", "hc_head_fn"),
    ("output_hc_base.weight", "hc_head_base"),
    ("output_hc_scale.weight", "hc_head_scale"),
];

const LAYER: &[(&str, &str)] = &[
    ("attn_norm", "attn_norm"),
    ("attn_sinks.weight", "attn.attn_sink"),
    ("attn_q_a", "attn.wq_a"),
    ("attn_q_a_norm", "attn.q_norm"),
    ("attn_q_b", "attn.wq_b"),
    ("attn_kv", "attn.wkv"),
    ("attn_kv_a_norm", "attn.kv_norm"),
    ("attn_output_a", "attn.wo_a"),
    ("attn_output_b", "attn.wo_b"),
    ("attn_compressor_kv", "attn.compressor.wkv"),
    ("attn_compressor_gate", "attn.compressor.wgate"),
    ("attn_compressor_ape.weight", "attn.compressor.ape"),
    ("attn_compressor_norm", "attn.compressor.norm"),
    ("indexer.attn_q_b", "attn.indexer.wq_b"),
    ("indexer.proj", "attn.indexer.weights_proj"),
    ("indexer_compressor_kv", "attn.indexer.compressor.wkv"),
    ("indexer_compressor_gate", "attn.indexer.compressor.wgate"),
    ("indexer_compressor_ape.weight", "attn.indexer.compressor.ape"),
    ("indexer_compressor_norm", "attn.indexer.compressor.norm"),
    ("hc_attn_fn.weight", "hc_attn_fn"),
    ("hc_attn_base.weight", "hc_attn_base"),
    ("hc_attn_scale.weight", "hc_attn_scale"),
    ("hc_ffn_fn.weight", "hc_ffn_fn"),
    ("hc_ffn_base.weight", "hc_ffn_base"),
    ("hc_ffn_scale.weight", "hc_ffn_scale"),
    ("ffn_norm", "ffn_norm"),
    ("ffn_gate_inp", "ffn.gate"),
    ("exp_probs_b.bias", "ffn.gate.bias"),
    ("ffn_gate_shexp", "ffn.shared_experts.w1"),
    ("ffn_up_shexp", "ffn.shared_experts.w3"),
    ("ffn_down_shexp", "ffn.shared_experts.w2"),
];

const EXPERTS: &[(&str, &str)] = &[
    ("ffn_gate_exps", "ffn.experts.{}.w1"),
    ("ffn_up_exps", "ffn.experts.{}.w3"),
    ("ffn_down_exps", "ffn.experts.{}.w2"),
];

/// The tensors of a zoo file under the names of a folder.
pub(super) fn tensors(mut model: ZooModel<'_>) -> Vec<StoredTensor> {
    let (shape, ids) =
        model.take(0, "ffn_gate_tid2eid.weight").expect("the first layer has experts by token");
    let ids = ids.iter().flat_map(|id| (*id as i64).to_le_bytes()).collect();
    model.experts("layers.", EXPERTS);
    // Tensors that the conversion must ignore: a selection bias of a hash-routed layer, the image
    // encoder, multi-token prediction.
    for name in ["layers.0.ffn.gate.bias", "aligner.linear.weight", "mtp.0.enorm.weight"] {
        model.put(name.to_owned(), (vec![1], vec![1.0]));
    }
    let mut stored = model.into_folder_tensors(GLOBAL, "layers.", LAYER);
    stored.push(("layers.0.ffn.gate.tid2eid".to_owned(), "I64", shape, ids));
    stored
}

const KEYS: &[(&str, &str)] = &[
    ("q_lora_rank", "attention.q_lora_rank"),
    ("qk_rope_head_dim", "rope.dimension_count"),
    ("sliding_window", "attention.sliding_window"),
    ("compress_rope_theta", "attention.compress_rope_freq_base"),
    ("compress_ratios", "attention.compress_ratios"),
    ("o_groups", "attention.output_group_count"),
    ("o_lora_rank", "attention.output_lora_rank"),
    ("index_n_heads", "attention.indexer.head_count"),
    ("index_head_dim", "attention.indexer.key_length"),
    ("index_topk", "attention.indexer.top_k"),
    ("hc_mult", "hyper_connection.count"),
    ("hc_sinkhorn_iters", "hyper_connection.sinkhorn_iterations"),
    ("hc_eps", "hyper_connection.epsilon"),
    ("num_hash_layers", "hash_layer_count"),
    ("n_routed_experts", "expert_count"),
    ("n_shared_experts", "expert_shared_count"),
    ("moe_intermediate_size", "expert_feed_forward_length"),
    ("routed_scaling_factor", "expert_weights_scale"),
    ("norm_topk_prob", "expert_weights_norm"),
];

fn fixed() -> Value {
    json!({"scoring_func": "sqrtsoftplus", "swiglu_limit": 0.35, "intermediate_size": null})
}

#[test]
fn deepseek_4_converts_to_the_file_of_llama_cpp() {
    // The zoo's clamp limits vary by layer, those of folders do not.
    case("deepseek4", "DeepseekV4ForCausalLM")
        .keys(KEYS)
        .config(fixed())
        .ignoring(&["swiglu_clamp_exp", "swiglu_clamp_shexp"])
        .check();
}

/// Published folders have FP8 weights and MXFP4 experts, both with E8M0 scales.
#[test]
fn mxfp4_experts_are_copied_and_fp8_weights_scaled() {
    let want = zoo("deepseek4");
    let mut stored = tensors(ZooModel::of(&want));
    let mut config = folder_config(&want, "DeepseekV4ForCausalLM", None);
    for (source, target) in KEYS {
        config[*source] = super::families::number(&want, &format!("deepseek4.{target}"));
    }
    config.as_object_mut().unwrap().extend(fixed().as_object().unwrap().clone());
    config.as_object_mut().unwrap().remove("intermediate_size");
    // Two rows of 64 values an expert: repeating codes, negative in the second block.
    let code = |expert: usize, row: usize, column: usize| {
        ((expert + 3 * row + column) % 8 + if column >= 32 { 8 } else { 0 }) as u8
    };
    stored.retain(|(name, ..)| {
        !(name.starts_with("layers.1.ffn.experts.") && name.ends_with("w1.weight"))
    });
    for expert in 0..6 {
        let name = format!("layers.1.ffn.experts.{expert}.w1");
        let pairs = (0..2).flat_map(|row| (0..32).map(move |pair| (row, 2 * pair)));
        let codes =
            pairs.map(|(row, at)| code(expert, row, at) | code(expert, row, at + 1) << 4).collect();
        stored.push((format!("{name}.weight"), "I8", vec![2, 32], codes));
        stored.push((format!("{name}.scale"), "F8_E8M0", vec![2, 2], vec![127, 128, 126, 130]));
    }
    let eight = stored.iter_mut().find(|(name, ..)| name == "layers.1.attn.wkv.weight").unwrap();
    let (rows, columns) = (eight.2[0] as usize, eight.2[1] as usize);
    // 1.5 in E4M3.
    (eight.1, eight.3) = ("F8_E4M3", vec![0x3c; rows * columns]);
    stored.push(("layers.1.attn.wkv.scale".to_owned(), "F8_E8M0", vec![1, 1], vec![129]));
    let made = convert_tensors("deepseek4", &stored, config.clone()).unwrap();
    let packed = made.tensor("blk.1.ffn_gate_exps.weight").unwrap();
    assert_eq!((packed.ty, &packed.shape[..]), (TensorType::MXFP4, &[64, 2, 6][..]));
    let sizes = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
    let scales = [[1.0, 2.0], [0.5, 8.0]];
    for (at, found) in values(&made, packed).into_iter().enumerate() {
        let (expert, row, column) = (at / 128, at / 64 % 2, at % 64);
        let code = code(expert, row, column) as usize;
        let sign = if code < 8 { 1.0 } else { -1.0 };
        assert_eq!(
            found,
            sign * sizes[code % 8] * scales[row][column / 32],
            "{expert} {row} {column}"
        );
    }
    let kv = made.tensor("blk.1.attn_kv.weight").unwrap();
    assert!(values(&made, kv).iter().all(|&x| x == 6.0), "1.5 by four");
    // A block of experts without its scales.
    stored.retain(|(name, ..)| name != "layers.1.ffn.experts.3.w1.scale");
    let error = convert_tensors("deepseek4", &stored, config).err().unwrap();
    assert!(error.contains("layers.1.ffn.experts.3.w1.scale"), "{error}");
}
