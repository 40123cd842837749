//! The tensors of a folder under plain names, read by rows as f32. Weights of 8 bits are multiplied by their scales, and so are
//! those of BitNet's three values.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use super::config::Json;
use super::safetensors::{Dtype, SafeTensors, TensorEntry};
use super::source::{self, Source};
use super::{Folder, ImportError};
use crate::error::StoreError;

/// A tensor and where its values are.
#[derive(Clone)]
pub(super) struct Tensor<'a> {
    source: Source<'a>,
    /// What it is, which has more rows or columns than in its file where bytes hold several values, or several files parts of it.
    pub(super) entry: Cow<'a, TensorEntry>,
    scale: Option<Scale>,
}

/// Factors of the blocks of a matrix.
#[derive(Clone)]
struct Scale {
    values: Vec<f32>,
    /// Rows and columns of a block.
    block: [u64; 2],
    /// Blocks in a row.
    across: u64,
    /// Rows with blocks of their own: no block reaches from one of these parts into the next.
    part: u64,
    parts: u64,
}

/// All tensors that a model is made of.
pub(super) struct Weights<'a> {
    tensors: BTreeMap<String, Tensor<'a>>,
    /// Whether the weights are in 8 bits.
    pub(super) has_scales: bool,
}

/// Parts of names that stand for what is not imported: encoders of pictures and sounds, and what training left.
const ASIDE: &[&str] = &[
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

/// Beginnings of such names.
const ASIDE_FIRST: [&str; 7] =
    ["vit.", "vpm.", "resampler.", "merger.", "mtp.", "model.mtp.", "model.mtp_layers."];

/// Stands in the name of a tensor from which something else is computed, the module before it, the tensor behind.
pub(super) const PARAMETRIZED: &str = ".parametrizations.";

/// The ends of the names of matrices whose columns are split where several devices have parts of them; of others it is the rows.
const SPLIT_BY_COLUMNS: [&str; 1] = [".w2.weight"];

/// The ends of the names of scales, and what they are put in place of.
const SCALES: [(&str, &str); 4] = [
    (".weight_scale_inv", ".weight"),
    (".weight_scale", ".weight"),
    ("_scale_inv", ""),
    (".scale", ".weight"),
];

impl<'a> Weights<'a> {
    /// Takes the tensors of all files, without the root in front of their names where it is there.
    pub(super) fn of(
        files: &'a [SafeTensors],
        config: &Json,
        root: &str,
    ) -> Result<Self, StoreError> {
        let mut tensors: BTreeMap<String, Tensor<'a>> = BTreeMap::new();
        for (file, entry) in
            files.iter().flat_map(|file| file.tensors().map(move |entry| (file, entry)))
        {
            let is_aside = ASIDE.iter().any(|part| entry.name.contains(part));
            // What holds nothing stands for nothing, whatever dimensions it claims.
            if is_aside
                || entry.elements() == 0
                || ASIDE_FIRST.iter().any(|part| entry.name.starts_with(part))
            {
                continue;
            }
            let mut name = entry.name.replace("language_model.", "").replace("text_model.", "");
            // What is computed out of parts is called by what it was computed of.
            if let Some((module, part)) =
                name.strip_suffix(".original").and_then(|n| n.split_once(PARAMETRIZED))
            {
                name = format!("{module}.{part}");
            }
            while !root.is_empty() && name.starts_with(root) {
                name.drain(..root.len());
            }
            match tensors.entry(name) {
                Entry::Vacant(place) => {
                    let source = Source::of(file, entry);
                    place.insert(Tensor { source, entry: Cow::Borrowed(entry), scale: None });
                }
                Entry::Occupied(mut place) => {
                    if !place.get_mut().source.add(file, entry) {
                        return Err(twice(entry).into());
                    }
                }
            }
        }
        let packing = Packing::of(config)?;
        for (name, tensor) in &mut tensors {
            let by_columns = SPLIT_BY_COLUMNS.iter().any(|end| name.ends_with(end));
            let other = match tensor.source.join(by_columns)? {
                None if packing.is_some() => tensor.source.unpack(),
                other => other,
            };
            if let Some(other) = other {
                tensor.entry = Cow::Owned(other);
            }
        }
        let has_scales = attach_scales(&mut tensors, config, packing == Some(Packing::Divided))?;
        Ok(Self { tensors, has_scales })
    }

    /// Takes a tensor out.
    pub(super) fn take(&mut self, name: &str) -> Option<Tensor<'a>> {
        self.tensors.remove(name)
    }

    /// Takes a tensor out that is as wanted.
    pub(super) fn take_if(
        &mut self,
        name: &str,
        is_wanted: impl Fn(&Tensor<'_>) -> bool,
    ) -> Option<Tensor<'a>> {
        self.tensors.get(name).is_some_and(is_wanted).then(|| self.tensors.remove(name))?
    }

    pub(super) fn get(&self, name: &str) -> Option<&Tensor<'a>> {
        self.tensors.get(name)
    }

    /// Gives tensors other names, none of which two may have.
    pub(super) fn rename(&mut self, name: impl Fn(&str) -> String) -> Result<(), ImportError> {
        for (old, tensor) in std::mem::take(&mut self.tensors) {
            let entry = tensor.source.first();
            if self.tensors.insert(name(&old), tensor).is_some() {
                return Err(twice(entry));
            }
        }
        Ok(())
    }

    /// Leaves out tensors by their names.
    pub(super) fn leave(&mut self, is_left: impl Fn(&str) -> bool) {
        self.tensors.retain(|name, _| !is_left(name));
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &String> {
        self.tensors.keys()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&String, &Tensor<'a>)> {
        self.tensors.iter()
    }

    pub(super) fn len(&self) -> usize {
        self.tensors.len()
    }
}

/// Takes the scales out and gives them to the weights that they are of.
fn attach_scales(
    tensors: &mut BTreeMap<String, Tensor<'_>>,
    config: &Json,
    divides: bool,
) -> Result<bool, StoreError> {
    let block = config
        .value("quantization_config")
        .and_then(|q| q.get("weight_block_size")?.as_array().cloned());
    let block =
        block.map(|sizes| sizes.iter().filter_map(serde_json::Value::as_u64).collect::<Vec<_>>());
    // MiMo's, as the devices had them that it was trained on: the most of them that the number of scales allows.
    let is_parted = config.architecture().is_ok_and(|class| class.starts_with("MiMoV2"));
    let names: Vec<(String, String)> = tensors
        .keys()
        .filter_map(|name| {
            let (end, weight) = SCALES.iter().find(|(end, _)| name.ends_with(end))?;
            let of = format!("{}{weight}", name.strip_suffix(end)?);
            // So are other things called, too, and what belongs to packed weights.
            let is_eight =
                |weight: &Tensor<'_>| matches!(weight.entry.dtype, Dtype::F8_E4M3 | Dtype::F8_E5M2);
            (*end != ".scale" || tensors.get(&of).is_some_and(is_eight)).then(|| (name.clone(), of))
        })
        .collect();
    for (name, of) in &names {
        let Some(scales) = tensors.remove(name) else { continue };
        let weight =
            tensors.get_mut(of).ok_or_else(|| ImportError::TensorMissing { name: of.clone() })?;
        let parted: &[u64] =
            if is_parted && of.ends_with(".qkv_proj.weight") { &[8, 4] } else { &[] };
        let mut scale = Scale::of(&scales, &weight.entry, block.as_deref(), parted)?;
        if divides {
            scale.values.iter_mut().for_each(|value| *value = value.recip());
        }
        weight.scale = Some(scale);
    }
    Ok(!names.is_empty())
}

/// What is done with the one scale of a matrix of three values.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Packing {
    Multiplied,
    Divided,
}

impl Packing {
    /// How such matrices are stored, where the configuration says that there are some.
    fn of(config: &Json) -> Result<Option<Self>, ImportError> {
        let Some(said) = config.section_if("quantization_config") else { return Ok(None) };
        if said.text("quant_method") != Some("bitnet") {
            return Ok(None);
        }
        if said.flag("use_rms_norm") == Some(true) {
            let found = "true, and a GGUF file has no norm before each matrix".to_owned();
            return Err(said.wrong_value("use_rms_norm", found));
        }
        let multiplies = said.text("linear_class") == Some("autobitlinear");
        Ok(Some(if multiplies { Self::Multiplied } else { Self::Divided }))
    }
}

fn twice(entry: &TensorEntry) -> ImportError {
    let reason = format!("tensor {} occurs twice", crate::name::shown(&entry.name));
    ImportError::Safetensors { file: "the folder".to_owned(), reason }
}

impl Scale {
    /// The factors of a weight, which may have been cut into one of these numbers of parts before.
    fn of(
        scales: &Tensor<'_>,
        weight: &TensorEntry,
        block: Option<&[u64]>,
        parted: &[u64],
    ) -> Result<Self, StoreError> {
        let wrong = || ImportError::TensorShape {
            name: scales.entry.name.clone(),
            found: scales.entry.shape.clone(),
            want: weight.shape.clone(),
        };
        let columns = weight.shape.last().copied().unwrap_or(1).max(1);
        let rows = (weight.elements() / columns).max(1);
        let mut parts = 1;
        let (block, across) = match scales.entry.shape[..] {
            _ if scales.entry.elements() == 1 => ([rows, columns], 1),
            [n] | [n, 1] if n == rows => ([1, columns], 1),
            // A stack of matrices has a stack of scales.
            [ref around @ .., down, across] => {
                let block = match block {
                    Some(&[rows, columns]) if rows > 0 && columns > 0 => [rows, columns],
                    _ => [128, 128],
                };
                let stack = around.iter().product::<u64>().max(1);
                let fits = |n: &u64| {
                    rows.is_multiple_of(*n) && stack * down == n * (rows / n).div_ceil(block[0])
                };
                parts = parted.iter().copied().chain([stack]).find(fits).ok_or_else(wrong)?;
                let is_like =
                    weight.shape.len() == around.len() + 2 && weight.shape.starts_with(around);
                if !is_like || across != columns.div_ceil(block[1]) {
                    return Err(wrong().into());
                }
                (block, across)
            }
            _ => return Err(wrong().into()),
        };
        let count = scales.entry.elements();
        let values = scales.source.floats(0, count)?;
        Ok(Self { values, block, across, part: rows / parts, parts })
    }

    /// The first factor of a row.
    fn start(&self, row: u64) -> usize {
        let before = row / self.part * self.part.div_ceil(self.block[0]);
        let start = (before + row % self.part / self.block[0]) * self.across;
        usize::try_from(start).map_or(self.values.len(), |start| start.min(self.values.len()))
    }

    /// The factor of one value.
    fn at(&self, row: u64, column: u64) -> f32 {
        let values = &self.values[self.start(row)..];
        usize::try_from(column / self.block[1])
            .ok()
            .and_then(|at| values.get(at))
            .copied()
            .unwrap_or(1.0)
    }

    /// Multiplies a row.
    fn apply(&self, row: u64, values: &mut [f32]) {
        let width = usize::try_from(self.block[1]).unwrap_or(usize::MAX);
        for (values, scale) in values.chunks_mut(width).zip(&self.values[self.start(row)..]) {
            values.iter_mut().for_each(|x| *x *= scale);
        }
    }
}

impl Tensor<'_> {
    /// Values of the last dimension.
    pub(super) fn columns(&self) -> u64 {
        self.entry.shape.last().copied().unwrap_or(1)
    }

    pub(super) fn is_matrix(&self) -> bool {
        self.entry.shape.len() > 1
    }

    /// How many parts with blocks of their own its rows are, one behind the other.
    pub(super) fn parts(&self) -> u64 {
        self.scale.as_ref().map_or(1, |scale| scale.parts)
    }

    /// Whether it is one of three values.
    pub(super) fn is_packed(&self) -> bool {
        self.source.is_packed()
    }

    /// Whether the bytes stand for themselves.
    pub(super) fn is_plain(&self, dtype: Dtype) -> bool {
        self.entry.dtype == dtype && self.scale.is_none() && self.source.is_whole()
    }

    /// Bytes from the place of an element on.
    pub(super) fn bytes(&self, element: u64, out: &mut [u8]) -> Result<(), ImportError> {
        self.source.bytes(element, out)
    }

    pub(super) fn bad_type(&self) -> ImportError {
        source::bad_type(&self.entry)
    }

    /// Values of one row of the last dimension, from a column on, with scales.
    pub(super) fn span(&self, row: u64, from: u64, count: u64) -> Result<Vec<f32>, ImportError> {
        let mut values = self.source.floats(row * self.columns() + from, count)?;
        if let Some(scale) = &self.scale {
            for (column, value) in (from..).zip(&mut values) {
                *value *= scale.at(row, column);
            }
        }
        Ok(values)
    }

    /// Rows of so many columns, with scales.
    pub(super) fn rows(
        &self,
        from: u64,
        count: u64,
        columns: u64,
    ) -> Result<Vec<f32>, ImportError> {
        let mut values = self.source.floats(from * columns, count * columns)?;
        if let Some(scale) = &self.scale {
            for (row, values) in (from..).zip(values.chunks_exact_mut(columns.max(1) as usize)) {
                scale.apply(row, values);
            }
        }
        Ok(values)
    }
}

impl Folder<'_> {
    /// Whether a file of the name is there.
    pub(super) fn has(&self, name: &str) -> bool {
        self.path(name).is_some()
    }
}
