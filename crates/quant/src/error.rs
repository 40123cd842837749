//! What can be wrong with data handed to this crate.

use crate::TensorType;

/// Why values could not be converted from or to a tensor type.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum QuantError {
    /// A row ends inside a block.
    #[error("{values} values are no multiple of the {block}-value blocks of {ty}")]
    PartialBlock {
        /// The type of the row.
        ty: TensorType,
        /// Values in the row.
        values: usize,
        /// Values in one block.
        block: usize,
    },
    /// The input is no whole number of rows.
    #[error("{values} values are no multiple of the {row} values of a row")]
    PartialRow {
        /// Values given.
        values: usize,
        /// Values in a row.
        row: usize,
    },
    /// The packed bytes do not have the length that the number of values demands.
    #[error("{values} values of type {ty} take {expected} bytes, not {bytes}")]
    Bytes {
        /// The type of the data.
        ty: TensorType,
        /// Values named by the caller.
        values: usize,
        /// Bytes that so many values take.
        expected: usize,
        /// Bytes that were given.
        bytes: usize,
    },
    /// The packed bytes end inside a block.
    #[error("{bytes} bytes are no multiple of the {block}-byte blocks of {ty}")]
    PartialBytes {
        /// The type of the data.
        ty: TensorType,
        /// Bytes that were given.
        bytes: usize,
        /// Bytes of one block.
        block: usize,
    },
    /// The type holds integers, not weights.
    #[error("{ty} tensors hold integers; they have no float form")]
    NoFloats {
        /// The type asked for.
        ty: TensorType,
    },
    /// The type can be read but not made.
    #[error("nothing can be quantized to {ty}")]
    NoQuantizer {
        /// The type asked for.
        ty: TensorType,
    },
    /// The type is too coarse to be chosen without an importance matrix.
    #[error(
        "{ty} needs an importance matrix: make one with `puna imatrix` and pass it with --imatrix"
    )]
    ImportanceRequired {
        /// The type asked for.
        ty: TensorType,
    },
    /// The importance matrix belongs to other rows.
    #[error("the importance matrix has {found} values, but rows have {row}")]
    ImportanceLength {
        /// Values in the importance matrix.
        found: usize,
        /// Values in a row.
        row: usize,
    },
    /// The importance matrix holds a value that is no weight.
    #[error(
        "the importance matrix holds {value} at column {column}; weights are finite and not negative"
    )]
    ImportanceValue {
        /// The column.
        column: usize,
        /// The value, as text so that errors stay comparable.
        value: String,
    },
    /// The input holds a NaN or an infinity.
    #[error("value {index} to be quantized to {ty} is {value}")]
    NotFinite {
        /// The type asked for.
        ty: TensorType,
        /// Index of the value in the input.
        index: usize,
        /// The value, as text so that errors stay comparable.
        value: String,
    },
    /// The input holds a value beyond what any scale of the type reaches.
    #[error("value {index} to be quantized to {ty} is {value}, beyond the type's range")]
    OutOfRange {
        /// The type asked for.
        ty: TensorType,
        /// Index of the value in the input.
        index: usize,
        /// The value, as text so that errors stay comparable.
        value: String,
    },
    /// A stored value or scale is a NaN or an infinity.
    #[error("block {block} of {ty} data is invalid: {field} is not finite")]
    Invalid {
        /// The type of the data.
        ty: TensorType,
        /// Index of the block.
        block: usize,
        /// The field of the block.
        field: &'static str,
    },
}
