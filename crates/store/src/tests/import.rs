//! Importing decoders. The files of `tests/data/zoo` were made by llama.cpp's converter from folders of Hugging Face's
//! transformers: folders made back from them must become the same tensors and keys again. The way back is written here on
//! its own.

use std::path::{Path, PathBuf};

use puna_gguf::{Gguf, TensorInfo};
use puna_quant::{TensorType, dequantize};
use serde_json::{Map, Value, json};

use super::Kit;
use crate::{ImportFile, StoreError};

/// A folder in the making.
struct Folder {
    dir: PathBuf,
    files: Vec<ImportFile>,
}

impl Folder {
    fn put(&mut self, name: &str, bytes: impl AsRef<[u8]>) {
        let path = self.dir.join(name);
        std::fs::write(&path, bytes).unwrap();
        self.files.push(ImportFile { name: name.to_owned(), path });
    }
}

/// A tensor of a folder: type, dimensions, bytes.
pub(super) type Stored = (String, &'static str, Vec<u64>, Vec<u8>);

pub(super) fn safetensors(tensors: &[Stored]) -> Vec<u8> {
    let (mut header, mut data) = (Map::new(), Vec::new());
    for (name, dtype, shape, bytes) in tensors {
        let start = data.len();
        data.extend_from_slice(bytes);
        header.insert(
            name.clone(),
            json!({"dtype": dtype, "shape": shape, "data_offsets": [start, data.len()]}),
        );
    }
    let header = Value::Object(header).to_string();
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat()
}

fn zoo(name: &str) -> Gguf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/zoo").join(name);
    Gguf::open(&path.with_extension("gguf")).unwrap()
}

pub(super) fn values(gguf: &Gguf, tensor: &TensorInfo) -> Vec<f32> {
    let mut values = vec![0.0; tensor.elements() as usize];
    dequantize(tensor.ty, gguf.data(tensor), &mut values).unwrap();
    values
}

/// Names of layers' parts there, by the architecture.
fn part_there(arch: &str, part: &str) -> String {
    let (part, end) = part.rsplit_once('.').unwrap();
    let gemma = ["gemma2", "gemma3"].contains(&arch);
    let name = match part {
        "attn_norm" => "input_layernorm",
        "ffn_norm" if gemma => "pre_feedforward_layernorm",
        "ffn_norm" | "post_attention_norm" => "post_attention_layernorm",
        "post_ffw_norm" => "post_feedforward_layernorm",
        "attn_q" => "self_attn.q_proj",
        "attn_k" => "self_attn.k_proj",
        "attn_v" => "self_attn.v_proj",
        "attn_qkv" => "self_attn.qkv_proj",
        "attn_output" => "self_attn.o_proj",
        "attn_q_norm" => "self_attn.q_norm",
        "attn_k_norm" => "self_attn.k_norm",
        "attn_sinks" => return "self_attn.sinks".to_owned(),
        "ffn_gate" => "mlp.gate_proj",
        "ffn_up" if arch == "phi3" => "mlp.gate_up_proj",
        "ffn_up" => "mlp.up_proj",
        "ffn_down" => "mlp.down_proj",
        "ffn_gate_inp" if arch == "gpt-oss" => "mlp.router",
        "ffn_gate_inp" if arch == "llama" => "block_sparse_moe.gate",
        "ffn_gate_inp" => "mlp.gate",
        "ffn_gate_shexp" => "mlp.shared_expert.gate_proj",
        "ffn_up_shexp" => "mlp.shared_expert.up_proj",
        "ffn_down_shexp" => "mlp.shared_expert.down_proj",
        "ffn_gate_inp_shexp" => "mlp.shared_expert_gate",
        other => panic!("{other}"),
    };
    format!("{name}.{end}")
}

/// Rows with halves of heads together again.
fn halves(values: &[f32], rows: usize, heads: usize) -> Vec<f32> {
    let (columns, head) = (values.len() / rows, rows / heads);
    let mut out = Vec::with_capacity(values.len());
    for row in 0..rows {
        let (start, at) = (row / head * head, row % head);
        let (half, pair) = (at / (head / 2), at % (head / 2));
        let from = (start + 2 * pair + half) * columns;
        out.extend_from_slice(&values[from..from + columns]);
    }
    out
}

pub(super) fn bytes(values: &[f32], dtype: &str) -> Vec<u8> {
    match dtype {
        "F32" => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
        "F16" => values.iter().flat_map(|x| half::f16::from_f32(*x).to_le_bytes()).collect(),
        _ => values.iter().flat_map(|x| half::bf16::from_f32(*x).to_le_bytes()).collect(),
    }
}

/// The tensors of a zoo file as transformers stores them.
fn tensors_there(gguf: &Gguf) -> Vec<Stored> {
    let arch = gguf.metadata().architecture().unwrap().to_owned();
    let number = |key: &str| gguf.metadata().u32(&format!("{arch}.{key}")).unwrap() as usize;
    let mut out: Vec<Stored> = Vec::new();
    for tensor in gguf.tensors() {
        let dtype = match tensor.ty {
            TensorType::F16 => "F16",
            TensorType::BF16 => "BF16",
            _ => "F32",
        };
        let mut numbers = values(gguf, tensor);
        let shape: Vec<u64> = tensor.shape.iter().rev().copied().collect();
        if arch.starts_with("gemma") && tensor.name.ends_with("norm.weight") {
            numbers.iter_mut().for_each(|x| *x -= 1.0);
        }
        let rows = shape[0] as usize;
        for (part, heads) in [("attn_q.", "attention.head_count"), ("attn_k.", "attention.head_count_kv")] {
            let pairs = ["llama", "arcee", "smollm3", "granite"].contains(&&*arch);
            if pairs && tensor.name.contains(part) {
                numbers = halves(&numbers, rows, number(heads));
            }
        }
        let name = match &*tensor.name {
            "token_embd.weight" => "model.embed_tokens.weight".to_owned(),
            "output_norm.weight" => "model.norm.weight".to_owned(),
            "output.weight" => "lm_head.weight".to_owned(),
            name if name.starts_with("rope_") => continue,
            name => {
                let (layer, part) = name.strip_prefix("blk.").unwrap().split_once('.').unwrap();
                if part.contains("_exps.") {
                    if arch != "gpt-oss" {
                        experts(&arch, layer, part, &shape, &numbers, &mut out);
                    }
                    continue;
                }
                format!("model.layers.{layer}.{}", part_there(&arch, part))
            }
        };
        out.push((name, dtype, shape, bytes(&numbers, dtype)));
    }
    if arch == "gpt-oss" {
        gpt_oss_experts(gguf, number("block_count"), &mut out);
    }
    out
}

fn experts(arch: &str, layer: &str, part: &str, shape: &[u64], numbers: &[f32], out: &mut Vec<Stored>) {
    let part = part.strip_suffix("_exps.weight").unwrap();
    let name = match (arch, part) {
        ("llama", "ffn_gate") => "w1",
        ("llama", "ffn_down") => "w2",
        ("llama", "ffn_up") => "w3",
        (_, part) => &format!("{}_proj", part.strip_prefix("ffn_").unwrap()),
    };
    let block = if arch == "llama" { "block_sparse_moe" } else { "mlp" };
    let each = numbers.len() / shape[0] as usize;
    for (i, numbers) in numbers.chunks_exact(each).enumerate() {
        let name = format!("model.layers.{layer}.{block}.experts.{i}.{name}.weight");
        out.push((name, "F32", shape[1..].to_vec(), bytes(numbers, "F32")));
    }
}

/// Gate and up in turns, inputs before outputs; or in blocks of 32, outputs before inputs.
fn gpt_oss_experts(gguf: &Gguf, layers: usize, out: &mut Vec<Stored>) {
    for layer in 0..layers {
        let get = |name: &str| gguf.tensor(&format!("blk.{layer}.ffn_{name}")).unwrap();
        let prefix = format!("model.layers.{layer}.mlp.experts");
        let turns =
            |a: Vec<f32>, b: Vec<f32>| a.into_iter().zip(b).flat_map(|(a, b)| [a, b]).collect::<Vec<_>>();
        let (gate, up, down) = (get("gate_exps.weight"), get("up_exps.weight"), get("down_exps.weight"));
        let [width, hidden, count] = gate.shape[..] else { panic!() };
        let both = turns(values(gguf, get("gate_exps.bias")), values(gguf, get("up_exps.bias")));
        out.push((
            format!("{prefix}.gate_up_proj_bias"),
            "F32",
            vec![count, 2 * hidden],
            bytes(&both, "F32"),
        ));
        let bias = values(gguf, get("down_exps.bias"));
        out.push((format!("{prefix}.down_proj_bias"), "F32", vec![count, width], bytes(&bias, "F32")));
        if gate.ty == TensorType::MXFP4 {
            let rows = |t: &TensorInfo, row: u64| {
                let size = (t.shape[0] / 32 * 17) as usize;
                gguf.data(t)[row as usize * size..][..size].to_vec()
            };
            let mixed = (0..count * hidden).flat_map(|row| [rows(gate, row), rows(up, row)]).collect();
            let plain = (0..count * width).map(|row| rows(down, row)).collect();
            blocks(&format!("{prefix}.gate_up_proj"), vec![count, 2 * hidden, width / 32], mixed, out);
            blocks(&format!("{prefix}.down_proj"), vec![count, width, hidden / 32], plain, out);
            continue;
        }
        let (gate, up) = (values(gguf, gate), values(gguf, up));
        let mut both = Vec::new();
        for (expert, input) in (0..count).flat_map(|e| (0..width).map(move |i| (e, i))) {
            let at = |output: u64| ((expert * hidden + output) * width + input) as usize;
            both.extend((0..hidden).flat_map(|output| [gate[at(output)], up[at(output)]]));
        }
        out.push((
            format!("{prefix}.gate_up_proj"),
            "F32",
            vec![count, width, 2 * hidden],
            bytes(&both, "F32"),
        ));
        let down = values(gguf, down);
        let mut turned = Vec::new();
        for (expert, input) in (0..count).flat_map(|e| (0..hidden).map(move |i| (e, i))) {
            turned
                .extend((0..width).map(|output| down[((expert * width + output) * hidden + input) as usize]));
        }
        out.push((format!("{prefix}.down_proj"), "F32", vec![count, hidden, width], bytes(&turned, "F32")));
    }
}

/// Rows of GGUF's blocks as numbers side by side in bytes, with exponents apart.
fn blocks(name: &str, shape: Vec<u64>, rows: Vec<Vec<u8>>, out: &mut Vec<Stored>) {
    let (mut codes, mut scales) = (Vec::new(), Vec::new());
    for block in rows.concat().chunks_exact(17) {
        scales.push(block[0]);
        let number = |i: usize| block[1 + i % 16] >> (4 * (i / 16)) & 15;
        codes.extend((0..16).map(|i| number(2 * i) | number(2 * i + 1) << 4));
    }
    out.push((format!("{name}_scales"), "U8", shape.clone(), scales));
    out.push((format!("{name}_blocks"), "U8", [&shape[..], &[16]].concat(), codes));
}

/// The configuration that transformers writes for such a model.
fn config_there(gguf: &Gguf, class: &str, llama3: Option<Value>) -> Value {
    let meta = gguf.metadata();
    let arch = meta.architecture().unwrap();
    let number = |key: &str| meta.opt_u32(&format!("{arch}.{key}")).unwrap();
    let float = |key: &str| meta.opt_f32(&format!("{arch}.{key}")).unwrap();
    let token = |key: &str| meta.opt_u32(&format!("tokenizer.ggml.{key}_token_id")).unwrap();
    let original = number("rope.scaling.original_context_length");
    let mut rope = json!({
        "rope_type": meta.opt_str(&format!("{arch}.rope.scaling.type")).unwrap().filter(|t| *t != "none").unwrap_or("default"),
        "rope_theta": float("rope.freq_base"),
        "factor": float("rope.scaling.factor"),
        "original_max_position_embeddings": original,
        "beta_fast": float("rope.scaling.yarn_beta_fast"),
        "beta_slow": float("rope.scaling.yarn_beta_slow"),
        "attention_factor": float("rope.scaling.yarn_attn_factor"),
    });
    for (key, tensor) in
        [("long_factor", "rope_factors_long.weight"), ("short_factor", "rope_factors_short.weight")]
    {
        if let Some(tensor) = gguf.tensor(tensor) {
            rope[key] = values(gguf, tensor).into();
            rope["rope_type"] = "longrope".into();
        }
    }
    if let Some(llama3) = llama3 {
        rope.as_object_mut().unwrap().extend(llama3.as_object().unwrap().clone());
    }
    if let Some(local) = float("rope.freq_base_swa") {
        rope = json!({"full_attention": rope, "sliding_attention": {"rope_type": "default", "rope_theta": local}});
    }
    let layer_types =
        meta.bools(&format!("{arch}.attention.sliding_window_pattern")).unwrap().map(|slides| {
            let kind = |slides| if slides { "sliding_attention" } else { "full_attention" };
            slides.into_iter().map(kind).collect::<Vec<_>>()
        });
    json!({
        "architectures": [class], "hidden_size": number("embedding_length"), "num_hidden_layers": number("block_count"),
        "intermediate_size": number("feed_forward_length"), "num_attention_heads": number("attention.head_count"),
        "num_key_value_heads": number("attention.head_count_kv"), "head_dim": number("attention.key_length"),
        "max_position_embeddings": number("context_length"), "rms_norm_eps": float("attention.layer_norm_rms_epsilon"),
        "sliding_window": number("attention.sliding_window").filter(|&n| n > 0),
        "attn_logit_softcapping": float("attn_logit_softcapping"),
        "final_logit_softcapping": float("final_logit_softcapping"), "rope_parameters": rope,
        "original_max_position_embeddings": original,
        "num_local_experts": number("expert_count"), "num_experts_per_tok": number("expert_used_count"),
        "moe_intermediate_size": number("expert_feed_forward_length"),
        "shared_expert_intermediate_size": number("expert_shared_feed_forward_length"),
        "layer_types": layer_types, "layer_norm_eps": float("attention.layer_norm_epsilon"),
        "attention_multiplier": float("attention.scale"), "embedding_multiplier": float("embedding_scale"),
        "residual_multiplier": float("residual_scale"), "logits_scaling": float("logit_scale"),
        "logit_scale": float("logit_scale"),
        "partial_rotary_factor": (arch == "phi3").then(|| {
            let head = number("embedding_length").unwrap() / number("attention.head_count").unwrap();
            number("rope.dimension_count").unwrap() as f32 / head as f32
        }),
        "bos_token_id": token("bos"), "eos_token_id": token("eos"), "pad_token_id": token("padding"),
        "unk_token_id": token("unknown"),
    })
}

/// The expressions behind names of pre-tokenizers.
fn steps(pre: &str) -> Value {
    let words = |digits: &str| {
        format!(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        )
    };
    let split = |text: String| {
        json!({"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": text}, "behavior": "Isolated", "invert": false},
            {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}]})
    };
    match pre {
        "llama-bpe" => split(words(r"\p{N}{1,3}")),
        "qwen2" => split(words(r"\p{N}")),
        "gpt-4o" => split(r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+".to_owned()),
        "smaug-bpe" => steps("llama-bpe"),
        "refact" | "command-r" => json!({"type": "Sequence", "pretokenizers": [
            {"type": "Digits", "individual_digits": true}, steps("gpt-2")]}),
        "seed-coder" => split(r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+".to_owned()),
        "gpt-2" | "olmo" | "exaone4" => json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true}),
        other => panic!("{other}"),
    }
}

fn put_vocabulary(gguf: &Gguf, folder: &mut Folder) {
    let meta = gguf.metadata();
    let tokens: Vec<String> = meta
        .strings("tokenizer.ggml.tokens")
        .unwrap()
        .unwrap()
        .map(|token| String::from_utf8(token.to_vec()).unwrap())
        .collect();
    let kinds = meta.i32s("tokenizer.ggml.token_type").unwrap().unwrap();
    let flag = |task: &str| meta.opt_bool(&format!("tokenizer.ggml.add_{task}_token")).unwrap();
    let settings = json!({"add_bos_token": flag("bos"), "add_eos_token": flag("eos"),
        "chat_template": meta.opt_str("tokenizer.chat_template").unwrap()});
    folder.put("tokenizer_config.json", settings.to_string());
    if let Some(scores) = meta.f32s("tokenizer.ggml.scores").unwrap() {
        let mut file = Vec::new();
        let mut field = |number: u8, bytes: &[u8]| {
            file.extend([number << 3 | 2, bytes.len() as u8]);
            file.extend_from_slice(bytes);
        };
        for ((text, kind), score) in tokens.iter().zip(&kinds).zip(scores) {
            let text = [&[0x0a, text.len() as u8], text.as_bytes()].concat();
            field(1, &[&text[..], &[0x15], &score.to_le_bytes(), &[0x18, *kind as u8]].concat());
        }
        let has_prefix = meta.opt_bool("tokenizer.ggml.add_space_prefix").unwrap().unwrap_or(true);
        field(3, &[0x18, has_prefix.into()]);
        folder.put("tokenizer.model", file);
        return;
    }
    let merges = meta.strings("tokenizer.ggml.merges").unwrap().unwrap();
    let merges: Vec<_> = merges.map(|merge| String::from_utf8(merge.to_vec()).unwrap()).collect();
    let (mut vocab, mut added) = (Map::new(), Vec::new());
    for (id, (text, kind)) in tokens.iter().zip(&kinds).enumerate() {
        match kind {
            1 => drop(vocab.insert(text.clone(), id.into())),
            5 => {}
            kind => {
                added.push(json!({"id": id, "content": text, "special": *kind == 3, "normalized": false}))
            }
        }
    }
    let pre = meta.str("tokenizer.ggml.pre").unwrap();
    let model = json!({"type": "BPE", "vocab": vocab, "merges": merges, "ignore_merges": pre == "llama-bpe"});
    let json = json!({"added_tokens": added, "pre_tokenizer": steps(pre), "model": model});
    folder.put("tokenizer.json", json.to_string());
}

fn folder(kit: &Kit, name: &str, gguf: &Gguf, class: &str, llama3: Option<Value>) -> Folder {
    let dir = kit.dir.path().join(name);
    std::fs::create_dir_all(&dir).unwrap();
    let mut folder = Folder { dir, files: Vec::new() };
    // Two files, as large models have them.
    let tensors = tensors_there(gguf);
    let (one, two) = tensors.split_at(tensors.len() / 2);
    folder.put("model-00001-of-00002.safetensors", safetensors(one));
    folder.put("model-00002-of-00002.safetensors", safetensors(two));
    folder.put("config.json", config_there(gguf, class, llama3).to_string());
    put_vocabulary(gguf, &mut folder);
    folder
}

/// Names of pre-tokenizers that cut as others do; importing knows them by what they do.
const ALIKE: [(&str, &str); 5] = [
    ("olmo", "gpt-2"),
    ("exaone4", "gpt-2"),
    ("refact", "smollm"),
    ("command-r", "smollm"),
    ("smaug-bpe", "dbrx"),
];

/// Keys that only llama.cpp's converter writes, or writes about another file,
/// or that it writes into every file of Gemma, whatever stands at that place.
const NOT_COMPARED: [&str; 5] =
    ["general.name", "general.size_label", "general.file_type", "add_sep_token", "eot_token_id"];

fn check(name: &str, class: &str, llama3: Option<Value>) {
    let kit = Kit::new();
    let want = zoo(name);
    let folder = folder(&kit, name, &want, class, llama3);
    let blob = kit.store.import(&folder.files).unwrap_or_else(|e| panic!("{name}: {e}"));
    let made = Gguf::open(&kit.store.blob_path(&blob.digest)).unwrap();
    for (key, value) in want.metadata().iter() {
        if NOT_COMPARED.iter().any(|end| key.ends_with(end)) {
            continue;
        }
        let found = made.metadata().get(key);
        let near = found.and_then(|f| f.as_float()).zip(value.as_float());
        let near = near.is_some_and(|(a, b)| (a - b).abs() <= b.abs() * 1e-6);
        let text =
            |value: Option<&puna_gguf::Value>| value.and_then(|v| v.as_str()).unwrap_or_default().to_owned();
        let is_alike = ALIKE.contains(&(&text(Some(value)), &text(found)));
        let near = near || key == "tokenizer.ggml.pre" && is_alike;
        assert!(near || found == Some(value), "{name}: {key} is {found:?} for {value:?}");
    }
    let names = |gguf: &Gguf| {
        let mut names: Vec<_> =
            gguf.tensors().iter().map(|t| (t.name.to_string(), t.shape.clone())).collect();
        names.sort();
        names
    };
    assert_eq!(names(&made), names(&want), "{name}");
    let has_sixteen = want.tensors().iter().any(|t| matches!(t.ty, TensorType::F16 | TensorType::BF16));
    for tensor in made.tensors() {
        let source = want.tensor(&tensor.name).unwrap();
        if source.ty == tensor.ty
            && !(source.ty == TensorType::F32 && name.starts_with("gemma"))
            && !tensor.name.starts_with("rope")
        {
            assert!(made.data(tensor) == want.data(source), "{name}: {}", tensor.name);
            continue;
        }
        assert!(!has_sixteen || source.ty == TensorType::F32, "{name}: {} became {}", tensor.name, tensor.ty);
        for (a, b) in values(&made, tensor).into_iter().zip(values(&want, source)) {
            let near = (a - b).abs() <= b.abs() * 1e-3 + 1e-6;
            assert!(near, "{name}: {} has {a} for {b}", tensor.name);
        }
    }
}

#[test]
fn folders_of_every_family_become_what_llama_cpp_makes_of_them() {
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

/// The vocabulary and the settings are cria's own, as they were published; the weights those of its GGUF file.
#[test]
fn crias_folder_becomes_its_gguf_file() {
    let kit = Kit::new();
    let cria = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/cria");
    let want = Gguf::open(&cria.join("cria-q8_0.gguf")).unwrap();
    let mut folder = Folder { dir: kit.dir.path().to_owned(), files: Vec::new() };
    let mut tensors = tensors_there(&want);
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
        folder.files.push(ImportFile { name: name.to_owned(), path: cria.join("hf").join(name) });
    }
    let blob = kit.store.import(&folder.files).unwrap();
    let made = Gguf::open(&kit.store.blob_path(&blob.digest)).unwrap();
    for (key, value) in want.metadata().iter() {
        // About the published file, not the model.
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
fn weights_of_eight_bits_are_multiplied_by_their_scales() {
    let kit = Kit::new();
    let gguf = zoo("llama");
    let mut folder = folder(&kit, "fp8", &gguf, "LlamaForCausalLM", None);
    let mut tensors = tensors_there(&gguf);
    let (name, dtype, shape, data) =
        tensors.iter_mut().find(|t| t.0.contains("layers.1.mlp.up_proj")).unwrap();
    assert_eq!(shape[..], [96, 48]);
    // Ones, by blocks of 64 rows and 32 columns: two blocks down and two across.
    (*dtype, *data) = ("F8_E4M3", vec![0x38; 96 * 48]);
    let scale = format!("{name}_scale_inv");
    tensors.push((scale, "F32", vec![2, 2], bytes(&[1.0, 2.0, 3.0, 4.0], "F32")));
    folder.files.retain(|file| !file.name.ends_with(".safetensors"));
    folder.put("model.safetensors", safetensors(&tensors));
    let mut config = config_there(&gguf, "LlamaForCausalLM", None);
    config["quantization_config"] = json!({"quant_method": "fp8", "weight_block_size": [64, 32]});
    folder.files.retain(|file| file.name != "config.json");
    folder.put("config.json", config.to_string());
    let blob = kit.store.import(&folder.files).unwrap();
    let made = Gguf::open(&kit.store.blob_path(&blob.digest)).unwrap();
    let tensor = made.tensor("blk.1.ffn_up.weight").unwrap();
    assert_eq!(tensor.ty, TensorType::BF16);
    let found = values(&made, tensor);
    assert_eq!([found[0], found[32], found[64 * 48], found[95 * 48 + 47]], [1.0, 2.0, 3.0, 4.0]);
}

#[test]
fn what_is_wrong_with_a_folder_is_said() {
    let kit = Kit::new();
    let gguf = zoo("llama");
    let import = |edit: &dyn Fn(&mut Folder)| {
        let mut folder = folder(&kit, "broken", &gguf, "LlamaForCausalLM", None);
        edit(&mut folder);
        let made = kit.store.import(&folder.files);
        made.map(|_| ()).map_err(|e: StoreError| e.to_string()).unwrap_err()
    };
    let without =
        |end: &'static str| move |folder: &mut Folder| folder.files.retain(|file| !file.name.ends_with(end));
    let error = import(&without("00002-of-00002.safetensors"));
    assert!(error.contains("is missing"), "{error}");
    let error = import(&without("tokenizer.model"));
    assert!(error.contains("tokenizer.json or tokenizer.model is missing"), "{error}");
    let error = import(&|folder| {
        folder.put(
            "model.safetensors.index.json",
            r#"{"weight_map": {"x": "model-00003-of-00003.safetensors"}}"#,
        );
    });
    assert!(error.contains("model-00003-of-00003.safetensors"), "{error}");
    let error = import(&|folder| {
        let extra = safetensors(&[("model.layers.0.strange.weight".into(), "F32", vec![1], vec![0; 4])]);
        folder.put("model-00003-of-00003.safetensors", extra);
    });
    assert!(error.contains("strange") && error.contains("not known"), "{error}");
    let error = import(&|folder| {
        folder.put("config.json", r#"{"architectures": ["PerceiverModel"]}"#);
        folder.files.rotate_right(1);
    });
    assert!(error.contains("PerceiverModel") && error.contains("Qwen3ForCausalLM"), "{error}");
}
