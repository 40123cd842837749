//! Kernels that are generic over the vector type.
//!
//! Bodies are `#[inline(always)]` generics over [`Simd`], and over [`QuantSimd`] for packed
//! weights. [`target_feature_wrappers`] makes the functions with `#[target_feature]` for each
//! level, into which bodies are inlined.
//!
//! Matrix products ("vec_dot", `mul_mat`) begin at [`crate::LinearKernel::for_rows`]:
//!
//! | weights | few activation rows | many activation rows |
//! |---|---|---|
//! | f32, f16, bf16 | `linear` | `panel` |
//! | packed (Q4_K and others) | `qstream` | `qpanel` |
//!
//! `quant` has the traits of packed formats, and `formats` implements them.
//!
//! # Safety
//! This is the contract of every `unsafe fn` of this module and its submodules:
//!
//! - The processor has the features of the vector type.
//! - Slices have the lengths that the wrapper checks before it enters the body.
//! - A pointer is valid for the bytes that the function reads or writes, at any alignment.
//! - A pointer to a chunk is valid for the whole chunk.
//!
//! A function or a trait with further conditions states them itself.

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
