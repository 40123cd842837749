//! Conversion of BERT and XLM-RoBERTa: small networks that the tests make.

use std::path::{Path, PathBuf};

use puna_gguf::Gguf;
use puna_quant::TensorType;
use serde_json::json;

use super::fixtures::convert_files;
use crate::FolderFile;

/// A folder of a BERT with one layer. Each tensor is filled with its number.
fn tiny_bert(
    dir: &Path,
    edit: impl Fn(&mut serde_json::Value, &mut Vec<(String, Vec<u64>)>),
) -> Vec<FolderFile> {
    let mut config = json!({
        "architectures": ["BertModel"], "hidden_size": 2, "num_hidden_layers": 1, "intermediate_size": 4,
        "num_attention_heads": 1, "max_position_embeddings": 8, "type_vocab_size": 2, "vocab_size": 3,
        "hidden_act": "gelu", "layer_norm_eps": 1e-12,
    });
    let mut tensors: Vec<(String, Vec<u64>)> = vec![
        ("embeddings.word_embeddings.weight".into(), vec![3, 2]),
        ("embeddings.position_embeddings.weight".into(), vec![8, 2]),
        ("embeddings.token_type_embeddings.weight".into(), vec![2, 2]),
        ("embeddings.LayerNorm.gamma".into(), vec![2]),
        ("embeddings.LayerNorm.beta".into(), vec![2]),
        ("pooler.dense.weight".into(), vec![2, 2]),
    ];
    for (part, rows, columns) in [
        ("attention.self.query", 2, 2),
        ("attention.self.key", 2, 2),
        ("attention.self.value", 2, 2),
        ("attention.output.dense", 2, 2),
        ("intermediate.dense", 4, 2),
        ("output.dense", 2, 4),
    ] {
        tensors.push((format!("encoder.layer.0.{part}.weight"), vec![rows, columns]));
        tensors.push((format!("encoder.layer.0.{part}.bias"), vec![rows]));
    }
    for part in ["attention.output.LayerNorm", "output.LayerNorm"] {
        tensors.push((format!("encoder.layer.0.{part}.weight"), vec![2]));
        tensors.push((format!("encoder.layer.0.{part}.bias"), vec![2]));
    }
    edit(&mut config, &mut tensors);
    let weights = numbered(&tensors);
    let pooling = json!({"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": false});
    let modules = json!([{"path": "", "type": "sentence_transformers.models.Transformer"},
        {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}]);
    std::fs::create_dir_all(dir.join("1_Pooling")).unwrap();
    let files = [
        ("config.json", config.to_string().into_bytes()),
        ("model.safetensors", weights),
        ("vocab.txt", b"[PAD]\nword\n##s\n".to_vec()),
        ("modules.json", modules.to_string().into_bytes()),
        ("1_Pooling/config.json", pooling.to_string().into_bytes()),
    ];
    let file = |(name, bytes): (&str, Vec<u8>)| {
        std::fs::write(dir.join(name), bytes).unwrap();
        FolderFile { name: name.into(), path: dir.join(name) }
    };
    files.into_iter().map(file).collect()
}

/// A safetensors file. The values of each tensor begin with its number.
fn numbered(tensors: &[(String, Vec<u64>)]) -> Vec<u8> {
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for (i, (name, shape)) in tensors.iter().enumerate() {
        let start = data.len();
        let n = shape.iter().product::<u64>();
        data.extend((0..n).flat_map(|k| (i as f32 + k as f32 / 16.0).to_le_bytes()));
        let offsets = [start, data.len()];
        header
            .insert(name.clone(), json!({"dtype": "F32", "shape": shape, "data_offsets": offsets}));
    }
    let header = serde_json::to_vec(&header).unwrap();
    [&(header.len() as u64).to_le_bytes()[..], &header, &data].concat()
}

#[test]
fn a_bert_folder_becomes_a_gguf_file() {
    let dir = tempfile::tempdir().unwrap();
    let files = tiny_bert(dir.path(), |_, _| {});
    let gguf = convert_files(&files).unwrap();
    let meta = gguf.metadata();
    assert_eq!(meta.architecture(), Ok("bert"));
    assert_eq!(meta.u32("bert.pooling_type"), Ok(2));
    assert_eq!(meta.bool("bert.attention.causal"), Ok(false));
    assert_eq!(
        meta.strings("tokenizer.ggml.tokens").unwrap().unwrap().collect::<Vec<_>>(),
        [&b"[PAD]"[..], "▁word".as_bytes(), b"s"]
    );
    // Matrices are F16 with the row length first; embeddings and vectors are F32.
    let up = gguf.tensor("blk.0.ffn_up.weight").unwrap();
    assert_eq!((up.ty, up.shape.as_slice()), (TensorType::F16, &[2, 4][..]));
    let positions = gguf.tensor("position_embd.weight").unwrap();
    assert_eq!((positions.ty, positions.shape.as_slice()), (TensorType::F32, &[2, 8][..]));
    assert_eq!(gguf.data(positions)[..8], [1.0f32.to_le_bytes(), 1.0625f32.to_le_bytes()].concat());
    assert_eq!(gguf.tensor("token_embd_norm.bias").unwrap().ty, TensorType::F32);
    assert!(gguf.tensor("cls.weight").is_none());
    assert_eq!(gguf.tensors().len(), 5 + 16);
}

#[test]
fn folders_that_contradict_their_configuration_are_refused() {
    type Edit = fn(&mut serde_json::Value, &mut Vec<(String, Vec<u64>)>);
    let cases: [(Edit, &str); 8] = [
        (
            |c, _| c["architectures"] = json!(["T5Model"]),
            "architecture T5Model is not supported; supported: BertModel",
        ),
        (
            |c, _| c["hidden_size"] = json!("x"),
            "config.json: `hidden_size` must be a positive number",
        ),
        (
            |c, _| c["num_hidden_layers"] = json!(2_000_000_000),
            "encoder.layer.1999999999.* is missing",
        ),
        (|c, _| c["num_hidden_layers"] = json!(2), "tensor encoder.layer.1."),
        (|c, _| c["vocab_size"] = json!(4), "has shape [3, 2], expected [4, 2]"),
        (|c, _| c["hidden_act"] = json!("relu"), "with activation relu"),
        (|_, t| t[0].0 = "embeddings.other".into(), "tensor embeddings.other is unknown"),
        (
            |_, t| {
                t.remove(0);
            },
            "tensor embeddings.word_embeddings.weight is missing",
        ),
    ];
    for (edit, want) in cases {
        let dir = tempfile::tempdir().unwrap();
        let error = convert_files(&tiny_bert(dir.path(), edit)).err().unwrap().to_string();
        assert!(error.contains(want), "{want}: {error}");
    }
}

/// A tiny XLM-RoBERTa with this vocabulary.
fn tiny_roberta(dir: &Path, rows: u64, tokenizer: &serde_json::Value) -> Vec<FolderFile> {
    let mut files = tiny_bert(dir, |config, tensors| {
        config["architectures"] = json!(["XLMRobertaModel"]);
        (config["vocab_size"], config["pad_token_id"]) = (json!(rows), json!(1));
        tensors[0].1[0] = rows;
        tensors.iter_mut().for_each(|(name, _)| name.insert_str(0, "roberta."));
    });
    let tasks = json!({"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"});
    for (name, json) in [("tokenizer.json", tokenizer), ("tokenizer_config.json", &tasks)] {
        std::fs::write(dir.join(name), json.to_string()).unwrap();
        files.push(FolderFile { name: name.into(), path: dir.join(name) });
    }
    files
}

/// A vocabulary as in XLM-RoBERTa's files.
fn unigram(vocab: &[(String, f32)], charsmap: &str) -> serde_json::Value {
    let special = |(id, text): (usize, &str)| json!({"id": id, "content": text, "special": true});
    let special: Vec<_> =
        ["<s>", "<pad>", "</s>", "<unk>"].into_iter().enumerate().map(special).collect();
    let token = |text: &str| json!({"SpecialToken": {"id": text, "type_id": 0}});
    json!({
        "added_tokens": special,
        "normalizer": {"type": "Precompiled", "precompiled_charsmap": charsmap},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"},
            {"type": "Metaspace", "replacement": "▁", "add_prefix_space": true}]},
        "post_processor": {"type": "TemplateProcessing",
            "single": [token("<s>"), {"Sequence": {"id": "A", "type_id": 0}}, token("</s>")], "pair": []},
        "model": {"type": "Unigram", "unk_id": 3, "vocab": vocab},
    })
}

#[test]
fn an_xlm_roberta_folder_becomes_a_gguf_file() {
    let dir = tempfile::tempdir().unwrap();
    let texts = ["<s>", "<pad>", "</s>", "<unk>", "▁a"];
    let vocab: Vec<_> = texts.iter().map(|text| ((*text).to_owned(), -0.5)).collect();
    let files = tiny_roberta(dir.path(), 5, &unigram(&vocab, "AAAAAA=="));
    let gguf = convert_files(&files).unwrap();
    let meta = gguf.metadata();
    assert_eq!((meta.architecture(), meta.u32("bert.context_length")), (Ok("bert"), Ok(6)));
    // Two rows of the position table stand for no position.
    let positions = gguf.tensor("position_embd.weight").unwrap();
    assert_eq!((positions.ty, positions.shape.as_slice()), (TensorType::F32, &[2, 6][..]));
    assert_eq!(
        gguf.data(positions)[..8],
        [1.25f32.to_le_bytes(), 1.3125f32.to_le_bytes()].concat()
    );
    assert_eq!(meta.str("tokenizer.ggml.model"), Ok("t5"));
    assert_eq!(meta.i32s("tokenizer.ggml.token_type").unwrap().unwrap(), [3, 3, 3, 2, 1]);
    for key in ["add_space_prefix", "remove_extra_whitespaces", "add_bos_token", "add_eos_token"] {
        assert_eq!(meta.bool(&format!("tokenizer.ggml.{key}")), Ok(true), "{key}");
    }
    assert_eq!(
        (meta.u32("tokenizer.ggml.eos_token_id"), meta.u32("tokenizer.ggml.unknown_token_id")),
        (Ok(2), Ok(3))
    );
    assert_eq!(meta.u8s("tokenizer.ggml.precompiled_charsmap").unwrap().unwrap(), [0; 4]);
}

/// Compares with the vocabulary of a file made by llama.cpp's converter from the same source.
#[test]
fn the_xlm_roberta_vocabulary_equals_that_of_llama_cpp() {
    let path = test_models().join("vocab/ggml-vocab-nomic-bert-moe.gguf");
    if !path.exists() {
        eprintln!("SKIPPED: {} is not there", path.display());
        return;
    }
    let want = Gguf::open(&path).unwrap();
    let meta = want.metadata();
    let texts = meta.strings("tokenizer.ggml.tokens").unwrap().unwrap();
    let texts = texts.map(|text| String::from_utf8(text.to_owned()).unwrap());
    let scores = meta.f32s("tokenizer.ggml.scores").unwrap().unwrap();
    let kinds = meta.i32s("tokenizer.ggml.token_type").unwrap().unwrap();
    // Padding tokens are in no source file, and the mask token follows the vocabulary.
    let used = kinds.iter().rposition(|&kind| kind == 1).unwrap() + 1;
    let vocab: Vec<(String, f32)> = texts.zip(scores.iter().copied()).take(used).collect();
    let charsmap = meta.u8s("tokenizer.ggml.precompiled_charsmap").unwrap().unwrap();
    let charsmap = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, charsmap);
    let mut json = unigram(&vocab, &charsmap);
    json["added_tokens"]
        .as_array_mut()
        .unwrap()
        .push(json!({"id": 250001, "content": "<mask>", "special": true}));
    let dir = tempfile::tempdir().unwrap();
    let files = tiny_roberta(dir.path(), kinds.len() as u64, &json);
    let made = convert_files(&files).unwrap();
    for key in [
        "model",
        "token_type",
        "add_space_prefix",
        "remove_extra_whitespaces",
        "precompiled_charsmap",
    ] {
        let key = format!("tokenizer.ggml.{key}");
        assert!(made.metadata().get(&key) == meta.get(&key), "{key}");
    }
    // Compare up to the mask token: the padding tokens of that file are numbered from one less.
    let texts = |gguf: &Gguf| -> Vec<Vec<u8>> {
        let texts = gguf.metadata().strings("tokenizer.ggml.tokens").unwrap().unwrap();
        texts.take(used + 1).map(<[u8]>::to_vec).collect()
    };
    assert!(texts(&made) == texts(&want));
    let found = made.metadata().f32s("tokenizer.ggml.scores").unwrap().unwrap();
    assert!(found[..used] == scores[..used]);
}

fn test_models() -> PathBuf {
    std::env::var_os("PUNA_TEST_MODELS").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.cache/models"),
        PathBuf::from,
    )
}
