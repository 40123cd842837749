//! LoRA adapters as PEFT stores them: `adapter_config.json` and `adapter_model.safetensors` become a GGUF file of the form
//! that llama.cpp's converter gives them.
//!
//! ```text
//! base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight    [rank, in]   →  blk.0.attn_q.weight.lora_a
//! base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight    [out, rank]  →  blk.0.attn_q.weight.lora_b
//! ```
//!
//! The rows of B change places as those of the matrix do that the adapter adds to.

use std::collections::BTreeMap;
use std::io::Write;

use puna_gguf::{Metadata, Writer};
use puna_quant::TensorType;
use serde_json::Value;

use super::config::Json;
use super::decoder::rule_for;
use super::families::{self, Family};
use super::pieces::Cutter;
use super::plan::{self, Change, Content, Order, Output, Part};
use super::rules::{Form, Sizes};
use super::safetensors::Dtype;
use super::weights::{Tensor, Weights};
use super::{Folder, ImportError, ImportFile};
use crate::error::StoreError;

pub(super) const CONFIG: &str = "adapter_config.json";

/// The two matrices of an adapter for one matrix of the model.
#[derive(Default)]
struct Pair<'a> {
    a: Option<Tensor<'a>>,
    b: Option<Tensor<'a>>,
}

/// Writes the GGUF file of an adapter for a model with these keys.
///
/// # Errors
/// What is missing or not understood.
pub(crate) fn convert(
    files: &[ImportFile],
    base: &Metadata,
    out: &mut dyn Write,
) -> Result<(), StoreError> {
    let folder = Folder { files };
    let config = Json::read(&folder, CONFIG)?;
    let architecture = base.architecture()?;
    let family =
        families::of_architecture(architecture).ok_or_else(|| ImportError::Architecture {
            file: CONFIG.to_owned(),
            found: format!("{} of the model that it is for", crate::name::shown(architecture)),
            known: families::architectures(),
        })?;
    let (rank, alpha) = (config.count("r")?, alpha(&config)?);
    let sizes = sizes(base, architecture);
    let files = folder.safetensors()?;
    let mut weights = Weights::of(&files, &config, "")?;
    let cutter = Cutter { family, config: &config, sizes: &sizes, matrices: TensorType::F32 };
    let mut outputs = Vec::new();
    for (there, pair) in pairs(family, &mut weights)? {
        let name = here(family, &there);
        let missing = |part: &str| ImportError::TensorMissing { name: format!("{name}.{part}") };
        let (a, b) =
            (pair.a.ok_or_else(|| missing("lora_A"))?, pair.b.ok_or_else(|| missing("lora_B"))?);
        let (rank_a, rank_b) = (a.entry.shape.first().copied(), b.entry.shape.get(1).copied());
        if a.entry.shape.len() != 2 || rank_a != rank_b {
            let (found, want) = (b.entry.shape.clone(), a.entry.shape.clone());
            return Err(
                ImportError::TensorShape { name: format!("{name}.lora_B"), found, want }.into()
            );
        }
        // What the matrices are multiplied by is made of it: another rank would change how much the adapter does.
        if rank_a != Some(u64::from(rank)) {
            let found = rank_a.unwrap_or_default();
            let found = format!(
                "{rank}, and the matrices for {name} have rank {found}: the files are not of one adapter"
            );
            return Err(config.wrong_value("r", found).into());
        }
        add(&cutter, &there, &a, &b, &mut outputs)?;
    }
    let mut writer = Writer::new();
    writer.set("general.architecture", architecture).set("general.type", "adapter");
    let half = outputs.iter().all(|output| output.ty == TensorType::F16);
    writer.set("general.file_type", u32::from(half)).set("general.quantization_version", 2u32);
    writer.set("adapter.type", "lora").set("adapter.lora.alpha", alpha);
    // Small, whatever the model's size.
    plan::write(writer, &outputs, out, &mut |_, _, _| {})
}

/// The two matrices for each tensor that the one of a name becomes: the first is the same for all, the rows of the second
/// go where those of the model go.
fn add<'a>(
    cutter: &Cutter<'_>,
    name: &str,
    a: &Tensor<'a>,
    b: &Tensor<'a>,
    outputs: &mut Vec<Output<'a>>,
) -> Result<(), StoreError> {
    let unknown = || ImportError::TensorUnknown { name: crate::name::shown(name) };
    let (rule, layer, end) = rule_for(cutter.family, name).ok_or_else(unknown)?;
    if layer.is_some_and(|layer| layer >= cutter.sizes.layers) {
        return Err(unknown().into());
    }
    // The first matrix would have to change as the columns do, which no rule of rows tells.
    if rule.form == Form::Across {
        let found = format!(
            "with {}, whose columns have another order in a GGUF file: merge the adapter into the weights of its model",
            crate::name::shown(name)
        );
        return Err(cutter.config.wrong_value("target_modules", found).into());
    }
    let rows = b.entry.shape.first().copied().unwrap_or(0);
    let pieces = cutter.pieces(rule, end, rows)?.ok_or_else(unknown)?;
    let ty = |tensor: &Tensor<'_>| {
        if tensor.entry.dtype == Dtype::F16 { TensorType::F16 } else { TensorType::F32 }
    };
    for (piece, parts) in pieces {
        let full = layer.map_or_else(|| piece.clone(), |layer| format!("blk.{layer}.{piece}"));
        let shape = a.entry.shape.clone();
        outputs.push(Output::rows(format!("{full}.lora_a"), ty(a), shape, a.clone(), Order::SAME));
        let columns = b.columns();
        let shape = vec![parts.iter().map(|(rows, _)| rows).sum(), columns];
        let part = |(rows, order)| Part { tensor: b.clone(), rows, order };
        let parts = parts.into_iter().map(part).collect();
        let content = Content::Rows { parts, columns, change: Change::None };
        outputs.push(Output { name: format!("{full}.lora_b"), ty: ty(b), shape, content });
    }
    Ok(())
}

/// What the product of the matrices is multiplied by, times the rank.
fn alpha(config: &Json) -> Result<f32, ImportError> {
    if let Some(kind) = config.text("peft_type").filter(|kind| *kind != "LORA") {
        let found = format!("{}, and LORA alone can be imported", crate::name::shown(kind));
        return Err(config.wrong_value("peft_type", found));
    }
    if config.flag("use_dora") == Some(true) {
        let found = "true, and its lengths have no place in a GGUF file: merge it into the weights of its model";
        return Err(config.wrong_value("use_dora", found.to_owned()));
    }
    for key in ["alpha_pattern", "rank_pattern"] {
        let patterns = config.value(key).and_then(Value::as_object);
        // Ranks are seen in the matrices, and one alpha stands for all of them.
        if patterns.is_some_and(|patterns| !patterns.is_empty()) {
            let found = "not empty, and a GGUF file has one factor for all matrices: merge it into the weights of its model";
            return Err(config.wrong_value(key, found.to_owned()));
        }
    }
    let rank = config.count("r")?;
    let alpha =
        config.opt_float("lora_alpha")?.ok_or_else(|| config.wrong("lora_alpha", "a number"))?;
    Ok(if config.flag("use_rslora") == Some(true) { alpha * (rank as f32).sqrt() } else { alpha })
}

fn sizes(base: &Metadata, architecture: &str) -> Sizes {
    let number = |key: &str| base.opt_u32(&format!("{architecture}.{key}")).ok().flatten();
    let heads = number("attention.head_count").unwrap_or(1);
    let width = number("embedding_length").unwrap_or(0);
    Sizes {
        layers: number("block_count").unwrap_or(0),
        heads,
        kv_heads: number("attention.head_count_kv").unwrap_or(heads),
        head: number("attention.key_length").unwrap_or(width / heads.max(1)),
        experts: 0,
        groups: 0,
    }
}

/// What a tensor is called in the model, for messages.
fn here(family: &Family, there: &str) -> String {
    let Some((rule, layer, end)) = rule_for(family, there) else { return there.to_owned() };
    let names = rule.names(end).join(" and ");
    layer.map_or_else(|| names.clone(), |layer| format!("blk.{layer}.{names}"))
}

/// The matrices by the name, without its root, of what they add to.
fn pairs<'a>(
    family: &Family,
    weights: &mut Weights<'a>,
) -> Result<BTreeMap<String, Pair<'a>>, StoreError> {
    let mut pairs = BTreeMap::<String, Pair<'a>>::new();
    let names: Vec<String> = weights.names().cloned().collect();
    for name in names {
        let Some(tensor) = weights.take(&name) else { continue };
        let unknown = || ImportError::TensorUnknown { name: crate::name::shown(&name) };
        let plain = name.strip_prefix("base_model.model.").unwrap_or(&name);
        let (stem, end) = plain.split_once(".lora_").ok_or_else(unknown)?;
        let stem = stem.strip_prefix(family.root).unwrap_or(stem);
        let whole = format!("{stem}.weight");
        rule_for(family, &whole).ok_or_else(unknown)?;
        let pair = pairs.entry(whole).or_default();
        let place = match end.split('.').next() {
            Some("A") if end.ends_with("weight") => &mut pair.a,
            Some("B") if end.ends_with("weight") => &mut pair.b,
            _ => return Err(unknown().into()),
        };
        if place.replace(tensor).is_some() {
            return Err(unknown().into());
        }
    }
    match pairs.is_empty() {
        true => Err(ImportError::TensorMissing { name: "lora_A".into() }.into()),
        false => Ok(pairs),
    }
}
