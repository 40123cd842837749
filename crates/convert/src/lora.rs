//! Converts LoRA adapters of PEFT (`adapter_config.json` and `adapter_model.safetensors`) to a GGUF
//! file as llama.cpp's converter writes it.
//!
//! ```text
//! base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight [rank, in]
//!     → blk.0.attn_q.weight.lora_a
//! base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight [out, rank]
//!     → blk.0.attn_q.weight.lora_b
//! ```
//!
//! The rows of B are reordered as the rows of the matrix that the adapter changes.

use std::collections::BTreeMap;
use std::io::Write;

use puna_gguf::{Metadata, Writer, escape_for_message};
use puna_quant::TensorType;
use serde_json::Value;

use crate::error::ConvertError;
use crate::families;
use crate::family::{Family, TensorMapper};
use crate::output::{self, OutputTensor, RowOrder, TensorContent, TensorRows, ValueTransform};
use crate::rules::{Dimensions, SourceLayout};
use crate::source::{Config, Dtype, FolderFile, ModelFolder, SourceTensor, Weights};

/// The settings file of an adapter.
pub(crate) const CONFIG: &str = "adapter_config.json";

/// LoRA A and B for one matrix of the model.
#[derive(Default)]
struct LoraPair<'a> {
    a: Option<SourceTensor<'a>>,
    b: Option<SourceTensor<'a>>,
}

/// Writes the GGUF file of an adapter for a model with the metadata `base`.
///
/// # Errors
/// A file, key or tensor is missing, or the conversion does not support it.
pub fn convert_adapter(
    files: &[FolderFile],
    base: &Metadata,
    out: &mut dyn Write,
) -> Result<(), ConvertError> {
    let folder = ModelFolder::new(files);
    let config = Config::read(&folder, CONFIG)?;
    let architecture = base.architecture()?;
    let family =
        families::find_by_architecture(architecture).ok_or_else(|| ConvertError::Architecture {
            file: CONFIG.to_owned(),
            found: format!("{} of the base model", escape_for_message(architecture)),
            known: families::adapter_architecture_list(),
        })?;
    let (rank, alpha) = (config.count("r")?, alpha(&config)?);
    let dims = base_dimensions(base, architecture);
    let files = folder.safetensors()?;
    let mut weights = Weights::from_files(&files, &config, "")?;
    let mapper =
        TensorMapper { family, config: &config, dims: &dims, matrix_type: TensorType::F32 };
    let mut outputs = Vec::new();
    for (source, pair) in take_pairs(family, &mut weights)? {
        let name = gguf_name(family, &source);
        let missing = |part: &str| ConvertError::TensorMissing { name: format!("{name}.{part}") };
        let (a, b) =
            (pair.a.ok_or_else(|| missing("lora_A"))?, pair.b.ok_or_else(|| missing("lora_B"))?);
        let (rank_a, rank_b) = (a.entry.shape.first().copied(), b.entry.shape.get(1).copied());
        if a.entry.shape.len() != 2 || rank_a != rank_b {
            let (found, want) = (b.entry.shape.clone(), a.entry.shape.clone());
            return Err(ConvertError::TensorShape { name: format!("{name}.lora_B"), found, want });
        }
        // The scale is alpha divided by the rank: a wrong rank would change the strength of the
        // adapter.
        if rank_a != Some(u64::from(rank)) {
            let found = rank_a.unwrap_or_default();
            let found = format!(
                "{rank}, but the matrices for {name} have rank {found}: the files belong to different adapters"
            );
            return Err(config.invalid_value("r", found));
        }
        add_pair(&mapper, &source, &a, &b, &mut outputs)?;
    }
    let mut writer = Writer::new();
    writer.set("general.architecture", architecture).set("general.type", "adapter");
    let is_f16 = outputs.iter().all(|output| output.ty == TensorType::F16);
    writer.set("general.file_type", u32::from(is_f16)).set("general.quantization_version", 2u32);
    writer.set("adapter.type", "lora").set("adapter.lora.alpha", alpha);
    // The file is small, so there is no progress report.
    output::write_file(writer, &outputs, out, &mut |_, _, _| {})
}

/// Adds LoRA A and B for each target of a matrix. All targets have the same A; the rows of B are
/// split and reordered as those of the matrix.
fn add_pair<'a>(
    mapper: &TensorMapper<'_>,
    name: &str,
    a: &SourceTensor<'a>,
    b: &SourceTensor<'a>,
    outputs: &mut Vec<OutputTensor<'a>>,
) -> Result<(), ConvertError> {
    let unknown = || ConvertError::TensorUnknown { name: escape_for_message(name) };
    let (rule, layer, suffix) = mapper.family.rule_for(name).ok_or_else(unknown)?;
    if layer.is_some_and(|layer| layer >= mapper.dims.layers) {
        return Err(unknown());
    }
    // A would need its columns reordered; rules only describe rows.
    if rule.layout == SourceLayout::ColumnWise {
        let found = format!(
            "a list with {}, whose columns GGUF files reorder: merge the adapter into the weights of its model",
            escape_for_message(name)
        );
        return Err(mapper.config.invalid_value("target_modules", found));
    }
    let rows = b.entry.shape.first().copied().unwrap_or(0);
    let pieces = mapper.map_rows(rule, suffix, rows)?.ok_or_else(unknown)?;
    let ty = |tensor: &SourceTensor<'_>| {
        if tensor.entry.dtype == Dtype::F16 { TensorType::F16 } else { TensorType::F32 }
    };
    for (piece, parts) in pieces {
        let full = layer.map_or_else(|| piece.clone(), |layer| format!("blk.{layer}.{piece}"));
        let shape = a.entry.shape.clone();
        outputs.push(OutputTensor::rows(
            format!("{full}.lora_a"),
            ty(a),
            shape,
            a.clone(),
            RowOrder::SAME,
        ));
        let columns = b.columns();
        let shape = vec![parts.iter().map(|(rows, _)| rows).sum(), columns];
        let part = |(rows, order)| TensorRows { tensor: b.clone(), rows, order };
        let parts = parts.into_iter().map(part).collect();
        let content = TensorContent::Rows { parts, columns, transform: ValueTransform::None };
        outputs.push(OutputTensor { name: format!("{full}.lora_b"), ty: ty(b), shape, content });
    }
    Ok(())
}

/// The key `adapter.lora.alpha`: the scale of the product B A, times the rank.
fn alpha(config: &Config) -> Result<f32, ConvertError> {
    if let Some(kind) = config.text("peft_type").filter(|kind| *kind != "LORA") {
        let found = format!("{}, but only LORA is supported", escape_for_message(kind));
        return Err(config.invalid_value("peft_type", found));
    }
    if config.flag("use_dora") == Some(true) {
        let found = "true, but GGUF files have no key for magnitudes: merge the adapter into the weights of its model";
        return Err(config.invalid_value("use_dora", found.to_owned()));
    }
    for key in ["alpha_pattern", "rank_pattern"] {
        let patterns = config.value(key).and_then(Value::as_object);
        // The file has one alpha for all matrices. Ranks are visible in their shapes.
        if patterns.is_some_and(|patterns| !patterns.is_empty()) {
            let found = "not empty, but GGUF files have one factor for all matrices: merge the adapter into the weights of its model";
            return Err(config.invalid_value(key, found.to_owned()));
        }
    }
    let rank = config.count("r")?;
    let alpha =
        config.opt_float("lora_alpha")?.ok_or_else(|| config.invalid("lora_alpha", "a number"))?;
    Ok(if config.flag("use_rslora") == Some(true) { alpha * (rank as f32).sqrt() } else { alpha })
}

fn base_dimensions(base: &Metadata, architecture: &str) -> Dimensions {
    let number = |key: &str| base.opt_u32(&format!("{architecture}.{key}")).ok().flatten();
    let heads = number("attention.head_count").unwrap_or(1);
    let width = number("embedding_length").unwrap_or(0);
    Dimensions {
        layers: number("block_count").unwrap_or(0),
        heads,
        kv_heads: number("attention.head_count_kv").unwrap_or(heads),
        head_dim: number("attention.key_length").unwrap_or(width / heads.max(1)),
        experts: 0,
        groups: 0,
    }
}

/// Name of the matrix in the GGUF model, for messages.
fn gguf_name(family: &Family, source: &str) -> String {
    let Some((rule, layer, suffix)) = family.rule_for(source) else { return source.to_owned() };
    let names = rule.target_names(suffix).join(" and ");
    layer.map_or_else(|| names.clone(), |layer| format!("blk.{layer}.{names}"))
}

/// Takes LoRA A and B out of the weights, by the name of their matrix without the root prefix.
fn take_pairs<'a>(
    family: &Family,
    weights: &mut Weights<'a>,
) -> Result<BTreeMap<String, LoraPair<'a>>, ConvertError> {
    let mut pairs = BTreeMap::<String, LoraPair<'a>>::new();
    let names: Vec<String> = weights.names().cloned().collect();
    for name in names {
        let Some(tensor) = weights.take(&name) else { continue };
        let unknown = || ConvertError::TensorUnknown { name: escape_for_message(&name) };
        let plain = name.strip_prefix("base_model.model.").unwrap_or(&name);
        let (module, suffix) = plain.split_once(".lora_").ok_or_else(unknown)?;
        let module = module.strip_prefix(family.root_prefix).unwrap_or(module);
        let weight_name = format!("{module}.weight");
        family.rule_for(&weight_name).ok_or_else(unknown)?;
        let pair = pairs.entry(weight_name).or_default();
        let slot = match suffix.split('.').next() {
            Some("A") if suffix.ends_with("weight") => &mut pair.a,
            Some("B") if suffix.ends_with("weight") => &mut pair.b,
            _ => return Err(unknown()),
        };
        if slot.replace(tensor).is_some() {
            return Err(unknown());
        }
    }
    match pairs.is_empty() {
        true => Err(ConvertError::TensorMissing { name: "lora_A".into() }),
        false => Ok(pairs),
    }
}
