//! Converts a model folder by the rules of its [`Family`].

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;

use puna_gguf::{Writer, escape_for_message};
use puna_quant::TensorType;

use crate::error::ConvertError;
use crate::families::bert;
use crate::family::{Family, LayerUniformity, TensorMapper};
use crate::metadata::{MAX_HEAD_DIM, MAX_HEAD_DIM_TEXT, MetadataWriter};
use crate::output::{self, OutputTensor, ProgressReport};
use crate::rules::{Dimensions, TensorRule};
use crate::source::{Config, Dtype, ModelFolder, SourceTensor, Weights};
use crate::{tensor_mapper, vocabulary};

/// Values of `general.file_type`.
const FILE_TYPES: [(TensorType, u32); 2] = [(TensorType::F16, 1), (TensorType::BF16, 32)];
/// Value for files with MXFP4 experts.
const FILE_TYPE_MXFP4: u32 = 38;
/// The output matrix; its name in folders has no root prefix.
const OUTPUT_HEAD: &str = "output.weight";
/// Tensors that must exist if the family has a rule for them.
const REQUIRED_GLOBALS: [&str; 3] =
    ["token_embd.weight", "output_norm.weight", "enc.output_norm.weight"];
/// A tensor that either all layers have or the first has for all.
const OPTIONAL_IN_LAYER: &str = "attn_rel_b.weight";

/// Largest number of rows of a token embedding.
const MAX_VOCAB_SIZE: u64 = 1 << 24;
/// Writes the GGUF file of a folder.
pub(crate) fn convert(
    folder: &ModelFolder<'_>,
    config: &Config,
    family: &Family,
    out: &mut dyn Write,
    report: ProgressReport<'_>,
) -> Result<(), ConvertError> {
    let files = folder.safetensors()?;
    let mut weights = Weights::from_files(&files, config, family.root_prefix)?;
    let params = (family.hyper_parameters)(config)?;
    // Every layer has tensors. A larger number of layers is rejected before any memory depends on
    // it.
    if params.dims.layers as usize > weights.len() {
        let name =
            format!("{}{}{}.*", family.root_prefix, family.layer_prefix, params.dims.layers - 1);
        return Err(ConvertError::TensorMissing { name });
    }
    if params.dims.head_dim > MAX_HEAD_DIM {
        return Err(config.invalid("head_dim", MAX_HEAD_DIM_TEXT));
    }
    let rows = embedding_rows(family, &weights)?;
    let vocabulary = vocabulary::read(folder, config, family, rows)?;
    // Matrices get the 16-bit type of the folder. Types of fewer bits become BF16, which has their
    // range.
    let is_bf16_matrix =
        |tensor: &SourceTensor<'_>| tensor.is_matrix() && tensor.entry.dtype == Dtype::BF16;
    let is_bf16 = weights.has_scales || weights.iter().any(|(_, tensor)| is_bf16_matrix(tensor));
    let matrix_type = if is_bf16 { TensorType::BF16 } else { TensorType::F16 };

    let mut writer = Writer::new();
    writer.set("general.architecture", family.architecture).set("general.type", "model");
    let name = config.text("_name_or_path").and_then(|path| path.rsplit('/').next());
    if let Some(name) = name.filter(|name| !name.is_empty()) {
        writer.set("general.name", name);
    }
    let mut metadata = MetadataWriter::new(config, &params, family.architecture, &mut writer, rows);
    (family.write_metadata)(&mut metadata)?;
    metadata.check_causal()?;
    write_scalars(family, &mut metadata, &mut weights)?;
    (family.metadata_from_tensors)(&mut metadata, &mut weights)?;
    let mut tensors = metadata.tensors;
    let mapper = TensorMapper { family, config, dims: &params.dims, matrix_type };
    let mut outputs = outputs(&mapper, &mut weights)?;
    output::widen_overflowing(&mut outputs, report)?;
    let file_type = FILE_TYPES.iter().find(|(ty, _)| *ty == matrix_type).map_or(0, |row| row.1);
    let has_mxfp4 = outputs.iter().any(|output| output.ty == TensorType::MXFP4);
    writer.set("general.file_type", if has_mxfp4 { FILE_TYPE_MXFP4 } else { file_type });
    writer.set("general.quantization_version", 2u32);
    if folder.has("modules.json") {
        let (pooling, normalize) = bert::pooling(folder)?;
        writer.set(&format!("{}.pooling_type", family.architecture), pooling);
        writer.set(&format!("{}.normalize_embeddings", family.architecture), normalize);
    }
    vocabulary.write(family, config, &mut writer)?;
    tensors.append(&mut outputs);
    output::write_file(writer, &tensors, out, report)
}

/// Writes metadata keys from tensors of one value: global ones, and lists with an entry for each
/// layer.
fn write_scalars(
    family: &Family,
    metadata: &mut MetadataWriter<'_>,
    weights: &mut Weights<'_>,
) -> Result<(), ConvertError> {
    for (source, key) in family.global_scalars {
        let number = take_scalar(weights, (*source).to_owned())?;
        metadata.set(key, number);
    }
    for (source, key) in family.layer_scalars {
        let mut numbers = Vec::new();
        for layer in 0..metadata.params.dims.layers {
            numbers.push(take_scalar(weights, format!("{}{layer}.{source}", family.layer_prefix))?);
        }
        metadata.set_global(key, numbers);
    }
    Ok(())
}

/// Takes the value of a tensor with one element.
fn take_scalar(weights: &mut Weights<'_>, name: String) -> Result<f32, ConvertError> {
    let tensor = weights.take(&name).ok_or(ConvertError::TensorMissing { name })?;
    if tensor.entry.elements() != 1 {
        let (name, found) = (tensor.entry.name.clone(), tensor.entry.shape.clone());
        return Err(ConvertError::TensorShape { name, found, want: vec![1] });
    }
    Ok(tensor.rows(0, 1, 1)?.first().copied().unwrap_or_default())
}

/// Number of rows of the token embedding.
fn embedding_rows(family: &Family, weights: &Weights<'_>) -> Result<u64, ConvertError> {
    let is_table = |rule: &&TensorRule| rule.target == "token_embd";
    let rules = family.global_rules.iter().copied().flatten().filter(is_table);
    let names: Vec<String> = rules.map(|rule| format!("{}.weight", rule.source)).collect();
    let name = names.first().cloned().unwrap_or_else(|| "embed_tokens.weight".to_owned());
    let table = names.iter().find_map(|name| weights.get(name));
    let table = table.ok_or_else(|| ConvertError::TensorMissing {
        name: format!("{}{name}", family.root_prefix),
    })?;
    match table.entry.shape[..] {
        [rows, _] if rows <= MAX_VOCAB_SIZE => Ok(rows),
        _ => {
            let (name, found) = (table.entry.name.clone(), table.entry.shape.clone());
            Err(ConvertError::TensorShape {
                name,
                want: vec![MAX_VOCAB_SIZE, table.columns()],
                found,
            })
        }
    }
}

/// The tensors of the file, sorted.
fn outputs<'a>(
    mapper: &TensorMapper<'_>,
    weights: &mut Weights<'a>,
) -> Result<Vec<OutputTensor<'a>>, ConvertError> {
    let TensorMapper { family, dims, .. } = *mapper;
    let mut outputs = Vec::new();
    if let Some(odd) = family.custom_tensors {
        odd(mapper, weights, &mut outputs)?;
    }
    for layer in 0..dims.layers {
        tensor_mapper::map_layer_groups(mapper, weights, layer, &mut outputs)?;
    }
    let tied = family.ties_output || mapper.config.flag("tie_word_embeddings") == Some(true);
    let names: Vec<String> = weights.names().cloned().collect();
    for name in names {
        let is_beyond_layers =
            family.layer_of(&name).is_some_and(|(layer, _)| layer >= dims.layers);
        let Some(tensor) = weights.take(&name) else { continue };
        if is_beyond_layers {
            continue;
        }
        let Some((rule, layer, suffix)) = family.rule_for(&name) else {
            return Err(unknown_tensor_error(mapper.config, &tensor.entry.name));
        };
        mapper.map_tensor(rule, layer, suffix, &tensor, &mut outputs)?;
    }
    outputs.retain(|output| !(tied && output.name == OUTPUT_HEAD));
    check_complete(family, &outputs, dims)?;
    output::sort_by_layer(&mut outputs);
    Ok(outputs)
}

/// Error for a tensor without rule. It names the quantization method if there is one, the usual
/// reason.
fn unknown_tensor_error(config: &Config, name: &str) -> ConvertError {
    let name = escape_for_message(name);
    let quantized = config.opt_section("quantization_config");
    match quantized.as_ref().and_then(|section| section.text("quant_method")) {
        Some(method) => {
            let found = format!(
                "of {}, whose tensor {name} is not supported: use the model before quantization",
                escape_for_message(method)
            );
            config.invalid_value("quantization_config", found)
        }
        None => ConvertError::TensorUnknown { name },
    }
}

/// Checks that no tensor is missing: required global tensors exist, and layers have the same
/// tensors as far as the family's [`LayerUniformity`] says.
fn check_complete(
    family: &Family,
    outputs: &[OutputTensor<'_>],
    dims: &Dimensions,
) -> Result<(), ConvertError> {
    let missing = |name: String| Err(ConvertError::TensorMissing { name });
    let mut names: BTreeSet<&str> = BTreeSet::new();
    if let Some(duplicate) = outputs.iter().find(|output| !names.insert(&output.name)) {
        let reason = format!("two of its tensors map to {}", duplicate.name);
        return Err(ConvertError::Safetensors { file: "the folder".to_owned(), reason });
    }
    let has_rule = |name: &&&str| {
        let mut rules = family.global_rules.iter().copied().flatten();
        rules.any(|rule| name.strip_suffix(".weight") == Some(rule.target) || **name == rule.target)
    };
    if let Some(name) =
        REQUIRED_GLOBALS.iter().filter(has_rule).find(|name| !names.contains(**name))
    {
        return missing((*name).to_owned());
    }
    let mut layers: BTreeMap<u32, BTreeSet<&str>> = BTreeMap::new();
    for name in names {
        let part =
            name.strip_prefix(family.gguf_layer_prefix).and_then(|rest| rest.split_once('.'));
        let part =
            part.filter(|(_, part)| *part != OPTIONAL_IN_LAYER && !part.starts_with(NGRAM_PREFIX));
        if let Some((Ok(layer), part)) = part.map(|(number, part)| (number.parse(), part)) {
            layers.entry(layer).or_default().insert(part);
        }
    }
    if family.layer_uniformity == LayerUniformity::Arbitrary {
        return Ok(());
    }
    let has_some =
        |parts: &BTreeSet<&str>| parts.iter().any(|part| !part.starts_with(INDEXER_PREFIX));
    if let Some(layer) = (0..dims.layers).find(|layer| !layers.get(layer).is_some_and(has_some)) {
        return missing(format!("{}{}{layer}.*", family.root_prefix, family.layer_prefix));
    }
    // Indexers are compared apart: layers of any kind may have one, or share that of an earlier
    // layer.
    let (indexer_names, other_names): (LayerNames<'_>, LayerNames<'_>) = (0..dims.layers)
        .map(|layer| layers.remove(&layer).unwrap_or_default())
        .map(|parts| {
            parts
                .into_iter()
                .partition::<BTreeSet<&str>, _>(|part| part.starts_with(INDEXER_PREFIX))
        })
        .unzip();
    match [other_names, indexer_names]
        .iter()
        .find_map(|layers| inconsistent_layer(family.layer_uniformity, layers))
    {
        Some((layer, missing_name)) => {
            missing(format!("{}{layer}.{missing_name}", family.gguf_layer_prefix))
        }
        None => Ok(()),
    }
}

/// The tensor names of each layer.
type LayerNames<'a> = Vec<BTreeSet<&'a str>>;

/// Prefix of the n-gram embedding's tensors, which only one layer has.
const NGRAM_PREFIX: &str = "ple_";

/// Prefix of an indexer's tensors.
const INDEXER_PREFIX: &str = "indexer.";

/// The first layer whose tensors differ from those of other layers, with the name of a tensor that
/// one of them lacks.
fn inconsistent_layer<'a>(
    uniformity: LayerUniformity,
    layers: &[BTreeSet<&'a str>],
) -> Option<(usize, &'a str)> {
    let (first, last) = (layers.first()?, layers.last()?);
    let mut kinds: BTreeMap<&BTreeSet<&str>, u32> = BTreeMap::new();
    layers.iter().for_each(|parts| *kinds.entry(parts).or_default() += 1);
    // In a truncated file, the set of tensors of the last complete layer occurs only once.
    let is_kind = |parts: &BTreeSet<&str>| parts.is_empty() || parts == last || kinds[parts] > 1;
    let is_consistent = |parts: &BTreeSet<&str>| {
        parts == first || uniformity == LayerUniformity::SeveralKinds && is_kind(parts)
    };
    let (layer, parts) = layers.iter().enumerate().find(|(_, parts)| !is_consistent(parts))?;
    Some((layer, first.symmetric_difference(parts).next().copied().unwrap_or_default()))
}
