//! Decoders: the file of a folder. What its tensors are called, and how their rows change places, says the [`Family`].

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;

use puna_gguf::Writer;
use puna_quant::TensorType;

use super::config::Json;
use super::families::{Alike, Family};
use super::keys::Keys;
use super::pieces::{self, Cutter};
use super::plan::{self, Output};
use super::rules::{Rule, Sizes};
use super::safetensors::Dtype;
use super::weights::{Tensor, Weights};
use super::{Folder, ImportError, Report, bert, words};
use crate::error::StoreError;

/// Numbers in `general.file_type`.
const FILE_TYPES: [(TensorType, u32); 2] = [(TensorType::F16, 1), (TensorType::BF16, 32)];
/// … of files whose experts are MXFP4.
const FILE_TYPE_MXFP4: u32 = 38;
/// The output, whose name nothing stands in front of.
const HEAD: &str = "output.weight";
/// The table of tokens, and the norm behind all layers of a family that has one.
const AROUND: [&str; 3] = ["token_embd.weight", "output_norm.weight", "enc.output_norm.weight"];
/// What the first layer has for all, or each for itself.
const SHARED: &str = "attn_rel_b.weight";

/// No table of tokens has more rows.
const ROWS_LIMIT: u64 = 1 << 24;
/// No head has more values: some tensors are made of their number alone.
pub(super) const HEAD_LIMIT: u32 = 1 << 16;
pub(super) const HEAD_LIMIT_TOLD: &str = "at most 65536";

/// Writes the file of a folder.
pub(super) fn convert(
    folder: &Folder<'_>,
    config: &Json,
    family: &Family,
    out: &mut dyn Write,
    report: Report<'_>,
) -> Result<(), StoreError> {
    let files = folder.safetensors()?;
    let mut weights = Weights::of(&files, config, family.root)?;
    let shape = (family.shape)(config)?;
    // Every layer has tensors: a claimed number beyond those there are is refused before anything grows with it.
    if shape.sizes.layers as usize > weights.len() {
        let name = format!("{}{}{}.*", family.root, family.layers, shape.sizes.layers - 1);
        return Err(ImportError::TensorMissing { name }.into());
    }
    if shape.sizes.head > HEAD_LIMIT {
        return Err(config.wrong("head_dim", HEAD_LIMIT_TOLD).into());
    }
    let rows = table_rows(family, &weights)?;
    let vocabulary = words::read(folder, config, family, rows)?;
    // Sixteen bits of the kind that the folder has; what has fewer keeps its range in BF16.
    let is_brain = |tensor: &Tensor<'_>| tensor.is_matrix() && tensor.entry.dtype == Dtype::BF16;
    let brain = weights.has_scales || weights.iter().any(|(_, tensor)| is_brain(tensor));
    let matrices = if brain { TensorType::BF16 } else { TensorType::F16 };

    let mut writer = Writer::new();
    writer.set("general.architecture", family.architecture).set("general.type", "model");
    let name = config.text("_name_or_path").and_then(|path| path.rsplit('/').next());
    if let Some(name) = name.filter(|name| !name.is_empty()) {
        writer.set("general.name", name);
    }
    let mut keys = Keys::new(config, &shape, family.architecture, &mut writer, rows);
    (family.keys)(&mut keys)?;
    keys.check_causal()?;
    scalars(family, &mut keys, &mut weights)?;
    (family.told)(&mut keys, &mut weights)?;
    let mut extras = keys.tensors;
    let cutter = Cutter { family, config, sizes: &shape.sizes, matrices };
    let mut outputs = outputs(&cutter, &mut weights)?;
    plan::settle(&mut outputs, report)?;
    let file_type = FILE_TYPES.iter().find(|(ty, _)| *ty == matrices).map_or(0, |row| row.1);
    let has_mxfp4 = outputs.iter().any(|output| output.ty == TensorType::MXFP4);
    writer.set("general.file_type", if has_mxfp4 { FILE_TYPE_MXFP4 } else { file_type });
    writer.set("general.quantization_version", 2u32);
    if folder.has("modules.json") {
        let (pooling, normalize) = bert::pooling(folder)?;
        writer.set(&format!("{}.pooling_type", family.architecture), pooling);
        writer.set(&format!("{}.normalize_embeddings", family.architecture), normalize);
    }
    vocabulary.write(family, config, &mut writer)?;
    extras.append(&mut outputs);
    plan::write(writer, &extras, out, report)
}

/// Numbers that a GGUF file has as keys: of the whole, and one for each layer.
fn scalars(
    family: &Family,
    keys: &mut Keys<'_>,
    weights: &mut Weights<'_>,
) -> Result<(), StoreError> {
    for (there, key) in family.numbers {
        let number = scalar(weights, (*there).to_owned())?;
        keys.set(key, number);
    }
    for (there, key) in family.scalars {
        let mut numbers = Vec::new();
        for layer in 0..keys.shape.sizes.layers {
            numbers.push(scalar(weights, format!("{}{layer}.{there}", family.layers))?);
        }
        keys.set_whole(key, numbers);
    }
    Ok(())
}

/// Takes a tensor of one number.
fn scalar(weights: &mut Weights<'_>, name: String) -> Result<f32, ImportError> {
    let tensor = weights.take(&name).ok_or(ImportError::TensorMissing { name })?;
    if tensor.entry.elements() != 1 {
        let (name, found) = (tensor.entry.name.clone(), tensor.entry.shape.clone());
        return Err(ImportError::TensorShape { name, found, want: vec![1] });
    }
    Ok(tensor.rows(0, 1, 1)?.first().copied().unwrap_or_default())
}

/// Rows of the table of tokens.
fn table_rows(family: &Family, weights: &Weights<'_>) -> Result<u64, ImportError> {
    let is_table = |rule: &&Rule| rule.here == "token_embd";
    let rules = family.whole.iter().copied().flatten().filter(is_table);
    let names: Vec<String> = rules.map(|rule| format!("{}.weight", rule.there)).collect();
    let name = names.first().cloned().unwrap_or_else(|| "embed_tokens.weight".to_owned());
    let table = names.iter().find_map(|name| weights.get(name));
    let table = table
        .ok_or_else(|| ImportError::TensorMissing { name: format!("{}{name}", family.root) })?;
    match table.entry.shape[..] {
        [rows, _] if rows <= ROWS_LIMIT => Ok(rows),
        _ => {
            let (name, found) = (table.entry.name.clone(), table.entry.shape.clone());
            Err(ImportError::TensorShape { name, want: vec![ROWS_LIMIT, table.columns()], found })
        }
    }
}

/// The number of a layer and the rest of the name.
fn layer_of<'n>(family: &Family, name: &'n str) -> Option<(u32, &'n str)> {
    let (number, rest) = name.strip_prefix(family.layers)?.split_once('.')?;
    // In its one spelling, so that no two names are of one tensor.
    let layer: u32 = number.parse().ok()?;
    (layer.to_string() == number).then_some((layer, rest))
}

/// The rule for a name without its root, what stands in front of the name here, and what behind.
pub(super) fn rule_for<'n>(
    family: &Family,
    name: &'n str,
) -> Option<(&'static Rule, Option<u32>, &'n str)> {
    let find = |lists: &'static [&'static [Rule]], name: &'n str| {
        lists.iter().copied().flatten().find_map(|rule| Some((rule, rule.end(name)?)))
    };
    match layer_of(family, name) {
        Some((layer, rest)) => find(family.layer, rest).map(|(rule, end)| (rule, Some(layer), end)),
        None => find(family.whole, name).map(|(rule, end)| (rule, None, end)),
    }
}

/// The tensors of the file, in its order.
fn outputs<'a>(
    cutter: &Cutter<'_>,
    weights: &mut Weights<'a>,
) -> Result<Vec<Output<'a>>, StoreError> {
    let Cutter { family, sizes, .. } = *cutter;
    let mut outputs = Vec::new();
    if let Some(odd) = family.odd {
        odd(cutter, weights, &mut outputs)?;
    }
    for layer in 0..sizes.layers {
        pieces::collect(cutter, weights, layer, &mut outputs)?;
    }
    let tied = family.tied || cutter.config.flag("tie_word_embeddings") == Some(true);
    let names: Vec<String> = weights.names().cloned().collect();
    for name in names {
        let beyond = layer_of(family, &name).is_some_and(|(layer, _)| layer >= sizes.layers);
        let Some(tensor) = weights.take(&name) else { continue };
        if beyond {
            continue;
        }
        let Some((rule, layer, end)) = rule_for(family, &name) else {
            return Err(unknown(cutter.config, &tensor.entry.name).into());
        };
        cutter.cut(rule, layer, end, &tensor, &mut outputs)?;
    }
    outputs.retain(|output| !(tied && output.name == HEAD));
    check_whole(family, &outputs, sizes)?;
    plan::sort(&mut outputs);
    Ok(outputs)
}

/// A tensor that no rule knows, of which a way to quantize may be the reason.
fn unknown(config: &Json, name: &str) -> ImportError {
    let name = crate::name::shown(name);
    let quantized = config.section_if("quantization_config");
    match quantized.as_ref().and_then(|said| said.text("quant_method")) {
        Some(method) => {
            let found = format!(
                "of {}, and its tensor {name} cannot be imported: import the model as it was before it was quantized",
                crate::name::shown(method)
            );
            config.wrong_value("quantization_config", found)
        }
        None => ImportError::TensorUnknown { name },
    }
}

/// Every layer has what others have, and what stands around the layers is there.
fn check_whole(family: &Family, outputs: &[Output<'_>], sizes: &Sizes) -> Result<(), ImportError> {
    let missing = |name: String| Err(ImportError::TensorMissing { name });
    let mut names: BTreeSet<&str> = BTreeSet::new();
    if let Some(twin) = outputs.iter().find(|output| !names.insert(&output.name)) {
        let reason = format!("two of its tensors would become {}", twin.name);
        return Err(ImportError::Safetensors { file: "the folder".to_owned(), reason });
    }
    let is_meant = |name: &&&str| {
        let mut rules = family.whole.iter().copied().flatten();
        rules.any(|rule| name.strip_suffix(".weight") == Some(rule.here) || **name == rule.here)
    };
    if let Some(name) = AROUND.iter().filter(is_meant).find(|name| !names.contains(**name)) {
        return missing((*name).to_owned());
    }
    let mut layers: BTreeMap<u32, BTreeSet<&str>> = BTreeMap::new();
    for name in names {
        let part = name.strip_prefix(family.blocks).and_then(|rest| rest.split_once('.'));
        let part = part.filter(|(_, part)| *part != SHARED && !part.starts_with(OF_GRAMS));
        if let Some((Ok(layer), part)) = part.map(|(number, part)| (number.parse(), part)) {
            layers.entry(layer).or_default().insert(part);
        }
    }
    if family.alike == Alike::Nothing {
        return Ok(());
    }
    let has_some = |parts: &BTreeSet<&str>| parts.iter().any(|part| !part.starts_with(CHOOSING));
    if let Some(layer) = (0..sizes.layers).find(|layer| !layers.get(layer).is_some_and(has_some)) {
        return missing(format!("{}{}{layer}.*", family.root, family.layers));
    }
    // Layers of any kind may choose what later ones see, or leave that to an earlier one.
    let (choosing, plain): (Parts<'_>, Parts<'_>) = (0..sizes.layers)
        .map(|layer| layers.remove(&layer).unwrap_or_default())
        .map(|parts| {
            parts.into_iter().partition::<BTreeSet<&str>, _>(|part| part.starts_with(CHOOSING))
        })
        .unzip();
    match [plain, choosing].iter().find_map(|layers| odd_one(family.alike, layers)) {
        Some((layer, lost)) => missing(format!("{}{layer}.{lost}", family.blocks)),
        None => Ok(()),
    }
}

/// Parts of each layer.
type Parts<'a> = Vec<BTreeSet<&'a str>>;

/// What the names of a layer's parts begin with to which n-grams speak, which is one alone.
const OF_GRAMS: &str = "ple_";

/// What the names of a layer's parts begin with by which positions are chosen.
const CHOOSING: &str = "indexer.";

/// The first layer that has not what others have, with a part that one of both lacks.
fn odd_one<'a>(alike: Alike, layers: &[BTreeSet<&'a str>]) -> Option<(usize, &'a str)> {
    let (first, last) = (layers.first()?, layers.last()?);
    let mut kinds: BTreeMap<&BTreeSet<&str>, u32> = BTreeMap::new();
    layers.iter().for_each(|parts| *kinds.entry(parts).or_default() += 1);
    // Where a file is cut short, a layer has what no other has.
    let is_kind = |parts: &BTreeSet<&str>| parts.is_empty() || parts == last || kinds[parts] > 1;
    let is_known =
        |parts: &BTreeSet<&str>| parts == first || alike == Alike::Kinds && is_kind(parts);
    let (layer, parts) = layers.iter().enumerate().find(|(_, parts)| !is_known(parts))?;
    Some((layer, first.symmetric_difference(parts).next().copied().unwrap_or_default()))
}
