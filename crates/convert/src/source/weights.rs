//! The source tensors of a folder, read as rows of f32. FP8 weights are multiplied by their block
//! scales, BitNet's ternary weights by their scale.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use puna_gguf::escape_for_message;

use super::config::Config;
use super::safetensors::{Dtype, SafeTensors, TensorEntry};
use super::tensor_data::{self, TensorData};
use crate::error::ConvertError;

/// A source tensor and the location of its values.
#[derive(Clone)]
pub(crate) struct SourceTensor<'a> {
    data: TensorData<'a>,
    /// Name, type and shape. The shape differs from that in the file for packed and for sharded
    /// tensors.
    pub(crate) entry: Cow<'a, TensorEntry>,
    scale: Option<BlockScales>,
}

/// Scales of the blocks of a matrix.
#[derive(Clone)]
struct BlockScales {
    values: Vec<f32>,
    /// Rows and columns of a block.
    block: [u64; 2],
    /// Blocks in a row.
    blocks_per_row: u64,
    /// Number of rows of a part. A matrix consists of `parts` parts of equal size, and no block
    /// crosses their borders.
    rows_per_part: u64,
    parts: u64,
}

/// All source tensors of a model by name, without the root prefix.
pub(crate) struct Weights<'a> {
    tensors: BTreeMap<String, SourceTensor<'a>>,
    /// Whether weights have block scales, as FP8 weights do.
    pub(crate) has_scales: bool,
}

/// Parts of the names of tensors that are not converted: image and audio encoders, training state.
const IGNORED_NAME_PARTS: &[&str] = &[
    "visual.",
    "vision.",
    "vision_",
    "audio.",
    "audio_",
    "projector.",
    "multi_modal",
    "image_newline",
    "patch_embed",
    "sam_model",
    "talker.",
    "mtp_",
    "rotary_emb.inv_freq",
    ".attention.bias",
    ".masked_bias",
    "activation_scale",
    "input_scale",
];

/// Prefixes of the names of tensors that are not converted.
const IGNORED_PREFIXES: [&str; 7] =
    ["vit.", "vpm.", "resampler.", "merger.", "mtp.", "model.mtp.", "model.mtp_layers."];

/// Part of a name behind the module whose weight is computed from the tensor
/// (`torch.nn.utils.parametrize`).
pub(crate) const PARAMETRIZATIONS: &str = ".parametrizations.";

/// Suffixes of matrices that are sharded by columns among devices; others are sharded by rows.
const COLUMN_SHARDED_SUFFIXES: [&str; 1] = [".w2.weight"];

/// Suffixes of the names of scales, and the suffix of their weight.
const SCALE_SUFFIXES: [(&str, &str); 4] = [
    (".weight_scale_inv", ".weight"),
    (".weight_scale", ".weight"),
    ("_scale_inv", ""),
    (".scale", ".weight"),
];

impl<'a> Weights<'a> {
    /// Collects the tensors of all files and removes the root prefix from their names.
    pub(crate) fn from_files(
        files: &'a [SafeTensors],
        config: &Config,
        root: &str,
    ) -> Result<Self, ConvertError> {
        let mut tensors: BTreeMap<String, SourceTensor<'a>> = BTreeMap::new();
        for (file, entry) in
            files.iter().flat_map(|file| file.tensors().map(move |entry| (file, entry)))
        {
            let is_ignored = IGNORED_NAME_PARTS.iter().any(|part| entry.name.contains(part));
            // A tensor without elements is ignored, whatever shape it claims.
            if is_ignored
                || entry.elements() == 0
                || IGNORED_PREFIXES.iter().any(|part| entry.name.starts_with(part))
            {
                continue;
            }
            let mut name = entry.name.replace("language_model.", "").replace("text_model.", "");
            // The original of a parametrized weight gets the name of that weight.
            if let Some((module, part)) =
                name.strip_suffix(".original").and_then(|n| n.split_once(PARAMETRIZATIONS))
            {
                name = format!("{module}.{part}");
            }
            while !root.is_empty() && name.starts_with(root) {
                name.drain(..root.len());
            }
            match tensors.entry(name) {
                Entry::Vacant(slot) => {
                    let data = TensorData::new(file, entry);
                    slot.insert(SourceTensor { data, entry: Cow::Borrowed(entry), scale: None });
                }
                Entry::Occupied(mut slot) => {
                    if !slot.get_mut().data.add_shard(file, entry) {
                        return Err(duplicate_error(entry));
                    }
                }
            }
        }
        let packing = TernaryScale::from_config(config)?;
        for (name, tensor) in &mut tensors {
            let by_columns = COLUMN_SHARDED_SUFFIXES.iter().any(|suffix| name.ends_with(suffix));
            let entry = match tensor.data.join_shards(by_columns)? {
                None if packing.is_some() => tensor.data.unpack(),
                entry => entry,
            };
            if let Some(entry) = entry {
                tensor.entry = Cow::Owned(entry);
            }
        }
        let has_scales =
            attach_scales(&mut tensors, config, packing == Some(TernaryScale::Reciprocal))?;
        Ok(Self { tensors, has_scales })
    }

    /// Removes and returns a tensor.
    pub(crate) fn take(&mut self, name: &str) -> Option<SourceTensor<'a>> {
        self.tensors.remove(name)
    }

    /// Removes and returns a tensor that satisfies a condition.
    pub(crate) fn take_if(
        &mut self,
        name: &str,
        is_wanted: impl Fn(&SourceTensor<'_>) -> bool,
    ) -> Option<SourceTensor<'a>> {
        self.tensors.get(name).is_some_and(is_wanted).then(|| self.tensors.remove(name))?
    }

    pub(crate) fn get(&self, name: &str) -> Option<&SourceTensor<'a>> {
        self.tensors.get(name)
    }

    /// Renames tensors. Fails if two get the same name.
    pub(crate) fn rename(&mut self, name: impl Fn(&str) -> String) -> Result<(), ConvertError> {
        for (old, tensor) in std::mem::take(&mut self.tensors) {
            let entry = tensor.data.first();
            if self.tensors.insert(name(&old), tensor).is_some() {
                return Err(duplicate_error(entry));
            }
        }
        Ok(())
    }

    /// Removes tensors by name.
    pub(crate) fn discard(&mut self, is_discarded: impl Fn(&str) -> bool) {
        self.tensors.retain(|name, _| !is_discarded(name));
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &String> {
        self.tensors.keys()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&String, &SourceTensor<'a>)> {
        self.tensors.iter()
    }

    pub(crate) fn len(&self) -> usize {
        self.tensors.len()
    }
}

/// Removes the scales and attaches them to their weights.
fn attach_scales(
    tensors: &mut BTreeMap<String, SourceTensor<'_>>,
    config: &Config,
    is_reciprocal: bool,
) -> Result<bool, ConvertError> {
    let block = config
        .value("quantization_config")
        .and_then(|q| q.get("weight_block_size")?.as_array().cloned());
    let block =
        block.map(|sizes| sizes.iter().filter_map(serde_json::Value::as_u64).collect::<Vec<_>>());
    // MiMo's matrices have separate blocks for each training device. The number of scales implies
    // the number of devices.
    let is_sharded = config.architecture().is_ok_and(|class| class.starts_with("MiMoV2"));
    let names: Vec<(String, String)> = tensors
        .keys()
        .filter_map(|name| {
            let (suffix, weight) =
                SCALE_SUFFIXES.iter().find(|(suffix, _)| name.ends_with(suffix))?;
            let weight_name = format!("{}{weight}", name.strip_suffix(suffix)?);
            // Other tensors have the suffix `.scale`, too, such as those of MXFP4 weights.
            let is_f8 = |weight: &SourceTensor<'_>| {
                matches!(weight.entry.dtype, Dtype::F8_E4M3 | Dtype::F8_E5M2)
            };
            (*suffix != ".scale" || tensors.get(&weight_name).is_some_and(is_f8))
                .then(|| (name.clone(), weight_name))
        })
        .collect();
    for (name, weight_name) in &names {
        let Some(scales) = tensors.remove(name) else { continue };
        let weight = tensors
            .get_mut(weight_name)
            .ok_or_else(|| ConvertError::TensorMissing { name: weight_name.clone() })?;
        let shard_counts: &[u64] =
            if is_sharded && weight_name.ends_with(".qkv_proj.weight") { &[8, 4] } else { &[] };
        let mut scale = BlockScales::new(&scales, &weight.entry, block.as_deref(), shard_counts)?;
        if is_reciprocal {
            scale.values.iter_mut().for_each(|value| *value = value.recip());
        }
        weight.scale = Some(scale);
    }
    Ok(!names.is_empty())
}

/// How the scale of a ternary matrix is stored.
#[derive(Clone, Copy, Debug, PartialEq)]
enum TernaryScale {
    Factor,
    Reciprocal,
}

impl TernaryScale {
    /// Reads from the configuration whether there are ternary matrices, and how their scale is
    /// stored.
    fn from_config(config: &Config) -> Result<Option<Self>, ConvertError> {
        let Some(quantization) = config.opt_section("quantization_config") else { return Ok(None) };
        if quantization.text("quant_method") != Some("bitnet") {
            return Ok(None);
        }
        if quantization.flag("use_rms_norm") == Some(true) {
            let found = "true, but GGUF files have no norm before each matrix".to_owned();
            return Err(quantization.invalid_value("use_rms_norm", found));
        }
        let is_factor = quantization.text("linear_class") == Some("autobitlinear");
        Ok(Some(if is_factor { Self::Factor } else { Self::Reciprocal }))
    }
}

fn duplicate_error(entry: &TensorEntry) -> ConvertError {
    let reason = format!("tensor {} occurs twice", escape_for_message(&entry.name));
    ConvertError::Safetensors { file: "the folder".to_owned(), reason }
}

impl BlockScales {
    /// Reads the scales of a weight. The weight may consist of one of the numbers of parts in
    /// `shard_counts`.
    fn new(
        scales: &SourceTensor<'_>,
        weight: &TensorEntry,
        block: Option<&[u64]>,
        shard_counts: &[u64],
    ) -> Result<Self, ConvertError> {
        let shape_error = || ConvertError::TensorShape {
            name: scales.entry.name.clone(),
            found: scales.entry.shape.clone(),
            want: weight.shape.clone(),
        };
        let columns = weight.shape.last().copied().unwrap_or(1).max(1);
        let rows = (weight.elements() / columns).max(1);
        let mut parts = 1;
        let (block, blocks_per_row) = match scales.entry.shape[..] {
            _ if scales.entry.elements() == 1 => ([rows, columns], 1),
            [n] | [n, 1] if n == rows => ([1, columns], 1),
            // A stack of matrices has a stack of scales.
            [ref stack_shape @ .., block_rows, blocks_per_row] => {
                let block = match block {
                    Some(&[rows, columns]) if rows > 0 && columns > 0 => [rows, columns],
                    _ => [128, 128],
                };
                let stack = stack_shape.iter().product::<u64>().max(1);
                let fits = |n: &u64| {
                    rows.is_multiple_of(*n)
                        && stack * block_rows == n * (rows / n).div_ceil(block[0])
                };
                parts = shard_counts
                    .iter()
                    .copied()
                    .chain([stack])
                    .find(fits)
                    .ok_or_else(shape_error)?;
                let has_shape = weight.shape.len() == stack_shape.len() + 2
                    && weight.shape.starts_with(stack_shape);
                if !has_shape || blocks_per_row != columns.div_ceil(block[1]) {
                    return Err(shape_error());
                }
                (block, blocks_per_row)
            }
            _ => return Err(shape_error()),
        };
        let count = scales.entry.elements();
        let values = scales.data.floats(0, count)?;
        Ok(Self { values, block, blocks_per_row, rows_per_part: rows / parts, parts })
    }

    /// Index of the first scale of a row.
    fn row_start(&self, row: u64) -> usize {
        let before = row / self.rows_per_part * self.rows_per_part.div_ceil(self.block[0]);
        let start = (before + row % self.rows_per_part / self.block[0]) * self.blocks_per_row;
        usize::try_from(start).map_or(self.values.len(), |start| start.min(self.values.len()))
    }

    /// Scale of one value.
    fn factor(&self, row: u64, column: u64) -> f32 {
        let values = &self.values[self.row_start(row)..];
        usize::try_from(column / self.block[1])
            .ok()
            .and_then(|at| values.get(at))
            .copied()
            .unwrap_or(1.0)
    }

    /// Multiplies a row by its scales.
    fn apply(&self, row: u64, values: &mut [f32]) {
        let width = usize::try_from(self.block[1]).unwrap_or(usize::MAX);
        for (values, scale) in values.chunks_mut(width).zip(&self.values[self.row_start(row)..]) {
            values.iter_mut().for_each(|x| *x *= scale);
        }
    }
}

impl SourceTensor<'_> {
    /// Size of the last dimension.
    pub(crate) fn columns(&self) -> u64 {
        self.entry.shape.last().copied().unwrap_or(1)
    }

    pub(crate) fn is_matrix(&self) -> bool {
        self.entry.shape.len() > 1
    }

    /// Number of row ranges with separate blocks of scales.
    pub(crate) fn scale_parts(&self) -> u64 {
        self.scale.as_ref().map_or(1, |scale| scale.parts)
    }

    /// Whether the values are packed ternary weights.
    pub(crate) fn is_packed_ternary(&self) -> bool {
        self.data.is_packed_ternary()
    }

    /// Whether the file stores the values in this type, without scales, packing or shards.
    pub(crate) fn is_stored_as(&self, dtype: Dtype) -> bool {
        self.entry.dtype == dtype && self.scale.is_none() && self.data.is_single()
    }

    /// Reads bytes, beginning at an element.
    pub(crate) fn bytes(&self, element: u64, out: &mut [u8]) -> Result<(), ConvertError> {
        self.data.bytes(element, out)
    }

    pub(crate) fn bad_type(&self) -> ConvertError {
        tensor_data::bad_type(&self.entry)
    }

    /// Reads `count` values of one row, beginning at a column, and applies scales.
    pub(crate) fn row_values(
        &self,
        row: u64,
        from: u64,
        count: u64,
    ) -> Result<Vec<f32>, ConvertError> {
        let mut values = self.data.floats(row * self.columns() + from, count)?;
        if let Some(scale) = &self.scale {
            for (column, value) in (from..).zip(&mut values) {
                *value *= scale.factor(row, column);
            }
        }
        Ok(values)
    }

    /// Reads rows of `columns` values and applies scales.
    pub(crate) fn rows(
        &self,
        from: u64,
        count: u64,
        columns: u64,
    ) -> Result<Vec<f32>, ConvertError> {
        let mut values = self.data.floats(from * columns, count * columns)?;
        if let Some(scale) = &self.scale {
            for (row, values) in (from..).zip(values.chunks_exact_mut(columns.max(1) as usize)) {
                scale.apply(row, values);
            }
        }
        Ok(values)
    }
}
