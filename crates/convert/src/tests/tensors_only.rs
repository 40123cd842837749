//! Families whose zoo file has metadata of another program: only the tensors are compared.

use serde_json::json;

use super::fixtures::{Folder, StoredTensor, convert_files, safetensors, values, zoo};
use super::zoo_model::ZooModel;

/// Converts a folder with these tensors, and compares tensors and some keys with the zoo's file.
pub(super) fn check(
    name: &str,
    tensors: &[StoredTensor],
    config: &serde_json::Value,
    vocabulary: (&str, String),
    keys: &[&str],
) {
    let want = zoo(name);
    let mut folder = Folder::new();
    folder.put("model.safetensors", safetensors(tensors));
    folder.put("config.json", config.to_string());
    folder.put(vocabulary.0, vocabulary.1);
    let made = convert_files(&folder.files).unwrap_or_else(|e| panic!("{name}: {e}"));
    for key in keys {
        let key = format!("{name}.{key}");
        let (found, value) = (made.metadata().get(&key), want.metadata().get(&key));
        assert!(found.is_some() && found == value, "{name}: {key} is {found:?} for {value:?}");
    }
    assert_eq!(made.tensors().len(), want.tensors().len(), "{name}");
    for tensor in want.tensors() {
        let found = made.tensor(&tensor.name).unwrap_or_else(|| panic!("{name}: {}", tensor.name));
        // The first layer of RWKV 7 has no value residual: the file has the learning rate's tensors
        // in its place.
        let rate = ["v0", "v1", "v2"].iter().find_map(|part| {
            let number = tensor.name.strip_prefix(&format!("blk.0.time_mix_{part}."))?;
            want.tensor(&format!("blk.0.time_mix_a{}.{number}", &part[1..]))
        });
        let tensor = rate.unwrap_or(tensor);
        let sizes = |shape: &[u64]| shape.iter().copied().filter(|&n| n != 1).collect::<Vec<_>>();
        assert_eq!(sizes(&found.shape), sizes(&tensor.shape), "{name}: {}", tensor.name);
        for (a, b) in values(&made, found).into_iter().zip(values(&want, tensor)) {
            assert!(
                (a - b).abs() <= b.abs() * 1e-3 + 1e-6,
                "{name}: {} has {a} for {b}",
                tensor.name
            );
        }
    }
}

#[test]
fn rwkv_6_tensors_round_trip() {
    let gguf = zoo("rwkv6");
    let mut model = ZooModel::of(&gguf);
    for layer in 0..model.layers {
        let (_, numbers) = model.take(layer, "time_mix_lerp_fused.weight").unwrap();
        let width = numbers.len() / 5;
        for (letter, numbers) in ["w", "k", "v", "r", "g"].iter().zip(numbers.chunks_exact(width)) {
            let name = format!("rwkv.blocks.{layer}.attention.time_maa_{letter}");
            model.put(name, (vec![1, 1, width as u64], numbers.to_vec()));
        }
        // The conversion halves the outputs of the second layer.
        for part in ["time_mix_output.weight", "channel_mix_value.weight"] {
            let (shape, numbers) = model.take(layer, part).unwrap();
            let times = 2f32.powi(layer as i32);
            model.put_back(layer, part, (shape, numbers.iter().map(|x| x * times).collect()));
        }
    }
    model.transpose(&["time_mix_w1", "time_mix_w2", "time_mix_decay_w1", "time_mix_decay_w2"]);
    model.for_all(&|name, (shape, _)| {
        if ["lerp_x.weight", "lerp_k.weight", "lerp_r.weight", "time_mix_decay.weight"]
            .iter()
            .any(|end| name.ends_with(end))
        {
            shape.splice(0..0, [1, 1]);
        }
    });
    let whole = [
        ("token_embd", "rwkv.embeddings"),
        ("token_embd_norm", "rwkv.blocks.0.pre_ln"),
        ("output_norm", "rwkv.ln_out"),
        ("output", "head"),
    ];
    let names = [
        ("attn_norm", "ln1"),
        ("attn_norm_2", "ln2"),
        ("time_mix_lerp_x.weight", "attention.time_maa_x"),
        ("time_mix_w1.weight", "attention.time_maa_w1"),
        ("time_mix_w2.weight", "attention.time_maa_w2"),
        ("time_mix_decay.weight", "attention.time_decay"),
        ("time_mix_decay_w1.weight", "attention.time_decay_w1"),
        ("time_mix_decay_w2.weight", "attention.time_decay_w2"),
        ("time_mix_first.weight", "attention.time_faaaa"),
        ("time_mix_receptance", "attention.receptance"),
        ("time_mix_key", "attention.key"),
        ("time_mix_value", "attention.value"),
        ("time_mix_gate", "attention.gate"),
        ("time_mix_ln", "attention.ln_x"),
        ("time_mix_output", "attention.output"),
        ("channel_mix_lerp_k.weight", "feed_forward.time_maa_k"),
        ("channel_mix_lerp_r.weight", "feed_forward.time_maa_r"),
        ("channel_mix_key", "feed_forward.key"),
        ("channel_mix_receptance", "feed_forward.receptance"),
        ("channel_mix_value", "feed_forward.value"),
    ];
    let config = json!({"architectures": ["Rwkv6ForCausalLM"], "hidden_size": 32, "num_hidden_layers": 2, "head_size": 16,
        "intermediate_size": 128, "rescale_every": 1, "layer_norm_epsilon": 1e-5});
    let vocabulary =
        ("rwkv_vocab_v20230424.txt", "1 'a' 1\n2 b'\\xff' 1\n3 '\\n\\n' 2\n".to_owned());
    let keys = ["block_count", "embedding_length", "feed_forward_length", "wkv.head_size"];
    check(
        "rwkv6",
        &model.into_folder_tensors(&whole, "rwkv.blocks.", &names),
        &config,
        vocabulary,
        &keys,
    );
}

#[test]
fn gemma_3n_tensors_round_trip() {
    let gguf = zoo("gemma3n");
    let mut model = ZooModel::of(&gguf);
    for (part, source) in
        [("altup_proj", "altup_projections"), ("altup_unembd_proj", "altup_unembed_projections")]
    {
        let (shape, numbers) = model.take_whole(&format!("{part}.weight")).unwrap();
        let each = numbers.len() / shape[0] as usize;
        for (copy, numbers) in numbers.chunks_exact(each).enumerate() {
            let name = format!("model.language_model.{source}.{copy}.weight");
            model.put(name, (shape[1..].to_vec(), numbers.to_vec()));
        }
    }
    let whole = [
        ("token_embd", "model.language_model.embed_tokens"),
        ("output_norm", "model.language_model.norm"),
        ("per_layer_token_embd", "model.language_model.embed_tokens_per_layer"),
        ("per_layer_model_proj", "model.language_model.per_layer_model_projection"),
        ("per_layer_proj_norm", "model.language_model.per_layer_projection_norm"),
    ];
    let names = [
        ("attn_norm", "input_layernorm"),
        ("attn_q", "self_attn.q_proj"),
        ("attn_k", "self_attn.k_proj"),
        ("attn_v", "self_attn.v_proj"),
        ("attn_output", "self_attn.o_proj"),
        ("attn_q_norm", "self_attn.q_norm"),
        ("attn_k_norm", "self_attn.k_norm"),
        ("post_attention_norm", "post_attention_layernorm"),
        ("ffn_norm", "pre_feedforward_layernorm"),
        ("ffn_gate", "mlp.gate_proj"),
        ("ffn_up", "mlp.up_proj"),
        ("ffn_down", "mlp.down_proj"),
        ("post_ffw_norm", "post_feedforward_layernorm"),
        ("inp_gate", "per_layer_input_gate"),
        ("proj", "per_layer_projection"),
        ("post_norm", "post_per_layer_input_norm"),
        ("altup_correct_scale.weight", "altup.correct_output_scale"),
        ("altup_correct_coef", "altup.correction_coefs"),
        ("altup_router", "altup.modality_router"),
        ("altup_predict_coef", "altup.prediction_coefs"),
        ("altup_router_norm", "altup.router_norm"),
        ("laurel_l", "laurel.linear_left"),
        ("laurel_r", "laurel.linear_right"),
        ("laurel_post_norm", "laurel.post_laurel_norm"),
    ];
    let layers = model.layers;
    let text = json!({"hidden_size": 16, "num_hidden_layers": layers, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8,
        "intermediate_size": vec![32; layers], "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "sliding_window": 9,
        "altup_num_inputs": 4, "hidden_size_per_layer_input": 8, "num_kv_shared_layers": 10,
        "activation_sparsity_pattern": vec![0.0; layers], "layer_types": vec!["sliding_attention"; layers]});
    let config = json!({"architectures": ["Gemma3nForConditionalGeneration"], "text_config": text});
    let vocabulary = json!({"model": {"type": "BPE", "byte_fallback": true, "vocab": {"<unk>": 0, "a": 1}, "merges": []}});
    let tensors = model.into_folder_tensors(&whole, "model.language_model.layers.", &names);
    let keys = ["block_count", "embedding_length", "attention.head_count"];
    check("gemma3n", &tensors, &config, ("tokenizer.json", vocabulary.to_string()), &keys);
}
