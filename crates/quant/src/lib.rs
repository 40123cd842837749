//! Block formats of GGUF tensors as types: layout, dequantize, quantize; portable and exact, the reference for
//! every kernel.
//!
//! - [`TensorType`]: numbers, names and block sizes.
//! - [`dequantize`], [`dequantizer`]: from packed blocks to f32, bit for bit as the format's reference.
//! - [`layout`], [`tables`], [`float`]: what a kernel needs to read blocks itself.

mod codebooks;
mod dequantize;
mod error;
pub mod float;
pub mod layout;
pub mod tables;
mod types;

pub use dequantize::{Dequantizer, dequantize, dequantizer};
pub use error::QuantError;
pub use types::TensorType;
