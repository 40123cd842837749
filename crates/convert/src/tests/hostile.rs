//! Folders with false claims: the conversion rejects each with its name, before memory use depends
//! on the claim.

use std::fs::File;

use serde_json::{Value, json};

use super::config::folder_config;
use super::fixtures::{Folder, StoredTensor, bytes, convert_files, zoo};
use super::folder_of;
use super::llama_like::llama_like_tensors;

/// The error for a zoo file's folder with edited tensors and configuration.
fn refused(name: &str, class: &str, edit: &dyn Fn(&mut Vec<StoredTensor>, &mut Value)) -> String {
    let gguf = zoo(name);
    let (mut tensors, mut config) = (llama_like_tensors(&gguf), folder_config(&gguf, class, None));
    edit(&mut tensors, &mut config);
    let folder = folder_of(&gguf, &tensors, config);
    convert_files(&folder.files).err().unwrap().to_string()
}

fn llama(edit: &dyn Fn(&mut Vec<StoredTensor>, &mut Value)) -> String {
    refused("llama", "LlamaForCausalLM", edit)
}

fn f32_tensor(name: &str, shape: Vec<u64>) -> StoredTensor {
    let count = shape.iter().product::<u64>() as usize;
    (name.to_owned(), "F32", shape, bytes(&vec![0.5; count], "F32"))
}

#[test]
fn huge_numbers_in_a_configuration_are_rejected() {
    let error = llama(&|_, config| config["num_hidden_layers"] = (1u32 << 30).into());
    assert!(error.contains("model.layers.1073741823.* is missing"), "{error}");
    // Rotary factors are created from the head size alone.
    let error = llama(&|_, config| {
        config["head_dim"] = 2_147_483_646u32.into();
        config["rope_parameters"] =
            json!({"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0});
    });
    assert!(error.contains("`head_dim` must be at most 65536"), "{error}");
    let error = llama(&|_, config| {
        config.as_object_mut().unwrap().remove("head_dim");
        config["hidden_size"] = 2_147_483_647u32.into();
        config["num_attention_heads"] = 1u32.into();
    });
    assert!(error.contains("`head_dim` must be at most 65536"), "{error}");
    let error = refused("phi3-longrope", "Phi3ForCausalLM", &|_, config| {
        config["rope_parameters"]["long_factor"][0] = 1e300.into();
    });
    assert!(error.contains("`long_factor` must be a list of numbers"), "{error}");
}

#[test]
fn tensors_without_values_count_as_missing() {
    // A huge number of empty rows must not become the size of the vocabulary.
    let error = llama(&|tensors, _| {
        let table = tensors.iter_mut().find(|tensor| tensor.0.contains("embed_tokens")).unwrap();
        (table.2, table.3) = (vec![u64::MAX >> 3, 0], Vec::new());
    });
    assert!(error.contains("model.embed_tokens.weight is missing"), "{error}");
    let error = llama(&|tensors, _| {
        let table = tensors.iter_mut().find(|tensor| tensor.0.contains("embed_tokens")).unwrap();
        *table = f32_tensor(&table.0.clone(), vec![320]);
    });
    assert!(error.contains("embed_tokens.weight has shape [320]"), "{error}");
}

#[test]
fn ambiguous_tensor_names_are_rejected() {
    let error = llama(&|tensors, _| {
        tensors.push(f32_tensor("model.layers.+1.mlp.up_proj.weight", vec![4, 4]))
    });
    assert!(error.contains("layers.+1.mlp") && error.contains("is unknown"), "{error}");
    let error = llama(&|tensors, _| {
        tensors.push(f32_tensor("model.layers.01.mlp.up_proj.weight", vec![4, 4]))
    });
    assert!(error.contains("layers.01.mlp") && error.contains("is unknown"), "{error}");
    let error = llama(&|tensors, _| {
        for source in ["mlp.gate.e_score_correction_bias", "mlp.gate.expert_bias"] {
            tensors.push(f32_tensor(&format!("model.layers.0.{source}"), vec![4]));
        }
    });
    assert!(error.contains("two of its tensors map to blk.0.exp_probs_b.bias"), "{error}");
    let error =
        llama(&|tensors, _| tensors.push(f32_tensor("language_model.model.norm.weight", vec![48])));
    assert!(error.contains("model.norm.weight occurs twice"), "{error}");
    // Two spellings of one tensor's name in RWKV 7.
    let gguf = zoo("rwkv7");
    let spelled = |within: &str| f32_tensor(&format!("model.layers.0.{within}.k_k"), vec![64]);
    let tensors = [
        spelled("attention"),
        spelled("self_attn"),
        f32_tensor("model.embeddings.weight", vec![320, 64]),
    ];
    let config = json!({"architectures": ["RWKV7ForCausalLM"], "num_hidden_layers": 1, "hidden_size": 64, "head_dim": 64});
    let mut folder = folder_of(&gguf, &tensors, config);
    let (name, text) = super::rwkv::vocabulary();
    folder.put(name, text);
    let error = convert_files(&folder.files).err().unwrap().to_string();
    assert!(error.contains("k_k occurs twice"), "{error}");
}

#[test]
fn too_wide_rows_are_rejected() {
    let gguf = zoo("llama");
    let mut tensors = llama_like_tensors(&gguf);
    tensors.retain(|tensor| tensor.0 != "model.norm.weight");
    let mut folder = folder_of(&gguf, &tensors, folder_config(&gguf, "LlamaForCausalLM", None));
    // A vector, which is read as one row.
    put_wide(&mut folder, "model.norm.weight", &[(1 << 26) + 1]);
    let error = convert_files(&folder.files).err().unwrap().to_string();
    assert!(error.contains("output_norm.weight has shape [67108865]"), "{error}");
}

/// BitNet's matrices are read once before they are written.
#[test]
fn too_wide_rows_of_ternary_matrices_are_rejected() {
    let gguf = zoo("llama");
    let mut tensors = llama_like_tensors(&gguf);
    tensors.retain(|tensor| tensor.0 != "model.layers.1.mlp.up_proj.weight");
    let mut config = folder_config(&gguf, "BitnetForCausalLM", None);
    config["hidden_act"] = "silu".into();
    let mut folder = folder_of(&gguf, &tensors, config);
    put_wide(&mut folder, "model.layers.1.mlp.up_proj.weight", &[1, (1 << 26) + 1]);
    let error = convert_files(&folder.files).err().unwrap().to_string();
    assert!(
        error.contains(
            "model.layers.1.mlp.up_proj.weight has shape [1, 67108865], expected [67108864]"
        ),
        "{error}"
    );
}

/// Writes a sparse file with a tensor of two bytes a value.
fn put_wide(folder: &mut Folder, tensor: &str, shape: &[u64]) {
    let size = 2 * shape.iter().product::<u64>();
    let header =
        format!(r#"{{"{tensor}":{{"dtype":"F16","shape":{shape:?},"data_offsets":[0,{size}]}}}}"#);
    let name = "model-00003-of-00003.safetensors";
    folder.put(name, [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat());
    let file = File::options().append(true).open(folder.dir.path().join(name)).unwrap();
    file.set_len(8 + header.len() as u64 + size).unwrap();
}

#[test]
fn settings_files_have_a_size_limit() {
    let gguf = zoo("llama");
    let mut folder = super::folder(&gguf, "LlamaForCausalLM", None);
    folder.files.retain(|file| file.name != "config.json");
    folder.put("config.json", format!("{{\"x\": [{}0]}}", "0,".repeat(8 << 20)));
    let error = convert_files(&folder.files).err().unwrap();
    let error = std::iter::successors(Some(&error as &dyn std::error::Error), |e| e.source());
    let error: Vec<String> = error.map(ToString::to_string).collect();
    assert!(error.join(": ").contains("at most 16777216"), "{error:?}");
}

#[test]
fn unknown_quantization_methods_are_named() {
    let error = llama(&|tensors, config| {
        tensors.push((
            "model.layers.0.mlp.up_proj.qweight".into(),
            "I32",
            vec![6, 96],
            vec![0; 4 * 6 * 96],
        ));
        config["quantization_config"] = json!({"quant_method": "gptq", "bits": 4});
    });
    assert!(
        error.contains(
            "`quantization_config` is of gptq, whose tensor model.layers.0.mlp.up_proj.qweight"
        ),
        "{error}"
    );
}
