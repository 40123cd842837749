//! Adapters in a graph: low-rank updates of weights (LoRA) and control vectors.

use std::collections::BTreeMap;

use crate::values::WeightId;

/// Low-rank update of a matrix (LoRA): `W + scale · up · down`, where `down` is LoRA A and `up` is
/// LoRA B. `W` itself is not changed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LowRank {
    /// LoRA A: `[in, rank]`; for experts and heads `[in, rank, experts]`, or one for all heads.
    pub down: WeightId,
    /// LoRA B: `[rank, out]`; for experts and heads `[rank, out, experts]`, or one for all heads.
    /// If a per-head product passes columns through, `out` includes them, with an update of zero.
    pub up: WeightId,
    /// `down` transposed, `[rank, in]`, if `W` is an embedding table.
    pub back: Option<WeightId>,
    /// Rank of the update.
    pub rank: usize,
    /// Factor of the update.
    pub scale: f32,
    /// Number of the adapter; its scale multiplies the update, too.
    pub adapter: usize,
}

/// A control vector: added to the residual stream behind a layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ControlVector {
    /// `[features]`.
    pub vector: WeightId,
    /// Number of the adapter; its scale multiplies the vector.
    pub adapter: usize,
}

/// All adapters of a model.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct AdapterUpdates {
    /// Low-rank updates by matrix.
    pub products: BTreeMap<WeightId, Vec<LowRank>>,
    /// Control vectors by layer.
    pub control_vectors: BTreeMap<usize, Vec<ControlVector>>,
}

impl AdapterUpdates {
    /// Whether there are no adapters.
    pub fn is_empty(&self) -> bool {
        self.products.is_empty() && self.control_vectors.is_empty()
    }
}

/// Low-rank updates of the matrices of experts. If gate and up are one tensor, both have the same
/// updates and use their own rows.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ExpertLoraUpdates {
    /// Of `gate`; of `up` for experts without a gate.
    pub gate: Vec<LowRank>,
    /// Of `up`.
    pub up: Vec<LowRank>,
    /// Of `down`.
    pub down: Vec<LowRank>,
}
