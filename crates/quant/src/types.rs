//! Tensor types of GGUF files: their numbers, names and block sizes.

use std::fmt;

/// Storage type of a tensor's elements.
///
/// Discriminants are the type numbers of the file format. Missing numbers were removed from the
/// format and are rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u32)]
#[allow(missing_docs, non_camel_case_types)] // the variants are the format's own names
pub enum TensorType {
    F32 = 0,
    F16 = 1,
    Q4_0 = 2,
    Q4_1 = 3,
    Q5_0 = 6,
    Q5_1 = 7,
    Q8_0 = 8,
    Q8_1 = 9,
    Q2_K = 10,
    Q3_K = 11,
    Q4_K = 12,
    Q5_K = 13,
    Q6_K = 14,
    Q8_K = 15,
    IQ2_XXS = 16,
    IQ2_XS = 17,
    IQ3_XXS = 18,
    IQ1_S = 19,
    IQ4_NL = 20,
    IQ3_S = 21,
    IQ2_S = 22,
    IQ4_XS = 23,
    I8 = 24,
    I16 = 25,
    I32 = 26,
    I64 = 27,
    F64 = 28,
    IQ1_M = 29,
    BF16 = 30,
    TQ1_0 = 34,
    TQ2_0 = 35,
    MXFP4 = 39,
    NVFP4 = 40,
    Q1_0 = 41,
    Q2_0 = 42,
}

use TensorType::*;

/// Type, number in files, name, values per block, bytes per block.
const TABLE: [(TensorType, u32, &str, usize, usize); 35] = [
    (F32, 0, "F32", 1, 4),
    (F16, 1, "F16", 1, 2),
    (Q4_0, 2, "Q4_0", 32, 18),
    (Q4_1, 3, "Q4_1", 32, 20),
    (Q5_0, 6, "Q5_0", 32, 22),
    (Q5_1, 7, "Q5_1", 32, 24),
    (Q8_0, 8, "Q8_0", 32, 34),
    (Q8_1, 9, "Q8_1", 32, 36),
    (Q2_K, 10, "Q2_K", 256, 84),
    (Q3_K, 11, "Q3_K", 256, 110),
    (Q4_K, 12, "Q4_K", 256, 144),
    (Q5_K, 13, "Q5_K", 256, 176),
    (Q6_K, 14, "Q6_K", 256, 210),
    (Q8_K, 15, "Q8_K", 256, 292),
    (IQ2_XXS, 16, "IQ2_XXS", 256, 66),
    (IQ2_XS, 17, "IQ2_XS", 256, 74),
    (IQ3_XXS, 18, "IQ3_XXS", 256, 98),
    (IQ1_S, 19, "IQ1_S", 256, 50),
    (IQ4_NL, 20, "IQ4_NL", 32, 18),
    (IQ3_S, 21, "IQ3_S", 256, 110),
    (IQ2_S, 22, "IQ2_S", 256, 82),
    (IQ4_XS, 23, "IQ4_XS", 256, 136),
    (I8, 24, "I8", 1, 1),
    (I16, 25, "I16", 1, 2),
    (I32, 26, "I32", 1, 4),
    (I64, 27, "I64", 1, 8),
    (F64, 28, "F64", 1, 8),
    (IQ1_M, 29, "IQ1_M", 256, 56),
    (BF16, 30, "BF16", 1, 2),
    (TQ1_0, 34, "TQ1_0", 256, 54),
    (TQ2_0, 35, "TQ2_0", 256, 66),
    (MXFP4, 39, "MXFP4", 32, 17),
    (NVFP4, 40, "NVFP4", 64, 36),
    (Q1_0, 41, "Q1_0", 128, 18),
    (Q2_0, 42, "Q2_0", 64, 18),
];

impl TensorType {
    /// All types, in the order of their numbers.
    pub fn all() -> impl Iterator<Item = TensorType> {
        TABLE.iter().map(|row| row.0)
    }

    /// Type of a number in a tensor description, if the format still has it.
    pub fn from_id(id: u32) -> Option<Self> {
        TABLE.iter().find(|row| row.1 == id).map(|row| row.0)
    }

    /// Finds a type by name, in any case (`q4_k`, `Q4_K`).
    pub fn from_name(name: &str) -> Option<Self> {
        TABLE.iter().find(|row| row.2.eq_ignore_ascii_case(name)).map(|row| row.0)
    }

    /// Number in a tensor description.
    pub fn id(self) -> u32 {
        self as u32
    }

    fn row(self) -> &'static (TensorType, u32, &'static str, usize, usize) {
        TABLE.iter().find(|row| row.0 == self).expect("the table lists every variant")
    }

    /// Name in capitals, as llama.cpp's tools print it, such as `Q4_K`.
    pub fn name(self) -> &'static str {
        self.row().2
    }

    /// Number of values in a block. The length of a row is a multiple of this number.
    pub fn block_values(self) -> usize {
        self.row().3
    }

    /// Size of a block in bytes.
    pub fn block_bytes(self) -> usize {
        self.row().4
    }

    /// Size in bytes of a row of `values`. `None` if `values` is not a multiple of the block, or
    /// the size overflows.
    pub fn row_bytes(self, values: usize) -> Option<usize> {
        let (block, bytes) = (self.block_values(), self.block_bytes());
        values.is_multiple_of(block).then(|| (values / block).checked_mul(bytes)).flatten()
    }

    /// Whether values are packed in blocks with shared scales.
    pub fn is_quantized(self) -> bool {
        self.block_values() > 1
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_and_the_discriminants_agree() {
        for &(ty, id, name, ..) in &TABLE {
            assert_eq!(
                (ty.id(), TensorType::from_id(id), TensorType::from_name(name)),
                (id, Some(ty), Some(ty))
            );
        }
    }

    #[test]
    fn rows_with_partial_blocks_have_no_size() {
        assert_eq!(Q4_K.row_bytes(512), Some(288));
        assert_eq!(Q4_K.row_bytes(576), None);
        assert_eq!(Q8_0.row_bytes(usize::MAX - 31), None);
    }
}
