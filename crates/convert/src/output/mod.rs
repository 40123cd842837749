//! The GGUF file that a conversion writes: its tensors, the order of their rows, and the writer.

mod row_order;
mod tensor;
mod value_transform;
mod write;

pub(crate) use row_order::{RowMapping, RowOrder};
pub(crate) use tensor::{OutputTensor, TensorContent, TensorRows, check_width};
pub(crate) use value_transform::{RowBands, ValueTransform};
pub use write::{CONVERTING_STATUS, ProgressReport};
pub(crate) use write::{sort_by_layer, widen_overflowing, write_file};
