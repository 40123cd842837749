//! Block formats of GGUF tensors as types: layout, dequantize, quantize; portable and exact, the reference for
//! every kernel.

mod types;

pub use types::TensorType;
