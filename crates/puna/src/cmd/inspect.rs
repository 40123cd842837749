//! `puna inspect`: shows the content of a model file and the memory that it needs.

use std::collections::BTreeMap;

use anyhow::Result;
use puna_engine::PAGE_TOKENS;
use puna_gguf::{Array, Metadata, TensorInfo, Translation, Value as Kv};
use puna_graph::{CacheSpec, KvType, StateSpec};
use puna_models::{LoadOptions, Model};
use puna_store::{GgufInfo, parameter_size};
use serde_json::{Map, Value, json};

use crate::cli::InspectArgs;
use crate::local::ModelFile;
use crate::{format, out};

/// Longest array that is printed with its elements; `--keys` prints longer ones too.
const MAX_PRINTED_ARRAY: usize = 64;

pub fn run(args: &InspectArgs) -> Result<()> {
    let file = ModelFile::open(&args.model)?;
    let info = GgufInfo::of(&file.gguf);
    let capabilities =
        file.stored.as_ref().map_or_else(|| info.capabilities(), |model| model.capabilities());
    let memory = MemoryNeeds::of(&file);
    if args.json {
        return out::json(&document(args, &file, &info, &capabilities, &memory));
    }
    out::text(&text(args, &file, &info, &capabilities, &memory))
}

/// Memory that loading needs, in bytes. Some values require a known architecture.
struct MemoryNeeds {
    weights: u64,
    /// KV cache per token at 16 bits per value.
    cache_token: Option<u64>,
    /// KV cache per token of layers with a sliding window, and the window in tokens.
    window: (u64, u64),
    /// Recurrent states per sequence.
    states: u64,
    /// Reason for missing values.
    unknown: Option<String>,
}

impl MemoryNeeds {
    fn of(file: &ModelFile) -> Self {
        let weights = file.view.tensors().map(|tensor| tensor.size()).sum();
        match Model::load(&file.view, LoadOptions::default()) {
            Ok(model) => {
                let (key_type, value_type) = (KvType::F16, KvType::F16);
                let layers = model.cache_layers().to_vec();
                let reach =
                    layers.iter().filter_map(|layer| layer.mask.reach()).max().unwrap_or(0) as u64;
                // A row of the cache may cover several tokens, so the size per token is computed
                // from a whole page.
                let (page_tokens, pages, window_pages) = (PAGE_TOKENS, 1, 1);
                let spec =
                    CacheSpec { layers, key_type, value_type, page_tokens, pages, window_pages };
                let states =
                    StateSpec { states: model.states().to_vec(), slots: 1 }.slot_bytes() as u64;
                let a_token = |bytes: usize| bytes.div_ceil(page_tokens) as u64;
                let window = (a_token(spec.window_page_bytes()), reach);
                let cache_token = Some(a_token(spec.page_bytes()));
                Self { weights, cache_token, window, states, unknown: None }
            }
            Err(error) => {
                let unknown = Some(error.to_string());
                Self { weights, cache_token: None, window: (0, 0), states: 0, unknown }
            }
        }
    }
}

fn document(
    args: &InspectArgs,
    file: &ModelFile,
    info: &GgufInfo,
    capabilities: &[String],
    memory: &MemoryNeeds,
) -> Value {
    let meta = file.gguf.metadata();
    let kv: Map<String, Value> =
        meta.iter().map(|(key, value)| (key.to_owned(), kv_json(value, args.kv))).collect();
    let tensors: Vec<Value> = file.gguf.tensors().iter().map(tensor_json).collect();
    json!({
        "path": file.path,
        "size": file.gguf.file_size(),
        "version": file.gguf.version(),
        "architecture": info.architecture,
        "name": info.name,
        "parameters": info.parameter_count,
        "file_type": info.file_type,
        "context_length": info.context_length,
        "embedding_length": info.embedding_length,
        "tokenizer": {
            "model": text_of(meta, "tokenizer.ggml.model"),
            "pre": text_of(meta, "tokenizer.ggml.pre"),
            "tokens": vocabulary(meta),
        },
        "kv": kv,
        "tensors": tensors,
        "translated": file.view.translation().map(translation_json),
        "capabilities": capabilities,
        "chat_template": info.chat_template,
        "memory": {
            "weights": memory.weights, "cache_per_token": memory.cache_token,
            "cache_per_token_in_window": memory.window.0, "window": memory.window.1,
            "states_per_sequence": memory.states, "unknown": memory.unknown,
        },
    })
}

fn tensor_json(tensor: &TensorInfo) -> Value {
    json!({
        "name": tensor.name, "type": tensor.ty.name(), "shape": tensor.shape, "offset": tensor.offset,
        "bytes": tensor.size,
    })
}

fn translation_json(translation: &Translation) -> Value {
    json!({
        "from": translation.layout,
        "renamed": translation.renamed.len(),
        "added": translation.added,
        "dropped": translation.dropped.len(),
        "architecture": {"from": translation.from, "to": translation.to},
        "changed": translation.changed,
        "removed": translation.removed,
    })
}

fn kv_json(value: &Kv, full: bool) -> Value {
    match value {
        Kv::Bool(b) => json!(b),
        Kv::String(text) => json!(String::from_utf8_lossy(text.as_bytes())),
        Kv::Array(array) if full || array.len() <= MAX_PRINTED_ARRAY => (0..array.len())
            .map(|i| array.get(i).map_or(Value::Null, |item| kv_json(&item, full)))
            .collect(),
        Kv::Array(array) => json!({"array": array.element_type().name(), "length": array.len()}),
        // Both types hold every number of the format exactly.
        number => match (number.as_int(), number.as_float()) {
            (Some(int), _) => {
                i64::try_from(int).map_or_else(|_| json!(int as u64), |int| json!(int))
            }
            (None, Some(x)) if x.is_finite() => match number {
                Kv::F32(x) => json!(x),
                _ => json!(x),
            },
            _ => json!(number.to_string()),
        },
    }
}

fn text_of(meta: &Metadata, key: &str) -> Option<String> {
    meta.opt_str(key).ok().flatten().map(str::to_owned)
}

fn vocabulary(meta: &Metadata) -> usize {
    meta.get("tokenizer.ggml.tokens").and_then(Kv::as_array).map_or(0, Array::len)
}

fn text(
    args: &InspectArgs,
    file: &ModelFile,
    info: &GgufInfo,
    capabilities: &[String],
    memory: &MemoryNeeds,
) -> String {
    let meta = file.gguf.metadata();
    let mut out = format::section("Model", &info_rows(file, info, capabilities, memory));
    if let Some(translation) = file.view.translation() {
        out.push_str(&format::section("Translated", &translated_rows(translation)));
    }
    out.push_str(&format::section("Tensor types", &type_rows(file.gguf.tensors())));
    if args.kv {
        let rows: Vec<_> =
            meta.iter().map(|(key, value)| vec![key.to_owned(), value.to_string()]).collect();
        out.push_str(&format::section("Keys", &rows));
    }
    if args.tensors {
        let row = |t: &TensorInfo| {
            let shape: Vec<String> = t.shape.iter().map(u64::to_string).collect();
            vec![
                t.name.to_string(),
                t.ty.name().to_owned(),
                format!("[{}]", shape.join(" ")),
                format::bytes(t.size),
            ]
        };
        out.push_str(&format::section(
            "Tensors",
            &file.gguf.tensors().iter().map(row).collect::<Vec<_>>(),
        ));
    }
    out
}

/// Properties that the file states of the model.
fn info_rows(
    file: &ModelFile,
    info: &GgufInfo,
    capabilities: &[String],
    memory: &MemoryNeeds,
) -> Vec<Vec<String>> {
    let meta = file.gguf.metadata();
    let mut rows = Vec::new();
    let mut row = |name: &str, value: String| rows.push(vec![name.to_owned(), value]);
    row(
        "file",
        file.path
            .as_ref()
            .map_or_else(|| "embedded in this program".into(), |path| path.display().to_string()),
    );
    row(
        "size",
        format!("{} ({} bytes)", format::bytes(file.gguf.file_size()), file.gguf.file_size()),
    );
    row(
        "format",
        format!("GGUF version {}, {} part(s)", file.gguf.version(), file.gguf.part_count()),
    );
    row("name", info.name.clone().unwrap_or_else(|| "-".into()));
    row("architecture", info.architecture.clone());
    row(
        "parameters",
        format!("{} ({})", parameter_size(info.parameter_count), info.parameter_count),
    );
    row("quantization", info.file_type.clone());
    row("context length", info.context_length.to_string());
    row("embedding length", info.embedding_length.to_string());
    let model = text_of(meta, "tokenizer.ggml.model").unwrap_or_else(|| "-".into());
    let pre =
        text_of(meta, "tokenizer.ggml.pre").map_or_else(String::new, |pre| format!(" ({pre})"));
    row("tokenizer", format!("{model}{pre}, {} tokens", vocabulary(meta)));
    let template =
        info.chat_template.as_ref().map(|t| format!("Jinja, {} characters", t.chars().count()));
    row("chat template", template.unwrap_or_else(|| "none".into()));
    row("capabilities", capabilities.join(", "));
    row("memory", memory_text(memory, info));
    rows
}

/// Names and keys that the compatibility view translated.
fn translated_rows(translation: &Translation) -> Vec<Vec<String>> {
    let list = |what: &str, items: &[String]| {
        vec![what.to_owned(), items.len().to_string(), items.join(" ")]
    };
    vec![
        vec!["form".into(), String::new(), translation.layout.to_owned()],
        vec![
            "architecture".into(),
            String::new(),
            format!("{} → {}", translation.from, translation.to),
        ],
        vec!["tensors renamed".into(), translation.renamed.len().to_string(), String::new()],
        list("keys added", &translation.added),
        list("keys changed", &translation.changed),
        list("keys left out", &translation.removed),
        vec!["tensors left out".into(), translation.dropped.len().to_string(), String::new()],
    ]
}

/// Number and bytes of the tensors of each type.
fn type_rows(tensors: &[TensorInfo]) -> Vec<Vec<String>> {
    let mut types = BTreeMap::<&str, (u64, u64)>::new();
    for tensor in tensors {
        let entry = types.entry(tensor.ty.name()).or_default();
        *entry = (entry.0 + 1, entry.1 + tensor.size);
    }
    let row = |(name, (count, bytes)): (&str, (u64, u64))| {
        vec![name.to_owned(), count.to_string(), format::bytes(bytes)]
    };
    types.into_iter().map(row).collect()
}

fn memory_text(memory: &MemoryNeeds, info: &GgufInfo) -> String {
    let mut weights = format!("{} of weights", format::bytes(memory.weights));
    if memory.states > 0 {
        weights += &format!(", {} of states a sequence", format::bytes(memory.states));
    }
    match (memory.cache_token, &memory.unknown) {
        (Some(0), _) if memory.window.0 == 0 => weights,
        (Some(token), _) => {
            let (near, window) = memory.window;
            let cache = |tokens: u64| {
                let all = token.saturating_mul(tokens);
                format::bytes(all.saturating_add(near.saturating_mul(tokens.min(window))))
            };
            let all = info.context_length;
            // A common context length is listed first if the model supports a longer one.
            let usual = if all > 4096 {
                format!("{} of cache at 4096 tokens, ", cache(4096))
            } else {
                String::new()
            };
            format!("{weights}, {usual}{} of cache at {all} tokens", cache(all))
        }
        (None, reason) => {
            format!("{weights}; {}", reason.as_deref().unwrap_or("other memory is unknown"))
        }
    }
}
