//! Errors of conversions.

use crate::TensorType;

/// Why values cannot be converted from or to a tensor type.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum QuantError {
    /// A row ends inside a block.
    #[error("{values} values are not a multiple of the {block}-value blocks of {ty}")]
    PartialBlock {
        /// Type of the row.
        ty: TensorType,
        /// Number of values in the row.
        values: usize,
        /// Number of values in a block.
        block: usize,
    },
    /// The input is not a whole number of rows.
    #[error("{values} values are not a multiple of the {row} values of a row")]
    PartialRow {
        /// Number of input values.
        values: usize,
        /// Number of values in a row.
        row: usize,
    },
    /// The packed data has a wrong size.
    #[error("{values} values of type {ty} need {expected} bytes, got {bytes}")]
    Bytes {
        /// Type of the data.
        ty: TensorType,
        /// Number of values.
        values: usize,
        /// Size of these values in bytes.
        expected: usize,
        /// Actual size in bytes.
        bytes: usize,
    },
    /// The packed data ends inside a block.
    #[error("{bytes} bytes are not a multiple of the {block}-byte blocks of {ty}")]
    PartialBytes {
        /// Type of the data.
        ty: TensorType,
        /// Actual size in bytes.
        bytes: usize,
        /// Size of a block in bytes.
        block: usize,
    },
    /// The type holds integers, not weights.
    #[error("cannot dequantize {ty}: its values are integers")]
    NoFloats {
        /// Requested type.
        ty: TensorType,
    },
    /// The type can be dequantized only.
    #[error("cannot quantize to {ty}")]
    NoQuantizer {
        /// Requested type.
        ty: TensorType,
    },
    /// The type is too coarse to use without an importance matrix.
    #[error(
        "{ty} needs an importance matrix: make one with `puna imatrix` and pass it with --imatrix"
    )]
    ImportanceRequired {
        /// Requested type.
        ty: TensorType,
    },
    /// The importance matrix has a wrong length.
    #[error("the importance matrix has {found} values, but rows have {row}")]
    ImportanceLength {
        /// Number of values in the importance matrix.
        found: usize,
        /// Number of values in a row.
        row: usize,
    },
    /// The importance matrix has an invalid weight.
    #[error(
        "the importance matrix has {value} at column {column}; weights must be finite and not negative"
    )]
    ImportanceValue {
        /// Column of the weight.
        column: usize,
        /// The weight, as text so that errors can be compared.
        value: String,
    },
    /// The input contains a NaN or an infinity.
    #[error("cannot quantize value {index} to {ty}: it is {value}")]
    NotFinite {
        /// Requested type.
        ty: TensorType,
        /// Index of the value.
        index: usize,
        /// The value, as text so that errors can be compared.
        value: String,
    },
    /// The input contains a value beyond the range of the type.
    #[error("cannot quantize value {index} to {ty}: {value} is out of range")]
    OutOfRange {
        /// Requested type.
        ty: TensorType,
        /// Index of the value.
        index: usize,
        /// The value, as text so that errors can be compared.
        value: String,
    },
    /// A stored value or scale is NaN or infinite.
    #[error("block {block} of {ty} data is invalid: {field} is not finite")]
    Invalid {
        /// Type of the data.
        ty: TensorType,
        /// Index of the block.
        block: usize,
        /// Field of the block.
        field: &'static str,
    },
}
