//! The thin matrices of changes, as they are multiplied with.

use std::sync::Arc;

use puna_gguf::{SharedBytes, TensorView};
use puna_graph::{Weight, WeightId};
use puna_quant::TensorType;

use super::error::AdapterError;
use crate::weights::{Cut, Mapped};

/// A matrix of floats, or one for each expert or head. So changes are as exact as the file.
pub(super) struct LowRankMatrix {
    ty: TensorType,
    shape: Vec<usize>,
    data: SharedBytes,
}

impl LowRankMatrix {
    /// Floats where they are, all else as f32.
    pub fn of(half: &TensorView<'_>) -> Result<Self, AdapterError> {
        if !matches!(half.ty, TensorType::F32 | TensorType::F16 | TensorType::BF16) {
            return Ok(Floats::of(half)?.into());
        }
        Ok(Self { ty: half.ty, shape: shape(half), data: half.shared() })
    }

    /// Adds it to a model's tensors, as one of a change of that name.
    pub fn add_to(self, tensors: &mut Vec<Weight>, of: &str) -> WeightId {
        let Self { ty, shape, data } = self;
        tensors.push(Weight {
            name: format!("{of} (change)"),
            ty,
            shape,
            data: Arc::new(Mapped(data)),
        });
        WeightId(tensors.len() as u32 - 1)
    }
}

impl From<Floats> for LowRankMatrix {
    fn from(Floats { shape, data }: Floats) -> Self {
        let bytes: Vec<u8> = data.into_iter().flat_map(f32::to_ne_bytes).collect();
        // One matrix may be that of all heads.
        let shape = if shape[2] == 1 { shape[..2].to_vec() } else { shape.to_vec() };
        Self { ty: TensorType::F32, shape, data: SharedBytes::aligned(&bytes) }
    }
}

/// The same while it is made: columns, rows of each matrix, matrices.
pub(super) struct Floats {
    shape: [usize; 3],
    data: Vec<f32>,
}

impl Floats {
    /// The numbers of half a change.
    pub fn of(half: &TensorView<'_>) -> Result<Self, AdapterError> {
        let bad = || AdapterError::Type { tensor: half.name.to_owned(), ty: half.ty };
        let shape = shape(half);
        let mut data = vec![0.0; shape.iter().product()];
        puna_quant::dequantize(half.ty, &half.bytes(), &mut data).map_err(|_| bad())?;
        Ok(Self { shape: [0, 1, 2].map(|i| shape.get(i).copied().unwrap_or(1)), data })
    }

    /// Each matrix with rows and columns exchanged.
    pub fn transposed(self) -> Self {
        let [cols, rows, matrices] = self.shape;
        let turned = |of: &[f32]| {
            (0..cols * rows).map(|i| of[i % rows * cols + i / rows]).collect::<Vec<_>>()
        };
        let data = self.data.chunks_exact(cols * rows).flat_map(turned).collect();
        Self { shape: [rows, cols, matrices], data }
    }

    /// Rows of which other matrices are made.
    pub fn cut(self, cut: &Cut) -> Self {
        let cols = self.shape[0];
        let of = |each: &[f32]| each[cut.first * cols..][..cut.rows * cols].to_vec();
        let data: Vec<f32> = self.data.chunks_exact(cut.each * cols).flat_map(of).collect();
        Self { shape: [cols, cut.rows, data.len() / (cut.rows * cols)], data }
    }

    /// So many rows of zeros behind those of each matrix.
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
