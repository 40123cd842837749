//! Folders with only a tiktoken vocabulary: the conversion derives tokens and merges from the
//! ranks.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use puna_gguf::Gguf;
use serde_json::{Value, json};

use super::config::folder_config;
use super::fixtures::{Folder, bytes, convert_files, safetensors, zoo};
use super::llama_like::llama_like_tensors;
use super::zoo_model::ZooModel;
use super::{compare, folder_of};

/// The strings of a metadata key.
fn texts(gguf: &Gguf, key: &str) -> Vec<String> {
    let texts = gguf.metadata().strings(&format!("tokenizer.ggml.{key}")).unwrap().unwrap();
    texts.map(|text| String::from_utf8(text.to_vec()).unwrap()).collect()
}

/// The bytes of a token in a byte-level vocabulary.
fn bytes_of(text: &str) -> Vec<u8> {
    let plain = |c: u32| matches!(c, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let hidden: Vec<u32> = (0..256).filter(|&byte| !plain(byte)).collect();
    let byte = |c: char| if plain(c as u32) { c as u8 } else { hidden[c as usize - 256] as u8 };
    text.chars().map(byte).collect()
}

/// A tiktoken file with these tokens in the order of their ranks.
fn ranks(tokens: &[String]) -> String {
    let line =
        |(rank, text): (usize, &String)| format!("{} {rank}\n", STANDARD.encode(bytes_of(text)));
    tokens.iter().enumerate().map(line).collect()
}

fn convert(folder: &Folder) -> Result<Gguf, String> {
    convert_files(&folder.files).map_err(|e| e.to_string())
}

/// Kimi's folders list special tokens in their settings.
#[test]
fn merges_are_derived_from_ranks() {
    let want = zoo("qwen2");
    let tokens = texts(&want, "tokens");
    let mut folder = folder_of(
        &want,
        &llama_like_tensors(&want),
        folder_config(&want, "Qwen2ForCausalLM", None),
    );
    folder.files.retain(|file| !file.name.starts_with("tokenizer"));
    let missing = convert(&folder).err().unwrap();
    assert!(missing.contains("tokenizer.json or tokenizer.model is missing"), "{missing}");
    folder.put("tiktoken.model", ranks(&tokens[..315]));
    let added =
        |(id, text): (usize, &String)| (id.to_string(), json!({"content": text, "special": true}));
    let added: serde_json::Map<String, Value> =
        tokens.iter().enumerate().skip(315).map(added).collect();
    let settings =
        json!({"added_tokens_decoder": added, "bos_token": tokens[315], "eos_token": tokens[316]});
    folder.put("tokenizer_config.json", settings.to_string());
    let made = convert(&folder).unwrap();
    assert_eq!(texts(&made, "tokens"), tokens);
    assert_eq!(texts(&made, "merges"), texts(&want, "merges"));
    let kinds = |gguf: &Gguf| gguf.metadata().i32s("tokenizer.ggml.token_type").unwrap().unwrap();
    assert_eq!(kinds(&made), kinds(&want));
    let meta = made.metadata();
    assert_eq!(
        (meta.str("tokenizer.ggml.model"), meta.str("tokenizer.ggml.pre")),
        (Ok("gpt2"), Ok("kimi-k2"))
    );
    assert_eq!(meta.u32("tokenizer.ggml.eos_token_id"), Ok(316));
}

/// Only the code of Qwen 1 defines its special tokens.
#[test]
fn qwen_1_has_the_special_tokens_of_its_code() {
    let tokens: Vec<String> = texts(&zoo("qwen2"), "tokens")[..260].to_vec();
    let rows = 260 + 3 + 205 + 1;
    let one = |name: &str, shape: &[u64]| {
        let count = shape.iter().product::<u64>() as usize;
        (format!("transformer.{name}"), "BF16", shape.to_vec(), bytes(&vec![0.25; count], "BF16"))
    };
    let mut tensors = vec![
        one("wte.weight", &[rows, 8]),
        one("ln_f.weight", &[8]),
        one("h.0.ln_1.weight", &[8]),
        one("h.0.attn.c_attn.weight", &[24, 8]),
        one("h.0.attn.c_attn.bias", &[24]),
        one("h.0.attn.c_proj.weight", &[8, 8]),
        one("h.0.ln_2.weight", &[8]),
        one("h.0.mlp.w1.weight", &[16, 8]),
        one("h.0.mlp.w2.weight", &[16, 8]),
        one("h.0.mlp.c_proj.weight", &[8, 16]),
        one("rotary_emb.inv_freq", &[2]),
    ];
    tensors.push((
        "lm_head.weight".into(),
        "BF16",
        vec![rows, 8],
        bytes(&vec![0.5; 8 * rows as usize], "BF16"),
    ));
    let config = json!({"architectures": ["QWenLMHeadModel"], "hidden_size": 8, "num_attention_heads": 2,
        "num_hidden_layers": 1, "intermediate_size": 32, "max_position_embeddings": 64, "rotary_emb_base": 1e4});
    let mut folder = Folder::new();
    folder.put("model.safetensors", safetensors(&tensors));
    folder.put("config.json", config.to_string());
    folder.put("qwen.tiktoken", ranks(&tokens));
    let made = convert(&folder).unwrap();
    let (meta, found) = (made.metadata(), texts(&made, "tokens"));
    assert_eq!(meta.architecture(), Ok("qwen"));
    assert_eq!(found[..260], tokens);
    assert_eq!(found[260..264], ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|extra_0|>"]);
    assert_eq!(found[467..], ["<|extra_204|>", "[PAD468]"]);
    for task in ["bos", "eos", "unknown"] {
        assert_eq!(meta.u32(&format!("tokenizer.ggml.{task}_token_id")), Ok(260), "{task}");
    }
    assert_eq!(
        (meta.str("tokenizer.ggml.pre"), meta.u32("qwen.feed_forward_length")),
        (Ok("qwen2"), Ok(16))
    );
    assert_eq!(texts(&made, "merges").len(), 4);
}

/// Some folders have a tiktoken file named `tokenizer.model`; the conversion ignores it if there is
/// a `tokenizer.json`.
#[test]
fn tiktoken_file_named_tokenizer_model_is_ignored() {
    let want = zoo("qwen2");
    let mut folder = folder_of(
        &want,
        &llama_like_tensors(&want),
        folder_config(&want, "Qwen2ForCausalLM", None),
    );
    folder.put("tokenizer.model", ranks(&texts(&want, "tokens")[..315]));
    let made = convert(&folder).unwrap();
    assert_eq!(texts(&made, "tokens"), texts(&want, "tokens"));
    folder.files.retain(|file| file.name != "tokenizer.json");
    let error = convert(&folder).err().unwrap();
    assert!(error.contains("tokenizer.model: a tiktoken vocabulary"), "{error}");
}

/// GLM 4 with its first tensor names, and a tiktoken file named `tokenizer.model`.
#[test]
fn glm_4_with_its_first_tensor_names_converts() {
    let want = zoo("chatglm");
    let mut model = ZooModel::of(&want);
    model.join_rows(&["attn_q", "attn_k", "attn_v"], "attn_qkv");
    let whole = [
        ("token_embd", "transformer.embedding.word_embeddings"),
        ("output_norm", "transformer.encoder.final_layernorm"),
        ("output", "transformer.output_layer"),
    ];
    let own = [
        ("attn_norm", "input_layernorm"),
        ("attn_qkv", "self_attention.query_key_value"),
        ("attn_output", "self_attention.dense"),
        ("ffn_norm", "post_attention_layernorm"),
        ("ffn_up", "mlp.dense_h_to_4h"),
        ("ffn_down", "mlp.dense_4h_to_h"),
    ];
    let number = |key: &str| want.metadata().u32(&format!("chatglm.{key}")).unwrap();
    let config = json!({"architectures": ["ChatGLMModel"], "hidden_size": number("embedding_length"),
        "num_layers": number("block_count"), "num_attention_heads": number("attention.head_count"),
        "multi_query_attention": true, "multi_query_group_num": number("attention.head_count_kv"),
        "ffn_hidden_size": number("feed_forward_length"), "seq_length": number("context_length"), "rope_ratio": 1,
        "layernorm_epsilon": want.metadata().f32("chatglm.attention.layer_norm_rms_epsilon").unwrap()});
    let mut folder = Folder::new();
    folder.put(
        "model.safetensors",
        safetensors(&model.into_folder_tensors(&whole, "transformer.encoder.layers.", &own)),
    );
    folder.put("config.json", config.to_string());
    let tokens = texts(&want, "tokens");
    let kinds = want.metadata().i32s("tokenizer.ggml.token_type").unwrap().unwrap();
    let plain = kinds.iter().position(|kind| *kind != 1).unwrap();
    folder.put("tokenizer.model", ranks(&tokens[..plain]));
    let added =
        |(id, text): (usize, &String)| (id.to_string(), json!({"content": text, "special": true}));
    let added: serde_json::Map<String, Value> =
        tokens.iter().enumerate().skip(plain).map(added).collect();
    let task = |task: &str| {
        let id = want.metadata().opt_u32(&format!("tokenizer.ggml.{task}_token_id")).unwrap();
        id.map(|id| tokens[id as usize].clone())
    };
    let settings = json!({"added_tokens_decoder": added, "bos_token": task("bos"), "eos_token": task("eos"),
        "pad_token": task("padding"), "chat_template": want.metadata().opt_str("tokenizer.chat_template").unwrap()});
    folder.put("tokenizer_config.json", settings.to_string());
    compare("chatglm", &want, &folder, &["token_type"]);
    let made = convert(&folder).unwrap();
    assert_eq!(made.metadata().str("tokenizer.ggml.pre"), Ok("chatglm-bpe"));
}
