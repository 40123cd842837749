//! Conversion of adapters as PEFT writes them.

use puna_gguf::Gguf;
use serde_json::{Value, json};

use super::fixtures::{Folder, StoredTensor, bytes, convert_files, safetensors, values, zoo};
use crate::{ConvertError, convert_adapter};

/// A folder as PEFT writes it, for queries and values of the first layer.
fn adapter(edit: impl Fn(&mut Value, &mut Vec<StoredTensor>)) -> Folder {
    let mut config = json!({"peft_type": "LORA", "r": 2, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"]});
    let mut tensors = Vec::new();
    for (part, rows) in [("q_proj", 48u64), ("v_proj", 24)] {
        let name = format!("base_model.model.model.layers.0.self_attn.{part}");
        let numbers = |n: u64| (0..n).map(|i| i as f32).collect::<Vec<_>>();
        tensors.push((
            format!("{name}.lora_A.weight"),
            "F32",
            vec![2, 48],
            bytes(&numbers(96), "F32"),
        ));
        tensors.push((
            format!("{name}.lora_B.weight"),
            "F32",
            vec![rows, 2],
            bytes(&numbers(2 * rows), "F32"),
        ));
    }
    edit(&mut config, &mut tensors);
    let mut folder = Folder::new();
    folder.put("adapter_config.json", config.to_string());
    folder.put("adapter_model.safetensors", safetensors(&tensors));
    folder
}

/// Converts the adapter of a folder for the zoo's llama.
fn convert_for_llama(folder: &Folder) -> Result<Gguf, String> {
    convert_for("llama", folder)
}

/// Converts the adapter of a folder for the model of a zoo file.
fn convert_for(base: &str, folder: &Folder) -> Result<Gguf, String> {
    let mut bytes = Vec::new();
    convert_adapter(&folder.files, zoo(base).metadata(), &mut bytes).map_err(|e| e.to_string())?;
    Ok(Gguf::from_bytes(bytes).unwrap())
}

#[test]
fn peft_adapters_convert_to_the_files_of_llama_cpp() {
    let made = convert_for_llama(&adapter(|_, _| {})).unwrap();
    let meta = made.metadata();
    assert_eq!((meta.str("general.type"), meta.str("adapter.type")), (Ok("adapter"), Ok("lora")));
    assert_eq!(
        (meta.str("general.architecture"), meta.f32("adapter.lora.alpha")),
        (Ok("llama"), Ok(8.0))
    );
    let of = |name: &str| values(&made, made.tensor(name).unwrap());
    assert_eq!(made.tensor("blk.0.attn_q.weight.lora_a").unwrap().shape, [48, 2]);
    assert_eq!(of("blk.0.attn_q.weight.lora_a")[..3], [0.0, 1.0, 2.0]);
    // Heads of 12 rows: the second row is the seventh of the source.
    assert_eq!(of("blk.0.attn_q.weight.lora_b")[..4], [0.0, 1.0, 12.0, 13.0]);
    assert_eq!(of("blk.0.attn_v.weight.lora_b")[..4], [0.0, 1.0, 2.0, 3.0]);
    assert_eq!(made.tensors().len(), 4);
    let stable = adapter(|config, _| config["use_rslora"] = true.into());
    assert_eq!(
        convert_for_llama(&stable).unwrap().metadata().f32("adapter.lora.alpha"),
        Ok(8.0 * 2f32.sqrt())
    );
}

/// The model has three matrices for the folder's one of queries, keys and values. Each gets LoRA A,
/// and its own rows of LoRA B.
#[test]
fn the_adapter_of_a_split_matrix_is_split() {
    let numbers = |n: u64| (0..n).map(|i| i as f32).collect::<Vec<_>>();
    let folder = adapter(|config, tensors| {
        config["target_modules"] = json!(["q_k_v_proj"]);
        let name = "base_model.model.model.layers.1.self_attn.q_k_v_proj";
        let matrix = |part: &str, shape: Vec<u64>| {
            let bytes = bytes(&numbers(shape.iter().product()), "F32");
            (format!("{name}.lora_{part}.weight"), "F32", shape, bytes)
        };
        *tensors = vec![matrix("A", vec![2, 48]), matrix("B", vec![96, 2])];
    });
    let made = convert_for("spark2_5", &folder).unwrap();
    let of = |name: &str| values(&made, made.tensor(name).unwrap());
    for (part, rows, first) in [("q", 48, 0.0), ("k", 24, 96.0), ("v", 24, 144.0)] {
        let name = format!("blk.1.attn_{part}.weight");
        assert_eq!(made.tensor(&format!("{name}.lora_b")).unwrap().shape, [2, rows]);
        assert_eq!(of(&format!("{name}.lora_b"))[0], first);
        assert_eq!(of(&format!("{name}.lora_a")), numbers(96));
    }
    assert_eq!(made.tensors().len(), 6);
}

#[test]
fn unsupported_adapters_are_rejected() {
    let refused = |edit: &dyn Fn(&mut Value, &mut Vec<StoredTensor>)| {
        convert_for_llama(&adapter(edit)).map(|_| ()).unwrap_err()
    };
    for (key, value, want) in [
        ("use_dora", json!(true), "use_dora"),
        ("peft_type", json!("IA3"), "IA3"),
        ("alpha_pattern", json!({"q_proj": 3}), "alpha_pattern"),
        ("lora_alpha", json!("x"), "lora_alpha"),
        ("r", json!(4), "`r` is 4, but the matrices for blk.0.attn_q.weight have rank 2"),
    ] {
        let error = refused(&|config, _| config[key] = value.clone());
        assert!(error.contains(want), "{error}");
    }
    let error = refused(&|_, tensors| drop(tensors.remove(1)));
    assert!(error.contains("attn_q.weight.lora_B is missing"), "{error}");
    let error =
        refused(&|_, tensors| tensors[0].0 = "base_model.model.model.strange.lora_A.weight".into());
    assert!(error.contains("strange"), "{error}");
    let error = refused(&|_, tensors| {
        for tensor in tensors {
            tensor.0 = tensor.0.replace("layers.0", "layers.7");
        }
    });
    assert!(error.contains("layers.7") && error.contains("is unknown"), "{error}");
    // PLaMo's output projection has reordered heads, hence reordered columns.
    let across = adapter(|_, tensors| {
        tensors.truncate(2);
        for tensor in tensors {
            tensor.0 = tensor.0.replace(
                "model.layers.0.self_attn.q_proj",
                "model.layers.layers.0.self_attn.o_proj",
            );
        }
    });
    let error = convert_for("plamo", &across).unwrap_err();
    assert!(
        error.contains("`target_modules` is a list with layers.layers.0.self_attn.o_proj.weight"),
        "{error}"
    );
    // An adapter alone is no model.
    let error = convert_files(&adapter(|_, _| {}).files).err();
    assert_eq!(error, Some(ConvertError::AdapterWithoutModel));
}
