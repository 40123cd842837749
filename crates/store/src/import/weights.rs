//! The tensors of a folder under plain names, read by rows as f32. Weights of 8 bits are multiplied by their scales.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use half::{bf16, f16};

use super::config::Json;
use super::safetensors::{Dtype, SafeTensors, TensorEntry};
use super::{Folder, ImportError};
use crate::error::StoreError;

/// A tensor and the file that holds it.
#[derive(Clone)]
pub(super) struct Tensor<'a> {
    file: &'a SafeTensors,
    pub(super) entry: &'a TensorEntry,
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
const ASIDE_FIRST: [&str; 6] = ["vit.", "vpm.", "resampler.", "merger.", "mtp.", "model.mtp."];

/// Stands in the name of a tensor from which something else is computed, the module before it, the tensor behind.
pub(super) const PARAMETRIZED: &str = ".parametrizations.";

/// The ends of the names of scales, and what they are put in place of.
const SCALES: [(&str, &str); 3] =
    [(".weight_scale_inv", ".weight"), (".weight_scale", ".weight"), ("_scale_inv", "")];

impl<'a> Weights<'a> {
    /// Takes the tensors of all files, without the root in front of their names where it is there.
    pub(super) fn of(files: &'a [SafeTensors], config: &Json, root: &str) -> Result<Self, StoreError> {
        let mut tensors: BTreeMap<String, Tensor<'a>> = BTreeMap::new();
        for (file, entry) in files.iter().flat_map(|file| file.tensors().map(move |entry| (file, entry))) {
            let is_aside = ASIDE.iter().any(|part| entry.name.contains(part));
            if is_aside || ASIDE_FIRST.iter().any(|part| entry.name.starts_with(part)) {
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
            if tensors.insert(name, Tensor { file, entry, scale: None }).is_some() {
                let (file, reason) =
                    ("the folder".to_owned(), format!("tensor {} occurs twice", shown(entry)));
                return Err(ImportError::Safetensors { file, reason }.into());
            }
        }
        let has_scales = attach_scales(&mut tensors, config)?;
        Ok(Self { tensors, has_scales })
    }

    /// Takes a tensor out.
    pub(super) fn take(&mut self, name: &str) -> Option<Tensor<'a>> {
        self.tensors.remove(name)
    }

    pub(super) fn get(&self, name: &str) -> Option<&Tensor<'a>> {
        self.tensors.get(name)
    }

    /// Gives tensors other names.
    pub(super) fn rename(&mut self, name: impl Fn(&str) -> String) {
        let tensors = std::mem::take(&mut self.tensors);
        self.tensors = tensors.into_iter().map(|(old, tensor)| (name(&old), tensor)).collect();
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
fn attach_scales(tensors: &mut BTreeMap<String, Tensor<'_>>, config: &Json) -> Result<bool, StoreError> {
    let block =
        config.value("quantization_config").and_then(|q| q.get("weight_block_size")?.as_array().cloned());
    let block = block.map(|sizes| sizes.iter().filter_map(serde_json::Value::as_u64).collect::<Vec<_>>());
    let names: Vec<(String, String)> = tensors
        .keys()
        .filter_map(|name| {
            let (end, weight) = SCALES.iter().find(|(end, _)| name.ends_with(end))?;
            Some((name.clone(), format!("{}{weight}", name.strip_suffix(end)?)))
        })
        .collect();
    for (name, of) in &names {
        let Some(scales) = tensors.remove(name) else { continue };
        let weight = tensors.get_mut(of).ok_or_else(|| ImportError::TensorMissing { name: of.clone() })?;
        weight.scale = Some(Scale::of(&scales, weight.entry, block.as_deref())?);
    }
    Ok(!names.is_empty())
}

fn shown(entry: &TensorEntry) -> String {
    crate::name::shown(&entry.name)
}

impl Scale {
    fn of(scales: &Tensor<'_>, weight: &TensorEntry, block: Option<&[u64]>) -> Result<Self, StoreError> {
        let wrong = || ImportError::TensorShape {
            name: scales.entry.name.clone(),
            found: scales.entry.shape.clone(),
            want: weight.shape.clone(),
        };
        let columns = weight.shape.last().copied().unwrap_or(1).max(1);
        let rows = (weight.elements() / columns).max(1);
        let (block, across) = match scales.entry.shape[..] {
            _ if scales.entry.elements() == 1 => ([rows, columns], 1),
            [n] | [n, 1] if n == rows => ([1, columns], 1),
            [down, across] => {
                let block = match block {
                    Some(&[rows, columns]) if rows > 0 && columns > 0 => [rows, columns],
                    _ => [128, 128],
                };
                if down != rows.div_ceil(block[0]) || across != columns.div_ceil(block[1]) {
                    return Err(wrong().into());
                }
                (block, across)
            }
            _ => return Err(wrong().into()),
        };
        let count = scales.entry.elements();
        let values = scales.floats(0, count)?;
        Ok(Self { values, block, across })
    }

    /// The factor of one value.
    fn at(&self, row: u64, column: u64) -> f32 {
        let at = row / self.block[0] * self.across + column / self.block[1];
        usize::try_from(at).ok().and_then(|at| self.values.get(at)).copied().unwrap_or(1.0)
    }

    /// Multiplies a row.
    fn apply(&self, row: u64, values: &mut [f32]) {
        let start = (row / self.block[0] * self.across) as usize;
        let width = usize::try_from(self.block[1]).unwrap_or(usize::MAX);
        for (values, scale) in values.chunks_mut(width).zip(&self.values[start.min(self.values.len())..]) {
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

    /// Whether the bytes stand for themselves.
    pub(super) fn is_plain(&self, dtype: Dtype) -> bool {
        self.entry.dtype == dtype && self.scale.is_none()
    }

    /// Bytes from the place of an element on.
    pub(super) fn bytes(&self, element: u64, out: &mut [u8]) -> Result<(), ImportError> {
        self.file.read_at(self.entry, element * self.entry.dtype.size(), out)
    }

    /// Elements as they are stored, without scales.
    fn floats(&self, from: u64, count: u64) -> Result<Vec<f32>, ImportError> {
        let mut bytes = vec![0; (count * self.entry.dtype.size()) as usize];
        self.bytes(from, &mut bytes)?;
        floats(&bytes, self.entry.dtype).ok_or_else(|| self.bad_type())
    }

    pub(super) fn bad_type(&self) -> ImportError {
        ImportError::TensorType { name: self.entry.name.clone(), found: format!("{:?}", self.entry.dtype) }
    }

    /// Values of one row of the last dimension, from a column on, with scales.
    pub(super) fn span(&self, row: u64, from: u64, count: u64) -> Result<Vec<f32>, ImportError> {
        let mut values = self.floats(row * self.columns() + from, count)?;
        if let Some(scale) = &self.scale {
            for (column, value) in (from..).zip(&mut values) {
                *value *= scale.at(row, column);
            }
        }
        Ok(values)
    }

    /// Rows of so many columns, with scales.
    pub(super) fn rows(&self, from: u64, count: u64, columns: u64) -> Result<Vec<f32>, ImportError> {
        let mut values = self.floats(from * columns, count * columns)?;
        if let Some(scale) = &self.scale {
            for (row, values) in (from..).zip(values.chunks_exact_mut(columns.max(1) as usize)) {
                scale.apply(row, values);
            }
        }
        Ok(values)
    }
}

/// Values of bytes that hold whole elements; nothing for types that stand for no weights.
pub(super) fn floats(bytes: &[u8], dtype: Dtype) -> Option<Vec<f32>> {
    let words = || bytes.as_chunks::<2>().0.iter().map(|word| u16::from_le_bytes(*word));
    Some(match dtype {
        Dtype::F32 => bytes.as_chunks::<4>().0.iter().map(|word| f32::from_le_bytes(*word)).collect(),
        Dtype::F16 => words().map(|bits| f16::from_bits(bits).to_f32()).collect(),
        Dtype::BF16 => words().map(|bits| bf16::from_bits(bits).to_f32()).collect(),
        Dtype::F8_E4M3 => bytes.iter().map(|&byte| E4M3[byte as usize]).collect(),
        Dtype::F8_E5M2 => bytes.iter().map(|&byte| f16::from_bits(u16::from(byte) << 8).to_f32()).collect(),
        _ => return None,
    })
}

/// Values of bytes with four bits of exponent and three of mantissa, without infinities.
static E4M3: LazyLock<[f32; 256]> = LazyLock::new(|| {
    std::array::from_fn(|byte| {
        let (exponent, mantissa) = ((byte >> 3) & 15, (byte & 7) as f32);
        let size = match (exponent, byte & 7) {
            (15, 7) => f32::NAN,
            (0, _) => mantissa / 512.0,
            _ => (1.0 + mantissa / 8.0) * 2f32.powi(exponent as i32 - 7),
        };
        if byte & 0x80 == 0 { size } else { -size }
    })
});

impl Folder<'_> {
    /// Whether a file of the name is there.
    pub(super) fn has(&self, name: &str) -> bool {
        self.path(name).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eight_bits_have_their_published_values() {
        for (byte, value) in
            [(0x00, 0.0), (0x01, 1.0 / 512.0), (0x08, 1.0 / 64.0), (0x38, 1.0), (0x7e, 448.0), (0xc0, -2.0)]
        {
            assert_eq!(E4M3[byte], value, "{byte:02x}");
        }
        assert!(E4M3[0x7f].is_nan() && E4M3[0xff].is_nan());
        assert_eq!(floats(&[0x3c, 0x7b], Dtype::F8_E5M2), Some(vec![1.0, 57344.0]));
    }
}
