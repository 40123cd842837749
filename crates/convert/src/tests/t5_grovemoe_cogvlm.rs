//! Families with unusual tensors: Chameleon, CogVLM, PaddleOCR-VL, GroveMoE, Granite Switch, and T5
//! with encoder and decoder.

use puna_gguf::Gguf;
use serde_json::{Value, json};

use super::config::folder_config;
use super::families::case;
use super::fixtures::{StoredTensor, bytes, values, zoo};
use super::folder_tensors::{LLAMA, llama_names};
use super::llama_like::deinterleaved;
use super::zoo_model::ZooModel;
use super::{compare, convert_tensors, folder_of};

/// The tensors of a zoo file under the names of a folder.
pub(super) fn tensors(mut model: ZooModel<'_>) -> Vec<StoredTensor> {
    match &*model.arch.clone() {
        "paddleocr" => llama_names(model, &[]),
        "chameleon" => {
            model.deinterleave_rope_pairs();
            model.for_parts(&["attn_q_norm", "attn_k_norm"], &|(shape, numbers)| {
                let heads = shape[0] as usize;
                (shape, deinterleaved(&numbers, numbers.len(), heads))
            });
            model.put("model.vqmodel.quantize.embedding.weight".to_owned(), (vec![1], vec![0.0]));
            llama_names(model, &[])
        }
        "grovemoe" => {
            for (experts, source) in [("exps", "experts"), ("chexps", "chunk_experts")] {
                let names = ["gate", "up", "down"].map(|part| {
                    (format!("ffn_{part}_{experts}"), format!("mlp.{source}.{{}}.{part}_proj"))
                });
                let names = names.each_ref().map(|(target, source)| (&**target, &**source));
                model.experts("model.layers.", &names);
            }
            model.put("model.layers.0.mlp.expert_bias".to_owned(), (vec![1], vec![0.0]));
            llama_names(model, &[])
        }
        other => panic!("{other}"),
    }
}

#[test]
fn paddleocr_chameleon_and_grovemoe_round_trip() {
    case("paddleocr", "PaddleOCRVLForConditionalGeneration")
        .config(json!({"rope_scaling": {"type": "default", "mrope_section": [2, 2, 2]}, "rope_theta": 10000.0,
            "rope_parameters": null, "tie_word_embeddings": true}))
        .ignoring(&["rope.dimension_count"])
        .check();
    case("chameleon", "ChameleonForConditionalGeneration").check();
    case("chameleon-swin", "ChameleonForConditionalGeneration")
        .keys(&[("swin_norm", "swin_norm")])
        .check();
    case("grovemoe", "GroveMoeForCausalLM")
        // The conversion writes the values of all published models.
        .ignoring(&["experts_per_group", "expert_group_scale", "expert_chunk_feed_forward_length"])
        .check();
}

/// A group expert is shared by several experts; no layer may lack one.
#[test]
fn missing_group_experts_of_grovemoe_are_rejected() {
    let want = zoo("grovemoe");
    let (all, config) =
        (tensors(ZooModel::of(&want)), folder_config(&want, "GroveMoeForCausalLM", None));
    let named =
        |layer: &str, expert: &str| format!("model.layers.{layer}.mlp.chunk_experts.{expert}.");
    let in_all = |expert: &str| format!(".mlp.chunk_experts.{expert}");
    for (lost, missing) in [
        (named("1", "2") + "up_proj", named("1", "2") + "up_proj.weight"),
        (named("1", "2"), named("1", "2") + "gate_proj.weight"),
        // Nine experts cannot be split into two groups.
        (in_all("2"), named("0", "2") + "gate_proj.weight"),
        (in_all(""), named("0", "0") + "gate_proj.weight"),
    ] {
        let stored: Vec<StoredTensor> =
            all.iter().filter(|(name, ..)| !name.contains(&lost)).cloned().collect();
        let error = convert_tensors("grovemoe", &stored, config.clone()).err().unwrap();
        assert!(error.contains(&format!("tensor {missing} is missing")), "{lost}: {error}");
    }
}

/// Compares tensors of the same names, except the first `skipped` values of each.
fn assert_close(made: &Gguf, want: &Gguf, name: &str, skipped: usize) {
    let [found, of] =
        [made, want].map(|gguf| gguf.tensor(name).unwrap_or_else(|| panic!("{name}")));
    assert_eq!(found.shape, of.shape, "{name}");
    for (a, b) in values(made, found).into_iter().zip(values(want, of)).skip(skipped) {
        assert!((a - b).abs() <= b.abs() * 1e-3 + 1e-5, "{name} has {a} for {b}");
    }
}

#[test]
fn cogvlm_imports_only_language_matrices() {
    let want = zoo("cogvlm");
    let mut model = ZooModel::of(&want);
    let own = [
        ("attn_qkv", "self_attn.language_expert_query_key_value"),
        ("attn_output", "self_attn.language_expert_dense"),
        ("vis_attn_qkv", "self_attn.vision_expert_query_key_value"),
        ("vis_attn_output", "self_attn.vision_expert_dense"),
        ("ffn_gate", "mlp.language_mlp.gate_proj"),
        ("ffn_up", "mlp.language_mlp.up_proj"),
        ("ffn_down", "mlp.language_mlp.down_proj"),
        ("vis_gate", "mlp.vision_mlp.gate_proj"),
        ("vis_up", "mlp.vision_mlp.up_proj"),
        ("vis_down", "mlp.vision_mlp.down_proj"),
    ];
    model.put("model.vision.boi".to_owned(), (vec![1], vec![0.0]));
    let config = folder_config(&want, "CogVLMForCausalLM", None);
    let made = convert_tensors("cogvlm", &llama_names(model, &own), config).unwrap();
    for tensor in want.tensors() {
        match tensor.name.contains(".vis_") {
            true => assert!(made.tensor(&tensor.name).is_none(), "{}", tensor.name),
            false => assert_close(&made, &want, &tensor.name, 0),
        }
    }
    for key in
        ["attention.head_count", "attention.head_count_kv", "block_count", "feed_forward_length"]
    {
        let key = format!("cogvlm.{key}");
        assert_eq!(made.metadata().u32(&key), want.metadata().u32(&key));
    }
}

/// Modules with adapters: module, slice, target, and number of rotated heads.
fn adapted_modules(heads: [usize; 2]) -> [(&'static str, &'static str, &'static str, usize); 7] {
    [
        ("attn_q", "self_attn.qkv_proj", "_slices.0", heads[0]),
        ("attn_k", "self_attn.qkv_proj", "_slices.1", heads[1]),
        ("attn_v", "self_attn.qkv_proj", "_slices.2", 0),
        ("attn_output", "self_attn.o_proj", "", 0),
        ("ffn_gate", "shared_mlp.input_linear", "_slices.0", 0),
        ("ffn_up", "shared_mlp.input_linear", "_slices.1", 0),
        ("ffn_down", "shared_mlp.output_linear", "", 0),
    ]
}

#[test]
fn granite_switch_adapters_are_stored_after_an_adapter_of_zeros() {
    let want = zoo("graniteswitch");
    let mut model = ZooModel::of(&want);
    let heads = [model.heads(), model.kv_heads()];
    for layer in 0..model.layers {
        for (part, module, slice, turning) in adapted_modules(heads) {
            for (target, source) in [("lora_a", "lora_A"), ("lora_b", "lora_B")] {
                let (shape, numbers) = model.take(layer, &format!("{part}.{target}")).unwrap();
                let each = numbers.len() / shape[0] as usize;
                let apart = |numbers: &[f32]| match turning {
                    heads if heads > 0 && target == "lora_b" => {
                        deinterleaved(numbers, shape[1] as usize, heads)
                    }
                    _ => numbers.to_vec(),
                };
                let adapters = numbers[each..].chunks_exact(each).flat_map(apart).collect();
                let name = format!("model.layers.{layer}.{module}.{source}{slice}");
                model.put(name, (vec![shape[0] - 1, 1, shape[1], shape[2]], adapters));
            }
        }
        let (shape, numbers) = model.take(layer, "attn_qkv.weight").unwrap();
        let (rows, columns) = (shape[0] as usize, shape[1] as usize);
        let head = rows / (heads[0] + 2 * heads[1]);
        let (q, rest) = numbers.split_at(heads[0] * head * columns);
        let (k, v) = rest.split_at(heads[1] * head * columns);
        let q = deinterleaved(q, heads[0] * head, heads[0]);
        let k = deinterleaved(k, heads[1] * head, heads[1]);
        model.put_back(layer, "attn_qkv.weight", (shape, [&q[..], &k, v].concat()));
    }
    model.join_rows(&["ffn_gate", "ffn_up"], "both");
    let own = [
        ("attn_qkv", "self_attn.qkv_proj.base_layer"),
        ("attn_output", "self_attn.o_proj.base_layer"),
        ("both", "shared_mlp.input_linear.base_layer"),
        ("ffn_down", "shared_mlp.output_linear.base_layer"),
    ];
    model.put("model.switch.adapter_token_ids".to_owned(), (vec![1], vec![0.0]));
    let stored = model.into_folder_tensors(
        &[
            ("token_embd", "model.embed_tokens"),
            ("output_norm", "model.norm"),
            ("output", "lm_head"),
        ],
        "model.layers.",
        &[&own[..], LLAMA].concat(),
    );
    let mut config = folder_config(&want, "GraniteSwitchForCausalLM", None);
    config["num_hidden_layers"] = 3.into();
    config["shared_intermediate_size"] = config["intermediate_size"].clone();
    config["num_adapters"] = 3.into();
    config["max_lora_rank"] = 5.into();
    config["adapter_token_ids"] = json!([211, 35, 140]);
    config["adapter_substitute_token_ids"] = json!([17, 99, 140]);
    let made = convert_tensors("graniteswitch", &stored, config.clone()).unwrap();
    for tensor in want.tensors().iter().filter(|tensor| &*tensor.name != "output.weight") {
        let none = if tensor.name.contains("lora_") { tensor.elements() / 4 } else { 0 };
        assert_close(&made, &want, &tensor.name, none as usize);
        if none > 0 {
            let found = values(&made, made.tensor(&tensor.name).unwrap());
            assert!(found[..none as usize].iter().all(|x| *x == 0.0), "{}", tensor.name);
        }
    }
    let meta = made.metadata();
    for key in ["adapters.count", "adapters.lora_rank", "block_count", "feed_forward_length"] {
        let key = format!("graniteswitch.{key}");
        assert_eq!(meta.u32(&key), want.metadata().u32(&key), "{key}");
    }
    for key in ["adapters.token_ids_activate", "adapters.token_ids_substitute"] {
        let key = format!("graniteswitch.{key}");
        assert_eq!(meta.u32s(&key), want.metadata().u32s(&key), "{key}");
    }
    assert_eq!(meta.f32("graniteswitch.adapters.router_gain"), Ok(15.0));
    // A missing matrix of an adapter is an error.
    let lacking: Vec<StoredTensor> =
        stored.iter().filter(|(name, ..)| !name.ends_with("o_proj.lora_B")).cloned().collect();
    let error = convert_tensors("graniteswitch", &lacking, config.clone()).err().unwrap();
    assert!(error.contains("self_attn.o_proj.lora_B"), "{error}");
    // Different numbers of adapters are an error.
    for key in ["adapter_token_ids", "adapter_substitute_token_ids"] {
        let mut config = config.clone();
        config[key] = json!([211, 35]);
        let error = convert_tensors("graniteswitch", &stored, config).err().unwrap();
        assert!(
            error.contains(&format!("`{key}` must be a list with a token for each")),
            "{error}"
        );
    }
    config["num_adapters"] = 2.into();
    config["adapter_token_ids"] = json!([211, 35]);
    config["adapter_substitute_token_ids"] = json!([17, 99]);
    let error = convert_tensors("graniteswitch", &stored, config).err().unwrap();
    assert!(error.contains("has shape [3, 1, 5, 48], expected [2, 1, 0, 0]"), "{error}");
}

/// The tensors of T5 as in folders, with a given name of the token embedding.
fn t5(gguf: &Gguf, table: &str) -> Vec<StoredTensor> {
    let part = |stack: &str, part: &str| -> String {
        let last = if stack == "encoder" { 1 } else { 2 };
        let gated = gguf.tensor("enc.blk.0.ffn_gate.weight").is_some();
        let up = if gated { "wi_1" } else { "wi" };
        match part {
            "attn_rel_b" => "layer.0.SelfAttention.relative_attention_bias".into(),
            "attn_norm" => "layer.0.layer_norm".into(),
            "cross_attn_norm" => "layer.1.layer_norm".into(),
            "ffn_norm" => format!("layer.{last}.layer_norm"),
            "ffn_gate" => format!("layer.{last}.DenseReluDense.wi_0"),
            "ffn_up" => format!("layer.{last}.DenseReluDense.{up}"),
            "ffn_down" => format!("layer.{last}.DenseReluDense.wo"),
            _ => match part.strip_prefix("cross_attn_") {
                Some(letter) => format!("layer.1.EncDecAttention.{letter}"),
                None => format!("layer.0.SelfAttention.{}", part.strip_prefix("attn_").unwrap()),
            },
        }
    };
    let name = |name: &str| -> String {
        let stem = name.strip_suffix(".weight").unwrap();
        match stem {
            "token_embd" => table.to_owned(),
            "output" => "lm_head".into(),
            "enc.output_norm" => "encoder.final_layer_norm".into(),
            "dec.output_norm" => "decoder.final_layer_norm".into(),
            _ => {
                let (stack, rest) = stem.split_once(".blk.").unwrap();
                let stack = if stack == "enc" { "encoder" } else { "decoder" };
                let (layer, rest) = rest.split_once('.').unwrap();
                format!("{stack}.block.{layer}.{}", part(stack, rest))
            }
        }
    };
    let stored = |tensor: &puna_gguf::TensorInfo| {
        let shape = tensor.shape.iter().rev().copied().collect();
        (name(&tensor.name) + ".weight", "F32", shape, bytes(&values(gguf, tensor), "F32"))
    };
    gguf.tensors().iter().map(stored).collect()
}

fn t5_config(gguf: &Gguf, class: &str, layers: [u32; 2], gated: bool, tied: bool) -> Value {
    let mut config = folder_config(gguf, class, None);
    for key in [
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
    ] {
        config.as_object_mut().unwrap().remove(key);
    }
    let own = json!({"d_model": 48, "d_kv": 20, "d_ff": 64, "num_heads": 4, "num_layers": layers[0],
        "num_decoder_layers": layers[1], "relative_attention_num_buckets": 12, "layer_norm_epsilon": 1e-6,
        "n_positions": 96, "decoder_start_token_id": 7, "tie_word_embeddings": tied,
        "feed_forward_proj": if gated { "gated-gelu" } else { "relu" }});
    config.as_object_mut().unwrap().extend(own.as_object().unwrap().clone());
    config
}

#[test]
fn t5_encoder_and_decoder_round_trip() {
    for (name, class, layers, gated, tied) in [
        ("t5", "T5ForConditionalGeneration", [2, 3], true, false),
        ("t5-tied", "T5WithLMHeadModel", [2, 2], false, true),
        ("t5-umt5", "UMT5ForConditionalGeneration", [2, 2], true, false),
    ] {
        // Folders have one of the token embeddings, some have all.
        for tables in
            [&["shared"][..], &["decoder.embed_tokens"], &["shared", "encoder.embed_tokens"]]
        {
            let want = zoo(name);
            let mut stored = t5(&want, tables[0]);
            for twin in &tables[1..] {
                let table =
                    stored.iter().find(|(name, ..)| name.starts_with(tables[0])).unwrap().clone();
                stored.push((format!("{twin}.weight"), table.1, table.2, table.3));
            }
            let odd = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight";
            stored.push((odd.to_owned(), "F32", vec![1], bytes(&[0.0], "F32")));
            let config = t5_config(&want, class, layers, gated, tied);
            let folder = folder_of(&want, &stored, config);
            compare(name, &want, &folder, &["t5.vocab_size"]);
        }
    }
}

#[test]
fn t5_output_and_activation_are_resolved_or_rejected() {
    let want = zoo("t5-tied");
    let config = |tied| t5_config(&want, "T5ForConditionalGeneration", [2, 2], false, tied);
    // If embeddings are not tied, the file has a separate output matrix, although it equals the
    // embedding.
    let made = convert_tensors("t5-tied", &t5(&want, "shared"), config(false)).unwrap();
    let [table, output] =
        ["token_embd.weight", "output.weight"].map(|name| made.tensor(name).unwrap());
    assert!(made.data(table) == made.data(output) && table.ty == output.ty);
    let mut gated = config(true);
    gated["feed_forward_proj"] = "gated-silu".into();
    let error = convert_tensors("t5-tied", &t5(&want, "shared"), gated).err().unwrap();
    assert!(
        error.contains(
            "`feed_forward_proj` is gated-silu, but GGUF files of t5 support only relu and gated-gelu"
        ),
        "{error}"
    );
    for lost in [
        "encoder.block.1.layer.0.SelfAttention.v.weight",
        "decoder.block.1.layer.1.EncDecAttention.k.weight",
    ] {
        let stored: Vec<StoredTensor> =
            t5(&want, "shared").into_iter().filter(|(name, ..)| name != lost).collect();
        let error = convert_tensors("t5-tied", &stored, config(true)).err().unwrap();
        assert!(error.contains("blk.1") && error.contains("missing"), "{lost}: {error}");
    }
}
