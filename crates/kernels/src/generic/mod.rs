//! Kernels written once over the width of vectors.
//!
//! Bodies are `#[inline(always)]` generics over [`Simd`] (and [`Quant`] for packed weights). They are compiled into the
//! thin functions that [`target_feature_wrappers`] makes for each level, which alone carry the target features. Every body is an `unsafe
//! fn` with one contract beside what its own comment says: *the processor has the features of the vector type*.

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
pub(crate) mod target_feature_wrappers;
pub(crate) mod vector;

pub(crate) use quant::{Format, Quant};
pub(crate) use simd::Simd;
