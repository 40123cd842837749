//! Tensor descriptions.

use puna_quant::TensorType;

use crate::error::GgufError;

/// Name, type, shape and location of a tensor.
#[derive(Debug, Clone, PartialEq)]
pub struct TensorInfo {
    /// Name: 1 to 63 bytes without control characters.
    pub name: Box<str>,
    /// Storage type of the elements.
    pub ty: TensorType,
    /// Dimensions, fastest first: `shape[0]` is the length of a row. Empty for a single value.
    pub shape: Vec<u64>,
    /// Offset in bytes in the data section of its file.
    pub offset: u64,
    /// Size of the data in bytes.
    pub size: u64,
    /// Index of its file in a split file, from 0.
    pub part: usize,
}

impl TensorInfo {
    /// Number of values.
    pub fn elements(&self) -> u64 {
        self.shape.iter().product()
    }

    /// Number of rows of `shape[0]` values.
    pub fn rows(&self) -> u64 {
        self.shape.iter().skip(1).product()
    }
}

/// Size of a tensor in bytes. `None` if `shape[0]` is not a multiple of the type's block, or the
/// size overflows.
pub(crate) fn byte_size(ty: TensorType, shape: &[u64]) -> Option<u64> {
    let row = shape.first().copied().unwrap_or(1);
    let block = ty.block_values() as u64;
    if !row.is_multiple_of(block) {
        return None;
    }
    let row_bytes = (row / block).checked_mul(ty.block_bytes() as u64)?;
    shape.iter().skip(1).try_fold(row_bytes, |bytes, &dim| bytes.checked_mul(dim))
}

/// Rounds `value` up to a multiple of `alignment`, a power of two.
pub(crate) fn pad(value: u64, alignment: u64) -> Option<u64> {
    value.checked_next_multiple_of(alignment)
}

/// Indices of `tensors`, sorted by name. A duplicate name is an error.
pub(crate) fn sort_by_name(tensors: &[TensorInfo]) -> Result<Vec<u32>, GgufError> {
    let name = |i: u32| &*tensors[i as usize].name;
    let mut sorted: Vec<u32> = (0..tensors.len() as u32).collect();
    sorted.sort_unstable_by(|&a, &b| name(a).cmp(name(b)));
    match sorted.windows(2).find(|pair| name(pair[0]) == name(pair[1])) {
        Some(pair) => Err(GgufError::TensorDuplicate { name: name(pair[0]).to_owned() }),
        None => Ok(sorted),
    }
}
