//! Kernels that are generic over the vector type.
//!
//! Bodies are `#[inline(always)]` generics over [`Simd`], and over [`QuantSimd`] for packed
//! weights. [`target_feature_wrappers`] makes the functions with `#[target_feature]` for each
//! level, into which bodies are inlined. Every body is an `unsafe fn` with one contract besides its
//! own: *the processor has the features of the vector type*.

pub(crate) mod attention;
pub(crate) mod formats;
pub(crate) mod linear;
pub(crate) mod panel;
pub(crate) mod qpanel;
pub(crate) mod qstream;
pub(crate) mod quant;
pub(crate) mod recurrent;
pub(crate) mod rows;
pub(crate) mod simd;
pub(crate) mod sweep;
pub(crate) mod target_feature_wrappers;
pub(crate) mod vector;

pub(crate) use quant::{Format, QuantSimd};
pub(crate) use simd::Simd;
