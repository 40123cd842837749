//! RWKV 7 in both spellings of its folders, and Qwen 2 with RWKV's time mixing.

use serde_json::json;

use super::families::case;
use super::fixtures::{StoredTensor, zoo};
use super::tensors_only;
use super::zoo_model::{TensorValues, ZooModel};

type Names<'a> = &'a [(&'a str, &'a str)];

const QWEN: Names<'_> =
    &[("token_embd", "model.embed_tokens"), ("output_norm", "model.norm"), ("output", "lm_head")];
const GATED: Names<'_> = &[
    ("attn_norm", "input_layernorm"),
    ("ffn_norm", "post_attention_layernorm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
];
/// Interpolation weights in the file's order.
const LETTERS: [&str; 6] = ["r", "w", "k", "v", "a", "g"];
const LOW_RANK: [&str; 8] = ["w1", "w2", "a1", "a2", "v1", "v2", "g1", "g2"];
const VECTORS: [&str; 5] = ["w0", "a0", "v0", "k_k", "k_a"];
const MATRICES: [&str; 4] = ["receptance", "key", "value", "output"];

/// Splits the fused interpolation weights to a tensor for each letter.
fn unfuse(model: &mut ZooModel<'_>, root: &str, stem: &str, letters: &[&str]) {
    for layer in 0..model.layers {
        let (_, numbers) = model.take(layer, "time_mix_lerp_fused.weight").unwrap();
        let width = numbers.len() / letters.len();
        for (letter, numbers) in letters.iter().zip(numbers.chunks_exact(width)) {
            let name = format!("{root}{layer}.{stem}{letter}");
            model.put(name, (vec![1, 1, width as u64], numbers.to_vec()));
        }
    }
}

/// Swaps two of `parts` equal parts.
fn swap_parts(numbers: &mut [f32], parts: usize, one: usize, other: usize) {
    let each = numbers.len() / parts;
    (0..each).for_each(|at| numbers.swap(one * each + at, other * each + at));
}

/// The tensors of a zoo file under the names of a folder.
pub(super) fn tensors(mut model: ZooModel<'_>) -> Vec<StoredTensor> {
    if model.arch == "arwkv7" {
        unfuse(&mut model, "model.layers.", "self_attn.time_mixer.x_", &LETTERS);
        let names = direct_names(&mut model, "self_attn.time_mixer");
        let names: Vec<(&str, &str)> =
            names.iter().map(|(target, source)| (&**target, &**source)).collect();
        return model.into_folder_tensors(QWEN, "model.layers.", &[GATED, &*names].concat());
    }
    unfuse(&mut model, "model.layers.", "self_attn.time_maa_", &["w", "k", "v", "r", "g"]);
    model.for_all(&|name, (shape, numbers)| {
        let part = name.rsplit_once("time_mix_").map(|(_, part)| part).unwrap_or_default();
        match part {
            "w1.weight" | "w2.weight" => swap_parts(numbers, 5, 0, 3),
            "lerp_x.weight" | "decay.weight" => drop(shape.splice(0..0, [1, 1])),
            _ => {}
        }
    });
    model.transpose(&["time_mix_w1", "time_mix_w2", "time_mix_decay_w1", "time_mix_decay_w2"]);
    let names = [
        ("time_mix_lerp_x.weight", "self_attn.time_maa_x"),
        ("time_mix_w1.weight", "self_attn.time_maa_w1"),
        ("time_mix_w2.weight", "self_attn.time_maa_w2"),
        ("time_mix_decay.weight", "self_attn.time_decay"),
        ("time_mix_decay_w1.weight", "self_attn.time_decay_w1"),
        ("time_mix_decay_w2.weight", "self_attn.time_decay_w2"),
        ("time_mix_receptance", "self_attn.q_proj"),
        ("time_mix_key", "self_attn.k_proj"),
        ("time_mix_value", "self_attn.v_proj"),
        ("time_mix_gate", "self_attn.gate"),
        ("time_mix_output", "self_attn.o_proj"),
    ];
    model.into_folder_tensors(QWEN, "model.layers.", &[GATED, &names].concat())
}

/// The first spelling: low-rank matrices with dimensions inputs, outputs, and vectors with leading
/// dimensions of one. Returns the names.
fn direct_names(model: &mut ZooModel<'_>, within: &str) -> Vec<(String, String)> {
    model
        .transpose(&LOW_RANK.map(|part| format!("time_mix_{part}")).each_ref().map(|part| &**part));
    heads(model);
    model.for_all(&|name, (shape, _)| {
        let is = |part: &&str| name.ends_with(&format!("time_mix_{part}.weight"));
        if VECTORS.iter().any(is) {
            shape.splice(0..0, [1, 1]);
        }
    });
    let bare = LOW_RANK.iter().chain(&VECTORS).chain(&["r_k"]);
    let bare = bare.map(|part| (format!("time_mix_{part}.weight"), format!("{within}.{part}")));
    let named =
        MATRICES.iter().map(|part| (format!("time_mix_{part}"), format!("{within}.{part}")));
    bare.chain(named).chain([("time_mix_ln".to_owned(), format!("{within}.ln_x"))]).collect()
}

/// Splits the bonus `r_k` into heads.
fn heads(model: &mut ZooModel<'_>) {
    let head = model.number("wkv.head_size") as u64;
    model.for_parts(&["time_mix_r_k"], &|(shape, numbers): TensorValues| {
        (vec![shape[0] / head, head], numbers)
    });
}

const SIZES: [(&str, &str); 5] = [
    ("head_size", "wkv.head_size"),
    ("lora_rank_decay", "attention.decay_lora_rank"),
    ("lora_rank_iclr", "attention.iclr_lora_rank"),
    ("lora_rank_value_residual_mix", "attention.value_residual_mix_lora_rank"),
    ("lora_rank_gate", "attention.gate_lora_rank"),
];

#[test]
fn qwen_with_rwkv_time_mixing_round_trips() {
    case("arwkv7", "RwkvHybridForCausalLM")
        .keys(&SIZES)
        .config(json!({"num_attention_heads": 2, "wkv_version": 7, "wkv_has_gate": true}))
        // The file's values of the first layer are not used.
        .ignoring(&[
            "context_length",
            "vocab_size",
            "blk.0.time_mix_v0.weight",
            "blk.0.time_mix_v1.weight",
            "blk.0.time_mix_v2.weight",
        ])
        .check();
    case("rwkv6qwen2", "RWKV6Qwen2ForCausalLM")
        .keys(&[
            ("lora_rank_tokenshift", "time_mix_extra_dim"),
            ("lora_rank_decay", "time_decay_extra_dim"),
        ])
        .config(json!({"num_attention_heads": 4}))
        .ignoring(&["context_length", "vocab_size"])
        .check();
}

/// Metadata keys that folders of both spellings must produce.
const KEYS: [&str; 10] = [
    "block_count",
    "embedding_length",
    "feed_forward_length",
    "attention.head_count",
    "attention.layer_norm_epsilon",
    "wkv.head_size",
    "attention.decay_lora_rank",
    "attention.iclr_lora_rank",
    "attention.value_residual_mix_lora_rank",
    "attention.gate_lora_rank",
];

pub(super) fn vocabulary() -> (&'static str, String) {
    ("rwkv_vocab_v20230424.txt", "1 'a' 1\n2 b'\\xff' 1\n3 '\\n\\n' 2\n".to_owned())
}

#[test]
fn rwkv_7_round_trips_in_both_spellings() {
    let gguf = zoo("rwkv7");
    let mut model = ZooModel::of(&gguf);
    // Some folders have the interpolation weights in one tensor.
    for layer in 0..model.layers {
        let (_, numbers) = model.take(layer, "time_mix_lerp_fused.weight").unwrap();
        let shape = vec![6, 1, 1, numbers.len() as u64 / 6];
        model.put(format!("model.blocks.{layer}.attention.x_x"), (shape, numbers));
    }
    let names = direct_names(&mut model, "attention");
    let own = [
        ("attn_norm", "ln1"),
        ("attn_norm_2", "ln2"),
        ("channel_mix_lerp_k.weight", "feed_forward.x_k"),
        ("channel_mix_key", "feed_forward.key"),
        ("channel_mix_value", "feed_forward.value"),
    ];
    let names: Vec<(&str, &str)> =
        names.iter().map(|(target, source)| (&**target, &**source)).collect();
    let whole = [
        ("token_embd", "model.embeddings"),
        ("token_embd_norm", "model.pre_ln"),
        ("output_norm", "model.ln_out"),
        ("output", "head"),
    ];
    let mut config = json!({"architectures": ["Rwkv7ForCausalLM"], "hidden_size": 128, "num_hidden_layers": 3,
        "intermediate_size": 96, "layer_norm_epsilon": 1e-5});
    let sizes = |config: &mut serde_json::Value, names: [&str; 5]| {
        names
            .into_iter()
            .zip([64, 8, 6, 5, 12])
            .for_each(|(name, size)| config[name] = size.into());
    };
    sizes(&mut config, SIZES.map(|(source, _)| source));
    let tensors = model.into_folder_tensors(&whole, "model.blocks.", &[&own, &*names].concat());
    tensors_only::check("rwkv7", &tensors, &config, vocabulary(), &KEYS);

    let mut model = ZooModel::of(&gguf);
    unfuse(&mut model, "model.layers.", "attn.x_", &LETTERS);
    heads(&mut model);
    // The first layer has no value residual.
    for part in ["v0", "v1", "v2"] {
        model.take(0, &format!("time_mix_{part}.weight")).unwrap();
    }
    let tensors = model.into_folder_tensors(&MODULES_GLOBAL, "model.layers.", &MODULES);
    let mut config = json!({"architectures": ["RWKV7ForCausalLM"], "hidden_size": 128, "num_hidden_layers": 3,
        "intermediate_size": 96, "norm_eps": 1e-5});
    let source =
        ["head_dim", "decay_low_rank_dim", "a_low_rank_dim", "v_low_rank_dim", "gate_low_rank_dim"];
    sizes(&mut config, source);
    tensors_only::check("rwkv7", &tensors, &config, vocabulary(), &KEYS);
}

const MODULES_GLOBAL: [(&str, &str); 4] = [
    ("token_embd", "model.embeddings"),
    ("token_embd_norm", "model.layers.0.pre_norm"),
    ("output_norm", "model.norm"),
    ("output", "lm_head"),
];
/// Names of folders with modules.
const MODULES: [(&str, &str); 24] = [
    ("attn_norm", "attn_norm"),
    ("attn_norm_2", "ffn_norm"),
    ("time_mix_w0.weight", "attn.w_lora.lora.2.bias"),
    ("time_mix_w1", "attn.w_lora.lora.0"),
    ("time_mix_w2", "attn.w_lora.lora.2"),
    ("time_mix_a0.weight", "attn.a_lora.lora.2.bias"),
    ("time_mix_a1", "attn.a_lora.lora.0"),
    ("time_mix_a2", "attn.a_lora.lora.2"),
    ("time_mix_v0.weight", "attn.v_lora.lora.2.bias"),
    ("time_mix_v1", "attn.v_lora.lora.0"),
    ("time_mix_v2", "attn.v_lora.lora.2"),
    ("time_mix_g1", "attn.g_lora.lora.0"),
    ("time_mix_g2", "attn.g_lora.lora.2"),
    ("time_mix_k_k.weight", "attn.k_k"),
    ("time_mix_k_a.weight", "attn.k_a"),
    ("time_mix_r_k.weight", "attn.r_k"),
    ("time_mix_receptance", "attn.r_proj"),
    ("time_mix_key", "attn.k_proj"),
    ("time_mix_value", "attn.v_proj"),
    ("time_mix_ln", "attn.g_norm"),
    ("time_mix_output", "attn.o_proj"),
    ("channel_mix_lerp_k.weight", "ffn.x_k"),
    ("channel_mix_key", "ffn.key"),
    ("channel_mix_value", "ffn.value"),
];
