//! What adapters change of a model's weights and of what its layers hand on.

use std::collections::BTreeMap;

use crate::values::WeightId;

/// A change of a matrix by the product of two thin ones: `W + scale · up · down`. `W` itself stays as it is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LowRank {
    /// `[in, rank]`; of experts and heads `[in, rank, experts]`, or one of all heads.
    pub down: WeightId,
    /// `[rank, out]`; of experts and heads `[rank, out, experts]`, or one of all heads. Where a head's product hands columns on, `out`
    /// counts those, too, and the change of them is zero.
    pub up: WeightId,
    /// `down` with rows and columns exchanged, `[rank, in]`, where `W` is a table whose rows are taken by number.
    pub back: Option<WeightId>,
    /// Columns between the two.
    pub rank: usize,
    /// Multiplies their product.
    pub scale: f32,
    /// The adapter that it is of, whose dose multiplies it, too.
    pub adapter: usize,
}

/// A vector that is added to what a layer hands on: a direction in which the model is steered.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Direction {
    /// `[features]`.
    pub vector: WeightId,
    /// The adapter that it is of, whose dose multiplies it.
    pub adapter: usize,
}

/// What a model's adapters change.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Changes {
    /// Of each matrix that is changed.
    pub products: BTreeMap<WeightId, Vec<LowRank>>,
    /// Behind each layer that is steered.
    pub directions: BTreeMap<usize, Vec<Direction>>,
}

impl Changes {
    /// Whether nothing is changed.
    pub fn is_empty(&self) -> bool {
        self.products.is_empty() && self.directions.is_empty()
    }
}

/// What changes the matrices of experts. Where gate and up are one tensor both have the same changes, of which each takes its rows.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ExpertChanges {
    /// Of `gate`, or without a gate of `up`.
    pub gate: Vec<LowRank>,
    /// Of `up`.
    pub up: Vec<LowRank>,
    /// Of `down`.
    pub down: Vec<LowRank>,
}
