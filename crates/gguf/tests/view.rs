//! Views of files in other layouts than llama.cpp's. `tests/data/compat` has small files and their
//! expected views, which were recorded from Ollama's own translation.

use crate::common;

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use flate2::read::GzDecoder;
use puna_gguf::{Array, Gguf, Metadata, Value, ValueType, View, Writer};
use puna_quant::TensorType::{F16, F32};
use serde_json::Value as Json;

fn view(path: &Path) -> View {
    let gguf = if path.extension().is_some_and(|end| end == "gz") {
        let mut bytes = Vec::new();
        GzDecoder::new(File::open(path).unwrap()).read_to_end(&mut bytes).unwrap();
        Gguf::from_bytes(bytes).unwrap()
    } else {
        Gguf::open(path).unwrap()
    };
    View::new(Arc::new(gguf)).unwrap()
}

/// Compares a view with the description of its file.
fn check(name: &str, json: &Json) {
    let file = json["file"].as_str().unwrap();
    let view = view(&common::data("compat").join(file));
    let expect = &json["expect"];
    if json["control"] == true {
        assert_eq!(view.translation(), None, "{name}: a control must not be translated");
    }
    assert_eq!(
        view.metadata().architecture(),
        Ok(expect["architecture"].as_str().unwrap()),
        "{name}"
    );
    let kv = expect["kv"].as_object().unwrap();
    for (key, want) in kv {
        let found = view.metadata().get(key).unwrap_or_else(|| panic!("{name}: no key {key}"));
        check_value(name, key, found, want);
    }
    for key in expect["kv_removed"].as_array().unwrap() {
        assert!(!view.metadata().contains(key.as_str().unwrap()), "{name}: {key} must be absent");
    }
    // Every other key equals the file's.
    for (key, value) in view.gguf().metadata().iter() {
        if !kv.contains_key(key) && key != "general.architecture" {
            assert_eq!(view.metadata().get(key), Some(value), "{name}: {key}");
        }
    }
    check_tensors(name, &view, expect);
}

fn check_value(name: &str, key: &str, found: &Value, want: &Json) {
    let (ty, want) = (want[0].as_str().unwrap(), &want[1]);
    let same = match ty {
        "u32" | "i32" => found.as_int() == want.as_i64().map(i128::from) && found.ty().name() == ty,
        "f32" => *found == Value::F32(want.as_f64().unwrap() as f32),
        "bool" => *found == Value::Bool(want.as_bool().unwrap()),
        "str" if want.is_null() => found.as_str().is_some_and(|text| !text.is_empty()),
        "str" => found.as_str() == want.as_str(),
        list => {
            found.as_array().is_some_and(|array| same_array(array, list, want.as_array().unwrap()))
        }
    };
    assert!(same, "{name}: {key} is {found:?}, should be {ty} {want}");
}

fn same_array(array: &Array, ty: &str, want: &[Json]) -> bool {
    match ty {
        "arr:str" => {
            array.strings().unwrap().eq(want.iter().map(|w| w.as_str().unwrap().as_bytes()))
        }
        "arr:f32" => array.floats().unwrap().eq(want.iter().map(|w| w.as_f64().unwrap() as f32)),
        "arr:bool" => array.ints().unwrap().eq(want.iter().map(|w| w.as_bool().unwrap().into())),
        _ => array.ints().unwrap().eq(want.iter().map(|w| w.as_i64().unwrap().into())),
    }
}

fn check_tensors(name: &str, view: &View, expect: &Json) {
    let want = expect["tensors"].as_array().unwrap();
    for want in want {
        let tensor_name = want["name"].as_str().unwrap();
        let tensor =
            view.tensor(tensor_name).unwrap_or_else(|| panic!("{name}: no tensor {tensor_name}"));
        let shape: Vec<u64> =
            want["shape"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).collect();
        assert_eq!(
            (tensor.name, tensor.ty.name()),
            (tensor_name, want["type"].as_str().unwrap()),
            "{name}"
        );
        // Descriptions leave out trailing dimensions of 1.
        let dims = tensor.shape.iter().rposition(|&n| n != 1).map_or(1, |last| last + 1);
        assert_eq!(tensor.shape[..dims], shape, "{name}: {tensor_name}");
        let bytes = tensor.bytes();
        assert_eq!(tensor.size(), bytes.len() as u64, "{name}: {tensor_name}");
        assert_eq!(sha256(&bytes), want["sha256"].as_str().unwrap(), "{name}: {tensor_name}");
        assert!(tensor.shared().is_aligned() && *tensor.shared() == *bytes);
        assert_eq!(tensor.is_derived(), want["made"] == true, "{name}: {tensor_name}");
        if let Some(from) = want["from"].as_str() {
            let source = view.gguf().tensor(from).unwrap();
            assert_eq!(tensor.source, source, "{name}: {tensor_name}");
            let place = view.gguf().data(source).as_ptr();
            assert_eq!(bytes.as_ptr(), place, "{name}: {tensor_name} is not the file's own data");
        }
    }
    assert_eq!(
        view.tensors().len(),
        want.len(),
        "{name}: more tensors than an architecture asks for"
    );
    let mut dropped: Vec<_> =
        expect["dropped"].as_array().unwrap().iter().map(|n| n.as_str().unwrap()).collect();
    dropped.sort_unstable();
    let mut seen: Vec<_> =
        view.translation().map_or(&[][..], |t| &t.dropped).iter().map(|n| &**n).collect();
    seen.sort_unstable();
    assert_eq!(seen, dropped, "{name}");
}

fn sha256(bytes: &[u8]) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, bytes);
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn views_match_the_publishers_loader() {
    let (mut forms, mut controls) = (0, 0);
    for file in std::fs::read_dir(common::data("compat")).unwrap() {
        let path = file.unwrap().path();
        if path.extension().is_none_or(|e| e != "json") {
            continue;
        }
        let json: Json = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        check(path.file_stem().unwrap().to_str().unwrap(), &json);
        *if json["control"] == true { &mut controls } else { &mut forms } += 1;
    }
    assert!(forms >= 50 && controls >= 14, "{forms} forms, {controls} controls");
}

#[test]
fn a_translation_reports_its_changes() {
    let view = view(&common::data("compat/gemma3.gguf"));
    let t = view.translation().unwrap();
    assert_eq!((t.layout, &*t.from, &*t.to), ("gemma3 as published by Ollama", "gemma3", "gemma3"));
    assert!(t.added.contains(&"gemma3.rope.freq_base".to_owned()));
    assert!(t.added.contains(&"tokenizer.chat_template".to_owned()));
    assert_eq!(
        t.changed,
        ["tokenizer.ggml.tokens", "tokenizer.ggml.scores", "tokenizer.ggml.token_type"]
    );
    assert!(t.renamed.is_empty() && t.removed.is_empty());
    assert_eq!(t.dropped.len(), 17);
    let raw = View::untranslated(view.gguf().clone());
    assert_eq!((raw.translation(), raw.metadata()), (None, view.gguf().metadata()));
    assert!(raw.tensor("mm.mm_soft_emb_norm.weight").is_some());

    let view = self::view(&common::data("compat/gptoss.gguf"));
    let t = view.translation().unwrap();
    assert_eq!((&*t.from, &*t.to), ("gptoss", "gpt-oss"));
    assert!(
        t.renamed.contains(&("blk.0.attn_out.weight".into(), "blk.0.attn_output.weight".into()))
    );
}

#[test]
fn per_block_lists_lose_entries_of_skipped_blocks() {
    const SKIPPED: &str = "mllama.attention.cross_attention_layers";
    let mut writer = Writer::new();
    writer.set("general.architecture", "mllama").set("mllama.block_count", 5u32);
    writer.set(SKIPPED, vec![1i32, 3]);
    writer.set("mllama.attention.head_count_kv", vec![10u32, 11, 12, 13, 14]);
    writer.set("mllama.attention.sliding_window_pattern", vec![true, false, false, false, true]);
    writer.set("mllama.rope.dimension_sections", vec![1i32, 2, 3, 4]);
    writer.set("mllama.names", Value::strings(["a", "b", "c", "d", "e"]));
    let view = View::new(Arc::new(Gguf::from_bytes(writer.to_vec([]).unwrap()).unwrap())).unwrap();
    let list = |key: &str| view.metadata().get(&format!("llama.{key}")).unwrap().clone();
    assert_eq!(list("block_count"), Value::U32(3));
    assert_eq!(list("attention.head_count_kv"), Value::from(vec![10u32, 12, 14]));
    assert_eq!(list("attention.sliding_window_pattern"), Value::from(vec![true, false, true]));
    // Lists of another length stay unchanged.
    assert_eq!(list("attention.cross_attention_layers"), Value::from(vec![1i32, 3]));
    assert_eq!(list("rope.dimension_sections"), Value::from(vec![1i32, 2, 3, 4]));
    assert_eq!(list("names"), Value::strings(["a", "b", "c", "d", "e"]));
}

/// A llama file of 128,010 tokens, which are empty except those given.
fn llama3(tokens: &[(usize, &str)], keys: &[(&str, Value)]) -> View {
    let mut texts = vec![""; 128_010];
    tokens.iter().for_each(|(id, text)| texts[*id] = text);
    let mut writer = Writer::new();
    writer.set("general.architecture", "llama").set("tokenizer.ggml.tokens", Value::strings(texts));
    keys.iter().for_each(|(key, value)| {
        writer.set(key, value.clone());
    });
    View::new(Arc::new(Gguf::from_bytes(writer.to_vec([]).unwrap()).unwrap())).unwrap()
}

#[test]
fn llama_3_gets_missing_tokenizer_keys() {
    const PRE: &str = "tokenizer.ggml.pre";
    const EOS: &str = "tokenizer.ggml.eos_token_id";
    let turn = (128_009, "<|eot_id|>");
    let header = (128_006, "<|start_header_id|>");
    let end = (EOS, Value::U32(128_001));
    let template = ("tokenizer.chat_template", Value::from("{{ '<|start_header_id|>' }}"));

    let complete = |m: &Metadata| {
        assert_eq!(m.str(PRE), Ok("llama-bpe"));
        assert_eq!((m.u32(EOS), m.u32("tokenizer.ggml.eot_token_id")), (Ok(128_009), Ok(128_009)));
        assert_eq!(m.i32s("tokenizer.ggml.eos_token_ids"), Ok(Some(vec![128_009])));
    };
    complete(llama3(&[turn, header], std::slice::from_ref(&end)).metadata());
    complete(llama3(&[turn, header], &[(PRE, "default".into())]).metadata());
    complete(
        llama3(&[turn], &[(PRE, "llama-bpe".into()), end.clone(), template.clone()]).metadata(),
    );
    let own = llama3(
        &[turn, header],
        &[end.clone(), ("tokenizer.ggml.eot_token_id", Value::U32(128_008))],
    );
    assert_eq!(own.metadata().u32("tokenizer.ggml.eot_token_id"), Ok(128_008));

    let untouched = |view: View| assert_eq!(view.translation(), None);
    untouched(llama3(&[turn, header], &[(PRE, "llama-bpe".into()), (EOS, Value::U32(128_009))]));
    untouched(llama3(&[header], &[end.clone(), template]));
    untouched(llama3(&[turn], &[end]));
}

/// Writes `model` as Ollama published Gemma 3: RoPE bases under other keys, one token more than
/// embedding rows, an image encoder in the same file, sorted keys.
fn write_as_published(model: &Gguf, path: &Path) {
    let mut keys: Vec<(String, Value)> =
        model.metadata().iter().map(|(k, v)| (k.to_owned(), v.clone())).collect();
    let get = |key: &str| model.metadata().get(key).unwrap().clone();
    keys.retain(|(key, _)| {
        key != "gemma3.rope.freq_base" && key != "gemma3.attention.layer_norm_rms_epsilon"
    });
    keys.push(("gemma3.rope.global.freq_base".into(), get("gemma3.rope.freq_base")));
    keys.push(("gemma3.rope.local.freq_base".into(), Value::F32(10_000.0)));
    keys.push(("gemma3.mm.tokens_per_image".into(), Value::U32(256)));
    keys.push(("gemma3.vision.block_count".into(), Value::U32(1)));
    for (key, value) in &mut keys {
        let m = model.metadata();
        *value = match &**key {
            "tokenizer.ggml.tokens" => {
                Value::strings(m.strings(key).unwrap().unwrap().chain([&b"<image_soft_token>"[..]]))
            }
            "tokenizer.ggml.scores" => {
                [m.f32s(key).unwrap().unwrap(), vec![-1000.0]].concat().into()
            }
            "tokenizer.ggml.token_type" => [m.i32s(key).unwrap().unwrap(), vec![3]].concat().into(),
            _ => continue,
        };
    }
    keys.sort_by(|a, b| a.0.cmp(&b.0));
    let mut writer = Writer::new();
    for (key, value) in keys {
        writer.set(&key, value);
    }
    let extra = [("mm.mm_soft_emb_norm.weight", F32, 8u64), ("v.blk.0.attn_q.weight", F16, 16)];
    let mut order: Vec<_> = model.tensors().iter().collect();
    order.sort_by(|a, b| a.name.cmp(&b.name));
    for tensor in &order {
        writer.tensor(&tensor.name, tensor.ty, &tensor.shape).unwrap();
    }
    for (name, ty, len) in extra {
        writer.tensor(name, ty, &[len]).unwrap();
    }
    let out = std::io::BufWriter::new(std::fs::File::create(path).unwrap());
    let mut body = writer.start(out).unwrap();
    for tensor in &order {
        // In pieces, as a converter would write them.
        model.data(tensor).chunks(1 << 20).for_each(|piece| body.write(piece).unwrap());
    }
    extra.iter().for_each(|_| body.write(&[7; 32]).unwrap());
    body.finish().unwrap();
}

/// Folder of a real model. Prints a warning if it is missing.
fn real_model(name: &str) -> Option<std::path::PathBuf> {
    let folder = std::env::var_os("PUNA_TEST_MODELS").map(std::path::PathBuf::from);
    let folder = folder.unwrap_or_else(|| common::data("../../.cache/models"));
    let path = folder.join(name);
    if path.is_file() {
        return Some(path);
    }
    eprintln!("SKIPPED: no {}; ./test fetches it", path.display());
    None
}

#[test]
fn a_real_gemma_3_in_ollamas_layout_reads_like_the_original() {
    let Some(path) = real_model("gemma-3-270m-q4_k_m.gguf") else { return };
    let original = Gguf::open(&path).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let published = folder.path().join("published.gguf");
    write_as_published(&original, &published);

    let view = view(&published);
    let t = view.translation().expect("recognized");
    assert_eq!(t.dropped, ["mm.mm_soft_emb_norm.weight", "v.blk.0.attn_q.weight"]);
    for (key, value) in original.metadata().iter() {
        assert_eq!(view.metadata().get(key), Some(value), "{key}");
    }
    let m = view.metadata();
    assert_eq!(m.f32("gemma3.rope.freq_base_swa"), Ok(10_000.0));
    assert_eq!(
        m.opt_str("gemma3.rope.scaling.type"),
        Ok(None),
        "a context of 32K is not stretched"
    );
    assert!(m.str("tokenizer.chat_template").unwrap().contains("<start_of_turn>"));
    let tokens = m.array("tokenizer.ggml.tokens").unwrap().unwrap();
    assert_eq!((tokens.len(), tokens.element_type()), (262_144, ValueType::String));

    assert_eq!(view.tensors().len(), original.tensors().len());
    for tensor in original.tensors() {
        let shown = view.tensor(&tensor.name).unwrap();
        assert_eq!((shown.ty, shown.shape), (tensor.ty, &*tensor.shape), "{}", tensor.name);
        assert!(shown.bytes() == original.data(tensor), "{} differs", tensor.name);
    }
}

#[test]
fn real_models_open_and_are_not_translated() {
    for name in ["SmolLM2-135M-Instruct.Q4_1.gguf", "gemma-3-270m-q4_k_m.gguf"] {
        let Some(path) = real_model(name) else { continue };
        let view = view(&path);
        assert_eq!(view.translation(), None, "{name}");
        let tensors = view.gguf().tensors();
        let largest = tensors.iter().max_by_key(|t| t.size).unwrap();
        assert_eq!(&*largest.name, "token_embd.weight");
        let tokens = view.metadata().strings("tokenizer.ggml.tokens").unwrap().unwrap();
        assert_eq!(tokens.len() as u64, largest.shape[1], "{name}");
        let embedding = view.metadata().architecture().unwrap().to_owned() + ".embedding_length";
        assert_eq!(view.metadata().u64(&embedding), Ok(largest.shape[0]), "{name}");
    }
}
