//! Importance matrices, in the GGUF form of llama.cpp: for each tensor the sums of squares of its inputs, and over how
//! many tokens they are.

use std::collections::HashMap;
use std::path::Path;

use puna_gguf::Gguf;
use puna_quant::TensorType;

use crate::error::StoreError;

/// How much the columns of tensors matter.
pub struct Imatrix {
    weights: HashMap<String, Vec<f32>>,
}

impl Imatrix {
    /// Reads a file.
    ///
    /// # Errors
    /// It is no importance matrix.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let bad = |reason: &str| StoreError::Imatrix { path: path.to_owned(), reason: reason.to_owned() };
        let gguf = Gguf::open(path)
            .map_err(|error| StoreError::GgufFile { file: path.display().to_string(), error })?;
        let mut weights = HashMap::new();
        for sums in gguf.tensors() {
            let Some(name) = sums.name.strip_suffix(".in_sum2") else { continue };
            let counts = gguf.tensor(&format!("{name}.counts")).ok_or_else(|| bad("sums without counts"))?;
            if sums.ty != TensorType::F32 || counts.ty != TensorType::F32 {
                return Err(bad("its tensors are not F32"));
            }
            let floats = |tensor| -> Vec<f32> {
                let words = gguf.data(tensor).chunks_exact(4);
                words.map(|word| f32::from_le_bytes([word[0], word[1], word[2], word[3]])).collect()
            };
            let (mut sums, counts) = (floats(sums), floats(counts));
            // A row for each expert, with a count of its own.
            let each = sums.len() / counts.len().max(1);
            for (row, count) in sums.chunks_mut(each.max(1)).zip(&counts) {
                // An expert that was never used matters as much in every column.
                row.iter_mut().for_each(|sum| *sum = if *count > 0.0 { *sum / count } else { 1.0 });
            }
            weights.insert(name.to_owned(), sums);
        }
        if weights.is_empty() { Err(bad("it has no tensors named …in_sum2")) } else { Ok(Self { weights }) }
    }

    /// The weights of a tensor's columns, for stacks one row after the other.
    pub(super) fn of(&self, tensor: &str) -> Option<&[f32]> {
        self.weights.get(tensor).map(Vec::as_slice)
    }
}
