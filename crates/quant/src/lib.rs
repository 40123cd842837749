//! Block formats of GGUF tensors as types: layout, dequantize, quantize; portable and exact, the reference for
//! every kernel.
//!
//! - [`TensorType`]: numbers, names and block sizes.
//! - [`dequantize`], [`dequantizer`]: from packed blocks to f32, bit for bit as the format's reference.
//! - [`quantize`]: the other way; [`quantize_error`] measures it on a fixed row.
//! - [`validate`]: whether packed data decodes to finite numbers.
//! - [`layout`], [`tables`], [`float`]: what a kernel needs to read blocks itself.

mod codebooks;
mod dequantize;
mod error;
pub mod float;
pub mod layout;
mod quantize;
mod reference;
pub mod tables;
mod types;
mod validate;

pub use dequantize::{Dequantizer, dequantize, dequantizer};
pub use error::QuantError;
pub use quantize::{quantize, requires_importance};
pub use reference::{QuantizationError, quantize_error};
pub use types::TensorType;
pub use validate::validate;
