//! The portable level: plain code that reads like the definitions, and the oracle of every other
//! level.
//!
//! Weights are dequantized row by row, activations stay in f32, sums are f32 (f64 in the norms).

mod attention;
mod linear;
mod recurrent;
mod vector;

pub use attention::load_position;
pub(crate) use attention::store_kv;
pub(crate) use vector::q8_scale;

use super::{Level, VectorKernels};

/// See the module.
pub(crate) const LEVEL: Level = Level {
    name: "portable",
    linear: linear::kernel,
    vector: VectorKernels {
        quantize_q8: vector::quantize_q8,
        rms_norm: vector::rms_norm,
        layer_norm: vector::layer_norm,
        add: vector::add,
        swiglu: vector::swiglu,
        geglu: vector::geglu,
        gelu: vector::gelu,
        gelu_erf: vector::gelu_erf,
        exp_sum: vector::exp_sum,
        max: vector::max,
        store_kv,
        attend: attention::attend,
        score: attention::score,
        recurrent: recurrent::KERNELS,
    },
};
