//! Importing adapters as PEFT writes them.

use std::path::{Path, PathBuf};

use puna_gguf::Gguf;
use serde_json::{Value, json};

use super::Kit;
use super::import::{StoredTensor, bytes, safetensors, values};
use crate::StoreError;

/// A folder as PEFT writes it, for queries and values of the first layer.
fn adapter(kit: &Kit, edit: impl Fn(&mut Value, &mut Vec<StoredTensor>)) -> PathBuf {
    let dir = kit.dir.path().join("adapter");
    std::fs::create_dir_all(&dir).unwrap();
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
    std::fs::write(dir.join("adapter_config.json"), config.to_string()).unwrap();
    std::fs::write(dir.join("adapter_model.safetensors"), safetensors(&tensors)).unwrap();
    dir
}

/// Creates a model of the zoo's llama with the adapter of a folder.
fn with_adapter(kit: &Kit, dir: &Path) -> Result<Gguf, String> {
    on_top_of(kit, "llama", dir)
}

/// Creates a model of a file of the zoo with the adapter of a folder.
fn on_top_of(kit: &Kit, base: &str, dir: &Path) -> Result<Gguf, String> {
    let base = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/zoo").join(base);
    let text =
        format!("FROM {}\nADAPTER {}\n", base.with_extension("gguf").display(), dir.display());
    let plan = crate::plan_local(
        &crate::Modelfile::parse(&text).unwrap(),
        kit.dir.path(),
        None,
        &mut |_| {},
    );
    let plan = plan.map_err(|e| e.to_string())?;
    for file in &plan.files {
        kit.store.add_file(&file.path).unwrap();
    }
    let lines = kit.create("tuned", &plan.request).map_err(|e| e.to_string())?;
    assert!(lines.contains(&"converting adapter".to_owned()), "{lines:?}");
    let model = kit.store.resolve(&super::name("tuned")).unwrap();
    Ok(Gguf::open(&model.adapters[0]).unwrap())
}

#[test]
fn adapters_of_peft_become_those_of_llama_cpp() {
    let kit = Kit::new();
    let made = with_adapter(&kit, &adapter(&kit, |_, _| {})).unwrap();
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
    let stable = adapter(&kit, |config, _| config["use_rslora"] = true.into());
    assert_eq!(
        with_adapter(&kit, &stable).unwrap().metadata().f32("adapter.lora.alpha"),
        Ok(8.0 * 2f32.sqrt())
    );
}

/// Of a matrix of queries, keys and values the model has three: each gets its rows of the second matrix, and the first.
#[test]
fn an_adapter_of_a_matrix_that_became_three_becomes_three() {
    let kit = Kit::new();
    let numbers = |n: u64| (0..n).map(|i| i as f32).collect::<Vec<_>>();
    let dir = adapter(&kit, |config, tensors| {
        config["target_modules"] = json!(["q_k_v_proj"]);
        let name = "base_model.model.model.layers.1.self_attn.q_k_v_proj";
        let matrix = |part: &str, shape: Vec<u64>| {
            let bytes = bytes(&numbers(shape.iter().product()), "F32");
            (format!("{name}.lora_{part}.weight"), "F32", shape, bytes)
        };
        *tensors = vec![matrix("A", vec![2, 48]), matrix("B", vec![96, 2])];
    });
    let made = on_top_of(&kit, "spark2_5", &dir).unwrap();
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
fn adapters_that_cannot_be_kept_are_refused() {
    let kit = Kit::new();
    let refused = |edit: &dyn Fn(&mut Value, &mut Vec<StoredTensor>)| {
        with_adapter(&kit, &adapter(&kit, edit)).map(|_| ()).unwrap_err()
    };
    for (key, value, want) in [
        ("use_dora", json!(true), "use_dora"),
        ("peft_type", json!("IA3"), "IA3"),
        ("alpha_pattern", json!({"q_proj": 3}), "alpha_pattern"),
        ("lora_alpha", json!("x"), "lora_alpha"),
        ("r", json!(4), "`r` is 4, and the matrices for blk.0.attn_q.weight have rank 2"),
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
    assert!(error.contains("layers.7") && error.contains("not known"), "{error}");
    // The columns of PLaMo's way back have another order in a file, as the heads have.
    let across = adapter(&kit, |_, tensors| {
        tensors.truncate(2);
        for tensor in tensors {
            tensor.0 = tensor.0.replace(
                "model.layers.0.self_attn.q_proj",
                "model.layers.layers.0.self_attn.o_proj",
            );
        }
    });
    let error = on_top_of(&kit, "plamo", &across).unwrap_err();
    assert!(
        error.contains("`target_modules` is with layers.layers.0.self_attn.o_proj.weight"),
        "{error}"
    );
    // Alone it is no model.
    let text = format!("FROM {}\n", adapter(&kit, |_, _| {}).display());
    let plan = crate::plan_local(
        &crate::Modelfile::parse(&text).unwrap(),
        kit.dir.path(),
        None,
        &mut |_| {},
    )
    .unwrap();
    for file in &plan.files {
        kit.store.add_file(&file.path).unwrap();
    }
    assert_eq!(kit.create("alone", &plan.request), Err(StoreError::AdapterWithoutModel));
}
