//! The level `avx2`: AVX2, FMA and F16C, vectors of eight f32.

use puna_quant::TensorType;

use super::{avx2_packed, avx2_vectors};
use crate::{Level, LinearKernel};

/// Whether this processor runs the level.
pub(super) fn available() -> bool {
    is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c")
}

pub(super) const LEVEL: Level = Level { name: "avx2", linear, vector: avx2_vectors::VECTOR };

fn linear(ty: TensorType) -> Option<LinearKernel> {
    avx2_vectors::float_kernel(ty).or_else(|| avx2_packed::kernel(ty))
}
