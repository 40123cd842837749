//! RWKV 7 in both spellings of its folders, and the models of Qwen with a memory in attention's place.

use serde_json::json;

use super::alone;
use super::families::case;
use super::kit::{Stored, zoo};
use super::model::{Model, Numbers};

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
/// What all mix for, in the file's order.
const LETTERS: [&str; 6] = ["r", "w", "k", "v", "a", "g"];
const THIN: [&str; 8] = ["w1", "w2", "a1", "a2", "v1", "v2", "g1", "g2"];
const VECTORS: [&str; 5] = ["w0", "a0", "v0", "k_k", "k_a"];
const MATRICES: [&str; 4] = ["receptance", "key", "value", "output"];

/// The one tensor of what channels mix by as one for each letter.
fn unfuse(model: &mut Model<'_>, root: &str, stem: &str, letters: &[&str]) {
    for layer in 0..model.layers {
        let (_, numbers) = model.take(layer, "time_mix_lerp_fused.weight").unwrap();
        let width = numbers.len() / letters.len();
        for (letter, numbers) in letters.iter().zip(numbers.chunks_exact(width)) {
            let name = format!("{root}{layer}.{stem}{letter}");
            model.put(name, (vec![1, 1, width as u64], numbers.to_vec()));
        }
    }
}

/// Two parts of as many as there are in each other's place.
fn exchange(numbers: &mut [f32], parts: usize, one: usize, other: usize) {
    let each = numbers.len() / parts;
    (0..each).for_each(|at| numbers.swap(one * each + at, other * each + at));
}

/// The tensors of a zoo file as the folder of its family has them.
pub(super) fn tensors(mut model: Model<'_>) -> Vec<Stored> {
    if model.arch == "arwkv7" {
        unfuse(&mut model, "model.layers.", "self_attn.time_mixer.x_", &LETTERS);
        let names = first_spelling(&mut model, "self_attn.time_mixer");
        let names: Vec<(&str, &str)> =
            names.iter().map(|(here, there)| (&**here, &**there)).collect();
        return model.named(QWEN, "model.layers.", &[GATED, &*names].concat());
    }
    unfuse(&mut model, "model.layers.", "self_attn.time_maa_", &["w", "k", "v", "r", "g"]);
    model.all(&|name, (shape, numbers)| {
        let part = name.rsplit_once("time_mix_").map(|(_, part)| part).unwrap_or_default();
        match part {
            "w1.weight" | "w2.weight" => exchange(numbers, 5, 0, 3),
            "lerp_x.weight" | "decay.weight" => drop(shape.splice(0..0, [1, 1])),
            _ => {}
        }
    });
    model.turn(&["time_mix_w1", "time_mix_w2", "time_mix_decay_w1", "time_mix_decay_w2"]);
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
    model.named(QWEN, "model.layers.", &[GATED, &names].concat())
}

/// Matrices of small rank with inputs before outputs, vectors with dimensions of one, and what these are called.
fn first_spelling(model: &mut Model<'_>, within: &str) -> Vec<(String, String)> {
    model.turn(&THIN.map(|part| format!("time_mix_{part}")).each_ref().map(|part| &**part));
    heads(model);
    model.all(&|name, (shape, _)| {
        let is = |part: &&str| name.ends_with(&format!("time_mix_{part}.weight"));
        if VECTORS.iter().any(is) {
            shape.splice(0..0, [1, 1]);
        }
    });
    let bare = THIN.iter().chain(&VECTORS).chain(&["r_k"]);
    let bare = bare.map(|part| (format!("time_mix_{part}.weight"), format!("{within}.{part}")));
    let named =
        MATRICES.iter().map(|part| (format!("time_mix_{part}"), format!("{within}.{part}")));
    bare.chain(named).chain([("time_mix_ln".to_owned(), format!("{within}.ln_x"))]).collect()
}

/// How much a token counts for itself, by heads.
fn heads(model: &mut Model<'_>) {
    let head = model.number("wkv.head_size") as u64;
    model.each(&["time_mix_r_k"], &|(shape, numbers): Numbers| {
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
fn qwen_with_a_memory_becomes_what_the_engine_reads() {
    case("arwkv7", "RwkvHybridForCausalLM")
        .keys(&SIZES)
        .fixed(json!({"num_attention_heads": 2, "wkv_version": 7, "wkv_has_gate": true}))
        // What stands in the file's first layer is of no use there.
        .but(&[
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
        .fixed(json!({"num_attention_heads": 4}))
        .but(&["context_length", "vocab_size"])
        .check();
}

/// Keys of the file that folders of both spellings become.
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
fn rwkv_7_becomes_what_the_engine_reads() {
    let gguf = zoo("rwkv7");
    let mut model = Model::of(&gguf);
    // As one tensor, which some folders have.
    for layer in 0..model.layers {
        let (_, numbers) = model.take(layer, "time_mix_lerp_fused.weight").unwrap();
        let shape = vec![6, 1, 1, numbers.len() as u64 / 6];
        model.put(format!("model.blocks.{layer}.attention.x_x"), (shape, numbers));
    }
    let names = first_spelling(&mut model, "attention");
    let own = [
        ("attn_norm", "ln1"),
        ("attn_norm_2", "ln2"),
        ("channel_mix_lerp_k.weight", "feed_forward.x_k"),
        ("channel_mix_key", "feed_forward.key"),
        ("channel_mix_value", "feed_forward.value"),
    ];
    let names: Vec<(&str, &str)> = names.iter().map(|(here, there)| (&**here, &**there)).collect();
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
    sizes(&mut config, SIZES.map(|(there, _)| there));
    let tensors = model.named(&whole, "model.blocks.", &[&own, &*names].concat());
    alone::check("rwkv7", &tensors, &config, vocabulary(), &KEYS);

    let mut model = Model::of(&gguf);
    unfuse(&mut model, "model.layers.", "attn.x_", &LETTERS);
    heads(&mut model);
    // The first layer has none of these.
    for part in ["v0", "v1", "v2"] {
        model.take(0, &format!("time_mix_{part}.weight")).unwrap();
    }
    let tensors = model.named(&MODULES_WHOLE, "model.layers.", &MODULES);
    let mut config = json!({"architectures": ["RWKV7ForCausalLM"], "hidden_size": 128, "num_hidden_layers": 3,
        "intermediate_size": 96, "norm_eps": 1e-5});
    let there =
        ["head_dim", "decay_low_rank_dim", "a_low_rank_dim", "v_low_rank_dim", "gate_low_rank_dim"];
    sizes(&mut config, there);
    alone::check("rwkv7", &tensors, &config, vocabulary(), &KEYS);
}

const MODULES_WHOLE: [(&str, &str); 4] = [
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
