//! Families with unusual conversions: Talkie, HRM-Text, PLaMo 2, BitNet, and two embedding models.

use serde_json::json;

use super::config::folder_config;
use super::convert_tensors;
use super::families::case;
use super::fixtures::{StoredTensor, bytes, values, zoo};
use super::folder_tensors::LLAMA;
use super::llama_like::llama_like_tensors;
use super::zoo_model::ZooModel;

type Names<'a> = &'a [(&'a str, &'a str)];

/// The tensors of a zoo file under the names of a folder.
pub(super) fn tensors(mut model: ZooModel<'_>) -> Vec<StoredTensor> {
    match &*model.arch.clone() {
        "llama-embed" => {
            model.deinterleave_rope_pairs();
            let whole =
                [("token_embd", "embed_tokens"), ("output_norm", "norm"), ("output", "lm_head")];
            model.into_folder_tensors(&whole, "layers.", LLAMA)
        }
        "jina-bert-v3" => jina(model),
        "talkie" => talkie(model),
        "hrm_text" => hrm(model),
        "plamo2" => plamo2(model),
        other => panic!("{other}"),
    }
}

/// Jina: parametrized weights beside their task adapters.
fn jina(mut model: ZooModel<'_>) -> Vec<StoredTensor> {
    model.join_rows(&["attn_q", "attn_k", "attn_v"], "attn_qkv");
    model.for_all(&|name, (shape, _)| {
        if name == "token_types.weight" {
            *shape = vec![1, shape[0]];
        }
    });
    for (name, shape) in [
        ("encoder.layers.0.mixer.Wqkv.parametrizations.weight.0.lora_A", vec![1, 1, 4]),
        ("embeddings.word_embeddings.parametrizations.weight.0.lora_B", vec![1, 4, 1]),
        ("pooler.dense.parametrizations.weight.original", vec![2, 2]),
        ("pooler.dense.parametrizations.weight.0.lora_A", vec![1, 1, 4]),
    ] {
        model.put(format!("roberta.{name}"), (shape, vec![1.0; 4]));
    }
    let computed = |source: &str| format!("{source}.parametrizations.weight.original");
    let whole = [
        ("token_embd.weight", computed("roberta.embeddings.word_embeddings")),
        ("token_types.weight", computed("roberta.embeddings.token_type_embeddings")),
        ("token_embd_norm", "roberta.emb_ln".to_owned()),
    ];
    let mut names =
        vec![("attn_output_norm", "norm1".to_owned()), ("layer_output_norm", "norm2".to_owned())];
    for (weight, bias, source) in [
        ("attn_qkv.weight", "attn_qkv.bias", "mixer.Wqkv"),
        ("attn_output.weight", "attn_output.bias", "mixer.out_proj"),
        ("ffn_up.weight", "ffn_up.bias", "mlp.fc1"),
        ("ffn_down.weight", "ffn_down.bias", "mlp.fc2"),
    ] {
        names.extend([(weight, computed(source)), (bias, format!("{source}.bias"))]);
    }
    model.into_folder_tensors(&pairs(&whole), "roberta.encoder.layers.", &pairs(&names))
}

fn pairs<'a>(names: &'a [(&'static str, String)]) -> Vec<(&'a str, &'a str)> {
    names.iter().map(|(target, source)| (*target, &**source)).collect()
}

/// Talkie rotates in the opposite direction: the second half of each head is negated.
fn talkie(mut model: ZooModel<'_>) -> Vec<StoredTensor> {
    model.for_parts(&["attn_q", "attn_k"], &|(shape, mut numbers)| {
        let columns = shape[1] as usize;
        for (row, numbers) in numbers.chunks_exact_mut(columns).enumerate() {
            if row % 12 >= 6 {
                numbers.iter_mut().for_each(|x| *x = -*x);
            }
        }
        (shape, numbers)
    });
    model.for_parts(&["attn_q_norm"], &|(shape, numbers)| (vec![shape[0]], numbers));
    model.put("lm_head_gain.w_g".to_owned(), (vec![1], vec![0.6]));
    let names = [
        ("attn_q", "attn.attn_query"),
        ("attn_k", "attn.attn_key"),
        ("attn_v", "attn.attn_value"),
        ("attn_output", "attn.attn_resid"),
        ("attn_q_norm.weight", "attn.head_gain.head_g"),
        ("ffn_gate", "mlp.mlp_gate"),
        ("ffn_up", "mlp.mlp_linear"),
        ("ffn_down", "mlp.mlp_resid"),
        ("layer_output_scale.weight", "embed_skip.a_g"),
    ];
    model.into_folder_tensors(
        &[("token_embd", "model.embed"), ("output.weight", "lm_head")],
        "model.blocks.",
        &names,
    )
}

/// HRM-Text has two stacks of equal depth.
fn hrm(mut model: ZooModel<'_>) -> Vec<StoredTensor> {
    let depth = model.number("hrm.layers_per_stack");
    model.join_rows(&["attn_gate", "attn_q", "attn_k", "attn_v"], "all");
    model.join_rows(&["ffn_gate", "ffn_up"], "both");
    let whole = [
        ("token_embd", "model.embed_tokens"),
        ("output", "lm_head"),
        ("hrm.z_l_init", "model.z_L_init"),
    ];
    let names = [
        ("all", "attn.gqkv_proj"),
        ("attn_output", "attn.o_proj"),
        ("both", "mlp.gate_up_proj"),
        ("ffn_down", "mlp.down_proj"),
    ];
    let mut tensors = model.into_folder_tensors(&whole, "layers.", &names);
    for (name, ..) in &mut tensors {
        let Some((layer, part)) =
            name.strip_prefix("layers.").and_then(|rest| rest.split_once('.'))
        else {
            continue;
        };
        let layer: usize = layer.parse().unwrap();
        let stack = if layer < depth { "L" } else { "H" };
        *name = format!("model.{stack}_module.layers.{}.{part}", layer % depth);
    }
    tensors
}

fn plamo2(mut model: ZooModel<'_>) -> Vec<StoredTensor> {
    model.for_all(&|name, (shape, numbers)| {
        let from = match name.rsplit('.').next().unwrap() {
            "post_attention_norm" => 1.0 / 5.0,
            "post_ffw_norm" => 1.0 / 5f32.powf(1.5),
            "ssm_a" => {
                numbers.iter_mut().for_each(|x| *x = (-*x).ln());
                return;
            }
            _ if name.contains("attn_q_norm") || name.contains("attn_k_norm") => 0.0,
            _ if name.ends_with("norm.weight") => 1.0,
            _ => 0.0,
        };
        numbers.iter_mut().for_each(|x| *x -= from);
        if name.ends_with("conv1d.weight") {
            shape.insert(1, 1);
        }
    });
    let names = [
        ("attn_norm", "pre_mixer_norm"),
        ("attn_qkv", "mixer.qkv_proj"),
        ("attn_q_norm.weight", "mixer.q_weight"),
        ("attn_k_norm.weight", "mixer.k_weight"),
        ("attn_output", "mixer.o_proj"),
        ("post_attention_norm", "post_mixer_norm.weight"),
        ("ffn_norm", "pre_mlp_norm"),
        ("ffn_up", "mlp.gate_up_proj"),
        ("ffn_down", "mlp.down_proj"),
        ("post_ffw_norm", "post_mlp_norm.weight"),
        ("ssm_in", "mixer.in_proj"),
        ("ssm_conv1d", "mixer.conv1d"),
        ("ssm_x", "mixer.bcdt_proj"),
        ("ssm_dt.bias", "mixer.dt_bias"),
        ("ssm_dt", "mixer.dt_proj"),
        ("ssm_a", "mixer.A_log"),
        ("ssm_d", "mixer.D"),
        ("ssm_dt_norm", "mixer.dt_norm_weight"),
        ("ssm_b_norm", "mixer.B_norm_weight"),
        ("ssm_c_norm", "mixer.C_norm_weight"),
        ("ssm_out", "mixer.out_proj"),
    ];
    let whole = [("token_embd", "model.embed_tokens"), ("output_norm", "model.norm")];
    model.into_folder_tensors(&whole, "model.layers.layers.", &names)
}

#[test]
fn talkie_hrm_plamo2_and_embedders_round_trip() {
    case("llama-embed", "LlamaBidirectionalModel").ignoring(&["pooling_type"]).check();
    case("jina-bert-v3", "XLMRobertaModel")
        .config(
            json!({"lora_adaptations": ["retrieval.query"], "max_position_embeddings": 514, "pad_token_id": 1,
            "type_vocab_size": 1}),
        )
        .ignoring(&["pooling_type", "vocab_size", "head_count_kv"])
        .check();
    case("talkie", "TalkieForCausalLM")
        .config(json!({"head_dim": 12}))
        .ignoring(&["layer_norm_rms_epsilon"])
        .check();
    let keys = [
        ("H_cycles", "hrm.h_cycles"),
        ("L_cycles", "hrm.l_cycles"),
        ("embedding_scale", "embedding_scale"),
    ];
    case("hrm_text", "HrmTextForCausalLM")
        .keys(&[&keys[..], &[("num_layers_per_stack", "hrm.layers_per_stack")]].concat())
        .check();
    // Older configurations have the number of layers of a stack.
    case("hrm_text", "HrmTextForCausalLM")
        .keys(&keys)
        .config(json!({"num_hidden_layers": 2}))
        .check();
    case("plamo2", "Plamo2ForCausalLM")
        .config(
            json!({"num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size_per_head": 16,
            "mamba_num_heads": 4, "mamba_d_state": 16, "mamba_d_conv": 4, "mamba_step": 2}),
        )
        // The zoo's file gives heads to layers without attention.
        .ignoring(&["attention.head_count"])
        .check();
}

#[test]
fn talkie_gains_scale_its_matrices() {
    let want = zoo("talkie");
    let mut stored = tensors(ZooModel::of(&want));
    for (layer, part) in [(0, "attn_gain"), (1, "attn_gain"), (0, "mlp_gain"), (1, "mlp_gain")] {
        let name = format!("model.blocks.{layer}.{part}.a_g");
        stored.push((name, "F32", vec![1], bytes(&[layer as f32 + 0.5], "F32")));
    }
    let mut config = folder_config(&want, "TalkieForCausalLM", None);
    config["head_dim"] = 12.into();
    let made = convert_tensors("talkie", &stored, config).unwrap();
    for part in ["attn_output.scale", "ffn_down.scale"] {
        let of = |layer: u32| values(&made, made.tensor(&format!("blk.{layer}.{part}")).unwrap());
        assert_eq!([of(0), of(1)], [[0.5], [1.5]], "{part}");
    }
}

const BITNET: Names<'_> =
    &[("attn_sub_norm", "self_attn.inner_attn_ln"), ("ffn_sub_norm", "mlp.ffn_layernorm")];

/// BitNet's weights are rounded to -s, 0 and s, where s is their mean magnitude.
#[test]
fn bitnet_matrices_are_rounded_to_ternary() {
    let want = zoo("bitnet");
    let mut model = ZooModel::of(&want);
    let parts = ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"];
    for (layer, part) in (0..model.layers).flat_map(|layer| parts.map(|part| (layer, part))) {
        // Converted folders have no separate scales.
        model.take(layer, &format!("{part}.scale")).unwrap();
    }
    let whole = [("token_embd", "model.embed_tokens"), ("output_norm", "model.norm")];
    let stored = model.into_folder_tensors(&whole, "model.layers.", &[BITNET, LLAMA].concat());
    let mut config = folder_config(&want, "BitnetForCausalLM", None);
    config["tie_word_embeddings"] = true.into();
    let made = convert_tensors("bitnet", &stored, config.clone()).unwrap();
    for tensor in want.tensors().iter().filter(|tensor| !tensor.name.ends_with(".scale")) {
        let mut numbers = values(&want, tensor);
        if parts.iter().any(|part| tensor.name.ends_with(&format!(".{part}.weight"))) {
            let sum: f64 = numbers.iter().map(|x| f64::from(x.abs())).sum();
            let size = (sum / numbers.len() as f64) as f32;
            let nearest = |x: f32| if x.abs() < size / 2.0 { 0.0 } else { size.copysign(x) };
            numbers.iter_mut().for_each(|x| *x = nearest(*x));
            assert!(numbers.contains(&0.0) && numbers.contains(&size), "{}", tensor.name);
        }
        let found =
            values(&made, made.tensor(&tensor.name).unwrap_or_else(|| panic!("{}", tensor.name)));
        assert_eq!(found.len(), numbers.len());
        for (a, b) in found.into_iter().zip(numbers) {
            assert!((a - b).abs() <= b.abs() * 1e-3 + 1e-6, "{} has {a} for {b}", tensor.name);
        }
    }
    assert!(made.tensors().iter().all(|tensor| want.tensor(&tensor.name).is_some()));
    for key in ["block_count", "embedding_length", "feed_forward_length", "attention.head_count_kv"]
    {
        let key = format!("bitnet.{key}");
        assert_eq!(made.metadata().get(&key), want.metadata().get(&key), "{key}");
    }
    // An activation without metadata key is rejected.
    config["hidden_act"] = "gelu".into();
    let error = convert_tensors("bitnet", &stored, config).err().unwrap();
    assert!(
        error.contains("`hidden_act` is gelu, but GGUF files of bitnet support only silu"),
        "{error}"
    );
}

/// Packs four values a byte, whose rows are a quarter of the matrix apart.
fn packed(values: &[u8], columns: usize) -> Vec<u8> {
    let plane = values.len() / columns / 4 * columns;
    (0..plane)
        .map(|at| (0..4).fold(0, |byte, k| byte | values[k * plane + at] << (2 * k)))
        .collect()
}

/// Packed ternary matrices with a scale are converted unchanged, in BitNet and in other families.
#[test]
fn packed_ternary_matrices_are_unpacked() {
    let parts = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"];
    let names =
        [("attn_sub_norm", "self_attn.attn_sub_norm"), ("ffn_sub_norm", "mlp.ffn_sub_norm")];
    for (name, class, act, linear, becomes, size) in [
        ("bitnet", "BitNetForCausalLM", "relu2", "autobitlinear", "bitnet-b1.58", 0.75f32),
        ("llama", "LlamaForCausalLM", "silu", "bitlinear", "llama", 4.0),
    ] {
        let want = zoo(name);
        let model = ZooModel::of(&want);
        let whole = [
            ("token_embd", "model.embed_tokens"),
            ("output_norm", "model.norm"),
            ("output", "lm_head"),
        ];
        let mut stored =
            model.into_folder_tensors(&whole, "model.layers.", &[&names[..], LLAMA].concat());
        stored.retain(|tensor| !tensor.0.ends_with(".scale"));
        let is_packed = |tensor: &StoredTensor| {
            parts.iter().any(|part| tensor.0.ends_with(&format!("{part}.weight")))
        };
        let mut scales = Vec::new();
        for tensor in stored.iter_mut().filter(|tensor| is_packed(tensor)) {
            let (rows, columns) = (tensor.2[0] as usize, tensor.2[1] as usize);
            // Rows of -1, 0 and 1 in rotation, each with another start.
            let values: Vec<u8> =
                (0..rows * columns).map(|at| ((at + at / columns) % 3) as u8).collect();
            (tensor.1, tensor.2[0], tensor.3) = ("U8", rows as u64 / 4, packed(&values, columns));
            let scale = tensor.0.replace(".weight", ".weight_scale");
            scales.push((scale, "BF16", vec![1], bytes(&[size], "BF16")));
        }
        stored.extend(scales);
        let mut config = folder_config(&want, class, None);
        config["tie_word_embeddings"] = (name == "bitnet").into();
        config["hidden_act"] = act.into();
        config["quantization_config"] = json!({"quant_method": "bitnet", "linear_class": linear, "quantization_mode": "offline"});
        let made = convert_tensors(name, &stored, config.clone()).unwrap();
        assert_eq!(made.metadata().architecture(), Ok(becomes));
        // One linear class multiplies by the scale, the other divides.
        let size = if linear == "bitlinear" { size.recip() } else { size };
        for part in ["attn_v", "ffn_down"] {
            let tensor = made.tensor(&format!("blk.1.{part}.weight")).unwrap();
            assert_eq!(tensor.shape, want.tensor(&tensor.name).unwrap().shape);
            let columns = tensor.shape[0] as usize;
            for (at, found) in values(&made, tensor).into_iter().enumerate() {
                let value = ((at + at / columns) % 3) as f32 - 1.0;
                assert_eq!(found, value * size, "{part} at {at}");
            }
        }
        config["quantization_config"]["use_rms_norm"] = true.into();
        let error = convert_tensors(name, &stored, config).err().unwrap();
        assert!(error.contains("`use_rms_norm` is true"), "{error}");
    }
}

/// Published folders of Qwen 3 VL have experts with dimensions inputs, outputs; later ones have
/// outputs, inputs.
#[test]
fn qwen3_vl_experts_convert_in_both_layouts() {
    let want = zoo("qwen3moe");
    let number = |key: &str| want.metadata().u32(&format!("qwen3moe.{key}")).unwrap() as usize;
    let (width, inner) = (number("embedding_length"), number("expert_feed_forward_length"));
    let (experts, layers) = (number("expert_count"), number("block_count"));
    let numbers = |name: String| values(&want, want.tensor(&name).unwrap());
    let mut config = folder_config(&want, "Qwen3VLMoeForConditionalGeneration", None);
    config["vision_config"] = json!({"deepstack_visual_indexes": [0]});
    for inputs_first in [true, false] {
        let mut stored = llama_like_tensors(&want);
        stored.retain(|tensor| !tensor.0.contains(".experts."));
        for layer in 0..layers {
            let part = |part: &str| numbers(format!("blk.{layer}.ffn_{part}_exps.weight"));
            let (gate, up, down) = (part("gate"), part("up"), part("down"));
            let matrix = width * inner;
            let both = gate
                .chunks(matrix)
                .zip(up.chunks(matrix))
                .flat_map(|(gate, up)| [gate, up].concat());
            for (name, numbers, rows, columns) in [
                ("gate_up_proj", both.collect(), 2 * inner, width),
                ("down_proj", down, width, inner),
            ] {
                let numbers: Vec<f32> = numbers;
                let transposed = |matrix: &[f32]| -> Vec<f32> {
                    let at = |column: usize| matrix.iter().skip(column).step_by(columns).copied();
                    (0..columns).flat_map(at).collect()
                };
                let (shape, numbers) = match inputs_first {
                    true => (
                        [columns, rows],
                        numbers.chunks(rows * columns).flat_map(transposed).collect(),
                    ),
                    false => ([rows, columns], numbers),
                };
                let shape = [&[experts as u64][..], &shape.map(|n| n as u64)].concat();
                let name = format!("model.layers.{layer}.mlp.experts.{name}");
                stored.push((name, "F32", shape, bytes(&numbers, "F32")));
            }
        }
        let made = convert_tensors("qwen3moe", &stored, config.clone()).unwrap();
        assert_eq!(made.metadata().architecture(), Ok("qwen3vlmoe"));
        for tensor in want.tensors() {
            let found = made.tensor(&tensor.name).unwrap_or_else(|| panic!("{}", tensor.name));
            assert_eq!(found.shape, tensor.shape, "{}", tensor.name);
            for (a, b) in values(&made, found).into_iter().zip(values(&want, tensor)) {
                assert!((a - b).abs() <= b.abs() * 1e-3 + 1e-6, "{} has {a} for {b}", tensor.name);
            }
        }
    }
}

/// A model with bidirectional attention must not become a causal one.
#[test]
fn bidirectional_models_are_rejected_as_causal_families() {
    let want = zoo("qwen2");
    let mut config = folder_config(&want, "Qwen2ForCausalLM", None);
    config["is_causal"] = false.into();
    let error = convert_tensors("qwen2", &llama_like_tensors(&want), config).err().unwrap();
    assert!(error.contains("`is_causal` is false, but GGUF files of qwen2"), "{error}");
}
