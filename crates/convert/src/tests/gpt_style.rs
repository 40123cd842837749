//! Folder tensors of decoders with GPT-2's or other older names.

use super::fixtures::StoredTensor;
use super::zoo_model::{ZooModel, transposed};

/// GPT-2's names.
const GPT2_LAYER: &[(&str, &str)] = &[
    ("attn_norm", "ln_1"),
    ("attn_qkv", "attn.c_attn"),
    ("attn_output", "attn.c_proj"),
    ("ffn_norm", "ln_2"),
    ("ffn_up", "mlp.c_fc"),
    ("ffn_down", "mlp.c_proj"),
];

const GPT2_GLOBAL: &[(&str, &str)] = &[
    ("token_embd", "transformer.wte"),
    ("position_embd", "transformer.wpe"),
    ("output_norm", "transformer.ln_f"),
    ("output", "lm_head"),
];

const NEOX: &[(&str, &str)] = &[
    ("attn_norm", "input_layernorm"),
    ("ffn_norm", "post_attention_layernorm"),
    ("ffn_up", "mlp.dense_h_to_4h"),
    ("ffn_down", "mlp.dense_4h_to_h"),
];

const H: &str = "transformer.h.";

pub(super) fn tensors(mut model: ZooModel<'_>) -> Vec<StoredTensor> {
    match &*model.arch.clone() {
        "gpt2" => {
            model.transpose(&["attn_qkv", "attn_output", "ffn_up", "ffn_down"]);
            // Published folders have a causal mask in every layer.
            for layer in 0..model.layers {
                model.put(format!("{H}{layer}.attn.bias"), (vec![1, 1, 4, 4], vec![1.0; 16]));
            }
            model.into_folder_tensors(GPT2_GLOBAL, H, GPT2_LAYER)
        }
        "gptneox" => {
            model.group_by_key_head("attn_qkv", model.heads());
            let whole = [
                ("token_embd", "gpt_neox.embed_in"),
                ("output_norm", "gpt_neox.final_layer_norm"),
                ("output", "embed_out"),
            ];
            let own =
                [("attn_qkv", "attention.query_key_value"), ("attn_output", "attention.dense")];
            model.into_folder_tensors(&whole, "gpt_neox.layers.", &[&own, NEOX].concat())
        }
        arch @ ("bloom" | "falcon") => {
            model.group_by_key_head("attn_qkv", model.kv_heads());
            let root = if arch == "bloom" { "" } else { "transformer." };
            let whole = [
                ("token_embd", format!("{root}word_embeddings")),
                ("token_embd_norm", format!("{root}word_embeddings_layernorm")),
                ("output_norm", format!("{root}ln_f")),
            ];
            let whole: Vec<(&str, &str)> =
                whole.iter().map(|(target, source)| (*target, &**source)).collect();
            let own = [
                ("attn_qkv", "self_attention.query_key_value"),
                ("attn_output", "self_attention.dense"),
            ];
            model.into_folder_tensors(&whole, &format!("{root}h."), &[&own, NEOX].concat())
        }
        "dbrx" => dbrx(model),
        "openelm" => {
            model.join_rows(&["ffn_gate", "ffn_up"], "both");
            let own = [
                ("attn_norm", "attn_norm"),
                ("attn_qkv", "attn.qkv_proj"),
                ("attn_q_norm", "attn.q_norm"),
                ("attn_k_norm", "attn.k_norm"),
                ("attn_output", "attn.out_proj"),
                ("ffn_norm", "ffn_norm"),
                ("both", "ffn.proj_1"),
                ("ffn_down", "ffn.proj_2"),
            ];
            let whole = [
                ("token_embd", "transformer.token_embeddings"),
                ("output_norm", "transformer.norm"),
            ];
            model.into_folder_tensors(&whole, "transformer.layers.", &own)
        }
        "plamo" => plamo(model),
        _ => code(model),
    }
}

/// Families with GPT-2's names and further differences.
fn code(mut model: ZooModel<'_>) -> Vec<StoredTensor> {
    match &*model.arch.clone() {
        "codeshell" => {
            model.join_rows(&["attn_q", "attn_k", "attn_v"], "attn_qkv");
            model.into_folder_tensors(GPT2_GLOBAL, H, GPT2_LAYER)
        }
        "jais" => {
            model.transpose(&["attn_qkv", "attn_output", "ffn_gate", "ffn_up", "ffn_down"]);
            // The conversion doubles these values.
            model.for_all(&|name, numbers| match name {
                "token_embd.weight" => numbers.1.iter_mut().for_each(|x| *x /= 2.0),
                "output.weight" => numbers.1.iter_mut().for_each(|x| *x *= 4.0),
                _ => {}
            });
            model.into_folder_tensors(
                GPT2_GLOBAL,
                H,
                &[&[("ffn_gate", "mlp.c_fc2")], GPT2_LAYER].concat(),
            )
        }
        "refact" => {
            model.join_rows(&["attn_k", "attn_v"], "attn_kv");
            model.join_rows(&["ffn_gate", "ffn_up"], "both");
            let own = [("attn_q", "attn.q"), ("attn_kv", "attn.kv"), ("both", "mlp.gate_up_proj")];
            model.into_folder_tensors(GPT2_GLOBAL, H, &[&own, GPT2_LAYER].concat())
        }
        other => panic!("{other}"),
    }
}

/// Stacks the matrices of all experts by rows.
fn dbrx(mut model: ZooModel<'_>) -> Vec<StoredTensor> {
    model.for_parts(&["ffn_down_exps"], &transposed);
    model.for_parts(&["ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"], &|(shape, numbers)| {
        (vec![shape[0] * shape[1], shape[2]], numbers)
    });
    let whole = [
        ("token_embd", "transformer.wte"),
        ("output_norm", "transformer.norm_f"),
        ("output", "lm_head"),
    ];
    let own = [
        ("attn_norm", "norm_attn_norm.norm_1"),
        ("attn_qkv", "norm_attn_norm.attn.Wqkv"),
        ("attn_output", "norm_attn_norm.attn.out_proj"),
        ("attn_output_norm", "norm_attn_norm.norm_2"),
        ("ffn_gate_inp", "ffn.router.layer"),
        ("ffn_gate_exps.weight", "ffn.experts.mlp.w1"),
        ("ffn_up_exps.weight", "ffn.experts.mlp.v1"),
        ("ffn_down_exps.weight", "ffn.experts.mlp.w2"),
    ];
    model.into_folder_tensors(&whole, "transformer.blocks.", &own)
}

/// Interleaves query heads by KV head.
fn plamo(mut model: ZooModel<'_>) -> Vec<StoredTensor> {
    let (groups, head) = (model.kv_heads(), 12);
    let crossed = |numbers: &[f32], each: usize| {
        let count = numbers.len() / groups / each;
        let block = |at: usize| &numbers[at * each..][..each];
        let mut out = Vec::new();
        for within in 0..count {
            (0..groups).for_each(|group| out.extend_from_slice(block(group * count + within)));
        }
        out
    };
    model.for_parts(&["attn_q"], &|(shape, numbers)| {
        let columns = shape[1] as usize;
        let out = crossed(&numbers, head * columns);
        (shape, out)
    });
    model.for_parts(&["attn_output"], &|(shape, numbers)| {
        let out =
            numbers.chunks_exact(shape[1] as usize).flat_map(|row| crossed(row, head)).collect();
        (shape, out)
    });
    let whole = [
        ("token_embd", "model.embed_tokens"),
        ("output_norm", "model.norm"),
        ("output", "lm_head"),
    ];
    let own = [
        ("attn_norm", "norm"),
        ("attn_q", "self_attn.q_proj"),
        ("attn_k", "self_attn.k_proj"),
        ("attn_v", "self_attn.v_proj"),
        ("attn_output", "self_attn.o_proj"),
        ("ffn_gate", "mlp.gate_proj"),
        ("ffn_up", "mlp.up_proj"),
        ("ffn_down", "mlp.down_proj"),
    ];
    model.into_folder_tensors(&whole, "model.layers.layers.", &own)
}
