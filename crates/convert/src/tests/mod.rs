//! Tests of the conversion of model folders. llama.cpp's converter made the files of
//! `tests/data/zoo` from folders of transformers. These tests make folders from the files with
//! independent code, and the conversion must restore the same tensors and metadata.

mod bert;
mod config;
mod deepseek4;
mod device_shards;
mod diffusion;
mod families;
mod fixtures;
mod folder_tensors;
mod gpt_style;
mod hostile;
mod kda;
mod latent_attention;
mod llama_like;
mod mamba_and_hybrids;
mod peft;
mod qwen4;
mod rwkv;
mod t5_grovemoe_cogvlm;
mod talkie_bitnet_hrm;
mod tensors_only;
mod tiktoken;
mod vocabulary;
mod zoo_model;

use std::path::Path;

use puna_gguf::Gguf;
use puna_quant::TensorType;
use serde_json::{Value, json};

use self::config::folder_config;
use self::fixtures::{Folder, StoredTensor, bytes, convert_files, safetensors, values, zoo};
use self::llama_like::llama_like_tensors;
use self::vocabulary::put_vocabulary;
use crate::FolderFile;

fn folder(gguf: &Gguf, class: &str, llama3: Option<Value>) -> Folder {
    folder_of(gguf, &llama_like_tensors(gguf), folder_config(gguf, class, llama3))
}

/// A folder with given tensors and configuration, and the vocabulary of a file.
fn folder_of(gguf: &Gguf, tensors: &[StoredTensor], config: Value) -> Folder {
    let mut folder = Folder::new();
    // Two weight files, as in folders of large models.
    let (one, two) = tensors.split_at(tensors.len() / 2);
    folder.put("model-00001-of-00002.safetensors", safetensors(one));
    folder.put("model-00002-of-00002.safetensors", safetensors(two));
    folder.put("config.json", config.to_string());
    put_vocabulary(gguf, &mut folder);
    folder
}

/// Converts a folder with these tensors, and with the vocabulary of a zoo file.
fn convert_tensors(name: &str, tensors: &[StoredTensor], config: Value) -> Result<Gguf, String> {
    let folder = folder_of(&zoo(name), tensors, config);
    convert_files(&folder.files).map_err(|e| e.to_string())
}

/// Pre-tokenizers with the same splitting rules: name in the zoo's file, name by the conversion.
const SAME_PRETOKENIZER: &[(&str, &str)] = &[
    ("olmo", "gpt-2"),
    ("exaone4", "gpt-2"),
    ("refact", "smollm"),
    ("command-r", "smollm"),
    ("smaug-bpe", "dbrx"),
    ("starcoder", "smollm"),
    ("stablelm2", "qwen2"),
    ("hunyuan", "qwen2"),
    ("hunyuan-dense", "deepseek-v3"),
    ("bailingmoe2", "bailingmoe"),
    ("llama4", "gpt-4o"),
    ("minimax-m2", "gpt-4o"),
    ("modern-bert", "gpt-2"),
    ("roberta-bpe", "gpt-2"),
    ("pixtral", "llama-bpe"),
    ("falcon-h1", "llama-bpe"),
    ("lfm2", "llama-bpe"),
];

/// Files with weights that the conversion computes, which may round differently.
const ROUNDED_FILES: [&str; 10] = [
    "gemma",
    "minimax-m3",
    "muse",
    "step",
    "plamo2",
    "plamo3",
    "nemotron",
    "qwen3next",
    "qwen35",
    "qwen4exp",
];

/// Suffixes of keys that only llama.cpp's converter writes, that describe the file instead of the
/// model, or that it writes for every Gemma model.
const NOT_COMPARED: [&str; 5] =
    ["general.name", "general.size_label", "general.file_type", "add_sep_token", "eot_token_id"];

fn check(name: &str, class: &str, llama3: Option<Value>) {
    let want = zoo(name);
    let folder = folder(&want, class, llama3);
    compare(name, &want, &folder, &[]);
}

/// Compares metadata and tensors of the converted folder with a file, except names with a suffix in
/// `ignored`.
fn compare(name: &str, want: &Gguf, folder: &Folder, ignored: &[&str]) {
    let made = convert_files(&folder.files).unwrap_or_else(|e| panic!("{name}: {e}"));
    for (key, value) in want.metadata().iter() {
        if NOT_COMPARED.iter().chain(ignored).any(|end| key.ends_with(end)) {
            continue;
        }
        let found = made.metadata().get(key);
        let assert_close = found.and_then(|f| f.as_float()).zip(value.as_float());
        let assert_close = assert_close.is_some_and(|(a, b)| (a - b).abs() <= b.abs() * 1e-6);
        let text = |value: Option<&puna_gguf::Value>| {
            value.and_then(|v| v.as_str()).unwrap_or_default().to_owned()
        };
        let is_alike = SAME_PRETOKENIZER.contains(&(&text(Some(value)), &text(found)));
        let lists =
            made.metadata().i32s(key).ok().flatten().zip(want.metadata().i32s(key).ok().flatten());
        let floats =
            made.metadata().f32s(key).ok().flatten().zip(want.metadata().f32s(key).ok().flatten());
        let assert_close = assert_close
            || lists.is_some_and(|(a, b)| a == b)
            || floats.is_some_and(|(a, b)| a == b);
        let assert_close = assert_close || key == "tokenizer.ggml.pre" && is_alike;
        assert!(assert_close || found == Some(value), "{name}: {key} is {found:?} for {value:?}");
    }
    // Trailing dimensions of one have no meaning.
    let shape = |shape: &[u64]| {
        let end = shape.iter().rposition(|&n| n != 1).map_or(1, |last| last + 1);
        shape[..end].to_vec()
    };
    let whole = made.tensors().iter().filter(|tensor| want.tensor(&tensor.name).is_some());
    let mut names: Vec<_> =
        whole.map(|tensor| (tensor.name.to_string(), shape(&tensor.shape))).collect();
    let mut all: Vec<_> =
        want.tensors().iter().map(|t| (t.name.to_string(), shape(&t.shape))).collect();
    all.retain(|(name, _)| !is_split(&made, name) && !is_joined(&made, name));
    names.sort();
    all.sort();
    assert_eq!(names, all, "{name}");
    let has_sixteen =
        want.tensors().iter().any(|t| matches!(t.ty, TensorType::F16 | TensorType::BF16));
    for tensor in made.tensors() {
        let Some(source) = want.tensor(&tensor.name) else {
            check_part(name, want, &made, &tensor.name);
            continue;
        };
        if ignored.iter().any(|end| tensor.name.ends_with(end)) {
            continue;
        }
        let is_computed = ROUNDED_FILES.iter().any(|start| name.starts_with(start))
            && source.ty == TensorType::F32
            || tensor.name.ends_with("ssm_a")
            || tensor.name.starts_with("rope");
        if source.ty == tensor.ty && !is_computed {
            assert!(made.data(tensor) == want.data(source), "{name}: {}", tensor.name);
            continue;
        }
        assert!(
            !has_sixteen || source.ty == TensorType::F32,
            "{name}: {} became {}",
            tensor.name,
            tensor.ty
        );
        for (a, b) in values(&made, tensor).into_iter().zip(values(want, source)) {
            let assert_close = (a - b).abs() <= b.abs() * 1e-3 + 1e-6;
            assert!(assert_close, "{name}: {} has {a} for {b}", tensor.name);
        }
    }
}

/// Tensors that some files have whole and others split: name of the whole, names of the parts.
const PIECES: [(&str, &[&str]); 2] = [
    ("ffn_gate_up_exps", &["ffn_gate_exps", "ffn_up_exps"]),
    ("attn_qkv", &["attn_q", "attn_k", "attn_v"]),
];

/// Whether the conversion has split a tensor of the file.
fn is_split(made: &Gguf, name: &str) -> bool {
    let pieces = PIECES.iter().find(|(whole, _)| name.contains(whole));
    let source = |piece: &&str| made.tensor(&name.replace(pieces.unwrap().0, piece)).is_some();
    made.tensor(name).is_none() && pieces.is_some_and(|(_, pieces)| pieces.iter().all(source))
}

/// Whether the conversion has joined a tensor of the file with others.
fn is_joined(made: &Gguf, name: &str) -> bool {
    let is_piece = |whole: &str, piece: &str| {
        name.contains(&format!(".{piece}.")) && made.tensor(&name.replace(piece, whole)).is_some()
    };
    let mut all =
        PIECES.iter().flat_map(|(whole, pieces)| pieces.iter().map(move |piece| (whole, piece)));
    made.tensor(name).is_none() && all.any(|(whole, piece)| is_piece(whole, piece))
}

/// Checks a tensor against the matching part of the file's tensor, or against all parts that the
/// file has.
fn check_part(name: &str, want: &Gguf, made: &Gguf, tensor: &str) {
    let part = tensor.split('.').nth(2).unwrap();
    if let Some((_, pieces)) = PIECES.iter().find(|(whole, _)| *whole == part) {
        let piece = |piece: &&str| want.tensor(&tensor.replace(part, piece)).expect(tensor);
        let numbers: Vec<f32> = pieces.iter().flat_map(|name| values(want, piece(name))).collect();
        let found = values(made, made.tensor(tensor).unwrap());
        assert_eq!(found.len(), numbers.len(), "{name}: {tensor}");
        for (a, b) in found.into_iter().zip(numbers) {
            assert!((a - b).abs() <= b.abs() * 1e-3 + 1e-6, "{name}: {tensor} has {a} for {b}");
        }
        return;
    }
    let (whole, pieces) = PIECES.iter().find(|(_, pieces)| pieces.contains(&part)).expect(tensor);
    let source = want.tensor(&tensor.replace(part, whole)).expect(tensor);
    let shape = source.shape.iter().rev().copied().collect();
    let at = pieces.iter().position(|piece| *piece == part).unwrap();
    let (shape, numbers) = zoo_model::piece(&(shape, values(want, source)), at, pieces.len());
    let found = made.tensor(tensor).unwrap();
    assert_eq!(found.shape.iter().rev().copied().collect::<Vec<u64>>(), shape, "{name}: {tensor}");
    for (a, b) in values(made, found).into_iter().zip(numbers) {
        assert!((a - b).abs() <= b.abs() * 1e-3 + 1e-6, "{name}: {tensor} has {a} for {b}");
    }
}

#[test]
fn folders_convert_to_the_files_of_llama_cpp() {
    for (name, class) in [
        ("llama", "LlamaForCausalLM"),
        ("llama-f16", "LlamaForCausalLM"),
        ("llama-tied-bias", "LlamaForCausalLM"),
        ("llama-rope-linear", "LlamaForCausalLM"),
        ("llama-rope-yarn", "LlamaForCausalLM"),
        ("llama-moe", "MixtralForCausalLM"),
        ("mistral", "MistralForCausalLM"),
        ("qwen2", "Qwen2ForCausalLM"),
        ("qwen2-tied", "Qwen2ForCausalLM"),
        ("qwen3", "Qwen3ForCausalLM"),
        ("qwen3-bf16", "Qwen3ForCausalLM"),
        ("qwen3moe", "Qwen3MoeForCausalLM"),
        ("qwen2moe", "Qwen2MoeForCausalLM"),
        ("gemma", "GemmaForCausalLM"),
        ("gemma2", "Gemma2ForCausalLM"),
        ("gemma3", "Gemma3ForCausalLM"),
        ("phi3", "Phi3ForCausalLM"),
        ("phi3-longrope", "Phi3ForCausalLM"),
        ("phi3-longrope-long", "Phi3ForCausalLM"),
        ("gpt-oss", "GptOssForCausalLM"),
        ("gpt-oss-mxfp4", "GptOssForCausalLM"),
        ("smollm3", "SmolLM3ForCausalLM"),
        ("arcee", "ArceeForCausalLM"),
        ("granite", "GraniteForCausalLM"),
        ("seed_oss", "SeedOssForCausalLM"),
        ("olmo2", "Olmo2ForCausalLM"),
        ("olmo3", "Olmo3ForCausalLM"),
        ("exaone4", "Exaone4ForCausalLM"),
        ("exaone4-swa", "Exaone4ForCausalLM"),
        ("olmoe", "OlmoeForCausalLM"),
        ("command-r", "CohereForCausalLM"),
        ("cohere2", "Cohere2ForCausalLM"),
        ("ernie4_5", "Ernie4_5ForCausalLM"),
    ] {
        check(name, class, None);
    }
    let llama3 = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64});
    check("llama-rope-llama3", "LlamaForCausalLM", Some(llama3));
}

/// Vocabulary and settings are cria's published files; the weights come from its GGUF file.
#[test]
fn cria_folder_converts_to_its_gguf_file() {
    let cria = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/cria");
    let want = Gguf::open(&cria.join("cria-q8_0.gguf")).unwrap();
    let mut folder = Folder::new();
    let mut tensors = llama_like_tensors(&want);
    for (_, dtype, _, data) in &mut tensors {
        let numbers: Vec<f32> =
            data.as_chunks::<4>().0.iter().map(|word| f32::from_le_bytes(*word)).collect();
        (*dtype, *data) = ("F16", bytes(&numbers, "F16"));
    }
    folder.put("model.safetensors", safetensors(&tensors));
    for name in [
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
    ] {
        folder.files.push(FolderFile { name: name.to_owned(), path: cria.join("hf").join(name) });
    }
    let made = convert_files(&folder.files).unwrap();
    for (key, value) in want.metadata().iter() {
        // These keys describe the published file instead of the model.
        if key.starts_with("general.") && key != "general.architecture" {
            continue;
        }
        assert_eq!(made.metadata().get(key), Some(value), "{key}");
    }
    for tensor in made.tensors().iter().filter(|t| t.ty == TensorType::F16) {
        let source = values(&want, want.tensor(&tensor.name).unwrap());
        assert!(bytes(&source, "F16") == made.data(tensor), "{}", tensor.name);
    }
}

#[test]
fn fp8_weights_are_multiplied_by_their_scales() {
    let gguf = zoo("llama");
    let mut folder = folder(&gguf, "LlamaForCausalLM", None);
    let mut tensors = llama_like_tensors(&gguf);
    let (name, dtype, shape, data) =
        tensors.iter_mut().find(|t| t.0.contains("layers.1.mlp.up_proj")).unwrap();
    assert_eq!(shape[..], [96, 48]);
    // All values are one. Blocks of 64 rows and 32 columns: two blocks down, two across.
    (*dtype, *data) = ("F8_E4M3", vec![0x38; 96 * 48]);
    let scale = format!("{name}_scale_inv");
    tensors.push((scale, "F32", vec![2, 2], bytes(&[1.0, 2.0, 3.0, 4.0], "F32")));
    folder.files.retain(|file| !file.name.ends_with(".safetensors"));
    folder.put("model.safetensors", safetensors(&tensors));
    let mut config = folder_config(&gguf, "LlamaForCausalLM", None);
    config["quantization_config"] = json!({"quant_method": "fp8", "weight_block_size": [64, 32]});
    folder.files.retain(|file| file.name != "config.json");
    folder.put("config.json", config.to_string());
    let made = convert_files(&folder.files).unwrap();
    let tensor = made.tensor("blk.1.ffn_up.weight").unwrap();
    assert_eq!(tensor.ty, TensorType::BF16);
    let found = values(&made, tensor);
    assert_eq!([found[0], found[32], found[64 * 48], found[95 * 48 + 47]], [1.0, 2.0, 3.0, 4.0]);
}

#[test]
fn errors_name_the_defect_of_a_folder() {
    let gguf = zoo("llama");
    let convert_edited = |edit: &dyn Fn(&mut Folder)| {
        let mut folder = folder(&gguf, "LlamaForCausalLM", None);
        edit(&mut folder);
        convert_files(&folder.files).err().unwrap().to_string()
    };
    let without = |end: &'static str| {
        move |folder: &mut Folder| folder.files.retain(|file| !file.name.ends_with(end))
    };
    let error = convert_edited(&without("00002-of-00002.safetensors"));
    assert!(error.contains("is missing"), "{error}");
    let error = convert_edited(&without("tokenizer.model"));
    assert!(error.contains("tokenizer.json or tokenizer.model is missing"), "{error}");
    let error = convert_edited(&|folder| {
        folder.put(
            "model.safetensors.index.json",
            r#"{"weight_map": {"x": "model-00003-of-00003.safetensors"}}"#,
        );
    });
    assert!(error.contains("model-00003-of-00003.safetensors"), "{error}");
    let error = convert_edited(&|folder| {
        let extra =
            safetensors(&[("model.layers.0.strange.weight".into(), "F32", vec![1], vec![0; 4])]);
        folder.put("model-00003-of-00003.safetensors", extra);
    });
    assert!(error.contains("strange") && error.contains("is unknown"), "{error}");
    let error = convert_edited(&|folder| {
        folder.put("config.json", r#"{"architectures": ["PerceiverModel"]}"#);
        folder.files.rotate_right(1);
    });
    assert!(error.contains("PerceiverModel") && error.contains("Qwen3ForCausalLM"), "{error}");
}
