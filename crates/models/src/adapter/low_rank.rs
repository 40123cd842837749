//! Matrices of low-rank updates, in the layout of the matrix product.

use std::sync::Arc;

use puna_gguf::{SharedBytes, TensorView};
use puna_graph::{Weight, WeightId};
use puna_quant::TensorType;

use super::error::AdapterError;
use crate::weights::{MappedBytes, WeightSlice};

/// A matrix of floats, or one for each expert or head. F32Matrices keep the precision of the file.
pub(super) struct LowRankMatrix {
    ty: TensorType,
    shape: Vec<usize>,
    data: SharedBytes,
}

impl LowRankMatrix {
    /// Keeps F32, F16 and BF16; converts other types to F32.
    pub fn of(half: &TensorView<'_>) -> Result<Self, AdapterError> {
        if !matches!(half.ty, TensorType::F32 | TensorType::F16 | TensorType::BF16) {
            return Ok(F32Matrices::of(half)?.into());
        }
        Ok(Self { ty: half.ty, shape: shape(half), data: half.shared() })
    }

    /// Adds the matrix to a model's tensors, as part of an update of `of`.
    pub fn add_to(self, tensors: &mut Vec<Weight>, of: &str) -> WeightId {
        let Self { ty, shape, data } = self;
        tensors.push(Weight {
            name: format!("{of} (change)"),
            ty,
            shape,
            data: Arc::new(MappedBytes(data)),
        });
        WeightId(tensors.len() as u32 - 1)
    }
}

impl From<F32Matrices> for LowRankMatrix {
    fn from(F32Matrices { shape, data }: F32Matrices) -> Self {
        let bytes: Vec<u8> = data.into_iter().flat_map(f32::to_ne_bytes).collect();
        // A single matrix applies to all heads.
        let shape = if shape[2] == 1 { shape[..2].to_vec() } else { shape.to_vec() };
        Self { ty: TensorType::F32, shape, data: SharedBytes::aligned(&bytes) }
    }
}

/// Stacked F32 matrices (LoRA A or B): columns, rows of each matrix, number of matrices.
pub(super) struct F32Matrices {
    shape: [usize; 3],
    data: Vec<f32>,
}

impl F32Matrices {
    /// Values of `lora_a` or `lora_b`.
    pub fn of(half: &TensorView<'_>) -> Result<Self, AdapterError> {
        let bad = || AdapterError::Type { tensor: half.name.to_owned(), ty: half.ty };
        let shape = shape(half);
        let mut data = vec![0.0; shape.iter().product()];
        puna_quant::dequantize(half.ty, &half.bytes(), &mut data).map_err(|_| bad())?;
        Ok(Self { shape: [0, 1, 2].map(|i| shape.get(i).copied().unwrap_or(1)), data })
    }

    /// Transposes each matrix.
    pub fn transposed(self) -> Self {
        let [cols, rows, matrices] = self.shape;
        let transpose = |of: &[f32]| {
            (0..cols * rows).map(|i| of[i % rows * cols + i / rows]).collect::<Vec<_>>()
        };
        let data = self.data.chunks_exact(cols * rows).flat_map(transpose).collect();
        Self { shape: [rows, cols, matrices], data }
    }

    /// Rows of a slice of each matrix.
    pub fn slice_rows(self, slice: &WeightSlice) -> Self {
        let cols = self.shape[0];
        let of = |each: &[f32]| each[slice.first * cols..][..slice.rows * cols].to_vec();
        let data: Vec<f32> = self.data.chunks_exact(slice.each * cols).flat_map(of).collect();
        Self { shape: [cols, slice.rows, data.len() / (slice.rows * cols)], data }
    }

    /// Appends `more` rows of zeros to each matrix.
    pub fn padded(self, more: usize) -> Self {
        let [cols, rows, matrices] = self.shape;
        let padded = |of: &[f32]| [of, &vec![0.0; more * cols]].concat();
        let data = self.data.chunks_exact(cols * rows).flat_map(padded).collect();
        Self { shape: [cols, rows + more, matrices], data }
    }
}

fn shape(half: &TensorView<'_>) -> Vec<usize> {
    half.shape.iter().map(|&n| n as usize).collect()
}
