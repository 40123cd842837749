//! Block formats of GGUF tensors: layout, dequantization and quantization. This portable and exact
//! code is the reference for all kernels.
//!
//! - [`TensorType`]: numbers, names and block sizes.
//! - [`dequantize`], [`dequantizer`]: packed blocks to f32, bit-identical to the format's
//!   reference.
//! - [`quantize`]: f32 to packed blocks. [`quantize_error`] measures its error on a fixed row.
//! - [`validate`]: checks that packed data decodes to finite numbers.
//! - [`layout`], [`tables`], [`float`]: block layouts, tables and conversions for kernels.

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
