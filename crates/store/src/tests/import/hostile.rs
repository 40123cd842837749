//! Folders that claim what they are not: each is refused by name, before anything grows with the claim.

use std::fs::File;

use serde_json::{Value, json};

use super::config::config_there;
use super::kit::{Folder, Stored, bytes, zoo};
use super::plain::tensors_there;
use super::{Kit, folder_of};

/// What importing a folder of a zoo file says after its tensors and its configuration were edited.
fn refused(name: &str, class: &str, edit: &dyn Fn(&mut Vec<Stored>, &mut Value)) -> String {
    let (kit, gguf) = (Kit::new(), zoo(name));
    let (mut tensors, mut config) = (tensors_there(&gguf), config_there(&gguf, class, None));
    edit(&mut tensors, &mut config);
    let folder = folder_of(&kit, "hostile", &gguf, &tensors, config);
    kit.store.import(&folder.files).unwrap_err().to_string()
}

fn llama(edit: &dyn Fn(&mut Vec<Stored>, &mut Value)) -> String {
    refused("llama", "LlamaForCausalLM", edit)
}

fn one(name: &str, shape: Vec<u64>) -> Stored {
    let count = shape.iter().product::<u64>() as usize;
    (name.to_owned(), "F32", shape, bytes(&vec![0.5; count], "F32"))
}

#[test]
fn numbers_of_a_configuration_make_nothing_grow() {
    let error = llama(&|_, config| config["num_hidden_layers"] = (1u32 << 30).into());
    assert!(error.contains("model.layers.1073741823.* is missing"), "{error}");
    // Factors of frequencies are made of the size of a head alone.
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
fn tensors_without_values_are_not_there() {
    // As many rows as no file has, of nothing: the vocabulary has no such number of tokens.
    let error = llama(&|tensors, _| {
        let table = tensors.iter_mut().find(|tensor| tensor.0.contains("embed_tokens")).unwrap();
        (table.2, table.3) = (vec![u64::MAX >> 3, 0], Vec::new());
    });
    assert!(error.contains("model.embed_tokens.weight is missing"), "{error}");
    let error = llama(&|tensors, _| {
        let table = tensors.iter_mut().find(|tensor| tensor.0.contains("embed_tokens")).unwrap();
        *table = one(&table.0.clone(), vec![320]);
    });
    assert!(error.contains("embed_tokens.weight has shape [320]"), "{error}");
}

#[test]
fn a_tensor_has_one_name_and_one_source() {
    let error =
        llama(&|tensors, _| tensors.push(one("model.layers.+1.mlp.up_proj.weight", vec![4, 4])));
    assert!(error.contains("layers.+1.mlp") && error.contains("not known"), "{error}");
    let error =
        llama(&|tensors, _| tensors.push(one("model.layers.01.mlp.up_proj.weight", vec![4, 4])));
    assert!(error.contains("layers.01.mlp") && error.contains("not known"), "{error}");
    let error = llama(&|tensors, _| {
        for there in ["mlp.gate.e_score_correction_bias", "mlp.gate.expert_bias"] {
            tensors.push(one(&format!("model.layers.0.{there}"), vec![4]));
        }
    });
    assert!(error.contains("two of its tensors would become blk.0.exp_probs_b.bias"), "{error}");
    let error =
        llama(&|tensors, _| tensors.push(one("language_model.model.norm.weight", vec![48])));
    assert!(error.contains("model.norm.weight occurs twice"), "{error}");
    // Of two spellings of the memory of the seventh version one would be lost.
    let (kit, gguf) = (Kit::new(), zoo("rwkv7"));
    let spelled = |within: &str| one(&format!("model.layers.0.{within}.k_k"), vec![64]);
    let tensors =
        [spelled("attention"), spelled("self_attn"), one("model.embeddings.weight", vec![320, 64])];
    let config = json!({"architectures": ["RWKV7ForCausalLM"], "num_hidden_layers": 1, "hidden_size": 64, "head_dim": 64});
    let mut folder = folder_of(&kit, "rwkv7", &gguf, &tensors, config);
    let (name, text) = super::memory::vocabulary();
    folder.put(name, text);
    let error = kit.store.import(&folder.files).unwrap_err().to_string();
    assert!(error.contains("k_k occurs twice"), "{error}");
}

#[test]
fn a_row_is_not_wider_than_any_model_has() {
    let (kit, gguf) = (Kit::new(), zoo("llama"));
    let mut tensors = tensors_there(&gguf);
    tensors.retain(|tensor| tensor.0 != "model.norm.weight");
    let mut folder =
        folder_of(&kit, "wide", &gguf, &tensors, config_there(&gguf, "LlamaForCausalLM", None));
    // A vector, which is read at once.
    put_wide(&mut folder, "model.norm.weight", &[(1 << 26) + 1]);
    let error = kit.store.import(&folder.files).unwrap_err().to_string();
    assert!(error.contains("output_norm.weight has shape [67108865]"), "{error}");
}

/// Matrices of BitNet are read once before they are written.
#[test]
fn a_row_is_as_wide_where_it_is_read_before_its_file_is_planned() {
    let (kit, gguf) = (Kit::new(), zoo("llama"));
    let mut tensors = tensors_there(&gguf);
    tensors.retain(|tensor| tensor.0 != "model.layers.1.mlp.up_proj.weight");
    let mut config = config_there(&gguf, "BitnetForCausalLM", None);
    config["hidden_act"] = "silu".into();
    let mut folder = folder_of(&kit, "wide", &gguf, &tensors, config);
    put_wide(&mut folder, "model.layers.1.mlp.up_proj.weight", &[1, (1 << 26) + 1]);
    let error = kit.store.import(&folder.files).unwrap_err().to_string();
    assert!(
        error.contains("model.layers.1.mlp.up_proj.weight has shape [1, 67108865], but [67108864]"),
        "{error}"
    );
}

/// A file with a tensor of two bytes a value; it has holes, so that it takes no place.
fn put_wide(folder: &mut Folder, tensor: &str, shape: &[u64]) {
    let size = 2 * shape.iter().product::<u64>();
    let header =
        format!(r#"{{"{tensor}":{{"dtype":"F16","shape":{shape:?},"data_offsets":[0,{size}]}}}}"#);
    let name = "model-00003-of-00003.safetensors";
    folder.put(name, [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat());
    let file = File::options().append(true).open(folder.dir.join(name)).unwrap();
    file.set_len(8 + header.len() as u64 + size).unwrap();
}

#[test]
fn files_of_settings_are_read_up_to_a_bound() {
    let (kit, gguf) = (Kit::new(), zoo("llama"));
    let mut folder = super::folder(&kit, "long", &gguf, "LlamaForCausalLM", None);
    folder.files.retain(|file| file.name != "config.json");
    folder.put("config.json", format!("{{\"x\": [{}0]}}", "0,".repeat(8 << 20)));
    let error = kit.store.import(&folder.files).unwrap_err();
    let error = std::iter::successors(Some(&error as &dyn std::error::Error), |e| e.source());
    let error: Vec<String> = error.map(ToString::to_string).collect();
    assert!(error.join(": ").contains("at most 16777216"), "{error:?}");
}

#[test]
fn ways_to_quantize_that_are_not_known_are_named() {
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
            "`quantization_config` is of gptq, and its tensor model.layers.0.mlp.up_proj.qweight"
        ),
        "{error}"
    );
}
